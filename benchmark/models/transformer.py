"""Language models on transformers modules; a checkpoint is a plain Hugging Face folder.

Shapes: B rows, T columns of a row as the network sees it (the prompt included), N text tokens of a row, K predicted
positions of a row, D hidden size, V vocabulary, V_text its part without prompts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from benchmark.data.tokenizer import Special, Vocabulary
from benchmark.errors import UserError
from benchmark.files import check_checksums, only_files, read_text, unique, whole_folder, write_checksums
from benchmark.models import architectures, left_out
from benchmark.models.architecture import Architecture, Shape, Unrolled
from benchmark.models.dropout import use_fast_dropout
from benchmark.models.linear_cross_entropy import linear_cross_entropy
from benchmark.models.saved_tokenizer import with_prompts, wrapped
from benchmark.settings.base import ConfigError

transformers_logging.disable_progress_bar()  # its bars would tear the progress lines of a run
transformers_logging.set_verbosity_error()  # what it warns of, a tensor that is missing, is an error here

FEW_LOGITS = 2**22  # numbers; so few cost nothing worth a loop over their parts
# sizes in a config.json, as a suite may have them
MOST = {"num_hidden_layers": 10_000, "hidden_size": 1_000_000, "num_attention_heads": 1_000_000}


class LanguageModel(nn.Module):
    """A transformers language model with the domain prompts of ELLE; logits only where something is predicted.

    Attributes:
        network: transformers' language model; `set_network` replaces it.
        architecture: the record of what the network is.
        vocabulary: its layout; the network has `vocabulary.size` rows.
        prompts: whether the prompt of its domain is inserted into each row, after `<s>`. May be set at any time.
    """

    def __init__(self, network: PreTrainedModel, vocabulary: Vocabulary, prompts: bool = False):
        super().__init__()
        self.vocabulary = vocabulary
        self.prompts = prompts
        self.set_network(network)

    def set_network(self, network: PreTrainedModel) -> None:
        """Take another network of the same vocabulary.

        From now on its decoder puts out V_text logits, fewer than its configuration's `vocab_size`: call it without
        `labels`.
        """
        self.network = network
        self.architecture: Architecture = architectures.of(network.config.model_type)
        use_fast_dropout(network)
        decoder: Any = network.get_output_embeddings()
        decoder.forward = partial(_text_logits, decoder, self.vocabulary.text)

    @property
    def layers(self) -> int:
        return self.network.config.num_hidden_layers

    @property
    def hidden_size(self) -> int:
        return self.network.config.hidden_size

    @property
    def masked(self) -> bool:
        """Whether it predicts masked tokens; else the next one."""
        return self.architecture.masked

    @property
    def sequence_length(self) -> int:
        """Columns of a row that it has positions for: `<s>`, the prompt and the text."""
        return self.architecture.length(self.network.config)

    @property
    def parameters_count(self) -> int:
        """Number of parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, domains: Tensor, positions: Tensor) -> Tensor:
        """Logits (B, K, V_text) of the text vocabulary at the predicted positions.

        Args:
            tokens: (B, 1+N) ids, `<s>` first.
            domains: (B,) domain of each row, an index into `vocabulary.domains`; one that the model has not met is
                read with the prompt of the newest.
            positions: (B, K) columns of `tokens`. The prediction for column c is read where column c stands in the
                row with its prompt. Column 0 is read at the prompt: a GPT predicts the first token from there.
        """
        return self.predict(self.hidden(tokens, domains), positions)

    def predict(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Logits (B, K, V_text) from last hidden states (B, T, D), as `forward` does it."""
        return self.head(self._at(positions, hidden))

    def mean_loss(self, tokens: Tensor, domains: Tensor, positions: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy (), in nats, of targets (B, K) in training; the other arguments are `forward`'s.

        Where there are many logits only a tenth of them are there at once.
        """
        if targets.numel() * self.vocabulary.text <= FEW_LOGITS or torch.compiler.is_compiling() or not self.training:
            logits = self(tokens, domains, positions).flatten(0, 1)
            return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten())
        hidden = self._at(positions, self.hidden(tokens, domains))
        states = self.architecture.transform(self.network, hidden).flatten(0, 1)
        weight, bias = _of_text(self.network.get_output_embeddings(), self.vocabulary.text)
        return linear_cross_entropy(states, weight, bias, targets.flatten())

    def _at(self, positions: Tensor, hidden: Tensor) -> Tensor:
        """The hidden states (B, K, D) that predict."""
        columns = positions + 1 if self.prompts else positions
        rows, length, _ = hidden.shape
        places = columns + length * torch.arange(rows, device=hidden.device).unsqueeze(1)
        # whole states at once: `gather` takes number after number, and so does its backward pass
        return hidden.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, positions.shape)

    def hidden(self, tokens: Tensor, domains: Tensor) -> Tensor:
        """Last hidden states (B, T, D) for tokens (B, 1+N) and domains (B,); T is N+2 with prompts, N+1 without.

        Raises ConfigError for rows with more columns than the network has positions for.
        """
        hidden, layers, finish = self.unrolled(self.with_prompts(tokens, domains))
        for layer in layers:
            hidden = layer(hidden)
        return finish(hidden)

    def unrolled(self, tokens: Tensor, mask: Tensor | None = None) -> Unrolled:
        """The forward pass in steps for tokens (B, T); `mask` (B, T) is False where there is padding.

        Raises ConfigError for rows with more columns than the network has positions for.
        """
        if tokens.shape[1] > self.sequence_length:
            raise ConfigError(
                f"rows of {tokens.shape[1]} columns for a network that has positions for {self.sequence_length}: "
                "cut the text, or take a model that was trained on longer rows"
            )
        return self.architecture.unroll(self.network, tokens, mask)

    def with_prompts(self, tokens: Tensor, domains: Tensor) -> Tensor:
        """What the network sees (B, T) of tokens (B, 1+N): with prompts that of its domain stands after each `<s>`."""
        if not self.prompts:
            return tokens
        newest = len(self.vocabulary.domains) - 1
        prompt = self.vocabulary.text + domains.clamp(max=newest).unsqueeze(1)
        return torch.cat([tokens[:, :1], prompt, tokens[:, 1:]], dim=1)

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (..., V_text) for hidden states (..., D)."""
        decoder: Any = self.network.get_output_embeddings()
        logits = decoder(self.architecture.transform(self.network, hidden))
        if logits.shape[-1] != self.vocabulary.text:
            raise ValueError(
                f"the network puts out {logits.shape[-1]} logits for a text vocabulary of {self.vocabulary.text}: "
                "give a model another network with `model.set_network(network)`"
            )
        return logits

    def save(self, folder: Path | str, tokenizer: Tokenizer) -> None:
        """Write a Hugging Face folder (config, safetensors, tokenizer), replacing `folder` only once all is written.

        `tokenizer` holds the text vocabulary; the prompts are added to a copy of it. Raises ValueError when it is
        not the model's tokenizer.
        """
        with whole_folder(Path(folder)) as beside:
            self._write(beside, tokenizer)
            write_checksums(beside)

    def _write(self, folder: Path, tokenizer: Tokenizer) -> None:
        text_and_prompts = with_prompts(tokenizer, self.vocabulary)
        saved = wrapped(text_and_prompts, self.vocabulary.special, self.sequence_length, self.masked)
        config = self.network.config
        config.domains, config.prompts = list(self.vocabulary.domains), self.prompts
        config.text_vocabulary = self.vocabulary.text
        if self.vocabulary.special != Special():
            config.special_tokens = list(astuple(self.vocabulary.special))
        self.network.save_pretrained(folder)
        saved.save_pretrained(folder)


def _text_logits(decoder: Any, text: int, hidden: Tensor) -> Tensor:
    """The prompts' rows are left out of the product: cutting their logits off afterwards would copy all the others."""
    return F.linear(hidden, *_of_text(decoder, text))


def _of_text(decoder: Any, text: int) -> tuple[Tensor, Tensor | None]:
    """The rows (V_text, D) of a decoder that are the text's, and their bias (V_text,)."""
    return decoder.weight[:text], None if decoder.bias is None else decoder.bias[:text]


def build(
    architecture: str,
    layers: int,
    hidden_size: int,
    vocabulary: Vocabulary,
    sequence_length: int,
    head_size: int = 64,
    dropout: float = 0.1,
    prompts: bool = False,
) -> LanguageModel:
    """A freshly initialised model; its weights are a function of torch's seed, which the caller sets.

    `sequence_length` counts `<s>`, the prompt's column and the N text tokens of a row. The feed-forward networks are
    4 D wide, there are D / head_size heads, the LM head is tied to the embedding. BERT is the RoBERTa-style model
    that reproduces the parameter counts of the paper (tab:arch); our GPT has learned positions (sequence_length * D
    parameters), which the counts printed for the paper's GPT do not contain.

    Raises ConfigError for an unknown architecture and a hidden size that is not a multiple of the head size.
    """
    record = architectures.load(architecture)
    if layers < 1 or hidden_size < 1 or hidden_size % head_size:
        raise ConfigError(
            f"no {architecture} with {layers} layers of hidden size {hidden_size}: there must be a layer, and the "
            f"hidden size must be a multiple of the head size {head_size}"
        )
    shape = Shape(vocabulary.size, sequence_length, layers, hidden_size, hidden_size // head_size, dropout)
    return LanguageModel(record.build(shape), vocabulary, prompts)


def load(folder: Path | str) -> LanguageModel:
    """The model that `LanguageModel.save` wrote, in evaluation mode.

    Raises ConfigError when `folder` holds no such model.
    """
    network = load_network(folder)
    config = network.config
    if not isinstance(getattr(config, "text_vocabulary", None), int):
        raise ConfigError(
            f"{folder} is a Hugging Face model, but config.json does not say text_vocabulary, domains and prompts: "
            "name one that this benchmark has written, or begin with this one (model.start)"
        )
    special = Special(*getattr(config, "special_tokens", ()))
    vocabulary = Vocabulary(config.text_vocabulary, tuple(config.domains), special)
    if vocabulary.size != config.vocab_size:
        raise ConfigError(
            f"{folder}: {config.vocab_size} vocabulary rows, but text_vocabulary {vocabulary.text} and "
            f"{len(vocabulary.domains)} domains make {vocabulary.size}: restore config.json from a copy"
        )
    return LanguageModel(network, vocabulary, config.prompts).eval()


def load_network(folder: Path | str) -> PreTrainedModel:
    """The language model of a known architecture in any Hugging Face folder, in evaluation mode.

    Raises ConfigError when there is no such folder or the architecture is another one, DamagedFile.
    """
    folder = Path(folder)
    check_files(folder)
    config = configuration(folder)
    model_type = str(config.get("model_type"))
    try:
        family: Any = architectures.of(model_type).family(model_type)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder} has no weights in *.safetensors: files that can hold code (pytorch_model.bin) are not opened; "
            "save the model again with a transformers of today"
        )
    with naming_damage(folder):
        check_sizes(config, family)
        left_out.check_places(folder, config)
        network, told = family.from_pretrained(
            folder,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        ours = "text_vocabulary" in config  # a published model may have heads that are not used here
        wrong = {kind: told[f"{kind}_keys"] for kind in ("missing", *["unexpected"] * ours)}
        for kind, names in wrong.items():
            if names:
                raise ValueError(f"{len(names)} tensors are {kind}, e.g. {min(names)}")
        left_out.check_tensors(folder, network, told["unexpected_keys"])
    check_finite(folder, network.state_dict())
    return network


def check_sizes(config: Mapping[str, Any], family: Any) -> None:
    """Raise ValueError for sizes in a config.json that no suite could have: what they ask for is built without end.

    And for an epsilon with which norms would be NaN, or nothing of what they norm.
    """
    epsilon = architectures.of(family.config_class.model_type).epsilon
    if epsilon in config and not (isinstance(config[epsilon], int | float) and 0 < config[epsilon] <= 1):
        raise ValueError(f"{epsilon} is {config[epsilon]!r:.40}, which is no number above 0 and up to 1")
    of_family = family.config_class.attribute_map
    for key, most in MOST.items():
        for name in {key, of_family.get(key, key)} & config.keys():
            if not (isinstance(config[name], int) and 1 <= config[name] <= most):
                raise ValueError(f"{name} is {config[name]!r:.40}, which is no whole number from 1 to {most:,}")


def count_parts(folder: Path, numbers: Set[str]) -> int:
    """How many parts a model has beside its network, whose tensors have these numbers. Raises ConfigError for a gap."""
    if numbers != set(map(str, range(len(numbers)))):
        raise ConfigError(
            f"{folder}: parts of the model are numbered {', '.join(sorted(numbers))[:80]}, not from 0 on: restore the "
            "folder from a copy"
        )
    return len(numbers)


def check_finite(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for a tensor with a number that is none, or with no bounds: all that follows would be neither.

    The least and the greatest number are looked for, which takes no memory.
    """
    for name, tensor in tensors.items():
        bounds = tensor.aminmax() if tensor.is_floating_point() and tensor.numel() else ()
        if not all(bound.isfinite() for bound in bounds):
            raise ConfigError(
                f"{folder}: tensor {name} holds NaN or infinity, and all that is computed with it would: restore the "
                "folder from a copy, or take another model"
            )


def configuration(folder: Path) -> dict[str, Any]:
    """What a model's config.json says. Raises ConfigError where none can be read, DamagedFile for a pipe.

    Whoever opens a model asks this first.
    """
    only_files(folder)
    path = folder / "config.json"
    if not path.is_file():
        inside = folder / "model"  # as in the folder of a stage
        named = inside if (inside / "config.json").is_file() else "a folder that has one"
        raise ConfigError(f"{folder} is no Hugging Face model folder: it has no config.json; name {named}")
    try:
        content = json.loads(read_text(path), parse_float=_finite, parse_constant=_finite, object_pairs_hook=unique)
        wrong = _flaw(content)
    except (ValueError, RecursionError) as error:
        wrong = f"{type(error).__name__}: {error!s:.100}"
    if wrong:
        raise ConfigError(f"{path} is damaged ({wrong}): restore it from a copy")
    return content


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.40} is no finite number")
    return number


def _flaw(content: Any) -> str:
    """What is wrong with a model's configuration; empty where nothing is."""
    if not isinstance(content, dict):
        return "it holds no object"
    if "text_vocabulary" in content:  # a model of ours
        prompts, domains = content.get("prompts"), content.get("domains")
        if not isinstance(prompts, bool):
            return f"prompts is {prompts!r:.40}, neither true nor false"
        if not (isinstance(domains, list) and all(isinstance(one, str) for one in domains)):
            return f"domains are {domains!r:.60}, no list of names"
        if len(set(domains)) < len(domains):
            return f"domains {domains!r:.60} name one twice"
    return ""


@contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Turn whatever the libraries raise over a model's damaged files into a ConfigError that names the folder."""
    try:
        yield
    except (UserError, MemoryError, PermissionError):  # of another user: a copy would be no cure
        raise
    except Exception as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{folder}: the model in it is damaged or incomplete ({told[:200]}): restore the folder from a copy; a "
            "stage of a run is trained again once its folder is deleted"
        ) from error


def check_files(folder: Path) -> None:
    """Hold a model's files against the checksums that `LanguageModel.save` wrote beside them. Raises DamagedFile."""
    check_checksums(
        folder, "restore the folder from a copy; a run's stage is trained again if its folder in `stages` is removed"
    )
