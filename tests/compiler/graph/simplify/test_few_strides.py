"""Dimensions of one element or none have eager's strides, in what is returned and in gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import fusec
from fusec.graph.facts.element_strides import element_strides, has_few, is_on_elements

T = torch.Tensor

ON_ELEMENTS: dict[str, Callable[[T], Any]] = {
    "a number": lambda x: (x * 2 + 1, 3 - x, x / 2, x > 0, x**2, x.clamp(min=0), 2**x),
    "alike": lambda x: (x + x, x * x.exp(), torch.atan2(x, x), torch.addcmul(x, x, x)),
    "one": lambda x: (x.exp(), x.neg(), torch.sigmoid(x), x.square(), x.logit(0.1), x.frac()),
    "a row": lambda x: (x + torch.ones(x.shape[-1]), x * torch.ones(1), x.maximum(x[:1])),
    "where": lambda x: (torch.where(x > 0, x, 0.0), x.masked_fill(x > 0, 1.0), x.copysign(-x)),
    "casts": lambda x: (x.double(), x.to(torch.float16) * 2, x.int(), x + x.double()),
    "activations": lambda x: (
        *(F.gelu(x), F.silu(x), F.elu(x), F.softplus(x), F.relu6(x), F.hardtanh(x), F.mish(x)),
        *(F.hardswish(x), F.hardsigmoid(x), F.leaky_relu(x), F.logsigmoid(x), F.threshold(x, 0, 1)),
    ),
    "losses": lambda x: (
        F.mse_loss(x, x * 2, reduction="none"),
        F.huber_loss(x, x + x, reduction="none"),
        F.binary_cross_entropy_with_logits(x, x, reduction="none"),
        torch.special.xlog1py(x, 2),
        torch.nan_to_num(x),
        torch.isin(x, x),
        x.float_power(2),
    ),
}
OTHERS: dict[str, Callable[[T], Any]] = {
    "like": lambda x: (
        torch.rand_like(x),
        torch.randn_like(x),
        torch.empty_like(x),
        torch.full_like(x, 2.0),
        torch.zeros_like(x),
        torch.bernoulli(torch.sigmoid(x)),
    ),
    "moved": lambda x: (x.clone(), x.contiguous(), x.flip(0), x.tril(), torch.cat([x, x], -1)),
    "views": lambda x: ((x + 1).transpose(0, 1), (x * 2)[:1], (x * 2).unsqueeze(0), x.exp().mT),
    "rows": lambda x: (F.layer_norm(x, x.shape[-1:]), torch.softmax(x, -1)),
    "reduced": lambda x: (x.sum(0, keepdim=True), x.sum(-1), x.mean((0, 1), keepdim=True)),
    "filled": lambda x: (
        x.index_fill(0, first(x), 1.0),
        x.index_put((first(x),), torch.ones(())),
        x.index_add(0, first(x), x[:1]),
        x.index_copy(0, first(x), x[:1]),
    ),
    "copied": lambda x: (x.half(), x.double().clone(), F.prelu(x, torch.ones(1)), x // 3),
    "sorted": lambda x: (*x.sort(-1), x.sort(0)[1] * 2, x.argsort(-1)),
    "spread": lambda x: (x.diag_embed(), torch.log_softmax(x, 0), torch.complex(x, x)),
    "viewed": lambda x: (
        (x * 2).unsqueeze(0).reshape(1, *x.shape),
        (x + 1).reshape(1, *x.shape, 1),
        x.reshape(*x.shape, 1) * 2,
        (x - 1).flatten(0, 1),
        torch.einsum("...ij,...kj->...ik", x, x),
        torch.einsum("...ij,...kj->...ik", x * 2, x) * 0.1,
    ),
}


def first(x: T) -> T:
    return torch.zeros(min(len(x), 1), dtype=torch.int64)


LAYOUTS: dict[str, Callable[[], T]] = {
    "a column": lambda: torch.randn(1, 6).t(),
    "a row far from the next": lambda: torch.randn(8, 6)[::4][:1],
    "no columns": lambda: torch.randn(0, 6).t(),
    "one pixel": lambda: torch.randn(2, 4, 1, 1).contiguous(memory_format=torch.channels_last),
    "one channel": lambda: torch.randn(2, 1, 3, 3).contiguous(memory_format=torch.channels_last),
    "turned": lambda: torch.randn(6, 1, 4, 1).permute(1, 3, 2, 0),
    "expanded": lambda: torch.randn(4, 1, 1).expand(4, 1, 5),
    "no images": lambda: torch.randn(0, 4, 3, 3).permute(0, 2, 3, 1),
    "no width": lambda: torch.randn(2, 2, 2, 0).contiguous(memory_format=torch.channels_last),
    "one batch": lambda: torch.randn(1, 5, 3, 4),
    "a diagonal": lambda: torch.randn(7, 1, 4, 4).diagonal(0, -4, -3),
    "windows": lambda: torch.randn(5, 1, 33).unfold(1, 1, 3),
}


def strides(results: Any) -> list[Any]:
    return [tuple(each.stride()) for each in tree_leaves(results) if isinstance(each, T)]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class _Judged(TorchDispatchMode):
    """Compares each operator on elements with what is said of it."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[Any] = []
        self.judged = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if is_on_elements(func) and has_few(made):
            said = element_strides(func, args, kwargs or {}, made)
            self.judged += said is not None
            if said is not None and said != made.stride():
                self.wrong.append((func, args, said, made.stride()))
        return made


@pytest.mark.sample(4)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_operator(layout: str) -> None:
    with _Judged() as found:
        for function in (*ON_ELEMENTS.values(), *OTHERS.values()):
            function(LAYOUTS[layout]())
    assert not found.wrong
    assert found.judged > 30


def everything(x: T) -> list[Any]:
    return [function(x) for function in (*ON_ELEMENTS.values(), *OTHERS.values())]


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results(layout: str) -> None:
    x = LAYOUTS[layout]()
    assert strides(fusec.compile(everything)(x)) == strides(everything(x))


@pytest.mark.parametrize("layout", ["a column", "turned"])
def test_gradients(layout: str) -> None:
    def function(x: T, y: T) -> T:
        return F.silu(x * 2 + y) * y

    def gradients(call: Callable[..., T]) -> list[Any]:
        x, y = (LAYOUTS[layout]().requires_grad_() for _ in range(2))
        made = call(x, y)
        return strides((made, torch.autograd.grad(made, (x, y), torch.ones_like(made))))

    assert gradients(fusec.compile(function)) == gradients(function)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_what_an_operator_makes_of_such_strides(grad: bool) -> None:
    """``cat`` lays out all elements by a stride that nothing uses, and others follow it."""

    def function(b: T, w: T) -> tuple[T, ...]:
        made = torch.cat([part * 0.5 + part.amax(-1, keepdim=True) for part in b.split(1, 3)], 3)
        moved = made.roll(4, 2)
        return made, made.transpose(1, 2), made[:, 1:], (made * w).transpose(0, 1), moved, w - moved

    def run(call: Callable[..., tuple[T, ...]]) -> list[T]:
        results = call(b.detach().requires_grad_(grad), w.requires_grad_(grad))
        if not grad:
            return list(results)
        b_again = b.detach().requires_grad_()
        total = sum((each * each).sum() for each in call(b_again, w))
        return [*results, *torch.autograd.grad(total, (b_again, w))]  # type: ignore[arg-type]

    b, w = torch.randn(1, 130, 3, 1).permute(0, 2, 1, 3), torch.randn(130, 1)
    want, got = run(function), run(fusec.compile(function))
    for a, b in zip(want, got, strict=True):
        torch.testing.assert_close(b, a)
    assert strides(got[:3] + got[4:6]) == strides(want[:3] + want[4:6])


def test_one_dimension() -> None:
    def function(x: T, y: T) -> tuple[T, ...]:
        return x.flip(0), x.clone(), torch.empty_like(x), x.half(), x * 2, y[:, 0].clone(), x.exp()

    x, y = torch.randn(2)[::2], torch.randn(1, 2)[:, ::2]
    assert strides(fusec.compile(function)(x, y)) == strides(function(x, y))


def test_torch_compile_and_symbolic_sizes() -> None:
    def function(x: T) -> tuple[T, ...]:
        seen = x.unsqueeze(0).reshape(1, *x.shape)
        return x * 2 + 1, x.exp(), torch.rand_like(x), x[1:] * 2, seen * 2, seen.clone()

    compiled = torch.compile(function, backend="fusec", dynamic=True)
    for size in (6, 4, 1, 0, 2):
        x = torch.randn(1, size).t()
        assert strides(compiled(x)) == strides(function(x)), size
        assert strides(compiled(x.t())) == strides(function(x.t())), size


def test_what_lies_in_order_is_left_alone() -> None:
    def function(x: T) -> list[Any]:  # einsum's views are others than fake tensors say
        return [each(x) for name, each in (ON_ELEMENTS | OTHERS).items() if name != "viewed"]

    compiled = fusec.compile(function)
    compiled(torch.randn(1, 6))
    (passes,) = [run for run in compiled.graphs[0].passes if run.name == "few_strides"]
    assert not passes.changes


def test_a_size_that_a_guard_fixes() -> None:
    """``x[:, 3:]`` makes a number of a symbol: what was traced before says the symbol still."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.group_norm(torch.where(x > 0, x, 3.0), 1).clamp(-1, 1)
        y.transpose(2, 0).add_(0.125)
        return y, y[:, 3:]

    x = torch.randn(1, 4, 17, 8).contiguous(memory_format=torch.channels_last)
    wanted, found = function(x), fusec.compile(function, dynamic=True)(x)
    torch.testing.assert_close(found, wanted)
    assert [each.stride() for each in found] == [each.stride() for each in wanted]
