"""Texts of PTX as Triton writes them, for lab 8: loads, how wide, behind a mask or not."""

from __future__ import annotations

import random
import re
from typing import Any

# What Triton 3.6 makes of the kernel of part 1 for an H100, without what declares things.
EXAMPLE = """\
	ld.param.b64 %rd3, [scale_kernel_param_0];
	ld.param.b64 %rd4, [scale_kernel_param_1];
	mov.u32 %r3, %ctaid.x;
	shl.b32 %r4, %r3, 4;
	ld.param.b32 %r5, [scale_kernel_param_2];
	mov.u32 %r6, %tid.x;
	and.b32 %r7, %r6, 15;
	or.b32 %r8, %r4, %r7;
	setp.lt.s32 %p1, %r8, %r5;
	mul.wide.s32 %rd5, %r8, 4;
	add.s64 %rd1, %rd3, %rd5;
	mov.u32 %r1, 0x0;
	@%p1 ld.global.b32 { %r1 }, [ %rd1 + 0 ];
	add.s64 %rd2, %rd4, %rd5;
	fma.rn.f32 %r9, %r1, 0f40000000, 0f3F800000;
	max.f32 %r2, %r9, 0f00000000;
	and.b32 %r10, %r6, 112;
	setp.eq.b32 %p3, %r10, 0;
	and.pred %p2, %p3, %p1;
	@%p2 st.global.b32 [ %rd2 + 0 ], { %r2 };
	ret;
"""
_LOAD = re.compile(r"^\s*(@!?%p\d+\s+)?ld\.global(\S*)", re.MULTILINE)


def loads(text: str) -> list[Any]:
    """Return how many loads there are, the bytes of all of them, and whether one is masked."""
    found = list(_LOAD.finditer(text))
    moved = 0
    for each in found:
        count = re.search(r"\.v(\d)", each[2])
        bits = re.search(r"\.[bfus](\d+)$", each[2])
        assert bits is not None
        moved += int(bits[1]) // 8 * (int(count[1]) if count else 1)
    return [len(found), moved, any(each[1] for each in found)]


def why(text: str, result: object) -> str:
    """Return what to look at where a result is wrong."""
    lines = [line.strip() for line in text.splitlines() if "ld.global" in line]
    shown = " ".join(lines[:3]) or "there is no load"
    return f"look at: {shown}"


def _access(rng: random.Random, verb: str, masked: bool, number: int) -> str:
    count, bits = rng.choice([(1, 16), (1, 32), (2, 32), (4, 32), (1, 64), (2, 64), (4, 16)])
    letter = rng.choice("bbbfu") if bits != 16 else "b"
    vector = f".v{count}" if count > 1 else ""
    cache = rng.choice(["", "", ".L1::evict_last", ".nc"]) if verb == "ld" else ""
    names = ", ".join(f"%r{number + n}" for n in range(count))
    guard = f"@%p{rng.randrange(1, 9)} " if masked else ""
    place = f"[ %rd{number} + 0 ]"
    operands = f"{{ {names} }}, {place}" if verb == "ld" else f"{place}, {{ {names} }}"
    return f"\t{guard}{verb}.global{cache}{vector}.{letter}{bits} {operands};"


def ptx(rng: random.Random, count: int, masked: bool, stores: int) -> str:
    """Return a text with loads and stores between what stands between them.

    Args:
        rng: What chooses.
        count: Of loads.
        masked: Whether one load, at least, stands behind a predicate.
        stores: Of stores, which may be masked or not.
    """
    marks = [masked and (n == 0 or rng.random() < 0.5) for n in range(count)]
    rng.shuffle(marks)
    lines = ["\tld.param.b64 \t%rd1, [kernel_param_0];", "\tmov.u32 \t%r1, %ctaid.x;"]
    lines.append("\tsetp.lt.s32 \t%p1, %r23, %r19;")
    for number, mark in enumerate(marks):
        lines += ["\t// begin inline asm", _access(rng, "ld", mark, 4 * number)]
        lines.append("\t// end inline asm")
    lines.append("\tfma.rn.f32 \t%r9, %r1, 0f40000000, 0f3F800000;")
    if rng.random() < 0.5:
        lines.append("\t@%p2 ld.shared.b32 \t%r7, [%r8];")
    lines += [_access(rng, "st", rng.random() < 0.5, 4 * n) for n in range(stores)]
    return "\n".join([*lines, "\tret;"]) + "\n"


def calls(rng: random.Random) -> list[list[Any]]:
    """Return texts, each as a call's arguments."""
    chosen = [(1, True, 1), (1, False, 1), (0, False, 1), (2, False, 2), (8, True, 8)]
    chosen += [(rng.randrange(1, 7), rng.random() < 0.5, rng.randrange(1, 4)) for _ in range(6)]
    return [[ptx(rng, count, masked, stores)] for count, masked, stores in chosen]


__all__ = ["EXAMPLE", "calls", "loads", "ptx", "why"]
