"""Signatures and names: a kernel's parameters, called what the user called them."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Mapping

from fusec.ir.body import Body, Buffer
from fusec.ir.checks import CheckKind, check_parts, is_check
from fusec.ir.index import Symbol
from fusec.ir.node import Load, Reduce
from fusec.ir.walk import walk
from fusec.kernel_source import Argument, Role, Signature

_RESERVED = frozenset(keyword.kwlist) | frozenset(
    "int long short char float double bool void auto const static signed unsigned struct union "
    "enum switch case default do goto sizeof template typename class namespace using new delete "
    "operator private public protected virtual inline extern register volatile this true false "
    "tl triton torch launch grid threads main std asm export friend mutable throw typedef "
    "alignas alignof and_eq bitand bitor char8_t char16_t char32_t compl concept const_cast "
    "consteval constexpr constinit co_await co_return co_yield decltype dynamic_cast "
    "explicit noexcept not_eq nullptr or_eq reinterpret_cast requires static_assert "
    "static_cast thread_local typeid wchar_t xor xor_eq catch".split()
)
# Of C++, macros of its headers for integers and maths, and the library's own.
_TAKEN = re.compile(
    r"u?int\d+_t|(?:U?INT|SIZE|PTRDIFF|WCHAR|WINT|SIG_ATOMIC)\w*_(?:MIN|MAX|C|WIDTH)"
    r"|M_(?:[124]_)?(?:PI|E|LN|LOG|SQRT)\w*|FP_\w+|HUGE_VAL\w*|MAXFLOAT|MATH_ERR\w+|NULL|fx_\w+"
)


def identifier(text: str, taken: set[str], fallback: str) -> str:
    """Return an identifier like ``text``, valid in C++ and Python and not yet ``taken``."""
    name = re.sub(r"\W+", "_", text).strip("_") or fallback
    if name[0].isdigit() or name in _RESERVED or _TAKEN.fullmatch(name):
        name = f"{name}_" if not name[0].isdigit() else f"{fallback}_{name}"
    candidate, number = name, 2
    gap = "_" if name[-1].isdigit() else ""
    while candidate in taken:
        candidate, number = f"{name}{gap}{number}", number + 1
    taken.add(candidate)
    return candidate


def body_sizes(body: Body, buffers: Mapping[str, Buffer]) -> tuple[Symbol, ...]:
    """Return the symbolic sizes that a kernel for ``body`` needs, in order of creation."""
    found: set[Symbol] = set()
    for axis in body.axes + body.reduce_axes:
        if axis.size is not None:
            found |= {s for s in axis.size.symbols() if s.kind == "size"}
    for node in body.nodes():
        found |= {s for e in node.exprs() for s in e.symbols() if s.kind == "size"}
    for name in body.reads() + body.writes():
        buffer = buffers[name]
        for expr in buffer.shape + buffer.strides:
            found |= {s for s in expr.symbols() if s.kind == "size"}
    for store in body.stores:
        found |= {s for e in store.index for s in e.symbols() if s.kind == "size"}
    return tuple(sorted(found, key=lambda s: s.serial))


def argument_buffers(body: Body) -> tuple[str, ...]:
    """Return the buffers a kernel takes: those it only reads first, then those it writes."""
    writes = body.writes()
    return tuple(name for name in body.reads() if name not in writes) + writes


def block_lists(body: Body) -> frozenset[str]:
    """Return the buffers that say which blocks attention keeps."""
    if not body.attends:
        return frozenset()
    searches = (n for n in body.nodes() if isinstance(n, Reduce) and n.kind == "any")
    below = (node for search in searches for node in walk(search.args))
    return frozenset(n.buffer for n in below if isinstance(n, Load))


def make_signature(
    body: Body, buffers: Mapping[str, Buffer], reserved: Collection[str] = ()
) -> tuple[Signature, dict[str, str]]:
    """Return the signature of a kernel for ``body``, and buffer name to parameter name.

    A buffer that is read and written is ``inout``; so is one of which some elements change.

    Args:
        body: Of the kernel.
        buffers: Every buffer that it names.
        reserved: What the text calls something else, and no parameter can be called.
    """
    reads, taken = set(body.reads()), set(reserved)
    names: dict[str, str] = {}
    arguments = []
    lists = block_lists(body)
    for name in argument_buffers(body):
        buffer = buffers[name]
        names[name] = identifier(buffer.hint or buffer.name, taken, "x")
        role: Role = "in"
        if name in body.writes():
            role = "inout" if name in reads else "out"
        arguments.append(
            Argument(
                names[name],
                buffer.dtype,
                buffer.shape,
                buffer.strides,
                role,
                buffer.device.type,
                name in lists,
            )
        )
    sizes = tuple(symbol.name for symbol in body_sizes(body, buffers))
    found = checks(body)
    divisions = (n for n, kind in enumerate(found.values(), 1) if kind is CheckKind.DIVISION)
    return Signature(tuple(arguments), sizes, tuple(found), frozenset(divisions)), names


def checks(body: Body) -> dict[str, CheckKind]:
    """Return the messages of the run-time checks of ``body``, in order, with what they check."""
    return {
        message: kind
        for node in body.nodes()
        if is_check(node)
        for kind, message in [check_parts(node.name)]
    }
