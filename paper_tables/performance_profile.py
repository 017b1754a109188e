"""Beyond the paper: on how many stages a method is how near to the best."""

from analysis.curves import ProfileFigure

EXHIBIT = ProfileFigure(
    label="fig:performance_profile",
    caption="Share of stages (from the second on, over all suites) on which a row's AP is within a factor of the best.",
    blocks={},
)
