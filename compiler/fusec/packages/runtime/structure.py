"""Arguments and results as trees: tuples, lists and dictionaries, with leaves that have numbers.

A call's arguments are taken apart into leaves (tensors and plain values) in one fixed order; a
result is put together again from the program's outputs.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

from .errors import DamagedPackage
from .json_text import Reader


def flatten(value: Any, leaves: list[Any]) -> Any:
    """Return the form of a value and append its leaves, in order.

    The form is JSON: ``"*"`` for a leaf, ``{"tuple": [...]}``, ``{"list": [...]}`` and
    ``{"dict": [[key, form], ...]}``. Dictionaries whose keys are no texts are leaves.
    """
    kind = type(value)
    if kind in (tuple, list):
        name = "tuple" if kind is tuple else "list"
        return {name: [flatten(each, leaves) for each in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": [[key, flatten(each, leaves)] for key, each in value.items()]}
    leaves.append(value)
    return "*"


def names_of(form: Any, name: str) -> list[str]:
    """Return what each leaf is called: ``batch['ids']``, ``pair[1]``."""
    if form == "*":
        return [name]
    ((kind, items),) = form.items()
    if kind == "dict":
        return [leaf for key, each in items for leaf in names_of(each, f"{name}[{key!r}]")]
    return [leaf for i, each in enumerate(items) for leaf in names_of(each, f"{name}[{i}]")]


def check_form(form: Any, place: str, depth: int = 0) -> Any:
    """Return a form that was read.

    Raises:
        DamagedPackage: It is none.
    """
    if form == "*":
        return form
    if isinstance(form, dict) and len(form) == 1 and depth < 30:
        ((kind, items),) = form.items()
        if kind in ("tuple", "list") and isinstance(items, list):
            for each in items:
                check_form(each, place, depth + 1)
            return form
        pairs = isinstance(items, list) and all(
            isinstance(each, list) and len(each) == 2 and isinstance(each[0], str) for each in items
        )
        if kind == "dict" and pairs:
            for _, each in items:
                check_form(each, place, depth + 1)
            return form
    raise DamagedPackage(f"{place}: that is not a form of arguments")


def difference(found: Any, wanted: Any, name: str = "") -> str:
    """Return where the form of a call's arguments is another one, in words; nothing if nowhere."""
    if found == wanted:
        return ""
    kinds = [each if each == "*" else next(iter(each)) for each in (found, wanted)]
    where = name or "the arguments"
    if kinds[0] != kinds[1]:
        left, right = (_KINDS[each] for each in kinds)
        return f"{where} is {left}; packaged for {right}"
    items, others = found[kinds[0]], wanted[kinds[0]]
    if kinds[0] != "dict":
        if len(items) != len(others):
            return f"{where} has {len(items)} parts; packaged for {len(others)}"
        parts = enumerate(zip(items, others, strict=True))
        return next(filter(None, (difference(*pair, f"{name}[{i}]") for i, pair in parts)), "")
    keys, known = ([key for key, _ in each] for each in (items, others))
    if keys != known:
        order = " in this order" if sorted(keys) == sorted(known) else ""
        word = "keys " if name else ""
        here, there = (", ".join(each) or "none" for each in (keys, known))
        return f"{where} {'has' if name else 'are'} {word}{here}; packaged for {there}{order}"
    pairs = zip(items, others, strict=True)
    named = ((a, b, f"{name}[{key!r}]" if name else key) for (key, a), (_, b) in pairs)
    return next(filter(None, (difference(*each) for each in named)), "")


_KINDS = {"*": "one value", "tuple": "a tuple", "list": "a list", "dict": "a dictionary"}
Builder = Callable[[Sequence[Any], Sequence[Any]], Any]


def builder(result: Any, outputs: int, leaves: int, place: str) -> Builder:
    """Return what puts a result together from the program's outputs and the call's leaves.

    Args:
        result: JSON: ``{"output": 0}``, ``{"leaf": 1}`` for what the call gave, ``{"value": ...}``,
            or ``tuple``, ``list``, ``dict`` and ``named`` of those.
        outputs: How many outputs there are.
        leaves: How many leaves a call has.
        place: For messages.

    Raises:
        DamagedPackage: It names what is not there.
    """
    reader = Reader(result, place)
    if reader.has("output"):
        number = reader.number("output", 0, outputs - 1)
        return lambda made, given: made[number]
    if reader.has("leaf"):
        leaf = reader.number("leaf", 0, leaves - 1)
        return lambda made, given: given[leaf]
    if reader.has("value"):
        value = Reader(reader.raw("value"), place)
        plain = value.raw("plain")
        if plain is not None and not isinstance(plain, (bool, int, str, float)):
            raise DamagedPackage(f"{place}: a value of another kind")
        if value.has("float"):
            plain = float(value.text("float"))
        return lambda made, given: plain
    for kind in ("tuple", "list", "dict", "named"):
        if reader.has(kind):
            return _container(reader, kind, outputs, leaves)
    raise DamagedPackage(f"{place}: that is not a result")


def _container(reader: Reader, kind: str, outputs: int, leaves: int) -> Builder:
    place = reader.place
    if kind == "dict":
        pairs = reader.items(kind)
        if not all(isinstance(e, list) and len(e) == 2 and isinstance(e[0], str) for e in pairs):
            raise DamagedPackage(f"{place}: that is not a dictionary")
        named = [(key, builder(each, outputs, leaves, place)) for key, each in pairs]
        return lambda made, given: {key: make(made, given) for key, make in named}
    makers = [builder(each, outputs, leaves, place) for each in reader.items(kind)]
    if kind == "list":
        return lambda made, given: [make(made, given) for make in makers]
    if kind == "tuple":
        return lambda made, given: tuple([make(made, given) for make in makers])
    fields = reader.texts("fields")
    try:
        made_type = namedtuple(reader.text("name"), fields)  # type: ignore[misc]
    except ValueError:
        raise DamagedPackage(f"{place}: that is not a named tuple") from None
    if len(fields) != len(makers):
        raise DamagedPackage(f"{place}: as many fields as values are needed")
    return lambda made, given: made_type(*[make(made, given) for make in makers])


__all__ = ["Builder", "builder", "check_form", "difference", "flatten", "names_of"]
