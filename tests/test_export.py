"""Exported models: what plain transformers computes with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

from benchmark.data.tokenizer import EOS, Special, Vocabulary, load_tokenizer
from benchmark.instruments.checkpoints import evaluate_text
from benchmark.instruments.conformance import make_tiny_config
from benchmark.instruments.export import export_model
from benchmark.models import LanguageModel, build, load
from benchmark.models.kinds.experts import ExpertModel
from benchmark.models.kinds.lora import LoraModel
from benchmark.models.kinds.progressive import ProgressiveModel
from benchmark.models.start_model import resolve_start_model
from benchmark.settings.base import ConfigError
from benchmark.settings.names import list_architecture_names
from benchmark.settings.suite import Data, Model
from benchmark.settings.suite import Tokenizer as TokenizerSettings
from benchmark.settings.texts import Domain
from benchmark.training.evaluate import measure_perplexities, to_bits_per_byte
from benchmark.training.processes import World
from benchmark.training.stream import Stream
from tests.support.texts import cut_rows, prepare, write
from tests.support.toy_task import DOMAINS, LENGTH, WORDS, tokenizer


def stage(folder: Path, architecture: str = "gpt", prompts: bool = False, kind: str = "") -> Path:
    """A stage with a model whose weights, prompts and biases are far from their initial values."""

    def new() -> LanguageModel:
        bpe = tokenizer()
        model = build(
            architecture,
            2,
            32,
            Vocabulary(bpe.get_vocab_size(), DOMAINS),
            LENGTH,
            16,
            prompts=prompts,
        )
        for parameter in model.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape)
        return model.eval()

    torch.manual_seed(0)
    model = new()
    if kind == "columns":
        model = ProgressiveModel.add_column(model, new())
    elif kind == "experts":
        model = ExpertModel(model)
        model.add()
    elif kind == "adapters":
        model = LoraModel(model)
        for _ in DOMAINS[1:]:
            model.add(rank=2)
        for parameter in model.adapters.parameters():
            parameter.data += 0.2 * torch.randn(parameter.shape)
    model.save(folder / "model", tokenizer())
    return folder


def write_text(folder: Path) -> tuple[Path, list[str]]:
    """A file of documents, no two alike, and the documents."""
    documents = [" ".join(WORDS[i // 8**j % 8] for j in range(2 + i % 5)) for i in range(8, 68)]
    return write(folder / "text.jsonl", documents), documents


def perplexity_in_transformers(folder: Path, documents: list[str]) -> float:
    """The perplexity of documents by transformers' own loss.

    `</s>` joins the documents. Each row begins with what the folder's tokenizer puts first.
    """
    bpe, network = (
        AutoTokenizer.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder),
    )
    ids = [
        i
        for text in documents
        for i in (*bpe(text, add_special_tokens=False).input_ids, bpe.eos_token_id)
    ]
    length, begin = bpe.model_max_length - 2, bpe("").input_ids
    rows, is_measured = cut_rows(torch.tensor(ids), length)
    labels = rows.masked_fill(~is_measured, -100)
    rows = torch.cat([torch.tensor(begin).expand(len(rows), -1), rows], dim=1)
    labels = torch.cat([torch.full((len(rows), len(begin)), -100), labels], dim=1)
    with torch.no_grad():
        return network(rows, labels=labels).loss.exp().item()


@pytest.mark.parametrize(
    ("architecture", "kind", "prompt"),
    [
        *((name, "", prompt) for name in list_architecture_names() for prompt in ("two", "none")),
        ("gpt", "adapters", "one"),
        ("llama", "adapters", None),
    ],
)
def test_predictions_are_the_models_own(
    architecture: str, kind: str, prompt: str | None, tmp_path: Path
) -> None:
    """Oracle: the model's probabilities of text tokens, with the prompt, without, and with the
    adapters of a domain, by default of the last one. All other tokens have probability 0.
    """
    trained = stage(tmp_path / "stage", architecture, not kind, kind)
    domain = None if prompt == "none" else prompt or DOMAINS[-1]
    assert export_model(trained, tmp_path / "out", prompt) == domain
    model = load(trained / "model")
    loader = AutoModelForMaskedLM if model.masked else AutoModelForCausalLM
    network = loader.from_pretrained(tmp_path / "out")
    bpe = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert network.config.architectures == [type(model.network).__name__] and not hasattr(
        network.config, "domains"
    )
    model.prompts = model.prompts and domain is not None
    assert network.config.tie_word_embeddings == (model.masked or not model.prompts)
    begin = bpe("", add_special_tokens=True).input_ids[: -1 if model.masked else None]
    tokens = torch.randint(
        4, model.vocabulary.text, (3, LENGTH - 1), generator=torch.Generator().manual_seed(1)
    )
    tokens[:, 0] = begin[0]
    tokens[:, 3] = model.vocabulary.special.mask if model.masked else 7
    domains = torch.full((3,), DOMAINS.index(domain) if domain else 0)
    with torch.no_grad():
        places = torch.arange(1, LENGTH - 2).expand(3, -1)
        expected = model(tokens[:, :-1], domains, places).log_softmax(-1)
        rows = torch.cat([torch.tensor(begin).expand(3, -1), tokens[:, 1:-1]], dim=1)
        predicted = network(rows).logits.log_softmax(-1)[:, len(begin) :][:, : LENGTH - 3]
    text = model.vocabulary.text
    torch.testing.assert_close(predicted[..., :text], expected, rtol=1e-5, atol=1e-5)
    assert predicted[..., text:].exp().sum() == 0


def test_an_exported_model_can_begin_a_stream(tmp_path: Path) -> None:
    """Oracle: the model's own architecture and size, its tokenizer's ids, and special tokens."""
    export_model(stage(tmp_path / "stage", prompts=True), tmp_path / "out", "none")
    model = resolve_start_model(
        make_tiny_config("er").model_copy(
            update={
                "model": Model(start=str(tmp_path / "out")),
                "data": Data(sequence_length=LENGTH),
            }
        )
    ).model
    assert (model.architecture, str(model.ladder[0])) == ("gpt", "L2_D32")
    bpe = load_tokenizer(tmp_path / "out")
    assert (bpe.special, bpe.vocabulary) == (Special(), tokenizer().get_vocab_size())


def test_what_cannot_be_exported_is_said_and_nothing_written(tmp_path: Path) -> None:
    """Oracle: by hand: the message names what is wrong and the choices, and nothing is written."""
    wrong: list[tuple[dict[str, Any], str | None, str]] = [
        ({"kind": "columns"}, None, r"columns \(PNN\)"),
        ({"kind": "experts"}, None, "what ExpertModel does"),
        ({"prompts": True}, "four", "--prompt 'four'.*knows one, two, three, none"),
        ({"kind": "adapters"}, "none", "knows one, two, three: choose"),
    ]
    for number, (made, prompt, message) in enumerate(wrong):
        with pytest.raises(ConfigError, match=message):
            export_model(stage(tmp_path / str(number), **made), tmp_path / "out", prompt)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        export_model(tmp_path / "2", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(("architecture", "spare"), [("gpt", 2), ("gpt", 0), ("llama", 2)])
def test_a_published_vocabulary_has_a_place_for_a_prompt(
    architecture: str, spare: int, tmp_path: Path
) -> None:
    """Oracles: `evaluate`, and by hand: the prompt takes the first row without a token, if any."""
    bpe, where = tokenizer(), write_text(tmp_path)
    vocabulary = Vocabulary(
        bpe.get_vocab_size() + spare, DOMAINS, Special(bos=EOS, pad=EOS, eos=EOS, mask=-1)
    )
    torch.manual_seed(0)
    model = build(architecture, 1, 16, vocabulary, LENGTH, head_size=16, prompts=True)
    model.save(tmp_path / "model", bpe)
    if not spare:
        with pytest.raises(ConfigError, match="--prompt none"):
            export_model(tmp_path / "model", tmp_path / "out", "one")
        return
    export_model(tmp_path / "model", tmp_path / "out", "one")
    published = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert published("and").input_ids[:2] == [EOS, bpe.get_vocab_size()]
    assert len(published) == bpe.get_vocab_size() + 1
    expected = evaluate_text(tmp_path / "model", where[0], "one")["perplexity"]
    assert perplexity_in_transformers(tmp_path / "out", where[1]) == pytest.approx(
        expected, rel=1e-5
    )
    with pytest.raises(ConfigError, match=r"out: .*prompt"):
        evaluate_text(tmp_path / "out", where[0])


@pytest.mark.parametrize("prompts", [True, False])
@pytest.mark.parametrize("architecture", ["bert", "gpt"])
def test_evaluate_says_of_a_domains_text_what_records_say(
    architecture: str, prompts: bool, tmp_path: Path
) -> None:
    """Oracle: the perplexities that a run records for these domains. A masked model has each
    domain's own masks. By default a text is read as the last domain's.
    """
    domains, texts = [], {}
    for number, name in enumerate(DOMAINS):
        files = {part: tmp_path / f"{name}.{part}.jsonl" for part in ("train", "valid")}
        for part, path in files.items():
            lines = [f"{' '.join(WORDS[(i * (number + 2)) % 7 :])} {part} {i}" for i in range(60)]
            write(path, lines)
        domains.append(
            Domain(name=name, train=(str(files["train"]),), valid=(str(files["valid"]),))
        )
        texts[name] = files["valid"]
    data = Data(sequence_length=LENGTH, max_valid_tokens=10**6)
    corpus = prepare(
        domains, tmp_path / "data", tokenizer=TokenizerSettings(vocabulary=320), data=data
    )
    torch.manual_seed(0)
    model = build(
        architecture, 1, 32, corpus.vocabulary, LENGTH, head_size=16, prompts=prompts
    ).eval()
    for parameter in model.parameters():
        # because a new model gives all tokens nearly the same probability
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.save(tmp_path / "model", corpus.tokenizer)
    recorded = measure_perplexities(
        model, Stream(corpus, data, model.masked, seed=7), World(0, 1, torch.device("cpu"))
    )
    said = {name: evaluate_text(tmp_path / "model", text, name) for name, text in texts.items()}
    answers = {name: measures["perplexity"] for name, measures in said.items()}
    assert {measures["documents"] for measures in said.values()} == {60}
    assert evaluate_text(tmp_path / "model", texts["one"])["domain"] == DOMAINS[-1]
    for text in corpus.domains:
        assert said[text.name]["bits_per_byte"] == pytest.approx(
            to_bits_per_byte(recorded[text.name], text), rel=1e-5
        )
    assert (
        answers == pytest.approx(recorded, rel=1e-5)
        and len({round(value, 6) for value in answers.values()}) == 3
    )
