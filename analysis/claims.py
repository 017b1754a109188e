"""The paper's claims, as data.

`analysis.verdicts` holds it against the runs at hand and the paper's own numbers.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

ZERO = "0"  # stands for a row whose values are all zero
PAPER = ("Naive", "EWC", "MAS", "A-GEM", "ER", "Logit-KD", "PNN", "ELLE")


@dataclass(frozen=True)
class Claim:
    """`rows` are better than each row of `than` (empty: than all other methods of the paper).

    `table`: where the paper's numbers are. `metric`: a key of `analysis.metrics.METRICS`. `stages`:
    after the "last", or after "each" from the second on. `columns`: on the "average" of the tasks
    or on "each". `by`: better by more than this much, or where negative, at most this much worse.
    `within`: instead of `by`, the same up to this much.
    """

    topic: str
    text: str
    rows: tuple[str, ...]
    than: tuple[str, ...] = ()
    _: KW_ONLY
    table: str = "main_pretraining"
    metric: str = "AP"
    stages: Literal["last", "each"] = "last"
    columns: Literal["average", "each"] = "average"
    by: float = 0.0
    within: float | None = None


_pretraining = partial(Claim, "Pre-training")
_tasks = partial(Claim, "Downstream", metric="score", table="main_downstream")
_part = partial(Claim, "Parts of ELLE", table="ablation_pretraining")
_score_part = partial(Claim, "Parts of ELLE", metric="score", table="ablation_downstream")
_similarity = partial(Claim, "Similarity of a stream's models", metric="ARS")

# whose ARS the paper draws; it prints no number of it
_DRAWN_ROWS = ("Naive", "MAS", "ER", "Logit-KD", "ELLE")
_GROWTH = ("WE + DE + FRW",)
_NOISE = ("WE + DE + FRW + δN",)
_FULL = ("WE + DE + FRW + δN + PT",)

CLAIMS = (
    _pretraining("ELLE has the lowest AP after every domain.", ("ELLE",), stages="each"),
    _pretraining("ELLE's AP is below ER's after every domain.", ("ELLE",), ("ER",), stages="each"),
    _pretraining(
        "ELLE forgets less than ER: lower AP⁺ after every domain.",
        ("ELLE",),
        ("ER",),
        metric="AP⁺",
        stages="each",
    ),
    _pretraining(
        "ELLE learns fastest: the least area under the AP curve.", ("ELLE",), metric="area"
    ),
    _pretraining(
        "EWC and MAS end within 5% of Naive's AP.", ("EWC", "MAS"), ("Naive",), within=0.05
    ),
    _pretraining(
        "ER and Logit-KD have a lower AP than Naive after every domain.",
        ("ER", "Logit-KD"),
        ("Naive",),
        stages="each",
    ),
    _pretraining(
        "ER and Logit-KD forget less than Naive.",
        ("ER", "Logit-KD"),
        ("Naive",),
        metric="AP⁺",
        stages="each",
    ),
    _pretraining(
        "Logit-KD forgets less than ER.", ("Logit-KD",), ("ER",), metric="AP⁺", stages="each"
    ),
    _pretraining(
        "Logit-KD ends with a higher AP than ER: its teacher costs time.", ("ER",), ("Logit-KD",)
    ),
    _pretraining("A-GEM ends with a higher AP than Naive.", ("Naive",), ("A-GEM",)),
    _pretraining(
        "More than 99.9% of A-GEM's gradients agree with the memory's.",
        ("A-GEM",),
        (ZERO,),
        metric="positive",
        by=99.9,
    ),
    _pretraining(
        "PNN never forgets: its AP⁺ is 0.",
        ("PNN",),
        (ZERO,),
        metric="AP⁺",
        stages="each",
        within=0.005,
    ),
    _pretraining(
        "PNN has a lower AP than every method that does not grow.",
        ("PNN",),
        PAPER[:6],
        stages="each",
    ),
    _tasks("ELLE is best on every downstream task.", ("ELLE",), columns="each"),
    _tasks(
        "ELLE has the best average score after every stage.",
        ("ELLE",),
        stages="each",
        table="downstream_by_stage",
    ),
    _tasks(
        "PNN has a better average score than every method that does not grow.", ("PNN",), PAPER[:6]
    ),
    _tasks("EWC and MAS score within two points of Naive.", ("EWC", "MAS"), ("Naive",), within=2.0),
    _tasks(
        "Replay does not help downstream: A-GEM, ER and Logit-KD are at most a point above Naive.",
        ("Naive",),
        ("A-GEM", "ER", "Logit-KD"),
        by=-1.0,
    ),
    _part("Growing in width beats not growing.", ("WE + FRW",), ("ER",), stages="each"),
    _part("Growing in depth beats not growing.", ("DE + FRW",), ("ER",), stages="each"),
    _part(
        "Growing in both beats growing in one.", _GROWTH, ("WE + FRW", "DE + FRW"), stages="each"
    ),
    _part("FRW lowers AP.", _GROWTH, ("WE + DE",)),
    _part("FRW lowers AP⁺.", _GROWTH, ("WE + DE",), metric="AP⁺"),
    _part("Noise on split neurons lowers AP.", _NOISE, _GROWTH),
    _part("Domain prompts lower AP.", _FULL, _NOISE),
    _part("Domain prompts lower AP⁺.", _FULL, _NOISE, metric="AP⁺"),
    _score_part("Growing in both improves the average score.", _GROWTH, ("ER",)),
    _score_part("Domain prompts improve the average score.", _FULL, _NOISE),
    _part(
        "Growing by 2 layers and heads beats 0, 4 and 6.",
        ("Expand 2",),
        ("Expand 0", "Expand 4", "Expand 6"),
        table="expand_size",
    ),
    _part(
        "Copying new layers beats copying the first or the last.",
        _GROWTH,
        ("WE + DE first + FRW", "WE + DE last + FRW"),
        metric="area",
    ),
    _tasks(
        "The right prompt beats a wrong one.",
        ("right prompt",),
        ("wrong prompt",),
        table="prompt_finetuning",
    ),
    _tasks(
        "A wrong prompt beats none.", ("wrong prompt",), ("no prompt",), table="prompt_finetuning"
    ),
    _similarity("Logit-KD has the highest ARS.", ("Logit-KD",), ("Naive", "MAS", "ER", "ELLE")),
    _similarity("ELLE has the second highest ARS.", ("ELLE",), ("Naive", "MAS", "ER")),
    _similarity("ARS decreases with the number of domains.", _DRAWN_ROWS, (ZERO,), metric="fall"),
    _similarity(
        "ELLE's heads attend as their ancestors do, more than as other heads do.",
        ("ELLE",),
        (ZERO,),
        metric="attention",
        stages="each",
    ),
)
