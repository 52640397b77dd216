"""Sizes that were promised, or guarded, and do not hold: torch's own error, nothing is harmed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.call import native
from fusec.call.input_check import UnexpectedInput
from fusec.capture.backend import Backend
from fusec.errors import BrokenPromise
from fusec.options import Options
from support.compare import difference

T = torch.tensor


@pytest.fixture(autouse=True)
def captured_sizes() -> Iterator[None]:
    native.types(wait=True)
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        torch._dynamo.reset()
        yield
    torch._dynamo.reset()


# -- promises of the program ------------------------------------------------------------------


def four(x: torch.Tensor) -> torch.Tensor:
    z = x.nonzero()
    torch._check(z.size(0) == 4)
    return z + 3


def as_many(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.nonzero().squeeze(1)
    torch._check(z.size(0) == y.size(0))
    return z * y


def selected(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    chosen = torch.masked_select(y, x)
    torch._check(chosen.shape[0] == 3)
    return chosen.view(3, 1) + y


def unique(x: torch.Tensor) -> torch.Tensor:
    found = torch.unique(x)
    torch._check(found.numel() == 4)
    return found + 1


def split(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    a, b = y.split([int(each) for each in x.tolist()])
    torch._check(a.shape[0] == 2)
    torch._check(b.shape[0] == 3)
    return a.sum() + b


def unread(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.nonzero().size(0) == 3)
    return x + 1


def unread_of_several(x: torch.Tensor) -> torch.Tensor:
    torch._check(torch.unique(x, return_counts=True)[1].size(0) == 3)
    return x + 1


def asserted(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "not all are positive")
    return x + 1


def asserted_and_updated(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all())
    return x.mul(2)


PROMISES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[tuple[Any, ...]]]] = {
    "nonzero": (
        four,
        (torch.ones(4),),
        [(torch.zeros(4),), (T([1.0, 0, 0, 1]),)],
    ),
    "as many as another": (
        as_many,
        (T([1, 1, 0]), torch.randn(2)),
        [(T([1, 0, 0]), torch.randn(2)), (T([1, 1, 1]), torch.randn(2))],
    ),
    "masked_select": (
        selected,
        (T([True] * 3), torch.randn(3)),
        [(T([True, False, True]), torch.randn(3)), (T([False] * 3), torch.randn(3))],
    ),
    "unique": (unique, (T([1, 2, 3, 4]),), [(T([1, 2, 3, 3]),), (T([1, 1, 1, 1]),)]),
    "numbers": (split, (T([2, 3]), torch.randn(5)), [(T([3, 2]), torch.randn(5))]),
    "read by nobody": (unread, (T([1.0, 2, 3]),), [(T([1.0, 0, 3]),)]),
    "read by nobody, of several": (unread_of_several, (T([1.0, 2, 3]),), [(T([1.0, 3, 3]),)]),
    "assertion": (asserted, (T([1.0, 2]),), [(T([1.0, -2]),)]),
    "assertion without words": (asserted_and_updated, (T([1.0, 2]),), [(T([1.0, -2]),)]),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROMISES)
def test_a_promise_that_does_not_hold(name: str, dynamic: bool) -> None:
    function, good, bad = PROMISES[name]
    compiled = fusec.compile(function, dynamic=dynamic)
    assert not difference(compiled(*good), function(*good))
    for inputs in bad:
        before = [each.clone() for each in inputs]
        with pytest.raises(RuntimeError):
            function(*inputs)
        with pytest.raises(RuntimeError) as caught:
            compiled(*inputs)
        assert not isinstance(caught.value, torch._dynamo.exc.TorchDynamoException)
        assert not difference(list(inputs), before)
    assert not difference(compiled(*good), function(*good))
    assert len(compiled.graphs) == 1


def test_what_is_said() -> None:
    compiled = fusec.compile(four)
    compiled(torch.ones(4))
    with pytest.raises(BrokenPromise, match=r"nonzero.default \(line \d+\) returned \[0, 1\]"):
        compiled(torch.zeros(4))


@pytest.mark.parametrize("kind", ["size", "rank", "type", "strides"])
def test_a_custom_operator_whose_fake_kernel_is_wrong(kind: str) -> None:
    def real(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t() if kind == "strides" else x.clone()

    def fake(x: torch.Tensor) -> torch.Tensor:
        made = {
            "size": lambda: x.new_empty(2 * x.shape[0], x.shape[1]),
            "rank": lambda: x.new_empty(*x.shape, 8),
            "type": lambda: torch.empty_like(x, dtype=torch.float64),
            "strides": lambda: torch.empty_like(x),
        }
        return made[kind]()

    with torch.library._scoped_library("promises", "FRAGMENT") as library:
        library.define(f"of_{kind}(Tensor x) -> Tensor")
        library.impl(f"of_{kind}", real, "CPU")
        library.impl(f"of_{kind}", fake, "Meta")
        operator = getattr(torch.ops.promises, f"of_{kind}")
        compiled = fusec.compile(lambda x: operator(x) * 2 + 1)
        x = torch.randn(6, 5)
        if kind == "strides":
            assert not difference(compiled(x), x * 2 + 1)
        else:
            with pytest.raises(BrokenPromise, match=f"of_{kind}"):
                compiled(x)


def test_a_type_that_only_operators_meet_may_be_another_one() -> None:
    """As the log-sum-exp of attention in float64 is, which torch 2.11 predicts in float32."""
    with torch.library._scoped_library("promises", "FRAGMENT") as library:
        library.define("totals(Tensor x) -> (Tensor, Tensor)")
        library.impl("totals", lambda x: (x.sum(1), x.double().exp().sum(1)), "CPU")
        library.impl("totals", lambda x: (x.new_empty(len(x)), x.new_empty(len(x))), "Meta")
        library.define("logarithm(Tensor x) -> Tensor")
        library.impl("logarithm", lambda x: x.log().float(), "CPU")
        library.impl("logarithm", lambda x: x.new_empty(len(x), dtype=torch.float32), "Meta")

        def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            total, weights = torch.ops.promises.totals(x)
            return total * 2 + torch.ops.promises.logarithm(weights), weights

        compiled = fusec.compile(function)
        for _ in range(3):
            x = torch.randn(6, 5)
            for got, expected in zip(compiled(x), function(x), strict=True):
                torch.testing.assert_close(got, expected)


# -- calls past the guards --------------------------------------------------------------------


class Kept:
    """A backend that keeps what it compiled, to be called by hand."""

    def __init__(self) -> None:
        self.backend = Backend(Options())
        self.made: list[Callable[..., Any]] = []

    def __call__(self, module: Any, inputs: Any, **_: object) -> Callable[..., Any]:
        self.made.append(self.backend(module, inputs))
        return self.made[-1]


def made(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Callable[..., Any]:
    kept = Kept()
    torch.compile(function, backend=kept, dynamic=dynamic, fullgraph=True)(*inputs)
    (found,) = kept.made
    return found


ALONE: dict[str, Callable[..., Any]] = {
    "kernels": lambda x, y: F.gelu(x) * y + 1,
    "reduction": lambda x, y: torch.softmax(x, -1) * y,
    "with an operator": lambda x, y: torch.sort(x, -1)[0] * y + 1,
}
OTHERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "fewer": lambda x: x[:3].clone(),
    "shorter rows": lambda x: x[:, :7].clone(),
    "empty": lambda x: x[:0].clone(),
    "more": lambda x: torch.cat([x, x]),
    "strides": lambda x: x.t().contiguous().t(),
    "expanded": lambda x: x[:1].expand(x.shape),
    "type": lambda x: x.to(torch.bfloat16),
    "wider type": lambda x: x.double(),
    "same width": lambda x: x.view(torch.int32),
    "rank": lambda x: x[None],
    "flat": lambda x: x.flatten(),
}


@pytest.mark.parametrize("name", ALONE)
def test_called_by_hand_with_other_inputs(name: str) -> None:
    x, y = torch.randn(16, 24), torch.randn(16, 24)
    call = made(ALONE[name], x, y)
    for change in OTHERS.values():
        with pytest.raises(AssertionError, match=r"expected|dimensions"):
            call(change(x), y)
        with pytest.raises(AssertionError):
            call(x, change(y))
    with pytest.raises(AssertionError, match="device"):
        call(x.to("meta"), y)
    (result,) = call(x, y)
    assert not difference(result, ALONE[name](x, y))


@pytest.mark.parametrize("name", ALONE)
def test_called_by_hand_where_sizes_vary(name: str) -> None:
    x, y = torch.randn(16, 24), torch.randn(16, 24)
    call = made(ALONE[name], x, y, dynamic=True)
    graph_inputs: list[Any] = []
    kept = torch.compile(
        ALONE[name],
        backend=lambda module, inputs: graph_inputs.extend(inputs) or module.forward,  # type: ignore[func-returns-value]
        dynamic=True,
    )
    kept(x, y)

    def arguments(a: torch.Tensor, b: torch.Tensor) -> list[Any]:
        sizes = iter(a.shape)
        tensors = iter((a, b))
        return [
            next(tensors) if isinstance(each, torch.Tensor) else next(sizes)
            for each in graph_inputs
        ]

    for shape in ((16, 24), (5, 9), (40, 3)):
        a, b = torch.randn(shape), torch.randn(shape)
        (result,) = call(*arguments(a, b))
        assert not difference(result, ALONE[name](a, b))
        for other in (b[:-1].clone(), b[:, :-1].clone(), b.t().contiguous().t(), b.double()):
            with pytest.raises(AssertionError):
                call(*arguments(a, other))
    # Sizes of 0 and 1 are compiled for by themselves.
    for shape in ((1, 24), (16, 0)):
        with pytest.raises(AssertionError, match="compiled for 2 and more"):
            call(*arguments(torch.randn(shape), torch.randn(shape)))


def test_guards_that_are_skipped() -> None:
    compiled = torch.compile(
        lambda x, y: torch.softmax(x * y, -1),
        backend="fusec",
        options={"guard_filter_fn": torch.compiler.skip_all_guards_unsafe},
    )
    x, y = torch.randn(8, 16), torch.randn(8, 16)
    expected = compiled(x, y)
    for other in (torch.randn(8, 4), torch.randn(4000, 16), torch.randn(8, 16).double()):
        with pytest.raises(UnexpectedInput):
            compiled(other, other)
    assert not difference(compiled(x, y), expected)


@pytest.mark.parametrize("layout", ["expanded", "transposed", "offset"])
def test_gradients_laid_out_otherwise_are_right(layout: str) -> None:
    """Autograd hands over gradients of any strides; backward was compiled for one."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ w) * 2

    given = {
        "expanded": lambda r: torch.randn(1, 1).expand(r.shape),
        "transposed": lambda r: torch.randn(r.shape[::-1]).t(),
        "offset": lambda r: torch.randn(r.shape[0] + 1, r.shape[1] + 1)[1:, 1:],
    }
    values = [torch.randn(6, 5), torch.randn(5, 7)]
    compiled = fusec.compile(function)
    for _ in range(3):
        found = []
        gradient = given[layout](torch.empty(6, 7))
        for call in (function, compiled):
            leaves = [each.clone().requires_grad_() for each in values]
            call(*leaves).backward(gradient)
            found.append([leaf.grad for leaf in leaves])
        assert not difference(*found)


def test_a_check_by_python_says_the_same() -> None:
    """Before the native part is there."""
    x = torch.randn(6, 4)
    compiled = fusec.compile(lambda x: torch.relu(x) + 1, dynamic=True)
    compiled(x)
    (graph,) = compiled.graphs
    check = graph.parts[0]._check
    inputs = [6, 4, x] if len(check._program.inputs) == 3 else [x]
    wrong = [*inputs[:-1], torch.randn(6, 4)[:, ::2]]
    for look in (check.look_at, check.native()):
        look(list(inputs))
        with contextlib.ExitStack() as stack:
            stack.enter_context(pytest.raises(UnexpectedInput))
            look(list(wrong))


def test_expressions_of_sizes() -> None:
    """Strides that are products, quotients and sums of sizes, natively as by Python."""
    function = torch.compile(
        lambda x, y: x.reshape(-1)[: y.shape[0]] + y, backend="fusec", dynamic=True
    )
    for rows, columns in ((6, 10), (8, 4), (5, 7)):
        x, y = torch.randn(rows, columns), torch.randn(rows * columns // 2)
        assert not difference(function(x, y), x.reshape(-1)[: y.shape[0]] + y)
