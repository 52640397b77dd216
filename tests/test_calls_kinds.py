"""The short path of calls that record, update inputs, return views, or vary in size."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.capture.size_guards import UnknownQuestion, size_steps
from support.calls import native_part, same, short, strict_calls, tensors

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here

pytestmark = pytest.mark.timeout(300)


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape or (64,), dtype=dtype).requires_grad_()


def is_recorded(compiled: fusec.api.CompiledFunction) -> bool:
    return all(graph._recorded is not None for graph in compiled.graphs)


def chain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return ((a + b).relu() * a - b).sigmoid()


def slopes(function: Callable[..., Any], *args: torch.Tensor, **how: Any) -> Any:
    out = function(*args)
    return torch.autograd.grad(
        out, [t for t in args if t.requires_grad], torch.cos(out.detach()), **how
    )


# --- recording -------------------------------------------------------------------------------


def test_recorded_calls() -> None:
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)
    assert is_recorded(compiled)
    for _ in range(3):
        a, b = leaf(), leaf()
        before = compiled.short_calls
        out = compiled(a, b)
        assert compiled.short_calls == before + 1
        same(out, chain(a, b))
        assert out.requires_grad
        assert "CompiledFunctionBackward" in type(out.grad_fn).__name__
        same(slopes(compiled, a, b), slopes(chain, a, b))
    assert [part.kind for part in compiled.graphs[0].parts] == ["forward", "backward"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(0,), (3, 5), (2, 1, 7)], ids=str)
def test_recorded_shapes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, b = leaf(*shape, dtype=dtype), leaf(*shape, dtype=dtype)
    compiled = fusec.compile(chain)
    for _ in range(3):
        torch.testing.assert_close(
            slopes(compiled, a, b), slopes(chain, a, b), rtol=3e-2, atol=3e-2
        )
    assert is_recorded(compiled)


def test_gradients_in_other_layouts() -> None:
    a = leaf(4, 6)
    compiled = short(lambda a: (a * a).exp(), a)
    for gradient in (
        torch.ones(()).expand(4, 6),
        torch.randn(6, 4).t(),
        torch.randn(8, 6)[::2],
        torch.randn(4, 6, requires_grad=True),
    ):
        mine = torch.autograd.grad(compiled(a), a, gradient)[0]
        same(mine, torch.autograd.grad((a * a).exp(), a, gradient)[0])
    compiled(a).sum().backward()
    same(a.grad, (2 * a * (a * a).exp()).detach())


def test_several_outputs() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        total = a * b
        return total.sin(), (total > 0), total.argmax(), total.exp(), 3, None

    a, b = leaf(), torch.randn(64)
    compiled = short(function, a, b)
    for which in ((0,), (3,), (0, 3)):
        mine, theirs = compiled(a, b), function(a, b)
        for one, other in zip(mine, theirs, strict=True):
            same(one, other)
            assert getattr(one, "requires_grad", None) == getattr(other, "requires_grad", None)
        same(
            torch.autograd.grad(sum(mine[i].sum() for i in which), a),
            torch.autograd.grad(sum(theirs[i].sum() for i in which), a),
        )
    assert is_recorded(compiled)


def test_gradients_of_gradients_are_refused_as_before() -> None:
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)
    slopes(compiled, a, b)
    (first, _) = slopes(compiled, a, b, create_graph=True)
    assert first.requires_grad
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.sum(), a)
    same(slopes(compiled, a, b), slopes(chain, a, b))


def test_a_graph_is_kept_where_asked() -> None:
    a, b = leaf(), leaf()

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a * b).sin() * torch.exp(a)

    compiled = short(function, a, b)
    expected = slopes(function, a, b)
    out = compiled(a, b)
    # AOTAutograd uses memory of saved tensors again unless the first backward says otherwise.
    for _ in range(3):
        same(torch.autograd.grad(out, [a, b], torch.cos(out.detach()), retain_graph=True), expected)
    same(torch.autograd.grad(out, [a, b], torch.cos(out.detach())), expected)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out, [a, b], torch.cos(out.detach()))
    same(slopes(compiled, a, b), expected)


def test_what_is_saved_may_not_change() -> None:
    a, b = leaf(), torch.randn(64)
    compiled = short(lambda a, b: a * b, a, b)
    out = compiled(a, b)
    b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_hooks() -> None:
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)

    def run(function: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []
        x, y = (t.detach().clone().requires_grad_() for t in (a, b))
        x.register_hook(lambda g: g * 2)
        out = function(x, y)
        out.register_hook(lambda g: seen.append(g) or g * 3)  # type: ignore[func-returns-value]
        out.grad_fn.register_prehook(lambda gs: tuple(g + 1 for g in gs))
        out.sum().backward()
        return [*seen, x.grad, y.grad]  # type: ignore[list-item]

    for _ in range(2):
        same(run(compiled), run(chain))


def test_saved_tensors_hooks() -> None:
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        mine = slopes(compiled, a, b)
    same(mine, slopes(chain, a, b))
    assert packed
    mine = torch.utils.checkpoint.checkpoint(compiled, a, b, use_reentrant=False)
    same(mine, chain(a, b))
    same(torch.autograd.grad(mine.sum(), a), torch.autograd.grad(chain(a, b).sum(), a))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "state",
    [
        torch.no_grad,
        torch.inference_mode,
        deterministic,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autograd.detect_anomaly(check_nan=False),
    ],
    ids="no_grad inference deterministic autocast anomaly".split(),
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_recorded_calls_in_another_state(state: Callable[[], Any]) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a @ b).relu() * a

    a, b = leaf(8, 8), leaf(8, 8)
    compiled = short(function, a, b)
    for _ in range(2):
        with state():
            mine, theirs = compiled(a, b), function(a, b)
            assert mine.requires_grad == theirs.requires_grad
            assert mine.is_inference() == theirs.is_inference()
            assert mine.dtype == theirs.dtype
            torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2)
            if mine.requires_grad and not torch.is_autocast_enabled("cpu"):  # eager's are rounded
                same(slopes(compiled, a, b), slopes(function, a, b))
    same(slopes(compiled, a, b), slopes(function, a, b))


def test_backward_in_another_state() -> None:
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)
    slopes(compiled, a, b)
    out = compiled(a, b)
    with deterministic(), pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
        out.sum().backward()
    out = compiled(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mine = torch.autograd.grad(out, a, torch.ones(64))
    same(mine, torch.autograd.grad(chain(a, b), a, torch.ones(64)))


@pytest.mark.parametrize(
    "change",
    [
        lambda a, b: (a.detach(), b),
        lambda a, b: (a, b.detach()),
        lambda a, b: (a * 2, b),
        lambda a, b: (nn.Parameter(a.detach()), b),
        lambda a, b: (a.detach().double().requires_grad_(), b),
        lambda a, b: (a[::2], b[::2]),
        lambda a, b: (a, a),
        lambda a, b: (a[:1].expand(64), b),
    ],
    ids="one other computed parameter double strided same expanded".split(),
)
def test_recorded_changes(change: Callable[..., Any]) -> None:
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)
    for _ in range(2):
        given = change(a, b)
        mine, theirs = compiled(*given), chain(*given)
        same(mine, theirs)
        assert mine.requires_grad == theirs.requires_grad
        same(*(slopes(function, *change(a, b)) for function in (compiled, chain)))


def test_transforms_of_recorded_calls() -> None:
    a, b = leaf(4, 8), leaf(4, 8)
    compiled, one = short(chain, a, b), short(chain, leaf(8), leaf(8))
    slopes(compiled, a, b)
    served = compiled.short_calls, one.short_calls
    same(torch.func.grad(lambda x: compiled(x, b).sum())(a), slopes_of_sum(chain, a, b))
    same(torch.vmap(one)(a, b), chain(a, b))
    assert (compiled.short_calls, one.short_calls) == served
    jacobian = torch.autograd.functional.jacobian(compiled, (a, b))
    same(jacobian, torch.autograd.functional.jacobian(chain, (a, b)))


def slopes_of_sum(function: Callable[..., Any], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(function(a, b).sum(), a)[0]


def test_backward_inside_of_other_compiled_functions() -> None:
    a, b = leaf(), leaf()
    inner = short(chain, a, b)
    slopes(inner, a, b)

    def outer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a = a * 2
        torch._dynamo.graph_break()
        out = apart(a, b)
        torch._dynamo.graph_break()
        out.sum().backward()
        return out.detach() + 1

    @torch.compiler.disable
    def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return inner(a, b)

    whole = torch.compile(outer, backend="fusec")
    for _ in range(3):
        a.grad = b.grad = None
        same(whole(a, b), chain(a * 2, b).detach() + 1)
        mine = a.grad, b.grad
        a.grad = b.grad = None
        chain(a * 2, b).sum().backward()
        same(mine, (a.grad, b.grad))


def test_compiled_autograd() -> None:
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)
    expected = slopes_of_sum(chain, a, b)
    with torch._dynamo.compiled_autograd._enable(
        lambda graph: torch.compile(graph, backend="eager")
    ):
        for _ in range(2):
            a.grad = b.grad = None
            compiled(a, b).sum().backward()
            same(a.grad, expected)


def test_what_a_recorded_call_saves_is_freed() -> None:
    class Held(torch.Tensor):
        pass

    compiled = short(lambda a, b: (a * b).sin(), leaf(), leaf())
    a, b = leaf(), leaf()
    out = compiled(a, b)
    out.sum().backward()
    watched = [weakref.ref(each) for each in (a, b, out, out.grad_fn)]
    del a, b, out
    gc.collect()
    assert [each() for each in watched] == [None] * 4


def test_recorded_calls_keep_inputs_where_asked() -> None:
    compiled = fusec.compile(chain, keep_inputs=True)
    for _ in range(3):
        a, b = leaf(), leaf()
        slopes(compiled, a, b)
        kept = compiled.graphs[0].last_inputs
        assert kept is not None
        assert [id(each) for each in kept] == [id(a), id(b)]
        assert all(part.last_inputs is not None for part in compiled.graphs[0].parts)
    assert compiled.graphs[0].verify().ok


def test_recorded_calls_in_threads() -> None:
    compiled = fusec.compile(chain)
    pairs = [(leaf(n), leaf(n)) for n in (16, 16, 16, 16)]
    expected = [slopes(chain, *pair) for pair in pairs]
    slopes(compiled, *pairs[0])
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(100):
            mine = slopes(compiled, *pairs[i])
            if not all(torch.allclose(m, e) for m, e in zip(mine, expected[i], strict=True)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x))))


def test_training_with_running_statistics() -> None:
    module = Net()
    other = copy.deepcopy(module)
    compiled = fusec.compile(module)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, other)]
    versions = module.norm.running_mean._version  # type: ignore[union-attr]
    for step in range(5):
        x = torch.randn(6, 8)
        compiled(x).square().mean().backward()
        other(x).square().mean().backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        for mine, theirs in zip(
            module.state_dict().values(), other.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
        assert module.norm.running_mean._version > versions + step  # type: ignore[union-attr]
    assert is_recorded(compiled)
    module.eval()
    other.eval()
    x = torch.randn(6, 8)
    torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-5)


def test_edited_kernels_of_recorded_calls() -> None:
    a, b = leaf(), leaf()
    compiled = short(lambda a, b: a * b + a, a, b)
    out = compiled(a, b)
    kernel = compiled.graphs[0].parts[0].kernels
    (forward,) = kernel.values()
    edited = forward.source.replace("a_val * b[i0]", "b[i0] - a_val")
    assert edited != forward.source
    forward.use(edited)
    same(compiled(a, b).detach(), b.detach())
    forward.revert()
    same(compiled(a, b), out)


def test_what_is_not_plain_keeps_its_wrappers() -> None:
    def view(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a * 2, a.view(8, 8)

    def update(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        b.add_(a.detach())
        return a * b

    a, b = leaf(), torch.randn(64)
    compiled = fusec.compile(view)
    for _ in range(3):
        mine, theirs = compiled(a), view(a)
        same(mine, theirs)
        assert mine[1]._base is a
        same(
            torch.autograd.grad(mine[1].exp().sum() + mine[0].sum(), a),
            torch.autograd.grad(theirs[1].exp().sum() + theirs[0].sum(), a),
        )
    assert not is_recorded(compiled)
    compiled = fusec.compile(update)
    for _ in range(3):
        other = b.clone()
        mine, theirs = compiled(a, b), update(a, other)
        same(mine, theirs)
        same(b, other)
        same(torch.autograd.grad(mine.sum(), a), torch.autograd.grad(theirs.sum(), a))


# --- updating inputs -------------------------------------------------------------------------


def add_relu_(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(b).relu_()
    return a


def test_updated_inputs() -> None:
    a, b = tensors()
    compiled = short(add_relu_, a, b)
    assert compiled.graphs[0]._direct is not None
    for _ in range(3):
        a, b = tensors()
        other, version = a.clone(), a._version
        assert compiled(a, b) is a
        same(a, add_relu_(other, b))
        assert a._version > version


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(8, 8).t(),
        lambda: torch.randn(16, 8)[::2],
        lambda: torch.randn(8, 16)[:, 8:],
        lambda: torch.randn(8, 8).to(torch.bfloat16),
        lambda: torch.randn(8, 8).int(),
        lambda: torch.randn(0, 8),
    ],
    ids="transposed rows part half int empty".split(),
)
def test_updated_inputs_of_other_layouts(make: Callable[[], torch.Tensor]) -> None:
    compiled = short(add_relu_, torch.randn(8, 8), torch.randn(8, 8))
    for _ in range(3):
        a = make()
        whole = a._base if a._base is not None else a
        b = torch.randn(a.shape).to(a.dtype)
        before = whole.clone()
        other = torch.as_strided(before, a.shape, a.stride(), a.storage_offset())
        assert compiled(a, b) is a
        torch.testing.assert_close(add_relu_(other, b), a)
        same(whole, before)  # and nothing beside it


def test_two_updated_inputs() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> Any:
        a.mul_(0.9).add_(c, alpha=0.1)
        b.copy_(a.sin() + b)
        return (a * b).sum(), b

    given = [torch.randn(8, 4) for _ in range(3)]
    others = [t.clone() for t in given]
    compiled = short(function, *(t.clone() for t in given))
    for _ in range(3):
        mine, theirs = compiled(*given), function(*others)
        same(mine, theirs)
        assert mine[1] is given[1]
        same(given, others)


def test_updates_that_autograd_must_see() -> None:
    compiled = short(add_relu_, *tensors())
    a, b, w = torch.randn(64), torch.randn(64), leaf()
    out = a * w
    compiled(a, b)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        compiled(w, b)
    with torch.no_grad():
        version, other = w._version, w.detach().clone()
        compiled(w, b)
        same(w.detach(), add_relu_(other, b))
        assert w._version > version
    # What is recorded of a computed tensor that is updated.
    mine, theirs = (w * 2, w * 2)
    compiled(mine, b)
    add_relu_(theirs, b)
    same(mine, theirs)
    same(torch.autograd.grad(mine.sum(), w), torch.autograd.grad(theirs.sum(), w))


def test_updates_through_views() -> None:
    compiled = short(add_relu_, *tensors())
    base, b = torch.randn(2, 64), torch.randn(64)
    view, before = base[1], base.clone()
    version = base._version
    compiled(view, b)
    same(base[0], before[0])
    same(base[1], add_relu_(before[1], b))
    assert base._version > version
    # Two arguments that share memory, where the compiled form was made for others.
    x = torch.randn(72)
    other = x.clone()
    same(compiled(x[:64], x[8:]), add_relu_(other[:64], other[8:].clone()))
    x = torch.randn(64)
    other = x.clone()
    same(compiled(x, x), add_relu_(other, other))


def test_inference_tensors_are_not_updated_outside() -> None:
    compiled = short(add_relu_, *tensors())
    with torch.inference_mode():
        a, b = tensors()
        other = a.clone()
        for _ in range(2):
            compiled(a, b)
            add_relu_(other, b)
        same(a, other)
    with pytest.raises(RuntimeError, match="inference tensor"):
        compiled(a, torch.randn(64))


def test_updates_by_operators() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.copy_(a @ b)
        return a + 1

    a, b = torch.randn(6, 6), torch.randn(6, 6)
    compiled = short(function, a.clone(), b)
    for _ in range(3):
        other, version = a.clone(), a._version
        same(compiled(a, b), function(other, b))
        same(a, other)
        assert a._version > version


def test_resized_inputs_keep_their_wrappers() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        a.t_().mul_(2)
        return a + 1

    compiled = fusec.compile(function)
    for _ in range(3):
        a = torch.randn(3, 5)
        other = a.clone()
        same(compiled(a), function(other))
        assert a.shape == other.shape
        assert a.stride() == other.stride()
        same(a, other)


def test_large_temporaries() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(a, -1)
        return y.cumsum(0), y.sum(0)

    a = torch.randn(2304, 2048)  # the softmax takes 18 MB, which only kernels see
    compiled = short(function, a)
    for _ in range(2):
        torch.testing.assert_close(compiled(a), function(a), rtol=1e-4, atol=1e-5)


# --- views of inputs -------------------------------------------------------------------------

_VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda a: a.view(8, 8),
    "slice": lambda a: a[3:50:2],
    "transposed": lambda a: a.view(16, 4).t(),
    "expanded": lambda a: a[:1].expand(5, 1),
    "detached": lambda a: a.detach(),
    "alias": lambda a: a.view_as(a),
    "chunks": lambda a: a.chunk(3),
    "unbound": lambda a: a.view(2, 32).unbind(0)[1],
    "bits": lambda a: a.view(torch.int32),
    "narrow": lambda a: a.narrow(0, 5, 0),
}


@pytest.mark.parametrize("name", _VIEWS)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_views_of_inputs(name: str, grad: bool) -> None:
    view = _VIEWS[name]

    def function(a: torch.Tensor) -> Any:
        return a.sin() + 1, view(a)

    with torch.set_grad_enabled(grad):
        compiled = short(function, torch.randn(64))
        for _ in range(2):
            a = torch.randn(128)[64:]
            other = a.clone()
            served = compiled.short_calls
            for mine, theirs in zip(flat(compiled(a)), flat(function(a)), strict=True):
                same(mine, theirs)
                assert mine.stride() == theirs.stride()
                assert mine.storage_offset() == theirs.storage_offset()
                assert mine._is_view() == theirs._is_view()
                assert mine._base is theirs._base
                assert mine.requires_grad == theirs.requires_grad
                assert (mine.grad_fn is None) == (theirs.grad_fn is None)
            assert compiled.short_calls == served + (1 if a.storage_offset() == 64 else 0)
            same(a, other)


def flat(values: Any) -> list[torch.Tensor]:
    return [t for v in values for t in (v if isinstance(v, (tuple, list)) else [v])]


def test_views_are_written_through() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + 1, a.view(8, 8)[2:]

    compiled = short(function, torch.randn(64))
    a, w = torch.randn(64), leaf(6, 8)
    other = a.clone()
    version = a._version
    for x, run in ((a, compiled), (other, function)):
        view = run(x)[1]
        view.zero_()
        view.add_(w)  # the base becomes part of what is recorded
    same(a, other)
    assert a.requires_grad
    assert a._version > version
    same(
        torch.autograd.grad(a.exp().sum(), w),
        torch.autograd.grad(other.exp().sum(), w),
    )


def test_views_of_updated_inputs() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a.add_(b)
        return a.view(8, 8), a * 2

    compiled = short(function, *tensors())
    for _ in range(3):
        a, b = tensors()
        other = a.clone()
        mine, theirs = compiled(a, b), function(other, b)
        same(mine, theirs)
        same(a, other)
        assert mine[0]._base is a


def test_views_where_gradients_are_recorded_keep_their_wrappers() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a + 1, a.view(8, 8)

    with torch.no_grad():
        compiled = short(function, leaf())
        a = leaf()
        mine, theirs = compiled(a), function(a)
    for one, other in zip(mine, theirs, strict=True):
        same(one, other)
        assert one.requires_grad == other.requires_grad
        assert one._is_view() == other._is_view()
    mine, theirs = compiled(a), function(a)
    same(mine, theirs)
    same(torch.autograd.grad(mine[1].exp().sum(), a), torch.autograd.grad(theirs[1].exp().sum(), a))


# --- sizes that vary -------------------------------------------------------------------------


def rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.shape[0] % 4 == 0 and a.shape[0] * a.shape[1] > 100:
        return (a + b).relu()
    return (a - b).sigmoid()


def test_sizes() -> None:
    compiled = fusec.compile(rows, dynamic=True)
    shapes = [(16, 8), (20, 9), (12, 30), (7, 5), (9, 30), (4, 4), (3, 100)]
    for shape in shapes * 2:
        given = tensors(shape, shape)
        same(compiled(*given), rows(*given))
    graphs, served = len(compiled.graphs), compiled.short_calls
    for shape in [*shapes, (28, 11), (8, 64), (5, 3), (4, 25), (4, 26)]:
        given = tensors(shape, shape)
        same(compiled(*given), rows(*given))
    assert len(compiled.graphs) == graphs
    assert compiled.short_calls == served + len(shapes) + 5


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 8), (0, 8)),
        ((1, 8), (1, 8)),
        ((1, 1), (1, 1)),
        ((16, 8), (16, 1)),
        ((16, 8), (8,)),
        ((3, 16, 8), (3, 16, 8)),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...]) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a + b).relu() * a.shape[0] + a.shape[-1]

    compiled = fusec.compile(function, dynamic=True)
    for shape in ((16, 8), (20, 9), (30, 4)):
        given = tensors(shape, shape)
        same(compiled(*given), function(*given))
    served = compiled.short_calls
    given = tensors(*shapes)
    same(compiled(*given), function(*given))
    assert compiled.short_calls == served
    for each in (given, [torch.randn(9, 20).t(), torch.randn(20, 9)], [torch.randn(20, 9)] * 2):
        same(compiled(*each), function(*each))
    given = tensors((40, 5), (40, 5))
    before = compiled.short_calls
    same(compiled(*given), function(*given))
    assert compiled.short_calls == before + 1


def test_one_argument_twice_and_unequal_sizes() -> None:
    compiled = fusec.compile(lambda a, b: a.sum() * b, dynamic=True)
    for n in (8, 9, 10):
        a, b = tensors((n,), (n,))
        same(compiled(a, b), a.sum() * b)
    a, b = tensors((11,), (12,))  # they were equal, which TorchDynamo took for a rule
    same(compiled(a, b), a.sum() * b)
    same(compiled(a, a), a.sum() * a)


def test_sizes_become_symbolic_by_themselves() -> None:
    compiled = fusec.compile(chain)
    for n in (16, 17, 18, 19, 5):
        given = tensors((n,), (n,))
        same(compiled(*given), chain(*given))
    assert len(compiled.graphs) == 2
    served = compiled.short_calls
    for n in (16, 23, 42, 16):
        given = tensors((n,), (n,))
        same(compiled(*given), chain(*given))
    assert compiled.short_calls == served + 4


def test_recorded_calls_of_varying_size() -> None:
    compiled = fusec.compile(chain, dynamic=True)
    for n in (16, 17, 18, 30):
        a, b = leaf(n), leaf(n)
        same(slopes(compiled, a, b), slopes(chain, a, b))
    assert len(compiled.graphs) == 1


def test_sizes_that_are_returned() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a + b, a.shape[0], a.shape[0] * b.shape[1]

    compiled = fusec.compile(function, dynamic=True)
    for shape in ((4, 6), (5, 7), (9, 3)):
        given = tensors(shape, shape)
        mine = compiled(*given)
        same(mine, function(*given))
        assert type(mine[1]) is int


QUESTIONS = (
    "2 <= L['a'].size()[0]",
    "2 <= L['a'].size()[0] <= 40",
    "L['a'].size()[0] == L['b'].size()[1]  # duck",
    "(L['a'].size()[0] * L['b'].size()[1]) % 4 == 0",
    "L['a'].size()[0] // 3 != 2 * L['b'].size()[0] - 7",
    "L['a'].size()[0] - 9 < (L['b'].size()[0] - 30) // 4",
    "(L['a'].size()[0] - 50) % 7 >= 3",
    "L['a'].size()[0] != 5 or L['b'].size()[1] > 9",
    "not (L['a'].size()[0] == 6 and L['b'].size()[0] < -L['b'].size()[1] + 40)",
)


def evaluate(steps: Any, shapes: list[tuple[int, ...]]) -> bool:
    """Run the program as entry.cpp does, through an entry that checks nothing else."""
    from fusec.runtime import native

    found = native.types(wait=True)
    assert found is not None

    def function(a: object, b: object) -> None:
        pass

    entry = found.Entry(
        function,
        function.__code__,
        function,
        function,
        ("code", (), ()),
        (),
        ("a", "b"),
        2,
        0,
        0,
        False,
        False,
        None,
        (),
        (),
        None,
        (),
        (),
        (),
        (),
        steps,
        native.exchange(),
    )
    return bool(entry.fits(*(torch.empty(shape) for shape in shapes)))


@pytest.mark.parametrize("question", QUESTIONS)
def test_questions_about_sizes(question: str) -> None:
    steps = size_steps([question], ["a", "b"])
    both = size_steps([question, QUESTIONS[0]], ["a", "b"])
    rng = random.Random(question)
    answers = set()
    for _ in range(200):
        shapes = [(rng.randrange(60),), (rng.randrange(60), rng.randrange(60))]
        space = {"L": {"a": torch.empty(shapes[0]), "b": torch.empty(shapes[1])}}
        expected = eval(question, space)
        assert evaluate(steps, shapes) == expected, (question, shapes)
        assert evaluate(both, shapes) == (expected and shapes[0][0] >= 2)
        answers.add(expected)
    assert answers == {False, True}


@pytest.mark.parametrize(
    "question",
    [
        "L['a'].size()[0] / 2 == 3",
        "L['c'].size()[0] == 3",
        "L['a'].stride()[0] == 1",
        "L['self'].x.size()[0] == 3",
        "math.isnan(L['a'])",
        "L['a'].size()[0] == 3.0",
        "L['a'].size()[0] ** 2 == 9",
        "L['a'].size()[i] == 9",
        "L['a'].size()[0] in (3, 4)",
        "L['a'].size()[0]",
        "==",
        "True",
    ],
)
def test_questions_that_are_not_understood(question: str) -> None:
    with pytest.raises(UnknownQuestion):
        size_steps([question], ["a", "b"])


def test_integers_do_not_wrap() -> None:
    text = " * ".join(["L['a'].size()[0]"] * 20)
    steps = size_steps([f"{text} > 0"], ["a", "b"])
    assert evaluate(steps, [(8,), (1, 1)])
    assert not evaluate(steps, [(9,), (1, 1)])  # 9 ** 20 is no 64-bit integer: does not fit
