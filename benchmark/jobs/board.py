"""What a local sweep shows while it runs: a live table on a terminal; elsewhere lines, and how far the sweep is."""

from __future__ import annotations

import contextlib
import io
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmark.jobs.state import RunState, Survey
from benchmark.jobs.status import sweep_line, to_show
from benchmark.training.progress import IN_PROGRESS

EVERY, LINE = 2.0, 60.0  # seconds between two looks at the records: on a terminal, and in a file where nothing ends
REST = 9.0  # times a look's seconds in which there is no other
WIDTH = 100  # of the table in a file
STYLES = {"running": "bold", "failed": "red", "todo": "dim"}
STATE, GAP = 11, 2  # letters of the longest state, and between two columns


class Board(io.TextIOBase):
    """Standard error of a sweep: takes lines of progress as a terminal does, and adds how far the whole sweep is.

    What begins with a carriage return replaces the last line. `flush` draws again when it is time to. It looks at
    records only where the clock of a stage in this process stands still: when a line is written, or between units. Of
    thousands of runs a look takes long, and runs side by side wait for it: then most of the time it looks at none.
    """

    def __init__(self, survey: Survey, out: TextIO) -> None:
        self._survey, self._out, self._said, self._now, self._next = survey, out, "", "", 0.0
        self._terminal = Live(console=Console(file=out), auto_refresh=False, transient=True) if out.isatty() else None

    def isatty(self) -> bool:
        return self._terminal is not None

    def write(self, text: str) -> int:
        if not text:  # `print` writes its end apart
            return 0
        *lines, rest = text.rpartition("\n")[0::2]
        for line in "".join(lines).splitlines():
            self._line(line.rpartition("\r")[2] or self._now)
        if rest:
            self._now = rest.lstrip("\r").rstrip()
        elif lines == [""]:  # a line break alone ends the last line
            self._line(self._now)
        self.flush()
        return len(text)

    def flush(self) -> None:
        if time.monotonic() < self._next or (self._now and not self._terminal):
            return
        states = self._look()
        if self._terminal:
            console = self._terminal.console
            below = [Text(sweep_line(states)), Text(self._now, style="dim")]
            height = console.height - sum(len(text.wrap(console, console.width)) for text in below) - 1
            self._terminal.update(Group(*table(states, console.width, height), *below), refresh=True)
        elif (said := sweep_line(states)) != self._said:
            self._said = said
            self._out.write(f"{said}\n")
            self._out.flush()

    def _line(self, line: str) -> None:
        """A line that ends: progress is in the table, or passed on; after all else the sweep has changed."""
        self._now = ""
        if IN_PROGRESS not in line:
            self._next = min(self._next, self._rests)
        if not self._terminal:
            self._out.write(f"{line}\n")
            self._out.flush()
        elif IN_PROGRESS not in line:
            self._terminal.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def _look(self) -> Sequence[RunState]:
        begun = time.monotonic()
        states = self._survey.states(lately=True)
        now = time.monotonic()
        self._rests = now + REST * (now - begun)
        self._next = max(self._rests, now + (EVERY if self._terminal else LINE))
        return states

    def __enter__(self) -> Board:
        self._said = sweep_line(self._look())
        if self._terminal:
            self._terminal.start()
        return self

    def __exit__(self, *_: object) -> None:
        states = self._survey.states()
        if self._terminal:
            self._terminal.stop()
        console = self._terminal.console if self._terminal else Console(file=self._out, width=WIDTH)
        console.print(*table(states, console.width), Text(sweep_line(states)), soft_wrap=True)


@contextlib.contextmanager
def board(survey: Survey) -> Iterator[None]:
    """Show the sweep in place of standard error."""
    with Board(survey, sys.stderr) as shown, contextlib.redirect_stderr(shown):
        yield


def table(states: Sequence[RunState], width: int, height: float = math.inf) -> list[Table | Text]:
    """A line a run: AP after each domain, how much of the stage in progress is over, and the run's state.

    Of more domains than fit into `width` letters it shows those that running ones are at; of more runs than fit into
    `height` lines those that say most.
    """
    kept, more = to_show(states, height - 1)
    labels = [domain.label for domain in max((one.config.domains for one in states), key=len)]
    cells = [_cells(one) for one in kept]
    names = [f"{one.config.row}, seed {one.config.seed}" for one in kept]
    first = min(max(map(len, names)), width // 3)
    least = max(7, max((len(cell) for line in cells for cell in line), default=0))  # letters of an AP
    left = width - first - STATE
    room = min(len(labels), max(1, left // (least + GAP)))  # columns that fit
    now = [len(line) for line, one in zip(cells, kept, strict=True) if one.state == "running"]
    end = max(room, *(now or map(len, cells)))
    shown = Table(box=None, pad_edge=False)
    shown.add_column("AP after", no_wrap=True, width=first)
    for label in labels[end - room : end]:
        wide = max(least, min(len(label), left // room - GAP))
        shown.add_column(label, justify="right", no_wrap=True, width=wide)
    shown.add_column("", no_wrap=True, width=STATE)
    for name, line, one in zip(names, cells, kept, strict=True):
        aps = [*line, *[""] * (end - len(line))][end - room : end]
        shown.add_row(name, *aps, one.state, style=STYLES.get(one.state, ""))
    return [shown, Text(more, style="dim")] if more else [shown]


def _cells(one: RunState) -> list[str]:
    """AP after each finished stage, and the share of the one in progress."""
    aps = [f"{stage.ap:,.1f}" if stage.ap else "" for stage in one.finished]
    return [*aps, f"{one.fraction:.0%}"] if one.state == "running" else aps
