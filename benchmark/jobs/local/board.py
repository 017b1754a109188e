"""What a local sweep shows while it runs: a live table on a terminal; elsewhere lines, and now and then the table."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmark.jobs.plan import StatesNow
from benchmark.jobs.states import RunState
from benchmark.jobs.sweep import spent, sweep_line, to_show
from benchmark.training.progress import IN_PROGRESS

EVERY, LINE = 2.0, 60.0  # seconds between two looks at the records: on a terminal, and in a file where nothing ends
PAUSE = 0.5  # seconds between two thoughts of that
SHORT = 0.1  # seconds of a look that nobody feels
REST = 9.0  # times a longer look's seconds in which there is no other
WIDTH, HEIGHT = 100, 24  # of the table in a file
STYLES = {"running": "bold", "failed": "red", "todo": "dim"}
STATE, GAP = 11, 2  # letters of the longest state, and between two columns


class Board(io.TextIOBase):
    """Standard error of a sweep: takes lines of progress as a terminal does, and adds how far the whole sweep is.

    What begins with a carriage return replaces the last line. `flush` draws again when it is time to. It looks at
    records only where the clock of a stage in this process stands still: when a line is written, or between segments.
    Of thousands of runs a look takes long, and runs side by side wait for it: then most of the time it looks at none.
    """

    def __init__(self, states_now: StatesNow, out: TextIO) -> None:
        self._states_now, self._out, self._said, self._now = states_now, out, "", ""
        self._next, self._rests, self._owes, self._ended, self._quarters = 0.0, 0.0, False, 0, 0
        self._lock = threading.RLock()
        self._terminal = Live(console=Console(file=out), auto_refresh=False, transient=True) if out.isatty() else None

    def isatty(self) -> bool:
        return self._terminal is not None

    def write(self, text: str) -> int:
        with self._lock:
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
        with self._lock:
            if time.monotonic() < max(self._next, self._rests):
                return
            if not self._terminal:
                if not self._now:  # else in the middle of a line
                    self._tell(self._look())
                return
            self._next = time.monotonic() + EVERY
            console, states = self._terminal.console, self._look()
            below = [Text(sweep_line(states)), Text(self._now, style="dim")]
            height = console.height - sum(len(text.wrap(console, console.width)) for text in below) - 1
            self._terminal.update(Group(*table(states, console.width, height), *below), refresh=True)

    @contextlib.contextmanager
    def by_itself(self) -> Iterator[None]:
        """Draw without being written to, too: for what follows training, where no clock of a stage runs."""
        over = threading.Event()

        def draw() -> None:
            while not over.wait(PAUSE):
                self.flush()

        drawing = threading.Thread(target=draw, daemon=True)
        drawing.start()
        try:
            yield
        finally:
            over.set()
            drawing.join()

    def _line(self, line: str) -> None:
        """A line that ends: progress is in the table, or passed on; after all else the sweep has changed."""
        self._now = ""
        if self._terminal:
            if IN_PROGRESS not in line:
                self._terminal.console.print(line, highlight=False, markup=False, soft_wrap=True)
            self._next = 0.0
            return
        self._out.write(f"{line}\n")
        if IN_PROGRESS not in line:
            self._owes = True
            if time.monotonic() >= self._rests:
                self._tell(self._look())
        self._out.flush()

    def _look(self) -> Sequence[RunState]:
        begun = time.monotonic()
        states = self._states_now()
        took = time.monotonic() - begun
        self._rests = time.monotonic() + (REST * took if took > SHORT else 0.0)
        return states

    def _tell(self, states: Sequence[RunState]) -> None:
        """In a file: the line of the sweep if it is another one, where a line or else a stage or score has ended.

        Before it the table, with the first stage that is there, and whenever another quarter of the budget is spent.
        """
        self._next = time.monotonic() + LINE
        stages = sum(len(one.trained.finished) for one in states)
        now = stages + sum(len(model.ran) for one in states for model in one.trained.scored)
        said = sweep_line(states)
        owes, self._owes = self._owes, False
        if said == self._said or not (owes or now > self._ended):
            return
        quarters = 1 + int(4 * spent(states)) if stages else 0
        if quarters > self._quarters:
            Console(file=self._out, width=WIDTH).print(*table(states, WIDTH, HEIGHT))
        self._out.write(f"{said}\n")
        self._out.flush()
        self._said, self._ended, self._quarters = said, now, max(quarters, self._quarters)

    def __enter__(self) -> Board:
        if self._terminal:
            self._terminal.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            self._terminal.stop()
            states = self._states_now()  # all of them: from here on one can scroll back
            self._terminal.console.print(*table(states, self._terminal.console.width), Text(sweep_line(states)))
        elif self._owes:
            self._tell(self._states_now())


@contextlib.contextmanager
def board(states_now: StatesNow) -> Iterator[Board]:
    """Show the sweep in place of standard error."""
    with Board(states_now, sys.stderr) as shown, contextlib.redirect_stderr(shown):
        yield shown


def table(states: Sequence[RunState], width: int, height: int | None = None) -> list[Table | Text]:
    """A line a run: AP after each domain, how much of the stage in progress is over, and the run's state.

    Of more domains than fit into `width` letters it shows those that running ones are at; of more runs than fit into
    `height` lines those that run or have failed and then those that are done, and how many others are how.
    """
    kept, more = to_show(states, len(states) if height is None else height - 1)
    labels = [domain.label for domain in max((one.config.domains for one in states), key=len)]
    cells = [_cells(one) for one in kept]
    several = len({one.config.seed for one in states}) > 1
    names = [one.config.row + (f", seed {one.config.seed}" if several else "") for one in kept]
    head = "AP after"
    first = min(max(map(len, (head, *names))), width // 3)
    least = max(7, max((len(cell) for line in cells for cell in line), default=0))  # letters of an AP
    left = width - first - STATE
    room = min(len(labels), max(1, left // (least + GAP)))  # columns that fit
    now = [len(line) for line, one in zip(cells, kept, strict=True) if one.state == "running"]
    end = max(room, *(now or map(len, cells)))
    shown = Table(box=None, pad_edge=False)
    shown.add_column(head, no_wrap=True, width=first)
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
    aps = [f"{stage.ap:,.1f}" for stage in one.trained.finished]
    return [*aps, f"{one.trained.fraction:.0%}"] if one.state == "running" else aps
