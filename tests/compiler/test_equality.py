"""Kernels that are equal but for names are built once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
import fusec.pipeline
from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.equality import body_key
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import recording
from fusec.ir.shapes import contiguous_strides


def scaled(
    names: tuple[str, str] = ("x", "y"),
    factor: float = 2.0,
    size: int = 8,
    dtype: torch.dtype = torch.float32,
    turned: bool = False,
    name: str = "mul",
) -> str:
    """Return the key of ``y[i, j] = x[i, j] * factor``, or of a variation of it."""
    shape = (Expr.of(4), Expr.of(size))
    strides = contiguous_strides(shape)
    buffers = {n: Buffer(n, shape, strides, dtype, hint=n) for n in names}
    with recording():
        i, j = (Symbol(f"i{n}", "axis", extent) for n, extent in enumerate(shape))
        index = (Expr.of(i), Expr.of(j))
        value = ops.binary(name, ops.load(names[0], index, dtype), ops.const(factor, dtype))
        axes = (j, i) if turned else (i, j)
        body = Body(axes, (), (Store(names[1], index, value),))
        return body_key(body, buffers, argument_buffers(body), body_sizes(body, buffers))


def test_names_do_not_matter() -> None:
    assert scaled() == scaled(names=("before", "after"))


@pytest.mark.parametrize(
    "change",
    [
        {"factor": 3.0},
        {"factor": -0.0},
        {"size": 9},
        {"dtype": torch.float64},
        {"turned": True},
        {"name": "add"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_else_does(change: dict[str, object]) -> None:
    assert scaled() != scaled(**change)  # type: ignore[arg-type]


def test_zeros_of_both_signs_differ() -> None:
    assert scaled(factor=0.0) != scaled(factor=-0.0)


def test_layers_of_a_model_share_their_kernels() -> None:
    class Layer(nn.Module):
        def __init__(self, eps: float) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.eps = eps

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + F.layer_norm(F.gelu(self.linear(x)), (16,), eps=self.eps)

    net = nn.Sequential(*(Layer(1e-5) for _ in range(4)), Layer(1e-2)).eval()
    compiled = fusec.compile(net, keep_inputs=True)
    x = torch.randn(8, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
    kernels = list(compiled.kernels.values())
    built = {id(kernel.runnable()) for kernel in kernels}
    assert len(kernels) == 5
    # equal layers share; the one with another constant, and what reads the input twice, do not
    assert len(built) < 5
    assert kernels[-1].runnable() is not kernels[1].runnable()
    assert kernels[1].runnable() is kernels[2].runnable()
    # each has a text of its own, with its own names, and editing one leaves the others alone
    assert kernels[1].source != kernels[2].source
    assert f"int {kernels[2].generated.entry}(" in kernels[2].source
    result = kernels[2].signature.arguments[-1].name
    wrong = kernels[2].source.replace("return 0;", f"{result}[0] += 1; return 0;", 1)
    assert not kernels[2].keep(wrong).ok
    right = kernels[2].source.replace("return 0;", "return 0;  // mine")
    shared = kernels[1].runnable()
    assert kernels[2].keep(right).ok
    assert kernels[1].runnable() is shared
    assert kernels[2].runnable() is not shared
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
    kernels[2].revert()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))


def test_of_equal_kernels_one_is_written_until_somebody_reads_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []
    emit = fusec.pipeline.emit_kernel

    def watched(step, program, options):  # type: ignore[no-untyped-def]
        written.append(step.name)
        return emit(step, program, options)

    monkeypatch.setattr(fusec.pipeline, "emit_kernel", watched)
    net = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(16, 16), nn.GELU()))).eval()
    compiled = fusec.compile(net)
    x = torch.randn(8, 16)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), net(x))
        torch.testing.assert_close(compiled(x + 1), net(x + 1))
    kernels = list(compiled.kernels.values())
    assert len(kernels) == 4
    assert written == [kernels[0].name]
    last = kernels[-1]
    assert not last.edited
    assert written == [kernels[0].name], "nobody has read it"
    with ThreadPoolExecutor(4) as pool:
        sources = set(pool.map(lambda _: last.source, range(8)))
    assert written == [kernels[0].name, last.name], "once, whoever reads it first"
    (source,) = sources
    assert f"int {last.generated.entry}(" in source
    assert all(kernel.source in compiled.graphs[0].stages[-2].text for kernel in kernels)
    assert sorted(written) == sorted(kernel.name for kernel in kernels)
