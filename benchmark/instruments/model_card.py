"""The card of an exported model: what the records say of how it came to be, in the form that the Hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from benchmark import records
from benchmark.models import LanguageModel
from benchmark.models.kinds.lora import LoraModel
from benchmark.records import DoneLine, EvaluationLine, RunLine, StageLine
from benchmark.store import Store, read_run

TEMPLATE = Path(__file__).with_name("model_card.md")
UNKNOWN = "unknown"


class TrainedStage(NamedTuple):
    """What the records of a finished stage say."""

    begin: StageLine
    last: EvaluationLine | None  # None: it trained nothing
    end: DoneLine


@dataclass(frozen=True)
class ModelHistory:
    """How the model in a run's folder was trained: the runs that it belongs to, and its stages up to its own."""

    runs: list[RunLine]
    stages: list[TrainedStage]

    @classmethod
    def of(cls, stage: Path) -> ModelHistory:
        """What the records around the folder of a stage say; nothing of one that lies elsewhere."""
        store = Store(stage.parent.parent)
        lines = [records.last(read_run(path), RunLine) for path in sorted(store.root.glob("suites/*/*.jsonl"))]
        runs = [line for line in lines if line and stage.name in line.stages]
        if not runs or not store.stage_done(stage.name):
            return cls([], [])
        keys = runs[0].stages
        return cls(runs, [_trained(store, key) for key in keys[: keys.index(stage.name) + 1]])


def _trained(store: Store, key: str) -> TrainedStage:
    lines = store.stage_lines(key)
    [begin], [end] = records.of_kind(lines, StageLine), records.of_kind(lines, DoneLine)
    return TrainedStage(begin, records.last(lines, EvaluationLine), end)


def model_card(name: str, history: ModelHistory, model: LanguageModel, domain: str | None) -> ModelCard:
    """The card of a model that was exported with the prompt, or the adapters, of `domain`, if any."""
    run = history.runs[0] if history.runs else None
    titles = {one.name: one.title for one in (*run.domains, *run.probes)} if run else {}
    measured = _measured(history, titles)
    adapted = isinstance(model, LoraModel)
    alike = not (model.prompts or adapted)  # then what was measured in training holds for the exported model, too
    task = "fill-mask" if model.masked else "text-generation"
    results = [
        EvalResult(task, one["name"], one["title"], "perplexity", round(one["perplexity"], 4), dataset_split="valid")
        for one in measured
        if one["perplexity"] is not None and (alike or one["name"] == domain)
    ]
    texts = _texts(history, titles)
    start, on_the_hub = _start(run) if run else ("", False)
    license, license_name = _license([one["license"] for one in texts] + [UNKNOWN] * bool(start))
    about = ModelCardData(
        model_name=name,
        library_name="transformers",
        pipeline_tag=task,
        tags=["lifelong-pre-training", *sorted({one.method for one in history.runs})],
        base_model=start if on_the_hub else None,
        license=license,
        license_name=license_name,
        eval_results=results or None,
    )
    facts: dict[str, Any] = {"name": name, "model": model, "runs": history.runs, "stages": history.stages}
    facts |= {"measured": measured, "domain": domain, "alike": alike, "adapted": adapted, "titles": titles}
    facts |= {"start": start, "texts": texts, "cell": _cell}
    return cast(ModelCard, ModelCard.from_template(about, template_path=str(TEMPLATE), **facts))


def _start(run: RunLine) -> tuple[str, bool]:
    """What the start model of a run is called, nothing without one, and whether it is on the Hub."""
    settings: Any = run.config
    name, folder = settings["model"].get("start") or "", Path(settings.get("start", {}).get("folder", ""))
    on_the_hub = folder.parent.name == "snapshots"
    return (name if on_the_hub else Path(name).name), on_the_hub


def _measured(history: ModelHistory, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """The final perplexity, and bits per byte, on each text."""
    last = history.stages[-1].last if history.stages else None
    if last is None:
        return []
    return [
        {"name": name, "title": titles.get(name, name), "perplexity": value, "bits_per_byte": last.bits_per_byte[name]}
        for name, value in last.perplexity.items()
    ]


def _texts(history: ModelHistory, titles: Mapping[str, str]) -> list[dict[str, Any]]:
    """What each domain that the model has seen is made of."""
    found = []
    for stage in history.stages:
        name = stage.begin.domain
        info: dict[str, Any] = dict(stage.begin.data[name])
        licenses, packages = info.get("licenses", {}), info.get("versions", {})
        known = sorted(set(licenses.values())) if packages and licenses.keys() == packages.keys() else []
        license = " AND ".join(known) or UNKNOWN
        found.append(
            {**info, "name": name, "title": titles.get(name, name), "source": _source(info), "license": license}
        )
    return found


def _source(info: Mapping[str, Any]) -> str:
    """Packages, files and data sets; of files the names alone, for where they lie is nobody's business."""
    source = info.get("source", {})
    files = [Path(path).name for path in (*source.get("train", ()), *source.get("valid", ()))]
    datasets = [dataset["path"] for dataset in source.get("datasets", ())]
    return ", ".join([*source.get("packages", ()), *files, *datasets])


def _license(of_texts: list[str]) -> tuple[str, str | None]:
    """The two fields of the Hub: its word, and what "other" stands for. Unknown as soon as one text's is."""
    known = sorted(set(of_texts))
    if not known or UNKNOWN in known:
        return UNKNOWN, None
    return "other", ", ".join(known)


def _cell(value: object) -> str:
    """Text that cannot leave its cell of a table in Markdown."""
    text = " ".join(str(value).split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
