"""Zero- or one-layer expansion: ER whose network has no or one layer until late (Bu 2025).

Take it where depth is the cost, and the whole stream is known.

"Scaling depth capacity via zero/one-layer model expansion", arXiv 2511.04981. First a network of no
or one layer is trained. Once a share tau of the stream is over, it is expanded to its full depth L
at once. With B tokens per step, T steps, and N parameters before and after, the cost is

    6 B T (tau N_small + (1 - tau) N_large).

A zero-layer network gets new layers with random weights. In a one-layer network each new layer is a
copy, theta_l = theta_1 for l <= L. Nothing is rescaled: the same learning rate is best for both
depths, as the paper finds for models whose weights are drawn as with init = "scaled". Here too, of
five rates the same is best with 1, 2, 4 and 8 layers (results/open_text/depth_rates.toml, one
seed). The optimizer's state is kept: drawn layers have no moments, copies have those of theta_1.
The rate stays at its peak until it decays at the end (WSD), so that expansion happens while it is
stable:

    eta = eta_max min(1, n / w, (1 - n) / d) at the share n of the stream, with w, d of the options.

Here the network grows at the beginning of the first stage before which tau is spent, or of the
last stage at the latest. The width is the ladder's last, and each batch has ER's share of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from benchmark.settings.schedules import Piece, Schedule
from benchmark.training.method import PartOfStage, Phase, Share, Stage
from methods.er import ER

if TYPE_CHECKING:
    from benchmark.models import LanguageModel


@dataclass
class ZeroOneLayer(ER):
    title = "Zero/one-layer"
    group = "controls"
    version = 2  # grows with the last stage at the latest
    acts_first = True
    search_space: ClassVar = {"layers": (0, 1), "timing": (0.5, 0.8), "replay_ratio": (0.1, 0.3)}

    layers: Literal[0, 1] = 1  # layers before the expansion
    timing: Share = 0.8  # tau: share of the stream's budget before the expansion
    warmup: PartOfStage = 0.02  # w: share of the stream until the peak
    decay: PartOfStage = 0.2  # d: share of the stream at its end in which the rate falls to 0

    def signature(self, stage: Stage) -> dict[str, object]:
        return {"size": str(stage.stream_info.size), **super().signature(stage)}

    def start_stage(self, model: LanguageModel, stage: Stage) -> LanguageModel:
        full = stage.stream_info.size
        if stage.first:  # unchecked: no suite may ask for a size without layers
            return stage.build(full.model_copy(update={"layers": self.layers}))
        is_due = stage.last or stage.spent >= self.timing * stage.stream_info.budget
        if model.layers == full.layers or not is_due:
            return model
        if self.layers == 1:
            from benchmark.models.growth import grow

            network, self.growth = grow(
                model.network, full.layers, model.hidden_size, mode="fpi", copy="first"
            )
            model.set_network(network)
            return model
        larger = stage.build(full)
        larger.load_state_dict(model.state_dict(), strict=False)  # not strict: it has more layers
        return larger

    def phases(self, stage: Stage) -> list[Phase]:
        pieces = (Piece(self.warmup, 1.0), Piece(1 - self.decay, 1.0), Piece(1.0, 0.0))
        schedule = Schedule(pieces, over="stream")
        return [Phase("adapt", memory=self.replay_ratio, schedule=schedule, optimizer="carry")]
