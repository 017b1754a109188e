"""How similar the models of a stream are: their predictions, and what their heads attend to.

Average representational similarity of a stream of models (ARS; the paper's appendix,
fig:similarity).

    ARS_j = -1 / ((j - 1) n) sum_{i<j} sum_{k<=n} KL(p_k^i || p_k^j)

It is in nats. The nearer to 0, the more similar.

p_k^i is the prediction of M_i's LM head at the k-th of n positions of D_j's text. The paper leaves
some choices open. Ours are:

- Text. The paper samples masks "from the raw corpus D_j". We take rows spread evenly over D_j's
  validation text. The more often M_j saw its training text, the sharper it is there, and this
  differs between methods under one wall time. Validation text also has one set of masks, so all
  models, methods and seeds are compared at the same positions.
- Positions. BERT: those that hold <mask> (80% of the predicted ones). GPT: every text token.
- Prompts, columns and adapters. Each model reads D_j as in evaluation: M_j with those of D_j, its
  ancestors, which have none for D_j, with their newest. So M_i's records hold the perplexity of
  these predictions.
- Untrained models. If M_j or an ancestor was not trained (From scratch trains only the last stage),
  the record has a reason instead of ARS.

Do the heads of a grown model attend like the heads they came from (the paper's fig:attn_similar)?

All models of a stream read the same text: rows of the first domain's validation text, which all of
them have learned, with its prompt and masked as in evaluation. The record of each growth says which
head came from which (`head_sources`). Without growth, each head came from itself. For a new head,
AKI's record names the layer that the head is in, though its weights are those of the layer above.

The similarity of two heads is 1 minus the Jensen-Shannon divergence, in bits, of their
distributions over keys, as a mean over rows and queries. It is 1 for the same attention and 0 if no
attention is shared. A head is compared with its own ancestor, and with every other head of that
ancestor's model: the mean over these is what a random head would give.

Shapes: H heads of all layers, counted layer by layer, B rows, T positions of a row as the network
sees it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import takewhile

import numpy as np
import torch
import torch.nn.functional as F
from msgspec import structs
from torch import Tensor

from analysis.metrics import compute_ars
from benchmark.data.prepared import prepare_corpus
from benchmark.devices import choose_device, evaluating
from benchmark.ledger import records
from benchmark.ledger.records import (
    AttentionLine,
    EvaluationLine,
    GrowthRecord,
    LineOfMeasures,
    RunLine,
    SimilarityLine,
    StageDone,
    find_last,
    select_kind,
)
from benchmark.ledger.store import Store
from benchmark.locks import Lease
from benchmark.models import LanguageModel, load
from benchmark.models.kinds.lora import LoraModel
from benchmark.models.kinds.progressive import ProgressiveModel
from benchmark.settings.base import digest
from benchmark.settings.suite import RunConfig
from benchmark.training.evaluate import LOGITS_AT_ONCE
from benchmark.training.learner import Batch
from benchmark.training.run import make_stream
from benchmark.training.stream import Stream, count_predictions

# Rows of D_j's validation text. They have about 2,000 positions, in BERT's rows of 512 tokens and
# in the demo's of 64. ARS is then within 2% of ARS over eight times as many rows, and errs in the
# same direction for all methods.
ROWS = 32
FORMAT = 2  # raise it when the same settings mean another computation
# The most tokens of a row: over all 512, attention is too thin, and memory grows with the square.
TOKENS = 64
LINEAGES = 6  # that the figure shows
SHOWN = 24  # queries and keys of their maps


def measure_similarity(config: RunConfig, store: Store) -> None:
    """Record the ARS of a run's finished stages from the second on, unless it is recorded."""
    settings = {"format": FORMAT, "rows": ROWS}
    domains = range(len(config.domains))
    record_measurement(config, store, "similarity", settings, _compute_similarity, domains, first=1)


def _compute_similarity(models: RunModels, index: int) -> SimilarityLine:
    reason = models.name_untrained(index)
    if reason:
        return SimilarityLine(ars=None, reason=reason)
    kl = compute_divergences(models.load_up_to(index), models.stream, index)
    return SimilarityLine(ars=compute_ars(kl), reason=None)


@torch.no_grad()
def compute_divergences(
    models: Sequence[LanguageModel], stream: Stream, domain: int
) -> list[float]:
    """The mean of KL(p^i || p^j) in nats for each ancestor i of the last model j."""
    *ancestors, newest = models
    totals = [0.0] * len(ancestors)
    count = 0
    predictions = count_predictions(stream.length, stream.masked)
    logits_of_row = predictions * stream.corpus.text_vocabulary
    rows_at_once = max(1, LOGITS_AT_ONCE // logits_of_row)
    for batch in sample(stream, domain, ROWS, rows_at_once):
        batch = batch.to(choose_device())
        is_compared = torch.ones_like(batch.targets, dtype=torch.bool)
        if stream.masked:
            is_compared = batch.tokens.gather(1, batch.positions) == stream.corpus.special.mask
        newest_prediction = _predict(newest, batch, is_compared)
        for i, ancestor in enumerate(ancestors):
            # no variable keeps the ancestor's predictions, so memory holds only one ancestor's
            kl = F.kl_div(
                newest_prediction,
                _predict(ancestor, batch, is_compared),
                reduction="none",
                log_target=True,
            )
            totals[i] += kl.sum(-1).sum().item()
        count += int(is_compared.sum())
    return [total / count for total in totals]


def _predict(model: LanguageModel, batch: Batch, selection: Tensor) -> Tensor:
    """Log probabilities (positions, V_text) at the positions that `selection` (B, P) marks."""
    with evaluating(model):
        return (
            model(batch.tokens, batch.domains, batch.positions)[selection].float().log_softmax(-1)
        )


def measure_attention(config: RunConfig, store: Store) -> None:
    """Record the attention of the models of a run's finished stages, unless it is recorded."""
    settings = {
        "format": FORMAT,
        "rows": ROWS,
        "tokens": TOKENS,
        "lineages": LINEAGES,
        "shown": SHOWN,
    }
    maps: list[Tensor] = []  # attention of each model so far

    def compute(models: RunModels, index: int) -> AttentionLine:
        reason = _find_reason_against(models, index)
        if reason:
            return AttentionLine(own=[], others=[], heads=[], maps=[], reason=reason)
        for i in range(len(maps), index + 1):
            batches = sample(models.stream, 0, ROWS, ROWS)
            batch = next(iter(batches)).to(choose_device())
            tokens = batch.tokens[:, : 1 + TOKENS]
            attention = compute_attention(models.load_after(i), tokens, batch.domains)
            maps.append(attention.cpu())
        parents = [_read_parents(models, i) for i in range(1, index + 1)]
        to_ancestors, to_rest = compare_with_ancestors(maps, parents)
        heads = choose_lineages(len(maps[0]), parents)
        heads_of_layer = len(maps[index]) // models.load_after(index).layers
        thousandths = 1000 * maps[index][heads, 0, :SHOWN, :SHOWN]
        return AttentionLine(
            own=to_ancestors,
            others=to_rest,
            heads=[list(divmod(head, heads_of_layer)) for head in heads],
            maps=thousandths.round().int().tolist(),
            reason=None,
        )

    domains = [0] * len(config.domains)
    record_measurement(config, store, "attention", settings, compute, domains)


def _find_reason_against(models: RunModels, index: int) -> str:
    """Why the heads of a stage's model and its ancestors cannot be compared, "" if they can."""
    untrained = models.name_untrained(index)
    if untrained:
        return untrained
    for i in range(index + 1):
        if isinstance(models.load_after(i), ProgressiveModel | LoraModel):
            return "the first domain is read with what M1 learned, unchanged"
    networks = models.load_up_to(index)
    if not all(network.layers for network in networks):
        return "a model without layers has no heads"
    shapes = [(network.layers, network.hidden_size) for network in networks]
    for i in range(1, index + 1):
        if shapes[i] != shapes[i - 1] and not models.read_growth(i):
            return "a model grew without saying which head came from which"
    if len({network.prompts for network in networks}) > 1:
        return "only some of its models read a prompt"
    return ""


def _read_parents(models: RunModels, index: int) -> list[int]:
    growth = models.read_growth(index)
    parent = models.load_after(index - 1)
    heads: int = parent.network.config.num_attention_heads  # of queries, in each layer
    if growth is None:
        return list(range(heads * parent.layers))
    return find_parents(growth.layer_sources, growth.head_sources, heads)


@torch.no_grad()
def compute_attention(model: LanguageModel, tokens: Tensor, domains: Tensor) -> Tensor:
    """Attention weights (H, B, T, T), queries before keys.

    `tokens` (B, 1+N) and `domains` (B,) are as `hidden` takes them. The model is a plain one. Its
    network is called with eager attention, as transformers calls it, because only then does it
    return the weights, with GPT's causal mask applied.
    """
    model.network.set_attn_implementation("eager")
    with evaluating(model):
        embeddings = model.insert_prompts(tokens, domains)
        output = model.network.base_model(embeddings, output_attentions=True, use_cache=False)
    return torch.stack(output.attentions).transpose(1, 2).flatten(0, 1).float()


def find_parents(
    layer_sources: Sequence[int], head_sources: Sequence[Sequence[int]], heads: int
) -> list[int]:
    """Return which head each head of a grown model came from (GrowthRecord).

    `heads` is the number of heads per layer in the model before growth.
    """
    pairs = zip(layer_sources, head_sources, strict=True)
    return [layer * heads + head for layer, sources in pairs for head in sources]


def compare_heads(last: Tensor, earlier: Tensor) -> Tensor:
    """The similarity (H1, H2) of the attention of each head of one model and each head of another.

    It is 1 minus the Jensen-Shannon divergence over its maximum. `last` is (H1, B, T, T) and
    `earlier` (H2, B, T, T).
    """
    last_entropies = torch.special.entr(last).flatten(1).sum(1)
    earlier_entropies = torch.special.entr(earlier).flatten(1).sum(1)
    mixed = torch.stack(
        [torch.special.entr((head + earlier) / 2).flatten(1).sum(1) for head in last]
    )
    # in nats, summed over rows and queries
    divergence = mixed - (last_entropies.unsqueeze(1) + earlier_entropies) / 2
    most = math.log(2) * last.shape[1] * last.shape[2]
    return 1 - divergence / most


def compare_with_ancestors(
    maps: Sequence[Tensor], parents: Sequence[Sequence[int]]
) -> tuple[list[float], list[float | None]]:
    """The mean similarity of the last model's heads to heads of each earlier model.

    The first list compares each head with its ancestor, the second with all other heads. An entry
    of the second is None if the earlier model has one head. `maps[i]` is the attention of model i's
    heads on the same text, (H, B, T, T). `parents[i][head]` is the head of model i from which
    `head` of model i + 1 came.
    """
    to_ancestors: list[float] = []
    to_rest: list[float | None] = []
    ancestors = list(range(len(maps[-1])))
    for earlier, step in zip(reversed(maps[:-1]), reversed(parents), strict=True):
        ancestors = [step[head] for head in ancestors]
        similarity = compare_heads(maps[-1], earlier)
        to_ancestor = similarity[range(len(ancestors)), ancestors]
        to_ancestors.append(to_ancestor.mean().item())
        other_heads = len(earlier) - 1
        to_others = (similarity.sum(1) - to_ancestor) / max(1, other_heads)
        to_rest.append(to_others.mean().item() if other_heads else None)
    return to_ancestors[::-1], to_rest[::-1]


def choose_lineages(heads: int, parents: Sequence[Sequence[int]]) -> list[int]:
    """Heads of the last model that the figure shows.

    They are descendants of some of the first model's `heads`. Of several descendants, the one with
    the highest number is taken: a copy, if there are any.
    """
    count = min(LINEAGES, heads)
    gaps = max(1, count - 1)
    lineages = [round(i * (heads - 1) / gaps) for i in range(count)]
    for step in parents:
        descendants = []
        for ancestor in lineages:
            copies = [head for head, parent in enumerate(step) if parent == ancestor]
            descendants.append(max(copies))
        lineages = descendants
    return lineages


class RunModels:
    """The models after the finished stages of a run, on the GPU if there is one.

    Each is loaded once. `keys` are the keys of these stages, from the first on. `texts` are, by
    name, the keys of the validation texts on which the run's perplexities were measured.
    """

    def __init__(self, config: RunConfig, store: Store) -> None:
        self.config = config
        self.store = store
        run_line = find_last(store.read_run(config), RunLine)
        self.keys = list(takewhile(store.is_stage_done, run_line.stages if run_line else []))
        self.texts = run_line.texts if run_line else {}
        self.read_lines = cache(lambda index: store.read_stage(self.keys[index]))
        self._models: dict[int, LanguageModel] = {}

    @cached_property
    def stream(self) -> Stream:
        return make_stream(self.config, prepare_corpus(self.config, self.store))

    def load_after(self, index: int) -> LanguageModel:
        """The model after a stage, in evaluation mode."""
        if index not in self._models:
            folder = self.store.stage_folder(self.keys[index])
            self._models[index] = load(folder / "model").to(choose_device())
        return self._models[index]

    def load_up_to(self, last: int) -> list[LanguageModel]:
        """The models after all stages up to `last`."""
        return [self.load_after(index) for index in range(last + 1)]

    def name_untrained(self, last: int) -> str:
        """Say which models up to that stage were not trained, "" if all were.

        A method may leave early stages out.
        """
        missing = [
            f"M{i + 1}"
            for i in range(last + 1)
            if not select_kind(self.read_lines(i), EvaluationLine)
        ]
        return f"{', '.join(missing)} not trained" if missing else ""

    def read_growth(self, index: int) -> GrowthRecord | None:
        """The record of the stage's growth, None if nothing grew."""
        return select_kind(self.read_lines(index), StageDone)[-1].growth


def sample(stream: Stream, domain: int, rows: int, at_once: int) -> Iterator[Batch]:
    """`rows` rows spread evenly over a domain's validation text, in batches of `at_once`.

    All its rows if there are fewer. Rows and masks are the same for every model, method and seed.
    """
    total = stream.valid_blocks[domain]
    count = min(rows, total)
    blocks = np.arange(count) * total // count
    return stream.read_validation_blocks(domain, blocks, at_once)


def record_measurement(
    config: RunConfig,
    store: Store,
    kind: str,
    settings: Mapping[str, int],
    compute: Callable[[RunModels, int], LineOfMeasures],
    domains: Sequence[int],
    first: int = 0,
) -> None:
    """Record what `compute` says of the models of a run's finished stages from `first` on.

    A stage that has its record is skipped. A stage's key stands for all of its ancestors, so kind,
    key, settings and validation text identify a record. `domains` has, by stage, the index of the
    domain whose text is read. A process that wants the same record meanwhile waits and finds it.
    """
    models = RunModels(config, store)
    for index, stage_key in list(enumerate(models.keys))[first:]:
        path = store.similarity_file(stage_key)
        key = digest({"kind": kind, "stage": stage_key, **settings})
        path.parent.mkdir(parents=True, exist_ok=True)
        with Lease(path.with_suffix(".lock")) as lease:
            lines = records.read(path, records.MEASURES)
            domain = config.domains[domains[index]].name
            if any(line.key == key and line.text in ("", models.texts[domain]) for line in lines):
                continue
            line = compute(models, index)
            lease.check()
            text = "" if line.reason else models.stream.validation_keys[domain]
            records.append(path, structs.replace(line, key=key, text=text))


# by the kind of their lines, as `MEASURE` in `paper_tables/` names it
MEASURES = {"similarity": measure_similarity, "attention": measure_attention}
