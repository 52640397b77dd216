"""Cross-entropy of a linear layer's results, some rows at a time.

The logits of a language model are its largest tensor by far, written to be read twice and thrown
away.  Here only a part's are ever there: its product, its losses, and, where gradients are wanted,
what its logits' gradients add to those of the rows and of the weight, in the memory of the logits
themselves.  All three products happen in forward, none of them twice; backward scales the
gradients by what it is given, in their own place where the graph is not kept.

A weight's gradient is then a sum over parts, each rounded to its type: one more rounding a part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import default_target

Tensor = torch.Tensor
Gradients = tuple[Tensor, Tensor, Tensor]
ALIGNED = 128  # rows of a part: whole tiles of a product
LINE = 64  # elements that a row of logits begins at a multiple of
_ROWS, _WEIGHT, _BIAS = 1, 2, 4  # whose gradients are wanted


def rows_of_part(rows: int, columns: int, itemsize: int, budget: int) -> int:
    """Return how many rows' logits are there at once: as many as a budget of bytes has room for.

    Parts are of one size, but for the last; one row is the least.
    """
    most = max(budget // max(columns * itemsize, 1), 1)
    if most >= rows:
        return max(rows, 1)
    if most > ALIGNED:
        most = most // ALIGNED * ALIGNED
    parts = -(-rows // most)
    even = -(-rows // parts)
    aligned = -(-even // ALIGNED) * ALIGNED
    return aligned if aligned <= most else most


def pieces_of(columns: int) -> tuple[slice, ...]:
    """Return the columns in pieces: whole lines, and the few that are left.

    BLAS takes some four times as long for products whose rows begin anywhere, or whose numbers of
    columns no vector divides, however their rows begin.
    """
    whole = columns // LINE * LINE
    found = slice(0, whole), slice(whole, columns)
    return tuple(each for each in found if each.start < each.stop) or found[:1]


# -- what happens to the logits of a part ---------------------------------------------------------


def losses_of_part(
    logits: Tensor, picked: Tensor, kept: Tensor, smoothing: float, columns: int
) -> tuple[Tensor, Tensor]:
    """Return a row's loss each, in float32, zero for rows that are left out; and log-sum-exps.

    Args:
        logits: Of the part's rows, and of columns that there are not.
        picked: Of them those of the targets.
        kept: Which rows count.
        smoothing: How much of the weight all columns share.
        columns: How many there are.
    """
    x = logits[:, :columns].float()
    total = x.logsumexp(1)
    loss = total - picked.float()
    if smoothing:
        loss = (1 - smoothing) * loss + smoothing * (total - x.mean(1))
    return torch.where(kept, loss, 0.0), total


def gradients_of_part(
    logits: Tensor,
    total: Tensor,
    target: Tensor,
    kept: Tensor,
    smoothing: float,
    share: Tensor,
    columns: int,
) -> None:
    """Put gradients in the logits' place.

    Args:
        logits: Of the part's rows, and of columns that there are not; overwritten.
        total: Their log-sum-exps.
        target: The columns that are right; any where rows are left out.
        kept: Which rows count.
        smoothing: How much of the weight all columns share.
        share: Times what the gradients are.
        columns: How many there are.
    """
    hot = torch.arange(logits.shape[1], device=logits.device)[None, :] == target[:, None]
    weight = torch.where(hot, 1.0 - smoothing, 0.0)
    if smoothing:
        weight = weight + smoothing / columns
    gradient = (logits.float() - total[:, None]).exp() - weight
    logits.copy_(torch.where(kept[:, None], gradient * share, 0.0))


_compiled: dict[Callable[..., Any], Callable[..., Any]] = {
    each: each for each in (losses_of_part, gradients_of_part)
}


def compile_parts(compiler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Have what happens to a part's logits compiled; it is one pass over them then for each."""
    for each in _compiled:
        _compiled[each] = compiler(each)


# -- the operators --------------------------------------------------------------------------------


def _in_parts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignored: int,
    smoothing: float,
    mean: bool,
    budget: int,
    wanted: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, columns = x.shape[0], weight.shape[0]
    kept = target != ignored
    place = torch.where(kept, target, 0)
    if not x.is_cuda and rows and not bool(((place >= 0) & (place < columns)).all()):
        raise IndexError(f"a target is out of bounds: there are {columns} classes")
    count = kept.sum() if mean else torch.ones((), device=x.device)
    share = 1.0 / count.float()
    losses = x.new_empty(rows, dtype=torch.float32)
    of_x, of_weight, of_bias = _room(x, weight, wanted)
    step = rows_of_part(rows, columns, x.element_size(), budget)
    pieces = pieces_of(columns)
    wide = -(-columns // LINE) * LINE
    room = x.new_empty(min(step, rows), wide)
    room[:, columns:] = 0  # contiguous, so that kernels overwrite it in place
    for first in range(0, rows, step):
        part = slice(first, min(first + step, rows))
        padded = room[: part.stop - first]
        logits = padded[:, :columns]
        for piece in pieces:
            if bias is None:
                torch.mm(x[part], weight[piece].t(), out=logits[:, piece])
            else:
                torch.addmm(bias[piece], x[part], weight[piece].t(), out=logits[:, piece])
        right, there = place[part], kept[part]
        picked = logits.gather(1, right[:, None])[:, 0]
        losses[part], total = _compiled[losses_of_part](padded, picked, there, smoothing, columns)
        if wanted:
            _compiled[gradients_of_part](padded, total, right, there, smoothing, share, columns)
        # the few last columns come first: what they add is small, and so is its rounding
        for number, piece in enumerate(reversed(pieces)):
            if wanted & _ROWS:
                _add(of_x[part], logits[:, piece], weight[piece], begin=number == 0)
            if wanted & _WEIGHT:
                _add(of_weight[piece], logits[:, piece].t(), x[part], begin=first == 0)
        if wanted & _BIAS:
            of_bias += logits.sum(0, dtype=torch.float32)
    if not rows and wanted & _WEIGHT:
        of_weight.zero_()
    loss = losses.sum() * share
    of_bias = of_bias if bias is None else of_bias.to(bias.dtype)
    _own(of_x, of_weight, of_bias)
    return loss, of_x, of_weight, of_bias


def _add(total: Tensor, left: Tensor, right: Tensor, *, begin: bool) -> None:
    """Add a product to a sum, or begin it."""
    if begin:
        torch.mm(left, right, out=total)
    else:
        total.addmm_(left, right)


def _room(x: Tensor, weight: Tensor, wanted: int) -> Gradients:
    """Return where gradients go; nothing where none are wanted."""
    none = (0,)
    return (
        x.new_empty(x.shape if wanted & _ROWS else none),
        x.new_empty(weight.shape if wanted & _WEIGHT else none, dtype=weight.dtype),
        x.new_zeros(weight.shape[:1] if wanted & _BIAS else none, dtype=torch.float32),
    )


def _in_parts_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    of_x, of_weight, of_bias = _room(x, weight, given[-1])
    return (
        x.new_empty((), dtype=torch.float32),
        of_x,
        of_weight,
        of_bias if bias is None else of_bias.to(bias.dtype),
    )


def _scaled(kept: Tensor, scale: Tensor) -> Tensor:
    """Return a gradient times a number: in its own place where nobody can ask for it again.

    A graph's program may run more than once on the same tensors, as when a plan of it is made: what
    a tensor was multiplied by already is noted with it.
    """
    # of one dimension, so that it is multiplied by as float32, in one pass
    wanted = scale.float().reshape(1)
    before = getattr(kept, _FACTOR, None)
    factor = wanted if before is None else torch.where(wanted == before, 1.0, wanted / before)
    if not _is_last_use(kept):
        return torch.mul(kept, factor, out=torch.empty_like(kept))
    multiply_in_place(kept, factor)
    setattr(kept, _FACTOR, wanted.clone())
    return kept.detach()


# Attributes of a tensor: whose memory nobody but backward is given, and what it was multiplied by.
_OWN, _FACTOR = "_fusec_own", "_fusec_factor"


def _own(*kept: Tensor) -> None:
    """Note that what forward keeps is backward's alone, unless somebody is given what is saved."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        for each in kept:
            setattr(each, _OWN, True)


def _is_last_use(kept: Tensor) -> bool:
    """Whether the backward that runs now is the last to read a tensor, and alone in knowing it."""
    return (
        hasattr(kept, _OWN)
        and kept.is_contiguous()
        and torch._C._current_graph_task_id() != -1
        and not torch._C._autograd._get_current_graph_task_keep_graph()
        and not (kept.is_cuda and torch.cuda.is_current_stream_capturing())
        and _holders(kept) == _holders(torch.empty(1, device="cpu"))
    )


def _holders(tensor: Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


def multiply_in_place(x: Tensor, factor: Tensor) -> None:
    """Multiply by a number in the memory of the device; by one it takes no time there.

    Args:
        x: Contiguous; overwritten.
        factor: One float32.
    """
    target = default_target(x.device.type)
    if not (isinstance(target, PythonTarget) and target.multiply_in_place(x, factor)):
        torch.mul(x, factor, out=x)


_LIBRARY = torch.library.Library("fusec", "FRAGMENT")
_LIBRARY.define(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, SymInt ignored,"
    " float smoothing, bool mean, int budget, int wanted) -> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.impl("linear_cross_entropy", _in_parts, "CompositeExplicitAutograd")
_LIBRARY.impl("linear_cross_entropy", _in_parts_fake, "Meta")
_LIBRARY.define("scaled_gradient(Tensor kept, Tensor scale) -> Tensor")
_LIBRARY.impl("scaled_gradient", _scaled, "CompositeExplicitAutograd")
_LIBRARY.impl("scaled_gradient", lambda kept, *_: torch.empty_like(kept), "Meta")


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *given: Any) -> Tensor:
        needed = zip((_ROWS, _WEIGHT, _BIAS), ctx.needs_input_grad, strict=False)
        wanted = sum(bit for bit, needs in needed if needs)
        loss, *gradients = torch.ops.fusec.linear_cross_entropy.default(
            x, weight, bias, *given, wanted
        )
        ctx.wanted = wanted
        ctx.save_for_backward(*gradients)
        found: Tensor = loss
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = zip((_ROWS, _WEIGHT, _BIAS), ctx.saved_tensors, strict=True)
        scaled = torch.ops.fusec.scaled_gradient.default
        results = [scaled(kept, gradient) if ctx.wanted & bit else None for bit, kept in found]
        return (*results, None, None, None, None, None)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    *,
    ignored: int,
    smoothing: float,
    mean: bool,
    wide: bool,
    budget: int,
) -> Tensor:
    """Return the cross-entropy of ``x @ weight.t() + bias``, whose logits are never whole.

    Args:
        x: Rows by inputs.
        weight: Columns by inputs.
        bias: A number a column; None for none.
        target: The right column of each row, int64.
        ignored: The target of rows that do not count.
        smoothing: How much of the weight all columns share.
        mean: Whether the losses' mean is returned, or their sum.
        wide: Whether logits are taken for float32, as which the loss is returned, too.
        budget: Bytes that logits may take at a time.
    """
    device = x.device.type
    narrow = x.dtype
    if torch.is_autocast_enabled(device):
        narrow, wide = torch.get_autocast_dtype(device), True
        x, weight = x.to(narrow), weight.to(narrow)
        bias = None if bias is None else bias.to(narrow)
    given = (target, ignored, smoothing, mean, budget)
    with torch.autocast(device, enabled=False):  # a GPU's may convert what a CPU's does not
        loss = _LinearCrossEntropy.apply(x, weight, bias, *given)  # type: ignore[no-untyped-call]
    found: Tensor = loss if wide else loss.to(narrow)
    return found


__all__ = ["compile_parts", "linear_cross_entropy", "rows_of_part"]
