"""Products of float32 matrices on a CPU that oneDNN multiplies faster than torch's BLAS.

torch's builds for x86 multiply by Intel's MKL, which is half as fast as it could be on AMD's
processors with AVX-512.  oneDNN, which torch computes convolutions with, looks at the
instructions alone.
"""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from fusec.graph.choices import onednn_multiplies_faster
from fusec.graph.facts.insertion import caller

aten = torch.ops.aten


def multiply_by_onednn(module: fx.GraphModule) -> int:
    """Replace products by calls of oneDNN where that pays; return how many.

    Args:
        module: A part of a graph as it will be lowered, with fake tensors in ``meta["val"]``;
            changed in place.
    """
    nodes = [n for n in module.graph.nodes if n.target in (aten.mm.default, aten.addmm.default)]
    chosen = [node for node in nodes if _fits(node)]
    for node in chosen:
        _replace(node)
    if chosen:
        module.recompile()
    return len(chosen)


def _fits(node: fx.Node) -> bool:
    value = node.meta["val"]
    if value.dtype != torch.float32 or value.device.type != "cpu" or not _is_there() or node.kwargs:
        return False
    *biases, left, right = (arg.meta["val"] for arg in node.args)  # type: ignore[union-attr]
    if not all(_is_of_columns(bias, value) for bias in biases):
        return False
    sizes = [_hint(size) for size in (*left.shape, right.shape[1])]
    if None in sizes:
        return False
    rows, inner, columns = (int(size) for size in sizes if size is not None)
    copied = 0 if _has_rows(left) else rows * inner
    return onednn_multiplies_faster(rows, inner, columns, copied)


def _is_of_columns(bias: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a bias surely has a number for each column (a size read from data is not known)."""
    return bias.dim() == 1 and statically_known_true(bias.shape[0] == value.shape[1])


def _is_there() -> bool:
    """Whether torch was built with both libraries and the user has not switched oneDNN off."""
    onednn, mkl = torch.backends.mkldnn, torch.backends.mkl
    there = hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return bool(there and onednn.is_available() and onednn.enabled and mkl.is_available())


def _hint(size: int | torch.SymInt) -> int | None:
    """Return a size, or the one that a varying one had when it was traced."""
    return size if isinstance(size, int) else size.node.hint


def _has_rows(matrix: torch.Tensor) -> bool:
    """Whether a matrix lies row by row without gaps, as oneDNN reads the left one."""
    rows, columns = matrix.shape
    wanted = (columns, 1)
    return all(
        size == 1 or stride == want
        for size, stride, want in zip((rows, columns), matrix.stride(), wanted, strict=True)
    )


def _replace(node: fx.Node) -> None:
    *biases, left, right = node.args
    assert isinstance(left, fx.Node)
    call = caller(node.graph, node)
    with node.graph.inserting_before(node):
        if not _has_rows(left.meta["val"]):  # else ATen copies it, slowly
            left = call(aten.clone.default, left, memory_format=torch.contiguous_format)
        weight = call(aten.t.default, right)
        product = torch.ops.mkldnn._linear_pointwise.default
        bias = biases[0] if biases else None
        made = node.graph.call_function(product, (left, weight, bias, "none", [], ""))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


__all__ = ["multiply_by_onednn"]
