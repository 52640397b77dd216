"""From a body to a plain C++ kernel: a file that begins with what it computes and its loops."""

from __future__ import annotations

from collections.abc import Mapping

from fusec.codegen.common.operation_count import count_operations
from fusec.codegen.common.signatures import body_sizes, identifier, make_signature
from fusec.codegen.common.traffic import read_bytes, written_bytes
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Reduce, Scan
from fusec.kernel import KernelSource, Signature
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
    signature, parameters = make_signature(body, buffers, _RESERVED | names())
    taken = {argument.name for argument in signature.arguments} | _RESERVED | names()
    sizes = {symbol: identifier(symbol.name, taken, "n") for symbol in body_sizes(body, buffers)}
    entry = identifier(name, set(names()), "kernel")
    taken.add(entry)

    code = Writer(1)
    loops = Loops(body, buffers, parameters, sizes, signature.checks, taken, code)
    loops.write()
    code.line("return 0;")

    summary = summarize(body)
    file = Writer()
    _write_head(file, body, signature, label or name, summary)
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


def summarize(body: Body) -> str:
    """Return ``sum over 1024 for each of 4096`` or so."""

    def words(sizes: tuple[Expr, ...]) -> str:
        return " x ".join(str(size) for size in sizes if size != 1) or "one point"

    outer, inner = body.sizes()
    if body.updated():
        return f"updates at {words(outer)}"
    if not body.reduce_axes:
        return f"each of {words(outer)}"
    kinds = dict.fromkeys(
        f"running {_WORDS.get(node.kind, node.kind)}"
        if isinstance(node, Scan)
        else _WORDS.get(node.kind, node.kind)
        for node in body.nodes()
        if isinstance(node, Reduce | Scan)
    )
    what = ", ".join(kinds) or "rows"
    where = f" for each of {words(outer)}" if words(outer) != "one point" else ""
    columns = ", and sums of the columns" if body.sums else ""
    return f"{what} over {words(inner)}{where}{columns}"


def _write_head(file: Writer, body: Body, signature: Signature, label: str, summary: str) -> None:
    file.line(f"// {label}: {summary}.")
    for argument in signature.arguments:
        shape = " x ".join(str(size) for size in argument.shape) or "a number"
        verb = {"in": "reads", "out": "writes", "inout": "updates"}[argument.role]
        dtype = str(argument.dtype).removeprefix("torch.")
        file.line(f"//   {verb} {argument.name}: {shape} {dtype}")
    for source in body.origins():
        file.line(f"// {source}")


def _write_parameters(
    file: Writer, signature: Signature, sizes: Mapping[Symbol, str], entry: str
) -> None:
    """Write the function's head: a parameter a line where they do not fit into one."""
    parameters = []
    for argument in signature.arguments:
        const = "const " if argument.role == "in" else ""
        # memory may hold other bytes than 0 and 1, which a bool may not
        kind = "uint8_t" if TYPES[argument.dtype] == "bool" else TYPES[argument.dtype]
        parameters.append(f"{const}{kind}* {argument.name}")
    parameters += [f"int64_t {name}" for name in sizes.values()]
    parameters.append("int64_t threads")
    line = f'extern "C" int {entry}({", ".join(parameters)})'
    if len(line) <= 100:
        file.line(line)
        return
    file.line(f'extern "C" int {entry}(')
    for number, parameter in enumerate(parameters, 1):
        file.line(f"    {parameter}{',' if number < len(parameters) else ')'}")


__all__ = ["emit_plain"]
