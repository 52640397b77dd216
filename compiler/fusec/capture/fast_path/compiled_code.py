"""What TorchDynamo's compiled code does, so that it can be done without TorchDynamo.

Compiled code collects the inputs of a graph, runs it, and builds the result and whatever side
effects the function had. Here it becomes a function of its own that runs the graph itself rather
than TorchDynamo's wrapper; and where it does nothing but pass arguments on and hand outputs back,
a *plan* of that, which needs no Python at all.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch

from fusec.compiled.graph import CompiledGraph

_GRAPH = "__compiled_fn_"
_RESUME = "__resume_at_"
_UTILS = "__import_torch_dot__dynamo_dot_utils"
_QUIET = f"{_UTILS}_quiet"
_SIZE = "call_size"  # a function of a tensor and a dimension
_MARKS = ("record_pregraph_bytecode_enter", "record_pregraph_bytecode_exit")
# All that code may consist of to have no effect but its result: it moves values, makes lists and
# tuples, and calls what was loaded from a global name.
_HARMLESS = frozenset(
    "RESUME NOP CACHE PUSH_NULL POP_TOP COPY SWAP LOAD_FAST LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR "
    "LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_BORROW_LOAD_FAST_BORROW STORE_FAST "
    "STORE_FAST_STORE_FAST STORE_FAST_LOAD_FAST DELETE_FAST LOAD_CONST LOAD_SMALL_INT "
    "LOAD_GLOBAL LOAD_ATTR PRECALL CALL BUILD_LIST BUILD_TUPLE LIST_EXTEND LIST_TO_TUPLE "
    "CALL_INTRINSIC_1 UNPACK_SEQUENCE BINARY_SUBSCR RETURN_VALUE RETURN_CONST NOT_TAKEN "
    "EXTENDED_ARG".split()
)
_NUMBERS = itertools.count()  # two threads may make a function of one code, and one drop its own
_LIST_TO_TUPLE = 6  # the one argument of CALL_INTRINSIC_1 that only makes a tuple


@dataclass(frozen=True)
class Plan:
    """Compiled code as positions.

    Attributes:
        shape: ``one``, ``tuple`` or ``list`` of outputs, or ``nothing``; ``code`` where only the
            code knows.
        order: What the graph takes: a parameter, and which of its sizes; -1 for itself.
        results: The outputs of the graph that make up the result; -1 - i for parameter i.
    """

    shape: str = "code"
    order: tuple[tuple[int, int], ...] = ()
    results: tuple[int, ...] = ()


def graph_of(
    code: CodeType | None, function: FunctionType, graphs: Sequence[CompiledGraph]
) -> CompiledGraph | None:
    """Return the graph that compiled code runs: exactly one, of ours, and it goes on nowhere else.

    Args:
        code: What TorchDynamo made of ``function``; None where it has thrown that away since, as
            an object that it guards is gone.
        function: The function.
        graphs: Ours.
    """
    if code is None or any(name.startswith(_RESUME) for name in code.co_names):
        return None  # a graph break: the rest is compiled on its own, by TorchDynamo
    called = _graph_names(code)
    if len(called) != 1 or code.co_freevars != function.__code__.co_freevars:
        return None
    compiled: Any = function.__globals__.get(called[0])
    for _ in range(8):  # TorchDynamo's wrappers
        for graph in graphs:
            if compiled is graph or graph.is_entry(compiled):
                return None if graph.fallback else graph
        compiled = getattr(compiled, "_torchdynamo_orig_callable", None)
        if compiled is None:
            break  # another compiler's, or one that is gone
    return None


def _graph_names(code: CodeType) -> list[str]:
    return [name for name in code.co_names if name.startswith(_GRAPH)]


@functools.cache
def _quiet_utils() -> SimpleNamespace:
    """Return what stands for ``torch._dynamo.utils``, without its marks for the profiler."""
    names = dict(vars(torch._dynamo.utils))
    # Called without arguments and with one: both are over at once.
    names |= {"record_pregraph_bytecode_enter": tuple, "record_pregraph_bytecode_exit": id}
    return SimpleNamespace(**names)


@dataclass(frozen=True)
class FastCode:
    """Compiled code as a function of all its parameters by position.

    The function finds the graph under a name in the globals, as TorchDynamo's own code does. The
    name stays there for as long as the function does, which a call of it in another thread holds.

    Attributes:
        function: To call.
        space: The globals.
        name: The graph's name there, which nothing else has.
    """

    function: FunctionType
    space: dict[str, Any]
    name: str


def fast_code(code: CodeType, function: FunctionType, graph: CompiledGraph) -> FastCode:
    """Return compiled code without TorchDynamo's wrapper round the graph."""
    (wrapped,) = _graph_names(code)
    space = function.__globals__
    names = {wrapped: f"{wrapped}_direct{next(_NUMBERS)}"}
    if set(_MARKS) & set(code.co_names):
        space.setdefault(_QUIET, _quiet_utils())  # shared by all functions there, so it stays
        names[_UTILS] = _QUIET
    plain = code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_argcount=parameter_count(code),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
        co_flags=code.co_flags & ~(inspect.CO_VARARGS | inspect.CO_VARKEYWORDS),
    )
    space[names[wrapped]] = graph.entry()
    fast = FunctionType(plain, space, code.co_name, None, function.__closure__)
    weakref.finalize(fast, space.pop, names[wrapped], None).atexit = False
    return FastCode(fast, space, names[wrapped])


def parameter_count(code: CodeType) -> int:
    """Return how many parameters a function has, ``*args`` and ``**kwargs`` among them."""
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + more


# -- plans ----------------------------------------------------------------------------------


def plan_of(fast: FastCode, values: Sequence[Any], outputs: int) -> Plan:
    """Return what the code does as positions, if that is all that it does.

    It is found out by running the code with a graph that computes nothing: code that could have
    any other effect is not run.

    Args:
        fast: The code.
        values: Of the parameters, all of them tensors.
        outputs: How many outputs the graph has.
    """
    if not _is_harmless(fast):
        return Plan()
    given: list[Any] = []
    marks = [object() for _ in range(outputs)]
    sizes: dict[tuple[int, int], object] = {}  # what stands for a size: of which value, which one

    def size(value: object, dim: int) -> object:
        (position,) = (i for i, each in enumerate(values) if each is value)
        if type(dim) is not int or not 0 <= dim < values[position].ndim:
            raise IndexError(dim)
        return sizes.setdefault((position, dim), object())

    def graph(*inputs: Any) -> list[object]:
        given.append(inputs)
        return list(marks)

    utils = SimpleNamespace(**{**vars(_quiet_utils()), _SIZE: size})
    space: dict[str, Any] = {fast.name: graph, _QUIET: utils, "__builtins__": {}}
    function = FunctionType(fast.function.__code__, space)
    try:
        result: Any = function(*values)
    except Exception:
        return Plan()
    if len(given) != 1:
        return Plan()
    known = {(i, -1): value for i, value in enumerate(values)} | sizes
    places = _positions(given[0], list(known.values()))
    if result is None:
        shape, given_back = "nothing", []
    elif type(result) in (tuple, list):
        shape, given_back = type(result).__name__, list(result)
    else:
        shape, given_back = "one", [result]
    results = _positions(given_back, [*marks, *values])
    if places is None or results is None:
        return Plan()
    order = list(known)
    return Plan(
        shape,
        tuple(order[place] for place in places),
        tuple(at if at < outputs else outputs - 1 - at for at in results),
    )


def _positions(found: Iterable[Any], known: Sequence[Any]) -> tuple[int, ...] | None:
    places = {id(value): position for position, value in enumerate(known)}
    positions = [places.get(id(value)) for value in found]
    return None if None in positions else tuple(positions)  # type: ignore[arg-type]


def _is_harmless(fast: FastCode) -> bool:
    code = fast.function.__code__
    if code.co_freevars or code.co_cellvars:
        return False
    allowed: Mapping[str, frozenset[str]] = {
        "LOAD_GLOBAL": frozenset({fast.name, _QUIET}),
        "LOAD_ATTR": frozenset({*_MARKS, _SIZE}),
    }
    for each in dis.get_instructions(code):
        if each.opname == "BINARY_OP" and each.argrepr == "[]":
            continue  # how later Pythons take an item
        if each.opname not in _HARMLESS:
            return False
        if each.opname in allowed and each.argval not in allowed[each.opname]:
            return False
        if each.opname == "CALL_INTRINSIC_1" and each.arg != _LIST_TO_TUPLE:
            return False
    return True


__all__ = ["FastCode", "Plan", "fast_code", "graph_of", "parameter_count", "plan_of"]
