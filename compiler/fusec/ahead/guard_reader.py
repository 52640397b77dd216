"""Read TorchDynamo's native tree of guards into a table.

Every question of the tree is understood, or the whole is refused: an artefact must never be used
where TorchDynamo would have compiled anew.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

import torch

from fusec.ahead.guard_table import GLOBALS, LOCALS, GuardPlace, GuardRow, GuardTable
from fusec.ahead.places import Places, class_name, hooks_of, tensor_facts
from fusec.compiled.references import JSON, NotKept, constant, reference

_HOOKS = "top_saved_tensors_hooks ids == None"
_NO_DEVICE = "utils_device.CURRENT_DEVICE == None"
# How torch 2.11 asks for a number of Python's.
_AS_TENSOR = re.compile(r"___as_tensor\(([LG]\[[^()]*)\)\.item\(\)")
# TorchDynamo's accessors without a key, and the step that each is.
_STEPS: Mapping[str, tuple[str, ...]] = {
    "GetGenericDictGuardAccessor": ("dict",),
    "TypeGuardAccessor": ("type",),
    "TypeDictGuardAccessor": ("class dict",),
    "TypeMROGuardAccessor": ("mro",),
    "CodeGuardAccessor": ("code",),
    "FuncDefaultsGuardAccessor": ("defaults",),
    "FuncKwDefaultsGuardAccessor": ("kwdefaults",),
    "ClosureGuardAccessor": ("closure",),
}
_ITEMS = frozenset(
    "DictGetItemGuardAccessor GetItemGuardAccessor TupleGetItemGuardAccessor "
    "ListGetItemGuardAccessor".split()
)


def read_guards(root: Any, values: Mapping[str, Any], space: Mapping[str, Any]) -> GuardTable:
    """Return a tree as a table.

    Args:
        root: The tree; it holds for ``values``.
        values: The frame's local names, those of its closure among them.
        space: Its global names.

    Raises:
        NotKept: It asks something that cannot be written down.
    """
    reader = _Reader(values, space)
    reader.leaves(root, LOCALS)
    reader.children(root, LOCALS)
    for leaf in root.get_epilogue_lambda_guards():
        for text in _texts(leaf):
            reader.relation(text)
    reader.hooks()
    return GuardTable(tuple(reader.places), tuple(reader.rows), tuple(reader.unaliased))


class _Reader:
    def __init__(self, values: Mapping[str, Any], space: Mapping[str, Any]) -> None:
        self.places = [GuardPlace(-1, "locals", None, "L"), GuardPlace(-1, "globals", None, "G")]
        self.known: dict[tuple[int, str, str], int] = {}
        self.rows: list[GuardRow] = []
        self.unaliased: list[int] = []
        self.space = space
        self.values = Places(values, space)

    def place(self, parent: int, step: str, key: JSON, text: str) -> int:
        name = (parent, step, json.dumps(key))
        if name not in self.known:
            self.known[name] = len(self.places)
            self.places.append(GuardPlace(parent, step, key, text))
        return self.known[name]

    def value(self, number: int) -> Any:
        return self.values.value(self.places, number)

    def ask(self, number: int, kind: str, expected: JSON, text: str) -> None:
        row = GuardRow(number, kind, expected, text)
        if row not in self.rows[-4:]:
            self.rows.append(row)

    # -- the tree -------------------------------------------------------------------------

    def children(self, manager: Any, number: int) -> None:
        if type(manager).__name__ == "DictGuardManager":
            for position, (key, value) in sorted(manager.get_key_value_managers().items()):
                for step, child in (("key", key), ("value", value)):
                    if child is not None:
                        there = self.place(number, step, position, child.get_source())
                        self.node(child, there)
            return
        accessors, managers = manager.get_accessors(), manager.get_child_managers()
        if len(accessors) != len(managers):
            raise NotKept("guards of another release of torch")
        for accessor, child in zip(accessors, managers, strict=True):
            self.node(child, self.step(accessor, child, number))

    def node(self, manager: Any, number: int) -> None:
        self.leaves(manager, number)
        self.children(manager, number)

    def step(self, accessor: Any, child: Any, parent: int) -> int:
        kind, text = type(accessor).__name__, child.get_source()
        if not hasattr(accessor, "repr"):
            raise NotKept("guards of another release of torch")
        inner = _inner(accessor.repr())
        if kind == "GlobalsGuardAccessor":
            return GLOBALS
        if kind == "FrameLocalsGuardAccessor":
            match = re.match(r"key='([^']*)'", inner)
            if match is None:
                raise NotKept(f"a guard on {text}")
            return self.place(LOCALS, "name", match[1], text)
        if kind == "GetAttrGuardAccessor":
            return self.place(parent, "attribute", inner, text)
        if kind == "GenericGetAttrGuardAccessor":
            return self.place(parent, "own attribute", inner, text)
        if kind in _ITEMS:
            return self.place(parent, "item", _literal(inner, text), text)
        if kind in _STEPS:
            return self.place(parent, _STEPS[kind][0], None, text)
        raise NotKept(f"a guard on {text}, which is reached in another way ({kind})")

    # -- the questions --------------------------------------------------------------------

    def leaves(self, manager: Any, number: int) -> None:
        for leaf in manager.get_leaf_guards():
            self.leaf(leaf, number)

    def leaf(self, leaf: Any, number: int) -> None:
        kind, texts = type(leaf).__name__, _texts(leaf)
        words = texts[0] if texts else ""
        if kind == "TENSOR_MATCH":
            self.ask(number, "tensor", _tensor(words, self.value(number)), words)
        elif kind == "TYPE_MATCH":
            self.ask(number, "type", class_name(type(self.value(number))), words)
        elif kind == "ID_MATCH":
            self.ask(number, "same", reference(self.value(number)), words)
        elif kind in ("EQUALS_MATCH", "NONE_MATCH", "TRUE_MATCH", "FALSE_MATCH"):
            self.ask(number, "constant", constant(self.value(number)), words)
        elif kind in ("LENGTH_CHECK", "DICT_LENGTH"):
            self.ask(number, "length", len(self.value(number)), words)
        elif kind == "DICT_CONTAINS":
            self.ask(number, "contains", _contains(words), words)
        elif kind == "NO_HASATTR":
            self.ask(number, "attribute", _no_attribute(words), words)
        elif kind == "DIMENSION_DYNAMIC_MARKING_GUARD":
            for text in texts:
                self.ask(number, "attribute", _no_attribute(text), text)
        elif kind == "NO_TENSOR_ALIASING":
            if number not in self.unaliased:
                self.unaliased.append(number)
        elif kind == "GLOBAL_STATE":
            self.ask(number, "state", _state(words), words)
        elif kind == "TORCH_FUNCTION_MODE_STACK" and not torch._C._len_torch_function_stack():
            self.ask(number, "modes", 0, words)
        elif kind == "DEFAULT_DEVICE" and words.startswith(_NO_DEVICE):
            self.ask(number, "default device", None, words)
        elif kind == "LAMBDA_GUARD" and all(_HOOKS in text for text in texts):
            self.ask(number, "hooks", None, words)
        else:
            raise NotKept(f"a guard that cannot be written down: {words or kind}")

    def hooks(self) -> None:
        """Ask that modules have no hooks, which TorchDynamo takes to be as when it captured."""
        self.ask(LOCALS, "global hooks", [], "no hooks on all modules")
        for number, place in enumerate(self.places):
            value = self.value(number)
            if isinstance(value, torch.nn.Module):
                if hooks_of(value):
                    raise NotKept(f"{place.text} has hooks")
                self.ask(number, "module hooks", [], f"no hooks on {place.text}")

    def relation(self, text: str) -> None:
        text = _AS_TENSOR.sub(r"\1", text).replace("object.__getattribute__(", "own(")
        self.values.relation(text)  # whether it is one that can be asked
        self.ask(LOCALS, "relation", text, text)


def _texts(leaf: Any) -> list[str]:
    return [part.split("  #", maxsplit=1)[0].strip() for part in leaf.verbose_code_parts()]


def _inner(text: str) -> str:
    """Return what is between the brackets of ``Name(...)``."""
    _, _, rest = text.partition("(")
    return rest[:-1]


def _literal(text: str, where: str) -> JSON:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise NotKept(f"a guard on an item with a key that is not a plain value: {where}") from None
    if type(value) not in (int, str):
        raise NotKept(f"a guard on an item with a key that is not a plain value: {where}")
    return value


def _tensor(text: str, value: Any) -> JSON:
    facts = tensor_facts(value)
    match = re.search(r", size=\[([^\[\]]*)\], stride=\[([^\[\]]*)\]\)$", text)
    if match is None:
        raise NotKept(f"a guard on a tensor that is not understood: {text}")
    for name, words in zip(("shape", "strides"), match.groups(), strict=True):
        parts = [part.strip() for part in words.split(",") if part.strip()]
        asked = [None if part == "None" else int(part) for part in parts]
        if len(asked) != len(facts[name]) or any(
            a not in (None, f) for a, f in zip(asked, facts[name], strict=True)
        ):
            raise NotKept(f"a guard on a tensor that does not hold any more: {text}")
        facts[name] = asked
    return facts


def _contains(text: str) -> JSON:
    there = not text.startswith("not ")
    match = re.match(r"(?:not )?___dict_contains\(('(?:[^'\\]|\\.)*'|\"[^\"]*\"|-?\d+), ", text)
    if match is None:
        raise NotKept(f"a guard on a dictionary's key that is not understood: {text}")
    return {"key": ast.literal_eval(match[1]), "there": there}


def _no_attribute(text: str) -> JSON:
    match = re.search(r"hasattr\(.*, '(\w+)'\)( == False)?$", text)
    if match is None or not (text.startswith("not ") or match[2]):
        raise NotKept(f"a guard on an attribute that is not understood: {text}")
    return match[1]


def _state(text: str) -> JSON:
    _, _, state = text.partition(" against ")
    try:
        return json.loads(state)
    except ValueError:
        raise NotKept("the state of torch, as another release of torch has it") from None


__all__ = ["read_guards"]
