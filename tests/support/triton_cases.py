"""Cases for the Triton emitter: emitted, run in the interpreter, compared with the reference."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fusec.graph.simplify.short_rows import LONGEST_ROW
from fusec.ir.index import Expr, Symbol
from fusec.kernel_source import KernelSource
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.toolchain.build import build_triton
from fusec.tunables import read_tunables, set_tunables
from support.triton_bodies import (
    F32,
    Case,
    batch_norm,
    batch_norm_last,
    broadcast_add,
    cross_entropy,
    gather,
    gelu_layer_norm,
    group_norm,
    logsumexp,
    norm_gradient,
    pointwise_chain,
    random_kept,
    reduce_rows,
    scans,
    scatter_add,
    softmax,
    sum_columns,
    transpose_add,
    unique,
)
from support.triton_windows import blended, neighbors, weighted, windows

HALF, BF16, F64 = torch.float16, torch.bfloat16, torch.float64


CANARY = 64  # elements on either side of an output that no kernel may touch


def emit(case: Case, strategy: str = "") -> KernelSource:
    return emit_triton(case.name, case.body, case.buffers, label=case.label, strategy=strategy)


def guarded(tensor: torch.Tensor) -> tuple[torch.Tensor, Callable[[], bool]]:
    """Return a copy of ``tensor`` between margins, and whether those are untouched."""
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    reach = reach if tensor.numel() else 0
    space = torch.full((reach + 2 * CANARY,), 55, dtype=torch.int64).to(tensor.dtype)
    inside = torch.as_strided(space, tensor.shape, tensor.stride(), CANARY)
    unique(inside).copy_(unique(tensor))
    before = space.clone()

    def intact() -> bool:
        ends = torch.cat([space[:CANARY], space[len(space) - CANARY :]])
        return bool((ends == torch.cat([before[:CANARY], before[len(before) - CANARY :]])).all())

    return inside, intact


def run(
    case: Case,
    strategy: str = "",
    change: Callable[[dict[str, torch.Tensor]], None] | None = None,
    text: str | None = None,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Run a case in Triton's interpreter between margins; compare with the reference."""
    source = emit(case, strategy)
    if text is None:
        # every program and every step takes milliseconds here
        small = {"SPLITS": 4}
        names = {k.name for k in read_tunables(source.text)}
        text = set_tunables(source.text, {k: v for k, v in small.items() if k in names})
    kernel = build_triton(text, source.signature)
    tensors = case.inputs(seed)
    if change is not None:
        change(tensors)
    expected, exact = case.expected(tensors), case.expected(tensors, F64)
    names = [n for n in case.body.reads() if n not in case.body.writes()]
    names += case.body.writes()
    placed = {n: guarded(tensors[n]) for n in names}
    kernel([placed[n][0] for n in names], list(case.sizes.values()))
    for name in names:
        result, intact = placed[name]
        assert intact(), f"{name}: written out of bounds"
        if name in case.body.writes():
            compare(result, expected[name], exact[name], bool(case.body.scans()))
        else:
            assert torch.equal(result.nan_to_num(), tensors[name].nan_to_num()), name
    return {n: placed[n][0] for n in case.body.writes()}


def compare(
    result: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor, scan: bool = False
) -> None:
    """Equal to the reference, or as near to the exact result as a few roundings allow.

    A running sum carries the roundings of all before it (eager's, in double, does not), so that
    an element of a scan is judged on the scale of the largest.
    """
    if not result.is_floating_point():
        assert torch.equal(result, expected)
        return
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    assert torch.equal(result[result.isinf()], expected[expected.isinf()])
    finite = expected.isfinite()
    wanted, got, reference = exact[finite].double(), result[finite].double(), expected[finite]
    allowed = 3 * (reference.double() - wanted).abs().max().item() if wanted.numel() else 0
    scale = wanted.abs().clamp(min=1e-3)
    if scan and wanted.numel():
        scale = scale.clamp(min=wanted.abs().max().item())
    eps = torch.finfo(result.dtype).eps
    units = 200 if result.dtype == F64 else 4  # where the reference is the exact result
    assert bool(((got - wanted).abs() <= allowed + units * eps * scale).all())


def sizes(*names: str) -> tuple[Symbol, ...]:
    return tuple(Symbol(name, "size", low=0) for name in names)


def symbolic(make: Callable[[Expr, Expr], Case], rows: int, columns: int) -> Case:
    n, m = sizes("s0", "s1")
    case = make(Expr.of(n), Expr.of(m))
    case.sizes = {n: rows, m: columns}
    return case


def bounded(make: Callable[[Expr, Expr], Case], rows: int, columns: int) -> Case:
    """A case of symbolic sizes whose rows are short in every call."""
    (n,) = sizes("s0")
    m = Symbol("s1", "size", Expr.of(LONGEST_ROW + 1), low=0, hint=columns)
    case = make(Expr.of(n), Expr.of(m))
    case.sizes = {n: rows, m: columns}
    return case


def symbolic_rows(rows: int, make: Callable[[Expr], Case]) -> Case:
    (n,) = sizes("s0")
    case = make(Expr.of(n))
    case.sizes = {n: rows}
    return case


CASES: dict[str, Callable[[], tuple[Case, str]]] = {
    "pointwise": lambda: (pointwise_chain(20, 33), ""),
    "broadcast": lambda: (broadcast_add(50, 33), ""),
    "transpose": lambda: (transpose_add(70, 50), ""),
    "gather": lambda: (gather(10, 20, 33), ""),
    "scatter_add": lambda: (scatter_add(10, 20, 33), ""),
    "random": lambda: (random_kept(30, 33), ""),
    "random_word": lambda: (random_kept(30, 33, quarters=True), ""),
    "softmax_persistent": lambda: (softmax(24, 200), ""),
    "softmax_looped": lambda: (softmax(5, 5000), "looped"),
    "softmax_split": lambda: (softmax(2, 70000), ""),
    "logsumexp": lambda: (logsumexp(9, 300), ""),
    "layer_norm": lambda: (gelu_layer_norm(10, 200), ""),
    "cross_entropy": lambda: (cross_entropy(5, 5000), "looped"),
    "sum_columns": lambda: (sum_columns(3000, 40), ""),
    "group_norm": lambda: (group_norm(2, 3, 4, 300), "looped"),
    "batch_norm": lambda: (batch_norm(5, 3, 300), "split"),
    "batch_norm_last": lambda: (batch_norm_last(300, 6), "split"),
    "row_scale": lambda: (broadcast_add(6, 300), ""),
    "softmax_columns": lambda: (softmax(140, 700, down=True), ""),
    "softmax_columns_looped": lambda: (softmax(1000, 90, F32, down=True), "looped"),
    "short_columns": lambda: (softmax(140000, 3, down=True), ""),
    "scan_persistent": lambda: (scans(("sum", "max"), 9, 100), ""),
    "scan_looped": lambda: (scans(("sum", "max", "argmax"), 2, 1500), "looped"),
    "scan_columns": lambda: (scans(("prod", "logsumexp"), 20, 70, down=True), ""),
    "argmax": lambda: (reduce_rows("argmax", 9, 100), ""),
    "symbolic_softmax": lambda: (
        symbolic(lambda n, m: softmax(n, m, F32), 4, 2000),
        "",
    ),
    "bounded_softmax": lambda: (bounded(lambda n, m: softmax(n, m, HALF), 7, 300), ""),
    "odd_rows": lambda: (cross_entropy(4, 5003, HALF), "looped"),
    "neighbors": lambda: (neighbors(20, 33, HALF), ""),
    "windows": lambda: (windows(3, 5, 50), "rows"),
    "blended": lambda: (blended(21, 50, HALF), "rows"),
    "weighted": lambda: (weighted(2, 7, 64), ""),
    "norm_gradient": lambda: (norm_gradient(70, 200, 16), ""),
    "norm_gradient_even": lambda: (norm_gradient(64, 128, 16, BF16), ""),
    "norm_gradient_symbolic": lambda: (
        symbolic_rows(41, lambda n: norm_gradient(n, 200, 8, F32)),
        "",
    ),
}
