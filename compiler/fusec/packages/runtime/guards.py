"""The table of guards: what a call must be so that a program serves it, and which guard failed.

A guard is about a leaf of the call: its type, sizes, strides and device, or the very value that
Python code saw when it was packaged. The table is JSON that people read; nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import expressions
from .errors import DamagedPackage
from .expressions import Expression
from .json_text import Reader
from .layout import ITEM_BYTES, StoredProgram
from .structure import check_form, difference, names_of


@dataclass(frozen=True)
class TensorFacts:
    """What guards ask of a tensor.

    Attributes:
        dtype: Its type's name.
        shape: Sizes.
        strides: In elements.
        device: ``cpu``, ``cuda:0``.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str


@dataclass(frozen=True)
class TensorGuard:
    """What a tensor must be."""

    name: str
    dtype: str
    shape: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    device: str

    def failure(
        self,
        facts: TensorFacts | None,
        value: object,
        sizes: dict[str, int],
        names: Mapping[str, str],
    ) -> str:
        """Return what is wrong with a value, in words; nothing where it fits."""
        if facts is None:
            layout = str(getattr(value, "layout", "")).removeprefix("torch.")  # sparse_coo
            kind = f"a tensor of layout {layout}" if layout else _said(value)
            return f"{self.name} is {kind}; a plain tensor is expected"
        if facts.dtype != self.dtype:
            return f"{self.name} is {facts.dtype}; packaged for {self.dtype}"
        if facts.device != self.device:
            return f"{self.name} is on {facts.device}; packaged for {self.device}"
        wanted = [expressions.evaluate(each, sizes) for each in self.shape]
        if len(facts.shape) != len(wanted):
            return f"{self.name} has {len(facts.shape)} dimensions; packaged for {len(wanted)}"
        if list(facts.shape) != wanted:
            where = next(
                i for i, (a, b) in enumerate(zip(facts.shape, wanted, strict=True)) if a != b
            )
            size = expressions.text(self.shape[where], names)
            known = size if size == str(wanted[where]) else f"{size}, {wanted[where]} here"
            return f"size {where} of {self.name} is {facts.shape[where]}; packaged for {known}"
        if 0 in wanted:
            return ""
        for i, (count, stride) in enumerate(zip(wanted, facts.strides, strict=True)):
            step = expressions.evaluate(self.strides[i], sizes)
            if count != 1 and stride != step:
                return (
                    f"{self.name} lies in memory with stride {stride} at dimension {i}; "
                    f"packaged for {step}"
                )
        return ""


@dataclass(frozen=True)
class ValueGuard:
    """A plain value that Python code saw: it must be the same one again."""

    name: str
    value: Any
    free: bool = False  # whether any whole number will do: it is a size

    def failure(
        self,
        facts: TensorFacts | None,
        value: object,
        sizes: dict[str, int],
        names: Mapping[str, str],
    ) -> str:
        """As for ``TensorGuard``."""
        if self.free:
            return (
                ""
                if type(value) is int
                else f"{self.name} is {_said(value)}; a whole number is expected"
            )
        if facts is not None or not same_value(value, self.value):
            return f"{self.name} is {_said(value)}; packaged for {self.value!r}"
        return ""


def same_value(left: object, right: object) -> bool:
    """Whether Python code cannot tell two plain values apart: 1, 1.0 and True are three."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return repr(left) == repr(right)  # -0.0 is not 0.0, NaN is NaN
    return left == right


@dataclass(frozen=True)
class Unusable:
    """A value that is none: every guard refuses it.

    Attributes:
        said: What it is, in words.
    """

    said: str


def _said(value: object) -> str:
    if isinstance(value, Unusable):
        return value.said
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)[:60]
    return f"a {type(value).__name__}"


Guard = TensorGuard | ValueGuard


@dataclass(frozen=True)
class Specialization:
    """One entry of the table.

    Attributes:
        name: Unique in the package.
        form: The arguments as a tree; see ``structure``.
        guards: One for each leaf, in order.
        program: The member that holds the program.
        result: How the result is put together; JSON.
        fixed: Dimensions that were to stay dynamic and did not, with the reason and the line.
    """

    name: str
    form: Any
    guards: tuple[Guard, ...]
    program: str
    result: Any
    fixed: tuple[str, ...]

    def failure(
        self,
        form: Any,
        leaves: Sequence[Any],
        facts: Sequence[TensorFacts | None],
        program: StoredProgram,
    ) -> tuple[str, dict[str, int]]:
        """Return the guard that fails, in words, and the sizes that the call brings.

        Args:
            form: Of the call's arguments.
            leaves: Of the call.
            facts: Of each leaf that is a tensor; None of the others.
            program: What would serve it.
        """
        sizes: dict[str, int] = {}
        if form != self.form:
            return difference(form, self.form), sizes
        for size in program.sizes:
            name = self.guards[size.leaf].name
            value, known = leaves[size.leaf], facts[size.leaf]
            if size.dimension is None:
                if type(value) is not int:
                    return f"{name} is {_said(value)}; a whole number is expected", sizes
                found, place = value, name
            elif known is None or len(known.shape) <= size.dimension:
                guard = self.guards[size.leaf]
                return guard.failure(known, value, sizes, {}) if known is None else _few(
                    name
                ), sizes
            else:
                found, place = known.shape[size.dimension], f"size {size.dimension} of {name}"
            if not size.low <= found <= size.high:
                bound = f"{size.low} and more" if found < size.low else f"{size.high} at most"
                return f"{place} is {found}; packaged for {bound}", sizes
            sizes[size.name] = found
        names = self.size_names(program)
        try:
            for guard, value, known in zip(self.guards, leaves, facts, strict=True):
                reason = guard.failure(known, value, sizes, names)
                if reason:
                    return reason, sizes
            for condition, words in program.conditions:
                if not expressions.evaluate(condition, sizes):
                    return f"the sizes must satisfy {words}", sizes
        except ZeroDivisionError:
            return "a size is zero where the program divides by it", sizes
        return "", sizes

    def size_names(self, program: StoredProgram) -> dict[str, str]:
        """Return what a user calls the sizes of a program, by their names in it."""
        named = ((size.name, self.guards[size.leaf].name, size.dimension) for size in program.sizes)
        return {symbol: size_name(name, dimension) for symbol, name, dimension in named}


def size_name(name: str, dimension: int | None) -> str:
    """Return what a user calls the size that an argument brings: ``x.shape[0]``."""
    return name if dimension is None else f"{name}.shape[{dimension}]"


def _few(name: str) -> str:
    return f"{name} has too few dimensions"


def read_guards(
    reader: Reader, sizes_of: Callable[[str], frozenset[str]]
) -> tuple[Specialization, ...]:
    """Return the table that was read.

    Args:
        reader: Its JSON.
        sizes_of: The names of the sizes of a program's member.

    Raises:
        DamagedPackage: Something in it means nothing.
    """
    found = []
    for each in reader.readers("specializations"):
        program = each.text("program")
        names = sizes_of(program)
        form = check_form(each.raw("arguments"), each.place)
        guards = tuple(_guard(leaf, names) for leaf in each.readers("leaves"))
        if len(names_of(form, "")) != len(guards):
            raise DamagedPackage(f"{each.place}: as many guards as leaves are needed")
        found.append(
            Specialization(
                each.text("name"), form, guards, program, each.raw("result"), each.texts("fixed")
            )
        )
    if not found or len({each.name for each in found}) != len(found):
        raise DamagedPackage(f"{reader.place}: specializations need names of their own")
    return tuple(found)


def _guard(reader: Reader, names: frozenset[str]) -> Guard:
    name = reader.text("name")
    if reader.has("value"):
        value = Reader(reader.raw("value"), reader.place)
        if value.has("size"):
            return ValueGuard(name, None, free=True)
        if value.has("float"):
            return ValueGuard(name, float(value.text("float")))
        plain = value.raw("plain")
        if plain is not None and not isinstance(plain, (bool, int, str)):
            raise DamagedPackage(f"{reader.place}: a value of another kind")
        return ValueGuard(name, plain)
    dtype = reader.text("dtype")
    shape = tuple(expressions.check(e, names, reader.place) for e in reader.items("shape"))
    strides = tuple(expressions.check(e, names, reader.place) for e in reader.items("strides"))
    if dtype not in ITEM_BYTES or len(shape) != len(strides):
        raise DamagedPackage(f"{reader.place}: that is not a tensor")
    return TensorGuard(name, dtype, shape, strides, reader.text("device"))


__all__ = [
    "Guard",
    "Specialization",
    "TensorFacts",
    "TensorGuard",
    "Unusable",
    "ValueGuard",
    "read_guards",
    "same_value",
    "size_name",
]
