"""Gradients of what a graph returns and goes on with, asked for behind the break that ends it.

``h = a.exp(); y = h * 2`` is one graph, a graph break follows, then ``h.register_hook(...)``,
``h.retain_grad()`` or ``torch.autograd.grad(..., h)``.  To AOTAutograd both are results of one
function of autograd's, and what flows from ``y`` to ``h`` stays within its backward graph: the hook
does not see it, and no error says so.  In every backend the gradients are silently others than
eager's.  What stands behind the break is known while the graph is compiled.

A result that keeps its gradient and is then updated ends the process, or is an internal error of
torch's (2.11 and 2.13), if it is not the first result of its function of autograd's: what keeps it
is moved to the node that updates, and is looked for under the place that the tensor has there.
Each operator of eager's has a node of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from fusec.capture.gradients.behind_breaks import behind_the_break, called_in, ends_at_a_break
from fusec.capture.gradients.result_modes import UnknownHistory, history, results_of

_ASKS = frozenset(["register_hook", "retain_grad", "register_multi_grad_hook"])
# Of CPython's binary operators: those that update, "+=" to "^=" (Include/opcode.h); 3.14 has
# subscripts behind them.
_IN_PLACE = range(13, 26)
_DEPTH = 3  # how far functions are followed that are called behind the break


def misses_gradients(module: fx.GraphModule) -> str:
    """Return why a captured graph has to run in eager for what is asked of its results later."""
    if not ends_at_a_break(module):
        return ""
    of_another, several = _is_of_another(module), _has_several(module)
    if not of_another and not several:
        return ""
    asked = _asked_later()
    if several and asked == "retain_grad" and _updates_later():
        return (
            "retain_grad stands behind the graph break that ends it, and an update, which autograd "
            "cannot do to a result of several: put it in front of the break, or mend the break"
        )
    if not of_another:
        return ""
    return asked and (
        f"{asked} stands behind the graph break that ends it, and would miss what flows from "
        "one result to another: put it in front of the break, or mend the break"
    )


def _is_of_another(module: fx.GraphModule) -> bool:
    """Whether one result of a graph is computed from another one, with a gradient."""
    try:
        made_by = {history(value) for value in results_of(module).values() if value.requires_grad}
    except UnknownHistory:
        return True
    made_by.discard(None)
    waiting = [f for each in made_by for f, _ in each.next_functions]
    seen: set[Any] = set()
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        if function in made_by:
            return True
        seen.add(function)
        waiting += [f for f, _ in function.next_functions]
    return False


def _has_several(module: fx.GraphModule) -> bool:
    """Whether several results of a graph want gradients."""
    return sum(value.requires_grad for value in results_of(module).values()) > 1


def _updates_later() -> bool:
    """Whether something is updated in place where TorchDynamo goes on, as far as names tell."""
    behind = behind_the_break()
    return behind is not None and any(map(_may_update, behind.instructions))


def _may_update(instruction: Any) -> bool:
    name = instruction.argval
    if isinstance(name, str) and name.endswith("_") and not name.endswith("__"):
        return True
    if instruction.opname == "BINARY_OP":
        return instruction.arg in _IN_PLACE
    return bool(instruction.opname == "STORE_SUBSCR")


def _asked_later() -> str:
    """Return the name of what asks for gradients of values where TorchDynamo goes on, or ""."""
    behind = behind_the_break()
    if behind is None:
        return ""
    given = [*(each.argval for each in behind.instructions), *behind.within]
    return _asked_in(given, behind.space, behind.owner, _DEPTH)


def _asked_in(given: Iterable[Any], space: dict[str, Any], owner: object, depth: int) -> str:
    """Return the name of what asks for gradients of values, or "".

    Args:
        given: Names and constants of instructions.
        space: What is global there.
        owner: The module whose method it is, if that is known.
        depth: How far functions are followed.
    """
    given = list(given)
    names = [each for each in given if isinstance(each, str)]
    for name in names:
        if name in _ASKS:
            return name
    if "grad" in names and ("autograd" in names or space.get("grad") is torch.autograd.grad):
        return "torch.autograd.grad"
    if "backward" in names and any(isinstance(e, tuple) and "inputs" in e for e in given):
        return "backward(inputs=...)"
    if depth:
        for code, its_space in called_in(given, space, owner):
            inner = (*code.co_names, *code.co_consts)
            if asked := _asked_in(inner, its_space, owner, depth - 1):
                return asked
    return ""


__all__ = ["misses_gradients"]
