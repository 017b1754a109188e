"""Work in progress on this machine: one live table on a terminal; elsewhere each unit prints lines of its own."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benchmark.jobs.state import describe_progress
from benchmark.jobs.work import TRAINS, Unit
from benchmark.store import WATCHED, read_heartbeat

PAUSE = 1.0  # seconds between two looks at least


class Board:
    """The table; who does units tells it of them, and calls `refresh` where that is not charged to a run."""

    def __init__(self, name: str = "") -> None:
        console = Console(stderr=True)
        self.live = Live(console=console, auto_refresh=False, transient=True) if name and console.is_terminal else None
        self.name, self.ended, self.next = name, 0, 0.0
        self.under_way: dict[str, Unit] = {}
        self.said = tempfile.TemporaryDirectory()

    def __enter__(self) -> Board:
        if self.live:
            os.environ[WATCHED] = self.said.name
            self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            os.environ.pop(WATCHED, None)
            self.live.stop()
        self.said.cleanup()

    def show(self, units: Sequence[Unit]) -> None:
        """Show these units from now on; others that were shown have ended."""
        shown = {unit.id: unit for unit in units}
        if shown.keys() != self.under_way.keys():
            self.ended += len(self.under_way.keys() - shown.keys())
            self.under_way, self.next = shown, 0.0
        self.refresh()

    def refresh(self) -> None:
        if self.live and time.monotonic() >= self.next:
            self.next = time.monotonic() + PAUSE
            head, table = Text(f"{self.name}: {self.ended} units of work done"), Table(box=None, show_header=False)
            for unit in self.under_way.values():
                beat = read_heartbeat(unit.store.heartbeat(unit.config)) if unit.kind in TRAINS else None
                table.add_row(Text(unit.name), Text(describe_progress(beat, unit.config) if beat else unit.kind))
            self.live.update(Group(head, table), refresh=True)
