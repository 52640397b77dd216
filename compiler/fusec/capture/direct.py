"""Whether a compiled graph may be called without AOTAutograd's wrappers around it.

The wrappers copy back what the graph updates in place, make outputs views of inputs again, take
tensor subclasses apart, switch autograd and autocast off round operators of ATen. Where
AOTAutograd's own record of the graph says that there is nothing of this to do, the call goes past
them.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import torch

_PLAIN_OUTPUTS = ("non_alias", "unsafe_view_alias")
_MUTATIONS = (
    "mutates_data",
    "mutates_metadata",
    "mutates_storage_metadata",
    "mutation_inductor_storage_resize",
)


# What is put on outputs: which output, under which name, which dimensions have varying sizes.
Marks = tuple[tuple[int, str, frozenset[int]], ...]


def marks_instead_of_wrappers(
    inputs: int, *, calls_operators: bool, autocast: bool
) -> Marks | None:
    """Return what to do in place of AOTAutograd's wrappers; None if they are needed.

    It is asked while AOTAutograd compiles the graph.

    Args:
        inputs: How many inputs the graph has that TorchDynamo captured.
        calls_operators: Whether ATen's operators run in it, and not only kernels.
        autocast: Whether autocast is on where the graph is called.  Not to be asked here:
            AOTAutograd switches it off while it compiles.

    Returns:
        Marks to put on outputs: for TorchDynamo, where they become inputs of another graph.
    """
    context = torch._guards.TracingContext.try_get()
    record = getattr(context, "fw_metadata", None)
    try:
        if record is None or not _is_plain(record, inputs, calls_operators):
            return None
        if calls_operators and autocast:
            return None  # the operators have had their inputs converted; not a second time
        dims = [each.dynamic_dims for each in record.output_info]
        if not any(dims):
            return ()
        name = _name_of_marks()
        return tuple((i, name, frozenset(each)) for i, each in enumerate(dims) if each)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None  # another release of torch keeps another record


@functools.cache
def _name_of_marks() -> str:
    """Return the attribute that AOTAutograd's wrapper sets: it has been called several things.

    Raises:
        LookupError: The wrapper of this release is not known.
    """
    from torch._functorch._aot_autograd import runtime_wrappers

    marked: Any = SimpleNamespace()
    runtime_wrappers.mark_dynamo_propagated_dynamic_indices(marked, {0})
    ((name, dims),) = vars(marked).items()
    if dims != {0}:
        raise LookupError(name)
    return str(name)


def _is_plain(record: Any, inputs: int, calls_operators: bool) -> bool:
    if len(record.input_info) != inputs:
        return False
    for each in record.input_info:
        if any(getattr(each, name) for name in _MUTATIONS):
            return False
        # Kernels record nothing for autograd; operators would.
        if calls_operators and each.requires_grad:
            return False
    for each in record.output_info:
        if each.output_type.name not in _PLAIN_OUTPUTS or each.requires_grad:
            return False
    return bool(
        record.grad_enabled_mutation is None
        and not record.tokens
        and not record.num_intermediate_bases
        and not record.is_rng_op_functionalized
        and not record.num_graphsafe_rng_states
        and all(type(each).__name__ == "PlainTensorMeta" for each in record.subclass_inp_meta)
        and all(
            type(each).__name__ == "PlainTensorMeta" for each in record.subclass_fw_graph_out_meta
        )
    )


__all__ = ["Marks", "marks_instead_of_wrappers"]
