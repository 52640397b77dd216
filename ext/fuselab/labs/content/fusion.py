"""The graphs of lab 6: made at random, fused by a reference, and read back from expressions."""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from fuselab.labs.content.answers import short

Node = dict[str, Any]
Graph = list[Node]

_BINARY = ("add", "sub", "mul", "div")
_UNARY = ("relu", "exp")
MATMUL = "matmul"
_SLACK = 1.02  # of the bytes that the reference moves


def random_graph(rng: random.Random, count: int, *, products: bool = True) -> Graph:
    """Return a graph of so many nodes."""
    graph: Graph = []
    names = ["x", "y", "z"]
    size = rng.choice([100, 1000])
    for number in range(count):
        recent = names[-4:] if rng.random() < 0.7 else names
        op = rng.choice(_BINARY + _UNARY + ((MATMUL,) if products and number else ()))
        inputs = [rng.choice(recent) for _ in range(1 if op in _UNARY else 2)]
        name = f"t{number}"
        graph.append({"name": name, "op": op, "inputs": inputs, "size": size, "output": False})
        names.append(name)
    read = {name for node in graph for name in node["inputs"]}
    for node in graph:
        node["output"] = node["name"] not in read or rng.random() < 0.1
    return graph


def graphs(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph."""
    return [[random_graph(rng, count)] for count in (1, 2, 5, 9, 14)]


def large_graphs(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph worth fusing."""
    return [[random_graph(rng, count)] for count in (1, 3, 6, 8, 10, 12, 12, 14, 14, 16, 18)]


_ROUND: Graph = [
    {"name": "t0", "op": "relu", "inputs": ["x"], "size": 9, "output": False},
    {"name": "t1", "op": MATMUL, "inputs": ["t0", "y"], "size": 9, "output": False},
    {"name": "t2", "op": "exp", "inputs": ["t1"], "size": 9, "output": False},
    {"name": "t3", "op": "add", "inputs": ["t0", "t2"], "size": 9, "output": True},
]


def groups(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph and a group of its nodes."""
    found: list[list[Any]] = [[_ROUND, ["t0", "t3"]], [_ROUND, ["t0"]], [_ROUND, ["t2", "t3"]]]
    for count in (3, 6, 9, 12, 15, 15, 15):
        graph = random_graph(rng, count)
        chosen = rng.sample([node["name"] for node in graph], min(count, rng.randrange(1, 5)))
        found.append([graph, chosen])
    return found


_SHARED: Graph = [
    {"name": "t0", "op": "mul", "inputs": ["x", "x"], "size": 50, "output": False},
    {"name": "t1", "op": "add", "inputs": ["x", "t0"], "size": 50, "output": True},
    {"name": "t2", "op": "exp", "inputs": ["y"], "size": 50, "output": True},
    {"name": "t3", "op": "relu", "inputs": ["t2"], "size": 50, "output": True},
]


def pairs(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph and two of its nodes, in order."""
    found: list[list[Any]] = [[_SHARED, "t0", "t1"], [_SHARED, "t2", "t3"], [_SHARED, "t0", "t2"]]
    for count in (2, 5, 8, 11, 14, 14, 14, 14):
        graph = random_graph(rng, count)
        first, second = sorted(rng.sample(range(count), 2))
        found.append([graph, graph[first]["name"], graph[second]["name"]])
    return found


def texts(rng: random.Random) -> list[list[Any]]:
    """Return calls with a graph without products and the name of a node."""
    found = []
    for count in (1, 2, 3, 4, 5, 6):
        graph = random_graph(rng, count, products=False)
        found.append([graph, graph[-1]["name"]])
    return found


def call_of(name: str, call: list[Any]) -> str:
    """Return a call with a graph, which is written as one reads it: `t0 = mul(x, y)`."""
    graph, *rest = call
    steps = "; ".join(f"{n['name']} = {n['op']}({', '.join(n['inputs'])})" for n in graph)
    outputs = ", ".join(node["name"] for node in graph if node["output"])
    given = ", ".join(["graph", *map(short, rest)])
    return f"with {steps} (size {graph[0]['size']}; output {outputs}), {name}({given})"


# -- what is right --------------------------------------------------------------------------


def readers(graph: Graph) -> dict[str, list[str]]:
    """Return who reads each node."""
    found: dict[str, list[str]] = {node["name"]: [] for node in graph}
    for node in graph:
        for name in dict.fromkeys(node["inputs"]):
            if name in found:
                found[name].append(node["name"])
    return found


def goes_round(graph: Graph, group: Sequence[str]) -> bool:
    """Whether a path leaves the group and comes back."""
    inside = set(group)
    after: set[str] = set()
    for node in graph:
        if node["name"] in inside:
            if after & set(node["inputs"]):
                return True
        elif (inside | after) & set(node["inputs"]):
            after.add(node["name"])
    return False


def bytes_saved(graph: Graph, a: str, b: str) -> int:
    """Return what sharing a kernel saves."""
    nodes = {node["name"]: node for node in graph}
    first, second = nodes[a], nodes[b]
    saved = 0
    if a in second["inputs"]:
        saved += first["size"]
        if readers(graph)[a] == [b] and not first["output"]:
            saved += first["size"]
    for name in set(first["inputs"]) & set(second["inputs"]):
        saved += nodes[name]["size"] if name in nodes else second["size"]
    return 4 * saved


def bytes_moved(graph: Graph, plan: Sequence[Sequence[str]]) -> int:
    """Return the bytes that a plan moves: what each kernel reads and writes, once each."""
    nodes, reading = {node["name"]: node for node in graph}, readers(graph)
    total = 0
    for group in plan:
        inside = set(group)
        reads = {name for each in group for name in nodes[each]["inputs"]} - inside
        size = nodes[group[0]]["size"]
        total += sum(nodes[name]["size"] if name in nodes else size for name in reads)
        for each in group:
            if nodes[each]["output"] or set(reading[each]) - inside:
                total += nodes[each]["size"]
    return 4 * total


def _fused(graph: Graph, plan: list[list[str]]) -> list[list[str]] | None:
    """Return the plan with the two groups together that saves most; None if none does."""
    products = {node["name"] for node in graph if node["op"] == MATMUL}
    before, best, found = bytes_moved(graph, plan), 0, None
    for one, other in itertools.combinations(range(len(plan)), 2):
        union = plan[one] + plan[other]
        if products & set(union) or goes_round(graph, union):
            continue
        merged = [group for n, group in enumerate(plan) if n not in (one, other)] + [union]
        if order_of(graph, merged) is None:
            continue
        saved = before - bytes_moved(graph, merged)
        if saved > best:
            best, found = saved, merged
    return found


def order_of(graph: Graph, plan: Sequence[Sequence[str]]) -> list[int] | None:
    """Return an order in which the groups can run; None if there is none."""
    of = {name: n for n, group in enumerate(plan) for name in group}
    needs: list[set[int]] = [set() for _ in plan]
    for node in graph:
        for name in node["inputs"]:
            if name in of and of[name] != of[node["name"]]:
                needs[of[node["name"]]].add(of[name])
    done: list[int] = []
    while len(done) < len(plan):
        ready = [n for n in range(len(plan)) if n not in done and needs[n] <= set(done)]
        if not ready:
            return None
        done += ready
    return done


def greedy(graph: Graph) -> list[list[str]]:
    """Return the plan of the reference: the best pair first, until none saves anything."""
    plan = [[node["name"]] for node in graph]
    while (better := _fused(graph, plan)) is not None:
        plan = better
    return plan


def check_plans(calls: list[list[Any]], results: list[Any]) -> str:
    """Return what is wrong with plans: illegal ones, then those that move too much."""
    for (graph,), plan in zip(calls, results, strict=True):
        wrong = _illegal(graph, plan)
        if wrong:
            return f"{call_of('fuse', [graph])}: {wrong}"
    mine = sum(bytes_moved(graph, plan) for (graph,), plan in zip(calls, results, strict=True))
    theirs = sum(bytes_moved(graph, greedy(graph)) for (graph,) in calls)
    if mine > theirs * _SLACK:
        return (
            f"every kernel is legal, but together they move {mine:,} bytes where {theirs:,} are "
            "possible: which pair of groups still saves something?"
        )
    return ""


def _illegal(graph: Graph, plan: Any) -> str:
    lists = isinstance(plan, list) and all(isinstance(group, list) for group in plan)
    if not lists or not all(isinstance(name, str) for group in plan for name in group):
        return f"{short(plan)} is not a list of lists of names"
    names = [name for group in plan for name in group]
    known = [node["name"] for node in graph]
    if sorted(names) != sorted(known):
        missing = sorted(set(known) - set(names))
        extra = sorted(name for name in set(names) if names.count(name) > known.count(name))
        return f"every node is in one group; missing: {missing}, too many: {extra}"
    if any(not group for group in plan):
        return "a group is empty"
    products = {node["name"] for node in graph if node["op"] == MATMUL}
    for group in plan:
        if len(group) > 1 and products & set(group):
            return f"{group} has a matmul in it, which is a library call"
        if goes_round(graph, group):
            return f"{group} would have to run before and after something outside of it"
    if order_of(graph, plan) is None:
        return "two kernels wait for each other: each reads what the other yields"
    return ""


# -- expressions ----------------------------------------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b if b else math.nan,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda a: max(a, 0.0),
    "exp": lambda a: math.exp(min(a, 50.0)),
}
_SIGNS = dict(zip(_BINARY, _OPERATORS.values(), strict=True))
_POINTS = ({"x": 0.7, "y": -1.3, "z": 2.1}, {"x": -0.4, "y": 0.6, "z": 0.9})


def value_of(graph: Graph, name: str, given: dict[str, float]) -> float:
    """Return a node's value at a point."""
    values = dict(given)
    for node in graph:
        inputs = [values[each] for each in node["inputs"]]
        if node["op"] in _FUNCTIONS:
            values[node["name"]] = _FUNCTIONS[node["op"]](*inputs)
        else:
            values[node["name"]] = _SIGNS[node["op"]](*inputs)
    return values[name]


class NoExpression(ValueError):
    """A text is no expression of the kind that is asked for."""


def evaluate(text: str, given: dict[str, float]) -> float:
    """Return the value of an expression; only what lab 6 knows is looked at.

    Raises:
        NoExpression: Something else is in it.
    """
    try:
        return _value(ast.parse(text, mode="eval").body, given)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise NoExpression(f"{short(text)} is not an expression: {error}") from None


def _value(node: ast.expr, given: dict[str, float]) -> float:
    if isinstance(node, ast.Name) and node.id in given:
        return given[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, given), _value(node.right, given))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, given)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1:
        function = _FUNCTIONS.get(node.func.id)
        if function is not None and not node.keywords:
            return function(_value(node.args[0], given))
    raise NoExpression(
        f"`{ast.unparse(node)[:60]}` is neither an input of the graph nor one of + - * /, exp, relu"
    )


def check_texts(calls: list[list[Any]], results: list[Any]) -> str:
    """Return what is wrong with expressions first; empty if nothing is."""
    for (graph, name), text in zip(calls, results, strict=True):
        shown = call_of("expression", [graph, name])
        if not isinstance(text, str):
            return f"{shown} gives {short(text)}: a text is asked for"
        for point in _POINTS:
            wanted = value_of(graph, name, point)
            try:
                found = evaluate(text, point)
            except NoExpression as error:
                return f"{shown} gives {short(text)}: {error}"
            except OverflowError:
                found = math.inf
            close = math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)
            if not close and not (math.isnan(found) and math.isnan(wanted)):
                return f"{shown} gives {short(text)}, which has another value at {point}"
    return ""


__all__ = ["bytes_moved", "check_plans", "check_texts", "evaluate", "greedy", "random_graph"]
