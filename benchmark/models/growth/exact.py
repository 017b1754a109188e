"""Growth that keeps the function: LayerNorm average expansion for width, identity layers for depth.

Width (LEMON, Wang et al. 2023, arXiv 2310.07999): S hidden units become T = k S + R. The residual
stream holds k copies of its old units, then R times their mean. That keeps a LayerNorm's mean, and
multiplies its variance by the known factor eta^2 = k S / T. The outgoing weights of an old unit are
divided among its copies in unequal, independently drawn shares, so that the copies' gradients
differ in direction.

Depth: a new layer is a copy that adds nothing to the residual stream yet.

A pre-LN network keeps its function at every size. In a post-LN network the residual stream is
itself the output of a LayerNorm. So the mean of its units varies slightly from token to token, but
the R extra units can only hold a constant. BERT's LM head has a GELU right before a LayerNorm, so
that its extra units cannot hold the mean either. They are fitted to keep that LayerNorm's mean and
variance.

A network with RMSNorm (Llama) keeps its function at every size, by padding. RMSNorm divides S
residual units by the root of their mean square. T - S further units of zero multiply the mean
square by S / T. To undo this, the gain is multiplied by sqrt(S / T), and the epsilon by S / T. No
weights write into the new units. New heads and feed-forward units are copies of old ones, and write
nothing. But their outputs are not zero, and neither are the weights that read new units. So the
first gradient reaches the weights that write into new residual units, or out of new heads and
feed-forward units. The second gradient reaches the others.

A norm over each head (Qwen3) gets the smaller epsilon too. It stays exact, because queries and keys
are multiplied by sqrt(S / T): the norm ignores this factor, and the epsilon keeps its effect. If a
norm spans all heads (OLMo 2), queries and keys of new heads read only new units. So they are zero
as well, and the gain is multiplied by sqrt(S / T). If the output of a layer is normalised (OLMo 2,
Gemma 3), its new units are zero, and a copied layer adds nothing because the gain of that norm is
zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmark.models.architectures import Affine, Layer, Place
from benchmark.models.growth.width import Width, take_columns

Fit = Callable[[Affine, Affine, int], tuple[Affine, float]]  # `fit_head` for given states


@dataclass(eq=False)
class Exact(Width):
    """LayerNorm average expansion.

    Attributes:
        post_norm: whether the residual stream is normalised.
        fit: fits the extra units of BERT's LM head. If None, they stay copies.
    """

    post_norm: bool
    fit: Fit | None = None

    def __post_init__(self) -> None:
        self.copies, self.extra = divmod(self.new, self.old)
        self.hidden = torch.arange(self.old).repeat(self.copies)
        self.eta = (self.copies * self.old / self.new) ** 0.5
        self.variance = self.eta**2
        # +1, -1, +1, ...: what extra units add to the mean cancels. If their number is odd, the
        # last one is 0
        signs = [1.0, -1.0] * (self.extra // 2)
        signs += [0.0] * (self.extra % 2)
        self.signs = torch.tensor(signs, dtype=torch.float64)

    def widen_table(self, table: Affine, norm: Affine | None) -> Affine:
        """The wide rows of a table, whose extra units hold the mean of the row.

        If an embedding LayerNorm follows, they also hold its output's mean, with changing signs.
        Except for the division by the standard deviation, this mean is a linear function of the row
        x: the mean of gain * (x - mean of x). Because of the signs it does not change the
        LayerNorm's mean. It changes the variance only by the square of this small number.
        """
        rows = table.weight
        mean = rows.mean(1, keepdim=True)
        extra = mean.expand(-1, self.extra)
        if norm is not None:
            centred_gain = norm.weight - norm.weight.mean()
            output_mean = rows @ centred_gain / self.old
            extra = extra + self.signs * output_mean.unsqueeze(1)
        wide_rows = torch.cat([take_columns(rows, self.hidden), extra], 1)
        return Affine(wide_rows, table.bias)

    def widen_embedding_norm(self, norm: Affine) -> Affine:
        wide = self.widen_norm(norm)
        wide.weight[len(self.hidden) :] = self.eta * self.signs
        wide.bias[len(self.hidden) :] = norm.bias.mean()
        return wide

    def widen_norm(self, norm: Affine) -> Affine:
        """The wide norm, whose bias makes new units zero, or in post-LN the mean of the old biases.

        In post-LN the outputs stay in the residual stream, and new units must not change its mean.
        The input of new units is the mean, so any gain keeps the function. A gain of zero would
        give them no gradient.
        """
        mean = norm.bias.mean()
        if not self.post_norm:
            mean = torch.zeros_like(mean)
        mean_gain = norm.weight.mean().expand(self.extra)
        gain = torch.cat([norm.weight[self.hidden], mean_gain])
        bias = torch.cat([norm.bias[self.hidden], mean.expand(self.extra)])
        return Affine(self.eta * gain, bias)

    def widen_last_norm(self, norm: Affine) -> Affine:
        wide = self.widen_norm(norm)
        shares = self.draw_shares(1, self.hidden, self.old)[0]
        wide.weight[: len(shares)] *= shares
        wide.bias[: len(shares)] *= shares
        wide.bias[len(shares) :] = 0
        return wide

    def widen_reading(self, linear: Affine, outputs: Tensor) -> Affine:
        weight = linear.weight.index_select(0, outputs)
        count = len(weight)
        shares = self.draw_shares(count, self.hidden, self.old)
        shared = take_columns(weight, self.hidden) * shares
        # all extra units have the same value, so weights that sum to zero ignore it
        noise = torch.randn(count, self.extra, generator=self.generator, dtype=weight.dtype)
        extra = noise * weight.std()
        if self.extra:
            extra -= extra.mean(1, keepdim=True)
        return Affine(torch.cat([shared, extra], 1), linear.bias[outputs])

    def widen_writing(self, linear: Affine, inputs: Tensor) -> Affine:
        weight = self._widen_residual(linear.weight)
        shares = self.draw_shares(len(weight), inputs, linear.weight.shape[1])
        return Affine(take_columns(weight, inputs) * shares, self._widen_residual(linear.bias))

    def widen_head(self, head: Affine, norm: Affine) -> tuple[Affine, Affine]:
        sources = torch.randperm(self.old, generator=self.generator)[: self.extra]
        extra = Affine(head.weight[sources], head.bias[sources])
        # undoes `widen_norm`'s factor: extra units that are copies keep the size of the variance
        scale = 1 / self.eta
        if self.extra and self.fit is not None:
            extra, scale = self.fit(head, extra, self.copies)
        units = Affine(
            weight=torch.cat([head.weight, extra.weight]),
            bias=torch.cat([head.bias, extra.bias]),
        )
        extra_outputs = self.old + torch.arange(self.extra)
        outputs = torch.cat([self.hidden, extra_outputs])
        last = self.widen_last_norm(norm)
        last.weight *= scale
        last.weight[len(self.hidden) :] = 0  # extra units do not hold the mean here
        return self.widen_reading(units, outputs), last

    def draw_shares(self, rows: int, index: Tensor, old: int) -> Tensor:
        """Positive shares (rows, len(index)). Each row sums to 1 over the copies of an old unit."""
        shares = torch.rand(rows, len(index), generator=self.generator, dtype=torch.float64)
        shares.add_(0.5)
        sums = torch.zeros(rows, old, dtype=torch.float64)
        sums.index_add_(1, index, shares)
        return shares.div_(take_columns(sums, index))

    def _widen_residual(self, rows: Tensor) -> Tensor:
        """Weights that write T residual units, from those of S: k copies, then R times the mean."""
        copies = rows.index_select(0, self.hidden)
        mean = rows.mean(0, keepdim=True)
        return torch.cat([copies, mean.expand(self.extra, *rows.shape[1:])])


def fit_head(
    states: Tensor,
    activation: Callable[[Tensor], Tensor],
    eps: float,
    head: Affine,
    extra: Affine,
    copies: int,
) -> tuple[Affine, float]:
    """Extra units of BERT's LM head that keep its LayerNorm, and a factor for the LayerNorm's gain.

    L-BFGS in float64 fits them, starting from `extra`, to hidden states (n, S) that enter the head.
    It minimises the squared difference between the old and the new normalised units. With m, v the
    mean and variance of the S units, m', v' those of all T, and eps' = eta^2 eps, this is the mean
    over states of

        (scale / sqrt(v' + eps') - 1 / sqrt(v + eps))^2 v + scale^2 (m' - m)^2 / (v' + eps').
    """
    units = activation(F.linear(states, head.weight, head.bias))
    old = head.weight.shape[0]
    new = copies * old + extra.weight.shape[0]
    eta = (copies * old / new) ** 0.5
    mean = units.mean(1)
    variance = units.var(1, correction=0)
    square = units.square().mean(1)
    target = (variance + eps).rsqrt()
    weight = extra.weight.clone()
    bias = extra.bias.clone()
    scale = torch.ones((), dtype=states.dtype)
    # if the head has no bias, neither do its extra units
    parts = (weight, bias, scale) if head.bias.any() else (weight, scale)
    free = [tensor.requires_grad_() for tensor in parts]
    optimizer = torch.optim.LBFGS(free, max_iter=50, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        extra_units = activation(F.linear(states, weight, bias))
        new_mean = eta**2 * mean + extra_units.sum(1) / new
        new_square = eta**2 * square + extra_units.square().sum(1) / new
        new_variance = new_square - new_mean.square()
        gain = scale * (new_variance + eta**2 * eps).rsqrt()
        gain_error = (gain - target).square() * variance
        mean_error = (gain * (new_mean - mean)).square()
        loss = (gain_error + mean_error).mean()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return Affine(weight.detach(), bias.detach()), scale.item() / eta


def silence_copies(
    layers: Iterable[Layer[Affine]], copies: Sequence[bool], post_norm: bool
) -> Iterator[Layer[Affine]]:
    """The layers, with copies changed so that they add nothing to the residual stream.

    A post-LN copy that adds nothing still normalises twice. A LayerNorm without gain and bias keeps
    a vector that is already normalised, up to its epsilon. So gain and bias are removed from the
    last LayerNorm of the layer before, and from the copy's first LayerNorm. The copy's second
    LayerNorm gets gain and bias of the layer before. Linear maps that read a LayerNorm without gain
    and bias take the removed ones into their weights.
    """
    # the last LayerNorm of the layer before, as if no copy came after it
    last_norm: Affine | None = None
    next_copies = [*copies[1:], False]
    for layer, is_copy, copy_follows in zip(layers, copies, next_copies, strict=True):
        attention = layer.attention
        ffn = layer.ffn
        if is_copy:
            _silence(attention.output, attention.output_norm)
            _silence(ffn.down, ffn.output_norm)
        if is_copy and post_norm and last_norm and attention.norm and ffn.norm:
            attention.query = _absorb(last_norm, attention.query)
            attention.key = _absorb(last_norm, attention.key)
            attention.value = _absorb(last_norm, attention.value)
            ffn.up = _absorb(attention.norm, ffn.up)
            attention.norm = _make_identity(attention.norm)
            ffn.norm = last_norm
        last_norm = ffn.norm
        if copy_follows and post_norm and ffn.norm:
            ffn.norm = _make_identity(ffn.norm)
        yield layer


def _silence(linear: Affine, norm: Affine | None) -> None:
    """Make a map's output zero, or the output of the norm after it, if there is one.

    A norm whose input is zero would divide the gradient by the root of its epsilon. So the norm's
    gain becomes zero, and the map keeps its weights. Units that are already zero keep their gain,
    because they learn from their weights.
    """
    if norm is None:
        linear.weight.zero_()
        linear.bias.zero_()
    else:
        is_written = linear.weight.any(1) | linear.bias.bool()
        norm.weight[is_written] = 0


def _make_identity(norm: Affine) -> Affine:
    return Affine(torch.ones_like(norm.weight), torch.zeros_like(norm.bias))


def _absorb(norm: Affine, linear: Affine) -> Affine:
    weight = linear.weight * norm.weight
    bias = linear.bias + linear.weight @ norm.bias
    return Affine(weight, bias)


@dataclass(eq=False)
class Padding(Width):
    """Padding with silent units, for RMSNorm.

    Attributes:
        tied: whether decoder and embedding are one matrix. If not, the decoder reads the new units,
            so that their gradient does not have to come from the layers.
    """

    tied: bool

    def __post_init__(self) -> None:
        self.extra = self.new - self.old
        self.eta = (self.old / self.new) ** 0.5
        self.variance = self.eta**2

    def widen_layer(self, layer: Layer[Place]) -> tuple[Layer[Affine], list[int]]:
        wide, heads = super().widen_layer(layer)
        attention = wide.attention
        old_outputs = (layer.attention.query.shape[0], layer.attention.key.shape[0])
        linears = (attention.query, attention.key)
        norms = (attention.query_norm, attention.key_norm)
        for outputs, linear, norm in zip(old_outputs, linears, norms, strict=True):
            if norm is None:
                continue
            if self.heads.normed_together:  # new heads read only new units, so they are zero
                linear.weight[outputs:, : self.old] = 0
                linear.bias[outputs:] = 0
                norm.weight *= self.eta
            else:  # the norm ignores the factor, which makes up for its smaller epsilon
                linear.weight *= self.eta
                linear.bias *= self.eta
        return wide, heads

    def widen_table(self, table: Affine, norm: Affine | None) -> Affine:
        weight = _pad(table.weight, len(table.weight), self.new)
        return Affine(weight, table.bias)

    def widen_decoder(self, decoder: Affine, norm: Affine | None) -> Affine:
        if self.tied:
            return self.widen_table(decoder, norm)
        return Affine(self._extend(decoder.weight), decoder.bias)

    def widen_norm(self, norm: Affine) -> Affine:
        """The wide norm, in which new units have the mean gain.

        They are zero, so the gain does not matter yet. But a gain of zero would stop their
        gradient.
        """
        mean_gain = norm.weight.mean().expand(self.extra)
        gain = torch.cat([norm.weight, mean_gain])
        return Affine(self.eta * gain, _pad(norm.bias, self.new))

    widen_last_norm = widen_norm

    def widen_reading(self, linear: Affine, outputs: Tensor) -> Affine:
        weight = linear.weight.index_select(0, outputs)
        return Affine(self._extend(weight), linear.bias[outputs])

    def widen_writing(self, linear: Affine, inputs: Tensor) -> Affine:
        weight = _pad(linear.weight, self.new, len(inputs))
        return Affine(weight, _pad(linear.bias, self.new))

    def _extend(self, weight: Tensor) -> Tensor:
        """Weights (out, T): the given ones (out, S), then random ones of the same deviation."""
        extra = torch.randn(len(weight), self.extra, generator=self.generator, dtype=weight.dtype)
        return torch.cat([weight, extra * weight.std()], 1)


def _pad(tensor: Tensor, *shape: int) -> Tensor:
    """Zeros of a shape, with the tensor in the first corner."""
    wide = tensor.new_zeros(shape)
    corner = tuple(slice(size) for size in tensor.shape)
    wide[corner] = tensor
    return wide
