"""Figure fig:attn_similar of the paper: heads attend as the earlier heads they came from.

Take it to see whether copied heads still attend as what they were copied from.
"""

from analysis.pictures import AttentionFigure

MEASURE = "attention"
EXHIBIT = AttentionFigure(
    label="fig:attn_similar",
    caption=(
        "Attention of ELLE's heads after each stage on the same text. The heads of a row descend "
        "from one another. Above each model: how alike (0 to 1) its heads and their own ancestors "
        "attend, in brackets other heads."
    ),
    suites=("bert_base",),
    row="ELLE",
)
