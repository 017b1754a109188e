"""`run_all.py export`: a stage's model as a folder that transformers, and what builds on it, loads without our code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from benchmark.files import whole_folder, write_checksums
from benchmark.instruments.model_card import ModelHistory, model_card
from benchmark.models import LanguageModel, experts, progressive, saved_tokenizer
from benchmark.models.lora import LoraModel
from benchmark.models.of_stage import load_left
from benchmark.models.plain import plain
from benchmark.models.weights import logits_of, random_rows
from benchmark.settings.base import ConfigError
from benchmark.store import Store, run_line

NONE = "none"  # no prompt


@dataclass(frozen=True)
class ExportedModel:
    """What was written: `domain` is whose prompt or adapters it has, `url` where it was sent to; None for none."""

    domain: str | None
    url: str | None


def export_model(stage: Path, out: Path, prompt: str | None = None, push: str | None = None) -> ExportedModel:
    """Write the model of a stage, its tokenizer and its card to the new folder `out`.

    Args:
        stage: a folder below runs/stages, or the one of the model in it; or a run's file below runs/suites, which
            stands for its last stage.
        prompt: the domain whose prompt begins each text, or whose LoRA adapters are added into the weights; by default
            the last, as in `evaluate`. "none" is no prompt.
        push: the name of a repository of the Hub that the folder is sent to; a new one is private.

    Raises ConfigError, and then nothing is written; if the Hub alone refuses, the folder stays.
    """
    if out.exists():
        raise ConfigError(f"{out} exists already: name a new folder")
    if push is not None:
        _check_repository(push)
    folder = _model_folder(stage)
    if (folder / progressive.FILE).is_file():
        raise ConfigError(
            f"cannot export {stage}: it has columns (PNN), and transformers has no such model: export that of another "
            f"method, or {folder / 'column_0'}, the network of its first domain"
        )
    if (folder / experts.FILE).is_file():
        raise ConfigError(
            f"cannot export {stage}: it has experts (Lifelong-MoE), and transformers has no such model: export that of "
            "another method"
        )
    model = load_left(folder)
    domain = _domain(model, stage, prompt)
    card = model_card((push or out.name).rpartition("/")[2], ModelHistory.of(folder.absolute().parent), model, domain)
    network, saved = plain(model, saved_tokenizer.read(folder, model.vocabulary), domain)
    logits_of(network, random_rows(network, 1), folder)
    with whole_folder(out) as beside:
        network.save_pretrained(beside)
        saved.save_pretrained(beside)
        card.save(beside / "README.md")
        write_checksums(beside)
    return ExportedModel(domain, _send(out, push) if push else None)


def _model_folder(stage: Path) -> Path:
    if stage.is_file():
        run = run_line(stage)
        if run is None or not run["stages"]:
            raise ConfigError(f"{stage} is no file of a run: name one below runs/suites, or a folder below runs/stages")
        stage = Store(stage.absolute().parents[2]).stage(run["stages"][-1])
    return stage / "model" if (stage / "model").is_dir() else stage


def _check_repository(name: str) -> None:
    if get_token() is None:
        raise ConfigError(f"--push {name}: no token of the Hub here; log in with `hf auth login`, or set HF_TOKEN")
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise ConfigError(f"--push {name}: {error}") from None


def _send(folder: Path, name: str) -> str:
    hub = HfApi()
    try:
        repository = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository.repo_id, folder_path=folder)
    except (HfHubHTTPError, OSError) as error:
        raise ConfigError(f"{folder} is written, but --push {name} failed: {error}; try `hf upload`") from None
    return str(repository)


def _domain(model: LanguageModel, stage: Path, asked: str | None) -> str | None:
    """Whose prompt or adapters; None for a model that reads all domains alike."""
    names = model.vocabulary.domains
    reads_alike = not (model.prompts or isinstance(model, LoraModel))
    choices = [*names, *[NONE] * (not isinstance(model, LoraModel))]
    if asked is not None and asked not in choices:
        raise ConfigError(f"--prompt {asked!r}: {stage} knows {', '.join(choices)}: choose one of them")
    if reads_alike and asked in names:
        raise ConfigError(f"--prompt {asked!r}: {stage} reads all domains without a prompt; leave --prompt out")
    return None if reads_alike or asked == NONE else asked or names[-1]
