"""Beyond the paper: for streams in time, perplexity of earlier, the same and later periods.

Take it where domains are periods: the past, the present and the future apart.
"""

from analysis.perplexity_tables import TimeTable

EXHIBIT = TimeTable(
    label="table:time_averages",
    caption="Perplexity of periods before, of and after the one just learned.",
)
