"""Print the seconds that the map's runs take on one machine, and the map under equal wall time as
it is read off its runs under equal FLOPs. `compare_rows.py` prints it as it was run
(`map_seconds.toml`).

A small model computes fewer FLOPs per second than a large one, so with equal FLOPs a model that
grows takes longer. The step times are those of `step_times.json`, which was made on a quiet
machine, with the data beside the project:

    S=results/small_models_begun_well OMP_NUM_THREADS=1 python run_all.py speed $S/map_quarter.toml
    --reference $S/step_times.json --pairs 11

Call it with `PYTHONPATH=. python $S/compare_seconds.py`. The seconds of a run under FLOPs are its
recorded steps times what such a step takes. AP at other seconds is taken as linear between two
budgets, both in logarithms. No interval holds the error of that, so none is printed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from compare_rows import HERE, LARGE, MAP, SIZES, SMALL

import methods
from benchmark.ledger.archive import open_suites
from benchmark.ledger.records import EvaluationLine, StageDone, find_last
from benchmark.ledger.runs import RunRecords, load_runs
from benchmark.settings.load import load_suite
from benchmark.settings.suite import RunConfig
from benchmark.training.step_times import find_times

TIMES = HERE / "step_times.json"
# each row of the map has budgets below and above; the first is that of `map_seconds.toml`
SECONDS = (36.0, 144.0)
ROWS = "ELLE, to {}", "ELLE (exact), to {}", "ER, {} from the start"


def main() -> None:
    of_suites = {suite: list_runs(suite) for suite in MAP}
    lines: list[Sequence[str]] = []
    for suite, of_suite in of_suites.items():
        means = np.exp(of_suite.groupby("row")["seconds"].mean())
        lines += [
            [MAP[suite], size, *(f"{means[row.format(size)]:.0f}" for row in ROWS)]
            for size in SIZES[:3]
        ]
    print_table(["Budget", "Last size", *(f"{row.format('it')}, seconds" for row in ROWS)], lines)
    under_flops = pd.concat(of_suites.values())
    lines = []
    for seconds in SECONDS:
        for size in SIZES[:3]:
            for pair in (*LARGE, *SMALL):
                rows = [row.format(size) for row in pair]
                first, second = (interpolate(under_flops, row, seconds) for row in rows)
                changes = (first - second).dropna()
                change = f"{np.expm1(changes.mean()):+.1%}".replace("-", "−")
                lines.append([f"{seconds:.0f}", size, " / ".join(rows), change, str(len(changes))])
    print_table(["Seconds", "Last size", "Compared", "Read off equal FLOPs", "Seeds"], lines)


def print_table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    print(
        "\n".join(f"| {' | '.join(line)} |" for line in (heads, ["--:"] * len(heads), *lines)),
        end="\n\n",
    )


def list_runs(suite: str) -> pd.DataFrame:
    """The row, seed, and logarithms of seconds and of the last AP of each run of a suite."""
    configs = {
        config.id: config for config in methods.list_runs(load_suite(str(HERE / f"{suite}.toml")))
    }
    with open_suites(HERE, [suite]) as folders:
        runs = [run for run in load_runs(folders[suite], suite) if run.id in configs]
    values = [
        (run.row, run.seed, np.log(time_run(configs[run.id], run)), compute_log_ap(run))
        for run in runs
    ]
    table: pd.DataFrame = pd.DataFrame(values, columns=["row", "seed", "seconds", "ap"])
    return table


def time_run(config: RunConfig, run: RunRecords) -> float:
    """Seconds of all stages of a run, set-up included."""
    budget = config.budget.model_copy(update={"reference": str(TIMES)})
    config, total = config.model_copy(update={"budget": budget}), 0.0
    for index, lines in enumerate(run.stages):
        times, done = find_times(config)[index], find_last(lines, StageDone)
        if done and done.charged["steps"]:
            total += times.set_up + sum(
                phase["steps"] * times.phases[phase["name"]] for phase in done.phases
            )
    return total


def compute_log_ap(run: RunRecords) -> float:
    last = find_last(run.stages[-1], EvaluationLine)
    return (
        float(np.mean([np.log(last.perplexity[domain.name] or np.inf) for domain in run.domains]))
        if last
        else np.nan
    )


def interpolate(runs: pd.DataFrame, row: str, seconds: float) -> pd.Series:
    """The logarithm of a row's AP when so many seconds are spent, by seed."""
    of_row = runs[runs["row"] == row].sort_values("seconds")
    ap: pd.Series = of_row.groupby("seed").apply(
        lambda own: np.interp(np.log(seconds), own["seconds"], own["ap"])
    )
    return ap


if __name__ == "__main__":
    main()
