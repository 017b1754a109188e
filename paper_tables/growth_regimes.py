"""Beyond the paper: as a function of budget and size, when does growing beat replay, and when starting large?"""

import math

from analysis.regimes_figure import MapPoint, RegimesFigure

EXHIBIT = RegimesFigure(
    label="fig:growth_regimes",
    caption="When growing pays: final AP of ELLE beside ER's, and the best of five ways, by budget and final size.",
    blocks={},
    contenders={
        "er": "ER",
        "elle": "ELLE",
        "elle_exact": "ELLE (exact)",
        "er_large": "ER (final size)",
        "scratch": "From scratch",
    },
    points=(
        # table:table1, BERT: 4.06 and 6.39 after CS. tab:arch: 62,500 steps of 2,048 x 512 tokens at 30.3 million
        # parameters, then 25,000 at each of 51.5, 82.2, 102 and 125 million: 6.9e19 FLOPs at six a parameter and token
        MapPoint("paper", 2163.0, 0.17, math.log(4.06 / 6.39)),
        # README, "Two commands": after its fifth domain, one seed, on 2026-11-25 on two cores with AVX-512
        MapPoint("demo", 260.0, 0.58, math.log(37.48 / 50.76)),
    ),
)
