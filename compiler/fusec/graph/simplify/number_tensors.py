"""Numbers that torch makes tensors of keep their digits.

Where a function computes a Python float from an integer that changes (``n ** 0.5``), torch puts
operators on tensors in place of Python's: a ``scalar_tensor`` of the integer, which is float32 as
no type is named, that is then converted to float64.  Above 2^24 it has lost digits by then.
"""

from __future__ import annotations

import torch
from torch import fx

_MADE = torch.ops.aten.scalar_tensor.default
_CONVERTED = torch.ops.prims.convert_element_type.default


def keep_digits(module: fx.GraphModule) -> int:
    """Make tensors of integers in the float64 that they are wanted in; return of how many.

    What the user calls ``scalar_tensor`` is rounded as in eager: that node says what it is of.

    Args:
        module: A functionalized graph.
    """
    changed = 0
    for node in module.graph.find_nodes(op="call_function", target=_MADE):
        number = node.args[0]
        if node.kwargs or "original_aten" in node.meta or not isinstance(number, fx.Node):
            continue
        users = list(node.users)
        wide = all(each.target is _CONVERTED and each.args[1] == torch.float64 for each in users)
        if not (users and wide and isinstance(number.meta.get("val"), torch.SymInt)):
            continue
        node.kwargs = {"dtype": torch.float64}
        node.meta["val"] = users[0].meta["val"]
        for each in users:
            each.replace_all_uses_with(node)
            module.graph.erase_node(each)
        changed += 1
    return changed


__all__ = ["keep_digits"]
