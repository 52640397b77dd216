"""Rows of symbolic sizes in registers: guarded to be short, and right for every length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

import fusec
from fusec.graph.simplify.short_rows import LONGEST_ROW, bound_rows
from fusec.ir.index import Expr, Symbol
from fusec.kernel import Kernel
from fusec.kernel_source import Argument, Signature
from fusec.targets.triton.toolchain.load import load
from fusec.targets.triton.toolchain.starts import record_starts

aten = torch.ops.aten
Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def rms_norm(x: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()).to(x.dtype)


def causal_softmax(x: torch.Tensor) -> torch.Tensor:
    later = torch.ones(x.shape[-2], x.shape[-1], dtype=torch.bool, device=x.device).triu(1)
    return x.masked_fill(later, float("-inf")).softmax(-1)


def standardized(x: torch.Tensor) -> torch.Tensor:
    variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    return (x - mean) / (variance + 1e-5).sqrt()


FUNCTIONS: dict[str, Function] = {
    "layer norm": layer_norm,
    "rms norm": rms_norm,
    "softmax": lambda x: x.softmax(-1),
    "log-softmax": lambda x: x.log_softmax(-1),
    "causal softmax": causal_softmax,
    "standardized": standardized,
    "two dimensions": lambda x: (x - x.amax((-2, -1), keepdim=True)).exp(),
}


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest difference, where both are finite."""
    assert torch.equal(found.isfinite(), exact.isfinite())
    return (found.double() - exact).nan_to_num(0.0, 0.0, 0.0).abs().max().item()


def tunables(compiled: fusec.CompiledFunction) -> set[str]:
    return {t.name for kernel in compiled.kernels.values() for t in kernel.tunables}


def made(function: Function, x: torch.Tensor, dims: tuple[int, ...] = (0, 1, 2)) -> torch.Tensor:
    """Return an input, its dimensions symbolic."""
    for dim in dims:
        torch._dynamo.mark_dynamic(x, dim)
    return x


@pytest.mark.triton
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_one_kernel_is_right_for_rows_of_all_lengths(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    compiled = fusec.compile(function, target="triton", dynamic=True)
    dims = (0,) if name == "two dimensions" else (0, 1, 2)
    for length in (300, 2, 77, 1024, 1025, 2900):
        x = torch.randn(2, 3, length, dtype=torch.float64).to(dtype)
        if name == "two dimensions":
            x = x[:, :2, :130]
        got, exact = compiled(made(function, x, dims)), function(x.double())
        assert got.dtype == dtype
        allowed = 2 * distance(function(x), exact) + 4 * torch.finfo(dtype).eps
        assert distance(got, exact) <= allowed
    if name != "two dimensions":
        assert len(compiled.graphs) == 1
        assert "TILE" in tunables(compiled)


@pytest.mark.triton
def test_rows_of_strided_inputs_and_their_gradients() -> None:
    compiled = fusec.compile(layer_norm, target="triton", dynamic=True)
    for length in (40, 7, 333):
        x = torch.randn(4, 5, 2 * length)[:, ::2, :length].requires_grad_()
        torch._dynamo.mark_dynamic(x, (0, 1, 2))
        y = x.detach().double().requires_grad_()
        grad = torch.randn(4, 3, length)
        result = compiled(x)
        (found,) = torch.autograd.grad(result, x, grad)
        (exact,) = torch.autograd.grad(layer_norm(y), y, grad.double())
        torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)
    assert all(len(graph.parts) == 2 for graph in compiled.graphs)


@pytest.mark.triton
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.amax((-2, -1), keepdim=True),
        lambda x: x[..., : x.shape[-1] // 2].softmax(-1),
    ],
    ids=["several dimensions", "half of a row"],
)
def test_lengths_that_follow_from_a_size(function: Function) -> None:
    compiled = fusec.compile(function, target="triton")
    for length in (40, 7, 333):
        x = torch.randn(5, 3, length)
        torch._dynamo.mark_dynamic(x, 2)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(compiled.graphs) == 1
    assert "TILE" in tunables(compiled)


@pytest.mark.triton
def test_rows_of_nothing() -> None:
    compiled = fusec.compile(lambda x: x[:, : x.shape[1] // 4].softmax(-1), target="triton")
    for length in (40, 41, 3, 100):
        x = torch.randn(3, length)
        torch._dynamo.mark_dynamic(x, 1)
        torch.testing.assert_close(compiled(x), x[:, : length // 4].softmax(-1))


@pytest.mark.triton
def test_a_longer_row_is_compiled_for_once_more() -> None:
    compiled = fusec.compile(lambda x: x.softmax(-1), target="triton", dynamic=True)
    for length in (100, LONGEST_ROW, LONGEST_ROW + 1, 20000, 90):
        x = torch.randn(2, length)
        torch._dynamo.mark_dynamic(x, 1)
        torch.testing.assert_close(compiled(x), x.softmax(-1))
    assert len(compiled.graphs) == 2
    (again,) = compiled.recompiles
    assert again.text == "x has a size of 0 or 1, or of more than 16384, in dimension 1"
    assert "registers" in again.hint


@pytest.mark.triton
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(-1),
        lambda x: x.softmax(0),
        lambda x: x.argmax(-1),
        lambda x: x * 2,
        lambda x: x[..., x.shape[-1] // 2 :].softmax(-1),
    ],
    ids=["read once", "columns", "place", "pointwise", "no simple size"],
)
def test_other_rows_may_have_any_length(function: Function) -> None:
    compiled = fusec.compile(function, target="triton", dynamic=True)
    for length in (40, 2 * LONGEST_ROW + 3):
        x = torch.randn(2, length)
        torch._dynamo.mark_dynamic(x, 1)
        torch.testing.assert_close(compiled(x), function(x))
    assert len(compiled.graphs) == 1
    assert "TILE" not in tunables(compiled)


def test_on_a_cpu_rows_may_have_any_length() -> None:
    compiled = fusec.compile(layer_norm, dynamic=True)
    for length in (40, LONGEST_ROW + 1):
        x = torch.randn(2, length)
        torch._dynamo.mark_dynamic(x, 1)
        torch.testing.assert_close(compiled(x), layer_norm(x))
    assert len(compiled.graphs) == 1


@pytest.mark.triton
@pytest.mark.parametrize(
    ("bounds", "held"), [({"min": 4, "max": 500}, True), ({"min": 4, "max": 1 << 20}, False)]
)
def test_bounds_of_the_users_own_stay_as_they_are(bounds: dict[str, int], held: bool) -> None:
    compiled = fusec.compile(lambda x: x.softmax(-1), target="triton")
    for length in (40, 333):
        x = torch.randn(2, length)
        torch._dynamo.mark_dynamic(x, 1, **bounds)
        torch.testing.assert_close(compiled(x), x.softmax(-1))
    assert len(compiled.graphs) == 1
    assert ("TILE" in tunables(compiled)) == held


def softmax_kernel(length: int) -> Kernel:
    """Return the only kernel of a softmax over rows of symbolic length."""
    compiled = fusec.compile(lambda x: x.softmax(-1), target="triton", dynamic=True)
    x = torch.randn(2, length)
    torch._dynamo.mark_dynamic(x, 1)
    compiled(x)
    (kernel,) = compiled.kernels.values()
    return kernel


@pytest.mark.triton
def test_launch_refuses_rows_that_the_kernel_is_not_made_for() -> None:
    kernel = softmax_kernel(50)
    namespace, _ = load(kernel.source)
    x = torch.randn(2, 50)
    with pytest.raises(AssertionError, match="shorter rows"):
        namespace["launch"](x, x, *[LONGEST_ROW + 1] * len(kernel.signature.sizes))


@pytest.mark.triton
def test_kernels_are_compiled_ahead_for_the_row_at_hand() -> None:
    kernel = softmax_kernel(5000)
    namespace, _ = load(kernel.source)
    (start,) = record_starts(namespace, kernel.signature, "launch")
    assert start.kwargs["RBLOCK"] == 8192


def test_starts_of_unknown_sizes_take_a_sample() -> None:
    size = Expr.of(Symbol("s0", "size", low=2))
    argument = Argument("x", torch.float32, (size,), (Expr.of(1),), "in")
    text = "import triton\n\n\n@triton.jit\ndef k(x_ptr, s0):\n    pass\n\n\n"
    text += "def launch(x, s0):\n    k[(1,)](x, s0)\n"
    namespace, _ = load(text)
    (start,) = record_starts(namespace, Signature((argument,), ("s0",)), "launch", size=123)
    assert start.args[0].shape == (123,)
    assert start.args[1] == 123


def test_operators_may_be_called_without_dimensions() -> None:
    """Which arguments of an operator are given depends on torch's version."""
    plain = torch.randn(3, 40)
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        dims = [DimDynamic.STATIC, DimDynamic.DYNAMIC]
        context = StatelessSymbolicContext(dims, None)
        x = mode.from_tensor(plain, symbolic_context=context, source=ConstantSource("x"))
        graph = fx.Graph()
        given = graph.placeholder("x")
        given.meta["val"] = x
        calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
            (aten.var.correction, (given,), {}),
            (aten.std.correction, (given,), {"correction": 0}),
            (aten.amax.default, (given,), {}),
            (aten.var_mean.correction, (given,), {"dim": [0], "keepdim": True}),
            (aten.sum.dim_IntList, (given, [1]), {}),
            (aten.amax.default, (given,), {"dim": [-1], "keepdim": True}),
        ]
        graph.output(tuple(graph.call_function(*call) for call in calls))
        module = fx.GraphModule({}, graph)
        assert bound_rows(module, interpreted=False) == 0  # on the CPU
        assert bound_rows(module, interpreted=True) == 1  # 3 * s0, which says enough of s0
        assert bound_rows(module, interpreted=True) == 0


@pytest.mark.triton
def test_spread_of_everything() -> None:
    compiled = fusec.compile(lambda x: (x.std(), x.var(), x - x.mean()), target="triton")
    for rows in (3, 5, 8):
        x = torch.randn(rows, 40)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), (x.std(), x.var(), x - x.mean()))
