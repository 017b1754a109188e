"""A checkpoint as a classifier.

It maps ids of texts, pairs and prompts to logits of classes. A discriminator of domains may pick
the prompt, which the paper leaves to future work. It is a multinomial logistic regression on the
mean of the model's own token embeddings, scaled to unit variance, and fitted to the memory.

Shapes: B sequences, T tokens per sequence, D hidden size, C classes, R texts.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput

from benchmark.data.tokenizer import PAD, encode_texts
from benchmark.downstream.passages import Example
from benchmark.downstream.tasks import TaskData
from benchmark.models import LanguageModel, architectures, load
from benchmark.models.fast_operators import use_fast_dropout
from benchmark.models.transformer import (
    check_files,
    find_kind,
    read_configuration,
    read_tokenizer,
    read_vocabulary,
)
from benchmark.settings.base import ConfigError
from benchmark.settings.tasks import SPLITS, Prompt, Split, Task
from benchmark.training.method import Phase
from benchmark.training.stream import Stream

MEMORY_ROWS = 2000  # per domain, to fit the discriminator
Texts = Sequence[Sequence[int]]  # ids
Parts = list[list[int]]  # ids of a text, or of text and pair
# for each of R texts, without `<s>`, the index of its domain in the stream
Pick = Callable[[Texts], list[int]]


@dataclass(frozen=True)
class Rows:
    """A split as token ids, `<s>` first, no padding, and targets (rows,)."""

    tokens: list[list[int]]
    targets: list[int]
    padding: int = PAD  # the id that fills shorter rows of a batch


class SavedModel:
    """A pre-trained model in its folder, to be fine-tuned any number of times.

    Each time starts from the weights in the folder.
    """

    def __init__(self, folder: Path, final: bool = True) -> None:
        """`final`: whether the model has met the whole stream.

        `domains` are the domains that it has met, in the stream's order. Raises ConfigError if
        `folder` holds no model of this benchmark.
        """
        self.folder = Path(folder)
        check_files(self.folder)
        read_configuration(self.folder)
        self.config = AutoConfig.from_pretrained(
            self.folder, local_files_only=True, trust_remote_code=False
        )
        vocabulary = read_vocabulary(self.config, self.folder)
        self.domains = vocabulary.domains
        self.special = vocabulary.special
        self.final = final
        self.tokenizer = read_tokenizer(self.folder, vocabulary)
        self.tokenizer.encode_special_tokens = True  # "<s>" in a text is text
        architecture = architectures.find(self.config.model_type)
        self.length = architecture.count_positions(self.config)
        for column in self.folder.glob("column_*"):
            # PNN's first column may be a published model, with more positions than the others
            config = AutoConfig.from_pretrained(column, local_files_only=True)
            self.length = min(self.length, architecture.count_positions(config))
        self.pick: Pick = self._pick_newest  # `score_stage` sets a fitted one
        self._texts: dict[tuple[str, bool], dict[Split, list[Parts]]] = {}

    def _pick_newest(self, texts: Texts) -> list[int]:
        newest = self.find_index(self.domains[-1])
        return [newest] * len(texts)

    def find_index(self, domain: str) -> int:
        """The index of a domain in the stream.

        For a domain that the model has not met, it is the newest domain's, as in evaluation.
        """
        if domain in self.domains:
            return self.domains.index(domain)
        return len(self.domains) - 1

    def encode_texts(self, data: TaskData, uncut: bool = False) -> dict[Split, list[Parts]]:
        """Token ids of the text, or of text and pair, of each example.

        They are cut to leave room for a prompt, unless `uncut`.
        """
        key = (data.key, uncut)
        if key not in self._texts:
            splits: dict[Split, list[Parts]] = {}
            for split in SPLITS:
                examples = getattr(data, split)
                splits[split] = [self._encode(example, uncut) for example in examples]
            self._texts[key] = splits
        return self._texts[key]

    def cut_to_window(self, data: TaskData) -> TaskData:
        """The task with only the part of each text, or of text and pair, that a row holds."""
        splits: dict[Split, tuple[Example, ...]] = {}
        for split, examples in self.encode_texts(data).items():
            cut_examples = []
            for example, ids in zip(getattr(data, split), examples, strict=True):
                parts = self.tokenizer.decode_batch(ids, skip_special_tokens=False)
                pair = parts[1] if len(parts) > 1 else None
                cut_examples.append(replace(example, text=parts[0], text_pair=pair))
            splits[split] = tuple(cut_examples)
        return replace(data, train=splits["train"], dev=splits["dev"], test=splits["test"])

    def _encode(self, example: Example, uncut: bool) -> Parts:
        parts = [example.text]
        if example.text_pair is not None:
            parts.append(example.text_pair)
        ids = encode_texts(self.tokenizer, parts)
        if uncut:
            return ids
        # a row also has `<s>`, a prompt, and a `</s>` after each part
        return truncate(ids, self.length - 2 - len(ids))

    def load_classifier(self, labels: Sequence[str], domain: str) -> nn.Module:
        """A model with a new head: (B, T) ids and mask -> `.logits` (B, C).

        A masked model's head reads `<s>`, a causal model's reads the `</s>` that ends a row. A
        model with a column (PNN) or adapters (LoRA) per domain is fine-tuned with those of
        `domain`. A model with experts is fine-tuned with all of them.
        """
        if find_kind(self.folder):
            model: Any = load(self.folder)
            return HiddenStateClassifier(model.make_encoder(domain), self.config, len(labels))
        network = AutoModelForSequenceClassification.from_pretrained(
            self.folder,
            num_labels=len(labels),
            id2label=dict(enumerate(labels)),
            label2id={label: index for index, label in enumerate(labels)},
            attn_implementation="sdpa",
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        use_fast_dropout(network)
        if architectures.find(self.config.model_type).masked:
            return network
        return LastTokenClassifier(network)


def find_last_tokens(attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The rows and columns, (B,) each, of the last tokens before padding, for a mask (B, T)."""
    rows = torch.arange(len(attention_mask), device=attention_mask.device)
    return rows, attention_mask.sum(1) - 1


class LastTokenClassifier(nn.Module):
    """A causal classifier of transformers that reads the last token of the attention mask.

    The class of transformers reads the last id that is not the padding id. But a published model
    may have no padding id, or that of `</s>`, with which each row ends.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SequenceClassifierOutput:
        body = self.network.base_model
        hidden = body(input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.network.score(hidden)
        return SequenceClassifierOutput(logits=logits[find_last_tokens(attention_mask)])


class HiddenStateClassifier(nn.Module):
    """The head of transformers' sequence classifiers on the hidden states of a model.

    All weights of head and model are trained.
    """

    def __init__(self, model: LanguageModel, config: Any, classes: int) -> None:
        super().__init__()
        architecture = architectures.find(config.model_type)
        self.model = model.requires_grad_()
        self.reads_last = not architecture.masked
        config.num_labels = classes
        self.head = architecture.make_classifier(config)
        for module in self.head.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SequenceClassifierOutput:
        hidden = self.model.encode(input_ids, attention_mask.bool())
        if self.reads_last:
            hidden = hidden[find_last_tokens(attention_mask)]
        return SequenceClassifierOutput(logits=self.head(hidden))


def truncate(parts: Parts, room: int) -> Parts:
    """The parts, cut at their ends to `room` tokens together.

    Of two parts, the longer one is cut first.
    """
    if len(parts) == 1:
        return [parts[0][:room]]
    text, pair = parts
    largest = max(room - len(pair), (room + 1) // 2)
    size = min(len(text), largest)
    return [text[:size], pair[: room - size]]


def draw_wrong_domain(task: Task, seed: int, domains: Sequence[str]) -> str:
    """Another domain than the task's, drawn by the seed.

    Raises ConfigError if there is no other.
    """
    names = [name for name in domains if name != task.domain]
    if not names:
        raise ConfigError(
            f"task {task.name!r}: a wrong prompt needs a second domain that the model has seen"
        )
    return random.Random(f"{task.name} {seed}").choice(names)


def choose_prompt_domains(
    checkpoint: SavedModel, data: TaskData, prompt: Prompt, seed: int
) -> dict[Split, list[int]]:
    """The domain whose prompt stands in each row, as an index of the stream, or -1 for none."""
    domains: dict[Split, list[int]] = {}
    if prompt == "picked":
        for split, examples in checkpoint.encode_texts(data).items():
            texts = [list(chain(*parts)) for parts in examples]
            domains[split] = checkpoint.pick(texts)
        return domains
    index = -1
    if prompt != "none":
        name = data.task.domain
        if prompt != "right":
            name = draw_wrong_domain(data.task, seed, checkpoint.domains)
        index = checkpoint.find_index(name)
    for split in SPLITS:
        examples = getattr(data, split)
        domains[split] = [index] * len(examples)
    return domains


def fit_discriminator(folder: Path, stream: Stream, domain_count: int) -> Pick:
    """The discriminator of the first `domain_count` domains, for the checkpoint in `folder`.

    It is fitted to their memory.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = load(folder)
    stream = copy.copy(stream)
    stream.masked = False  # no token is masked or replaced
    rows = MEMORY_ROWS * domain_count
    phase = Phase("memory", memory=1.0, domain="previous", trains=False)
    next_stage = domain_count  # whose previous domains are these
    [draw], _ = stream.plan_draws(phase, 0, next_stage, rows)
    memory = stream.make_batch(next_stage, draw, 0, range(rows))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    embeddings = average_embeddings(model, memory.tokens.tolist())
    classifier.fit(embeddings, memory.domains.numpy())
    return lambda texts: classifier.predict(average_embeddings(model, texts)).tolist()


def average_embeddings(model: LanguageModel, texts: Texts) -> NDArray[np.float64]:
    """The mean of the token embeddings of each text, (R, D), `<s>` left out.

    It needs no forward pass.
    """
    embedding: Any = model.network.get_input_embeddings()
    table = embedding.weight.detach().cpu().double().numpy()
    bos = model.vocabulary.special.bos
    means = []
    for text in texts:
        tokens = [token for token in text if token != bos]
        means.append(table[tokens].mean(0))
    return np.stack(means)


def encode_rows(
    checkpoint: SavedModel, data: TaskData, prompt: Prompt, seed: int
) -> dict[Split, Rows]:
    """Rows `<s> [prompt] text </s>`, for a pair followed by `text_pair </s>`.

    `</s>` separates text and pair, as it separates documents in pre-training.
    """
    splits: dict[Split, Rows] = {}
    special = checkpoint.special
    domains = choose_prompt_domains(checkpoint, data, prompt, seed)
    for split, texts in checkpoint.encode_texts(data).items():
        rows = []
        for parts, domain in zip(texts, domains[split], strict=True):
            row = [special.bos]
            if domain >= 0:
                row.append(checkpoint.config.text_vocabulary + domain)
            for part in parts:
                row += [*part, special.eos]
            rows.append(row)
        splits[split] = Rows(rows, data.list_targets(split), special.pad)
    return splits
