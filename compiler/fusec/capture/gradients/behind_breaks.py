"""What stands behind the graph break that ends a graph: its instructions, and what they may call.

It is known while the graph in front of it is compiled.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch import fx

_TORCH = ("torch.", "fusec.")
# Where an argument stands in calls of functions of torch.autograd, and of a tensor's method.
_PLACES: dict[tuple[str, object], dict[str, int]] = {
    ("create_graph", "grad"): {"autograd": 4, "": 4},
    ("create_graph", "backward"): {"autograd": 3, "": 2},
}
_SIMPLE = ("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_GLOBAL")


@dataclass(frozen=True)
class Behind:
    """What TorchDynamo comes to behind a graph break.

    Attributes:
        instructions: From the one that breaks, with what was loaded for it.
        within: Code of functions that are written there, which may be called later.
        space: What is global there.
        owner: The module whose method it is, if that is known.
        call: The place of the instruction that breaks.
        stack: What TorchDynamo knows of the arguments of that.
        code: What all of it is a part of.
    """

    instructions: Sequence[Any]
    within: Sequence[CodeType]
    space: dict[str, Any]
    owner: object
    call: int
    stack: Sequence[Any]
    code: CodeType


def ends_at_a_break(module: fx.GraphModule) -> bool:
    """Whether a captured graph ends at a graph break."""
    reason = getattr(module, "compile_subgraph_reason", None)
    return reason is not None and bool(reason.graph_break)


def behind_the_break() -> Behind | None:
    """Return what stands behind the break of the graph that is compiled now; None if unknown."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        tx: Any = InstructionTranslator.current_tx()
        place = max(tx.instruction_pointer - 1, 0)
        # what is called was loaded before it, in the line where the call begins
        line = tx.instructions[place].positions
        following = [
            at
            for at, each in enumerate(tx.instructions)
            if at >= place or (line and each.positions and each.positions.lineno == line.lineno)
        ]
        return Behind(
            [tx.instructions[at] for at in following],
            # functions within it may be called later wherever they are written
            [each for each in tx.f_code.co_consts if isinstance(each, CodeType)],
            tx.f_globals,
            tx.f_locals.get("self"),
            following.index(place),
            tx.stack,
            tx.f_code,
        )
    except AttributeError:
        return None  # another release of torch


def called_in(
    given: Iterable[Any], space: dict[str, Any], owner: object
) -> Iterator[tuple[CodeType, dict[str, Any]]]:
    """Yield the code of functions that instructions may call, and what is global there.

    Args:
        given: Names and constants of the instructions.
        space: What is global there.
        owner: The module whose method it is, if that is known.
    """
    given = list(given)
    for each in given:
        if isinstance(each, CodeType):
            yield each, space
    for name in dict.fromkeys(each for each in given if isinstance(each, str)):
        for found in (space.get(name), getattr(type(owner), name, None)):
            if isinstance(found, FunctionType) and not f"{found.__module__}.".startswith(_TORCH):
                yield found.__code__, found.__globals__


def may_be_given(name: str, behind: Behind, depth: int) -> bool:
    """Whether an argument may be true in a call behind a graph break.

    Args:
        name: Of the argument.
        behind: What stands there.
        depth: How far functions are followed.
    """
    if _is_given(name, behind.instructions, behind.code, behind):
        return True
    names = [each.argval for each in behind.instructions]
    waiting = [(each, behind.space, behind.owner, depth - 1) for each in behind.within]
    waiting += [
        (code, space, behind.owner, depth - 1)
        for code, space in called_in(names, behind.space, behind.owner)
    ]
    seen = set[CodeType]()
    while waiting:
        code, space, owner, left = waiting.pop(0)
        if code in seen:
            continue
        seen.add(code)
        if _is_given(name, list(dis.get_instructions(code)), code):
            return True
        if left:
            inner = called_in((*code.co_names, *code.co_consts), space, owner)
            waiting += [(each, its_space, owner, left - 1) for each, its_space in inner]
    return False


def _is_given(
    name: str, instructions: Sequence[Any], code: CodeType, behind: Behind | None = None
) -> bool:
    """Whether an argument stands in instructions, and not as a plain ``False``."""
    if any(_stands_in_place(name, instructions, at, behind) for at in range(len(instructions))):
        return True
    for at, each in enumerate(instructions):
        names = each.argval
        if each.opname == "KW_NAMES" and not isinstance(names, tuple):
            names = code.co_consts[each.arg]  # as Python 3.11 has it
        if not isinstance(names, tuple) or name not in names:
            continue
        back = len(names) - names.index(name)
        if behind is not None and at < behind.call <= at + 2:
            value = _known(behind.stack, back)
        else:
            loads = instructions[max(at - back, 0) : at]
            simple = len(loads) == back and all(load.opname in _SIMPLE for load in loads)
            is_constant = simple and loads[0].opname == "LOAD_CONST"
            value = loads[0].argval if is_constant else None
        if value is not False:
            return True
    return False


def _stands_in_place(
    name: str, instructions: Sequence[Any], at: int, behind: Behind | None
) -> bool:
    """Whether the call of what an instruction loads has an argument by its place, or by ``**``."""
    place = _PLACES.get((name, instructions[at].argval), {}).get(_owner(instructions, at))
    if place is None or not instructions[at].opname.startswith("LOAD_"):
        return False
    depth, values = 0, dict[int, object]()  # of what is pushed behind the function
    for where, each in enumerate(instructions[at + 1 :], at + 1):
        if each.opname == "CALL_FUNCTION_EX":
            if depth <= 2:  # it has a tuple, and a dictionary if there are names
                return bool((each.arg or 0) & 1)
        elif each.opname in ("PRECALL", "CALL"):
            if behind is not None and where <= behind.call <= where + 1 and depth < each.arg:
                # its arguments stand in other lines
                return each.arg > place and _known(behind.stack, each.arg - place) is not False
            if depth == each.arg:
                named = instructions[where - 1].opname == "KW_NAMES"
                return not named and each.arg > place and values.get(place) is not False
        before = depth
        try:
            depth += dis.stack_effect(each.opcode, each.arg, jump=False)
        except (TypeError, ValueError):
            return False  # an instruction that TorchDynamo made
        if depth < 0:
            return False
        if depth == before + 1:
            values[before] = each.argval if each.opname == "LOAD_CONST" else None
        else:
            values[depth - 1] = None
    return False


def _owner(instructions: Sequence[Any], at: int) -> str:
    """Return what a function is loaded from: ``autograd``, or "" for anything else."""
    return "autograd" if at and instructions[at - 1].argval == "autograd" else ""


def _known(stack: Sequence[Any], back: int) -> object:
    """Return an argument of the call that breaks, as far as TorchDynamo knows it."""
    try:
        return stack[-back].as_python_constant()
    except (IndexError, AttributeError, NotImplementedError):
        return None


__all__ = ["Behind", "behind_the_break", "called_in", "ends_at_a_break", "may_be_given"]
