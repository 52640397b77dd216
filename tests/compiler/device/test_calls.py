"""Whole compiled functions through plans, on CPU memory: what a GPU's call goes through."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import fusec
from fusec.call import native
from fusec.call.input_check import UnexpectedInput
from fusec.compiled import part
from fusec.device.plan import DeviceProgram
from fusec.errors import BrokenPromise
from support.fake_device import Device

made: list[DeviceProgram] = []


@pytest.fixture(autouse=True)
def _plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let every part run by plans; kernels are called by Python, as those not understood are."""
    if native.types(wait=True) is None:
        assert "Python.h" in native.problem() or "only CPython" in native.problem()
        pytest.skip(f"no native part: {native.problem()}")
    made.clear()
    device = Device()

    def device_program(
        *given: Any, graphs: bool, saved: tuple[int, ...], check: Any
    ) -> DeviceProgram:
        program, run, trace, runnables = given
        on = device.machine()
        made.append(DeviceProgram(program, 0, on, run, trace, runnables, saved=saved, check=check))
        return made[-1]

    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setattr(part, "device_program", device_program)
    monkeypatch.setattr(part, "native_program", lambda *_, **__: None)
    monkeypatch.setattr(part, "wanted", lambda: True)
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def hits() -> int:
    return sum(program.call.hits for program in made)


@pytest.mark.parametrize("dynamic", [False, True])
def test_no_plan_starts_on_inputs_that_it_was_not_made_for(dynamic: bool) -> None:
    function = torch.compile(
        lambda x, y: torch.sort(torch.relu(x), -1)[0] * y,
        backend="fusec",
        dynamic=dynamic,
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )
    x, y = torch.randn(2, 10, 10)
    for _ in range(3):
        expected = function(x, y)
    before = hits()
    assert before
    others = [x[:4].clone(), x.double(), x[None], x[:, :1].expand(10, 10)]
    if not dynamic:
        others.append(torch.randn(10, 30)[:, ::3])
    for other in others:
        with pytest.raises(UnexpectedInput):
            function(x, other)
    assert hits() == before
    torch.testing.assert_close(function(x, y), expected)


@pytest.mark.parametrize("kind", ["size", "type"])
def test_a_plan_does_not_take_results_that_were_not_predicted(kind: str) -> None:
    """The first call is as predicted, so that there is a plan; a later one is not."""
    broken = []

    def real(x: torch.Tensor) -> torch.Tensor:
        if not broken:
            return x.clone()
        return x[:-1].clone() if kind == "size" else x.to(torch.bfloat16)

    with torch.library._scoped_library("plans", "FRAGMENT") as library:
        library.define(f"sometimes_{kind}(Tensor x) -> Tensor")
        library.impl(f"sometimes_{kind}", real, "CPU")
        library.impl(f"sometimes_{kind}", torch.empty_like, "Meta")
        operator = getattr(torch.ops.plans, f"sometimes_{kind}")
        compiled = fusec.compile(lambda x: operator(x) * 2 + 1)
        x = torch.randn(10, 10)
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(compiled(x), x * 2 + 1)
            assert hits()
            broken.append(True)
            with pytest.raises(BrokenPromise):
                compiled(x)


def test_short_calls_end_in_a_plan() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y, -1)

    compiled = fusec.compile(function)
    with torch.no_grad():
        for i in range(6):
            x, y = torch.randn(2, 10, 10)
            torch.testing.assert_close(compiled(x, y), function(x, y))
            assert hits() == i + 1  # the first call was compared with it
    assert compiled.short_calls >= 4


def test_training() -> None:
    layers = [nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)]
    model = nn.Sequential(*layers)
    reference = copy.deepcopy(model)
    compiled = fusec.compile(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for _ in range(5):
        x = torch.randn(4, 8)
        losses = [f(x).square().mean() for f in (compiled, reference)]
        torch.testing.assert_close(losses[0], losses[1])
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert len(made) == 2
    assert hits() == 10  # the first calls were compared with them


def saved_by(function: Any, *inputs: torch.Tensor, **options: Any) -> list[list[int]]:
    """Return for each part which outputs nobody but backward sees, after a step of training."""
    compiled = fusec.compile(function, **options)
    outputs = compiled(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum(o.sum() for o in outputs).backward()
    assert [part.kind for part in compiled.graphs[0].parts] == ["forward", "backward"]
    assert len(made) == 2
    return [sorted(program.saved) for program in made]


def test_what_only_backward_sees_is_known() -> None:
    x, w = torch.randn(2, 6, 6).requires_grad_().unbind()
    forward, backward = saved_by(lambda x, w: (torch.tanh(x @ w), x.sin()), x, w)
    outputs = len(made[0].program.outputs)
    assert forward == list(range(2, outputs))
    assert outputs > 2
    assert backward == []


def test_what_updates_of_inputs_return_is_the_callers() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 2))
    forward, backward = saved_by(model, torch.randn(4, 5))
    updated = 3  # running mean and variance, batches counted
    assert forward == list(range(updated + 1, len(made[0].program.outputs)))
    assert backward == []


def test_a_graph_without_gradients_saves_nothing() -> None:
    compiled = fusec.compile(lambda x: torch.softmax(x @ x, -1))
    with torch.no_grad():
        compiled(torch.randn(4, 4))
    assert [program.saved for program in made] == [frozenset()]


def test_sizes_that_vary_and_inputs_updated_in_place() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return (x @ w).relu()

    compiled = fusec.compile(function, dynamic=True)
    w = torch.randn(6, 4)
    with torch.no_grad():
        for n in (3, 5, 3, 5, 3, 5, 7):
            x = torch.randn(n, 6)
            y = x.clone()
            version = x._version
            torch.testing.assert_close(compiled(x, w), function(y, w))
            torch.testing.assert_close(x, y)
            assert x._version > version
    assert hits() >= 2


def test_random_numbers_differ_from_call_to_call_and_repeat_with_the_seed() -> None:
    compiled = fusec.compile(lambda x: F.dropout(x @ x, 0.5) + 1)
    x = torch.randn(16, 16)
    with torch.no_grad():
        compiled(x)
        runs = []
        for _ in range(2):
            torch.manual_seed(3)
            runs.append([compiled(x) for _ in range(3)])
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(runs[0][0], runs[0][1])
    assert hits() >= 5


@pytest.mark.parametrize("operators", [False, True], ids=["kernels", "operators"])
def test_a_plan_without_inputs_leaves_modes_their_operators(operators: bool) -> None:
    class Operators(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kw or {}))

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.arange(64.0).reshape(8, 8) / 64
        return torch.sort(torch.tanh(y), -1)[0] * 2 if operators else torch.tanh(y)

    compiled = torch.compile(function, backend="fusec")
    x, seen = torch.ones(3), list[Any]()
    expected = function(x)
    for _ in range(6):
        torch.testing.assert_close(compiled(x), expected)
    before = hits()
    assert before
    with Operators():
        torch.testing.assert_close(compiled(x), expected)
    assert seen
    value, tangent = torch.func.jvp(compiled, (x,), (x,))
    torch.testing.assert_close(value, expected)
    assert not tangent.any()
    assert hits() == before
    torch.testing.assert_close(compiled(x), expected)
    assert hits() == before + 1


def test_an_edited_kernel_is_launched_at_once() -> None:
    compiled = fusec.compile(lambda x: (x @ x) * 3, keep_inputs=True, name="triple")
    x = torch.randn(8, 8)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        (kernel,) = compiled.kernels.values()
        assert compiled.graphs[0].verify().ok
        before = hits()
        assert kernel.keep(kernel.source + "\n// mine\n").ok
        assert made[0].call.plans == 0
        for _ in range(3):
            torch.testing.assert_close(compiled(x), (x @ x) * 3)
        assert hits() > before
        assert compiled.graphs[0].last_inputs is not None
