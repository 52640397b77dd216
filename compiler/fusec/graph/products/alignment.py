"""Matrix products of half precision on a GPU whose rows are no multiples of 16 bytes.

Tensor cores are fed by copies of 16 bytes; a vocabulary of 50257 makes BLAS take kernels that are
up to seven times slower.  Such products get operands padded with zeros and yield a result of which
a part is read: views of it cost nothing, and the kernel that writes an operand (converts a weight,
computes a gradient) writes it padded.

Where nothing but the result has such rows and all that becomes of it is that the caller gets it,
the part would have to be copied out.  A kernel of our own writes it as it is to lie.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from fusec.devices import is_gpu
from fusec.graph.choices import aligned, alignment_pays, own_rows_pay
from fusec.graph.convolutions.relayout import Relayout, lies_alike
from fusec.graph.facts.notes import NOTES, NoteKind, add_note, has_note, notes

aten = torch.ops.aten
PADDED = "padded to rows of 16 bytes"
ODD_ROWS = "but for one whose rows are no multiples of 16 bytes"
# Positions of the two matrices.
_PRODUCTS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
}
_VIEWS = (aten.permute.default, aten.t.default, aten.view.default, aten._unsafe_view.default)


def align_products(module: fx.GraphModule, *, kernels: bool = True) -> int:
    """Pad the products that this makes faster; return how many.

    Args:
        module: A functional joint or inference graph with fake tensors in ``meta["val"]``; changed
            in place.
        kernels: Whether kernels of our own may take the place of BLAS.
    """
    if not any(n.target in _PRODUCTS and _may_gain(n) for n in module.graph.nodes):
        return 0
    if kernels:
        for node in module.graph.nodes:
            if node.target in _PRODUCTS and _may_gain(node) and _is_best_ours(node):
                add_note(node, NoteKind.ODD_ROWS, ODD_ROWS)
    padding = _Padding(module.graph)
    padding.run()
    if padding.count:
        module.graph = padding.graph
    return padding.count


class _Padding(Relayout):
    def __init__(self, graph: fx.Graph) -> None:
        super().__init__(graph)
        self.count = 0
        self.padded: dict[tuple[fx.Node, int, int], fx.Node] = {}

    def rewrite(self, node: fx.Node) -> bool:
        if node.target not in _PRODUCTS:
            return False
        operands = [node.args[position] for position in _PRODUCTS[node.target]]
        if not all(isinstance(o, fx.Node) and _has_rows(o.meta["val"]) for o in operands):
            return False  # laid out as traced before it is read
        if _may_gain(node) and not has_note(node, NoteKind.ODD_ROWS) and self.pad(node):
            return True
        self.update(node)  # BLAS takes any distance of rows
        return True

    def pad(self, node: fx.Node) -> bool:
        """Pad a product if that pays."""
        first, second = _PRODUCTS[node.target]
        left, right = node.args[first], node.args[second]
        assert isinstance(left, fx.Node)
        assert isinstance(right, fx.Node)
        (*_, rows, inner), columns = left.meta["val"].shape, right.meta["val"].shape[-1]
        sizes = _padded_sizes(left.meta["val"], right.meta["val"])
        more_rows, more_inner, more_columns = sizes
        copied = 0
        for operand, changes in (
            (left, (more_rows, more_inner) != (rows, inner)),
            (right, (more_inner, more_columns) != (inner, columns)),
        ):
            copied += _bytes_to_pad(operand) if changes else 0
        if more_columns != columns and _is_returned(node):
            copied += 2 * _bytes(node)
        distances = [_distance(left.meta["val"]), _distance(right.meta["val"]), columns]
        batch = left.meta["val"].shape[0] if left.meta["val"].dim() == 3 else 1
        if not alignment_pays(batch * rows * inner * columns, distances, copied):
            return False
        args = list(node.args)
        with self.graph.inserting_before(node):
            args[first] = self.larger(node, left, more_rows, more_inner)
            args[second] = self.larger(node, right, more_inner, more_columns)
            if node.target == aten.addmm.default:
                args[0] = self.larger(node, args[0], more_rows, more_columns)
            whole = self.add(node, node.target, tuple(args), **node.kwargs)
            whole.meta[NOTES] = notes(node)
            add_note(whole, NoteKind.PADDED, PADDED)
            part = whole
            for axis, size, more in ((-2, rows, more_rows), (-1, columns, more_columns)):
                if size != more:
                    part = self.add(node, aten.slice.Tensor, (part, axis, 0, size))
        node.replace_all_uses_with(part)
        if not lies_alike(node.meta["val"], part.meta["val"]):
            self.changed[part] = node.meta["val"]
        self.graph.erase_node(node)
        self.count += 1
        return True

    def larger(self, reader: fx.Node, node: Any, rows: int, columns: int) -> fx.Node:
        """Return a matrix, or a bias of one row, with zeros beyond its rows and columns."""
        value = node.meta["val"]
        if value.dim() > 1 and _distance_axis(value) == -1:
            # its columns are what lies in rows
            turned = self.larger(reader, self.turned_over(reader, node), columns, rows)
            return self.turned_over(reader, turned)
        more_rows = rows - value.shape[-2] if value.dim() > 1 and value.shape[-2] > 1 else 0
        more_columns = columns - value.shape[-1] if value.shape[-1] > 1 else 0
        if not more_rows and not more_columns:
            return node  # type: ignore[no-any-return]
        key = (node, more_rows, more_columns)
        if key not in self.padded:
            amounts = [0, more_columns] + ([0, more_rows] if more_rows else [])
            self.padded[key] = self.add(reader, aten.constant_pad_nd.default, (node, amounts, 0.0))
        return self.padded[key]

    def turned_over(self, reader: fx.Node, node: fx.Node) -> fx.Node:
        """Return a matrix with rows and columns exchanged."""
        rank = node.meta["val"].dim()
        order = [*range(rank - 2), rank - 1, rank - 2]
        if node.target is aten.t.default or (
            node.target is aten.permute.default and list(node.args[1]) == order  # type: ignore[arg-type]
        ):
            (source,) = node.all_input_nodes
            return source
        return self.add(reader, aten.permute.default, (node, order))


def _may_gain(node: fx.Node) -> bool:
    operands = [node.args[position] for position in _PRODUCTS[node.target]]
    values = [o.meta.get("val") for o in operands if isinstance(o, fx.Node)]
    values.append(node.meta.get("val"))
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    return (
        len(tensors) == 3
        and is_gpu(tensors[0].device)
        and tensors[0].dtype in (torch.float16, torch.bfloat16)
        and all(isinstance(size, int) for t in tensors for size in (*t.shape, *t.stride()))
        and all(size > 1 for t in tensors for size in t.shape[-2:])
        and all(_has_rows(t) for t in tensors)
        and any(aligned(_distance(t)) != _distance(t) for t in tensors)
    )


def _is_best_ours(node: fx.Node) -> bool:
    """Whether a kernel of our own is to compute a product whose odd rows the caller gets."""
    left, right = (node.args[position].meta["val"] for position in _PRODUCTS[node.target])  # type: ignore[union-attr]
    result = node.meta["val"]
    return (
        not notes(node)
        and result.dim() == 2
        and result.is_contiguous()
        and all(aligned(_distance(value)) == _distance(value) for value in (left, right))
        and _is_only_returned(node)
        and own_rows_pay(left.shape[0], left.shape[1], right.shape[1])
    )


def _padded_sizes(left: torch.Tensor, right: torch.Tensor) -> tuple[int, int, int]:
    """Return rows, inner size and columns such that no row of the three starts unaligned."""
    rows, inner = left.shape[-2:]
    columns = aligned(right.shape[-1])  # of the result, if of nothing else
    for value, sizes in ((left, (rows, inner)), (right, (inner, columns))):
        if aligned(_distance(value)) == _distance(value):
            continue
        if value is left and _distance_axis(value) == -1:
            rows = aligned(sizes[0])
        elif _distance_axis(value) == (-2 if value is left else -1):
            inner = aligned(inner)
    return rows, inner, columns


def _has_rows(value: torch.Tensor) -> bool:
    """Whether BLAS takes a matrix as it lies: the elements of its rows or columns touch."""
    return value.dim() >= 2 and 1 in value.stride()[-2:]


def _distance_axis(value: torch.Tensor) -> int:
    """Return the axis along which one goes from row to row in memory: -2, or -1 of columns."""
    return -2 if value.stride(-1) == 1 else -1


def _distance(value: torch.Tensor) -> int:
    return int(value.stride(_distance_axis(value)))


def _bytes(node: fx.Node) -> int:
    value = node.meta["val"]
    return int(value.numel() * value.dtype.itemsize)


def _is_returned(node: fx.Node) -> bool:
    """Whether a graph returns a node or a view of it, which has to lie as it was traced."""
    return any(
        user.op == "output" or (user.target in _VIEWS and _is_returned(user)) for user in node.users
    )


def _is_only_returned(node: fx.Node) -> bool:
    """Whether all that becomes of a node is a result of the graph, or a view that is."""
    return bool(node.users) and all(
        user.op == "output" or (user.target in _VIEWS and _is_only_returned(user))
        for user in node.users
    )


def _bytes_to_pad(node: fx.Node) -> int:
    """Return what padding moves: nothing where a kernel writes the operand anyway."""
    while node.target in _VIEWS:
        (node,) = node.all_input_nodes
    pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
    converts = node.target is torch.ops.prims.convert_element_type.default
    written = pointwise or converts or node.target is aten._to_copy.default
    return 0 if written else 2 * _bytes(node)


__all__ = ["PADDED", "align_products"]
