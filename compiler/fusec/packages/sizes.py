"""Symbolic sizes of a captured graph: as JSON, with what was assumed of them and where.

TorchDynamo's ShapeEnv knows which sizes stay symbolic, between which bounds, and every condition
that code has asked of them. All of it becomes part of a package's table of guards; a condition that
cannot be written down is an error, never left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.utils._sympy import functions as symbolic
from torch.utils._sympy.numbers import IntInfinity, NegativeIntInfinity

from fusec.capture.dynamo.fixed_sizes import asked_at
from fusec.ir.index import Expr, FloorDiv, Mod
from fusec.packages.errors import CannotPackage
from fusec.packages.runtime.expressions import Expression, text
from fusec.packages.runtime.json_text import LARGEST

_RELATIONS: tuple[tuple[Any, str], ...] = (
    (sympy.Eq, "=="),
    (sympy.Ne, "!="),
    (sympy.StrictLessThan, "<"),
    (sympy.LessThan, "<="),
    (sympy.StrictGreaterThan, ">"),
    (sympy.GreaterThan, ">="),
)
_LOGIC: tuple[tuple[Any, str], ...] = (
    (sympy.And, "and"),
    (sympy.Or, "or"),
    (sympy.Not, "not"),
)
_CALLS: dict[str, str] = {
    "FloorDiv": "//",
    "CleanDiv": "//",
    "IntTrueDiv": "",
    "Mod": "%",
    "PythonMod": "%",
    "Max": "max",
    "Min": "min",
}


def expression(value: Expr) -> Expression:
    """Return an index expression of a program as JSON."""
    if value.constant is not None:
        return value.constant
    parts: list[Expression] = []
    for monomial, factor in sorted(value.terms.items(), key=lambda term: repr(term[0])):
        factors: list[Expression] = []
        for atom in monomial:
            if isinstance(atom, FloorDiv | Mod):
                name = "//" if isinstance(atom, FloorDiv) else "%"
                factors.append([name, expression(atom.numerator), expression(atom.divisor)])
            else:
                factors.append(atom.name)
        if factor != 1 or not factors:
            factors.append(factor)
        parts.append(factors[0] if len(factors) == 1 else ["*", *factors])
    return parts[0] if len(parts) == 1 else ["+", *parts]


def of_sympy(value: Any) -> Expression:
    """Return a size, or a condition on sizes, of torch's as JSON.

    Raises:
        CannotPackage: It is nothing that a package's table can say.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, sympy.Integer):
        return int(value)
    if isinstance(value, sympy.Symbol):
        return str(value)
    if value in (sympy.true, sympy.false):
        return ["==", 0, 0 if value == sympy.true else 1]
    for kind, sign in _RELATIONS:
        if isinstance(value, kind):
            return [sign, of_sympy(value.args[0]), of_sympy(value.args[1])]
    for kind, sign in _LOGIC:
        if isinstance(value, kind):
            return [sign, *map(of_sympy, value.args)]
    if isinstance(value, (sympy.Add, sympy.Mul)):
        return ["+" if isinstance(value, sympy.Add) else "*", *map(of_sympy, value.args)]
    if isinstance(value, sympy.Pow) and value.args[1].is_Integer and 0 < int(value.args[1]) < 9:
        return ["*", *[of_sympy(value.args[0])] * int(value.args[1])]
    if isinstance(value, symbolic.ModularIndexing):
        base, divisor, modulus = map(of_sympy, value.args)
        return ["%", ["//", base, divisor], modulus]
    sign = _CALLS.get(type(value).__name__, "")
    if sign:
        return [sign, *map(of_sympy, value.args)]
    raise CannotPackage(
        f"a condition on sizes cannot be written down: {value}",
        "leave that dimension out of dynamic=",
    )


def shape_environment(values: Iterable[object]) -> Any:
    """Return the ShapeEnv of fake tensors and symbolic integers; None where all is known."""
    for value in values:
        if isinstance(value, torch.SymInt):
            return value.node.shape_env
        if isinstance(value, torch.Tensor):
            for size in (*value.shape, *value.stride()):
                if isinstance(size, torch.SymInt):
                    return size.node.shape_env
    return None


def known_size(environment: Any, size: Any) -> Any:
    """Return a size as sympy has it, with what has been found out of it since; or a number."""
    if isinstance(size, int):
        return size
    found = environment.replace(size.node.expr)
    return int(found) if found.is_Integer else found


def bounds(environment: Any, symbol: Any) -> tuple[int, int]:
    """Return the least and the largest value of a symbolic size."""
    known = environment.var_to_range[symbol]
    low, high = known.lower, known.upper
    least = -LARGEST if isinstance(low, NegativeIntInfinity) else int(low)
    most = LARGEST if isinstance(high, IntInfinity) else min(int(high), LARGEST)
    return least, most


def conditions(
    environment: Any, symbols: Mapping[str, str], graph: fx.GraphModule
) -> list[dict[str, Any]]:
    """Return what code has asked of the sizes, each with its words and line.

    Args:
        environment: The ShapeEnv.
        symbols: Those that calls bring, by name, with what a user calls them.
        graph: What was captured.

    Raises:
        CannotPackage: One cannot be written down, or is about a size that no call brings.
    """
    found: dict[str, dict[str, Any]] = {}
    for guard in environment.guards:
        wanted = environment.replace(guard.expr)
        if wanted == sympy.true:
            continue
        unknown = sorted(str(s) for s in wanted.free_symbols if str(s) not in symbols)
        if unknown:
            raise CannotPackage(
                f"a size of the graph depends on values: {guard.expr}",
                "a package holds graphs whose sizes come from its inputs",
            )
        known = of_sympy(wanted)
        line = asked_at(guard.sloc, graph)
        words = text(known, symbols) + (f" ({PurePath(line.file).name} {line})" if line else "")
        found.setdefault(text(known), {"expression": known, "text": words})
    if getattr(environment, "deferred_runtime_asserts", None):
        raise CannotPackage(
            "the graph asserts something of sizes that only a run knows",
            "a package holds graphs whose sizes come from its inputs",
        )
    return list(found.values())


__all__ = [
    "bounds",
    "conditions",
    "expression",
    "known_size",
    "of_sympy",
    "shape_environment",
]
