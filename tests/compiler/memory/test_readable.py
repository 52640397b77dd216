"""Tensors that are no plain memory: as in eager, or an error; never an address for a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import fusec
from fusec.call import native
from fusec.call.native import capsule
from fusec.compiled.part import CompiledPart
from fusec.memory.readable import NoMemory, Unreadable


@pytest.fixture(autouse=True)
def _native() -> Iterator[None]:
    native.types(wait=True)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def plain() -> torch.Tensor:
    return torch.arange(64.0).reshape(8, 8) / 10


def offset_and_freed() -> torch.Tensor:
    made = torch.arange(80.0)[16:].view(8, 8)
    made.untyped_storage().resize_(0)
    return made


def resized(size: int) -> torch.Tensor:
    made = plain()
    made.untyped_storage().resize_(size)
    return made


def wave(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def product(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) @ torch.relu(x).transpose(0, 1) + x


def warm(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    made = fusec.compile(function) if way == "fusec" else torch.compile(function, backend="fusec")
    for _ in range(3):
        torch.testing.assert_close(made(plain()), function(plain()))
    return made


VALUES: dict[str, Callable[[], torch.Tensor]] = {
    "negated": lambda: torch._neg_view(plain()),
    "imaginary part of a conjugate": lambda: torch.complex(plain(), plain()).conj().imag,
    "zero tensor": lambda: torch._efficientzerotensor((8, 8)),  # type: ignore[attr-defined]
    "of another's storage": lambda: plain().set_(torch.arange(99.0).untyped_storage(), 9, (8, 8)),
    "parameter": lambda: torch.nn.Parameter(plain(), requires_grad=False),
    "empty": lambda: torch.empty(0, 0),
    "empty and freed": lambda: resized(0)[:0, :0],
    "cut behind its elements": lambda: resized(256),
    "lazily cloned": lambda: torch._lazy_clone(plain()),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name: str) -> None:
    compiled = warm(wave, "fusec")
    for _ in range(2):
        given, other = VALUES[name](), VALUES[name]()
        torch.testing.assert_close(compiled(given), wave(other), check_stride=True)
    torch.testing.assert_close(compiled(plain()), wave(plain()))


@pytest.mark.parametrize("function", [wave, product])
@pytest.mark.parametrize("way", ["fusec", "torch"])
def test_memory_that_is_not_there(function: Callable[..., Any], way: str) -> None:
    compiled = warm(function, way)
    for made in (resized(0), resized(100), offset_and_freed()):
        with pytest.raises(NoMemory, match=r"of which (0|100) are there"):
            compiled(made)
    torch.testing.assert_close(compiled(plain()), function(plain()))


@pytest.mark.parametrize("function", [wave, product])
@pytest.mark.parametrize("first", [False, True], ids=["warm", "first"])
def test_fake_tensors(function: Callable[..., Any], first: bool) -> None:
    compiled = fusec.compile(function) if first else warm(function, "fusec")
    mode = FakeTensorMode()
    fake = mode.from_tensor(plain())
    for _ in range(2):
        for result in (compiled(fake), _under(mode, compiled, fake)):
            assert isinstance(result, FakeTensor)
            assert (result.shape, result.dtype) == ((8, 8), torch.float32)
    torch.testing.assert_close(compiled(plain()), function(plain()))


def _under(mode: FakeTensorMode, compiled: Callable[..., Any], fake: torch.Tensor) -> Any:
    with mode:
        return compiled(fake)


def test_fake_tensors_that_need_gradients() -> None:
    compiled = fusec.compile(product)
    for _ in range(2):
        compiled(plain().requires_grad_()).sum().backward()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(plain()).requires_grad_()
        compiled(fake).sum().backward()
    assert isinstance(fake.grad, FakeTensor)
    assert fake.grad.shape == (8, 8)


def test_a_mode_that_takes_real_tensors() -> None:
    compiled = warm(wave, "fusec")
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(compiled(plain()), FakeTensor)
    assert type(compiled(plain())) is torch.Tensor


def test_the_first_call_runs_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd looks at the operators of a first call by a mode of its own."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("operators instead of kernels")

    monkeypatch.setattr(CompiledPart, "_by_operators", refuse)

    def views(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.clamp(-1, 1).mT
        return y.unsqueeze(0), y.sin()  # aliases are AOTAutograd's, whose wrapper stays

    for shape in ((8, 8), (0, 8)):
        compiled = fusec.compile(views)
        compiled(torch.ones(shape, requires_grad=True))[1].sum().backward()


def test_a_compiled_function_traced_by_others() -> None:
    """The short path of calls leaves it to torch, which refuses, or looks through."""
    compiled = warm(wave, "fusec")
    with pytest.raises(RuntimeError, match="symbolically trace a dynamo-optimized function"):
        make_fx(compiled)(plain())
    with torch._dynamo.config.patch(error_on_nested_fx_trace=False):
        for mode in ("real", "fake", "symbolic"):
            traced = make_fx(lambda x: compiled(x) * 2, tracing_mode=mode)(plain())
            other = plain() + 1  # what was traced is no constant
            torch.testing.assert_close(traced(other), wave(other) * 2)
    torch.testing.assert_close(compiled(plain()), wave(plain()))


def test_a_compiled_function_exported_by_others() -> None:
    compiled = warm(wave, "fusec")

    class Holder(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compiled(x) * 2  # type: ignore[no-any-return]

    other = plain() + 1
    for strict in (True, False):
        exported = torch.export.export(Holder(), (plain(),), strict=strict).module()
        torch.testing.assert_close(exported(other), wave(other) * 2)


@pytest.mark.parametrize("first", [False, True], ids=["warm", "first"])
def test_wrapper_subclasses(first: bool) -> None:
    compiled = fusec.compile(wave) if first else warm(wave, "fusec")
    for change in (torch.clone, torch._neg_view, torch.clone):
        for _ in range(2):
            result = compiled(TwoTensor(change(plain()), plain() + 1))
            assert type(result) is TwoTensor
            torch.testing.assert_close(result.a, wave(change(plain())))
            torch.testing.assert_close(result.b, wave(plain() + 1))
    with pytest.raises(NoMemory):
        compiled(TwoTensor(plain(), resized(0)))


def test_a_wrapper_made_inside() -> None:
    compiled = fusec.compile(lambda x: TwoTensor(x.sin(), x + 1) * 2)
    for _ in range(2):
        result = compiled(plain())
        assert type(result) is TwoTensor
        torch.testing.assert_close(result.a, plain().sin() * 2)
        torch.testing.assert_close(result.b, (plain() + 1) * 2)


def test_jagged_tensors() -> None:
    compiled = fusec.compile(wave)
    for lengths in ((8, 3), (8, 3), (2, 5)):
        rows = [plain()[:length] for length in lengths]
        result = compiled(torch.nested.nested_tensor(rows, layout=torch.jagged))
        for found, row in zip(result.unbind(), rows, strict=True):
            torch.testing.assert_close(found, wave(row))


def test_functional_tensors() -> None:
    compiled = fusec.compile(wave)
    result = compiled(torch._to_functional_tensor(plain()))
    torch.testing.assert_close(torch._from_functional_tensor(result), wave(plain()))


def test_gradients_that_are_missing_or_lazily_zero() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() * 2, x.cos() * 3

    compiled = fusec.compile(two)
    for given in (None, torch._efficientzerotensor((8, 8)), torch._neg_view(plain())):  # type: ignore[attr-defined]
        for _ in range(2):
            x, y = plain().requires_grad_(), plain().requires_grad_()
            for function, leaf in ((compiled, x), (two, y)):
                results = function(leaf) if given is not None else function(leaf)[:1]
                torch.autograd.backward(results, (plain(), given)[: len(results)])
            torch.testing.assert_close(x.grad, y.grad)


def test_kernels_called_by_hand() -> None:
    compiled = fusec.compile(wave, keep_inputs=True)
    compiled(plain())
    (kernel,) = compiled.kernels.values()
    out = torch.empty(8, 8)
    kernel.runnable()([plain(), out], [])
    torch.testing.assert_close(out, wave(plain()))
    fake = FakeTensorMode().from_tensor(plain())
    for given in (fake, plain().to_sparse(), torch._neg_view(plain())):
        with pytest.raises(Unreadable):
            kernel.runnable()([given, out], [])
    for given in (resized(0), offset_and_freed()):
        with pytest.raises(NoMemory):
            kernel.runnable()([given, out], [])


def test_the_two_forms_of_the_check_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the native form cannot be built, Python sees the same."""
    assert not capsule.part.problem
    monkeypatch.setattr(capsule.part, "found", None)
    compiled = fusec.compile(product)
    for make in (plain, VALUES["negated"], VALUES["zero tensor"], plain):
        for _ in range(3):
            torch.testing.assert_close(compiled(make()), product(make()))
    for made in (resized(0), resized(100), offset_and_freed()):
        with pytest.raises(NoMemory):
            compiled(made)


@pytest.mark.parametrize("way", ["fusec", "torch"])
def test_graphs_without_inputs_where_operators_go_elsewhere(way: str) -> None:
    """Kernels alone, and operators beside them, under a mode and within a transform."""

    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kw or {}))

    def counted(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(8) / 4

    def multiplied(x: torch.Tensor) -> torch.Tensor:
        y = torch.arange(16.0).reshape(4, 4)
        return torch.tanh(y @ y.t() / 100)

    for function in (counted, multiplied):
        made = warm(function, way)
        expected, seen = function(plain()), list[Any]()
        with Operators():
            torch.testing.assert_close(made(plain()), expected)
        assert seen
        value, tangent = torch.func.jvp(made, (plain(),), (plain(),))
        torch.testing.assert_close(value, expected)
        assert not tangent.any()
