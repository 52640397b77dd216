"""What eager refuses is refused, with eager's own class of error, and nothing else is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

import fusec
from fusec.graph.refusals.kernels import refused
from fusec.graph.refusals.numbers import has_odd_number, raises_in_eager
from support.compare import difference

I64, BOOL, HALF, U8 = torch.int64, torch.bool, torch.float16, torch.uint8
Case = tuple[Callable[[torch.Tensor], object], torch.Tensor]

REFUSED: dict[str, Case] = {
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 2), torch.ones(1, 1, 4, dtype=I64)),
    "adaptive_avg_pool2d": (
        lambda x: F.adaptive_avg_pool2d(x, 2),
        torch.ones(1, 1, 4, 4, dtype=I64),
    ),
    "adaptive_max_pool2d": (
        lambda x: F.adaptive_max_pool2d(x, 2),
        torch.ones(1, 1, 4, 4, dtype=I64),
    ),
    "AdaptiveMaxPool3d": (torch.nn.AdaptiveMaxPool3d(2), torch.ones(1, 1, 4, 4, 4, dtype=I64)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), torch.ones(1, 1, 4, 4, 4, dtype=HALF)),
    "ceil": (lambda x: x.ceil(), torch.ones(3, dtype=BOOL)),
    "gelu": (F.gelu, torch.ones(3, dtype=I64)),
    "mish": (F.mish, torch.ones(3, dtype=I64)),
    "relu": (F.relu, torch.ones(3, dtype=BOOL)),
    "std": (lambda x: x.std(), torch.ones(3, dtype=I64)),
    "bitwise and": (lambda x: x & x, torch.ones(3)),
    "lcm": (lambda x: torch.lcm(x, x), torch.ones(3)),
    "product": (lambda x: x @ x, torch.ones(3, 3, dtype=BOOL)),
    "difference": (lambda x: x - True, torch.ones(3, dtype=I64)),
    "batch norm": (
        lambda x: F.batch_norm(x, torch.zeros(3), torch.ones(3)),
        torch.ones(2, 3, dtype=I64),
    ),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), torch.ones(1, 1, 3, 3, dtype=I64)),
    "linear": (lambda x: F.interpolate(x, size=5, mode="linear"), torch.ones(1, 1, 3, dtype=U8)),
    "bound": (lambda x: x.clamp(False, True), torch.ones(3, dtype=BOOL)),
    "reversed difference": (lambda x: 1 - x, torch.ones(3, dtype=BOOL)),
    "margin": (
        lambda x: F.multi_margin_loss(x, torch.zeros(2, dtype=I64)),
        torch.ones(2, 3, dtype=HALF),
    ),
    "hardshrink": (F.hardshrink, torch.ones(3, dtype=I64)),
    "index_add": (
        lambda x: x.index_add(0, torch.tensor([0, 1]), torch.ones(2, 1)),
        torch.ones(3, 2),
    ),
    "index_reduce": (
        lambda x: x.index_reduce(0, torch.tensor([0]), x[:1], "amax"),
        torch.ones(3, dtype=BOOL),
    ),
    "mul_": (lambda x: x.mul_(1.5), torch.ones(3, dtype=I64)),
    "*=": (lambda x: x.__imul__(2), torch.ones(3, dtype=BOOL)),
    "amax(out=)": (
        lambda x: torch.amax(x, 0, out=torch.empty((), dtype=torch.float64)),
        torch.ones(3),
    ),
    "complex(out=)": (
        lambda x: torch.complex(x, x, out=torch.empty(3, dtype=torch.complex64)),
        torch.ones(3, dtype=torch.float64),
    ),
    "sort(out=)": (
        lambda x: torch.sort(x, out=(x.double(), torch.empty(3, dtype=I64))),
        torch.ones(3),
    ),
    "isin(out=)": (lambda x: torch.isin(x, x, out=torch.empty(3)), torch.ones(3)),
    "softmax": (lambda x: x.softmax(0), torch.ones(3, dtype=I64)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), torch.ones(3, 4, dtype=I64)),
    "take": (lambda x: x.take(torch.tensor([0])), torch.ones(3, dtype=torch.uint16)),
    "nearest of bytes of floats": (
        lambda x: F.interpolate(x, scale_factor=2),
        torch.ones(1, 1, 3, 3).to(torch.float8_e5m2),
    ),
    "padding": (
        lambda x: F.pad(x, (1, 1), mode="reflect"),
        torch.ones(1, 4).to(torch.float8_e4m3fn),
    ),
    "product of complex halves": (lambda x: x @ x, torch.ones(3, dtype=torch.complex32)),
    "identity": (lambda x: torch.eye(3, dtype=torch.uint32), torch.ones(3)),
    "gather": (lambda x: torch.gather(x, 0, (x + 9).long()), torch.ones(3)),
    "a quotient without a fraction": (
        lambda x: torch.div(x, x, rounding_mode="trunc"),
        torch.ones(3, dtype=BOOL),
    ),
    "a mean of bools": (
        lambda x: torch.zeros_like(x).scatter_reduce(0, torch.tensor([0, 1, 1]), x, "mean"),
        torch.ones(3, dtype=BOOL),
    ),
    # No element of what raises is read, or there is none.
    "softsign of no bools": (F.softsign, torch.ones(1, 0, 3, dtype=BOOL)),
    "vecdot of nothing": (
        lambda x: torch.linalg.vecdot(x, x),
        torch.ones(0).to(torch.float8_e5m2),
    ),
    "a sum of bytes of floats": (
        lambda x: torch.masked.sum(x, mask=torch.ones(3, dtype=BOOL)),
        torch.ones(3).to(torch.float8_e4m3fn),
    ),
    # TorchDynamo takes these apart.
    "addcdiv": (lambda x: torch.addcdiv(x, x, x, value=2), torch.ones(3, dtype=I64)),
    "addcdiv of bytes": (
        lambda x: torch.addcdiv(x.float(), x, x, value=2),
        torch.ones(3, dtype=U8),
    ),
    "addcdiv_": (lambda x: x.addcdiv_(x, x, value=2), torch.ones(3, dtype=I64)),
    "addcdiv of bools": (lambda x: x.float().addcdiv_(x, x, value=2), torch.ones(3, dtype=BOOL)),
    "heaviside": (lambda x: torch.heaviside(x, torch.tensor(0.5)), torch.ones(3, dtype=I64)),
    "xlogy": (lambda x: torch.xlogy(x, 0.5), torch.ones(3, dtype=torch.complex64)),
    # Dimensions that are none, and what random numbers cannot be drawn with.
    "softmax over a third dimension": (lambda x: x.softmax(2), torch.ones(3, 4)),
    "log_softmax from the end": (lambda x: x.log_softmax(-3), torch.ones(3, 4)),
    "gumbel_softmax": (lambda x: F.gumbel_softmax(x, dim=5), torch.ones(3, 4)),
    "slice_scatter": (lambda x: x.slice_scatter(x, 5), torch.ones(3, 4)),
    "a range from its end": (lambda x: x.uniform_(3, 1), torch.ones(3)),
    "a chance over one": (lambda x: x.bernoulli_(1.5), torch.ones(3)),
    "a chance over one, anew": (lambda x: torch.bernoulli(x, 1.5), torch.ones(3)),
    "dropout": (lambda x: torch.native_dropout(x, 1.5, True), torch.ones(3)),
    # Numbers that tensors cannot hold.
    "a fraction of integers": (lambda x: torch.sub(x, x, alpha=0.5), torch.ones(3, dtype=I64)),
    "one as a fraction": (lambda x: torch.add(x, x, alpha=1.0), torch.ones(3, dtype=I64)),
    "a fraction of bools": (lambda x: x.add_(x, alpha=2.0), torch.ones(3, dtype=BOOL)),
    "a bool as a factor": (lambda x: torch.add(x, x, alpha=True), torch.ones(3)),
    "a large number beside halves": (lambda x: x.clamp(min=1e40), torch.ones(3, dtype=HALF)),
    "filled with a large number": (
        lambda x: torch.full((2,), 1e40, dtype=x.dtype),
        torch.ones(3, dtype=HALF),
    ),
    "padded with a large number": (lambda x: F.pad(x, (1, 1), value=1e40), torch.ones(3)),
    "a complex number": (lambda x: x.sub_(2j), torch.ones(3)),
    "bits of a fraction": (lambda x: x & 0.5, torch.ones(3, dtype=I64)),
    "bits of halves": (lambda x: x & 3, torch.ones(3, dtype=HALF)),
    "a remainder of bools": (lambda x: x % True, torch.ones(3, dtype=BOOL)),
}
COMPUTED: dict[str, Case] = {
    "mean": (lambda x: x.mean(dtype=torch.float32), torch.arange(3)),
    "pow of bools": (lambda x: x ** torch.tensor([1, 2, 3]), torch.ones(3, dtype=BOOL)),
    "isclose": (lambda x: torch.isclose(x, x), torch.ones(3, dtype=BOOL)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), torch.ones(1, 1, 3, 3, dtype=U8)),
    "mul_": (lambda x: x.mul_(3), torch.ones(3, dtype=I64)),
    "rows of uint16": (lambda x: torch.stack((x, x.flip(0))), torch.ones(3, 2, dtype=torch.uint16)),
    "rows of bytes": (
        lambda x: torch.cat((x, x)).to(torch.float32) * 2,
        torch.ones(3, 2).to(torch.float8_e5m2),
    ),
    "a trace of halves": (lambda x: x.float().trace(), torch.ones(3, 3, dtype=HALF)),
    "floor of integers": (lambda x: x.floor() + x.round(), torch.arange(3)),
    "average of int64": (lambda x: F.avg_pool2d(x, 2), torch.arange(16).reshape(1, 4, 4)),
    "index_add": (lambda x: x.index_add(0, torch.tensor([0]), x[:1]), torch.arange(3)),
    "a quotient of bools": (lambda x: torch.div(x, 2, rounding_mode="trunc"), torch.ones(3) > 0),
    "a maximum of bools": (
        lambda x: x.scatter_reduce(0, torch.tensor([0, 1, 1]), x, "amax"),
        torch.ones(3, dtype=BOOL),
    ),
    "a constant of bytes of floats": (
        lambda x: torch.where(
            x > 0, torch.tensor(2.0).to(torch.float8_e5m2), x.to(torch.float8_e5m2)
        ),
        torch.arange(3.0),
    ),
    "cumsum(out=)": (
        lambda x: torch.cumsum(x, 0, out=torch.empty(7, dtype=I64)),
        torch.tensor([1.6, 2.6]),
    ),
    "addcdiv": (lambda x: torch.addcdiv(x, x, x, value=2), torch.ones(3)),
    "addcdiv of a mixture": (lambda x: torch.addcdiv(x, x.long(), x, value=2), torch.ones(3)),
    "addcmul_": (lambda x: x.addcmul_(x, x, value=2), torch.arange(3)),
    "addcmul of a fraction": (lambda x: torch.addcmul(x, x, x, value=1.5), torch.arange(3)),
    "rows of bools": (
        lambda x: x.index_add(0, torch.tensor([0, 1, 2]), x, alpha=-1),
        torch.ones(3, dtype=BOOL),
    ),
    "a row of one element": (
        lambda x: x.index_fill(0, torch.tensor([0]), 2.5) // 300,
        torch.ones(1, 3, dtype=U8),
    ),
    "sizes": (
        lambda x: torch.full((300,), 3, dtype=U8)[:7].reshape(7, -1) + x.view(-1).sum(),
        torch.ones(3, dtype=U8),
    ),
    "complex numbers": (lambda x: x.nan_to_num(2.0), torch.ones(3, dtype=torch.complex64)),
    "a mean and a fraction": (lambda x: x * 0.5 + x.float().mean(), torch.arange(3)),
}


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_raises_the_same(name: str) -> None:
    function, x = REFUSED[name]
    with pytest.raises(Exception) as wanted:  # noqa: PT011
        function(x.clone())
    with pytest.raises(wanted.type):
        fusec.compile(function)(x.clone())


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", COMPUTED)
def test_what_eager_computes_is_computed(name: str) -> None:
    function, x = COMPUTED[name]
    assert not difference(fusec.compile(function)(x.clone()), function(x.clone()))


def test_out_of_another_type_where_every_number_is_symbolic() -> None:
    compiled = fusec.compile(lambda x, out, k: torch.kthvalue(x, k, out=out), dynamic=True)
    x, places = torch.rand(4), torch.empty((), dtype=I64)
    assert compiled(x, (torch.empty(()), places), 2)[0] == x.sort()[0][1]
    with pytest.raises(RuntimeError):
        compiled(x, (torch.empty((), dtype=torch.float64), places), 2)


def test_a_loss_that_torch_211_takes_apart_wrongly() -> None:
    x, target = torch.rand(3, 4, requires_grad=True), torch.tensor([[0, 1, -1, 0]] * 3)
    found = fusec.compile(F.multilabel_margin_loss)(x, target)
    wanted = F.multilabel_margin_loss(x, target)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (found, wanted)))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_loss_of_one_row_has_the_shape_of_its_target(reduction: str) -> None:
    x = torch.rand(5, requires_grad=True)
    loss = functools.partial(F.multi_margin_loss, reduction=reduction)
    for target in (torch.tensor(2), torch.tensor([2])):
        found, wanted = fusec.compile(loss)(x, target), loss(x, target)
        torch.testing.assert_close(found, wanted)
        gradients = (torch.autograd.grad(each.sum(), x)[0] for each in (found, wanted))
        torch.testing.assert_close(*gradients)


def test_a_table_of_types() -> None:
    mean = torch.ops.aten.mean.default
    assert refused(mean, [(I64, "cpu")]) == I64
    assert refused(mean, [(I64, "cpu")], torch.float32) is None, "computed in another type"
    assert refused(mean, [(I64, "cuda")]) is None, "a GPU has kernels of its own"
    power = torch.ops.aten.pow.Tensor_Tensor
    assert refused(power, [(BOOL, "cpu"), (BOOL, "cpu")]) == BOOL
    assert refused(power, [(BOOL, "cpu"), (I64, "cpu")]) is None, "promoted"


def test_every_operator_of_the_table_exists() -> None:
    from fusec.graph.refusals import kernels as table

    for name in table._REFUSED:
        packet, _, overload = name.partition(".")
        assert hasattr(getattr(torch.ops.aten, packet), overload or "default"), name


def test_what_raises_within_autocast_leaves_it() -> None:
    from torch import fx
    from torch.amp.autocast_mode import _enter_autocast

    from fusec.compiled.graph import CompiledGraph

    captured = fx.Graph()
    x = captured.placeholder("x")
    captured.call_function(_enter_autocast, ("cpu", torch.bfloat16, True, True))
    captured.output((captured.call_function(torch.mm, (x, x)),))
    graph = CompiledGraph("graph 0", fx.GraphModule({}, captured), False)
    graph.run_in_eager("for a test")
    with pytest.raises(RuntimeError):
        graph(torch.randn(2, 3))
    assert not torch.is_autocast_enabled("cpu")
    assert graph.fallback == "for a test"


def test_a_number_that_is_asked_about_leaves_no_trace() -> None:
    graph = fx.symbolic_trace(lambda x: x.random_(0, 300)).graph
    given, drawn, _ = graph.nodes
    given.meta["example_value"] = tensor = torch.zeros(3, dtype=U8)
    before = torch.get_rng_state()
    assert has_odd_number(drawn)
    assert raises_in_eager(drawn)
    drawn.args = (given, 0, 200)
    assert not has_odd_number(drawn)
    assert not raises_in_eager(drawn)
    assert torch.equal(torch.get_rng_state(), before)
    assert not tensor.any()


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.reshape(300, 2),
        lambda x: x.view(2, -1, 300),
        lambda x: x[300],
        lambda x: x.narrow(0, 300, 256),
        lambda x: torch.roll(x, 300, 0),
        lambda x: x.repeat_interleave(300, 0),
        lambda x: x.expand(300, 600),
        lambda x: torch.split(x, 300),
        lambda x: torch.nn.functional.pad(x, (300, 300)),
        lambda x: torch.topk(x, 300),
        lambda x: x.new_zeros(300),
    ],
)
def test_sizes_and_places_are_no_numbers_beside_tensors(call: Any) -> None:
    """Else whatever has a row of 300 bytes would run in eager."""
    graph = fx.symbolic_trace(call).graph
    given, made, *_ = graph.nodes
    given.meta["example_value"] = torch.zeros(600, dtype=U8)
    assert not has_odd_number(made)


@pytest.mark.parametrize(
    "call", [lambda x: x + 300, lambda x: x.add(300), lambda x: x.fill_(300), lambda x: x**0.5]
)
def test_numbers_beside_tensors(call: Any) -> None:
    graph = fx.symbolic_trace(call).graph
    given, made, *_ = graph.nodes
    given.meta["example_value"] = torch.zeros(600, dtype=U8)
    assert has_odd_number(made)


@pytest.mark.parametrize(
    ("name", "odd"),
    [("__eq__", True), ("__and__", True), ("__add__", True), ("__len__", False)],
)
def test_methods_of_every_object(name: str, odd: bool) -> None:
    """Torch 2.11 captures ``x == 300`` as a call of ``__eq__``, which namespaces have, too."""
    graph = fx.Graph()
    given = graph.placeholder("x")
    given.meta["example_value"] = torch.zeros(600, dtype=U8)
    assert has_odd_number(graph.call_method(name, (given, 300))) is odd
