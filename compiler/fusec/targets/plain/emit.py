"""From a body to a plain C++ kernel: a file that begins with what it computes and its loops."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fusec.codegen.common.c_language import head_lines, parameters, summarize
from fusec.codegen.common.operation_count import count_operations
from fusec.codegen.common.signatures import body_sizes, identifier, make_signature
from fusec.codegen.common.traffic import read_bytes, written_bytes
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Symbol
from fusec.kernel_source import KernelSource, Signature
from fusec.targets.cpp.text.writer import Writer
from fusec.targets.plain.expressions import TYPES
from fusec.targets.plain.helpers import helper_texts, names
from fusec.targets.plain.loops import Loops

# Names of the standard library's macros and of what the file itself has.
_RESERVED = frozenset("threads std NAN INFINITY INT64_MIN position".split())
_WORDS = {
    "sum": "sum",
    "prod": "product",
    "max": "largest",
    "min": "smallest",
    "argmax": "place of the largest",
    "argmin": "place of the smallest",
    "xor": "parity",
}


def emit_plain(
    name: str, body: Body, buffers: Mapping[str, Buffer], *, label: str = ""
) -> KernelSource:
    """Write a kernel for ``body``.

    Args:
        name: The kernel's name; its C++ function is called the same.
        body: What it computes.
        buffers: Every buffer that the body names.
        label: A few words on what it is, for its head.

    Raises:
        UnsupportedNode: It has no plain C++.
    """
    signature, called = make_signature(body, buffers, _RESERVED | names())
    taken = {argument.name for argument in signature.arguments} | _RESERVED | names()
    sizes = {symbol: identifier(symbol.name, taken, "n") for symbol in body_sizes(body, buffers)}
    entry = identifier(name, set(names()), "kernel")
    taken.add(entry)

    code = Writer(1)
    loops = Loops(body, buffers, called, sizes, signature.checks, taken, code)
    loops.write()
    code.line("return 0;")

    summary = summarize(body, "each of", _WORDS)
    file = Writer()
    for line in head_lines(body, signature, f"{label or name}: {summary}", point="a number"):
        file.line(line)
    helpers = helper_texts(loops.helpers)
    for header in ("cmath", "cstdint", "cstring", "limits"):
        if header in ("cmath", "cstdint") or any(_MADE_OF[header] in text for text in helpers):
            file.line(f"#include <{header}>")
    for text in helpers:
        file.line()
        file.lines_of(text.splitlines())
    file.line()
    _write_parameters(file, signature, sizes, entry)
    file.line("{")
    file.lines.extend(code.lines)
    file.line("}")
    return KernelSource(
        name=name,
        target="plain",
        entry=entry,
        text=file.text,
        signature=signature,
        origins=file.origins,
        read_bytes=read_bytes(body, buffers),
        written_bytes=written_bytes(body, buffers),
        operations=count_operations(body),
        summary=summary,
    )


_MADE_OF = {"cstring": "std::memcpy", "limits": "std::numeric_limits"}


def _write_parameters(
    file: Writer, signature: Signature, sizes: Mapping[Symbol, str], entry: str
) -> None:
    """Write the function's head: a parameter a line where they do not fit into one."""
    # memory may hold other bytes than 0 and 1, which a bool may not
    found = parameters(signature, sizes.values(), {**TYPES, torch.bool: "uint8_t"})
    line = f'extern "C" int {entry}({", ".join(found)})'
    if len(line) <= 100:
        file.line(line)
        return
    file.line(f'extern "C" int {entry}(')
    for number, parameter in enumerate(found, 1):
        file.line(f"    {parameter}{',' if number < len(found) else ')'}")


__all__ = ["emit_plain"]
