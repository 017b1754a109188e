"""Stack: ELLE with whole-stack depth growth at fixed width (Du et al. 2024, G_stack).

Take it to compare ELLE with growth in depth only.

"Stacking your transformers", arXiv 2405.15319. The stack of layers is put on top of itself up to
the ladder's depth. If this is no multiple of the old depth, the uppermost copy ends early: 6 layers
that become 8 are layers 1 to 6, 1, 2. The hidden size stays the ladder's first. All else is as in
ELLE.
"""

from dataclasses import dataclass
from typing import Literal

from methods.elle import ELLE


@dataclass
class Stack(ELLE):
    title = "Stack"
    group = "controls"

    width: bool = False  # grow in width too
    copied_layer: Literal["new", "first", "last", "stack"] = "stack"  # what sets it apart from ELLE
