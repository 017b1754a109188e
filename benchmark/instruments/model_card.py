"""The card of an exported model: what the records say of how it came to be, in the form that the Hub reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from benchmark import records
from benchmark.models import LanguageModel
from benchmark.models.kinds.lora import LoraModel
from benchmark.records import DoneLine, EvaluationLine, LineOfStage, RunLine, StageLine
from benchmark.store import Store

TEMPLATE = Path(__file__).with_name("model_card.md")
UNKNOWN = "unknown"


def model_card(name: str, stage: Path, model: LanguageModel, domain: str | None) -> ModelCard:
    """The card of the model of a stage's folder, exported with the prompt, or the adapters, of `domain`, if any."""
    runs, stages = _history(stage)
    titles = {one.name: one.title for one in (*runs[0].domains, *runs[0].probes)} if runs else {}
    last = records.last(stages[-1], EvaluationLine) if stages else None  # None: it trained nothing
    ends = [(records.last(lines, StageLine), records.last(lines, DoneLine)) for lines in stages]
    texts = [_text(begin.domain, begin.data[begin.domain]) for begin, _ in ends if begin]
    adapted = isinstance(model, LoraModel)
    alike = not (model.prompts or adapted)  # then what was measured in training holds for the exported model, too
    task = "fill-mask" if model.masked else "text-generation"
    results = [
        EvalResult(task, text, titles.get(text, text), "perplexity", round(value, 4), dataset_split="valid")
        for text, value in (last.perplexity.items() if last else ())
        if value is not None and (alike or text == domain)
    ]
    start, on_the_hub = _start(runs[0].config) if runs else ("", False)
    licenses = {text["license"] for text in texts} or {UNKNOWN}
    known = not start and UNKNOWN not in licenses
    about = ModelCardData(
        model_name=name,
        library_name="transformers",
        pipeline_tag=task,
        tags=["lifelong-pre-training", *sorted({run.method for run in runs})],
        base_model=start if on_the_hub else None,
        license="other" if known else UNKNOWN,  # a word of the Hub; the name says what "other" is
        license_name=", ".join(sorted(licenses)) if known else None,
        eval_results=results or None,
    )
    facts: dict[str, Any] = {"name": name, "model": model, "runs": runs, "stages": ends, "last": last, "texts": texts}
    facts |= {"domain": domain, "alike": alike, "adapted": adapted, "titles": titles, "start": start, "cell": _cell}
    return cast(ModelCard, ModelCard.from_template(about, template_path=str(TEMPLATE), **facts))


def _history(stage: Path) -> tuple[list[RunLine], list[list[LineOfStage]]]:
    """The runs that a stage belongs to, and the records of the stages up to it; nothing of one that lies elsewhere."""
    store = Store(stage.parent.parent)
    lines = [
        records.last(records.read(path, records.RUN), RunLine) for path in sorted(store.root.glob("suites/*/*.jsonl"))
    ]
    runs = [line for line in lines if line and stage.name in line.stages]
    if not runs or not store.stage_done(stage.name):
        return [], []
    keys = runs[0].stages
    return runs, [store.stage_lines(key) for key in keys[: keys.index(stage.name) + 1]]


def _start(settings: Any) -> tuple[str, bool]:
    """What the start model of a run is called, nothing without one, and whether it is on the Hub."""
    name, folder = settings["model"].get("start") or "", Path(settings.get("start", {}).get("folder", ""))
    on_the_hub = folder.parent.name == "snapshots"
    return (name if on_the_hub else Path(name).name), on_the_hub


def _text(name: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """What a domain is made of; of files the names alone, for where they lie is nobody's business."""
    source, licenses, packages = info.get("source", {}), info.get("licenses", {}), info.get("versions", {})
    files = [Path(path).name for path in (*source.get("train", ()), *source.get("valid", ()))]
    sources = [*source.get("packages", ()), *files, *(dataset["path"] for dataset in source.get("datasets", ()))]
    known = packages and licenses.keys() == packages.keys()
    license = " AND ".join(sorted(set(licenses.values()))) if known else UNKNOWN
    return {**info, "name": name, "source": ", ".join(sources), "license": license}


def _cell(value: object) -> str:
    """Text that cannot leave its cell of a table in Markdown."""
    text = " ".join(str(value).split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
