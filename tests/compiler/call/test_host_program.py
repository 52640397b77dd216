"""The host program: what it keeps alive, and what it takes of an extern call."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch

import fusec
from fusec.call import huge_pages as memory
from fusec.call import native
from fusec.codegen.common.signatures import identifier
from fusec.codegen.host_program import function_of_buffers
from fusec.ir.program import Extern
from fusec.systems import this_system

_watched: list[weakref.ref[torch.Tensor]] = []
_alive: list[list[bool]] = []


@pytest.fixture(scope="module")
def probe() -> Iterator[object]:
    """An operator, extern to the compiler, that notes which watched tensors are alive."""
    with torch.library._scoped_library("fusec_test", "FRAGMENT") as library:
        library.define("probe(Tensor x) -> Tensor")

        def run(x: torch.Tensor) -> torch.Tensor:
            _alive.append([each() is not None for each in _watched])
            return x.clone()

        library.impl("probe", run, "CPU")
        library.impl("probe", torch.empty_like, "Meta")
        yield torch.ops.fusec_test.probe.default


def test_inputs_are_freed_after_their_last_use(probe: object) -> None:
    """So that a backward pass frees what was saved for it as it goes, like eager's."""
    compiled = fusec.compile(lambda x, y: probe(x.sum(0)) + y)  # type: ignore[operator]
    with torch.no_grad():
        compiled(torch.randn(8, 4), torch.randn(4))
    inputs = [torch.randn(8, 4), torch.randn(4)]
    expected = inputs[0].sum(0) + inputs[1]
    _watched[:] = [weakref.ref(each) for each in inputs]
    entry = compiled.graphs[0].parts[0].entry()
    _alive.clear()
    (result,) = entry(inputs)
    assert inputs == []
    assert _alive == [[False, True]]
    torch.testing.assert_close(result, expected)


def test_saved_tensors_are_freed_during_backward(probe: object) -> None:
    """The same through autograd, which hands its saved tensors over."""

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
            return probe(grad)  # type: ignore[operator, no-any-return]

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(Probe.apply(x) @ w).sum()  # type: ignore[no-any-return]

    compiled = fusec.compile(function)
    for _ in range(2):
        x, w = torch.randn(8, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        loss = compiled(x, w)
        _watched[:] = [
            weakref.ref(each)
            for each in (getattr(loss.grad_fn, "saved_tensors", None) or ())
            if each is not x and each is not w
        ]
        _alive.clear()
        loss.backward()
    plain = function(x.detach().requires_grad_(), w)
    torch.testing.assert_close(loss, plain)
    assert _watched
    assert _alive == [[False] * len(_watched)]


def test_results_that_nobody_reads_may_be_missing() -> None:
    """Some operators return None for what they were not asked to compute."""
    with torch.library._scoped_library("fusec_test", "FRAGMENT") as library:
        library.define("partly(Tensor x) -> (Tensor, Tensor)")
        library.impl("partly", lambda x: (x.sin(), None), "CPU")
        library.impl("partly", lambda x: (torch.empty_like(x), torch.empty_like(x)), "Meta")

        def function(x: torch.Tensor) -> torch.Tensor:
            first, _second = torch.ops.fusec_test.partly(x)
            return first + 1  # type: ignore[no-any-return]

        x = torch.randn(5)
        with torch.no_grad():
            try:
                result = fusec.compile(function)(x)
            except RuntimeError as error:
                pytest.skip(f"torch refuses such an operator: {error}")
        torch.testing.assert_close(result, x.sin() + 1)


def test_a_list_of_one_tensor_is_taken_apart() -> None:
    """Complex tensors have no kernels, so that these are calls; each returns a list."""
    x = torch.randn(1, 5, dtype=torch.complex64)
    for function in (
        lambda x: torch.split(x, 5, 1),
        torch.unbind,
        lambda x: torch.split(x, 2, 1),
    ):
        torch.testing.assert_close(fusec.compile(function)(x), function(x))


def test_large_tensors_are_asked_for_in_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def advise(begin: int, size: int) -> None:
        asked.append((begin, size))

    native.types(wait=True)
    monkeypatch.setattr(memory.part, "found", None)  # as where it cannot be built
    monkeypatch.setattr(type(this_system()), "huge_pages", lambda system: advise)
    small, large = torch.randn(1000), torch.randn(9 << 20)
    fusec.compile(lambda x: x + 1)(small)
    assert not asked
    compiled = fusec.compile(lambda x: (x + 1, x.sum()))
    (result, _) = compiled(large)
    ((begin, size),) = asked
    assert begin % 4096 == 0
    assert result.data_ptr() <= begin
    assert begin + size <= result.data_ptr() + large.nbytes
    assert torch.equal(result, large + 1)


def test_only_large_products_are_written_into_memory_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu()

    inputs = torch.randn(24, 24), torch.randn(24, 24)
    for least, into in ((24 * 24 * 4 + 1, False), (24 * 24 * 4, True)):
        monkeypatch.setattr("fusec.codegen.host_program.LARGE_BYTES", least)
        torch._dynamo.reset()
        compiled = fusec.compile(function)
        torch.testing.assert_close(compiled(*inputs), function(*inputs))
        host = compiled.graphs[0].parts[0].state.host
        assert host is not None
        assert ("multiply_into(" in host.text) is into


def test_a_check_that_fails_is_raised_without_native_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fusec.codegen.host_program.GROUPED_BYTES", -1)
    monkeypatch.setattr("fusec.call.native.types", lambda: None)
    compiled = fusec.compile(lambda x, chosen: x[chosen] * 2)
    x = torch.randn(5, 3)
    torch.testing.assert_close(compiled(x, torch.tensor([4, -5])), x[[4, 0]] * 2)
    host = compiled.graphs[0].parts[0].state.host
    assert host is not None
    assert not host.groups
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 9]))


def test_names_that_a_language_has_are_made_others() -> None:
    taken: set[str] = set()
    given = ("x", "x", "for", "3x", "int8_t", "a b", "", "lambda")
    found = [identifier(text, taken, "value") for text in given]
    assert found == ["x", "x2", "for_", "value_3x", "int8_t_", "a_b", "value", "lambda_"]


def test_a_call_as_a_function_of_whole_buffers() -> None:
    compiled = fusec.compile(lambda x, w: (x.t() @ w[:, 2:6]).relu())
    x, w = torch.randn(5, 3), torch.randn(5, 8)
    torch.testing.assert_close(compiled(x, w), (x.t() @ w[:, 2:6]).relu())
    program = compiled.graphs[0].parts[0].state.scheduled
    (step,) = (step for step in program.steps if isinstance(step, Extern))
    function, buffers = function_of_buffers(program, step, {})
    given = dict(zip(program.inputs, (x, w), strict=True))
    torch.testing.assert_close(function(*(given[name] for name in buffers)), x.t() @ w[:, 2:6])


def test_numbers_and_words_are_written_as_they_are() -> None:
    """Only what has no text of its own is a constant beside the text."""
    compiled = fusec.compile(lambda x: torch.topk(x, 3, -1, True, False)[0])
    compiled(torch.randn(4, 8))
    host = compiled.graphs[0].parts[0].state.host
    assert "3, -1, True, False" in host.text
    plain = (bool, int, float, str, type(None))
    assert not [value for value in host.constants.values() if isinstance(value, plain)]
