"""Whether eager raises where a call is made: it is asked, with small tensors of the same types.

What a kernel refuses is written down nowhere but in the kernel.  So a call is made once, while the
graph is compiled, and once more without what is doubtful in it.  Where eager raises the first time
and not the second, the graph is left to eager.  To be wrong about it costs speed, no more.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_map

_MOST = 3  # elements along a dimension of the small tensors
# What they hold: ones may be places beyond the end, zeros divisors, only the last has an inverse.
_CONTENTS = ("ones", "zeros", "diagonal")
Given = tuple[tuple[Any, ...], Mapping[str, Any]]


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
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            grads = torch.set_grad_enabled(records)
            with grads, torch._C._DisableAutocast(), unset_fake_temporarily():
                return any(
                    _raises(node, given, content) and not _raises(node, plain, content)
                    for content in _CONTENTS
                )
    except _Unknown:
        return False


def _raises(node: fx.Node, given: Given, content: str) -> bool:
    args, kwargs = tree_map(partial(_small, content=content, made={}), given)
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


def _small(value: object, content: str, made: dict[object, torch.Tensor]) -> object:
    """Return what stands for an argument; what lies in one place is one tensor here, too."""
    if not isinstance(value, fx.Node):
        return value
    known = value.meta.get("example_value")
    if isinstance(known, torch.Tensor):
        plain = known.layout is torch.strided and known.device.type == "cpu"
        if not plain or known.is_quantized:
            raise _Unknown
        place = _place(known)
        if place not in made:
            made[place] = _filled(known, content)
        return made[place]
    if isinstance(known, (torch.SymInt, torch.SymFloat)):
        known = known.node.hint  # a dimension, where every number is symbolic
    if isinstance(known, (bool, int, float)):
        return known
    raise _Unknown


def _place(known: torch.Tensor) -> object:
    start = known.untyped_storage()._cdata, str(known.storage_offset())
    return *start, known.dtype, str(known.shape), str(known.stride())


def _filled(known: torch.Tensor, content: str) -> torch.Tensor:
    shape = [min(size, _MOST) if isinstance(size, int) else _MOST for size in known.shape]
    made = torch.full(shape, float(content == "ones"))
    if content == "diagonal" and len(shape) > 1:
        made.diagonal(dim1=-2, dim2=-1).fill_(1)
    made = made.to(known.dtype)
    if not (known.requires_grad and torch.is_grad_enabled()):
        return made
    made.requires_grad_()
    return made if known.is_leaf else made.clone()


__all__ = ["Given", "raises_for"]
