"""What eager's kernels on a CPU refuse, by operator and kind of type, so that we do as well.

Decompositions and kernels of ours would compute it: an average of integers, a rounded bool.  An
operator of this table is left whole and not lowered; ATen, called with it, raises its own error.
The table was read off eager with the samples of torch's operator database; ``make ops
ARGS="--databases errors"`` holds every operator and type against eager.

Only what a user (or a formula of a gradient) calls is refused.  What a decomposition is made of may
meet types that eager never gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_KINDS = {
    "bools": (torch.bool,),
    "integers": (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    "short integers": (torch.uint8, torch.int8, torch.int16, torch.int32),
    "halves": (torch.float16, torch.bfloat16),
    "floats": (torch.float32, torch.float64),
    "complex": (torch.complex64, torch.complex128),
    "bytes of floats": (torch.float8_e4m3fn, torch.float8_e5m2),
}
# Few operators have kernels for these, and none of ours computes in them.  What is taken apart into
# copies would pass.
_RARE = frozenset((torch.complex32, torch.uint16, torch.uint32, torch.uint64))
# Overloads, ``default`` left out.
_TABLE: dict[tuple[str, ...], str] = {
    ("bools", "integers", "complex"): """
        _adaptive_avg_pool2d _adaptive_avg_pool3d _native_batch_norm_legit
        _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training
        _native_batch_norm_legit_functional _batch_norm_with_update_functional _prelu_kernel
        _softmax_backward_data adaptive_max_pool2d adaptive_max_pool3d binary_cross_entropy
        binary_cross_entropy_with_logits celu elu frac gelu glu grid_sampler_2d hardshrink
        hardsigmoid hardswish huber_loss hypot leaky_relu log_sigmoid_forward logaddexp2
        max_unpool2d max_unpool3d mish mse_loss native_batch_norm native_group_norm
        native_layer_norm nextafter nll_loss_forward round.decimals smooth_l1_loss softplus
        softshrink
    """,
    ("bools", "integers"): """
        addcdiv dist lerp.Scalar lerp.Tensor linalg_vector_norm logaddexp logcumsumexp mean
        mean.dim silu soft_margin_loss std.correction std_mean.correction var.correction
        var_mean.correction
    """,
    ("bools", "complex"): """
        argmax argmin ceil floor floor_divide fmod.Scalar fmod.Tensor hardtanh
        max_pool2d_with_indices max_pool3d_with_indices mvlgamma relu remainder.Scalar
        remainder.Tensor round threshold trunc
    """,
    ("bools",): """
        abs addbmm addcmul addmv baddbmm bmm convolution div.Tensor_mode dot index_reduce
        linalg_cross mv neg pow.Tensor_Tensor
        reflection_pad1d replication_pad1d replication_pad2d rsub.Scalar rsub.Tensor sub.Tensor
        trace vdot
    """,
    ("halves",): "trace",
    ("integers",): "im2col max_pool2d_with_indices_backward",
    ("complex",): """
        _safe_softmax amax amin aminmax atan2 clamp.Tensor clamp_max.Tensor clamp_min.Tensor
        copysign.Tensor deg2rad digamma erf erfc erfinv fmax fmin ge.Tensor gt.Tensor heaviside i0
        isneginf isposinf lgamma logit max max.dim maximum min min.dim minimum nansum polygamma
        rad2deg sign signbit special_entr special_i0e special_i1 special_i1e special_xlog1py
        xlogy.Tensor
    """,
    ("halves", "complex"): """
        special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
        special_erfcx special_log_ndtr special_modified_bessel_i0 special_modified_bessel_i1
        special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri
        special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1
        special_spherical_bessel_j0 special_zeta
    """,
    ("floats", "halves", "complex"): """
        bitwise_and.Tensor bitwise_not bitwise_or.Tensor bitwise_xor.Tensor
    """,
    ("floats", "halves", "bools", "complex"): """
        bitwise_left_shift.Tensor bitwise_right_shift.Tensor gcd lcm
    """,
    ("bools", "integers", "bytes of floats"): "_softmax _log_softmax",
    ("bytes of floats",): """
        channel_shuffle count_nonzero count_nonzero.dim_IntList dot im2col index_copy
        index_fill.int_Scalar index_fill.int_Tensor isin.Tensor_Tensor isneginf isposinf
        max_unpool2d max_unpool3d nan_to_num pixel_shuffle pixel_unshuffle
        reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d take
    """,
    ("bools", "short integers", "complex"): "avg_pool2d",
    ("halves", "bools", "short integers", "complex"): "avg_pool3d",
}
_REFUSED: dict[str, frozenset[torch.dtype]] = {}
for _kinds, _names in _TABLE.items():
    for _each in _names.split():
        _types = frozenset(dtype for kind in _kinds for dtype in _KINDS[kind])
        _REFUSED[_each] = _REFUSED.get(_each, frozenset()) | _types
# Their first tensor decides, whatever is beside it; other operators promote what differs.
_BY_FIRST = frozenset(
    "max_unpool2d max_unpool3d nll_loss_forward native_batch_norm "
    "max_pool2d_with_indices_backward take index_copy index_fill.int_Scalar index_fill.int_Tensor "
    "_native_batch_norm_legit _native_batch_norm_legit.no_stats "
    "_native_batch_norm_legit_functional _batch_norm_with_update_functional index_reduce "
    "_native_batch_norm_legit_no_training native_layer_norm native_group_norm".split()
)
# Any of their tensors decides.
_BY_ANY = frozenset(("sub.Tensor", "rsub.Tensor", "rsub.Scalar"))

_MOVES = frozenset(
    (torch.ops.aten._to_copy, torch.ops.aten.clone, torch.ops.aten.copy, torch.ops.aten.view_copy)
)

Kind = tuple[torch.dtype, str]
Rule = Callable[..., Any]


def refused(target: object, tensors: Sequence[Kind], dtype: object = None) -> torch.dtype | None:
    """Return the type for which eager has no kernel of an operator, or None.

    Args:
        target: The operator, as the user called it.
        tensors: The type of each tensor that it is given, and where it is.
        dtype: What it is asked to compute in, if so.
    """
    name = _name(target)
    types = _REFUSED.get(name)
    if types is None or dtype is not None or not tensors:
        return None
    if name in _BY_ANY:
        tensors = sorted(tensors, key=lambda kind: kind[0] not in types)[:1]
    found, device = tensors[0]
    if found not in types or device != "cpu":
        return None
    alike = all(each == found for each, _ in tensors)
    return found if alike or name in _BY_FIRST else None


def refusing(operator: object, rule: Rule) -> Rule:
    """Return a decomposition that leaves whole what eager refuses, and what it refuses itself."""
    if _moves_only(operator):
        return rule

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if torch.fx.traceback.current_meta.get("original_aten") is not operator:
            return rule(*args, **kwargs)  # part of another's
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        kinds = [(tensor.dtype, tensor.device.type) for tensor in given]
        dtype = kwargs.get("dtype")
        if refused(operator, kinds, dtype) is not None:
            return NotImplemented
        if dtype in _RARE or (kinds and kinds[0][0] in _RARE and kinds[0][1] == "cpu"):
            return NotImplemented
        try:
            return rule(*args, **kwargs)
        except (TypeError, ValueError):
            return NotImplemented  # torch's formula is stricter than eager's kernel, or as strict

    return decompose


def _moves_only(operator: object) -> bool:
    """Whether an operator is a view, a copy or a conversion: eager has those for every type."""
    if not isinstance(operator, torch._ops.OpOverload):
        return True  # a higher-order operator
    return operator.is_view or operator.overloadpacket in _MOVES


def _name(target: object) -> str:
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return ""
    name = target._schema.name.removeprefix("aten::")
    return f"{name}.{target._schema.overload_name}" if target._schema.overload_name else name


__all__ = ["refused", "refusing"]
