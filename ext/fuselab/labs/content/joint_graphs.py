"""The graphs of lab 4: made at random, evaluated, differentiated by autograd, and cut."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fuselab.labs.content.answers import call_text, short

Graph = list[list[Any]]  # of [name, operator, arguments]; arguments are names and numbers

INPUTS = ("x", "y", "z")
AGAIN = frozenset({"add", "mul", "neg", "reciprocal"})  # cheap enough to compute twice
_PRIMITIVE: dict[str, tuple[int, Callable[..., Any], Callable[..., Any]]] = {
    "add": (2, lambda a, b: a + b, lambda a, b: a + b),
    "mul": (2, lambda a, b: a * b, lambda a, b: a * b),
    "neg": (1, lambda a: -a, lambda a: -a),
    "exp": (1, math.exp, torch.exp),
    "log": (1, math.log, torch.log),
    "reciprocal": (1, lambda a: 1 / a, lambda a: 1 / a),
}
_COMPOSED: dict[str, tuple[int, Callable[..., float]]] = {
    "sub": (2, lambda a, b: a - b),
    "div": (2, lambda a, b: a / b),
    "sigmoid": (1, lambda a: 1 / (1 + math.exp(-a))),
    "silu": (1, lambda a: a / (1 + math.exp(-a))),
    "softplus": (1, lambda a: math.log(1 + math.exp(a))),
}
IN_PLACE = {"add_": "add", "mul_": "mul"}
_POINTS = ((0.7, -1.3, 0.4), (-0.6, 0.9, 1.4), (1.1, 0.3, -0.8))


class NoGraph(ValueError):
    """What was returned is no graph."""


# -- values ---------------------------------------------------------------------------------


def values_of(graph: Any, point: Sequence[float]) -> dict[str, float]:
    """Return every node's value.

    Raises:
        NoGraph: It is none of the primitive operators.
    """
    if not isinstance(graph, list):
        raise NoGraph(f"{short(graph)} is not a list of nodes")
    known = dict(zip(INPUTS, point, strict=True))
    for node in graph:
        match node:
            case [str(name), str(op), list(arguments)] if op in _PRIMITIVE:
                if name in known:
                    raise NoGraph(f"the name {name} stands twice")
                known[name] = _applied(node, _PRIMITIVE[op], [_value(a, known) for a in arguments])
            case _:
                raise NoGraph(f"{short(node)} is not a node of {', '.join(_PRIMITIVE)}")
    return known


def _applied(node: Any, operator: tuple[Any, ...], given: list[float]) -> float:
    if len(given) != operator[0]:
        raise NoGraph(f"{short(node)}: {node[1]} takes {operator[0]}")
    try:
        return float(operator[1](*given))
    except (ArithmeticError, ValueError) as error:
        raise NoGraph(f"{short(node)} cannot be computed: {error}") from None


def _value(argument: Any, known: dict[str, float]) -> float:
    if isinstance(argument, str) and argument in known:
        return known[argument]
    if isinstance(argument, (int, float)) and not isinstance(argument, bool):
        return argument
    raise NoGraph(f"{short(argument)} is neither a number nor the name of something before")


def _composed_values(graph: Graph, point: Sequence[float]) -> dict[str, float]:
    known = dict(zip(INPUTS, point, strict=True))
    for node in graph:
        name, op, arguments = node
        known[name] = _applied(
            node, {**_PRIMITIVE, **_COMPOSED}[op], [_value(each, known) for each in arguments]
        )
    return known


def _memory_values(graph: Graph, point: Sequence[float]) -> tuple[dict[str, float], float]:
    """Return what inputs hold in the end, and the last node, of a graph that changes memory."""
    cells = [[value] for value in point]
    of = dict(zip(INPUTS, cells, strict=True))
    for node in graph:
        name, op, arguments = node
        given = [of[each][0] if isinstance(each, str) else each for each in arguments]
        if op == "view":
            of[name] = of[arguments[0]]
        elif op in IN_PLACE:
            of[name] = of[arguments[0]]
            of[name][0] = _applied(node, _PRIMITIVE[IN_PLACE[op]], given)
        else:
            of[name] = [_applied(node, _PRIMITIVE[op], given)]
    return {name: of[name][0] for name in INPUTS}, of[graph[-1][0]][0]


def gradients(graph: Graph, point: Sequence[float]) -> dict[str, float]:
    """Return the gradient of the last node, by autograd."""
    leaves = [torch.tensor(float(v), dtype=torch.float64, requires_grad=True) for v in point]
    known: dict[str, Any] = dict(zip(INPUTS, leaves, strict=True))
    for name, op, arguments in graph:
        known[name] = _PRIMITIVE[op][2](*(known.get(each, each) for each in arguments))
    found = torch.autograd.grad(known[graph[-1][0]], leaves, allow_unused=True)
    pairs = zip(INPUTS, found, strict=True)
    return {name: 0.0 if each is None else float(each) for name, each in pairs}


# -- calls ----------------------------------------------------------------------------------


def _arity(op: str) -> int:
    if op in IN_PLACE or op == "view":
        return 1 if op == "view" else 2
    return _PRIMITIVE[op][0] if op in _PRIMITIVE else _COMPOSED[op][0]


def _random(rng: random.Random, count: int, ops: Sequence[str]) -> Graph:
    graph: Graph = []
    changed = {*IN_PLACE, "view"}
    names = list(INPUTS)
    for number in range(count):
        op = rng.choice(ops)
        arity = _arity(op)
        recent = names[-4:] if rng.random() < 0.7 else names
        arguments: list[Any] = [rng.choice(recent) for _ in range(arity)]
        if op not in changed and arity == 2 and rng.random() < 0.2:
            arguments[rng.randrange(2)] = rng.choice([2, 3, 0.5])
        graph.append([f"t{number}", op, arguments])
        names.append(f"t{number}")
    return graph


def _tame(
    rng: random.Random, count: int, ops: Sequence[str], values: Callable[[Graph, Any], Any]
) -> Graph:
    """Return a graph whose values can be computed, and are no giants."""
    while True:
        graph = _random(rng, count, ops)
        try:
            found = [values(graph, point) for point in _POINTS]
        except NoGraph:
            continue
        flat = [v for each in found for v in (each.values() if isinstance(each, dict) else each)]
        if all(abs(v) < 1e3 for v in flat):
            return graph


def composed_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph of composed operators; each is in one by itself as well."""
    found: list[Graph] = [[["t0", op, ["x", "y"][:n]]] for op, (n, _) in _COMPOSED.items()]
    ops = [*_COMPOSED, "add", "mul", "exp"]
    return [[each] for each in found] + [
        [_tame(rng, count, ops, _composed_values)] for count in (2, 3, 4, 5, 6)
    ]


def _in_memory(graph: Graph, point: Sequence[float]) -> list[float]:
    inputs, last = _memory_values(graph, point)
    return [*inputs.values(), last]


_CHANGES: tuple[Graph, ...] = (
    [["t0", "add_", ["x", 1]]],
    [["t0", "mul", ["x", 2]], ["t1", "add_", ["t0", "y"]]],
    [["t0", "view", ["x"]], ["t1", "add_", ["t0", 1]], ["t2", "mul", ["x", "y"]]],
    [["t0", "view", ["x"]], ["t1", "mul_", ["x", 3]], ["t2", "add", ["t0", "t1"]]],
    [["t0", "mul_", ["x", "x"]], ["t1", "add_", ["y", "x"]], ["t2", "view", ["t0"]]],
    [["t0", "exp", ["x"]], ["t1", "mul_", ["x", 2]], ["t2", "add", ["t0", "x"]]],
    [
        ["t0", "view", ["x"]],
        ["t1", "view", ["t0"]],
        ["t2", "add_", ["x", 1]],
        ["t3", "neg", ["t1"]],
    ],
)


def memory_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph that changes memory."""
    ops = ["add_", "mul_", "add_", "view", "view", "add", "mul", "neg"]
    return [[each] for each in _CHANGES] + [
        [_tame(rng, count, ops, _in_memory)] for count in (3, 4, 5, 6, 7)
    ]


def _primitive(rng: random.Random, count: int) -> Graph:
    def derived(graph: Graph, point: Sequence[float]) -> list[float]:
        return [*values_of(graph, point).values(), *gradients(graph, point).values()]

    return _tame(rng, count, list(_PRIMITIVE), derived)


def primitive_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph of primitive operators; each is in one by itself as well."""
    found: list[Graph] = [[["t0", op, ["x", "y"][:n]]] for op, (n, *_) in _PRIMITIVE.items()]
    found[[*_PRIMITIVE].index("log")] = [["t0", "exp", ["y"]], ["t1", "log", ["t0"]]]
    found.append([["t0", "mul", ["x", "x"]], ["t1", "mul", ["t0", "t0"]]])
    return [[each] for each in found] + [[_primitive(rng, n)] for n in (2, 3, 4, 5, 6, 8)]


def joint(graph: Graph) -> Graph:
    """Return a graph with its backward part behind it."""
    nodes = list(graph)

    def put(op: str, *arguments: Any) -> str:
        nodes.append([f"g{len(nodes)}", op, list(arguments)])
        return str(nodes[-1][0])

    known: dict[str, Any] = {graph[-1][0]: 1}
    for name, op, arguments in reversed(graph):
        if name not in known:
            continue
        mine = known[name]
        for place, argument in enumerate(arguments):
            if not isinstance(argument, str):
                continue
            part = mine
            if op == "mul":
                part = put("mul", mine, arguments[1 - place])
            elif op == "neg":
                part = put("neg", mine)
            elif op == "exp":
                part = put("mul", mine, name)
            elif op == "log":
                part = put("mul", mine, put("reciprocal", argument))
            elif op == "reciprocal":
                part = put("neg", put("mul", mine, put("mul", name, name)))
            known[argument] = put("add", known[argument], part) if argument in known else part
    return nodes


def joint_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with a joint graph and how many nodes of it are forward."""
    graphs = [each for (each,) in primitive_calls(rng)]
    return [[joint(graph), len(graph)] for graph in graphs]


def cut_calls(rng: random.Random) -> list[list[Any]]:
    """Return calls with a joint graph, how many nodes are forward, and sizes."""
    found = []
    for graph, forward in joint_calls(rng):
        names = [*INPUTS, *(node[0] for node in graph[:forward])]
        sizes = {name: rng.choice([1, 5, 10, 20, 50]) for name in names}
        found.append([graph, forward, sizes])
    return found


# -- what is right --------------------------------------------------------------------------


def read_later(graph: Graph, forward: int) -> list[str]:
    """Return, sorted, what of the forward part or the inputs the backward part reads."""
    names = {*INPUTS, *(node[0] for node in graph[:forward])}
    return sorted({each for node in graph[forward:] for each in node[2] if each in names})


def missing(graph: Graph, forward: int, saved: Sequence[str]) -> list[str]:
    """Return what the backward part reads and cannot get from what is saved."""
    there = set(saved)
    for name, op, arguments in graph[:forward]:
        if op in AGAIN and all(each in there for each in arguments if isinstance(each, str)):
            there.add(name)
    return [name for name in read_later(graph, forward) if name not in there]


def least(graph: Graph, forward: int, sizes: dict[str, int]) -> int:
    """Return the fewest bytes that can be saved."""
    best = sum(sizes.values())
    for chosen in itertools.product((False, True), repeat=len(sizes)):
        saved = [name for name, take in zip(sizes, chosen, strict=True) if take]
        total = sum(sizes[name] for name in saved)
        if total < best and not missing(graph, forward, saved):
            best = total
    return best


# -- what is wrong --------------------------------------------------------------------------


def _far(one: float, other: float) -> bool:
    return not math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-8)


def check_decomposed(calls: list[list[Any]], results: list[Any]) -> str:
    """Return which graph is of other operators, or computes something else."""
    for (graph,), result in zip(calls, results, strict=True):
        shown = call_text("decompose", [graph])
        for point in _POINTS:
            wanted = _composed_values(graph, point)
            try:
                found = values_of(result, point)
            except NoGraph as error:
                return f"{shown}: {error}"
            for name, value in wanted.items():
                if name not in found:
                    return f"{shown} has no node {name} any more, which others may read"
                if _far(found[name], value):
                    return f"{shown}: {name} has another value than before"
    return ""


def check_functional(calls: list[list[Any]], results: list[Any]) -> str:
    """Return which graph still changes memory, or leaves something else in it."""
    for (graph,), result in zip(calls, results, strict=True):
        shown = call_text("functionalize", [graph])
        if not isinstance(result, dict) or set(result) != {"graph", "result", "updates"}:
            return f"{shown} gives {short(result)}: graph, result and updates are asked for"
        updates = result["updates"]
        if not isinstance(updates, dict) or set(updates) - set(INPUTS):
            return f"{shown}: updates is {short(updates)}, no dictionary of inputs"
        for point in _POINTS:
            inputs, last = _memory_values(graph, point)
            try:
                found = values_of(result["graph"], point)
                returned = _value(result["result"], found)
                after = {name: _value(updates.get(name, name), found) for name in INPUTS}
            except NoGraph as error:
                return f"{shown}: {error}"
            for name, value in inputs.items():
                if _far(after[name], value):
                    return f"{shown}: after it, {name} does not hold what it should"
            if _far(returned, last):
                return f"{shown}: result is {short(result['result'])}, which has another value"
        touched = {name for name in INPUTS if _written(graph, name)}
        if set(updates) - touched:
            return f"{shown}: {sorted(set(updates) - touched)[0]} is not changed, yet updated"
    return ""


def _written(graph: Graph, name: str) -> bool:
    same = {name}
    for node, op, arguments in graph:
        if arguments[0] in same and op in IN_PLACE:
            return True
        if arguments[0] in same and op == "view":
            same.add(node)
    return False


def check_gradients(calls: list[list[Any]], results: list[Any]) -> str:
    """Return which gradient is not that of autograd."""
    for (graph,), result in zip(calls, results, strict=True):
        shown = call_text("joint", [graph])
        if not isinstance(result, dict) or set(result) != {"graph", "gradients"}:
            return f"{shown} gives {short(result)}: graph and gradients are asked for"
        nodes, mine = result["graph"], result["gradients"]
        if not isinstance(nodes, list) or nodes[: len(graph)] != graph:
            return f"{shown}: the joint graph begins with the nodes of the graph, as they are"
        if not isinstance(mine, dict) or set(mine) != set(INPUTS):
            return f"{shown}: gradients is {short(mine)}, no dictionary of {', '.join(INPUTS)}"
        for point in _POINTS:
            try:
                known = values_of(nodes, point)
                found = {name: _value(mine[name], known) for name in INPUTS}
            except NoGraph as error:
                return f"{shown}: {error}"
            for name, value in gradients(graph, point).items():
                if _far(found[name], value):
                    return f"{shown}: the gradient of {name} is not that of autograd"
    return ""


def check_cuts(calls: list[list[Any]], results: list[Any]) -> str:
    """Return what cannot be had from what is saved, or that less would do."""
    for call, saved in zip(calls, results, strict=True):
        graph, forward, sizes = call
        shown = call_text("choose", call)
        if not isinstance(saved, list) or not all(isinstance(each, str) for each in saved):
            return f"{shown} gives {short(saved)}: a list of names is asked for"
        if set(saved) - set(sizes) or len(set(saved)) < len(saved):
            return (
                f"{shown} gives {short(saved)}: inputs and forward nodes are asked for, each once"
            )
        lacking = missing(graph, forward, saved)
        if lacking:
            return (
                f"{shown} saves {short(saved)}, of which the backward part cannot get {lacking[0]}"
            )
        total = sum(sizes[name] for name in saved)
        if total > least(graph, forward, sizes):
            return f"{shown} saves {short(saved)}, which is enough, but {total} is not the least"
    return ""


__all__ = [
    "check_cuts",
    "check_decomposed",
    "check_functional",
    "check_gradients",
    "composed_calls",
    "cut_calls",
    "joint_calls",
    "memory_calls",
    "primitive_calls",
    "read_later",
]
