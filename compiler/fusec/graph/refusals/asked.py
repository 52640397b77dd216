"""Whether eager raises where a call is made: it is asked, with small tensors of the same types.

What a kernel refuses is written down nowhere but in the kernel.  So a call is made once, while the
graph is compiled, and once more without what is doubtful in it.  Where eager raises the first time
and not the second, the graph is left to eager.  To be wrong about it costs speed, no more.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_map

from fusec.devices import CPU
from fusec.graph.refusals.shapes import known_sizes, traced_value
from fusec.random import generators_kept

_MOST = 3  # elements along a dimension of the small tensors
_WHOLE = 4096  # elements of those that are as large as the call's own, where only such sizes fit
# What they hold: ones may be places beyond the end, zeros divisors, only the last has an inverse.
_CONTENTS = ("ones", "zeros", "diagonal")
# Types that every kernel knows: nobody is asked of them.
_USUAL = tuple({dtype} for dtype in (torch.float32, torch.float64))
_MODULES = frozenset(
    f"torch{name}" for name in ("", "._C._nn", "._C._linalg", "._C._special", ".functional")
) | {"torch.nn.functional", "torch._C._fft", "_operator"}
Given = tuple[tuple[Any, ...], Mapping[str, Any]]

_answers: dict[tuple[object, str], bool] = {}  # of earlier calls: layers repeat
_MOST_ANSWERS = 4096


class _Unknown(Exception):
    """There is no small tensor that stands for an argument."""


def raises_for(node: fx.Node, plain: Given, records: bool = False) -> bool:
    """Whether a call raises in eager, and does not with other arguments.

    Args:
        node: The call.
        plain: Its arguments and keyword arguments without what is doubtful.
        records: Whether autograd is to see the call, of tensors that need gradients as they do.
    """
    given = node.args, node.kwargs
    try:
        with _aside(records=records):
            return any(
                _raises(node, given, content) and not _raises(node, plain, content)
                for content in _CONTENTS
            )
    except _Unknown:
        return False


def refuses_types(node: fx.Node) -> bool:
    """Whether a call raises in eager for the types of its tensors, whatever they hold.

    Kernels of ATen know some types and some mixtures of types; what tracing makes of a call knows
    all of them. A call is asked of that raises for its types and not for usual ones.
    """
    given = map(traced_value, node.all_input_nodes)
    found = [value for value in given if isinstance(value, torch.Tensor)]
    if not found or {value.dtype for value in found} in _USUAL or not _computes(node):
        return False
    if any(is_functorch_wrapped_tensor(each) or each.device.type != CPU for each in found):
        return False  # a part of a batch, or of a GPU, which nobody is to wait for
    asked = node.target, repr(tree_map(_described, (node.args, node.kwargs)))
    answer = _answers.get(asked)
    if answer is None:
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        answer = _answers[asked] = _refuses_types(node)
    return answer


def _refuses_types(node: fx.Node) -> bool:
    given = node.args, node.kwargs
    try:
        with _aside(records=False):
            for whole in (False, True):
                if not all(_raises(node, given, content, whole=whole) for content in _CONTENTS):
                    return False
                usual = (
                    _raises(node, given, content, convert, whole=whole)
                    for convert in (_usual_of_kind, _float)
                    for content in _CONTENTS
                )
                if not all(usual):
                    return True
    except _Unknown:
        pass
    return False


def _described(value: object) -> object:
    """Return what tells one small argument from another."""
    known = traced_value(value)
    if not isinstance(known, torch.Tensor):
        return known
    return known.dtype, known.layout, known_sizes(known.shape)


def _computes(node: fx.Node) -> bool:
    """Whether a call is a function of torch's or Python's, which does nothing but compute."""
    if node.op == "call_method":
        return True
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target).startswith("aten.")
    where = getattr(target, "__module__", None) or ""
    name = getattr(target, "__name__", "_")
    return where in _MODULES and (not name.startswith("_") or where == "_operator")


def _usual_of_kind(dtype: torch.dtype) -> torch.dtype:
    if dtype == torch.bool or dtype.is_complex:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int64


def _float(dtype: torch.dtype) -> torch.dtype:
    return torch.float32


@contextlib.contextmanager
def _aside(*, records: bool) -> Iterator[None]:
    """Make calls as eager does, and leave no trace of them."""
    with generators_kept(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        grads = torch.set_grad_enabled(records)
        with grads, torch._C._DisableAutocast(), unset_fake_temporarily():
            yield


def _raises(
    node: fx.Node,
    given: Given,
    content: str,
    convert: Callable[[torch.dtype], torch.dtype] | None = None,
    whole: bool = False,
) -> bool:
    small = partial(_small, content=content, made={}, convert=convert, whole=whole)
    args, kwargs = tree_map(small, given)
    call: Any = node.target
    if node.op == "call_method":
        if not isinstance(args[0], torch.Tensor):
            return False
        call, args = getattr(args[0], str(node.target)), args[1:]
    try:
        call(*args, **kwargs)
    except Exception:
        return True
    return False


def _small(
    value: object,
    content: str,
    made: dict[object, torch.Tensor],
    convert: Callable[[torch.dtype], torch.dtype] | None,
    whole: bool,
) -> object:
    """Return what stands for an argument; what lies in one place is one tensor here, too."""
    if not isinstance(value, fx.Node):
        return value
    known = traced_value(value)
    if isinstance(known, torch.Tensor):
        plain = known.layout is torch.strided and known.device.type == CPU
        if not plain or known.is_quantized:
            raise _Unknown
        place = value if is_functorch_wrapped_tensor(known) else _place(known)
        if place not in made:
            dtype = convert(known.dtype) if convert else known.dtype
            made[place] = _filled(known, content, dtype, _shape(known, whole))
        return made[place]
    if isinstance(known, (torch.SymInt, torch.SymFloat)):
        known = known.node.hint  # a dimension, where every number is symbolic
    if isinstance(known, (bool, int, float)):
        return known
    raise _Unknown


def _place(known: torch.Tensor) -> object:
    start = known.untyped_storage()._cdata, str(known.storage_offset())
    return *start, known.dtype, str(known.shape), str(known.stride())


def _shape(known: torch.Tensor, whole: bool) -> list[int]:
    sizes = [_MOST if size is None else size for size in known_sizes(known.shape)]
    if not whole:
        return [min(size, _MOST) for size in sizes]
    if math.prod(sizes) > _WHOLE:
        raise _Unknown
    return sizes


def _filled(
    known: torch.Tensor, content: str, dtype: torch.dtype, shape: list[int]
) -> torch.Tensor:
    made = torch.full(shape, float(content == "ones"))
    if content == "diagonal" and len(shape) > 1:
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    made = made.to(dtype)
    if not (known.requires_grad and torch.is_grad_enabled()):
        return made
    made.requires_grad_()
    return made if known.is_leaf else made.clone()


__all__ = ["Given", "raises_for", "refuses_types"]
