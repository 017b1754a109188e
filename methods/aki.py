"""AKI: ELLE with advanced knowledge initialisation (Chen et al. 2022, bert2BERT).

Take it to see what new units from the layer above are worth beside ELLE's copies.

In width the new units of a layer take the weights of the layer above, where ELLE's are copies in
their own layer, with noise. All else is ELLE's.
"""

from dataclasses import dataclass
from typing import Literal

from methods.elle import ELLE


@dataclass
class AKI(ELLE):
    title = "AKI"
    group = "controls"

    growth_mode: Literal["fpi", "exact", "aki"] = "aki"  # what sets it apart from ELLE
