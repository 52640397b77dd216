"""Operators of a user's that have no rule for their gradient: eager's is that of what they call.

Where nothing is registered for an operator under autograd, eager runs its kernel with autograd on:
the gradients of ``torch.cat`` in a kernel are those of ``torch.cat``, and torch warns at the first
one.  AOTAutograd knows of no gradient there: an input that such an operator alone reads gets none,
or zeros, without a word.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from fusec.capture.gradients.result_modes import may_write, tensors_of
from fusec.graph.simplify.inference_regions import walk

# Any of these is a rule: one of its own, or that of what it is taken apart into.
_RULES = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")
# Those of torch itself that have none compute in a library, out of autograd's sight.
_OF_TORCH = frozenset(
    "_c10d_functional _c10d_functional_autograd _dtensor _inductor_test _native _quantized aten "
    "c10d debugprims higher_order inductor inductor_prims mkl mkldnn mkldnn_prepacked onednn prim "
    "prims profiler quantization quantized sparse static_runtime symm_mem".split()
)


def lacks_gradient_rules(module: fx.GraphModule, records: bool) -> str:
    """Return why a captured graph has to run in eager for an operator without a gradient's rule.

    Args:
        module: As TorchDynamo hands it over.
        records: Whether autograd is on where it is called, which is guarded.
    """
    for node in _recorded(module, records):
        name = _operator(node)
        if name and _flows_through(node) and not _has_rule(name):
            return (
                f"{name} has no gradient registered: eager gives it that of what its kernel "
                "calls, AOTAutograd none (torch.library.register_autograd gives it one)"
            )
    return ""


def _recorded(module: fx.GraphModule, records: bool) -> Iterator[fx.Node]:
    """Yield what is called where autograd is on, in graphs within a graph as well.

    What a function of autograd's that a user wrote calls is left out: nothing is recorded there.
    """
    for node, _, on in walk(module.graph, records):
        if not on or node.op != "call_function" or "autograd_function_apply" in str(node.target):
            continue
        yield node
        for given in node.all_input_nodes:
            if given.op == "get_attr":
                inner = getattr(module, str(given.target), None)
                if isinstance(inner, fx.GraphModule):
                    yield from _recorded(inner, on)


def _operator(node: fx.Node) -> str:
    """Return the name of the user's operator that a node calls, or an empty string."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        name = target.name()
    elif isinstance(target, torch._ops.OpOverloadPacket):
        name = target._qualified_op_name
    else:
        return ""
    return "" if name.partition("::")[0] in _OF_TORCH else name


def _flows_through(node: fx.Node) -> bool:
    """Whether an operator takes what wants a gradient, and gives or updates what may have one."""
    given = [value for each in node.all_input_nodes for value in tensors_of(each)]
    if not any(value.requires_grad for value in given):
        return False
    made = [*tensors_of(node), *(given if _updates(node) else ())]
    return any(value.is_floating_point() or value.is_complex() for value in made)


def _updates(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return bool(target._schema.is_mutable)
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(getattr(target, each)._schema.is_mutable for each in target.overloads())
    return may_write(node)


def _has_rule(name: str) -> bool:
    """Whether every form of an operator has a rule under autograd."""
    forms = [name]
    if "." not in name:
        space, _, base = name.partition("::")
        packet = getattr(getattr(torch.ops, space), base)
        forms = [getattr(packet, each).name() for each in packet.overloads()]
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return all(any(has(form, key) for key in _RULES) for form in forms)


__all__ = ["lacks_gradient_rules"]
