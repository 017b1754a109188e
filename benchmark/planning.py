"""What a suite will run, what it has run, and what sharing saves. Reads records; trains nothing."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark import records
from benchmark.config import RunConfig, Suite, per_stage
from benchmark.method import LifelongMethod
from benchmark.progress import duration
from benchmark.run import Store, stage_keys

UNPREPARED = "unprepared"  # stands for the corpus in stage keys that only have to differ or agree


def describe(suite: Suite, configs: Sequence[RunConfig], methods: Sequence[LifelongMethod], store: Store) -> str:
    """The plan of --dry-run: a line a run, then the budget with and without shared stages."""
    unit = configs[0].budget.unit
    lines, all_stages = [f"{suite.name}: {suite.title}"], []
    done = 0
    for config, method in zip(configs, methods, strict=True):
        amounts = [per_stage(config.budget.amount, index) for index in range(len(config.domains))]
        finished = finished_stages(config, store)
        keys = stage_keys(config, method, UNPREPARED)
        all_stages += list(zip(keys, amounts, strict=True))
        state = "done" if finished == len(amounts) else f"{finished} of {len(amounts)} stages done"
        done += finished == len(amounts)
        lines.append(f"  {config.row}, seed {config.seed}: {amount_text(sum(amounts), unit)}; {state}")
    apart, shared = sum(amount for _, amount in all_stages), sum(dict(all_stages).values())
    lines.append(
        f"{len(configs)} runs, {done} done. Budget of all: {amount_text(apart, unit)}; stages that runs share are "
        f"trained once, which leaves {amount_text(shared, unit)} (saves {amount_text(apart - shared, unit)})"
    )
    return "\n".join(lines)


def finished_stages(config: RunConfig, store: Store) -> int:
    """Stages of a run that its records know as done."""
    return sum(store.stage_done(key) for key in recorded_stages(config, store))


def recorded_stages(config: RunConfig, store: Store) -> list[str]:
    """Keys of the stages of a run that has started, else nothing."""
    path = store.run_file(config)
    lines = records.read(path) if path.exists() else []
    return next((line["stages"] for line in reversed(lines) if line["kind"] == "run"), [])


def states(suite: Suite, configs: Sequence[RunConfig], store: Store) -> str:
    """A line a run: waiting, how far, done, or failed with the error."""
    return "\n".join(
        [f"{suite.name}: {suite.title}"] + [f"  {c.row}, seed {c.seed}: {state(c, store)}" for c in configs]
    )


def state(config: RunConfig, store: Store) -> str:
    path = store.run_file(config)
    lines = records.read(path) if path.exists() else []
    keys = recorded_stages(config, store)
    if not keys:
        return "waiting"
    finished = finished_stages(config, store)
    if finished == len(keys):
        return "done"
    last = lines[-1]
    if last["kind"] == "failed":
        return f"failed in stage {last['stage'] + 1}: {last['error']}"
    file = store.stage(keys[finished]) / "records.jsonl"
    seen = [line for line in records.read(file) if line["kind"] == "evaluation"] if file.exists() else []
    where = (
        f", {seen[-1]['phase']} {seen[-1]['fraction']:.0%}, {seen[-1]['tokens_per_second']:,.0f} tokens/s"
        if seen
        else ""
    )
    return f"{finished} of {len(keys)} stages done; {config.domains[finished].name}{where}"


def amount_text(amount: float, unit: str) -> str:
    if unit in ("seconds", "reference"):
        return f"{amount:,.0f} s ({duration(amount)})"
    return f"{amount:,.0f} {unit}"
