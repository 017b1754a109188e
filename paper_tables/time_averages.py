"""Beyond the paper: for streams in time, perplexity of earlier, the same and later periods."""

from analysis.perplexity_tables import TimeTable

EXHIBIT = TimeTable(
    label="table:time_averages",
    caption="Perplexity of periods before, of and after the one just learned.",
    blocks={},
)
