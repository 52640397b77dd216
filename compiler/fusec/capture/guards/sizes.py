"""TorchDynamo's guards on symbolic sizes, as a program that the native part runs.

TorchDynamo asks them as one Python expression over ``x.size()``. Here the expression becomes a list
of steps over a stack of integers: arithmetic and comparisons of sizes and constants. Whatever else
it may ask is not understood.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

SIZE, NUMBER, ADD, SUB, MUL, FLOORDIV, MOD, EQ, NE, LT, LE, AND, OR, NOT = range(14)  # entry.cpp

# An instruction, and what it takes: a parameter's position and a dimension; a number and nothing.
Step = tuple[int, int, int]
_OPERATORS: dict[type[ast.operator], int] = {
    ast.Add: ADD,
    ast.Sub: SUB,
    ast.Mult: MUL,
    ast.FloorDiv: FLOORDIV,
    ast.Mod: MOD,
}
# The instruction, and whether the operands change places.
_COMPARISONS: dict[type[ast.cmpop], tuple[int, bool]] = {
    ast.Eq: (EQ, False),
    ast.NotEq: (NE, False),
    ast.Lt: (LT, False),
    ast.LtE: (LE, False),
    ast.Gt: (LT, True),
    ast.GtE: (LE, True),
}
_MOST_STEPS = 4096
_LIMIT = 1 << 62


class UnknownQuestion(Exception):
    """A guard asks something that is not about sizes of tensors that are arguments."""


def size_steps(texts: Iterable[str], parameters: Sequence[str]) -> tuple[Step, ...]:
    """Return a program that leaves 1 where all conditions hold.

    Args:
        texts: Python expressions; where a comment follows, it is two spaces apart.
        parameters: Names of the function's parameters, in order.

    Raises:
        UnknownQuestion: One of them asks something else.
    """
    steps: list[Step] = []
    for number, text in enumerate(texts):
        try:
            tree = ast.parse(text.split("  #", maxsplit=1)[0].strip(), mode="eval")
        except SyntaxError:
            raise UnknownQuestion(text) from None
        steps += _condition(tree.body, parameters)
        if number:
            steps.append((AND, 0, 0))
    if len(steps) > _MOST_STEPS:
        raise UnknownQuestion
    return tuple(steps)


def _condition(node: ast.expr, parameters: Sequence[str]) -> list[Step]:
    if isinstance(node, ast.BoolOp):
        steps = _condition(node.values[0], parameters)
        for each in node.values[1:]:
            steps += _condition(each, parameters)
            steps.append((AND if isinstance(node.op, ast.And) else OR, 0, 0))
        return steps
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [*_condition(node.operand, parameters), (NOT, 0, 0)]
    if not isinstance(node, ast.Compare):
        raise UnknownQuestion(ast.dump(node))
    steps = []
    left = node.left
    for number, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
        if type(operator) not in _COMPARISONS:
            raise UnknownQuestion(ast.dump(node))
        code, swapped = _COMPARISONS[type(operator)]
        for each in (right, left) if swapped else (left, right):
            steps += _value(each, parameters)
        steps.append((code, 0, 0))
        if number:
            steps.append((AND, 0, 0))
        left = right
    return steps


def _value(node: ast.expr, parameters: Sequence[str]) -> list[Step]:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < _LIMIT:
        return [(NUMBER, node.value, 0)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [(NUMBER, 0, 0), *_value(node.operand, parameters), (SUB, 0, 0)]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, parameters), _value(node.right, parameters)
        return [*left, *right, (_OPERATORS[type(node.op)], 0, 0)]
    match = re.fullmatch(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]", ast.unparse(node))
    if match is None or match.group(1) not in parameters:
        raise UnknownQuestion(ast.unparse(node))
    return [(SIZE, parameters.index(match.group(1)), int(match.group(2)))]


__all__ = ["Step", "UnknownQuestion", "size_steps"]
