"""The short path of a call: every change that matters is noticed."""

from __future__ import annotations

import contextlib
import gc
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.capture.fast_path.compiled_code import fast_code
from fusec.capture.guards import tree as guard_tree
from support.calls import add_relu, native_part, same, short, strict_calls, tensors
from support.collector import looking_at_what_is_new

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here

pytestmark = pytest.mark.timeout(300)


# --- what is noticed: tensors ---------------------------------------------------------------


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "change",
    [
        lambda a, b: (a.double(), b),
        lambda a, b: (a.to(torch.float16), b.to(torch.float16)),
        lambda a, b: (a.int(), b.int()),
        lambda a, b: (a[:32], b[:32]),
        lambda a, b: (a.reshape(8, 8), b.reshape(8, 8)),
        lambda a, b: (torch.randn(128)[::2], b),
        lambda a, b: (a, b[:1].expand(64)),
        lambda a, b: (a, a),
        lambda a, b: (a, nn.Parameter(b)),
        lambda a, b: (a, b.requires_grad_()),
        lambda a, b: (a, 2.0),
        lambda a, b: (a, torch.randn(64, device="meta")),
        lambda a, b: (a, b.to_sparse()),
        lambda a, b: (torch.randn(64, dtype=torch.complex64), b),
    ],
    ids="double half int shorter matrix strided expanded same parameter grad number meta sparse "
    "complex".split(),
)
def test_changes_of_tensors(change: Callable[..., Any]) -> None:
    def function(a: Any, b: Any) -> Any:
        return a * 2 + b

    a, b = tensors()
    compiled = short(function, a, b)
    served = compiled.short_calls
    changed = change(a, b)
    try:
        expected = function(*changed)
    except (RuntimeError, NotImplementedError):
        with pytest.raises(Exception):  # noqa: B017, PT011
            compiled(*changed)
        return
    actual = compiled(*changed)
    assert compiled.short_calls == served
    assert actual.dtype == expected.dtype
    assert actual.requires_grad == expected.requires_grad
    assert actual.device == expected.device
    if expected.device.type == "cpu":
        torch.testing.assert_close(actual, expected)


class Doubled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is torch.Tensor.relu else result


def test_subclasses() -> None:
    a, b = tensors()
    compiled = short(add_relu, a, b)
    served = compiled.short_calls
    one = a.as_subclass(Doubled)
    # TorchDynamo returns a plain tensor here, with any backend.
    torch.testing.assert_close(compiled(one, b), add_relu(one, b).as_subclass(torch.Tensor))
    assert compiled.short_calls == served


def test_marks() -> None:
    a, b = tensors()
    compiled = short(add_relu, a, b)
    served = compiled.short_calls
    c, d = tensors()
    torch._dynamo.mark_dynamic(c, 0)
    torch._dynamo.mark_dynamic(d, 0)
    same(compiled(c, d), add_relu(c, d))
    assert compiled.short_calls == served
    assert len(compiled.graphs) == 2


# --- what is noticed: the state of torch ------------------------------------------------------


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def makes_numbers(a: torch.Tensor) -> torch.Tensor:
    return a @ a + torch.ones(4, 4).sum() + torch.is_grad_enabled()


@pytest.mark.parametrize(
    "state",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        torch.no_grad,
        torch.inference_mode,
        lambda: default_dtype(torch.float64),
        lambda: default_device("meta"),
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
    ],
    ids="autocast no_grad inference dtype device saved".split(),
)
def test_changes_of_state(state: Callable[[], Any]) -> None:
    a = torch.randn(4, 4)
    compiled = short(makes_numbers, a)
    served = compiled.short_calls
    for _ in range(2):
        with state():
            try:
                expected = makes_numbers(a)
            except RuntimeError:
                with pytest.raises(Exception):  # noqa: B017, PT011
                    compiled(a)
                break
            actual = compiled(a)
        assert actual.dtype == expected.dtype
        assert actual.is_inference() == expected.is_inference()
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    before = compiled.short_calls
    if compiled.graphs:
        assert before <= served + 1
    same(compiled(a), makes_numbers(a))
    assert compiled.short_calls == before + 1


def test_gradients_are_recorded_when_they_are_asked_for() -> None:
    a, b = (t.requires_grad_() for t in tensors())
    with torch.no_grad():
        compiled = short(add_relu, a, b)
        assert not compiled(a, b).requires_grad
    out = compiled(a, b)
    assert out.requires_grad
    out.sum().backward()
    c, d = a.detach().requires_grad_(), b.detach().requires_grad_()
    add_relu(c, d).sum().backward()
    same(a.grad, c.grad)
    with torch.no_grad():
        assert not compiled(a, b).requires_grad


def test_deterministic_algorithms_and_threads() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        return a + float(torch.are_deterministic_algorithms_enabled())

    a = torch.randn(8)
    compiled = short(function, a)
    torch.use_deterministic_algorithms(True)
    try:
        same(compiled(a), function(a))
    finally:
        torch.use_deterministic_algorithms(False)
    same(compiled(a), function(a))


def test_modes() -> None:
    class Negate(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            return -result if func is torch.Tensor.relu else result

    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    a, b = tensors()
    compiled = short(add_relu, a, b)
    served = compiled.short_calls
    with Negate():
        same(compiled(a, b), add_relu(a, b))
    with Watch():
        same(compiled(a, b), add_relu(a, b))
    assert compiled.short_calls == served
    assert seen
    same(compiled(a, b), add_relu(a, b))


def test_fake_tensors_and_transforms() -> None:
    a, b = tensors((4, 8), (4, 8))
    compiled = short(add_relu, a, b)
    one = short(add_relu, a[0].clone(), b[0].clone())
    served = one.short_calls, compiled.short_calls
    same(torch.vmap(one)(a, b), add_relu(a, b))
    mine = torch.func.grad(lambda x: compiled(x, b).sum())(a)
    same(mine, torch.func.grad(lambda x: add_relu(x, b).sum())(a))
    with torch._subclasses.FakeTensorMode() as mode:
        fake = compiled(mode.from_tensor(a), mode.from_tensor(b))
    assert isinstance(fake, torch._subclasses.FakeTensor)
    assert (one.short_calls, compiled.short_calls) == served


def test_inside_of_other_compiled_functions() -> None:
    a, b = tensors()
    inner = short(add_relu, a, b)

    def outer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return inner(a, b) * 2

    whole = fusec.compile(outer)
    same(whole(a, b), outer(a, b))
    same(whole(a, b), outer(a, b))
    assert len(whole.kernels) == 1  # the inner function was taken in

    def broken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a = a * 2
        torch._dynamo.graph_break()
        return inner(a, b) * 2

    for _ in range(3):
        same(torch.compile(broken, backend="fusec")(a, b), broken(a, b))

    @torch.compiler.disable
    def apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return inner(a, b)

    outside = fusec.compile(lambda a, b: apart(a * 2, b) + 1)
    for _ in range(3):
        same(outside(a, b), add_relu(a * 2, b) + 1)
    with contextlib.suppress(RuntimeError):  # torch refuses to trace what is compiled
        traced = torch.fx.experimental.proxy_tensor.make_fx(inner)(a, b)
        c, d = tensors()
        same(traced(c, d), add_relu(c, d))


def test_graph_breaks() -> None:
    said = []

    def function(a: torch.Tensor) -> torch.Tensor:
        a = a + 1
        said.append(float(a.sum()))
        return a * 2

    compiled = fusec.compile(function)
    for i in range(1, 4):
        a = torch.randn(8)
        same(compiled(a), (a + 1) * 2)
        assert len(said) == i
    assert compiled.short_calls == 0
    assert compiled.breaks


# --- what is noticed: names -------------------------------------------------------------------

FACTOR = 2
WEIGHT = torch.ones(64)


def helper(a: torch.Tensor) -> torch.Tensor:
    return a + 1


def uses_globals(a: torch.Tensor) -> torch.Tensor:
    return helper(a) * FACTOR + WEIGHT


def test_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = tensors((64,))
    compiled = short(uses_globals, a)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    same(compiled(a), uses_globals(a))
    monkeypatch.setitem(globals(), "helper", lambda a: a - 1)
    same(compiled(a), uses_globals(a))
    monkeypatch.setitem(globals(), "WEIGHT", torch.full((64,), 5.0))
    same(compiled(a), uses_globals(a))
    globals()["WEIGHT"].add_(1)
    same(compiled(a), uses_globals(a))
    monkeypatch.setitem(globals(), "WEIGHT", torch.ones(64, dtype=torch.float64))
    same(compiled(a), uses_globals(a))


def calls_torch(a: torch.Tensor) -> torch.Tensor:
    return torch.relu(a) + torch.nn.functional.silu(a)


def test_functions_of_modules() -> None:
    (a,) = tensors((64,))
    compiled = short(calls_torch, a)
    before = torch.relu, torch.nn.functional.silu
    served = compiled.short_calls
    try:
        torch.relu = torch.sigmoid
        same(compiled(a), calls_torch(a))
        torch.relu = before[0]
        torch.nn.functional.silu = torch.cos
        same(compiled(a), calls_torch(a))
    finally:
        torch.relu, torch.nn.functional.silu = before
    assert compiled.short_calls == served
    same(compiled(a), calls_torch(a))


def test_closures() -> None:
    factor, shift = 2.0, torch.ones(64)

    def function(a: torch.Tensor) -> torch.Tensor:
        return a * factor + shift

    (a,) = tensors((64,))
    compiled = short(function, a)
    factor = 3.0
    same(compiled(a), function(a))
    shift = torch.full((64,), 4.0)
    same(compiled(a), function(a))
    shift.add_(1)
    same(compiled(a), function(a))


def test_objects() -> None:
    class Box:
        def __init__(self) -> None:
            self.scale, self.shift = 2.0, torch.ones(64)

        def method(self, a: torch.Tensor) -> torch.Tensor:
            return a * self.scale + self.shift

    box = Box()
    (a,) = tensors((64,))
    compiled = short(box.method, a)
    box.scale = 5.0
    same(compiled(a), box.method(a))
    box.shift = torch.zeros(64)
    same(compiled(a), box.method(a))
    other = short(lambda a, b: a * b["x"] + b["n"], a, {"x": a, "n": 3})
    same(other(a, {"x": a, "n": 4}), a * a + 4)
    same(other(a, {"x": a + 1, "n": 3}), a * (a + 1) + 3)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))
        self.register_buffer("mean", torch.zeros(8))
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight * self.scale + self.mean
        return x if self.training else x.relu()


def hook(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out + 100


# What happens to a module; hooks inside of a compiled module are not guarded by TorchDynamo.
_CHANGES: dict[str, Callable[[nn.Module, Any], object]] = {
    "eval": lambda m, inner: m.eval(),
    "attribute": lambda m, inner: setattr(inner, "scale", 3.0),
    "parameter": lambda m, inner: setattr(inner, "weight", nn.Parameter(torch.randn(8))),
    "data": lambda m, inner: inner.weight.data.mul_(3),
    "buffer data": lambda m, inner: inner.mean.add_(1),
    "buffer": lambda m, inner: setattr(inner, "mean", torch.ones(8)),
    "forward": lambda m, inner: setattr(inner, "forward", lambda x: x + 1),
    "double": lambda m, inner: m.double(),
}
_HOOKS: dict[str, Callable[[nn.Module, Any], object]] = {
    "hook": lambda m, inner: m.register_forward_hook(hook),
    "pre-hook": lambda m, inner: m.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
}


@pytest.mark.parametrize("name", [*_CHANGES, *_HOOKS])
def test_modules(name: str) -> None:
    module, x = Layer(), torch.randn(8)
    with torch.no_grad():
        compiled = short(module, x)
        (_CHANGES | _HOOKS)[name](module, module)
        for _ in range(2):
            same(compiled(x), module(x))


@pytest.mark.parametrize("name", ["eval", "parameter", "forward"])
def test_modules_in_modules(name: str) -> None:
    module, x = nn.Sequential(Layer(), nn.SiLU()), torch.randn(8)
    with torch.no_grad():
        compiled = short(module, x)
        _CHANGES[name](module, module[0])
        for _ in range(2):
            same(compiled(x), module(x))


def test_global_hooks() -> None:
    module, x = Layer(), torch.randn(8)
    with torch.no_grad():
        compiled = short(module, x)
        served = compiled.short_calls
        handle = nn.modules.module.register_module_forward_hook(
            lambda m, args, out: out + 1 if type(m) is Layer else out
        )
        try:
            same(compiled(x), module(x))
        finally:
            handle.remove()
        assert compiled.short_calls == served
        same(compiled(x), module(x))
        assert compiled.short_calls == served + 1


def test_a_class_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = Layer(), torch.randn(8)
    with torch.no_grad():
        compiled = short(module, x)
        monkeypatch.setattr(Layer, "forward", lambda self, x: x - 1)
        same(compiled(x), module(x))


def test_training_a_module() -> None:
    module, other = Layer(), Layer()
    other.load_state_dict(module.state_dict())
    compiled = fusec.compile(module)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (module, other)]
    for _ in range(4):
        x = torch.randn(5, 8)
        compiled(x).square().mean().backward()
        other(x).square().mean().backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        same(module.weight, other.weight)


# --- what is noticed: the function itself, and TorchDynamo ---------------------------------------


def test_code_is_replaced() -> None:
    def function(a: torch.Tensor) -> torch.Tensor:
        return a + 1

    def other(a: torch.Tensor) -> torch.Tensor:
        return a - 1

    (a,) = tensors((8,))
    compiled = short(function, a)
    function.__code__ = other.__code__
    same(compiled(a), a - 1)


def test_reset_and_stance() -> None:
    a, b = tensors()
    compiled = short(add_relu, a, b)
    served = compiled.short_calls
    with torch.compiler.set_stance("force_eager"):
        same(compiled(a, b), add_relu(a, b))
    assert compiled.short_calls == served
    compiled(a, b)
    assert compiled.short_calls == served + 1
    torch._dynamo.reset()
    graphs = len(compiled.graphs)
    same(compiled(a, b), add_relu(a, b))
    assert compiled.short_calls == served + 1
    assert len(compiled.graphs) == graphs + 1
    compiled(a, b)
    assert compiled.short_calls == served + 2
    assert len(compiled._shortcut._known) == 1


def test_guarded_objects_may_go() -> None:
    def function(a: torch.Tensor, module: nn.Module) -> torch.Tensor:
        return module(a)

    (a,) = tensors((8,))
    compiled = fusec.compile(function)
    with torch.no_grad(), looking_at_what_is_new():
        for _ in range(6):
            module = Layer()
            same(compiled(a, module), module(a))
            same(compiled(a, module), module(a))
            del module
            gc.collect()


def test_tensors_are_not_kept_alive() -> None:
    compiled = short(add_relu, *tensors())
    a, b = tensors()
    out = compiled(a, b)
    watched = [weakref.ref(each) for each in (a, b, out)]
    del a, b, out
    assert [each() for each in watched] == [None] * 3


def test_names_in_the_globals_go_with_the_code() -> None:
    before = set(globals())
    compiled = short(calls_torch, torch.randn(8))

    def names() -> set[str]:
        return {name for name in globals() if "_direct" in name} - before

    first = names()
    assert len(first) == 1
    torch._dynamo.reset()
    compiled(torch.randn(8))
    assert len(names()) == 1
    assert names() != first


def test_a_name_stays_while_its_code_may_run() -> None:
    """Another thread may be about to run what this one drops."""
    compiled = short(calls_torch, torch.randn(8))
    (known,) = compiled._shortcut._known
    made = fast_code(known.code, calls_torch, compiled.graphs[0])
    function, name = made.function, made.name
    del made
    assert name in globals()
    x = torch.randn(8)
    same(function(x), calls_torch(x))
    del function
    assert name not in globals()


def test_several_specializations() -> None:
    compiled = fusec.compile(add_relu, dynamic=False)
    shapes = [(8,), (9,), (4, 4)]
    for shape in shapes:
        compiled(*tensors(shape, shape))
    served = compiled.short_calls
    for _ in range(3):
        for shape in shapes:
            a, b = tensors(shape, shape)
            same(compiled(a, b), add_relu(a, b))
    assert compiled.short_calls == served + 9
    assert len(compiled.graphs) == 3
    assert len(compiled.recompiles) == 2
    assert any("float32 tensor of 8" in guard.text for guard in compiled.guards)


def test_threads() -> None:
    compiled = fusec.compile(add_relu)
    wrong: list[object] = []
    inputs = [tensors((n, 32), (n, 32)) for n in (4, 5, 6, 7)]
    expected = [add_relu(*each) for each in inputs]

    def work() -> None:
        for i in range(200):
            given, wanted = inputs[i % 4], expected[i % 4]
            if not torch.equal(compiled(*given), wanted):
                wrong.append(i)

    for each in inputs:
        compiled(*each)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert compiled.short_calls > 0


def test_edited_kernels_are_launched() -> None:
    compiled = short(add_relu, *tensors())
    (kernel,) = compiled.kernels.values()
    a, b = tensors()
    text = kernel.source
    edited = text.replace("a[i0] + b[i0]", "a[i0] - b[i0]")
    assert edited != text
    kernel.use(edited)
    served = compiled.short_calls
    same(compiled(a, b), (a - b).relu())
    assert compiled.short_calls == served + 1
    kernel.revert()
    same(compiled(a, b), add_relu(a, b))


def test_inputs_are_kept_where_asked() -> None:
    compiled = fusec.compile(add_relu, keep_inputs=True)
    for _ in range(3):
        a, b = tensors()
        compiled(a, b)
        kept = compiled.graphs[0].last_inputs
        assert kept is not None
        assert [id(each) for each in kept] == [id(a), id(b)]
        parts = compiled.graphs[0].parts[0].last_inputs
        assert parts is not None
        assert [id(each) for each in parts] == [id(a), id(b)]
    assert compiled.short_calls >= 2
    assert compiled.graphs[0].verify().ok
    assert compiled.graphs[0].last_inputs is kept


def test_an_unknown_guard_leaves_the_tree_whole() -> None:
    class Unknown:
        def verbose_code_parts(self) -> list[str]:
            return ["something new"]

    root = types.SimpleNamespace(
        get_epilogue_lambda_guards=list, get_leaf_guards=lambda: [Unknown()]
    )
    with pytest.raises(guard_tree.NotUnderstood):
        guard_tree.cheap_checks(root, {}, {})


def test_torch_compile_calls_the_program_itself() -> None:
    compiled = torch.compile(add_relu, backend="fusec")
    for _ in range(3):
        a, b = tensors()
        same(compiled(a, b), add_relu(a, b))
