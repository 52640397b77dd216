"""Products of groups of rows, each with a matrix of its own, without waiting for their numbers.

Mixtures of experts sort their rows by expert.  In half precision ATen multiplies such groups by
itself; in float32 the libraries loop over the experts, and to know where each begins the host waits
until the GPU has come that far, in every layer.  On a GPU a kernel takes the loop's place, which
reads that for itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusec.devices import GPU, is_gpu
from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import default_target

Tensor = torch.Tensor
DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})
MOST = 2**31  # elements of a matrix, whose places kernels have in 32 bits
# The loop over experts of ``transformers``, by name: whoever does not have it needs none of this.
LOOP, BACKWARD = "transformers::grouped_mm_fallback", "transformers::grouped_mm_fallback_backward"
OWN_LOOP, OWN_BACKWARD = "fusec::expert_loop", "fusec::expert_loop_backward"  # expert_loops.py


def multiply_groups(module: fx.GraphModule) -> int:
    """Put products of groups in the place of loops over them; return how many.

    Args:
        module: Functional, with fake tensors in ``meta["val"]``; changed in place.
    """
    instead = {
        **dict.fromkeys((LOOP, OWN_LOOP), torch.ops.fusec.grouped_product.default),
        **dict.fromkeys((BACKWARD, OWN_BACKWARD), torch.ops.fusec.grouped_product_backward.default),
    }
    changed = 0
    for node in module.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        target = instead.get(node.target._schema.name)
        if target is None or node.kwargs or not _may_take(node):
            continue
        node.target = target
        changed += 1
    if changed:
        module.recompile()
    return changed


def _may_take(node: fx.Node) -> bool:
    values: list[Any] = [
        each.meta["val"] if isinstance(each, fx.Node) else None for each in node.args
    ]
    if not all(isinstance(each, Tensor) and is_gpu(each.device) for each in values):
        return False
    x, weight, ends, *gradients = values
    dtypes = {each.dtype for each in (x, weight, *gradients)}
    return (
        len(dtypes) == 1
        and len({each.device for each in values}) == 1
        and dtypes <= DTYPES
        and ends.dtype in (torch.int32, torch.int64)
        and (x.dim(), weight.dim(), ends.dim()) == (2, 3, 1)
        and all(isinstance(size, int) for size in (*weight.shape, *weight.stride()))
        and _reach(weight) < MOST
        and _has_kernels()
    )


def _reach(weight: Tensor) -> int:
    """Return how many elements a group's matrix reaches over."""
    pairs = zip(weight.shape[1:], weight.stride()[1:], strict=True)
    return sum((size - 1) * stride for size, stride in pairs)


def _has_kernels() -> bool:
    target = default_target(GPU)
    return isinstance(target, PythonTarget) and target.groups() is not None


# -- the operators --------------------------------------------------------------------------------


def _groups() -> Any:
    target = default_target(GPU)
    assert isinstance(target, PythonTarget)
    return target.groups()


def _product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    found: Tensor = _groups().grouped_rows(x, weight, ends)
    return found


def _product_backward(
    x: Tensor, weight: Tensor, ends: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    groups = _groups()
    of_x = groups.grouped_rows(gradient, weight.mT, ends)
    return of_x, groups.grouped_matrices(x, gradient, ends, weight)


def _product_fake(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


def _product_backward_fake(
    x: Tensor, weight: Tensor, ends: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight)


_LIBRARY = torch.library.Library("fusec", "FRAGMENT")
_LIBRARY.define("grouped_product(Tensor x, Tensor weight, Tensor ends) -> Tensor")
_LIBRARY.define(
    "grouped_product_backward(Tensor x, Tensor weight, Tensor ends, Tensor gradient)"
    " -> (Tensor, Tensor)"
)
for _name, _run, _fake in (
    ("grouped_product", _product, _product_fake),
    ("grouped_product_backward", _product_backward, _product_backward_fake),
):
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _fake, "Meta")

__all__ = ["multiply_groups"]
