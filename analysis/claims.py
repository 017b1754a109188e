"""What the paper finds, as data. `analysis.verdicts` holds it against the runs at hand and the paper's own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ZERO = "0"  # stands for a row whose values are all zero
PAPER = ("Naive", "EWC", "MAS", "A-GEM", "ER", "Logit-KD", "PNN", "ELLE")


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """What "better" means in a claim.

    `metric`: a key of `analysis.metrics.METRICS`. `stages`: after the "last", or after "each" from the second on.
    `columns`: on the "average" of the tasks or on "each". `by`: better by more than this; negative: at most this much
    worse. `within`: instead, the same up to this much.
    """

    metric: str = "AP"
    stages: Literal["last", "each"] = "last"
    columns: Literal["average", "each"] = "average"
    by: float = 0.0
    within: float | None = None


@dataclass(frozen=True)
class Claim:
    """`rows` are better than each row of `than` (empty: than all other methods of the paper).

    `table`: where the paper's numbers are.
    """

    topic: str
    text: str
    rows: tuple[str, ...]
    than: tuple[str, ...] = ()
    criterion: Criterion = Criterion()
    table: str = "main_pretraining"


def _main(text: str, *rows: str, than: tuple[str, ...] = (), **better: Any) -> Claim:
    return Claim("Pre-training", text, rows, than, Criterion(**better))


def _tasks(text: str, *rows: str, than: tuple[str, ...] = (), table: str = "main_downstream", **better: Any) -> Claim:
    return Claim("Downstream", text, rows, than, Criterion(metric="score", **better), table)


def _part(text: str, row: str, *than: str, table: str = "ablation_pretraining", **better: Any) -> Claim:
    return Claim("Parts of ELLE", text, (row,), than, Criterion(**better), table)


def _alike(text: str, *rows: str, than: tuple[str, ...], metric: str = "ARS", **better: Any) -> Claim:
    return Claim("Similarity of a stream's models", text, rows, than, Criterion(metric=metric, **better))


_COMPARED = ("Naive", "MAS", "ER", "Logit-KD", "ELLE")  # whose ARS the paper draws; it prints no number of it
_FULL = "WE + DE + FRW + δN + PT"
_NOISE = "WE + DE + FRW + δN"

CLAIMS = (
    _main("ELLE has the lowest AP after every domain.", "ELLE", stages="each"),
    _main("ELLE's AP is below ER's after every domain.", "ELLE", than=("ER",), stages="each"),
    _main(
        "ELLE forgets less than ER: lower AP⁺ after every domain.", "ELLE", than=("ER",), metric="AP⁺", stages="each"
    ),
    _main("ELLE learns fastest: the least area under the AP curve.", "ELLE", metric="area"),
    _main("EWC and MAS end within 5% of Naive's AP.", "EWC", "MAS", than=("Naive",), within=0.05),
    _main(
        "ER and Logit-KD have a lower AP than Naive after every domain.",
        "ER",
        "Logit-KD",
        than=("Naive",),
        stages="each",
    ),
    _main("ER and Logit-KD forget less than Naive.", "ER", "Logit-KD", than=("Naive",), metric="AP⁺", stages="each"),
    _main("Logit-KD forgets less than ER.", "Logit-KD", than=("ER",), metric="AP⁺", stages="each"),
    _main("Logit-KD ends with a higher AP than ER: its teacher costs time.", "ER", than=("Logit-KD",)),
    _main("A-GEM ends with a higher AP than Naive.", "Naive", than=("A-GEM",)),
    _main(
        "More than 99.9% of A-GEM's gradients agree with the memory's.",
        "A-GEM",
        than=(ZERO,),
        metric="positive",
        by=99.9,
    ),
    _main("PNN never forgets: its AP⁺ is 0.", "PNN", than=(ZERO,), metric="AP⁺", stages="each", within=0.005),
    _main("PNN has a lower AP than every method that does not grow.", "PNN", than=PAPER[:6], stages="each"),
    _tasks("ELLE is best on every downstream task.", "ELLE", columns="each"),
    _tasks("ELLE has the best average score after every stage.", "ELLE", stages="each", table="downstream_by_stage"),
    _tasks("PNN has a better average score than every method that does not grow.", "PNN", than=PAPER[:6]),
    _tasks("EWC and MAS score within two points of Naive.", "EWC", "MAS", than=("Naive",), within=2.0),
    _tasks(
        "Replay does not help downstream: A-GEM, ER and Logit-KD are at most a point above Naive.",
        "Naive",
        than=("A-GEM", "ER", "Logit-KD"),
        by=-1.0,
    ),
    _part("Growing in width beats not growing.", "WE + FRW", "ER", stages="each"),
    _part("Growing in depth beats not growing.", "DE + FRW", "ER", stages="each"),
    _part("Growing in both beats growing in one.", "WE + DE + FRW", "WE + FRW", "DE + FRW", stages="each"),
    _part("FRW lowers AP.", "WE + DE + FRW", "WE + DE"),
    _part("FRW lowers AP⁺.", "WE + DE + FRW", "WE + DE", metric="AP⁺"),
    _part("Noise on split neurons lowers AP.", _NOISE, "WE + DE + FRW"),
    _part("Domain prompts lower AP.", _FULL, _NOISE),
    _part("Domain prompts lower AP⁺.", _FULL, _NOISE, metric="AP⁺"),
    _part(
        "Growing in both improves the average score.",
        "WE + DE + FRW",
        "ER",
        metric="score",
        table="ablation_downstream",
    ),
    _part("Domain prompts improve the average score.", _FULL, _NOISE, metric="score", table="ablation_downstream"),
    _part(
        "Growing by 2 layers and heads beats 0, 4 and 6.",
        "Expand 2",
        "Expand 0",
        "Expand 4",
        "Expand 6",
        table="expand_size",
    ),
    _part(
        "Copying new layers beats copying the first or the last.",
        "WE + DE + FRW",
        "WE + DE first + FRW",
        "WE + DE last + FRW",
        metric="area",
    ),
    _tasks("The right prompt beats a wrong one.", "right prompt", than=("wrong prompt",), table="prompt_finetuning"),
    _tasks("A wrong prompt beats none.", "wrong prompt", than=("no prompt",), table="prompt_finetuning"),
    _alike("Logit-KD has the highest ARS.", "Logit-KD", than=("Naive", "MAS", "ER", "ELLE")),
    _alike("ELLE has the second highest ARS.", "ELLE", than=("Naive", "MAS", "ER")),
    _alike("ARS decreases with the number of domains.", *_COMPARED, than=(ZERO,), metric="fall"),
    _alike(
        "ELLE's heads attend as their ancestors do, more than as other heads do.",
        "ELLE",
        than=(ZERO,),
        metric="attention",
        stages="each",
    ),
)
