"""The words that results use, with what they mean: one list for results, labs and their guide."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

GLOSSARY: dict[str, str] = {
    "eager": (
        "PyTorch as it is: each operator runs when its line does, reads its inputs from "
        "memory and writes its result there"
    ),
    "frame": "what Python has of a running function: its variables, its stack, and where it is",
    "kernel": (
        "a function that loops over elements: what is generated here, one for several operators"
    ),
    "fusion": "several operators in one kernel, so that what is between them stays in registers",
    "extern call": (
        "an operator that runs as ATen's own kernel, such as a matrix product; nothing is "
        "fused into it"
    ),
    "graph": "what was captured of a function: operators, and who reads what",
    "graph break": (
        "a place where capture stops and Python runs, such as `print` or an `if` on a "
        "tensor's value; a new graph begins after it"
    ),
    "program": "one run of a Triton kernel; many run at once, each with a number",
    "block": (
        "what a program works on: an array whose size is known when the kernel is compiled, a "
        "power of two"
    ),
    "mask": "which lanes of a block load or store",
    "PTX": (
        "the assembler that Triton writes for NVIDIA's GPUs; SASS is the machine code made of it"
    ),
    "joint graph": "a function and its backward part in one graph",
    "continuation": "the rest of a function after a graph break, as a function of its own",
    "guard": (
        "something that must hold for compiled code to be used again: a type, a size, a "
        "Python number"
    ),
    "recompile": "compiling once more because a guard failed",
    "symbolic size": "a size that compiled code takes as a number, so that others need no new code",
    "roofline": (
        "the least time of a kernel: that of its bytes or that of its operations, whichever "
        "is longer"
    ),
    "traffic": "bytes read from memory and written to it, each element of a tensor once a kernel",
    "share of a copy": (
        "how fast a kernel is beside a copy of as many bytes on the same machine: 100 % is as "
        "fast as memory allows"
    ),
}
# Under which other words they stand in results.
_ALSO = {
    "extern call": ("calls",),
    "graph break": ("breaks",),
    "guard": ("used again as long as",),
    "recompile": ("compiled again",),
    "share of a copy": ("share",),
    "traffic": ("bytes", "reads"),
}


def words_in(texts: Iterable[str]) -> list[str]:
    """Return the words of the glossary that stand in texts, in order of the alphabet."""
    text = "\n".join(texts).lower()
    return [
        word
        for word in sorted(GLOSSARY)
        if any(re.search(rf"\b{each}(s|es)?\b", text) for each in (word, *_ALSO.get(word, ())))
    ]


def explained(texts: Iterable[str]) -> str:
    """Return what the words of a result mean as HTML that opens on a click; empty if none needs it.

    Args:
        texts: The result's headings and titles.
    """
    found = words_in(texts)
    if not found:
        return ""
    rows = "".join(
        f"<li><b>{html.escape(word)}</b>: {html.escape(GLOSSARY[word])}</li>" for word in found
    )
    return f"<details><summary>What these words mean</summary><ul>{rows}</ul></details>"


__all__ = ["GLOSSARY", "explained", "words_in"]
