"""What a random program may say: each function writes one statement over the names in scope.

A statement need not be valid: the program that is being written runs it, and takes another one
where torch refuses it.  Values stay tame (bounded functions, denominators away from 0), so that a
difference is a mistake and not the amplified rounding of one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Scope:
    """The names that a statement may use.

    Attributes:
        rng: Where choices come from.
        values: Every name's value at this point.
        inputs: The names of the inputs.
        mutates: Whether statements may update tensors in place.
    """

    rng: random.Random
    values: dict[str, torch.Tensor]
    inputs: tuple[str, ...]
    mutates: bool

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """Return a name whose value fits, later ones more often; IndexError if there is none."""
        names = [name for name, value in self.values.items() if fits(value)]
        return names[max(self.rng.randrange(len(names)), self.rng.randrange(len(names)))]

    def float(self, rank: int | None = None) -> str:
        """Return a name of a floating-point tensor, of a rank if that matters."""
        return self.pick(lambda t: t.is_floating_point() and rank in (None, t.dim()))

    def dim(self, name: str) -> int:
        """Return a dimension of a tensor, counted from either end."""
        rank = self.values[name].dim()
        return self.rng.randrange(-rank, rank)

    def dims(self, name: str) -> list[int]:
        """Return some of the dimensions of a tensor."""
        rank = self.values[name].dim()
        return sorted(self.rng.sample(range(rank), self.rng.randint(1, rank)))

    def number(self) -> str:
        """Return a number to compute with."""
        return self.rng.choice(["0.5", "-1.25", "2", "1", "0.1", "-3", "3.0"])

    def partner(self, name: str) -> str:
        """Return another tensor that broadcasts with one, or a number."""
        shape = self.values[name].shape

        def broadcasts(other: torch.Tensor) -> bool:
            pairs = zip(reversed(shape), reversed(other.shape), strict=False)
            return all(a == b or 1 in (a, b) for a, b in pairs)

        return self.pick(broadcasts)


def elementwise(s: Scope) -> str:
    """A function of each element."""
    x = s.float()
    return s.rng.choice(
        [
            f"torch.tanh({x})",
            f"torch.sigmoid({x})",
            f"F.relu({x})",
            f"F.gelu({x})",
            f'F.gelu({x}, approximate="tanh")',
            f"F.silu({x})",
            f"torch.sin({x})",
            f"torch.exp(-{x}.abs())",
            f"torch.log1p({x}.abs())",
            f"torch.sqrt({x}.abs() + 0.1)",
            f"torch.rsqrt({x} * {x} + 1)",
            f"{x}.square().clamp(max=9)",
            f"1 / ({x}.abs() + 0.5)",
            f"torch.erf({x})",
            f"{x}.clamp(-1, 1)",
            f"F.softplus({x})",
            f"F.leaky_relu({x}, 0.1)",
            f"-{x}",
            f"{x}.abs()",
            f"F.hardtanh({x})",
            f"torch.where({x} > 0, {x}, {s.number()})",
            f"{x}.pow(2).clamp(max=4)",
        ]
    )


def arithmetic(s: Scope) -> str:
    """Two tensors, or a tensor and a number."""
    x = s.float()
    y = s.rng.choice([s.partner(x), s.partner(x), s.number()])
    return s.rng.choice(
        [
            f"{x} + {y}",
            f"{x} - {y}",
            f"{x} * {y}",
            f"{y} - {x}",
            f"torch.maximum({x}, {x} * {y})",
            f"torch.add({x}, {y}, alpha=0.5)",
            f"{x} / ({x} * {x} + 1)",
            f"torch.where({x} < {y}, {x}, {y})",
            f"torch.lerp({x}, {x} * {y}, 0.25)",
            f"torch.addcmul({x}, {x}, {x}, value=0.1)",
        ]
    )


def integers(s: Scope) -> str:
    """Whole numbers and truth values."""
    x = s.float()
    i = s.pick(lambda t: not t.is_floating_point()) if s.rng.random() < 0.5 else x
    return s.rng.choice(
        [
            f"({x} > {s.number()})",
            f"({x} * 4).to(torch.int32)",
            f"({x} * 8).to(torch.int64)",
            f"{i}.to(torch.float32)",
            f"({i} != 0)",
            f"torch.arange({s.rng.randint(1, 9)})",
            f"{i} * 2 + 1",
            f"{i} % 5",
            f"{i} // 3",
            f"~({i} > 1)",
            f"({x}.abs() * 2).to(torch.uint8)",
        ]
    )


def conversion(s: Scope) -> str:
    """Another dtype."""
    x = s.pick()
    kinds = ["torch.float32"] * 3 + ["torch.float16", "torch.bfloat16", "torch.float64"]
    return f"{x}.to({s.rng.choice(kinds)})"


def reduction(s: Scope) -> str:
    """Fewer elements, or as many, of whole rows."""
    x = s.float()
    dim, keep = s.dim(x), s.rng.choice(["", ", keepdim=True"])
    dims = s.dims(x)
    scan = f"({x} * 0.1)"
    return s.rng.choice(
        [
            f"{x}.sum({dim}{keep})",
            f"{x}.mean({dim}{keep})",
            f"{x}.sum({dims}{keep})",
            f"{x}.mean({dims}{keep})",
            f"{x}.amax({dims}{keep})",
            f"{x}.amin({dim}{keep})",
            f"{x}.var({dim}, correction=0{keep})",
            f"torch.var_mean({x}, {dims}, correction=0{keep})[{s.rng.randrange(2)}]",
            f"{x}.std({dims}, correction=0{keep}).clamp(min=0.1)",
            f"torch.softmax({x}, {dim})",
            f"torch.log_softmax({x}, {dim})",
            f"torch.logsumexp({x}, {dim}{keep})",
            f"{scan}.cumsum({dim})",
            f"{x}.clamp(0.9, 1.1).cumprod({dim})",
            f"{x}.argmax({dim}{keep})",
            f"{x}.max({dim}{keep})[0]",
            f"{x}.sum()",
            f"{x}.mean()",
            f"({x} > 0).any({dim})",
            f"torch.linalg.vector_norm({x}, dim={dim}{keep})",
            f"{x}.cummax({dim})[0]",
        ]
    )


def normalization(s: Scope) -> str:
    """Rows, groups or channels brought to mean 0 and variance 1."""
    x = s.float()
    shape = s.values[x].shape
    last = shape[-1]
    options = [
        f"F.layer_norm({x}, ({last},))",
        f"F.rms_norm({x}, ({last},))",
        f"F.normalize({x}, dim={s.dim(x)})",
    ]
    if len(shape) >= 2:
        channels = shape[1]
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        options.append(f"F.group_norm({x}, {s.rng.choice(divisors)})")
        options.append(f"F.batch_norm({x}, None, None, training=True)")
        vectors = [
            n for n, v in s.values.items() if v.shape == (channels,) and v.dtype == FLOATS[0]
        ]
        if vectors and s.values[x].dtype == FLOATS[0]:
            w = s.rng.choice(vectors)
            options.append(f"F.batch_norm({x}, {w}, {w}.abs() + 0.5, {w}, None)")
            free = [n for n in vectors if n in s.inputs]
            if s.mutates and free:
                mean = s.rng.choice(free)  # updated
                options.append(f"F.batch_norm({x}, {mean}, {w}.abs() + 1, training=True)")
    return s.rng.choice(options)


def view(s: Scope) -> str:
    """The same elements, or some of them, otherwise arranged."""
    x = s.pick(lambda t: t.dim() > 0)
    shape = list(s.values[x].shape)
    rank = len(shape)
    dim = s.dim(x)
    size = shape[dim]
    order = s.rng.sample(range(rank), rank)
    start = s.rng.randrange(size + 1)
    step = s.rng.randint(1, 3)
    last = s.rng.randrange(size) if size else 0
    cut = ", ".join([":"] * (dim % rank))
    cut = f"{cut}, " if cut else ""
    return s.rng.choice(
        [
            f"{x}.permute({order})",
            f"{x}.transpose({dim}, {s.dim(x)})",
            f"{x}.reshape(-1)",
            f"{x}.flatten({s.rng.randrange(rank)})",
            f"{x}.reshape({shape[0]}, -1)",
            f"{x}.reshape(-1, {shape[-1]})",
            f"{x}.unsqueeze({dim})",
            f"{x}.squeeze()",
            f"{x}[{cut}{start}:]",
            f"{x}[{cut}:{start}]",
            f"{x}[{cut}::{step}]",
            f"{x}[{cut}{last}]",
            f"{x}.narrow({dim}, 0, {max(size - 1, 0)})",
            f"{x}.select({dim}, {last})",
            f"{x}.unsqueeze({dim}).expand({_expanded(shape, dim)})",
            f"{x}.flip({dim})",
            f"{x}.roll({s.rng.randint(-2, 5)}, {dim})",
            f"{x}.chunk(2, {dim})[{s.rng.randrange(2)}]",
            f"{x}.unfold({dim}, {s.rng.randint(1, 3)}, {step})",
            f"{x}.diagonal(0, {dim}, {s.dim(x)})",
            f"{x}.contiguous()",
            f"{x}.clone()",
            f"{x}.movedim({dim}, {s.dim(x)})",
            f"{x}.tile({s.rng.randint(1, 2)}, {s.rng.randint(1, 2)})",
            f"{x}.repeat_interleave({s.rng.randint(1, 3)}, {dim})",
        ]
    )


def _expanded(shape: Sequence[int], dim: int) -> str:
    sizes = ["-1"] * (len(shape) + 1)
    sizes[dim] = "3"
    return ", ".join(sizes)


def joining(s: Scope) -> str:
    """Several tensors in one, or one with a border."""
    x = s.float()
    y = s.pick(lambda t: t.shape == s.values[x].shape)
    dim = s.dim(x)
    widths = [s.rng.randint(0, 2) for _ in range(2 * min(s.values[x].dim(), 2))]
    return s.rng.choice(
        [
            f"torch.cat([{x}, {y}], {dim})",
            f"torch.cat([{x}, {x} * 2, {y}], {dim})",
            f"torch.stack([{x}, {y}], {dim})",
            f"F.pad({x}, {widths})",
            f"F.pad({x}, {widths}, value=-1.5)",
            f"torch.tril({x})",
            f"torch.triu({x}, 1)",
        ]
    )


def gathering(s: Scope) -> str:
    """Elements at computed places."""
    x = s.float()
    dim = s.dim(x)
    size = s.values[x].shape[dim]
    i = s.pick(lambda t: t.dtype == torch.int64 and t.dim() <= 2)
    places = f"({i} % {size})"
    flat = f"{places}.reshape(-1)"
    rows = f"({i} % {s.values[x].shape[0]})"
    masks = [n for n, v in s.values.items() if v.dtype == torch.bool] or [f"({x} > 0.5)"]
    return s.rng.choice(
        [
            f"{x}.index_select({dim}, {flat})",
            f"{x}[{rows}]",
            f"F.embedding({rows}, {x})",
            f"{x}.masked_fill({s.rng.choice(masks)}, -0.5)",
            f"{x}.masked_fill({x} < 0, 0)",
            f"torch.zeros_like({x}).index_add({dim}, {flat}, {x}.index_select({dim}, {flat}))",
            f"{x}.gather({dim}, ({x}.abs() * 3).to(torch.int64) % {size})",
            f"torch.zeros_like({x}).scatter_add({dim}, ({x}.abs() * 3).long() % {size}, {x})",
            f"{x}.index_put(({rows},), {x}[{rows}] * 2)",
            f"{x}.index_put(({rows},), {x}[{rows}], accumulate=True)",
            f"{x}.take_along_dim({x}.argmax({dim}, keepdim=True), {dim})",
        ]
    )


def product(s: Scope) -> str:
    """Sums of products: matrices, images."""
    x = s.pick(lambda t: t.is_floating_point() and t.dim() >= 2)
    value = s.values[x]
    y = s.pick(
        lambda t: (
            t.dtype == value.dtype and t.dim() == value.dim() and t.shape[-1] == value.shape[-1]
        )
    )
    scale = f"/ {max(value.shape[-1], 1)}"
    options = [f"{x} @ {y}.transpose(-1, -2) {scale}", f"F.linear({x}, {y}) {scale}"]
    if value.dim() == 4:
        options += [
            f"F.max_pool2d({x}, {s.rng.randint(1, 3)}, {s.rng.randint(1, 2)})",
            f"F.avg_pool2d({x}, 2, ceil_mode={s.rng.random() < 0.5})",
            f"F.interpolate({x}, scale_factor=2, mode={s.rng.choice(['nearest', 'bilinear'])!r})",
            f"F.adaptive_avg_pool2d({x}, {s.rng.randint(1, 3)})",
            f"{x}.contiguous(memory_format=torch.channels_last)",
        ]
    return s.rng.choice(options)


def update(s: Scope) -> str:
    """A tensor, a view of one or an input changed in place; a statement of its own."""
    x = s.float()
    y = s.rng.choice([s.partner(x), s.number()])
    value = s.values[x]
    dim = s.dim(x) if value.dim() else 0
    size = value.shape[dim] if value.dim() else 1
    ends = sorted((s.rng.randrange(size + 1), s.rng.choice([0, size, s.rng.randrange(size + 1)])))
    cut = ", ".join([":"] * (dim % max(value.dim(), 1)) + ["{}:{}".format(*ends)])
    memory = value.untyped_storage().data_ptr()
    # Not another view of it: where two overlap, what eager writes hangs on its own order.
    like = s.pick(
        lambda t: (
            t is value
            or (
                (t.shape == value.shape and t.dtype == value.dtype)
                and t.untyped_storage().data_ptr() != memory
            )
        )
    )
    return s.rng.choice(
        [
            f"{x}.add_({y})",
            f"{x}.mul_({y})",
            f"{x}.copy_({x} * 0.5 + {y})",
            f"{x}.clamp_(-2, 2)",
            f"{x}.tanh_()",
            f"{x}.masked_fill_({x} > 1, 0.25)",
            f"{x}[{cut}] = {y}",
            f"{x}[{cut}] = {like}[{cut}]",
            f"{x}.copy_({x}.roll(1, {dim}))",
            f"{x}[{cut}].mul_(0.5)",
            f"{x}[{cut}] += {s.number()}",
            f"{x}.sub_({x}.mean())",
            f"{x}.div_({x}.abs().sum({dim}, keepdim=True) + 1)",
            f"{x}.fill_({s.number()})",
            f"{x}.zero_()",
            f"{x}.lerp_({x} * {y}, 0.5)",
            f"{x}.index_fill_({dim}, torch.arange({min(size, 2)}), 0.75)",
            f"{x}.transpose({dim}, 0).add_(0.125)",
        ]
    )


# How often each kind is tried, beside those of idioms.
KINDS: tuple[tuple[Callable[[Scope], str], int], ...] = (
    (elementwise, 5),
    (arithmetic, 6),
    (integers, 2),
    (conversion, 1),
    (reduction, 5),
    (normalization, 2),
    (view, 6),
    (joining, 2),
    (gathering, 2),
    (product, 2),
    (update, 5),
)

__all__ = ["FLOATS", "KINDS", "Scope", "integers", "update"]
