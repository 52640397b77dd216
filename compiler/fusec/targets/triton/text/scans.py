"""The text of scans: along a tile that holds a whole row, or with what earlier steps have left.

A tile's positions along the row are in order, and what lies beyond the row's end comes last: it
changes nothing in front of it, so scans need no mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.codegen.common.identities import identity
from fusec.ir.node import Scan
from fusec.targets.triton.plan.tiling import Dim
from fusec.targets.triton.text.block_text import BlockText
from fusec.targets.triton.text.expressions import (
    ATOM,
    COMPARE,
    PRODUCT,
    SUM,
    Text,
    number,
    triton_type,
    typed,
)
from fusec.targets.triton.text.kernel_writer import KernelWriter

_WORDS = {"prod": "product"}
_COMBINE = {"logsumexp": "log_add_exp", "max": "later_largest", "min": "later_smallest"}
_COMBINE_PLACED = {"max": "later_largest_at", "min": "later_smallest_at"}


def write_scan(block: BlockText, node: Scan) -> None:
    """Write a scan of a value that ``block`` knows; an extreme together with its position."""
    kernel, writer = block.kernel, block.kernel.writer
    group = scan_group(kernel, node)
    placed = any(n.kind.startswith("arg") for n in group)
    kind, inner = kind_of(node), inner_of(kernel)
    axis = max(inner.place, 0)
    value = _tile(block, node)
    carry = block.carries.get(node, ())
    names = [kernel.name(_suggested(kernel, group, False))]
    if placed:
        names.append(kernel.name(_suggested(kernel, group, True)))
    writer.mark(node.source)
    if placed:
        combine = kernel.needs.helper(_COMBINE_PLACED[kind])
        shape = kernel.tile.shape(kernel.node_dims(node))
        positions = f"tl.broadcast_to({inner.index}, {shape})"
        text = f"tl.associative_scan(({value.source}, {positions}), {axis}, {combine})"
        writer.line(f"{', '.join(names)} = {text}", (node.source,))
        if carry:
            both = f"{', '.join(carry)}, {', '.join(names)}"
            writer.line(f"{', '.join(names)} = {combine}({both})", (node.source,))
    else:
        writer.line(f"{names[0]} = {_along(kernel, node, value, axis, carry)}", (node.source,))
    for own, name in zip(carry, names, strict=False):
        whole = own is not carry[0] or not _carried_dtype(node).is_floating_point
        writer.line(f"{own} = {_last(kernel, name, inner, axis, whole)}", (node.source,))
    for each in group:
        name = names[1] if each.kind.startswith("arg") else names[0]
        block.known[each] = _back(each, name)
        kernel.names[each] = name


def start_scans(kernel: KernelWriter, nodes: Sequence[Scan]) -> dict[Scan, tuple[str, ...]]:
    """Write what scans have before the first step of a loop; return the names, for each scan."""
    found: dict[Scan, tuple[str, ...]] = {}
    for node in nodes:
        if node in found:
            continue
        group = scan_group(kernel, node)
        shape = kernel.tile.shape(kernel.node_dims(node) - {inner_of(kernel)})
        if kernel.tile.rank == 0:
            shape = "[1]"
        kind, dtype = kind_of(node), _carried_dtype(node)
        first = {"sum": "0", "prod": "1", "logsumexp": '-float("inf")'}.get(kind)
        if first is None:
            first = _extreme_start(kind, node.args[0].dtype, dtype)
        kernel.writer.mark(node.source)
        names = [kernel.name(f"{_WORDS.get(kind, kind)}_before")]
        line = f"{names[0]} = tl.full({shape}, {first}, {triton_type(dtype)})"
        kernel.writer.line(line, (node.source,))
        if any(n.kind.startswith("arg") for n in group):
            names.append(kernel.name(f"arg{kind}_before"))
            line = f"{names[1]} = tl.full({shape}, 0, {kernel.index_type})"
            kernel.writer.line(line, (node.source,))
        found.update(dict.fromkeys(group, tuple(names)))
    return found


def scan_group(kernel: KernelWriter, node: Scan) -> list[Scan]:
    """Return the scans that are written with ``node``: an extreme's values and positions."""
    everything = kernel.tile.body.scans()
    return [n for n in everything if kind_of(n) == kind_of(node) and n.args == node.args]


def kind_of(node: Scan) -> str:
    """Return the kind of value that is kept: ``max`` for ``argmax``."""
    return node.kind.removeprefix("arg")


def inner_of(kernel: KernelWriter) -> Dim:
    """Return the dimension that scans run along."""
    assert kernel.tile.inner is not None
    return kernel.tile.inner


def _suggested(kernel: KernelWriter, group: Sequence[Scan], position: bool) -> str:
    for node in group:
        if node.kind.startswith("arg") == position and node in kernel.favorite:
            return kernel.favorite[node]
    kind = kind_of(group[0])
    return f"running_{'arg' if position else ''}{_WORDS.get(kind, kind)}"


def _carried_dtype(node: Scan) -> torch.dtype:
    """Return the type that a scan is computed in: small integers and bools in 32 bits."""
    dtype = node.args[0].dtype
    return torch.int32 if dtype.itemsize < 4 and not dtype.is_floating_point else dtype


def _extreme_start(kind: str, dtype: torch.dtype, carried: torch.dtype) -> str:
    return number(identity(kind, dtype), carried).source


def _tile(block: BlockText, node: Scan) -> Text:
    """Return the argument at every position along the row."""
    kernel, argument = block.kernel, node.args[0]
    value, dtype = block.value(argument), _carried_dtype(node)
    shape = kernel.tile.shape(kernel.node_dims(node))
    if value.literal:
        literal = value.source if argument.dtype != torch.bool else str(int(value.source == "True"))
        return Text(f"tl.full({shape}, {literal}, {triton_type(dtype)})")
    if inner_of(kernel) not in kernel.node_dims(argument):
        value = Text(f"tl.broadcast_to({typed(value, argument.dtype).source}, {shape})")
    if dtype != argument.dtype:
        value = Text(f"{value.within(ATOM)}.to({triton_type(dtype)})")
    return value


def _along(kernel: KernelWriter, node: Scan, value: Text, axis: int, carry: tuple[str, ...]) -> str:
    """Return the text of a scan without positions."""
    kind = node.kind
    if kind in ("sum", "logsumexp") and not carry and node.dtype.is_floating_point:
        value = Text(f"{value.within(SUM)} + 0.0")  # of -0.0 alone it is 0.0
    if kind in ("sum", "prod"):
        text = f"tl.cum{kind}({value.source}, {axis})"
        if not carry:
            return text
        strength, sign = (SUM, "+") if kind == "sum" else (PRODUCT, "*")
        return f"{carry[0]} {sign} {Text(text).within(strength)}"
    combine = kernel.needs.helper(_COMBINE[kind])
    text = f"tl.associative_scan({value.source}, {axis}, {combine})"
    return f"{combine}({carry[0]}, {text})" if carry else text


def _last(kernel: KernelWriter, name: str, inner: Dim, axis: int, whole: bool) -> str:
    """Return the text of a tile's last element along the row."""
    last = f"{inner.index} == start + {inner.block} - 1"
    if whole:
        return f"tl.sum(tl.where({last}, {name}, 0), {axis}, keep_dims=True)"
    maximum = kernel.needs.helper("maximum")  # with NaN, and the sign of zero
    chosen = f'tl.where({last}, {name}, -float("inf"))'
    return f"tl.reduce({chosen}, {axis}, {maximum}, keep_dims=True)"


def _back(node: Scan, name: str) -> Text:
    """Return a scan's result in its own type."""
    if node.kind.startswith("arg"):
        return Text(f"{name}.to({triton_type(node.dtype)})")
    if node.dtype == torch.bool:
        return Text(f"{name} != 0", COMPARE)
    if node.dtype != _carried_dtype(node):
        return Text(f"{name}.to({triton_type(node.dtype)})")
    return Text(name)


__all__ = ["start_scans", "write_scan"]
