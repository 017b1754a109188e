"""Progressive networks: a column for each domain.

Older columns are frozen and feed the newer ones (Rusu et al. 2016, "Progressive neural networks",
arXiv 1606.04671). As in the code released with ELLE, which applies this to transformers, a column
is a whole language model with its own embeddings and head. The input of layer i of column k is

    x_i^k = h_i^k + sum_{j<k} U_i^{kj} h_i^j,

where h_i^j is the output of layer i - 1 of column j. Level 0 is its embeddings, and level L the
input of its final norm and head.

Shapes: B sequences, T tokens per sequence, K predicted positions per sequence, D hidden size, L
layers, V_text vocabulary.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from benchmark.models import transformer
from benchmark.models.transformer import LanguageModel, take_precision_of

# in the folder of a saved model, beside the folder of each column
FILE = transformer.KIND_FILES["progressive"]
_LATERALS = "laterals.safetensors"

Kind = Literal["linear", "adapter"]


class LinearLateral(nn.Module):
    """Linear laterals: sum_j U_j h_j + c_j over the earlier columns j (Rusu et al., eq. 1)."""

    def __init__(self, columns: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(inputs, outputs) for _ in range(columns))

    def forward(self, earlier: Sequence[Tensor]) -> Tensor:
        """What the new column receives (..., outputs), from one (..., inputs) per old column."""
        received = [linear(hidden) for linear, hidden in zip(self.maps, earlier, strict=True)]
        return sum(received[1:], start=received[0])


class AdapterLateral(nn.Module):
    """U f(V [a_1 h_1, a_2 h_2, ...]) over the earlier columns (Rusu et al., eq. 2).

    f is GELU, as in the transformer layers. The scales a_j start as small random numbers.
    """

    def __init__(self, columns: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.scales = nn.Parameter(0.1 * torch.rand(columns))
        self.down = nn.Linear(columns * inputs, inputs)
        self.up = nn.Linear(inputs, outputs)

    def forward(self, earlier: Sequence[Tensor]) -> Tensor:
        """What the new column receives (..., outputs), from one (..., inputs) per old column."""
        scaled = [scale * hidden for scale, hidden in zip(self.scales, earlier, strict=True)]
        reduced = self.down(torch.cat(scaled, dim=-1))
        return self.up(F.gelu(reduced))


LATERALS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "linear": LinearLateral,
    "adapter": AdapterLateral,
}


class ProgressiveModel(LanguageModel):
    """A language model with one column per domain.

    `network` is the newest column, which learns. The columns in `earlier` are frozen and run
    without dropout. A sequence is predicted by its own domain's column, so later training cannot
    change the prediction. If its domain has no column yet, the newest predicts it.
    """

    def __init__(
        self, columns: Sequence[LanguageModel], laterals: Iterable[nn.Module], kind: Kind
    ) -> None:
        """`laterals` has for each column but the first L + 1 modules, one per level."""
        newest = columns[-1]
        super().__init__(newest.network, newest.vocabulary)
        self.earlier = nn.ModuleList(columns[:-1])
        self.laterals = nn.ModuleList(laterals)
        self.kind = kind
        self.earlier.requires_grad_(False)
        self.laterals[:-1].requires_grad_(False)
        self.train(newest.training)

    @classmethod
    def add_column(
        cls, model: LanguageModel, fresh: LanguageModel, kind: Kind = "linear"
    ) -> ProgressiveModel:
        """`fresh` as a new column over the columns of `model`, with new laterals.

        The laterals are drawn from torch's generator. Column and laterals start at random, as in
        the paper by Rusu et al. and in the released code. The column is a new network, which knows
        of earlier domains only what it receives from their columns.
        """
        columns = model.columns if isinstance(model, ProgressiveModel) else [model]
        laterals = list(model.laterals) if isinstance(model, ProgressiveModel) else []
        device = next(model.parameters()).device
        new = make_laterals(kind, len(columns), fresh.hidden_size, fresh.layers)
        for module in new.modules():
            if isinstance(module, nn.Linear):
                # transformers has 0.02 for BERT and GPT, and so have the released code's columns
                nn.init.normal_(module.weight, std=fresh.network.config.initializer_range)
                nn.init.zeros_(module.bias)
        newest = fresh.to(device).train(model.training)
        return cls([*columns, newest], [*laterals, new.to(device)], kind)

    @property
    def columns(self) -> list[LanguageModel]:
        """All columns, oldest first.

        The newest shares its network with this model.
        """
        return [*self.earlier, LanguageModel(self.network, self.vocabulary)]

    def train(self, mode: bool = True) -> ProgressiveModel:
        super().train(mode)
        for column in self.earlier:
            column.train(mode and any(parameter.requires_grad for parameter in column.parameters()))
        return self

    def forward(self, tokens: Tensor, domains: Tensor, positions: Tensor) -> Tensor:
        """See LanguageModel."""

        def predict(column: int, tokens: Tensor, positions: Tensor) -> Tensor:
            hidden = self.encode(tokens, column=column)
            return self._get_column(column).predict(hidden, positions)

        return compute_by_domain(self, domains, len(self.earlier), predict, tokens, positions)

    def hidden(self, tokens: Tensor, domains: Tensor) -> Tensor:
        """Last hidden states (B, T, D), for each sequence from its own domain's column.

        In training mode all are from the newest column.
        """

        def encode(column: int, tokens: Tensor) -> Tensor:
            return self.encode(tokens, column=column)

        return compute_by_domain(self, domains, len(self.earlier), encode, tokens)

    def encode(
        self, tokens: Tensor, mask: Tensor | None = None, column: int | None = None
    ) -> Tensor:
        """Last hidden states of a column, by default the newest. See LanguageModel.

        Each earlier column runs once. If they are frozen, autograd keeps only what the laterals
        read.
        """
        column = len(self.earlier) if column is None else column
        earlier_levels: list[list[Tensor]] = []
        for index in range(column):
            levels, _ = self._run(index, tokens, earlier_levels, mask)
            earlier_levels.append(levels)
        levels, finish = self._run(column, tokens, earlier_levels, mask)
        return finish(self._receive(column, self.layers, levels[-1], earlier_levels))

    def _run(
        self, column: int, tokens: Tensor, earlier_levels: list[list[Tensor]], mask: Tensor | None
    ) -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
        """The states of a column at each level, L + 1 times (B, T, D), and its final norm."""
        model = self._get_column(column)
        hidden, layers, finish = model.architecture.unroll(model.network, tokens, mask)
        levels = [hidden]
        for level, layer in enumerate(layers):
            layer_input = self._receive(column, level, levels[-1], earlier_levels)
            levels.append(layer(layer_input))
        return levels, finish

    def _receive(
        self, column: int, level: int, hidden: Tensor, earlier_levels: list[list[Tensor]]
    ) -> Tensor:
        if column == 0:
            return hidden
        laterals: Any = self.laterals[column - 1]
        return hidden + laterals[level]([levels[level] for levels in earlier_levels])

    def _get_column(self, index: int) -> Any:
        if index < len(self.earlier):
            return self.earlier[index]
        return self

    def make_encoder(self, domain: str) -> ProgressiveModel:
        """The column of `domain` with all earlier ones, or the newest if the domain has no column.

        Fine-tuning trains all of them. The authors found that better than tuning only the newest
        column (a comment in the paper's source).
        """
        domains = self.vocabulary.domains
        columns = self.columns
        count = domains.index(domain) + 1 if domain in domains else len(columns)
        return ProgressiveModel(columns[:count], self.laterals[: count - 1], self.kind)

    def _write(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write a Hugging Face folder for each column.

        What they share (config, tokenizer) is in `folder`, too.
        """
        for index, column in enumerate(self.columns):
            (folder / f"column_{index}").mkdir()
            column._write(folder / f"column_{index}", tokenizer)
        for path in (folder / "column_0").glob("*.json"):
            shutil.copy(path, folder)
        save_file(self.laterals.state_dict(), folder / _LATERALS)
        content = {"columns": len(self.columns), "lateral": self.kind}
        (folder / FILE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def make_laterals(kind: Kind, columns: int, hidden_size: int, layers: int) -> nn.ModuleList:
    """Laterals from `columns` earlier columns, one module per level."""
    make = LATERALS[kind]
    return nn.ModuleList(make(columns, hidden_size, hidden_size) for _ in range(layers + 1))


def compute_by_domain(
    model: nn.Module, domains: Tensor, newest: int, compute: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """Call `compute(d, rows of inputs ...)` for each d in `domains` (B,), with the rows of d.

    The results are put back in the order of the rows. Domains after `newest` count as `newest`. In
    training mode all domains do, because only the newest learns: looking up the domains would make
    the step wait for the device, and break the compiled graph. If all rows have one domain, as in
    validation, the inputs are not split.
    """
    if model.training:
        return compute(newest, *inputs)
    columns = domains.clamp(max=newest)
    numbers = columns.unique().tolist()
    if len(numbers) == 1:
        return compute(numbers[0], *inputs)
    places = []
    parts = []
    for number in numbers:
        rows = (columns == number).nonzero().squeeze(1)
        places.append(rows)
        parts.append(compute(number, *(values[rows] for values in inputs)))
    return torch.cat(parts)[torch.cat(places).argsort()]


def load(folder: Path | str) -> ProgressiveModel:
    """The model that `ProgressiveModel.save` wrote, in evaluation mode."""
    folder = Path(folder)
    transformer.check_files(folder)
    content = json.loads((folder / FILE).read_text(encoding="utf-8"))
    models = []
    for index in range(content["columns"]):
        models.append(transformer.load(folder / f"column_{index}"))
    hidden_size = models[0].hidden_size
    layers = models[0].layers
    laterals = nn.ModuleList()
    for count in range(1, len(models)):
        laterals.append(make_laterals(content["lateral"], count, hidden_size, layers))
    tensors = load_file(folder / _LATERALS)
    take_precision_of(laterals, tensors)
    laterals.load_state_dict(tensors)
    return ProgressiveModel(models, laterals, content["lateral"])
