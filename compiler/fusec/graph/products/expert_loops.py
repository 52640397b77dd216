"""A loop over experts whose gradient is Python becomes one whose gradient is an operator.

``transformers`` has the products of a mixture of experts as an operator, a loop over the experts.
Until 5.17 at least, its gradient is Python that reads how many rows each expert has, which
AOTAutograd cannot trace: a model in training was cut at every layer.  The same loop with a gradient
that is an operator is traced, and on a GPU replaced by kernels (``grouped.py``).
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import fx

Tensor = torch.Tensor
# As ``transformers`` calls them: whoever does not have it needs none of this.
LOOP, GRADIENT = "transformers::grouped_mm_fallback", "transformers::grouped_mm_fallback_backward"


def trace_gradients(module: fx.GraphModule) -> fx.GraphModule:
    """Return a captured graph whose loops over experts have gradients that can be traced.

    Args:
        module: As TorchDynamo captured it; not changed.
    """
    if _exists(GRADIENT) or not any(map(_is_loop, module.graph.nodes)):
        return module
    changed = copy.copy(module)
    changed.graph = copy.deepcopy(module.graph)
    for node in filter(_is_loop, changed.graph.nodes):
        node.target = torch.ops.fusec.expert_loop.default
    changed.recompile()
    return changed


def _exists(name: str) -> bool:
    space, _, operator = name.partition("::")
    return hasattr(getattr(torch.ops, space), operator)


def _is_loop(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.name == LOOP)
    return isinstance(target, torch._ops.OpOverloadPacket) and target._qualified_op_name == LOOP


# -- the operators, with the names that the arguments have there ----------------------------------


def _loop(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    out = input.new_zeros(input.shape[0], weight.shape[2])
    begin = 0
    for matrix, end in zip(weight, offs.tolist(), strict=True):
        if begin != end:
            torch.mm(input[begin:end], matrix, out=out[begin:end])
        begin = end
    return out


def _loop_backward(
    input: Tensor, weight: Tensor, offs: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    of_input, of_weight = torch.zeros_like(input), torch.zeros_like(weight)
    begin = 0
    for number, end in enumerate(offs.tolist()):
        if begin != end:
            rows = slice(begin, end)
            torch.mm(gradient[rows], weight[number].T, out=of_input[rows])
            torch.mm(input[rows].T, gradient[rows], out=of_weight[number])
        begin = end
    return of_input, of_weight


def _loop_fake(input: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return input.new_empty(input.shape[0], weight.shape[2])


def _loop_backward_fake(
    input: Tensor, weight: Tensor, offs: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    of_input, of_weight = torch.ops.fusec.expert_loop_backward(*context.saved_tensors, gradient)
    return of_input, of_weight, None


_LIBRARY = torch.library.Library("fusec", "FRAGMENT")
_LIBRARY.define("expert_loop(Tensor input, Tensor weight, Tensor offs) -> Tensor")
_LIBRARY.define(
    "expert_loop_backward(Tensor input, Tensor weight, Tensor offs, Tensor gradient)"
    " -> (Tensor, Tensor)"
)
for _name, _run, _fake in (
    ("expert_loop", _loop, _loop_fake),
    ("expert_loop_backward", _loop_backward, _loop_backward_fake),
):
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, _fake, "Meta")
torch.library.register_autograd("fusec::expert_loop", _gradients, setup_context=_keep, lib=_LIBRARY)

__all__ = ["trace_gradients"]
