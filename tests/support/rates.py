"""The learning rates that an optimizer steps with."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def rates_of(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rates of AdamW's steps, as they come, but those of 0 before each phase."""
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def noted(self: torch.optim.AdamW, *args: Any) -> Any:
        if self.param_groups[0]["lr"]:
            rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", noted)
    return rates
