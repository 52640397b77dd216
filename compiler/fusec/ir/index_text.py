"""Index expressions as source text of a target's language."""

from __future__ import annotations

from collections.abc import Callable

from fusec.ir.index import Atom, Expr, FloorDiv, Symbol, is_nonnegative


def expr_text(
    expr: Expr,
    name: Callable[[Symbol], str],
    floor_div: str = "//",
    signed: tuple[str, str] | None = None,
) -> str:
    """Return source text.

    Args:
        expr: The expression.
        name: Gives the symbols' names.
        floor_div: The division operator of the target language.
        signed: Names of the target's functions for a floor division and its remainder
            where the numerator may be negative (C's ``/`` and ``%`` truncate); None where
            the operators are right for any sign.
    """

    def factor(atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return name(atom)
        numerator, divisor = expr_text_of(atom.numerator), expr_text_of(atom.divisor)
        if signed is not None and not is_nonnegative(atom.numerator):
            return f"{signed[0 if isinstance(atom, FloorDiv) else 1]}({numerator}, {divisor})"
        operator = floor_div if isinstance(atom, FloorDiv) else "%"
        return atom.text(numerator, operator, divisor)

    def expr_text_of(part: Expr) -> str:
        return part.text(factor)

    return expr_text_of(expr)


__all__ = ["expr_text"]
