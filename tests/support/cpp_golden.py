"""The kernels of the golden files for C++: their bodies, and what they are given."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fusec.ir.index import Expr, Symbol
from fusec.kernel_source import KernelSource
from fusec.targets.cpp.emit import emit_cpp
from support.cpp_bodies import Bench, make_inputs
from support.triton_bodies import (
    Case,
    broadcast_add,
    cross_entropy,
    gather,
    gelu_layer_norm,
    logsumexp,
    norm_gradient,
    pointwise_chain,
    random_kept,
    reduce_rows,
    row_windows,
    scans,
    scatter_add,
    softmax,
    sum_all,
    sum_columns,
    transpose_add,
    wave,
)

F32, BF16 = torch.float32, torch.bfloat16


def symbolic_softmax() -> Case:
    rows, columns = Symbol("s0", "size", low=0), Symbol("s1", "size", low=0)
    case = softmax(Expr.of(rows), Expr.of(columns), F32)
    case.sizes = {rows: 40, columns: 33}
    return case


def symbolic_norm_gradient() -> Case:
    rows = Symbol("s0", "size", low=0)
    case = norm_gradient(Expr.of(rows), 200, 64, F32)
    case.sizes = {rows: 333}
    return case


CASES: dict[str, Callable[[], Case]] = {
    "pointwise": lambda: pointwise_chain(20, 33, dtype=F32),
    "pointwise_long": lambda: pointwise_chain(300, 333, dtype=F32),
    "pointwise_flat": lambda: pointwise_chain(100_003, dtype=F32),
    "pointwise_half": lambda: pointwise_chain(600, 128, dtype=BF16),
    "broadcast": lambda: broadcast_add(300, 333),
    "transpose": lambda: transpose_add(300, 200, F32),
    "wave": lambda: wave(30, 333),
    "row_windows": lambda: row_windows(30, 56),
    "row_windows_half": lambda: row_windows(30, 56, torch.float16),
    "gather": lambda: gather(10, 20, 33),
    "scatter_add": lambda: scatter_add(50, 700, 400),
    "random": lambda: random_kept(300, 333),
    "random_words": lambda: random_kept(300, 333, quarters=True),
    "random_word": lambda: random_kept(300, 33, quarters=True),
    "softmax": lambda: softmax(24, 200, F32),
    "softmax_narrow": lambda: softmax(601, 24, F32),
    "softmax_symbolic": symbolic_softmax,
    "logsumexp": lambda: logsumexp(9, 300),
    "layer_norm": lambda: gelu_layer_norm(600, 200, F32),
    "cross_entropy": lambda: cross_entropy(5, 5000, F32),
    "sum_columns": lambda: sum_columns(3000, 40, F32),
    "sum_all": lambda: sum_all(300, 400, dtype=F32),
    "argmax": lambda: reduce_rows("argmax", 9, 100),
    "scan": lambda: scans(("sum", "max", "argmax"), 9, 100),
    "scan_running": lambda: scans(("sum",), 40, 1000),
    "scan_columns": lambda: scans(("sum", "logsumexp"), 100, 40, down=True),
    "scan_blocks": lambda: scans(("sum",), 9, 3000, torch.bfloat16),
    "norm_gradient": lambda: norm_gradient(600, 200, 64, F32),
    "norm_gradient_half": lambda: norm_gradient(512, 320, 64, BF16),
    "norm_gradient_symbolic": symbolic_norm_gradient,
}


# Rows of full blocks, which some loops rely on, whatever the tunables say.
FULL: dict[str, Callable[[], Case]] = {
    "transpose_full": lambda: transpose_add(600, 512, F32),
    "transpose_half_full": lambda: transpose_add(300, 256, BF16),
    "pointwise_full": lambda: pointwise_chain(600, 512, dtype=BF16),
    "softmax_full": lambda: softmax(64, 512, F32),
    "layer_norm_full": lambda: gelu_layer_norm(600, 256, F32),
    "sum_columns_full": lambda: sum_columns(3000, 320, F32),
    "scan_columns_full": lambda: scans(("sum", "logsumexp"), 100, 320, down=True),
    "norm_gradient_full": lambda: norm_gradient(512, 256, 64, F32),
}

# Terms of random sums cancel, so errors go by the size of the terms: sqrt(3000) of twice a normal.
TERMS = {"sum_columns": 110.0, "sum_all": 700.0, "layer_norm": 1.0}
TERMS |= {"sum_columns_full": 110.0, "layer_norm_full": 1.0, "norm_gradient_full": 14.0}
# The same for the means of 200 products in a gradient, and for the sums of 64 down its columns.
TERMS |= dict.fromkeys(("norm_gradient", "norm_gradient_symbolic"), 14.0)


def bench_of(case: Case) -> Bench:
    return Bench(
        case.name,
        dict(case.buffers),
        outer=list(case.body.axes),
        reduced=list(case.body.reduce_axes),
        stores=list(case.body.stores),
        sizes=dict(case.sizes),
    )


def emit(case: Case) -> KernelSource:
    return emit_cpp(case.name, case.body, case.buffers, label=case.label)


def filled(case: Case, bench: Bench, seed: int) -> dict[str, torch.Tensor]:
    """Return inputs that fit the case (indices in range) and poisoned outputs."""
    given = case.inputs(seed)
    return make_inputs(bench, seed, **{name: given[name] for name in case.fill})
