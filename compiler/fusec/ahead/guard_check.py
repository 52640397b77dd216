"""Hold a table of guards against a frame: slowly, with words, and then as fast as Python can.

The first call that fits is looked at row by row, by value.  From then on the same rows are one
function of straight-line Python, which compares with the objects that were found: types and code by
identity, tensors by torch's own native guards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from fusec.ahead.guard_table import GLOBALS, LOCALS, GuardRow, GuardTable
from fusec.ahead.guard_words import asked, seen
from fusec.ahead.places import (
    GLOBAL_HOOKS,
    HOOKS,
    RELATION_NAMES,
    Places,
    class_name,
    hooks_of,
    relation_code,
    tensor_facts,
)
from fusec.capture.guards.described import readable_name
from fusec.compiled.references import JSON, NotKept, constant, reference
from fusec.freezing import Unfit

_NOTHING = (ArithmeticError, LookupError, AttributeError, TypeError, ValueError, NotKept)
_EARLY = frozenset({"state", "modes", "default device", "hooks", "global hooks"})
_EXPRESSIONS = {
    "name": "{0}[{1!r}]",
    "item": "{0}[{1!r}]",
    "global": "{0}[{1!r}]",
    "own attribute": "object.__getattribute__({0}, {1!r})",
    "dict": "{0}.__dict__",
    "type": "type({0})",
    "class dict": "{0}.__dict__",
    "mro": "{0}.__mro__",
    "code": "{0}.__code__",
    "defaults": "{0}.__defaults__",
    "kwdefaults": "{0}.__kwdefaults__",
    "closure": "{0}.__closure__",
    "key": "list({0})[{1}]",
    "value": "list({0}.values())[{1}]",
}


class GuardCheck:
    """The check of one table.

    Attributes:
        table: The guards.
        space: Global names of the frame.
    """

    def __init__(self, table: GuardTable, space: Mapping[str, Any]) -> None:
        self.table = table
        self.space = space

    def misfit(self, values: Mapping[str, Any]) -> Unfit | None:
        """Return the first guard that does not hold, with what was found; None if all hold.

        Args:
            values: The frame's local names.
        """
        places = Places(values, self.space)
        for row in self.table.rows:
            found = self._found(row, places)
            if found != row.expected:
                what = asked(row, self.table.places[row.place].text, found)
                return Unfit(self.table.summary(), what, seen(row, found))
        names: dict[int, str] = {}
        for number in self.table.unaliased:
            tensor = places.value(self.table.places, number)
            name = readable_name(self.table.places[number].text)
            if id(tensor) in names:
                other = names[id(tensor)]
                what = f"{name} and {other} are two tensors"
                return Unfit(self.table.summary(), what, "one tensor")
            names[id(tensor)] = name
        return None

    def _found(self, row: GuardRow, places: Places) -> JSON:
        if row.kind in _EARLY:
            return _state_found(row)
        try:
            if row.kind == "relation":
                return row.expected if places.relation(row.expected) else "it does not hold"
            value = places.value(self.table.places, row.place)
            return _observed(row, value)
        except _NOTHING as error:
            return {"nothing": f"{type(error).__name__} {error}"}

    def compiled(self, values: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
        """Return the check as a function; the table fits ``values``.

        Args:
            values: The frame's local names.
        """
        return _Writer(self, values).function()


def _observed(row: GuardRow, value: Any) -> JSON:
    """Return what a row asks for, as it is of a value."""
    expected = row.expected
    match row.kind:
        case "tensor":
            facts = tensor_facts(value)
            for name in ("shape", "strides"):
                if len(facts[name]) == len(expected[name]):
                    pairs = zip(facts[name], expected[name], strict=True)
                    facts[name] = [None if asked is None else found for found, asked in pairs]
            return facts
        case "type":
            return class_name(type(value))
        case "same":
            return reference(value)
        case "constant":
            return constant(value)
        case "length":
            return len(value)
        case "contains":
            return {"key": expected["key"], "there": expected["key"] in value}
        case "attribute":
            return "it is there" if hasattr(value, expected) else expected
        case "module hooks":
            return hooks_of(value)
    raise NotKept(f"a guard of kind {row.kind!r}")


def _state_found(row: GuardRow) -> JSON:
    if row.kind == "modes":
        return torch._C._len_torch_function_stack()
    if row.kind == "default device":
        device = torch.utils._device.CURRENT_DEVICE
        return None if device is None else str(device)
    if row.kind == "global hooks":
        return [name for name in GLOBAL_HOOKS if vars(torch.nn.modules.module)[name]]
    if row.kind == "hooks":
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        return None if hooks is None else "hooks on saved tensors"
    state = state_guard(row.expected)
    if state.check():
        return row.expected
    guard: Any = torch._C._dynamo.guards.GlobalStateGuard()
    now: JSON = json.loads(guard.__getstate__())
    return now if now != row.expected else {"state": state.reason().strip()}


def state_guard(expected: JSON) -> Any:
    """Return torch's own check of its global state.

    Args:
        expected: The state that it asks for.
    """
    guard: Any = torch._C._dynamo.guards.GlobalStateGuard()
    guard.__setstate__(json.dumps(expected))
    return guard


class _Writer:
    """Writes a table as a Python function."""

    def __init__(self, check: GuardCheck, values: Mapping[str, Any]) -> None:
        self.table, self.check = check.table, check
        self.places = Places(values, check.space)
        self.names: dict[str, Any] = {"G": check.space, "AD": forward_ad, **RELATION_NAMES}
        self.lines: list[str] = []
        self.written = {LOCALS: "L", GLOBALS: "G"}
        self.marks: dict[str, list[str]] = {}  # attributes that tensors must not have
        self.tensors: dict[int, int] = {}  # by the place: which tensor it is of those checked

    def at(self, number: int) -> str:
        if number not in self.written:
            place = self.table.places[number]
            parent = self.at(place.parent)
            name = f"p{number}"
            if place.step == "attribute":
                text = f"getattr({parent}, {place.key!r})"
            else:
                text = _EXPRESSIONS[place.step].format(parent, place.key)
            self.lines.append(f"{name} = {text}")
            self.written[number] = name
        return self.written[number]

    def value(self, number: int) -> Any:
        return self.places.value(self.table.places, number)

    def given(self, value: Any) -> str:
        name = f"v{len(self.names)}"
        self.names[name] = value
        return name

    def refuse(self, condition: str) -> None:
        self.lines.append(f"if {condition}: return False")

    def function(self) -> Callable[[Mapping[str, Any]], bool]:
        # within a level of forward-mode AD, inputs may have tangents, which kernels leave behind
        self.refuse("AD._current_level >= 0")
        for row in sorted(self.table.rows, key=lambda row: row.kind not in _EARLY):
            self.row(row)
        self.check_tensors()
        self.check_marks()
        body = "\n".join(f"        {line}" for line in self.lines)
        text = f"def check(L):\n    try:\n{body}\n        return True\n    except ERRORS:\n"
        text += "        return False\n"
        self.names["ERRORS"] = (ArithmeticError, LookupError, AttributeError, TypeError, ValueError)
        exec(compile(text, "<guards of an artefact>", "exec"), self.names)
        found: Callable[[Mapping[str, Any]], bool] = self.names["check"]
        return found

    def row(self, row: GuardRow) -> None:
        kind, expected = row.kind, row.expected
        if kind == "state":
            self.refuse(f"not {self.given(state_guard(expected).check)}()")
        elif kind == "modes":
            self.refuse(f"{self.given(torch._C._len_torch_function_stack)}()")
        elif kind == "default device":
            self.refuse(f"{self.given(torch.utils._device)}.CURRENT_DEVICE is not None")
        elif kind == "hooks":
            hooks = self.given(torch._C._autograd._top_saved_tensors_default_hooks)
            self.refuse(f"{hooks}(True) is not None")
        elif kind == "global hooks":
            module = self.given(torch.nn.modules.module)
            self.refuse(" or ".join(f"{module}.{name}" for name in GLOBAL_HOOKS))
        elif kind == "relation":
            relation_code(expected)  # it only compares
            self.refuse(f"not ({expected})")
        elif kind == "tensor":
            self.at(row.place)
            self.tensors.setdefault(row.place, len(self.tensors))
        else:
            self.value_row(row)

    def value_row(self, row: GuardRow) -> None:
        where, value = self.at(row.place), self.value(row.place)
        match row.kind:
            case "type":
                self.refuse(f"type({where}) is not {self.given(type(value))}")
            case "same":
                self.refuse(f"{where} is not {self.given(value)}")
            case "constant" if value is None or type(value) is bool:
                self.refuse(f"{where} is not {value}")
            case "constant":
                name = self.given(value)
                self.refuse(f"type({where}) is not type({name}) or {where} != {name}")
            case "length":
                self.refuse(f"len({where}) != {row.expected}")
            case "contains":
                sign = "not in" if row.expected["there"] else "in"
                self.refuse(f"{row.expected['key']!r} {sign} {where}")
            case "module hooks":
                given = [f"{where}.{name}" for name in HOOKS if name in vars(value)]
                self.refuse(" or ".join(given) or "False")
            case "attribute" if isinstance(value, torch.Tensor):
                self.marks.setdefault(where, []).append(row.expected)
            case "attribute":
                self.refuse(f"hasattr({where}, {row.expected!r})")

    def check_marks(self) -> None:
        """See that tensors lack attributes; most of them have none of their own."""
        by_names: dict[tuple[str, ...], list[str]] = {}
        for where, names in self.marks.items():
            by_names.setdefault(tuple(sorted(set(names))), []).append(where)
        for absent, places in by_names.items():
            self.lines.append(f"for each in ({', '.join(places)},):")
            tests = " or ".join(f"hasattr(each, {name!r})" for name in absent)
            self.lines.append(f"    if each.__dict__ and ({tests}): return False")

    def check_tensors(self) -> None:
        """Ask torch's native guards of all tensors; one that stands at two places is asked once."""
        asked: dict[int, tuple[int, torch.Tensor, JSON]] = {}
        rows = {row.place: row for row in self.table.rows if row.kind == "tensor"}
        for number in self.tensors:
            tensor = self.value(number)
            if id(tensor) in asked:
                first = asked[id(tensor)][0]
                self.refuse(f"{self.at(number)} is not {self.at(first)}")
            else:
                asked[id(tensor)] = (number, tensor, rows[number].expected)
        if not asked:
            return
        guards: Any = torch._C._dynamo.guards.TensorGuards(
            *[tensor for _, tensor, _ in asked.values()],
            dynamic_dims_sizes=[expected["shape"] for _, _, expected in asked.values()],
            dynamic_dims_strides=[expected["strides"] for _, _, expected in asked.values()],
        )
        given = ", ".join(self.at(number) for number, _, _ in asked.values())
        self.refuse(f"not {self.given(guards.check)}({given})")


__all__ = ["GuardCheck", "state_guard"]
