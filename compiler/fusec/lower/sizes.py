"""Symbolic sizes: from torch's sympy expressions to index expressions."""

from __future__ import annotations

import sympy  # type: ignore[import-untyped]
import torch
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

from fusec.ir.index import Expr, Symbol
from fusec.lower.values import NotLowered

# The lower bound of an integer about which nothing is known.
ANY_SIGN = -(1 << 62)


class SizeTable:
    """The symbols of one graph, by torch's names for them."""

    def __init__(self) -> None:
        self.symbols: dict[str, Symbol] = {}

    def symbol(self, name: str, low: int = 2) -> Symbol:
        """Return the symbol called ``name``, whose values are at least ``low``."""
        if name not in self.symbols:
            self.symbols[name] = Symbol(name, "size", low=low)
        return self.symbols[name]

    def convert(self, value: object) -> Expr:
        """Return an int or SymInt as an expression.

        Raises:
            NotLowered: A form that index expressions do not have (min, max, powers...).
        """
        if isinstance(value, Expr):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise NotLowered(f"{type(value).__name__} is no size")
        if isinstance(value, int):
            return Expr.of(value)
        known = value.node.maybe_as_int()
        if known is not None:
            return Expr.of(known)
        return self._from_sympy(value.node.expr, value.node.shape_env)

    def _from_sympy(self, expr: sympy.Expr, shape_env: object) -> Expr:
        if isinstance(expr, sympy.Integer):
            return Expr.of(int(expr))
        if isinstance(expr, sympy.Symbol):
            if expr.name.startswith("u"):
                raise NotLowered("the size depends on data")
            low = 2
            ranges = getattr(shape_env, "var_to_range", {})
            if expr in ranges:
                # an integer argument that is no size may have any sign
                bound = ranges[expr].lower
                low = int(bound) if isinstance(bound, sympy.Integer) else ANY_SIGN
            return Expr.of(self.symbol(expr.name, low))
        parts = [self._from_sympy(a, shape_env) for a in expr.args]
        if isinstance(expr, sympy.Add):
            return sum(parts, Expr.of(0))
        if isinstance(expr, sympy.Mul):
            total = Expr.of(1)
            for part in parts:
                total = total * part
            return total
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and expr.exp > 0:
            total = Expr.of(1)
            for _ in range(int(expr.exp)):
                total = total * parts[0]
            return total
        if isinstance(expr, (FloorDiv, CleanDiv)):
            return parts[0] // parts[1]
        if isinstance(expr, (Mod, PythonMod)):
            return parts[0] % parts[1]
        raise NotLowered(f"size {expr} has no simple form")
