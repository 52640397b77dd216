"""The numbers that a built kernel compares with or computes with, read from its file.

What a text says as ``2469.0f / 2``, ``sizeof(S)`` or ``M_PI`` is a plain number by then.  A
condition may be about it, and no drawn value ever meets it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

# What is less or more is no number of anybody's: the bits of something else.
_LEAST, _MOST = 1e-12, 1e15
_MOST_READ = 200


def constants(code: bytes, address: int, data: list[tuple[int, bytes]]) -> Iterator[float]:
    """Yield numbers of x86-64 instructions, those that something is compared with first.

    Args:
        code: A part of a library that is run.
        address: Where it lies.
        data: Parts that nobody writes, by where they lie.
    """
    from iced_x86 import Decoder

    others: list[float] = []
    for instruction in Decoder(64, code, ip=address):
        numbers = list(_numbers(instruction, data))
        if numbers and _compares(instruction):
            yield from numbers
        else:
            others += numbers
    yield from others[:_MOST_READ]


def _compares(instruction: Any) -> bool:
    name = _mnemonics()[instruction.mnemonic]
    return "COM" in name or "CMP" in name or name == "TEST"


_MNEMONICS: dict[int, str] = {}


def _mnemonics() -> dict[int, str]:
    from iced_x86 import Mnemonic

    if not _MNEMONICS:
        _MNEMONICS.update({getattr(Mnemonic, n): n for n in dir(Mnemonic) if n.isupper()})
    return _MNEMONICS


def _numbers(instruction: Any, data: list[tuple[int, bytes]]) -> Iterator[float]:
    from iced_x86 import OpKind

    if instruction.is_ip_rel_memory_operand:
        at = instruction.ip_rel_memory_address
        for start, content in data:
            if start <= at < start + len(content):
                yield from _read(content[at - start : at - start + 8])
    immediates = (
        OpKind.IMMEDIATE32,
        OpKind.IMMEDIATE64,
        OpKind.IMMEDIATE32TO64,
        OpKind.IMMEDIATE16,
    )
    for place in range(instruction.op_count):
        if instruction.op_kind(place) in immediates:
            value = instruction.immediate(place)
            yield from _plain(float(value if value < 1 << 63 else value - (1 << 64)))
            yield from _read((value & (1 << 64) - 1).to_bytes(8, "little"))


def _read(content: bytes) -> Iterator[float]:
    """Yield what bytes may mean: nobody says of which type they are."""
    if len(content) >= 4:
        yield from _plain(struct.unpack_from("<f", content)[0])
        yield from _plain(float(struct.unpack_from("<i", content)[0]))
    if len(content) >= 8:
        yield from _plain(struct.unpack_from("<d", content)[0])


def _plain(number: float) -> Iterator[float]:
    if math.isfinite(number) and _LEAST < abs(number) < _MOST:
        yield number


__all__ = ["constants"]
