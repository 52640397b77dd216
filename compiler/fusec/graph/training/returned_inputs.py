"""Outputs of a graph without gradients that AOTAutograd hands out as the inputs that they are."""

from __future__ import annotations

import torch
from torch import fx

_UNKNOWN = (AttributeError, LookupError, TypeError, ValueError)


def drop_returned_inputs(module: fx.GraphModule) -> int:
    """Let a graph return nothing where AOTAutograd hands out an input itself; return how often.

    It is asked while AOTAutograd compiles the graph.  What the graph would return there is never
    looked at, and an input that it updates is then one result of a kernel, not two.

    Args:
        module: Changed in place.
    """
    record = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    (output,) = module.graph.find_nodes(op="output")
    dropped = 0
    try:
        first = len(record.mutated_inp_runtime_indices)  # type: ignore[union-attr]
        infos = record.output_info  # type: ignore[union-attr]
        values = list(output.args[0])
        if len(values) != first + len(infos):
            return 0
        for position, each in enumerate(infos):
            if each.output_type.name == "is_input" and values[first + position] is not None:
                values[first + position] = None
                dropped += 1
    except _UNKNOWN:
        return 0
    output.args = (tuple(values),)
    module.graph.eliminate_dead_code()
    module.recompile()
    return dropped


__all__ = ["drop_returned_inputs"]
