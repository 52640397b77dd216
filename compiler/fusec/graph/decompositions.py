"""The decomposition table: torch's own, less what has a better lowering of its own."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import _decomp
from torch._decomp import get_decompositions
from torch._decomp.decompositions import pw_cast_for_opmath
from torch._prims_common import (
    compute_elementwise_output_strides,
    make_channels_last_strides_for,
    make_contiguous_strides_for,
    suggest_memory_format,
)

from fusec.devices import CPU
from fusec.graph.facts.called import remembering
from fusec.graph.facts.rolled import format_of_rolled
from fusec.graph.operand_order import ordering_rules
from fusec.graph.pieces import reflection_pad, replication_pad, rolled
from fusec.graph.refusals.kernels import refusing
from fusec.graph.refusals.values import value_checking_rules
from fusec.graph.sampling import grid_sampler_2d
from fusec.graph.simplify.foreach import foreach_decompositions
from fusec.ir.numbers import held, whole

aten = torch.ops.aten

# Lowered as a whole: decomposing would hide the row structure, or round in between.
_KEPT = (
    aten.var,
    aten.var_mean,
    aten.std,
    aten.std_mean,
    aten.logsumexp,
    aten.silu,
    aten.clamp_min,
    aten.clamp_max,
    aten.masked_fill,
    aten.floor_divide,
    aten.tril,
    aten.triu,
    aten.bernoulli,
    aten.baddbmm,
    aten.scaled_dot_product_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
    aten.zeros,
    aten.ones,
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.unbind,
    aten.split,
    aten.new_zeros,
    aten.new_ones,
    aten.select_scatter,  # torch's own promotes, where eager keeps the first tensor's type
)

# Not core, but best taken apart.
_ADDED = (
    aten.native_layer_norm_backward,
    aten.native_group_norm_backward,
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten._native_batch_norm_legit,
    aten._native_batch_norm_legit_functional,
    aten._native_batch_norm_legit_no_training,
    aten.std.correction,
    aten.std_mean.correction,
    aten.mse_loss,
    aten.addmv,
    aten.linspace,
    aten.permute_copy,
    aten.unbind_copy,
    aten.as_strided_copy,
    aten.narrow_copy,
    aten.dist,
    aten._batch_norm_with_update_functional,
    aten.batch_norm_backward,
    aten.triu_indices,
    aten.tril_indices,
)


@lru_cache(maxsize=1)
def decomposition_table() -> dict[torch._ops.OperatorBase, Callable[..., object]]:
    """Return the operators that are decomposed during tracing.

    Those that are composed of others for every device (matmul, say) are none of them: AOTAutograd
    takes them apart by itself, and listing them takes longer than all the rest of the table.
    """
    listed = getattr(_decomp, "_core_aten_decompositions_post_autograd", None)
    table = dict((listed or _decomp.core_aten_decompositions)())
    table.update(get_decompositions([op for op in _ADDED if not _is_kept(op)]))
    table.update(foreach_decompositions())
    table.update(_AMENDED)
    table.update(value_checking_rules())
    table = {op: rule for op, rule in table.items() if not _is_kept(op)}
    table.update(ordering_rules(table))
    return {op: remembering(op, refusing(op, rule)) for op, rule in table.items()}


def _bucketize(
    x: torch.Tensor,
    boundaries: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
) -> object:
    """Torch's own, less its wrong dtype where there are no boundaries; on a CPU ours."""
    if boundaries.ndim != 1:
        return NotImplemented  # ATen's raises
    if boundaries.numel() == 0:
        return torch.zeros_like(x, dtype=torch.int32 if out_int32 else torch.int64)
    if x.device.type == CPU and isinstance(boundaries.shape[0], int):
        return _search(x, boundaries, torch.int32 if out_int32 else torch.int64, right)
    rule = get_decompositions([aten.bucketize.Tensor])[aten.bucketize.Tensor]
    return rule(x, boundaries, out_int32=out_int32, right=right)


def _search(
    x: torch.Tensor, boundaries: torch.Tensor, dtype: torch.dtype, right: bool
) -> torch.Tensor:
    """ATen's binary search, step by step, so that boundaries out of order are searched alike.

    The range is moved by multiplications with 0 or 1: selects become branches, which a processor
    guesses wrong half of the time.
    """
    count = boundaries.shape[0]
    low = torch.zeros_like(x, dtype=torch.int32)
    high = torch.full_like(x, count, dtype=torch.int32)
    for _ in range(count.bit_length()):
        middle = low + ((high - low) >> 1)
        # Not in brackets: a tensor without dimensions would be taken for a number there.
        boundary = aten.index.Tensor(boundaries, [middle.clamp(0, count - 1)])
        beyond = boundary > x if right else boundary >= x
        searching = low < high
        up = (searching & ~beyond).to(torch.int32)
        down = (searching & beyond).to(torch.int32)
        low = low + up * (middle + 1 - low)
        high = high - down * (high - middle)
    return low.to(dtype)


def _logits_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> object:
    """Torch's own of 2.13; in 2.11 it has the widest of all types, where eager has the target's."""
    operator = aten.binary_cross_entropy_with_logits.default
    loss = get_decompositions([operator])[operator](x, target, weight, pos_weight, 0)
    loss = loss.to(target.dtype)
    return {0: lambda: loss, 1: loss.mean, 2: loss.sum}[reduction]()


def _embedding_dense_backward(
    grad: torch.Tensor, indices: torch.Tensor, rows: int, padding: int, scale_by_frequency: bool
) -> object:
    """Torch's own, but that in half precision it is lowered as a whole.

    Not so where gradients are divided by how often an index occurs.
    """
    if grad.dtype in (torch.float16, torch.bfloat16) and not scale_by_frequency:
        return NotImplemented
    operator = aten.embedding_dense_backward.default
    rule = get_decompositions([operator])[operator]
    return rule(grad, indices, rows, padding, scale_by_frequency)


def _frac(x: torch.Tensor) -> torch.Tensor:
    """Torch's own of 2.13; in 2.11 that of -0.0 is -0.0, where eager has 0.0."""
    return x - x.trunc()


def _hardsigmoid_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Torch's own, with the factor that eager takes: a float32 whatever the dtype."""
    sixth = struct.unpack("f", struct.pack("f", 1 / 6))[0]
    return torch.where((x > -3.0) & (x < 3.0), grad * sixth, 0.0)


def _threshold(x: torch.Tensor, threshold: float, value: float) -> object:
    """Torch's own, which computes integers in float32 if a number of them has a fraction.

    Eager makes both numbers integers of the tensor's type first: -2.5 is -2.
    """
    if x.dtype.is_floating_point or x.dtype == torch.bool or x.is_complex():
        rule = get_decompositions([aten.threshold.default])[aten.threshold.default]
        return rule(x, threshold, value)
    return torch.where(x <= whole(threshold, x.dtype), whole(value, x.dtype), x)


def _threshold_backward(grad: torch.Tensor, x: torch.Tensor, threshold: float) -> torch.Tensor:
    """Torch's own, which rounds the threshold to half precision; eager's kernel does not."""
    return torch.where(_comparable(x, threshold) <= threshold, 0, grad)


def _hardtanh_backward(
    grad: torch.Tensor, x: torch.Tensor, low: float, high: float
) -> torch.Tensor:
    """Torch's own of 2.13; that of 2.11 rounds the limits to half precision."""
    compared = _comparable(x, low, high)
    return torch.where((compared <= low) | (compared >= high), 0.0, grad)


def _comparable(x: torch.Tensor, *limits: float) -> torch.Tensor:
    """Return x in a type in which a comparison with each of the limits rounds none of them."""
    if x.dtype not in (torch.float16, torch.bfloat16):
        return x
    return x if all(_is_exact(n, x.dtype) for n in limits) else x.to(torch.float32)


def _is_exact(number: object, dtype: torch.dtype) -> bool:
    """Whether a floating type has room for all digits of a number; unknown ones may have many."""
    if not isinstance(number, (float, int)):
        return False
    kind = torch.finfo(dtype)
    if number == 0 or math.isinf(number):
        return True
    digits = math.frexp(number)[0] * 2 / kind.eps
    return kind.tiny <= abs(number) <= kind.max and digits.is_integer()


def _index_fill(operator: torch._ops.OpOverload) -> Callable[..., object]:
    """Return torch's own, which in 2.11 updates a tensor in place to lay the result out as x.

    It copies to an index, where none is counted from the end; here some may be.
    """
    rule = get_decompositions([operator])[operator]

    def amended(x: torch.Tensor, dim: int, index: torch.Tensor, value: object) -> object:
        index = torch.where(index < 0, index + (x.shape[dim] if x.ndim else 1), index)
        if x.ndim == 0 or x.stride() == make_contiguous_strides_for(x.shape):
            return rule(x, dim, index, value)
        order = list(range(x.ndim))  # from the outermost to the innermost in memory
        strides = compute_elementwise_output_strides(x)
        order.sort(key=lambda n: (strides[n], x.shape[n]), reverse=True)
        packed = x.permute(order).clone(memory_format=torch.contiguous_format)
        filled = rule(packed, order.index(dim % x.ndim), index, value)
        return filled.permute([order.index(n) for n in range(x.ndim)])

    return amended


def _im2col(x: torch.Tensor, *sizes: object) -> torch.Tensor:
    """Torch's own, laid out in order as eager has it; torch's keeps views of what is permuted."""
    columns = get_decompositions([aten.im2col.default])[aten.im2col.default](x, *sizes)
    assert isinstance(columns, torch.Tensor)
    return columns.contiguous()


def _packed(operator: torch._ops.OpOverload) -> Callable[..., object]:
    """Return torch's own, laid out as eager has it on a CPU: without gaps and in order."""
    rule = get_decompositions([operator])[operator]
    return lambda x, *rest, **more: rule(
        x.contiguous() if x.device.type == "cpu" else x, *rest, **more
    )


def _nan_to_num(x: torch.Tensor, *numbers: float | None) -> object:
    """Torch's own, which has none for complex tensors; eager does."""
    if x.is_complex():
        return NotImplemented
    rule = get_decompositions([aten.nan_to_num.default])[aten.nan_to_num.default]
    return rule(x, *numbers)


def _roll(x: torch.Tensor, shifts: list[int], dims: list[int] | tuple[int, ...] = ()) -> object:
    """Torch's own, laid out as eager has it: torch's forgets where the channels are innermost."""
    rule = get_decompositions([aten.roll.default])[aten.roll.default]
    if not dims and len(shifts) == 1:
        flat = x.flatten()
        result = rolled(flat, shifts, [0])
        return (rule(flat, shifts, [0]) if result is None else result).view(x.shape)
    result = rolled(x, shifts, dims)
    if result is None:
        result = rule(x, shifts, dims)
    return result.contiguous(memory_format=format_of_rolled(x, shifts, dims))


def _channel_shuffle(x: torch.Tensor, groups: int) -> object:
    """Torch's own, laid out as eager has it: on a CPU the channels stay innermost."""
    rule = get_decompositions([aten.channel_shuffle.default])[aten.channel_shuffle.default]
    shuffled = rule(x, groups)
    if x.device.type != "cpu":
        return shuffled
    return shuffled.contiguous(memory_format=suggest_memory_format(x))


def _rrelu(
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> object:
    """Of evaluation, laid out as eager has it on a CPU; random slopes are ATen's."""
    if training:
        return NotImplemented
    x = x.contiguous() if x.device.type == "cpu" else x
    return aten.leaky_relu(x, (lower + upper) / 2), noise


def _rrelu_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    noise: torch.Tensor,
    lower: float,
    upper: float,
    training: bool,
    self_is_result: bool,
) -> object:
    """Torch's own, laid out as ATen has it: as the slopes are."""
    if training and upper - lower > 1e-6:  # else ATen takes the one slope
        return noise * grad
    return aten.leaky_relu_backward(grad, x, (lower + upper) / 2, self_is_result)


@pw_cast_for_opmath
def _silu_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Torch's own of 2.13; in 2.11 the sigmoid is the reciprocal of a sum, which costs more."""
    weight = torch.sigmoid(x)
    return grad * weight * (1 + x * (1 - weight))


def _logarithm_with_number(operator: torch._ops.OpOverload) -> Callable[..., object]:
    """Return torch's own, which refuses numbers that the tensor's type makes an infinity of."""
    rule = get_decompositions([operator])[operator]

    def amended(x: object, y: object) -> object:
        tensor = x if isinstance(x, torch.Tensor) else y
        assert isinstance(tensor, torch.Tensor)
        dtype = tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()
        return rule(
            *(held(each, dtype) if isinstance(each, (float, int)) else each for each in (x, y))
        )

    return amended


def _vector_norm(
    x: torch.Tensor,
    order: float = 2,
    dim: list[int] | None = None,
    *rest: object,
    **options: object,
) -> object:
    """Torch's own; in 2.11 that keeps a dimension of one element that is counted from the end."""
    rule = get_decompositions([aten.linalg_vector_norm.default])[aten.linalg_vector_norm.default]
    if dim is not None and x.ndim:
        dim = [each % x.ndim for each in dim]
    return rule(x, order, dim, *rest, **options)


def _view_copy(x: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """As eager has it: of a tensor that no view of that shape exists of, too."""
    return x.reshape(shape).clone(memory_format=torch.contiguous_format)


def _with_exact_statistics(operator: torch._ops.OpOverload) -> Callable[..., object]:
    """Return torch's own of a batch norm, less a rounding of the statistics that backward reads.

    On a CPU it is laid out as eager has it: in order, or with the channels innermost.

    Eager keeps these in the type of weights or running statistics, if that is wider than the
    input's (under autocast, say); torch's own rounds them to the input's on the CPU.
    """
    rule = get_decompositions([operator])[operator]

    def amended(x: torch.Tensor, weight: torch.Tensor | None, *rest: object) -> object:
        if x.device.type != "cpu":
            return rule(x, weight, *rest)
        memory_format = _format_of_norm(x)
        x = x.contiguous(memory_format=memory_format)
        given = [weight, *rest]
        wide = any(isinstance(each, torch.Tensor) and each.dtype != x.dtype for each in given)
        wide = wide and x.dtype in (torch.float16, torch.bfloat16)
        output, *statistics = rule(x.to(torch.float32) if wide else x, weight, *rest)
        output = output.to(x.dtype) if wide else output
        in_order = memory_format == torch.contiguous_format
        strides = make_contiguous_strides_for if in_order else make_channels_last_strides_for
        if _has_single(x) and output.stride() != strides(output.shape):
            # `contiguous` gave back x itself, whatever the strides of its single elements.
            output = output.clone(memory_format=memory_format)
        return (output, *statistics)

    return amended


def _has_single(x: torch.Tensor) -> bool:
    """Whether a dimension has one element: no other is contiguous whatever its stride."""
    return any(isinstance(size, int) and size == 1 for size in x.shape)


def _format_of_norm(x: torch.Tensor) -> torch.memory_format:
    """Return how ATen lays out what a batch norm on a CPU returns.

    What is contiguous in both ways, as dimensions of one element may be, is taken to be in order.
    """
    if _has_single(x):
        if x.is_contiguous():
            return torch.contiguous_format
        innermost = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.ndim)
        if innermost is not None and x.is_contiguous(memory_format=innermost):
            return innermost
    return suggest_memory_format(x)


_BATCH_NORMS = (
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_functional.default,
    aten._batch_norm_with_update_functional.default,
)

_LOGARITHMS = (
    aten.xlogy.Scalar_Other,
    aten.xlogy.Scalar_Self,
    aten.special_xlog1py.other_scalar,
    aten.special_xlog1py.self_scalar,
)

_AMENDED: dict[torch._ops.OperatorBase, Callable[..., object]] = {
    aten.binary_cross_entropy_with_logits.default: _logits_loss,
    aten.bucketize.Tensor: _bucketize,
    aten.embedding_dense_backward.default: _embedding_dense_backward,
    aten.frac.default: _frac,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
    # torch's own only notes that elements are negated, where kernels read memory.
    aten._neg_view.default: aten.neg.default,
    aten.im2col.default: _im2col,
    aten.index_fill.int_Scalar: _index_fill(aten.index_fill.int_Scalar),
    aten.index_fill.int_Tensor: _index_fill(aten.index_fill.int_Tensor),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.log_sigmoid_forward.default: _packed(aten.log_sigmoid_forward.default),
    aten.nan_to_num.default: _nan_to_num,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.grid_sampler_2d.default: grid_sampler_2d,
    aten.reflection_pad1d.default: reflection_pad(aten.reflection_pad1d.default),
    aten.reflection_pad2d.default: reflection_pad(aten.reflection_pad2d.default),
    aten.reflection_pad3d.default: reflection_pad(aten.reflection_pad3d.default),
    aten.replication_pad1d.default: replication_pad(aten.replication_pad1d.default),
    aten.replication_pad2d.default: replication_pad(aten.replication_pad2d.default),
    aten.replication_pad3d.default: replication_pad(aten.replication_pad3d.default),
    aten.roll.default: _roll,
    aten.rrelu_with_noise_functional.default: _rrelu,
    aten.rrelu_with_noise_backward.default: _rrelu_backward,
    aten.silu_backward.default: _silu_backward,
    aten.threshold.default: _threshold,
    aten.threshold_backward.default: _threshold_backward,
    aten.view_copy.default: _view_copy,
    **{operator: _with_exact_statistics(operator) for operator in _BATCH_NORMS},
    **{operator: _logarithm_with_number(operator) for operator in _LOGARITHMS},
}


def _is_kept(op: object) -> bool:
    packet = getattr(op, "overloadpacket", op)
    overload = getattr(op, "_overloadname", "default")
    if packet in (aten.var, aten.var_mean, aten.std, aten.std_mean):
        return overload == "correction"  # the others decompose into this overload
    return packet in _KEPT
