"""Where the texts of a figure are drawn, as its renderer measures them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text


def faults(figure: Figure) -> tuple[int, list[str], list[tuple[str, str]]]:
    """How many texts are drawn, which of them reach beyond the figure, and which pairs overlap by more than a pixel."""
    seen: dict[Text, None] = {}
    draw = Text.draw

    def drawn(text: Text, renderer: Any) -> None:
        seen[text] = None
        draw(text, renderer)

    with patch.object(Text, "draw", drawn):
        figure.draw_without_rendering()
    texts = [text for text in seen if text.get_visible() and text.get_text().strip()]
    boxes = np.array([text.get_window_extent().extents for text in texts])
    edge = np.array(figure.bbox.extents)
    outside = (boxes[:, :2] < edge[:2] - 1).any(1) | (boxes[:, 2:] > edge[2:] + 1).any(1)
    overlap = np.ones((len(boxes), len(boxes)), bool)
    for low, high in ((0, 2), (1, 3)):
        overlap &= boxes[:, None, high] > boxes[None, :, low] + 1
        overlap &= boxes[None, :, high] > boxes[:, None, low] + 1
    said = [text.get_text() for text in texts]
    pairs = [(said[i], said[j]) for i, j in np.argwhere(np.triu(overlap, 1))]
    return len(texts), [said[i] for i in np.flatnonzero(outside)], pairs
