"""What a local sweep shows while it runs: on a terminal what `status` says, live; elsewhere how far the sweep is."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from benchmark.jobs.state import RunState, Survey
from benchmark.jobs.status import lines_of, sweep_line
from benchmark.training.progress import IN_PROGRESS

EVERY, LINE = 2.0, 60.0  # seconds between two looks at the records: on a terminal, and in a file where nothing ends
REST = 9.0  # times a look's seconds in which there is no other


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
            size = self._terminal.console.size
            lines = lines_of(self._survey, states, (size.width, size.height - 1))
            self._terminal.update(Text("\n".join([*lines, self._now]), no_wrap=True), refresh=True)
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
        if self._terminal:
            self._terminal.stop()
        self._out.write("\n".join([*lines_of(self._survey, self._survey.states(), None), ""]))


@contextlib.contextmanager
def board(survey: Survey) -> Iterator[None]:
    """Show the sweep in place of standard error."""
    with Board(survey, sys.stderr) as shown, contextlib.redirect_stderr(shown):
        yield
