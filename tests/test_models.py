"""Language models: prompts, predicted positions, Hugging Face folders."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    GPT2LMHeadModel,
)

from benchmark.data.tokenizer import BOS, EOS, MASK, SPECIAL_TOKENS, Vocabulary
from benchmark.models import architectures, transformer
from benchmark.models.transformer import build, load
from benchmark.settings.base import ConfigError
from benchmark.settings.names import list_architecture_names
from tests.support import toy_task


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return toy_task.tokenizer()


def small(architecture: str, tokenizer: Tokenizer, prompts: bool) -> transformer.LanguageModel:
    vocabulary = Vocabulary(tokenizer.get_vocab_size(), ("web", "news"))
    torch.manual_seed(0)
    return build(
        architecture, 2, 32, vocabulary, sequence_length=18, head_size=16, prompts=prompts
    ).eval()


def rows(vocabulary: Vocabulary) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = torch.randint(
        MASK, vocabulary.text, (3, 17), generator=torch.Generator().manual_seed(1)
    )
    tokens[:, 0] = BOS
    return tokens, torch.tensor([0, 1, 1]), torch.tensor([[0, 5], [1, 7], [3, 16]])


@pytest.mark.parametrize("architecture", list_architecture_names())
@pytest.mark.parametrize("prompts", [False, True])
def test_logits_are_those_of_transformers(
    architecture: str, prompts: bool, tokenizer: Tokenizer
) -> None:
    """Oracle: transformers' own network on rows into which the prompt is put by hand, read one
    column later.
    """
    model = small(architecture, tokenizer, prompts)
    for parameter in model.parameters():  # biases away from 0
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    plain = type(model.network)(model.network.config).eval()
    plain.load_state_dict(model.network.state_dict())
    tokens, domains, positions = rows(model.vocabulary)
    with_prompt = torch.stack(
        [
            torch.cat([row[:1], torch.tensor([model.vocabulary.text + int(domain)]), row[1:]])
            for row, domain in zip(tokens, domains, strict=True)
        ]
    )
    with torch.no_grad():
        everything = plain(with_prompt if prompts else tokens).logits[..., : model.vocabulary.text]
        logits = model(tokens, domains, positions)
    expected = torch.stack(
        [everything[row, columns + prompts] for row, columns in enumerate(positions)]
    )
    assert logits.shape == (3, 2, model.vocabulary.text)
    torch.testing.assert_close(logits, expected)


def test_local_attention_is_that_of_transformers(tokenizer: Tokenizer) -> None:
    """Oracle: transformers' own masks, with a window of four columns to each side, shorter than the
    rows.
    """
    torch.manual_seed(0)
    model = build(
        "modernbert",
        4,
        32,
        Vocabulary(tokenizer.get_vocab_size()),
        sequence_length=18,
        head_size=16,
    ).eval()
    tokens, domains, _ = rows(model.vocabulary)
    whole = torch.arange(17).expand(3, -1)
    with torch.no_grad():
        everywhere = model(tokens, domains, whole)
        model.network.config.local_attention = 8
        logits = model(tokens, domains, whole)
        expected = model.network(tokens).logits
    torch.testing.assert_close(logits, expected)
    assert (logits - everywhere).abs().max() > 1e-4


@pytest.mark.parametrize("architecture", list_architecture_names())
def test_prompts_are_learned_and_gpt_reads_the_first_token_from_them(
    architecture: str, tokenizer: Tokenizer
) -> None:
    """Oracle: by hand: among the rows of prompts, only that of the batch's domain gets a gradient.
    Another prompt changes the prediction of the first token.
    """
    model = small(architecture, tokenizer, prompts=True)
    tokens, domains, positions = rows(model.vocabulary)
    model(tokens, domains.fill_(1), positions).logsumexp(-1).sum().backward()
    gradient = model.network.get_input_embeddings().weight.grad
    assert gradient[model.vocabulary.text + 1].abs().sum() > 0
    assert gradient[model.vocabulary.text].abs().sum() == 0  # not even through the softmax
    first = torch.zeros(3, 1, dtype=torch.long)
    with torch.no_grad():
        changed = (
            model(tokens, domains.fill_(0), first) - model(tokens, domains.fill_(1), first)
        ).abs()
    assert changed.max() > 0


def test_a_network_put_in_by_hand_is_refused(tokenizer: Tokenizer) -> None:
    """By hand: the decoder of a network that is assigned directly also predicts the two prompts,
    294 ids and not 292, so the loss would be another one. Oracle of `set_network`: the model that
    has the network.
    """
    model, other = small("gpt", tokenizer, prompts=True), small("gpt", tokenizer, prompts=True)
    tokens, domains, positions = rows(model.vocabulary)
    model.network = GPT2LMHeadModel(other.network.config)
    with pytest.raises(ValueError, match=r"294 .*\b292: .*`model\.set_network"):
        model(tokens, domains, positions)
    model.set_network(other.network)
    torch.testing.assert_close(
        model(tokens, domains, positions), other(tokens, domains, positions), rtol=0, atol=0
    )


@pytest.mark.parametrize("architecture", list_architecture_names())
def test_folder_is_a_hugging_face_model(architecture: str, tokenizer: Tokenizer, tmp_path) -> None:
    """Oracle: the Auto classes of transformers give the same logits, and their tokenizer the same
    ids.
    """
    model = small(architecture, tokenizer, prompts=True)
    tokens, domains, positions = rows(model.vocabulary)
    folder = tmp_path / "model"
    model.save(folder, tokenizer)
    model.save(folder, tokenizer)  # over an existing one
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (folder / "model.safetensors").is_file()

    family = AutoModelForMaskedLM if model.masked else AutoModelForCausalLM
    plain = family.from_pretrained(folder)
    again = load(folder)
    text = model.vocabulary.text
    with torch.no_grad():
        torch.testing.assert_close(plain(tokens).logits[..., :text], model.network(tokens).logits)
        torch.testing.assert_close(
            again(tokens, domains, positions), model(tokens, domains, positions), rtol=0, atol=0
        )
    assert (again.vocabulary, again.prompts, again.architecture) == (
        model.vocabulary,
        True,
        architectures.load(architecture),
    )

    saved = AutoTokenizer.from_pretrained(folder)
    assert saved.convert_tokens_to_ids([*SPECIAL_TOKENS, "<domain:news>"]) == [
        0,
        1,
        2,
        3,
        model.vocabulary.text + 1,
    ]
    assert saved.mask_token_id == MASK
    ids = tokenizer.encode("cat dog").ids
    assert saved("cat dog", add_special_tokens=False).input_ids == ids
    assert saved("cat dog").input_ids == [BOS, *ids, *[EOS] * model.masked]


def test_forward_compiles_to_one_graph(tokenizer: Tokenizer) -> None:
    """Oracle: torch's tracer, which raises if Python has to read a tensor's values. It generates no
    machine code here.
    """
    for architecture in list_architecture_names():
        model = small(architecture, tokenizer, prompts=True)
        batch = rows(model.vocabulary)
        torch._dynamo.reset()  # it traces one function only for a limited number of models
        with torch.no_grad():
            traced = torch.compile(model, fullgraph=True, backend="eager")(*batch)
            torch.testing.assert_close(traced, model(*batch))


def test_errors_say_what_is_possible(tokenizer: Tokenizer, tmp_path) -> None:
    """Oracle: the words a user needs: the bad value and the choices."""
    vocabulary = Vocabulary(292, ("web",))
    with pytest.raises(ValueError, match="'albert'; .*bert, .*gpt"):
        build("albert", 2, 128, vocabulary, 32)
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"architecture 't5'.*bert, .*roberta"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"\b293 text ids.*\[292\]"):
        build("gpt", 1, 64, Vocabulary(293, ("web",)), 32).save(tmp_path / "new", tokenizer)
    small("gpt", tokenizer, False).network.save_pretrained(tmp_path / "foreign")
    with pytest.raises(ConfigError, match=r"foreign .*config\.json .*model\.start"):
        load(tmp_path / "foreign")


@pytest.mark.parametrize("architecture", list_architecture_names())
def test_scaled_weights_have_one_over_root_of_their_inputs(architecture: str) -> None:
    """Oracle: std 1/sqrt(inputs), times 1/sqrt(2 layers) for what is added to the residual stream.

    transformers draws ModernBERT's weights from a normal distribution that is cut at two standard
    deviations, which leaves 0.88 of the standard deviation.
    """
    torch.manual_seed(0)
    model = build(
        architecture, 2, 64, Vocabulary(500), sequence_length=64, head_size=16, scaled=True
    )
    places = model.architecture.find_places(model.network)
    weight = places.tables[0].module.weight
    assert weight.std().item() == pytest.approx(64**-0.5, rel=0.15)
    expected = []
    for layer in places.layers:
        expected += [(layer.attention.query, 64**-0.5), (layer.ffn.up, 64**-0.5)]
        expected += [(layer.attention.output, 64**-0.5 / 2), (layer.ffn.down, 256**-0.5 / 2)]
    for place, std in expected:
        assert place.read().weight.std().item() == pytest.approx(std, rel=0.15)
