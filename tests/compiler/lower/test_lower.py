"""Lowering: every family against eager, by the interpreter, before and after fusion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

import fusec
from fusec.ir.index import Expr
from fusec.ir.node import Recorder
from fusec.ir.program import Compute
from fusec.lower.program import GraphNotLowered, lower_graph
from fusec.lower.values import Lowering, NotLowered, ResultMeta
from support.compare import difference
from support.interpreted import Interpreted
from support.opinfo import name_of, run_samples

Case = Callable[[torch.Tensor], Any]

CASES: dict[str, Case] = {
    "chain": lambda x: torch.tanh(x * 2 + 1).exp() / (1 + x.abs()),
    "broadcast": lambda x: x * x[:1] + x[:, :1],
    "softmax rows": lambda x: x.softmax(-1),
    "softmax columns": lambda x: x.softmax(0),
    "log softmax": lambda x: x.log_softmax(1) * 2,
    "layer norm": lambda x: F.layer_norm(F.gelu(x), (8,), x[0], x[1]),
    "group norm": lambda x: F.group_norm(x.view(2, 4, 4), 2, x[0, :4], x[1, :4]),
    "batch norm": lambda x: F.batch_norm(x, None, None, x[0], x[1], training=True),
    "rms norm": lambda x: F.rms_norm(x, (8,), x[0]),
    "cat, slice, flip": lambda x: torch.cat([x, x[:, :3] * 2, x[:, ::2]], 1).flip(1),
    "stack": lambda x: torch.stack([x, x * 2], 1).sum(1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "negative pad": lambda x: F.pad(x, (-1, 2, 1, -2)),
    "reshape of transpose": lambda x: x.reshape(2, 16).t().contiguous().view(4, 8) + 1,
    "permute": lambda x: x.view(2, 2, 8).permute(2, 0, 1) * torch.arange(2),
    "variance": lambda x: (x.var(0), x.std((0, 1)), torch.var_mean(x, 1, correction=0)),
    "extremes": lambda x: (x.max(1), x.min(0), x.amax(), x.argmin(0), x.argmax()),
    "norms": lambda x: (x.norm(), x.norm(1, 0), x.norm(float("inf"), 1), x.norm(3)),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "any and all": lambda x: ((x > 0).any(1), (x > 0).all(), (x > -9).all(0)),
    "products": lambda x: (x.prod(1), x.prod()),
    "cross entropy": lambda x: F.cross_entropy(x, torch.tensor([1, 2, -100, 0])),
    "smoothed": lambda x: F.cross_entropy(x, torch.tensor([1, 2, 3, 0]), label_smoothing=0.1),
    "advanced index": lambda x: x[[0, 2]][:, torch.tensor([1, -1, 5])],
    "index in front": lambda x: x.view(2, 2, 8)[torch.tensor([1, 0]), :, torch.tensor([3, 4])],
    "gather": lambda x: x.gather(1, (x > 0).long() * 3),
    "embedding": lambda x: F.embedding(torch.tensor([[1, 2], [3, 0]]), x),
    "masks": lambda x: x.masked_fill(x > 0, -1.0).tril().triu(-2),
    "where": lambda x: torch.where(x > 0, x, 1.0),
    "clamp": lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=x[0]), x.relu(), F.hardtanh(x)),
    "casts": lambda x: (x.int(), x.bool(), x.half().float(), x.double().sum()),
    "integers": lambda x: (x * 9).int() // 4 + (x * 9).int() % 3 - ((x * 5).int() >> 1),
    "floor division": lambda x: (x // 0.3, x % 0.3, torch.fmod(x, 0.3), torch.div(x, x[0])),
    "powers": lambda x: (x**2, x**3, x.abs() ** 0.5, x.abs() ** 1.7, x**-1),
    "matmul": lambda x: (x @ x.t()).relu() + torch.arange(4),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "written out attention": lambda x: (x @ x.t() / 3).softmax(-1) @ x,
    "convolution": lambda x: F.conv2d(x.view(1, 2, 4, 4), torch.ones(3, 2, 3, 3)).relu(),
    "upsample": lambda x: F.interpolate(x.view(1, 2, 4, 4), scale_factor=2),
    "expand and sum": lambda x: x.unsqueeze(0).expand(3, 4, 8).sum(2),
    "turned softmax": lambda x: (torch.roll(x.softmax(1), 3, 1), x.softmax(1).roll(3, 1).sum(1)),
    "scan": lambda x: x.cumsum(0) + 1,
    "factories": lambda x: x + torch.arange(8) * torch.full((4, 1), 2.0) + torch.eye(4, 8),
    "split": lambda x: sum(p.sum() for p in x.split(3, 1)) + x.chunk(2, 0)[1].sum(),
    "diagonal": lambda x: torch.diagonal(x, 1) * 2,
    "activations": lambda x: (F.silu(x), F.elu(x), F.leaky_relu(x), F.softplus(x), F.mish(x)),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "reductions of reductions": lambda x: ((x - x.mean(1, keepdim=True)) ** 2).mean(1).sum(),
    "column then row": lambda x: (x / x.sum(0)).sum(1),
}

SLOW = pytest.mark.slow


def in_place(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[1:3].add_(1)
    x[:, ::2] = 0
    x[0, 0] = 5
    x.t()[3].mul_(2)
    return x


CASES["in place"] = in_place
INPUTS = {
    "contiguous": lambda: torch.randn(4, 8),
    "transposed": lambda: torch.randn(8, 4).t(),
    "strided": lambda: torch.randn(4, 16)[:, ::2],
    "offset": lambda: torch.randn(5, 9)[1:, 1:],
}


@pytest.mark.sample(16)
@pytest.mark.parametrize("fuse", [False, True], ids=["lowered", "fused"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_eager(name: str, fuse: bool) -> None:
    torch._dynamo.reset()
    backend = Interpreted(fuse)
    compiled = torch.compile(CASES[name], backend=backend, dynamic=False)
    kinds = INPUTS if fuse else {"contiguous": INPUTS["contiguous"]}
    for kind, make in kinds.items():
        if kind != "contiguous" and "view" in CASES[name].__code__.co_names:
            continue  # eager refuses the view as well
        x = make()
        assert not difference(
            compiled(x.clone(memory_format=torch.preserve_format)), CASES[name](x)
        ), kind
    assert backend.schedules


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "name", ["chain", "softmax rows", "layer norm", "extremes", "cross entropy"]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 8, dtype=dtype)
    actual = torch.compile(CASES[name], backend=Interpreted(), dynamic=False)(x)
    assert not difference(actual, CASES[name](x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0),
        lambda x: x.mean(1),
        lambda x: x.var(1),
        lambda x: x.softmax(1),
        lambda x: torch.cat([x, x]),
        lambda x: (x + 1).amax(0),
        lambda x: F.layer_norm(x, (3,)),
    ],
)
def test_empty(function: Case) -> None:
    torch._dynamo.reset()
    x = torch.empty(0, 3)
    try:
        expected = function(x)
    except (IndexError, RuntimeError):
        with pytest.raises((IndexError, RuntimeError)):
            torch.compile(function, backend=Interpreted(), dynamic=False)(x)
        return
    actual = torch.compile(function, backend=Interpreted(), dynamic=False)(x)
    assert not difference(actual, expected)


def test_scalars() -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> Any:
        reduced = x.sum(), x.mean(), x.amax(), x.argmax(), x.prod(), (x > 0).any(), x.norm()
        return *reduced, x.softmax(0), x.max(0), (x * 2).exp(), x.expand(3), x.reshape(1, 1)

    x = torch.tensor(1.5)
    assert not difference(torch.compile(function, backend=Interpreted())(x), function(x))


def _ops() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    wanted = (
        "add sub mul div true_divide floor_divide remainder fmod pow exp log1p tanh sigmoid erf "
        "rsqrt sqrt abs neg sign round floor trunc maximum minimum clamp where eq lt logical_and "
        "bitwise_and bitwise_left_shift sum mean prod amax amin argmax argmin any all var std "
        "var_mean std_mean logsumexp softmax log_softmax nn.functional.layer_norm "
        "nn.functional.group_norm nn.functional.cross_entropy nn.functional.gelu cat stack flip "
        "reshape permute expand squeeze unsqueeze index_select gather tril triu masked_fill "
        "nn.functional.pad slice select split chunk unbind diagonal roll repeat arange atan2 "
        "copysign nan_to_num isnan isinf lerp addcmul linalg.vector_norm norm "
        "cumsum cumprod cummax cummin logcumsumexp"
    ).split()
    return [op for op in op_db if op.name in wanted]


def _sampled() -> list[Any]:
    """Every third operator in all runs, the others in long ones."""
    return [op if n % 3 == 0 else pytest.param(op, marks=SLOW) for n, op in enumerate(_ops())]


@pytest.mark.sample(4)
@pytest.mark.parametrize("op", _sampled(), ids=name_of)
def test_torchs_own_samples(op: Any) -> None:
    """A few of torch's samples for each operator that a kernel is generated for."""
    for dtype in (torch.float32, torch.int64):
        if dtype in op.supported_dtypes("cpu"):
            outcomes = list(run_samples(op, dtype, Interpreted(), 4))
            bad = [o for o in outcomes if o.verdict in ("wrong", "error")]
            assert not bad, bad[0]


def test_implicit_rounding_goes_and_explicit_rounding_stays() -> None:
    torch._dynamo.reset()
    x = torch.randn(64, 64, dtype=torch.bfloat16)

    def implicit(x: torch.Tensor) -> torch.Tensor:
        return (x * 1.01 - x) * 64

    got = torch.compile(implicit, backend=Interpreted())(x)
    exact = implicit(x.double())
    eager_error = (implicit(x).double() - exact).abs().mean()
    assert (got.double() - exact).abs().mean() < eager_error / 2

    def explicit(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * 1.01).bfloat16().float() - x.float()

    torch._dynamo.reset()
    assert torch.equal(torch.compile(explicit, backend=Interpreted())(x), explicit(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_numbers_that_the_function_makes_are_numbers(dtype: torch.dtype) -> None:
    """No tensor in memory for them, and what is returned is new at every call."""
    torch._dynamo.reset()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.clone()
        y[:, 0] = 3
        y[1] = 2.5
        return y, y * torch.tensor(2), torch.tensor(4.0) + x, torch.tensor(7), torch.tensor(True)

    x = torch.randn(3, 5).to(dtype)
    compiled = fusec.compile(f)
    for _ in range(2):
        found = compiled(x)
        for got, plain in zip(found, f(x), strict=True):
            assert got.dtype == plain.dtype
            assert torch.equal(got, plain)
        found[3].add_(1)
    assert not compiled.graphs[0].externs


def test_a_number_joins_kernels_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """``x[:, 0] = 0`` copies a number from the CPU, as the graph has it: no call of ATen."""
    aten = torch.ops.aten
    monkeypatch.setattr("fusec.lower.program.require_device", lambda *_: None)
    graph, root = fx.Graph(), torch.nn.Module()
    root.number = torch.tensor(0)
    shapes = {"x": (8, 12), "made": (), "column": (8,), "copied": (8,), "result": (8, 12)}
    x, number = graph.placeholder("x"), graph.get_attr("number")
    made = graph.call_function(aten.lift_fresh_copy.default, (number,))
    column = graph.call_function(aten.select.int, (x, 1, 0))
    copied = graph.call_function(aten.copy.default, (column, made))
    result = graph.call_function(aten.select_scatter.default, (x, copied, 1, 0))
    graph.output((result,))
    with FakeTensorMode():
        nodes = (x, made, column, copied, result)
        for node, shape in zip(nodes, shapes.values(), strict=True):
            device = "cpu" if node is made else "cuda"
            node.meta["val"] = torch.empty(shape, dtype=torch.int64, device=device)
    program = lower_graph(fx.GraphModule(root, graph))
    assert {buffer.device.type for buffer in program.buffers.values()} == {"cuda"}
    assert all(isinstance(step, Compute) for step in program.steps)


@pytest.mark.parametrize("traced", [(1, 64), (63,)], ids=["another rank", "fewer elements"])
def test_a_shape_that_torch_traced_otherwise_is_not_lowered(traced: tuple[int, ...]) -> None:
    """torch 2.11 traces ``vector_norm(x, dim=-2)`` of one row as [1, 64]: eager has [64]."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    norm = graph.call_function(torch.ops.aten.linalg_vector_norm.default, (x, 2, [-2]))
    graph.output((norm,))
    with FakeTensorMode():
        x.meta["val"], norm.meta["val"] = torch.empty(1, 64), torch.empty(traced)
    with pytest.raises(GraphNotLowered, match="vector_norm has another shape than"):
        lower_graph(fx.GraphModule(torch.nn.Module(), graph))


def test_index_out_of_range_is_an_error() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, i: x[i] + 1, backend=Interpreted())
    with pytest.raises(IndexError):
        compiled(torch.randn(4, 8), torch.tensor([0, 7]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(5, 5, 5),
        lambda: torch.randn(5, 5, 5).transpose(0, 1),
        lambda: torch.randn(5, 1, 5).expand(5, 5, 5),
        lambda: torch.randn(5, 5, 10)[..., ::2],
    ],
    ids=["contiguous", "transposed", "expanded", "strided"],
)
@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_copies_in_shapes_that_no_view_has(make: Callable[[], torch.Tensor], target: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.view_copy(x, (25, -1))

    torch._dynamo.reset()
    x, compiled = make(), fusec.compile(function, target=target)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            function(x)
    except ValueError:  # torch 2.11: then torch.compile fails before any backend is asked
        pytest.skip("this torch takes no copy in a shape that no view has")
    found, plain = compiled(x), function(x)
    assert torch.equal(found, plain)
    assert found.stride() == plain.stride()
    found.zero_()
    assert torch.equal(function(x), plain)  # nothing of x is shared
    assert not compiled.graphs[0].externs


def test_what_is_refused_halfway_is_a_call_with_the_operators_own_results() -> None:
    """An intermediate step's results were left in their place."""
    lowering = Lowering(Recorder(), results=(None,))
    one = ResultMeta((), torch.float32, torch.device("cpu"), (), Expr.of(0))
    with pytest.raises(NotLowered), lowering.making(one):
        raise NotLowered("no such atomics")
    assert lowering.results == (None,)
    assert lowering.result is None
