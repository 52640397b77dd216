"""Floating-point numbers that follow from symbolic sizes, as ``n / 10``: kernels compute them.

A kernel is given sizes as integers. It computes such a number in float64, step by step as Python
does, so that one kernel is for all sizes; and it is rounded once more where eager rounds it: where
it meets a tensor's elements. What is taken in is what a kernel computes to the last bit of
Python's result, and where Python raises nothing:

- Python rounds the quotient of two integers once, whatever their size. So does a division in
  float64 of integers that it holds exactly: both are guarded to be such.
- A divisor is guarded not to be zero. Only integers are divisors, for a guard on them is quick.
- Functions (``math.cos(n)``, powers) are none of these: libraries differ in the last bit.
- On a GPU a product that is added to something may not be rounded before; such a sum is left out.

Whatever else a number is used for has it fixed: the graph is compiled again for another.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from fusec.devices import CPU
from fusec.ir import ops
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node
from fusec.lower.sizes import SizeTable
from fusec.lower.values import NotLowered, NumberValue

_F64 = torch.float64
_EXACT = 1 << 53  # float64 holds every integer up to here
_LARGE = 3e38  # float32 and bfloat16 hold this and more, float16 does not
_aten = torch.ops.aten

# Operators that compute with a number in their own type: what does not fit is infinite there.
_COMPUTING = frozenset(
    {
        *(getattr(_aten, name).Tensor for name in "add sub mul div".split()),
        *(getattr(_aten, name).Scalar for name in "add sub rsub mul div".split()),
        *(getattr(_aten, name).Scalar for name in "eq ne lt le gt ge".split()),
        *(getattr(_aten, name).Scalar for name in "remainder fmod floor_divide copysign".split()),
        _aten.floor_divide.default,
    }
)
# Operators that convert a number to a type, and raise where it does not fit.
_CONVERTING = frozenset(
    {
        _aten.full.default,
        _aten.full_like.default,
        _aten.fill.Scalar,
        _aten.scalar_tensor.default,
        _aten.clamp.default,
        _aten.clamp_min.default,
        _aten.clamp_max.default,
        _aten.masked_fill.Scalar,
        _aten.hardtanh.default,
        _aten.leaky_relu.default,
    }
)
# Those that take a factor besides, which they convert as well.
_SCALING = frozenset({_aten.add.Tensor, _aten.sub.Tensor})
_FITTING = (torch.float32, torch.float64, torch.bfloat16)


@dataclass(frozen=True)
class SizeNumber(NumberValue):
    """A number that follows from sizes; it is finite.

    Attributes:
        symbolic: What torch knows of it.
    """

    symbolic: torch.SymFloat = field(kw_only=True)


@dataclass(frozen=True)
class _Term:
    """A number within the formula of another.

    Attributes:
        value: It, in float64.
        most: No absolute value of it is above this.
        is_product: Whether it is a product, which may not be rounded before it is added.
    """

    value: Node
    most: float
    is_product: bool = False


class SizeNumbers:
    """Makes nodes of a graph that compute Python numbers into parts of kernels.

    Args:
        sizes: The sizes of the graph.
        values: What is known of its nodes.
    """

    def __init__(self, sizes: SizeTable, values: Mapping[fx.Node, object]) -> None:
        self._sizes = sizes
        self._values = values

    def taken_by(self, node: fx.Node, dtype: torch.dtype, *, named: bool = False) -> bool:
        """Whether kernels of a call, with a result of a type, compute such numbers.

        Args:
            node: The call.
            dtype: The type.
            named: Whether the numbers are given by name.
        """
        target = node.target
        converting = target in (_SCALING if named else _CONVERTING) and dtype in _FITTING
        return converting or (target in _COMPUTING and not named)

    def number(self, node: fx.Node, device: torch.device) -> SizeNumber:
        """Return what a node computes, as kernels of a device do.

        Raises:
            NotLowered: They may compute something else than Python, or it is too late for guards.
        """
        symbolic = self._values[node]
        assert isinstance(symbolic, torch.SymFloat)
        term = self._term(node, device)
        return SizeNumber((), _F64, device, lambda index: term.value, symbolic=symbolic)

    def _term(self, given: object, device: torch.device) -> _Term:
        if isinstance(given, fx.Node):
            known = self._values[given]
            if isinstance(known, torch.SymFloat):
                return self._computed(given, device)
            given = known
        if isinstance(given, Expr):
            self._sizes.require_within(given, _EXACT)
            return _Term(ops.cast(_integer(given), _F64), float(_EXACT))
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            raise NotLowered("a number of another kind")
        if not math.isfinite(given) or (isinstance(given, int) and abs(given) > _EXACT):
            raise NotLowered("a number that may be no finite float64")
        return _Term(ops.const(float(given), _F64), abs(float(given)))

    def _computed(self, node: fx.Node, device: torch.device) -> _Term:
        """Return what a call of Python's comes to."""
        target = node.target
        if node.kwargs:
            raise NotLowered("a number with options")
        terms = [self._term(each, device) for each in node.args]
        if target in (operator.neg, operator.abs, abs):
            (x,) = terms
            name = "neg" if target is operator.neg else "abs"
            return _Term(ops.unary(name, x.value), x.most, x.is_product)
        if target is torch.sym_float:
            return terms[0]
        if len(terms) != 2:
            raise NotLowered(f"{getattr(target, '__name__', target)} of a number")
        x, y = terms
        if target is operator.truediv:
            self._require_divisor(node.args[1])
            least = abs(node.args[1]) if isinstance(node.args[1], (int, float)) else 1
            return _finite(ops.binary("truediv", x.value, y.value), x.most / min(least, 1))
        if target is operator.mul:
            product = ops.binary("mul", x.value, y.value)
            return _finite(product, x.most * y.most, is_product=True)
        if target in (operator.add, operator.sub):
            if device.type != CPU and (x.is_product or y.is_product):
                raise NotLowered("a product within a sum may not be rounded before")
            name = "add" if target is operator.add else "sub"
            return _finite(ops.binary(name, x.value, y.value), x.most + y.most)
        if target in (torch.sym_min, torch.sym_max):
            # Python's: the first, where they are equal
            beyond = ops.binary("lt" if target is torch.sym_min else "gt", y.value, x.value)
            return _Term(ops.where(beyond, y.value, x.value), max(x.most, y.most))
        raise NotLowered(f"{getattr(target, '__name__', target)} of a number")

    def _require_divisor(self, given: object) -> None:
        """Guard a divisor not to be zero.

        Raises:
            NotLowered: It is no integer, or it is too late for guards.
        """
        known = self._values[given] if isinstance(given, fx.Node) else given
        if isinstance(known, Expr):
            self._sizes.require_unequal(known, 0)
        elif not isinstance(known, (int, float)) or not known:
            raise NotLowered("a divisor that may be zero")


def _integer(expr: Expr) -> Node:
    """Return an integer as a kernel computes it in 64 bits: sizes may be given in 32.

    Sums and products may wrap on the way to a number that is small. Quotients may not.

    Raises:
        NotLowered: There is one in it.
    """
    total: Node = ops.const(0, torch.int64)
    for monomial, factor in expr.terms.items():
        if not all(isinstance(atom, Symbol) for atom in monomial):
            raise NotLowered("a rounded quotient within a number")
        product: Node = ops.const(factor, torch.int64)
        for atom in monomial:
            size = ops.index_value(Expr({(atom,): 1}), torch.int64)
            product = ops.binary("mul", product, size)
        total = ops.binary("add", total, product)
    return total


def _finite(value: Node, most: float, *, is_product: bool = False) -> _Term:
    if not most < _LARGE:
        raise NotLowered("a number that may be too large")
    return _Term(value, most, is_product)


__all__ = ["SizeNumber", "SizeNumbers"]
