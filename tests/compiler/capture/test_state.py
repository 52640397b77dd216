"""Compiled parts that run in another state of torch than they were compiled in."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.nn.utils.parametrizations import weight_norm

import fusec
from fusec.call import native
from fusec.call.eager_graph import run_eagerly
from fusec.call.input_check import UnexpectedInput
from fusec.graph.facts.half_speed import HalfSpeed
from fusec.memory.readable import Unreadable
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

pytestmark = pytest.mark.timeout(300)

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "64-32-16": lambda: nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 16)),
    "8-2-1": lambda: nn.Sequential(nn.Linear(8, 2), nn.Linear(2, 1)),
    "gelu": lambda: nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16)),
    "weight_norm": lambda: nn.Sequential(weight_norm(nn.Linear(64, 32)), nn.Linear(32, 16)),
}
BACKENDS = {
    "fusec": fusec.compile,
    "torch": lambda function: torch.compile(function, backend="fusec"),
}


def training_step(
    module: nn.Module, x: torch.Tensor, dtype: torch.dtype, device: str = "cpu"
) -> torch.Tensor:
    """Forward and backward, both within autocast."""
    with torch.autocast(device, dtype):
        loss = module(x).sum()
        loss.backward()
    return loss


def steps(step: Callable[..., Any], module: nn.Module, *given: Any) -> list[torch.Tensor]:
    """Return what two steps yield: the loss and all gradients."""
    found = []
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        loss = step(module, *given)
        found += [loss.detach(), *[p.grad for p in module.parameters() if p.grad is not None]]
    return found


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor], within: float) -> None:
    for mine, true in zip(ours, theirs, strict=True):
        assert mine.dtype == true.dtype
        assert (mine.double() - true.double()).norm() <= within * (true.double().norm() + 1)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_within_autocast(
    backend: str, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where halves are slow, products are taken in float32: what autocast would convert
    slow = HalfSpeed(half=0.2, single=0.02, conversion=0.4)
    monkeypatch.setattr("fusec.graph.choices.half_speed", lambda dtype: slow)
    torch.manual_seed(0)
    module = NETWORKS[name]()
    x = torch.randn(2 if name == "8-2-1" else 8, next(module.parameters()).shape[-1])
    if name == "weight_norm":
        x = torch.randn(8, 64)
    theirs = steps(training_step, copy.deepcopy(module), x, dtype)
    ours = steps(BACKENDS[backend](training_step), module, x, dtype)
    close(ours, theirs, 0.02)


@pytest.mark.parametrize("within", [True, False], ids=["forward within", "forward outside"])
def test_operators_of_a_backward_part_convert_nothing(within: bool) -> None:
    """Only backward is within autocast, or what is not to be converted stands in it."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.sigmoid(x @ w)

    torch.manual_seed(0)
    compiled = fusec.compile(product, matmul="extern")
    x, w = torch.randn(40, 64, requires_grad=True), torch.randn(64, 40, requires_grad=True)
    with torch.autocast("cpu", torch.float16, enabled=within):
        out = compiled(x, w)
    with torch.autocast("cpu", torch.float16):
        ours = torch.autograd.grad(out.sum(), (x, w))
        assert torch.is_autocast_enabled("cpu")
    theirs = torch.autograd.grad(torch.sigmoid(x @ w).sum(), (x, w))
    for mine, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_backward_within_autocast_on_a_gpu() -> None:
    torch.manual_seed(0)

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(64, 32), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.low(x)
            with torch.autocast("cuda", enabled=False):
                return self.high(x.float()).sin()

    module = Half().cuda()
    x = torch.randn(8, 64, device="cuda")
    theirs = steps(training_step, copy.deepcopy(module), x, torch.float16, "cuda")
    ours = steps(fusec.compile(training_step), module, x, torch.float16, "cuda")
    close(ours, theirs, 0.02)


def wave(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin() * x


def complex_ones(*shape: int) -> torch.Tensor:
    return torch.complex(torch.randn(shape), torch.randn(shape))


def trained(function: Callable[..., Any]) -> tuple[Callable[..., Any], torch.Tensor, torch.Tensor]:
    """Return a function that has run with gradients, and inputs for the next call."""
    call = fusec.compile(function)
    for _ in range(2):
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        call(x, w).sum().backward()
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    return call, x, w


UNPACKED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "turned": lambda t: t.mT.contiguous().mT,
    "with gaps": lambda t: torch.stack([t, t * 0], -1)[..., 0],
    "in double": lambda t: t.double(),
    "negated": lambda t: torch.complex(t * 0, -t).conj().imag,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("way", UNPACKED)
def test_saved_tensors_come_back_otherwise(way: str) -> None:
    """Hooks on saved tensors may return what no kernel was compiled for."""
    call, x, w = trained(wave)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, UNPACKED[way]):
        out = call(x, w)
    ours = torch.autograd.grad(out.sum(), (x, w))
    theirs = torch.autograd.grad(wave(x, w).sum(), (x, w))
    torch.testing.assert_close(ours, theirs)


def test_a_saved_tensor_of_another_size_is_refused() -> None:
    call, x, w = trained(wave)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:3]):
        out = call(x, w)
    with pytest.raises(RuntimeError, match=r"shape|size"):
        out.sum().backward()


def test_a_negated_gradient() -> None:
    call, x, w = trained(lambda x, w: wave(x, w)[0, 0])
    given = complex_ones().conj().imag
    assert given.is_neg()
    ours = torch.autograd.grad(call(x, w), (x, w), given)
    theirs = torch.autograd.grad(wave(x, w)[0, 0], (x, w), given)
    torch.testing.assert_close(ours, theirs)


def test_batched_gradients() -> None:
    call, x, w = trained(wave)
    given = torch.eye(16).view(16, 4, 4)
    ours = torch.autograd.grad(call(x, w), (x, w), given, is_grads_batched=True)
    theirs = torch.autograd.grad(wave(x, w), (x, w), given, is_grads_batched=True)
    torch.testing.assert_close(ours, theirs)


def test_inputs_that_are_views_with_another_sign() -> None:
    """Their memory holds other numbers than they stand for."""

    def parts(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return z.imag * 2 + x

    compiled = fusec.compile(parts)
    for _ in range(2):
        z, x = complex_ones(4, 4), torch.randn(4, 4)
        for given in (z, z.conj(), z):
            torch.testing.assert_close(compiled(given, x), parts(given, x))
            negated = given.conj().imag
            torch.testing.assert_close(compiled(z, negated), parts(z, negated))
    assert any("negated view" in each for each in compiled.fallbacks)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda z, x: z.conj().imag + x,
        lambda z, x: z.clone().conj().imag.add_(x),
        lambda z, x: z.mH.imag.t() * x,
        lambda z, x: torch.view_as_real(z.conj().resolve_conj())[..., 1] + x,
    ],
    ids="imaginary updated transposed real".split(),
)
def test_the_imaginary_part_of_a_conjugate(function: Callable[..., torch.Tensor]) -> None:
    compiled = fusec.compile(function)
    for _ in range(2):
        z, x = complex_ones(4, 4), torch.randn(4, 4)
        torch.testing.assert_close(compiled(z, x).clone(), function(z, x).clone())


def test_inference_tensors_among_inputs_that_are_trained() -> None:
    """Eager saves what autocast makes of them, a compiled graph may save themselves."""

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).sin().sum()

    compiled = fusec.compile(loss)
    with torch.inference_mode():
        x = torch.randn(8, 8)
    for _ in range(2):
        w = torch.randn(8, 8, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            ours = torch.autograd.grad(compiled(x, w), w)
            theirs = torch.autograd.grad(loss(x, w), w)
        torch.testing.assert_close(ours, theirs)
        with pytest.raises(RuntimeError, match="Inference tensors"):
            compiled(x, w)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x, w), loss(x, w))
    torch.testing.assert_close(compiled(x + 1, w), loss(x + 1, w))


def test_inference_tensors_where_the_mode_changes() -> None:
    """AOTAutograd's exception here would leave torch unable to make a tensor."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), torch.set_grad_enabled(True):
            return x[None] + 1

    compiled = fusec.compile(rows)
    with torch.inference_mode():
        x = torch.randn(8, 8)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), rows(x))
    assert torch.empty(3).shape == (3,)


def test_an_exception_in_eager_leaves_the_state_as_it_was() -> None:
    """A captured graph enters and leaves blocks by functions: nobody leaves what is broken off."""

    def slope(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return torch.func.grad(lambda t: (t * t)[place].sum())(x)

    compiled = fusec.compile(slope)
    x = complex_ones(4, 4).conj().imag
    torch.testing.assert_close(compiled(x, torch.tensor([1])), slope(x, torch.tensor([1])))
    graph = compiled.graphs[0].eager
    names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
    again = run_eagerly(graph)

    def call(place: int) -> torch.Tensor:
        given = {"x": x, "place": torch.tensor([place])}
        (found,) = again(*[value for name in names for key, value in given.items() if key in name])
        return found

    torch.testing.assert_close(call(2), slope(x, torch.tensor([2])))
    with pytest.raises(IndexError):
        call(9)
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert not torch.is_inference_mode_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


def test_forward_derivatives_in_eager() -> None:
    """Torch 2.11 records none in inference mode, and eager makes zeros of what is not there."""

    def slope(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return torch.func.jvp(lambda t: t.sin()[place], (x,), (x,))[1]

    compiled = fusec.compile(slope)
    x, place = torch.ones(3), torch.tensor([1])
    compiled(x, place)
    again = run_eagerly(compiled.graphs[0].eager)
    torch.testing.assert_close(again(x, place)[0], slope(x, place))
    with pytest.raises(IndexError):
        again(x, place + 3)
    assert forward_ad._current_level == -1
    assert torch._C._functorch.peek_interpreter_stack() is None
    torch.testing.assert_close(again(x, place)[0], slope(x, place))


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "any size"])
def test_what_a_backward_part_expects(dynamic: bool) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sin() * y

    compiled = fusec.compile(loss, dynamic=dynamic, keep_inputs=True)
    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    compiled(x, y).sum().backward()
    (part,) = (part for part in compiled.graphs[0].parts if part.kind == "backward")
    given = part.last_inputs
    assert given is not None

    def inputs(change: Callable[[torch.Tensor], torch.Tensor]) -> list[object]:
        return [change(torch.randn(4, 6)) if isinstance(v, torch.Tensor) else v for v in given]

    def fit(check: Callable[[list[object]], None], values: object) -> bool:
        try:
            check(list(values))  # type: ignore[call-overload]
        except (Unreadable, UnexpectedInput):
            return False
        return True

    assert any(isinstance(value, int) for value in given) == dynamic
    native.types(wait=True)
    for check in (part._check.look_at, part._check.native()):
        assert fit(check, given)
        assert fit(check, inputs(lambda t: t))
        assert not fit(check, inputs(lambda t: t.mT.contiguous().mT))
        assert not fit(check, inputs(lambda t: t.double()))
        assert not fit(check, inputs(lambda t: t[0]))
        assert not fit(check, inputs(lambda t: t.to("meta")))
        assert not fit(check, inputs(torch._neg_view))
        assert not fit(check, inputs(lambda t: t.to_sparse()))
        with torch.inference_mode():
            assert fit(check, inputs(lambda t: t))
        with FakeTensorMode():
            assert not fit(check, inputs(lambda t: t))
    if dynamic:
        compiled(torch.randn(5, 6, requires_grad=True), torch.randn(5, 6)).sum().backward()
        assert part.last_inputs is not None
        assert fit(part._check, part.last_inputs)


def test_a_number_that_operators_alone_take_may_be_anywhere() -> None:
    """As the seed of an attention's dropout: on the CPU, where a fake tensor has it on the GPU."""

    def function(x: torch.Tensor, largest: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return (
            torch.clamp(torch.bucketize(x, x.sort().values, out_int32=True) * factor, max=2)
            + (torch.bincount(largest.reshape(1), minlength=3)[0])
        )

    compiled = fusec.compile(function, keep_inputs=True)
    given = torch.randn(5), torch.tensor(2), torch.tensor(3)
    assert torch.equal(compiled(*given), function(*given))
    (part,) = compiled.graphs[0].parts
    assert part.last_inputs is not None
    names = [t.numel() == 1 and int(t) for t in part.last_inputs if isinstance(t, torch.Tensor)]

    def moved(number: int) -> list[torch.Tensor]:
        return [
            value.to("meta") if known == number else value
            for value, known in zip(part.last_inputs or (), names, strict=True)
            if isinstance(value, torch.Tensor)
        ]

    part._check.look_at(moved(2))
    with pytest.raises(UnexpectedInput, match="expected device cpu, not meta"):
        part._check.look_at(moved(3))


def test_why_a_call_ran_by_operators_is_said() -> None:
    compiled = fusec.compile(lambda x: (x.sin() * x).exp())
    x = torch.randn(6, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t.double() if t.dim() else t
    ):
        compiled(x).sum().backward()
        compiled(x).sum().backward()
    (note,) = compiled.graphs[0].notes
    assert note.startswith("a call of the backward part ran by ATen's operators: input ")
    assert "expected dtype torch.float32, not torch.float64" in note
    assert note in str(fusec.explain(compiled, x))
