"""AKI: ELLE with advanced knowledge initialisation (Chen et al. 2022, bert2BERT).

Take it to see what new units from the layer above are worth beside ELLE's copies.

When a layer becomes wider, its new units take weights of the layer above. ELLE's new units are
copies from their own layer, with noise. All else is as in ELLE.
"""

from dataclasses import dataclass
from typing import Literal

from methods.elle import ELLE


@dataclass
class AKI(ELLE):
    title = "AKI"
    group = "controls"

    growth_mode: Literal["fpi", "exact", "aki"] = "aki"  # what sets it apart from ELLE
