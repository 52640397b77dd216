"""What code would set attributes to, noted in place of being done.

TorchDynamo's code sets what the function set: by a helper of torch's in some releases, by the
instruction in others.  Of the instruction's place a copy of the code notes value and owner instead,
so that running it changes nothing and one can ask whether it would have changed anything.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any

_STORE = "STORE_ATTR"
_NOTE = "__stored_{}"
_BYTE = 256
_UNIT = 2  # bytes of an instruction, and of each of its caches
_TAKEN = 3  # units of what stands for it: a pair, and storing that under a name


def noting(code: CodeType) -> tuple[CodeType, dict[str, str]]:
    """Return code that notes what it would set, and which attribute each note is of.

    A note is a global of the code's: a pair of the value and whose attribute it is.
    """
    text, names = bytearray(code.co_code), list(code.co_names)
    notes: dict[str, str] = {}
    found = list(dis.get_instructions(code))
    ends = [each.offset for each in found[1:]] + [len(text)]
    for before, each, end in zip([None, *found], found, ends, strict=False):
        if each.opname != _STORE:
            continue
        if end - each.offset < _TAKEN * _UNIT:
            return code, {}  # a Python of which nothing is known: it stays as it is
        name = _NOTE.format(len(notes))
        notes[name] = str(each.argval)
        high, low = divmod(len(names), _BYTE)
        names.append(name)
        steps = [("BUILD_TUPLE", 2), ("EXTENDED_ARG", high), ("STORE_GLOBAL", low)]
        steps += [("NOP", 0)] * ((end - each.offset) // _UNIT - _TAKEN)
        text[each.offset : end] = bytes(
            part for step, argument in steps for part in (dis.opmap[step], argument)
        )
        if before is not None and before.opname == "EXTENDED_ARG":
            text[before.offset] = dis.opmap["NOP"]
            text[before.offset + 1] = 0
    return code.replace(co_code=bytes(text), co_names=tuple(names)), notes


def noted(space: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[tuple[Any, str, Any]]:
    """Yield owner, attribute and value of what code would have set when it ran.

    Args:
        space: The code's globals after it ran.
        notes: As ``noting`` returned them.
    """
    for name, attribute in notes.items():
        if name in space:
            value, owner = space[name]
            yield owner, attribute, value


__all__ = ["noted", "noting"]
