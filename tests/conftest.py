"""What tests of several files are given."""

import matplotlib.figure
import pytest

from analysis import figures


@pytest.fixture
def drawn(monkeypatch) -> list[matplotlib.figure.Figure]:
    """Every figure that is drawn during the test."""
    seen: list[matplotlib.figure.Figure] = []
    to_files = figures.to_files
    monkeypatch.setattr(figures, "to_files", lambda figure: seen.append(figure) or to_files(figure))
    return seen
