"""Gradients of what a graph returns and goes on with, asked for behind the break that ends it.

``h = a.exp(); y = h * 2`` is one graph, a graph break follows, then ``h.register_hook(...)``,
``h.retain_grad()`` or ``torch.autograd.grad(..., h)``.  To AOTAutograd both are results of one
function of autograd's, and what flows from ``y`` to ``h`` stays within its backward graph: the hook
does not see it, and no error says so.  In every backend the gradients are silently others than
eager's.  What stands behind the break is known while the graph is compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import fx

from fusec.capture.gradients.result_modes import UnknownHistory, history, results_of

_ASKS = frozenset(["register_hook", "retain_grad", "register_multi_grad_hook"])
_TORCH = ("torch.", "fusec.")
_DEPTH = 3  # how far functions are followed that are called behind the break


def misses_gradients(module: fx.GraphModule) -> str:
    """Return why a captured graph has to run in eager for what is asked of its results later."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break or not _is_of_another(module):
        return ""
    asked = _asked_later()
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


def _asked_later() -> str:
    """Return the name of what asks for gradients of values where TorchDynamo goes on, or ""."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        tx: Any = InstructionTranslator.current_tx()
        place = max(tx.instruction_pointer - 1, 0)
        # what is called was loaded before it, in the line where the call begins
        line = tx.instructions[place].positions
        following = [
            each
            for at, each in enumerate(tx.instructions)
            if at >= place or (line and each.positions and each.positions.lineno == line.lineno)
        ]
        space, owner = tx.f_globals, tx.f_locals.get("self")
        # functions within it may be called later wherever they are written
        within = [each for each in tx.f_code.co_consts if isinstance(each, CodeType)]
        given = [*(each.argval for each in following), *within]
    except AttributeError:
        return ""  # another release of torch
    return _asked_in(given, space, owner, _DEPTH)


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
        for code, its_space in _followed(given, names, space, owner):
            inner = (*code.co_names, *code.co_consts)
            if asked := _asked_in(inner, its_space, owner, depth - 1):
                return asked
    return ""


def _followed(
    given: list[Any], names: list[str], space: dict[str, Any], owner: object
) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Yield the code of functions that instructions may call, and what is global there."""
    for each in given:
        if isinstance(each, CodeType):
            yield each, space
    for name in dict.fromkeys(names):
        for found in (space.get(name), getattr(type(owner), name, None)):
            if isinstance(found, FunctionType) and not f"{found.__module__}.".startswith(_TORCH):
                yield found.__code__, found.__globals__


__all__ = ["misses_gradients"]
