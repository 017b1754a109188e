"""What `run_all.py doctor` says, a line each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, and where it is not well what to do."""

    what: str
    cure: str = ""
    serious: bool = True  # else it may be as it should

    def __str__(self) -> str:
        kind = "ok    " if not self.cure else "wrong " if self.serious else "look  "
        return f"{kind} {self.what}" + (f": {self.cure}" if self.cure else "")
