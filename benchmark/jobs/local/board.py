"""What a local sweep shows while it runs: a live table on a terminal, and elsewhere a line when something has ended."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmark.jobs.plan import StatesNow
from benchmark.jobs.states import RunState
from benchmark.jobs.sweep import sweep_line
from benchmark.training.progress import IN_PROGRESS

EVERY = 2.0  # seconds between two looks at the records, on a terminal


class Board(io.TextIOBase):
    """Standard error of a sweep: takes lines of progress as a terminal does, and adds how far the whole sweep is.

    What begins with a carriage return replaces the last line. `flush` draws again when it is time to. It looks at
    records only where the clock of a stage in this process stands still: when a line is written, or between segments.
    """

    def __init__(self, states_now: StatesNow, out: TextIO) -> None:
        self._states_now, self._out, self._said, self._now = states_now, out, "", ""
        self._next = 0.0
        self._terminal = Live(console=Console(file=out), auto_refresh=False, transient=True) if out.isatty() else None

    def isatty(self) -> bool:
        return self._terminal is not None

    def write(self, text: str) -> int:
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
        if self._terminal and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            states = self._states_now()
            below = Text(self._now, style="dim")
            self._terminal.update(Group(table(states), Text(sweep_line(states)), below), refresh=True)

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
            said = sweep_line(self._states_now())
            self._out.write(f"{said}\n" if said != self._said else "")
            self._said = said
        self._out.flush()

    def __enter__(self) -> Board:
        if self._terminal:
            self._terminal.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal:
            self._next = 0.0
            self._now = ""
            self._terminal.transient = False
            self.flush()
            self._terminal.stop()


@contextlib.contextmanager
def board(states_now: StatesNow) -> Iterator[None]:
    """Show the sweep in place of standard error."""
    with Board(states_now, sys.stderr) as shown, contextlib.redirect_stderr(shown):
        yield


def table(states: Sequence[RunState]) -> Table:
    """A line a run: AP after each domain, as far as it has come, and what it does now."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("AP after", no_wrap=True)
    longest = max((one.config.domains for one in states), key=len)
    for domain in longest:
        shown.add_column(domain.label, justify="right")
    shown.add_column("", no_wrap=True)
    seeds = len({one.config.seed for one in states}) > 1
    for one in states:
        aps = [f"{stage.ap:,.1f}" for stage in one.trained.finished]
        name = one.config.row + (f", seed {one.config.seed}" if seeds else "")
        style = {"running": "bold", "failed": "red", "todo": "dim"}.get(one.state, "")
        cells = [*aps, *[""] * (len(longest) - len(aps)), one.state if one.state != "running" else one.detail]
        shown.add_row(name, *cells, style=style)
    return shown
