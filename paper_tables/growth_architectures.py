"""The ladders of growing in width only, in depth only, and in both (appendix of the paper).

Take it to print the ladders of a study of growth.
"""

from analysis.setting_tables import SIZE, ArchitectureTable

EXHIBIT = ArchitectureTable(
    label="tab:arch_WE_DE",
    caption=(
        "Model sizes when growing in width (WE), in depth (DE) and in both, with about the "
        "same parameters."
    ),
    suites=("ablation",),
    rows={"width": "WE + FRW", "depth": "DE + FRW", "both": "WE + DE + FRW"},
    properties=SIZE,
)
