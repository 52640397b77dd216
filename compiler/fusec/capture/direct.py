"""Whether a compiled graph may be called without AOTAutograd's wrappers around it.

The wrappers copy back what the graph updates in place, make outputs views of inputs again, take
tensor subclasses apart, switch autograd and autocast off round operators of ATen. Where
AOTAutograd's own record of the graph says that there is nothing of this to do, the call goes past
them.
"""

from __future__ import annotations

from typing import Any

import torch

_PLAIN_OUTPUTS = ("non_alias", "unsafe_view_alias")
_MUTATIONS = (
    "mutates_data",
    "mutates_metadata",
    "mutates_storage_metadata",
    "mutation_inductor_storage_resize",
)


def wrappers_do_nothing(inputs: int, *, calls_operators: bool) -> bool:
    """Whether the graph that AOTAutograd compiles right now can be called by itself.

    Args:
        inputs: How many inputs the graph has that TorchDynamo captured.
        calls_operators: Whether ATen's operators run in it, and not only kernels.
    """
    context = torch._guards.TracingContext.try_get()
    record = getattr(context, "fw_metadata", None)
    try:
        return record is not None and _is_plain(record, inputs, calls_operators)
    except AttributeError:
        return False  # another release of torch keeps another record


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
        if each.dynamic_dims:
            return False  # the wrapper marks them for the graphs that take them
    if calls_operators and torch._C._is_any_autocast_enabled():
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


__all__ = ["wrappers_do_nothing"]
