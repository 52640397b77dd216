"""The short path of a call: what it serves."""

from __future__ import annotations

import collections
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

import fusec
from fusec.call import native
from fusec.call.native_layout import place_temporaries
from support.calls import add_relu, native_part, same, short, strict_calls, tensors

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here

pytestmark = pytest.mark.timeout(300)


# --- what is served -------------------------------------------------------------------------


def test_two_inputs() -> None:
    compiled = short(add_relu, *tensors())
    for _ in range(3):
        a, b = tensors()
        before = compiled.short_calls
        same(compiled(a, b), add_relu(a, b))
        assert compiled.short_calls == before + 1
    assert len(compiled.graphs) == 1


def test_names_and_defaults() -> None:
    def function(a: Any, b: Any, alpha: float = 2.0, *, beta: Any = None, scale: int = 3) -> Any:
        result = a + alpha * b * scale
        return result if beta is None else result + beta

    a, b = tensors()
    compiled = short(function, a, b)
    same(compiled(b=a, a=b), function(b, a))
    same(compiled(a, b=b), function(a, b))
    same(compiled(a, b, 3.0), function(a, b, 3.0))
    same(compiled(a, b, alpha=4.0), function(a, b, 4.0))
    same(compiled(a, b, beta=a), function(a, b, beta=a))
    same(compiled(a, b, scale=5), function(a, b, scale=5))
    function.__defaults__ = (7.0,)
    same(compiled(a, b), function(a, b))
    function.__kwdefaults__ = {"beta": a, "scale": 2}
    same(compiled(a, b), function(a, b))
    for wrong in [(), (a,), (a, b, 1.0, a)]:
        with pytest.raises(TypeError):
            compiled(*wrong)
    with pytest.raises(TypeError):
        compiled(a, b, a=a)
    with pytest.raises(TypeError):
        compiled(a, b, gamma=1)


def test_any_number_of_arguments() -> None:
    def function(*given: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        total = given[0] * 2
        for each in given[1:]:
            total = total + each
        for each in named.values():
            total = total * each
        return total

    a, b = tensors()
    compiled = short(function, a, b, x=b)
    same(compiled(a, b, x=a), function(a, b, x=a))
    same(compiled(a, b, a), function(a, b, a))
    same(compiled(a, y=b), function(a, y=b))
    same(compiled(a, b, y=a, x=b), function(a, b, y=a, x=b))


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Record:
    total: torch.Tensor
    count: int


@pytest.mark.parametrize(
    "build",
    [
        lambda a, b: (a + b, a * b),
        lambda a, b: [a + b, a * b, a + b],
        lambda a, b: {"sum": a + b, "rest": (a - b, 3, None, "text")},
        lambda a, b: Pair(a + b, a),
        lambda a, b: (a, b, a + b),
        lambda a, b: ((a + b).t(), (a + b)[1:]),
        lambda a, b: (a.t(), a + b),
        lambda a, b: (3, a.shape, a + b),
    ],
    ids="tuple list dict namedtuple inputs views input-view numbers".split(),
)
def test_results(build: Callable[..., Any]) -> None:
    a, b = tensors((4, 6), (4, 6))
    compiled = fusec.compile(build)
    for _ in range(3):
        actual, expected = compiled(a, b), build(a, b)
        assert type(actual) is type(expected)
        (mine, kind), (theirs, other_kind) = (tree_flatten(each) for each in (actual, expected))
        assert kind == other_kind
        for one, other in zip(mine, theirs, strict=True):
            assert (one is a) == (other is a)
            if isinstance(other, torch.Tensor):
                same(one, other)
                assert one.stride() == other.stride()
                assert one._is_view() == other._is_view()
            else:
                assert one == other
    assert compiled.short_calls >= 2


def test_dataclass() -> None:
    def build(a: torch.Tensor, b: torch.Tensor) -> Record:
        return Record(a + b, 2)

    a, b = tensors()
    compiled = fusec.compile(build)
    for _ in range(3):
        actual = compiled(a, b)
        assert isinstance(actual, Record)
        assert actual.count == 2
        same(actual.total, a + b)


def test_side_effects() -> None:
    seen: list[Any] = []
    state = types.SimpleNamespace(count=torch.zeros(3), calls=0)

    def function(a: torch.Tensor, out: list[Any]) -> torch.Tensor:
        out.append(a + 1)
        state.count = state.count + a
        state.calls += 1
        return a * 2

    compiled = fusec.compile(function)
    a = torch.ones(3)
    for i in range(1, 5):
        same(compiled(a, seen), a * 2)
        assert len(seen) == i
        same(state.count, torch.full((3,), float(i)))
        assert state.calls == i


def test_in_place_updates_of_arguments() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(b)
        return a * 2

    compiled = fusec.compile(function)
    mine, theirs, b = torch.zeros(8), torch.zeros(8), torch.randn(8)
    for _ in range(4):
        same(compiled(mine, b), function(theirs, b))
        same(mine, theirs)
        assert mine._version == theirs._version or mine._version > 0
    assert compiled.short_calls >= 1


def test_other_sizes() -> None:
    compiled = fusec.compile(add_relu)
    for n in (8, 9, 10, 11, 8, 1, 0, 9):
        a, b = tensors((n, 3), (n, 3))
        same(compiled(a, b), add_relu(a, b))
    assert compiled.short_calls >= 1
    dynamic = fusec.compile(lambda a, b: (a[1:] * b.sum(0)).relu() + a.shape[0], dynamic=True)
    for n in (8, 9, 10, 30):
        a, b = tensors((n, 3), (n, 3))
        same(dynamic(a, b), (a[1:] * b.sum(0)).relu() + n)
    assert len(dynamic.graphs) == 1
    assert dynamic.short_calls >= 1


def test_outputs_of_varying_size_are_marked_as_torch_marks_them() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a * 2, a.sum(0)

    ours = fusec.compile(function, dynamic=True)
    theirs = torch.compile(function, backend="aot_eager", dynamic=True)
    for n in (5, 6, 7):
        a = torch.randn(n, 3)
        for mine, other in zip(ours(a), theirs(a), strict=True):
            assert vars(mine) == vars(other)
            assert all(vars(mine)[name] is not vars(other)[name] for name in vars(mine))


def test_random_numbers() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(a, 0.5) + torch.rand_like(a)

    a = torch.ones(256)
    compiled = short(function, a)
    assert not torch.equal(compiled(a), compiled(a))
    torch.manual_seed(3)
    first = compiled(a)
    torch.manual_seed(3)
    assert torch.equal(compiled(a), first)


def test_gradients() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.sin() * b).tanh()

    compiled = fusec.compile(function)
    for _ in range(3):
        a, b = (t.requires_grad_() for t in tensors())
        c, d = (t.detach().clone().requires_grad_() for t in (a, b))
        compiled(a, b).sum().backward()
        function(c, d).sum().backward()
        same(a.grad, c.grad)
        same(b.grad, d.grad)


def test_several_kernels_are_one_call() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            a = torch.softmax(a, 0)
            a = torch.softmax(a * a.sum(1, keepdim=True), 1)
        return a

    a = torch.randn(32, 48)
    compiled = short(function, a)
    (part,) = compiled.graphs[0].parts
    assert len(part.kernels) > 2
    program = part.native()
    assert program is not None
    assert program.scratch > 0
    same(compiled(a), function(a))
    big = torch.randn(200, 300)
    same(compiled(big), function(big))  # more than the stack has room for
    for n in (1, 2):
        threads = torch.get_num_threads()
        torch.set_num_threads(n)
        try:
            same(compiled(big), function(big))
        finally:
            torch.set_num_threads(threads)


def between_operators(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = torch.softmax(a * 2, 0)
    x = torch.softmax(x * x.sum(1, keepdim=True), 1)
    x = (x @ b).relu() + 1
    return torch.softmax(torch.softmax(x, 0) + a, 1) * x


@pytest.mark.parametrize("there", [True, False], ids=["native", "python"])
def test_kernels_between_operators(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    found = native.types()
    if not there:
        monkeypatch.setattr(native, "types", lambda **_: None)
    a, b = tensors((16, 16), (16, 16))
    compiled = fusec.compile(between_operators)
    for _ in range(3):
        same(compiled(a, b), between_operators(a, b))
    (part,) = compiled.graphs[0].parts
    assert part.state.host is not None
    groups = part.state.host.groups
    assert [len(group.steps) > 1 for group in groups.values()] == [True, True]
    assert any(group.inner for group in groups.values())
    assert compiled.short_calls == (2 if there else 0)
    monkeypatch.setattr(native, "types", lambda **_: found)
    for _ in range(3):  # as when the native part is built only now
        same(compiled(a, b), between_operators(a, b))
    kernel = next(k for k in compiled.kernels.values() if "2.0f" in k.source)
    kernel.use(kernel.source.replace("2.0f", "3.0f"))
    same(compiled(a, b), _edited(a, b))
    kernel.revert()
    same(compiled(a, b), between_operators(a, b))


def _edited(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = torch.softmax(a * 3, 0)
    x = torch.softmax(x * x.sum(1, keepdim=True), 1)
    x = (x @ b).relu() + 1
    return torch.softmax(torch.softmax(x, 0) + a, 1) * x


def test_without_the_native_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "types", lambda **_: None)
    monkeypatch.setattr(native, "problem", lambda: "not there")
    a, b = tensors()
    compiled = fusec.compile(add_relu)
    dynamic = fusec.compile(lambda a, b: (a + b).relu(), dynamic=True)
    for _ in range(3):
        same(compiled(a, b), add_relu(a, b))
        same(dynamic(a, b), add_relu(a, b))
    assert compiled.short_calls == 0
    c, d = (t.clone().requires_grad_() for t in (a, b))
    compiled(c, d).sum().backward()
    same(c.grad, ((a + b) > 0).float())


def test_temporaries_share_memory_where_lifetimes_allow() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            a = torch.softmax(a, 0)
            a = torch.softmax(a * a.sum(1, keepdim=True), 1)
        return a

    compiled = short(function, torch.randn(32, 48))
    (part,) = compiled.graphs[0].parts
    program = part.state.scheduled
    names = [n for n in program.buffers if n not in {*program.inputs, *program.output_buffers()}]
    places, total = place_temporaries(program.steps, program.buffers, names)
    used = [n for n in names if n in places and any(n in s.writes() for s in program.steps)]
    alive = {
        n: [i for i, s in enumerate(program.steps) if n in (*s.reads(), *s.writes())] for n in used
    }
    size = {n: program.buffers[n].dtype.itemsize * _elements(program.buffers[n]) for n in used}
    for one in used:
        assert places[one] % 64 == 0
        assert places[one] + size[one] <= total
        for other in used:
            apart_in_time = alive[one][-1] < alive[other][0] or alive[other][-1] < alive[one][0]
            apart = places[one] + size[one] <= places[other] or (
                places[other] + size[other] <= places[one]
            )
            assert one == other or apart_in_time or apart
    assert total < sum(size.values())


def _elements(buffer: Any) -> int:
    extent = 1
    for length, stride in zip(buffer.shape, buffer.strides, strict=True):
        extent += (length.constant - 1) * stride.constant
    return extent


def test_failing_checks_are_reported() -> None:
    def function(a: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return a[i] * 2

    a, good = torch.randn(8), torch.tensor([1, 2, 3])
    compiled = short(function, a, good)
    with pytest.raises(IndexError, match="range"):
        compiled(a, torch.tensor([1, 9, 3]))
    same(compiled(a, good), function(a, good))
