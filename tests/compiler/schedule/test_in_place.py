"""Inputs that a graph updates: written where they lie, where that changes nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fusec
from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr
from fusec.ir.node import recording
from fusec.ir.program import Compute, Program, TensorRef
from fusec.schedule.in_place import update_in_place
from fusec.schedule.step_graph import fusion_view
from support.triton_bodies import F32, at, axes, buffer, f32

TARGETS = ["cpp", "triton"]  # Triton's kernels in its interpreter


@pytest.fixture(autouse=True, params=TARGETS)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)
    return str(request.param)


def placed(compiled: fusec.CompiledFunction) -> int:
    """Return how many inputs kernels write where they lie."""
    return sum("where it lies" in d.reason for g in compiled.graphs for d in g.fusions)


def same(target: str, function: Callable[..., object], *inputs: torch.Tensor) -> int:
    """Compare three calls with eager's, inputs included; return ``placed``."""
    compiled = fusec.compile(function, emulate_rounding=True, target=target)
    ours, theirs = inputs, tuple(copy.deepcopy(x) for x in inputs)
    for _ in range(3):
        found, eager = compiled(*ours), function(*theirs)
        torch.testing.assert_close(found, eager)
        for got, plain in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, plain)
    return placed(compiled)


SIZES = [(64,), (33, 7), (0, 5), (300, 1000)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_elementwise_updates(shape: tuple[int, ...], dtype: torch.dtype, target: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y.add_(x)
        return (x - y).clamp(-1, 1)

    x, y = (torch.randn(shape).mul(3).to(dtype) for _ in range(2))
    assert same(target, function, x, y) == (2 if x.numel() else 0)


def test_both_from_the_old_values_of_both(target: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> None:
        old = x.clone()
        x.copy_(y + 1)
        y.copy_(old * 0.5)

    same(target, function, torch.randn(1000), torch.randn(1000))


def _shifted(x: torch.Tensor) -> None:
    x.copy_(x.roll(1, 0) + x)


def _reversed(x: torch.Tensor) -> None:
    x.copy_(x.flip(0) * 2)


def _turned(x: torch.Tensor) -> None:
    x.add_(x.T.clone())


def _by_its_sum(x: torch.Tensor) -> None:
    x.div_(x.sum(0) + 100)


def _part(x: torch.Tensor) -> None:
    x[1:].add_(x[:-1].clone())


def _read_later(x: torch.Tensor) -> torch.Tensor:
    old = x.exp()
    x.add_(1)
    return torch.mm(old, old) + (old.sum(1) * 2)


def _returned_too(x: torch.Tensor) -> torch.Tensor:
    x.mul_(0.5)
    return x * 1


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "function", [_shifted, _reversed, _turned, _by_its_sum, _part, _read_later, _returned_too]
)
def test_updates_that_look_elsewhere(function: Callable[..., object], target: str) -> None:
    same(target, function, torch.rand(48, 48))


def test_kernels_that_read_the_new_value(target: str) -> None:
    """They read the input that it was written to, rather than a tensor beside it."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.sub_(y.exp() / (x.exp().sqrt() + 1).tanh())
        return x.view(-1)[:1] * 1, x[:2, 7] * y[:2, 8]

    assert same(target, function, torch.rand(48, 48), torch.rand(48, 48)) == 1


def test_layouts_and_views_of_one_tensor(target: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y.add_(1)
        return x + 1

    assert same(target, function, torch.randn(40, 30).T, torch.randn(8, 2, 6).permute(2, 0, 1)) == 2
    same(target, function, torch.randn(64, 64)[::2, 1::3], torch.randn(9))
    for dynamic in (None, True):
        ours, theirs = torch.randn(64), torch.empty(64)
        theirs.copy_(ours)
        torch._dynamo.reset()
        compiled = fusec.compile(function, target=target, dynamic=dynamic)
        compiled(ours[:32], ours[16:48])
        function(theirs[:32], theirs[16:48])
        assert torch.equal(ours, theirs)


class _Norms(nn.Module):
    def __init__(self, kind: type[nn.Module], convolution: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = convolution(3, 8, 3), convolution(8, 5, 3)
        self.one, self.two = kind(8), kind(5, momentum=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.two(self.second(torch.relu(self.one(self.first(x)))))
        return found


_DIMENSIONS = [
    (nn.BatchNorm1d, nn.Conv1d, (4, 3, 50)),
    (nn.BatchNorm2d, nn.Conv2d, (4, 3, 12, 13)),
    (nn.BatchNorm3d, nn.Conv3d, (2, 3, 6, 7, 8)),
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize(("kind", "convolution", "shape"), _DIMENSIONS)
def test_running_statistics(
    kind: type[nn.Module],
    convolution: type[nn.Module],
    shape: tuple[int, ...],
    learn: bool,
    target: str,
) -> None:
    ours = _Norms(kind, convolution)
    theirs = copy.deepcopy(ours)
    compiled = fusec.compile(ours, target=target)
    places = {name: buffer.data_ptr() for name, buffer in ours.named_buffers()}
    for _ in range(3):
        x = torch.randn(shape)
        with torch.set_grad_enabled(learn):
            one, two = compiled(x), theirs(x)
        torch.testing.assert_close(one, two)
        if learn:
            one.square().sum().backward()
            two.square().sum().backward()
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    assert places == {name: buffer.data_ptr() for name, buffer in ours.named_buffers()}
    assert placed(compiled) == 6  # a mean, a variance and a count for each


@pytest.mark.sample(1)
def test_statistics_that_are_read_besides(target: str) -> None:
    """What else is computed from the old or from the new mean is as in eager."""

    def function(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        centred = x - mean[:, None]
        mean.mul_(0.9).add_(x.mean(1), alpha=0.1)
        scale.mul_(0.5).add_((x * scale[:, None]).sum(1))
        return centred * centred.square().mean(1, keepdim=True) + mean[:, None]

    same(target, function, torch.randn(7, 300), torch.randn(7), torch.randn(7))
    same(target, function, torch.randn(400, 9), torch.randn(400), torch.randn(400))


def test_the_graph_shows_who_updates(target: str) -> None:
    def function(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        mean.mul_(0.9).add_(x.mean(1), alpha=0.1)
        return x * 2

    compiled = fusec.compile(function, target=target)
    compiled(torch.randn(64, 1000), torch.randn(64))
    (part,) = compiled.graphs[0].parts
    state = part.state
    assert state.program is not None
    assert state.schedule is not None
    view = fusion_view(state.program, state.scheduled, state.schedule.decisions)
    assert all(node.kernels for node in view.before.nodes if node.kind == "kernel")


def test_a_row_that_is_written_as_well(target: str) -> None:
    def function(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        mean.mul_(0.9).add_(x.mean(1), alpha=0.1)
        return x * 2

    assert same(target, function, torch.randn(64, 1000), torch.randn(64)) == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_an_optimizers_step(kind: str, target: str) -> None:
    def make() -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        torch.manual_seed(0)
        parameters = [nn.Parameter(torch.randn(s)) for s in ((64, 33), (33,), (5, 4, 3))]
        if kind == "adamw":
            return parameters, torch.optim.AdamW(parameters, lr=1e-2)
        return parameters, torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=0.1)

    (ours, optimizer), (theirs, other) = make(), make()

    def step() -> None:
        optimizer.step()

    compiled = fusec.compile(step, target=target)
    versions = [p._version for p in ours]
    for _ in range(4):
        for one, two in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            two.grad = one.grad.clone()
        compiled()
        other.step()
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    assert all(p._version > v for p, v in zip(ours, versions, strict=True))
    assert not any(g.fallback or g.externs for g in compiled.graphs)
    # what is kept is updated where it lies: three tensors a parameter, or two
    last = compiled.graphs[-1].fusions
    assert sum("where it lies" in d.reason for d in last) >= (9 if kind == "adamw" else 6)


def test_running_statistics_in_training(target: str) -> None:
    ours = nn.BatchNorm1d(16)
    theirs = copy.deepcopy(ours)
    compiled = fusec.compile(ours, target=target)
    for _ in range(3):
        x = torch.randn(32, 16, requires_grad=True)
        compiled(x).square().sum().backward()
        theirs(x.detach().requires_grad_()).square().sum().backward()
        for name, value in ours.state_dict().items():
            torch.testing.assert_close(value, theirs.state_dict()[name])
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_programs_share_channels_whose_statistics_are_updated(
    format: torch.memory_format, target: str
) -> None:
    ours = nn.BatchNorm2d(3)
    # eager's own sums over channels-last images are off by 3e-5 where there is one thread
    exact = copy.deepcopy(ours).double()
    compiled = fusec.compile(ours, target=target)
    x = torch.randn(2, 3, 210, 200).to(memory_format=format)
    torch.testing.assert_close(compiled(x), exact(x.double()).float())
    expected = {name: v.to(ours.state_dict()[name].dtype) for name, v in exact.state_dict().items()}
    torch.testing.assert_close(ours.state_dict(), expected, rtol=1e-5, atol=1e-6)
    assert placed(compiled) == 3
    if target == "triton":
        assert sum("SPLITS" in kernel.source for kernel in compiled.kernels.values()) == 1


def test_looking_at_a_kernels_inputs_changes_nothing(target: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    compiled = fusec.compile(function, target=target, keep_inputs=True)
    x = torch.ones(64)
    compiled(x)
    assert placed(compiled) == 1
    (graph,) = compiled.graphs
    (part,) = graph.parts
    before = x.clone()
    for name in part.kernels:
        assert part.last_inputs is not None
        part.kernel_inputs(name, part.last_inputs)
    graph.kernel_timings(seconds=0.02)
    assert graph.verify().ok
    assert torch.equal(x, before)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_input_that_another_kernel_writes_stays(elsewhere: bool) -> None:
    names = ("a", "x", "new", "rest")
    buffers = {name: buffer(name, (8,), F32) for name in names}

    def step(name: str, into: str) -> Compute:
        (i,) = axes(8)
        value = ops.binary("add", ops.load("x", at(i), F32), f32(1.0))
        return Compute(name, Body((i,), (), (Store(into, at(i), value),)))

    def whole(name: str) -> TensorRef:
        return TensorRef(name, buffers[name].shape, buffers[name].strides, Expr.of(0), F32)

    with recording():
        steps = (step("first", "a" if elsewhere else "rest"), step("second", "new"))
        outputs = (whole("new"), whole("rest"))
        program = Program(("a", "x"), {}, buffers, steps, outputs)
        changed, (decision,) = update_in_place(program, ("a",))
    assert decision.fused is not elsewhere
    assert decision.bytes_saved == (-1 if elsewhere else 2 * 8 * 4)  # written, and copied
    assert changed.steps[1].writes() == (("new",) if elsewhere else ("a",))
    if elsewhere:
        assert decision.reason == "the input is written elsewhere"


def test_what_is_returned_as_it_was_given_needs_no_kernel() -> None:
    buffers = {"a": buffer("a", (8,), F32)}
    whole = TensorRef("a", buffers["a"].shape, buffers["a"].strides, Expr.of(0), F32)
    for output in (whole, None, 3):
        program = Program(("a",), {}, buffers, (), (output,))
        assert update_in_place(program, ("a",)) == (program, ())
