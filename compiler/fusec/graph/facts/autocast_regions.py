"""Where in a captured graph autocast may convert operands."""

from __future__ import annotations

import torch
from torch import fx


def converting(graph: fx.Graph) -> frozenset[fx.Node]:
    """Return the nodes that are called where autocast is on for any device.

    It is as where the graph is captured, until a block begins (``_enter_autocast``), which may
    switch it off as well, and again where that ends.
    """
    on = {"": torch._C._is_any_autocast_enabled()}
    for device in ("cpu", "cuda"):
        on[device] = torch.is_autocast_enabled(device)
    # Of a device that is none of these it is not known where it is switched off.
    on[""] = on[""] and not (on["cpu"] or on["cuda"])
    before: dict[fx.Node, dict[str, bool]] = {}
    found = set()
    for node in graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name == "_enter_autocast":
            before[node] = dict(on)
            on[str(node.args[0])] = bool(node.args[2])
        elif name == "_exit_autocast" and node.args[0] in before:
            on = before[node.args[0]]
        elif any(on.values()):
            found.add(node)
    return frozenset(found)


__all__ = ["converting"]
