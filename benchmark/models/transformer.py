"""Language models on transformers modules.

A checkpoint is a plain Hugging Face folder.

Shapes: B sequences, T tokens per sequence as the network sees it (the prompt included), N text
tokens per sequence, K predicted positions per sequence, D hidden size, V vocabulary, V_text its
part without prompts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from benchmark.data.tokenizer import UNUSED, Special, Vocabulary, set_plain_encoding
from benchmark.devices import keep_random_numbers
from benchmark.errors import UserError
from benchmark.files import check_checksums, replace_folder, write_checksums
from benchmark.models import architectures
from benchmark.models.architectures import Architecture, Shape
from benchmark.models.fast_operators import cross_entropy, linear_cross_entropy, use_fast_dropout
from benchmark.settings.base import ConfigError

transformers_logging.disable_progress_bar()  # its bars would tear the progress lines of a run
# it warns of missing tensors, which are an error here
transformers_logging.set_verbosity_error()

KIND_FILES = {"progressive": "progressive.json", "extended": "modules.safetensors"}
"""For each kind, the file that only the folders of saved models of this kind have."""
FEW_LOGITS = 2**22  # numbers: a loop over parts of so few saves nothing


class LanguageModel(nn.Module):
    """A transformers language model with the domain prompts of ELLE.

    It computes logits only where something is predicted.

    Attributes:
        network: transformers' language model. `set_network` replaces it.
        architecture: the record of the network's architecture.
        layers, hidden_size: its size.
        masked: whether it predicts masked tokens. If not, it predicts the next token.
        sequence_length: the number of its positions, for `<s>`, the prompt and the text.
        vocabulary: its layout. The network's embedding has `vocabulary.size` rows.
        prompts: whether a sequence's domain prompt is inserted after its `<s>`. May be set
            at any time.
    """

    def __init__(self, network: PreTrainedModel, vocabulary: Vocabulary, prompts: bool = False):
        super().__init__()
        self.vocabulary = vocabulary
        self.prompts = prompts
        self.set_network(network)

    def set_network(self, network: PreTrainedModel) -> None:
        """Replace the network by another one of the same vocabulary.

        From now on its decoder returns V_text logits, fewer than its configuration's `vocab_size`.
        So call it without `labels`.
        """
        self.network = network
        config: Any = network.config
        self.architecture: Architecture = architectures.find(config.model_type)
        self.layers = config.num_hidden_layers
        self.hidden_size = config.hidden_size
        self.masked = self.architecture.masked
        self.sequence_length = self.architecture.count_positions(config)
        use_fast_dropout(network)
        decoder: Any = network.get_output_embeddings()
        decoder.forward = partial(_compute_text_logits, decoder, self.vocabulary.text)

    def separate_documents(self) -> None:
        """From now on, let no document of a sequence attend to another, as `Architecture.see` says.

        Models that grow from this one do the same.
        """
        self.network.config.document_mask = [self.vocabulary.special.eos, self.vocabulary.text]

    @property
    def parameters_count(self) -> int:
        """Number of parameters, tied ones once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, domains: Tensor, positions: Tensor) -> Tensor:
        """Logits (B, K, V_text) of the text vocabulary at the predicted positions.

        Args:
            tokens: (B, 1+N) ids, `<s>` first.
            domains: (B,) domain of each sequence, an index into `vocabulary.domains`. A domain that
                the model has not met is read with the newest domain's prompt.
            positions: (B, K) columns of `tokens` whose hidden states predict. If prompts are
                inserted, column c is the network's column c + 1. So column 0 stands for the prompt,
                from which a GPT predicts the first token.
        """
        return self.predict(self.hidden(tokens, domains), positions)

    def predict(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Logits (B, K, V_text) from last hidden states (B, T, D)."""
        return self.compute_logits(self._select_positions(positions, hidden))

    def compute_mean_loss(
        self, tokens: Tensor, domains: Tensor, positions: Tensor, targets: Tensor
    ) -> Tensor:
        """The mean cross-entropy (), in nats, of targets (B, K) in training.

        The other arguments are `forward`'s. If there are many logits, only a tenth of them is in
        memory at a time, except in compiled code.
        """
        has_few_logits = targets.numel() * self.vocabulary.text <= FEW_LOGITS
        if has_few_logits or torch.compiler.is_compiling() or not self.training:
            return cross_entropy(self(tokens, domains, positions), targets)
        hidden = self._select_positions(positions, self.hidden(tokens, domains))
        states = self.architecture.compute_decoder_inputs(self.network, hidden).flatten(0, 1)
        weight, bias = _select_text_rows(self.network.get_output_embeddings(), self.vocabulary.text)
        return linear_cross_entropy(states, weight, bias, targets.flatten())

    def _select_positions(self, positions: Tensor, hidden: Tensor) -> Tensor:
        """The hidden states (B, K, D) that predict."""
        columns = positions + 1 if self.prompts else positions
        sequences, length, _ = hidden.shape
        places = columns + length * torch.arange(sequences, device=hidden.device).unsqueeze(1)
        # whole states at once: `gather` and its backward pass take one number after the other
        return hidden.flatten(0, 1).index_select(0, places.flatten()).unflatten(0, positions.shape)

    def hidden(self, tokens: Tensor, domains: Tensor) -> Tensor:
        """Last hidden states (B, T, D) for tokens (B, 1+N) and domains (B,).

        T is N+2 with prompts, N+1 without.
        """
        return self.encode(self.insert_prompts(tokens, domains))

    def encode(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Last hidden states (B, T, D) for what the network sees (B, T).

        The mask (B, T) is False at padding.
        """
        hidden, layers, finish = self.architecture.unroll(self.network, tokens, mask)
        for layer in layers:
            hidden = layer(hidden)
        return finish(hidden)

    def insert_prompts(self, tokens: Tensor, domains: Tensor) -> Tensor:
        """The network's ids (B, T) of tokens (B, 1+N).

        With prompts, the prompt of the sequence's domain follows each `<s>`.
        """
        if not self.prompts:
            return tokens
        newest = len(self.vocabulary.domains) - 1
        prompt = self.vocabulary.text + domains.clamp(max=newest).unsqueeze(1)
        return torch.cat([tokens[:, :1], prompt, tokens[:, 1:]], dim=1)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., V_text) for hidden states (..., D)."""
        decoder: Any = self.network.get_output_embeddings()
        logits = decoder(self.architecture.compute_decoder_inputs(self.network, hidden))
        if logits.shape[-1] != self.vocabulary.text:
            raise ValueError(
                f"the network puts out {logits.shape[-1]} logits for a text vocabulary of "
                f"{self.vocabulary.text}: give a model another network with "
                "`model.set_network(network)`"
            )
        return logits

    def add_domains(self, domains: Sequence[str], seed: int) -> None:
        """Have a prompt row for each of `domains`, and no others.

        `domains` extend the domains that the model has met, or are the first of them. Rows of other
        domains are dropped. New rows are drawn like the other embeddings, from `seed` only. torch's
        generator is left as it was. Nothing else in the model depends on the number of rows,
        because no softmax contains them.
        """
        vocabulary = self.vocabulary
        if vocabulary.domains == tuple(domains):
            return
        self.vocabulary = replace(vocabulary, domains=tuple(domains))
        trainable = next(self.network.get_input_embeddings().parameters()).requires_grad
        with keep_random_numbers(next(self.parameters()).device):
            torch.manual_seed(seed)
            self.network.resize_token_embeddings(self.vocabulary.size, mean_resizing=False)
        for part in (self.network.get_input_embeddings(), self.network.get_output_embeddings()):
            part.requires_grad_(trainable)
            part.zero_grad()  # a gradient left from before has fewer rows
        self.set_network(self.network)

    def map_parameter_names(self) -> dict[str, str]:
        """Map each parameter's name to one whose first part all architectures share.

        In the i-th transformer layer this is `layers.i.` and the parameter's name in the layer, in
        the j-th embedding table `embeddings.j.` and its name in the table. The tables are those of
        tokens, positions and types, if the architecture has them. All other parameters keep their
        names.
        """
        places = {
            f"layers.{i}": layer for i, layer in enumerate(self.architecture.layers(self.network))
        }
        tables = self.architecture.find_places(self.network).tables
        for j, table in enumerate(tables):
            places[f"embeddings.{j}"] = table.module
        shared_names = {}  # by the parameter's id
        for place, part in places.items():
            for name, parameter in part.named_parameters():
                shared_names[id(parameter)] = f"{place}.{name}"
        new_names = {}
        for name, parameter in self.named_parameters():
            new_names[name] = shared_names.get(id(parameter), name)
        return new_names

    def save(self, folder: Path | str, tokenizer: Tokenizer) -> None:
        """Write a Hugging Face folder (config, safetensors, tokenizer).

        `folder` is replaced only after everything has been written. `tokenizer` holds the text
        vocabulary. The prompts are added to a copy of it. Raises ValueError when it is not the
        model's tokenizer.
        """
        with replace_folder(Path(folder)) as new_folder:
            self._write(new_folder, tokenizer)
            write_checksums(new_folder)

    def _write(self, folder: Path, tokenizer: Tokenizer) -> None:
        with_domains = add_prompts(tokenizer, self.vocabulary)
        saved = wrap_tokenizer(
            with_domains, self.vocabulary.special, self.sequence_length, self.masked
        )
        config = self.network.config
        config.domains = list(self.vocabulary.domains)
        config.prompts = self.prompts
        config.text_vocabulary = self.vocabulary.text
        if self.vocabulary.special != Special():
            config.special_tokens = list(astuple(self.vocabulary.special))
        self.network.save_pretrained(folder)
        saved.save_pretrained(folder)


def add_prompts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> Tokenizer:
    """The text's tokenizer with the prompts as further special tokens.

    Raises ValueError when a prompt would not get the id of its row.
    """
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    if vocabulary.special != Special():  # a published model may have rows without a token
        tokenizer.add_special_tokens(
            [f"{UNUSED}{i}>" for i in range(tokenizer.get_vocab_size(), vocabulary.text)]
        )
    tokenizer.add_special_tokens(list(vocabulary.prompt_tokens))
    _check_prompts(tokenizer, vocabulary)
    return tokenizer


def _check_prompts(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    ids = [tokenizer.token_to_id(token) for token in vocabulary.prompt_tokens]
    if ids != list(range(vocabulary.text, vocabulary.size)):
        raise ValueError(
            f"the tokenizer does not fit a model with {vocabulary.text} text ids: the prompts "
            f"would be {ids}"
        )


def wrap_tokenizer(
    tokenizer: Tokenizer, special: Special, columns: int, masked: bool, prompt: int | None = None
) -> PreTrainedTokenizerFast:
    """The tokenizer that `AutoTokenizer` reads back.

    A text becomes `<s>`, the prompt if there is one, and its tokens. For a masked model `</s>`
    follows, because it reads whole documents. Two texts have `</s>` between them.

    Args:
        columns: the longest sequence that the model has positions for.
        prompt: the id of a domain prompt that begins each text.
    """
    names = {}
    for name, number in vars(special).items():
        if number >= 0:
            names[name] = tokenizer.id_to_token(number)
    ids = {"begin": special.bos, "end": special.eos}
    if prompt is not None:
        ids["prompt"] = prompt
    begin = [name for name in ("begin", "prompt") if name in ids]
    end = ["end"] if masked else []
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    tokenizer.post_processor = TemplateProcessing(
        single=[*begin, "$A", *end],
        pair=[*begin, "$A", "end", "$B", *end],
        special_tokens=[
            {"id": name, "ids": [i], "tokens": [tokenizer.id_to_token(i)]}
            for name, i in ids.items()
        ],
    )
    tokens = {f"{name}_token": token for name, token in names.items()}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=columns, **tokens)


def read_tokenizer(folder: Path, vocabulary: Vocabulary) -> Tokenizer:
    """The tokenizer in the folder of a model of this vocabulary.

    Raises ConfigError if it is missing or damaged.
    """
    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(path))
        set_plain_encoding(tokenizer)
        _check_prompts(tokenizer, vocabulary)
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(
            f"{path} is missing or damaged ({str(error)[:100]}): restore it from a copy"
        ) from None
    return tokenizer


def _compute_text_logits(decoder: Any, text: int, hidden: Tensor) -> Tensor:
    """The logits of the text's rows only.

    The prompts' rows are left out of the product: cutting their logits off afterwards would copy
    all the others.
    """
    weight, bias = _select_text_rows(decoder, text)
    return F.linear(hidden, weight, bias)


def _select_text_rows(decoder: Any, text: int) -> tuple[Tensor, Tensor | None]:
    """The rows (V_text, D) of a decoder that are the text's, and their bias (V_text,)."""
    bias = None if decoder.bias is None else decoder.bias[:text]
    return decoder.weight[:text], bias


def build(
    architecture: str,
    layers: int,
    hidden_size: int,
    vocabulary: Vocabulary,
    sequence_length: int,
    head_size: int = 64,
    dropout: float = 0.1,
    prompts: bool = False,
    scaled: bool = False,
    document_mask: bool = False,
) -> LanguageModel:
    """A freshly initialised model.

    Its weights are a function of torch's seed, which the caller sets. `hidden_size` is a multiple
    of `head_size`. `sequence_length` counts `<s>`, the prompt's column and the N text tokens of a
    sequence. For `scaled` see `Architecture.build`, for `document_mask` see
    `LanguageModel.separate_documents`. Raises ValueError for an unknown architecture.
    """
    record = architectures.load(architecture)
    shape = Shape(
        vocabulary=vocabulary.size,
        columns=sequence_length,
        layers=layers,
        hidden_size=hidden_size,
        heads=hidden_size // head_size,
        dropout=dropout,
        scaled=scaled,
    )
    model = LanguageModel(record.build(shape), vocabulary, prompts)
    if document_mask:
        model.separate_documents()
    return model


def load(folder: Path | str) -> LanguageModel:
    """The model that `LanguageModel.save` wrote, in evaluation mode.

    Raises ConfigError when `folder` holds no such model.
    """
    network = load_network(folder)
    vocabulary = read_vocabulary(network.config, folder)
    return LanguageModel(network, vocabulary, network.config.prompts).eval()


def read_vocabulary(config: Any, folder: Path | str) -> Vocabulary:
    """The vocabulary of the model in a folder.

    Raises ConfigError if this benchmark did not write its configuration.
    """
    if not hasattr(config, "text_vocabulary"):
        raise ConfigError(
            f"{folder} is a Hugging Face model, but config.json does not say text_vocabulary, "
            "domains and prompts: name one that this benchmark has written, or begin with this "
            "one (model.start)"
        )
    special = Special()
    if hasattr(config, "special_tokens"):
        bos, pad, eos, mask = config.special_tokens
        special = Special(bos=bos, pad=pad, eos=eos, mask=mask)
    return Vocabulary(config.text_vocabulary, tuple(config.domains), special)


def load_network(folder: Path | str) -> PreTrainedModel:
    """The language model of a known architecture in any Hugging Face folder, in evaluation mode.

    Raises ConfigError if there is no such folder, or if its architecture is unknown or its model
    damaged, and DamagedFile if a file does not have its checksum.
    """
    folder = Path(folder)
    check_files(folder)
    model_type = str(read_configuration(folder).get("model_type"))
    try:
        record = architectures.find(model_type)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from None
    family: Any = record.families[record.model_types.index(model_type)]
    with name_damage_in_errors(folder):
        network, report = family.from_pretrained(
            folder,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        record.check(network.config)
        missing = report["missing_keys"]  # further tensors of a published file are not used
        if missing:
            raise ValueError(f"{len(missing)} tensors are missing, e.g. {min(missing)}")
    return network


def read_configuration(folder: Path) -> dict[str, Any]:
    """The content of a model's config.json.

    Raises ConfigError if it cannot be read, or if no weights lie beside it.
    """
    path = folder / "config.json"
    if not path.is_file():
        inside = folder / "model"  # as in the folder of a stage
        named = inside if (inside / "config.json").is_file() else "a folder that has one"
        raise ConfigError(
            f"{folder} is no Hugging Face model folder: it has no config.json; name {named}"
        )
    with name_damage_in_errors(folder):
        text = path.read_text(encoding="utf-8")
        content: dict[str, Any] = dict(json.loads(text))
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"{folder} has no weights in *.safetensors: files that can hold code "
            "(pytorch_model.bin) are not opened; save the model again with a transformers of today"
        )
    return content


@contextmanager
def name_damage_in_errors(folder: Path) -> Iterator[None]:
    """Turn any library error about a model's damaged files into a ConfigError with the folder."""
    try:
        yield
    except (UserError, MemoryError, PermissionError):  # for these a copy would be no cure
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{folder}: the model in it is damaged or incomplete ({reason[:200]}): restore the "
            "folder from a copy; a stage of a run is trained again once its folder is deleted"
        ) from error


def find_kind(folder: Path) -> str | None:
    """The kind of the model in a folder, which is the name of its file in `models/kinds/`.

    Returns None for a plain network.
    """
    for name, file in KIND_FILES.items():
        if (folder / file).is_file():
            return name
    return None


def take_precision_of(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a module the precision of tensors that were saved, so that loading rounds nothing."""
    for tensor in tensors.values():
        if tensor.is_floating_point():
            module.to(tensor.dtype)
            return


def check_files(folder: Path) -> None:
    """Compare a model's files with the checksums that `LanguageModel.save` wrote beside them.

    Raises DamagedFile.
    """
    cure = (
        "restore the folder from a copy; a run's stage is trained again if its folder in `stages` "
        "is removed"
    )
    check_checksums(folder, cure)


def hash_weights(model: nn.Module) -> str:
    """The sha256 of all parameters and buffers that are saved: names, types, shapes and values.

    For a plain LanguageModel only its network counts. Other modules that a method adds to it are
    not saved, and exist only in the stage that trains them.
    """
    total = hashlib.sha256()
    tensors = model.state_dict()
    if type(model) is LanguageModel:
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("network.")}
    for name, tensor in sorted(tensors.items()):
        heading = f"{name} {tensor.dtype} {tuple(tensor.shape)}\n"
        total.update(heading.encode())
        values = tensor.detach().cpu().contiguous()
        total.update(values.flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()
