"""On a GPU: matrix products as kernels, and the choice between them and BLAS. Skipped elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.codegen.common.signatures import argument_buffers
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.plan.choices_matmul import candidates, match_product
from fusec.targets.triton.toolchain.build import build_triton
from fusec.timing.measure import interleave
from fusec.tune import products, products_race
from support.products import FUNCTIONS, VECTORS
from support.triton_bodies import product

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def near(actual: Any, eager: Any, exact: Any) -> None:
    """Assert that a result is about as exact as eager's."""
    several = isinstance(eager, tuple)
    for a, e, x in zip(*(v if several else (v,) for v in (actual, eager, exact)), strict=True):
        assert (a.shape, a.stride(), a.dtype) == (e.shape, e.stride(), e.dtype)
        if a.dtype == torch.bool:
            assert (a != e).float().mean() < 0.01
            continue
        wrong, theirs = ((v.double() - x).abs().max().item() for v in (a, e))
        assert wrong <= 2 * theirs + 4 * torch.finfo(a.dtype).eps * x.abs().max().item()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, make, _ = FUNCTIONS[name]
    tensors = [t.cuda() for t in make()]
    exact = function(*(t.double() if t.is_floating_point() else t for t in tensors))
    # attention as it is written here would be ATen's, which is faster
    compiled = fusec.compile(function, matmul="template", without=("written_attention",))
    near(compiled(*tensors), function(*tensors), exact)
    assert not compiled.graphs[0].externs


@pytest.mark.parametrize("dtype", [HALF, BF16, F32], ids=str)
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize(
    "shape",
    [
        (1024, 1024, 1024),
        (16, 2048, 4096),
        (1, 512, 2048),
        (1000, 999, 1001),
        (200, 8, 300),
        (29, 2000, 4099),
        (64, 11008, 512),
    ],
)
def test_every_candidate(shape: tuple[int, int, int], turned: bool, dtype: torch.dtype) -> None:
    case = product(*shape, dtype, turned=turned, device="cuda")
    x, w, b, out = (case.inputs(device="cuda")[name] for name in ("x", "w", "b", "out"))
    h = x.double() @ (w.t() if turned else w).double() + b.double()
    exact, ran = F.gelu(h), 0
    for strategy, settings in candidates(match_product(case.body, case.buffers)):
        source = emit_triton(
            case.name, case.body, case.buffers, strategy=strategy, settings=settings
        )
        kernel = build_triton(source.text, source.signature)
        given = {"x": x, "w": w, "b": b, "out": out.fill_(float("nan"))}
        kernel([given[name] for name in argument_buffers(case.body)], [])
        wrong = (out.double() - exact).abs().max().item()
        # the roundings of as many float32 additions walk at random
        units = max(8, shape[2] ** 0.5 if dtype == F32 else 0)
        limit = units * torch.finfo(dtype).eps * exact.abs().max().item()
        assert wrong <= limit, (strategy, settings)
        ran += 1
    assert ran > 1


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("dtype", [HALF, BF16, F32], ids=str)
def test_products_of_a_vector(name: str, dtype: torch.dtype) -> None:
    function, shapes, kernels, calls = VECTORS[name]
    compiled = fusec.compile(function)
    for _ in range(2):
        tensors = [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]
        exact = function(*(t.double() for t in tensors))
        near(compiled(*tensors), function(*tensors), exact)
    assert (len(compiled.kernels), len(compiled.graphs[0].externs)) == (kernels, calls)


def test_a_choice_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))
    x, w, b = (torch.randn(s, device="cuda", dtype=HALF) for s in ((16, 1024), (1024, 512), (512,)))
    function = lambda x, w, b: F.gelu(torch.addmm(b, x, w))  # noqa: E731
    state = torch.cuda.get_rng_state()
    compiled = fusec.compile(function, matmul="auto")
    torch.testing.assert_close(compiled(x, w, b), function(x, w, b), rtol=5e-3, atol=5e-2)
    assert torch.equal(torch.cuda.get_rng_state(), state), "the user's random numbers"
    (graph,) = compiled.graphs
    words = [d.reason for d in graph.fusions] + [call.reason for call in graph.externs]
    assert any("(measured)" in word for word in words), words

    def never(*_: object) -> products.Choice:
        raise AssertionError("measured again")

    monkeypatch.setattr(products_race, "race", never)
    torch._dynamo.reset()
    again = fusec.compile(function, matmul="auto")
    assert torch.equal(again(x, w, b), compiled(x, w, b))
    assert [k.source for k in again.graphs[0].kernels] == [k.source for k in graph.kernels]


@pytest.mark.parametrize("shape", [(2048, 2048, 2048), (16, 4096, 11008), (128, 128, 128)])
def test_auto_is_not_slower_than_blas(shape: tuple[int, int, int]) -> None:
    rows, columns, inner = shape
    x = torch.randn(rows, inner, device="cuda", dtype=HALF)
    w = torch.randn(inner, columns, device="cuda", dtype=HALF) * inner**-0.5
    b = torch.randn(columns, device="cuda", dtype=HALF)
    function = lambda x, w, b: F.gelu(torch.addmm(b, x, w))  # noqa: E731
    calls = {}
    for kind in ("auto", "extern"):
        torch._dynamo.reset()
        compiled = fusec.compile(function, matmul=kind)
        compiled(x, w, b)
        calls[kind] = lambda compiled=compiled: compiled(x, w, b)  # type: ignore[misc]
    timings = interleave(calls, seconds=0, min_samples=50, device="cuda", flush_l2=True)
    assert timings["auto"].low <= 1.02 * timings["extern"].high


def test_on_a_stream_of_the_users() -> None:
    x = torch.randn(1024, 1024, device="cuda", dtype=HALF)
    compiled = fusec.compile(lambda x: (x @ x).relu(), matmul="template")
    compiled(x)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = x * 0.5
        actual, expected = compiled(y), (y @ y).relu()
    stream.synchronize()
    torch.testing.assert_close(actual, expected, rtol=5e-3, atol=5e-2)
