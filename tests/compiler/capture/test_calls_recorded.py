"""The short path of calls that record for autograd."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.capture.fast_path.direct import applied_function
from support.calls import (
    chain,
    is_recorded,
    leaf,
    native_part,
    same,
    short,
    slopes,
    strict_calls,
)

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here

pytestmark = pytest.mark.timeout(300)


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


def test_gradients_go_past_what_AOTAutograd_generated() -> None:
    """torch 2.12 and later always stash a context of variables where gradients are asked for."""
    a, b = leaf(), leaf()
    compiled = short(chain, a, b)
    slopes(compiled, a, b)  # the first time backward is compiled
    function = compiled.graphs[0].recorded_plan.function  # type: ignore[union-attr]
    asked: list[object] = []
    before = function._backward_impl if hasattr(function, "_backward_impl") else None
    own = function.compiled_bw._torchdynamo_orig_callable
    function.compiled_bw = _Seen(own, asked)
    if before is not None:
        function._backward_impl = staticmethod(_fail)
    same(slopes(compiled, a, b), slopes(chain, a, b))
    assert asked == ["called"]


class _Seen:
    """A backward part as TorchDynamo wraps it, to be called within its wrapper alone."""

    def __init__(self, run: Callable[..., Any], asked: list[object]) -> None:
        self._run, self._asked = run, asked

    def _torchdynamo_orig_callable(self, inputs: list[Any]) -> Any:
        self._asked.append("called")
        return self._run(inputs)


def _fail(*_: object) -> None:
    raise AssertionError("AOTAutograd's own backward was called")


_SEEN_IN = contextvars.ContextVar("_SEEN_IN", default="nowhere")


@torch.library.custom_op("fusec_tests::where_called", mutates_args=())
def where_called(a: torch.Tensor) -> torch.Tensor:
    return a + (3.0 if _SEEN_IN.get() == "by the caller" else 0.0)


where_called.register_fake(torch.empty_like)


class _Where(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
        return a * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        found: torch.Tensor = where_called(gradient)
        return found


def test_variables_of_who_asks_for_gradients() -> None:
    """As a device's thread sees them, which has none of its own: they are put where it looks."""

    def function(a: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Where.apply(a.sin())  # type: ignore[no-untyped-call]
        return found.cos()

    def slope() -> torch.Tensor:
        out = compiled(a)
        given = (out,), (torch.ones(64),), False, False, (a,)
        engine = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
        (found,) = engine.run_backward(*given, allow_unreachable=True, accumulate_grad=False)
        return found  # type: ignore[no-any-return]

    a = leaf()
    compiled = short(function, a)
    expected = slope()
    there = contextvars.copy_context()
    there.run(_SEEN_IN.set, "by the caller")
    torch._C._stash_obj_in_tls("context", there)
    try:
        same(slope(), expected + 3 * a.detach().cos())
    finally:
        torch._C._stash_obj_in_tls("context", None)
    same(slope(), expected)


def flat(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).exp().view(-1)


def flat_part(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * b).sin().view(-1)[2:]


@pytest.mark.parametrize("function", [flat, flat_part])
def test_a_result_that_lies_in_something_computed_within(function: Callable[..., Any]) -> None:
    compiled = short(function, leaf(), leaf())
    assert is_recorded(compiled)
    a, b = leaf(), leaf()
    out = compiled(a, b)
    assert not out._is_view()
    same(out, function(a, b))
    same(slopes(compiled, a, b), slopes(function, a, b))


def test_an_update_of_such_a_result_is_seen() -> None:
    """Eager refuses it where the gradient needs what was updated; a wrong gradient is worse."""
    compiled = short(flat, leaf(), leaf())
    for call in (flat, compiled):
        out = call(leaf(), leaf())
        with torch.no_grad():
            out.mul_(3)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.sample(3)
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


@pytest.mark.sample(3)
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


def test_what_kernels_update_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.call import updates

    copied: list[int] = []
    plain = updates.copy_all
    monkeypatch.setattr(
        updates, "copy_all", lambda pairs: (copied.append(len(pairs)), plain(pairs))
    )
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    compiled = fusec.compile(module)
    before = {name: (b.clone(), b._version) for name, b in module.named_buffers()}
    for _ in range(3):
        compiled(torch.randn(2, 3, 8, 8)).square().sum().backward()
    assert is_recorded(compiled)
    assert not copied
    for name, buffer in module.named_buffers():
        assert not torch.equal(buffer, before[name][0])
        assert buffer._version >= before[name][1] + 3


def test_a_gradient_that_needs_what_was_updated_since_is_refused() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    compiled = fusec.compile(module)
    x = torch.randn(2, 3, 8, 8)
    compiled(x).sum().backward()
    scale = torch.randn(4, requires_grad=True)
    product = scale * module[1].running_mean  # type: ignore[operator]
    compiled(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


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


class Mixed(nn.Module):
    """A product in bfloat16, one that is kept in float32, and updated statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high, self.norm = nn.Linear(24, 16), nn.Linear(16, 8), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.tanh(self.low(x)))
        with torch.autocast("cpu", enabled=False):
            return self.high(x.float()).sin()


@pytest.mark.parametrize("within", [True, False], ids=["backward within", "backward outside"])
def test_recorded_under_autocast(within: bool) -> None:
    """Operators have had their inputs converted: what is float32 by now is to stay so."""
    torch.manual_seed(0)
    module = Mixed()
    other = copy.deepcopy(module)
    compiled = fusec.compile(module)
    for _ in range(3):
        x = torch.randn(32, 24)
        found = []
        for call, owner in ((compiled, module), (other, other)):
            owner.zero_grad(set_to_none=True)
            given = x.clone().requires_grad_()
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.autocast("cpu", torch.bfloat16))
                out = call(given)
                assert out.dtype == torch.float32
                if not within:
                    stack.close()
                out.square().sum().backward()
            found.append([out, given.grad, *[p.grad for p in owner.parameters()]])
        for ours, theirs in zip(*found, strict=True):
            assert ours.dtype == theirs.dtype
            assert (ours - theirs).norm() <= 0.02 * theirs.norm()
    assert is_recorded(compiled)
    for ours, theirs in zip(module.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-3)


def test_what_is_float32_under_autocast_is_multiplied_so() -> None:
    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.sigmoid(x.float() @ w)

    compiled = fusec.compile(product, matmul="extern")
    for _ in range(3):
        x, w = torch.randn(40, 64, requires_grad=True), torch.randn(64, 40, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            out = compiled(x, w)
            ours = torch.autograd.grad(out.sum(), (x, w))
        exact = torch.sigmoid(x.double() @ w.double())
        theirs = torch.autograd.grad(exact.sum(), (x, w))
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
        for mine, true in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, true, rtol=1e-4, atol=1e-4)
    assert is_recorded(compiled)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class _AppliedItsWay(_Doubled):
    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        return super().apply(*inputs)


def test_whose_apply_a_method_is() -> None:
    """It is one of C's from torch 2.14 on, of which only the class it is bound to tells."""
    assert applied_function(_Doubled.apply) is _Doubled
    assert applied_function(_AppliedItsWay.apply) is None
    others: list[Any] = [_Doubled.mro, len, torch.ones(1).add, "".join, _Doubled(), None]
    assert [applied_function(each) for each in others] == [None] * len(others)
