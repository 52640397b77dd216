"""Adding operators to a graph that has been traced already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch._guards import detect_fake_mode

# What a node that stands for another one takes over: where it comes from, what it is called by.
NOTES = (
    *("stack_trace", "from_node", "nn_module_stack", "fwd_nn_module_stack"),
    *("seq_nr", "partitioner_tag", "recompute"),
)


def caller(graph: fx.Graph, like: fx.Node) -> Callable[..., fx.Node]:
    """Return what adds a call to ``graph``, where its insertion point is.

    The call's fake result is computed from those of its arguments; the notes, the user's line
    among them, are those of ``like``.
    """

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        made = graph.call_function(target, args, kwargs)
        values = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        fake = detect_fake_mode([node.meta["val"] for node in made.all_input_nodes])
        assert fake is not None
        with fake:
            made.meta["val"] = target(*values[0], **values[1])
        made.meta.update({key: like.meta[key] for key in NOTES if key in like.meta})
        return made

    return call


__all__ = ["NOTES", "caller"]
