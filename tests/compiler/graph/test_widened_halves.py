"""Half-precision matrix products in float32, on processors that multiply halves slowly."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fusec
from fusec.graph.facts.half_speed import HalfSpeed
from fusec.graph.products.widened_halves import _Widening, widen_products

HALVES = (torch.bfloat16, torch.float16)
SLOW = HalfSpeed(half=0.05, single=0.0167, conversion=0.8)
FAST = HalfSpeed(half=0.01, single=0.02, conversion=0.4)


@pytest.fixture(autouse=True)
def slow_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every processor be one that has no half-precision products."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setattr("fusec.graph.choices.half_speed", lambda dtype: SLOW)
    torch._dynamo.reset()
    torch.manual_seed(0)


def widened(compiled: fusec.CompiledFunction) -> list[bool]:
    """Return, for each operator that runs as ATen's, whether it was told to run in float32."""
    return [", in float32" in extern.reason for g in compiled.graphs for extern in g.externs]


class Net(nn.Module):
    """Two linear layers and attention between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.up(x).split(64, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.down(F.gelu(y.transpose(1, 2).flatten(2)))


class Conv(nn.Module):
    """A convolution with a norm in training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x)))


def _step(call: Callable[..., torch.Tensor], module: nn.Module, x: torch.Tensor) -> list:
    module.zero_grad()
    result = call(x)
    result.double().square().mean().backward()
    return [result.detach(), *(p.grad.clone() for p in module.parameters())]


@pytest.mark.parametrize(("module", "shape"), [(Net(), (2, 64, 64)), (Conv(), (2, 8, 16, 16))])
def test_training_under_autocast_is_no_further_from_float64_than_eager(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    exact = copy.deepcopy(module).double()
    truth = _step(exact, exact, x.double())
    compiled = fusec.compile(module)
    with torch.autocast("cpu", torch.bfloat16):
        eager = _step(module, module, x)
        found = _step(compiled, module, x)
    assert set(widened(compiled)) == {True}
    for got, plain, true in zip(found, eager, truth, strict=True):
        assert (got.dtype, got.stride()) == (plain.dtype, plain.stride())
        allowed = 2 * (plain - true).abs().max() + 8e-3 * true.abs().max()
        assert (got - true).abs().max() <= allowed


def test_between_products_nothing_is_rounded() -> None:
    module, x = Net(), torch.randn(2, 64, 64)
    compiled = fusec.compile(module)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, eager = compiled(x), module(x)
    (graph,) = compiled.graphs
    assert "bfloat16" not in graph.parts[0].state.host.text
    true = copy.deepcopy(module).double()(x.double())
    # x is float32 and so is the sum: what is left of eager's error is that of float32
    assert (found - true).abs().max() < 0.01 * (eager - true).abs().max()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("exact", [False, True])
def test_weights_in_half_precision(dtype: torch.dtype, exact: bool) -> None:
    x, w, b = torch.randn(64, 96), torch.randn(80, 96), torch.randn(80)
    x, w, b = x.to(dtype), w.to(dtype), b.to(dtype)
    compiled = fusec.compile(lambda x: F.relu(F.linear(x, w, b)) + 1, emulate_rounding=exact)
    product = F.linear(x.float(), w.float(), b.float())
    if exact:
        product = product.to(dtype).float()
    expected = F.relu(product)
    if exact:
        expected = expected.to(dtype).float()
    assert torch.equal(compiled(x), (expected + 1).to(dtype))
    assert widened(compiled) == [True]


def test_a_users_cast_rounds() -> None:
    x, w = torch.randn(64, 96), torch.randn(96, 64)
    compiled = fusec.compile(lambda x, w: x.bfloat16() @ w.to(torch.bfloat16))
    rounded = x.bfloat16().float() @ w.bfloat16().float()
    assert torch.equal(compiled(x, w), rounded.bfloat16())
    assert widened(compiled) == [True]
    assert not torch.equal(compiled(x, w), (x @ w).bfloat16())


def test_few_rows_are_not_worth_converting_a_weight_for() -> None:
    x, w = torch.randn(2, 64).bfloat16(), torch.randn(64, 512).bfloat16()
    compiled = fusec.compile(torch.mm)
    torch.testing.assert_close(compiled(x, w), x @ w)
    assert widened(compiled) == [False]
    # what autocast rounds is there in float32, and need not be converted
    compiled = fusec.compile(torch.mm)
    with torch.autocast("cpu", torch.bfloat16):
        compiled(x.float(), w.float())
    assert widened(compiled) == [True]


def test_results_that_are_equal_are_two_tensors() -> None:
    def twice(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x @ w
        return y.float(), y.float(), y[:32].float(), y

    x, w = torch.randn(64, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    first, second, part, rounded = fusec.compile(twice)(x, w)
    first.zero_()
    expected = x.float() @ w.float()
    assert torch.equal(rounded, expected.bfloat16())
    for got, whole in ((second, expected), (part, expected[:32])):
        torch.testing.assert_close(got, whole, rtol=1e-2, atol=1e-2)


def test_autocast_does_not_return_the_input_itself() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.mm(x, w)
        return y, x.bfloat16().float()

    x, w = torch.randn(64, 64), torch.randn(64, 64)
    with torch.autocast("cpu", torch.bfloat16):
        _, same = fusec.compile(function)(x, w)
    assert same.data_ptr() != x.data_ptr()
    assert torch.equal(same, x.bfloat16().float())


def test_what_may_be_returned_instead_of_a_cast() -> None:
    """No input, and nothing twice; what is only read may be anything."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    made, other, *casts, unused = (graph.call_function(torch.relu, (x,)) for _ in range(5))
    read = graph.call_function(torch.neg, (casts[0],))
    graph.output((*casts, read))
    may = _Widening(fx.GraphModule({}, graph), False).may_stand_for
    assert [may(x, cast) for cast in (*casts, unused, read)] == [False, False, True, False]
    assert [may(made, cast) for cast in (unused, *casts)] == [True, True, False]
    assert [may(other, cast) for cast in casts] == [True, False]


def test_batches_masks_and_sizes_that_change() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.baddbmm(bias, a, b), -1) @ b.mT

    compiled = fusec.compile(function, dynamic=True)
    for rows in (80, 144):
        a, b = torch.randn(3, rows, 64).bfloat16(), torch.randn(3, 64, rows).bfloat16() / 8
        bias = torch.randn(rows).bfloat16()
        true = function(a.double(), b.double(), bias.double())
        error, eager = (compiled(a, b, bias) - true).abs(), (function(a, b, bias) - true).abs()
        assert error.max() <= eager.max() + 1e-3
    assert len(compiled.graphs) == 1
    assert set(widened(compiled)) == {True}


def test_a_fast_processor_keeps_its_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.choices.half_speed", lambda dtype: FAST)
    x = torch.randn(64, 64).bfloat16()
    compiled = fusec.compile(torch.mm)
    assert torch.equal(compiled(x, x), x @ x)
    assert widened(compiled) == [False]


def test_only_halves_are_converted() -> None:
    """What is in float32 already, a sum of exponentials that backward reads, stays as it is."""

    def gradients(w: torch.Tensor, *given: torch.Tensor) -> object:
        call = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        g, *qkv = (torch.mm(x, w).view(2, 64, 4, 64).transpose(1, 2) for x in given)
        result, total = call(*qkv)
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(g, *qkv, result, total, 0.0, False)
        )

    with FakeTensorMode() as mode:
        shapes = (256, 256), *((128, 256) for _ in range(4))
        module = make_fx(gradients)(*(torch.empty(s, dtype=torch.bfloat16) for s in shapes))
    with tracing(TracingContext(mode)):
        assert widen_products(module) == 6
    converted = [n for n in module.graph.nodes if "convert" in str(n.target)]
    assert converted
    for node in converted:
        (source,) = node.all_input_nodes
        assert source.meta["val"].dtype != node.meta["val"].dtype


def test_every_rounding_is_kept_where_that_is_asked_for() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ w

    x, w = torch.randn(64, 256), torch.randn(256, 256)
    compiled = fusec.compile(function, emulate_rounding=True)
    rounded = (x.bfloat16().float() @ w.bfloat16().float()).bfloat16()
    same = (compiled(x, w) == rounded).double().mean()
    assert same > 0.99  # but for another order of additions
    assert (rounded == (x @ w).bfloat16()).double().mean() < 0.5


def test_a_part_of_a_tensor_is_converted_and_not_the_rest_of_it() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = w[:64]
        return x @ part.t(), x @ part

    with FakeTensorMode() as mode:
        shapes = (64, 64), (640, 64)
        module = make_fx(function)(*(torch.empty(s, dtype=torch.bfloat16) for s in shapes))
    with tracing(TracingContext(mode)):
        assert widen_products(module) == 2
    converted = [n for n in module.graph.nodes if "convert" in str(n.target)]
    widened = [n for n in converted if n.meta["val"].dtype == torch.float32]
    made = [n.args[0].meta["val"].numel() for n in widened]
    assert made == [64 * 64] * 2  # x, and what both products read of w


def test_an_input_is_converted_for_the_line_that_multiplies_it() -> None:
    with FakeTensorMode() as mode:
        module = make_fx(torch.mm)(*(torch.empty(64, 64).bfloat16() for _ in range(2)))
    (product,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)
    product.meta["stack_trace"] = "of the product"
    with tracing(TracingContext(mode)):
        assert widen_products(module) == 1
    converted = [n for n in module.graph.nodes if "convert" in str(n.target)]
    assert [n.meta["stack_trace"] for n in converted] == ["of the product"] * 3
