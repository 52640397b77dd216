"""Python around tensor code: what TorchDynamo captures must mean the same when compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from support.compare import difference


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def agree(function: Callable[..., Any], *args: Any, runs: int = 2, **options: Any) -> Any:
    """Call eager and compiled alternately on copies; return the compiled function."""
    built = fusec.compile(function, **options)
    for _ in range(runs):
        wanted = function(*[_copy(a) for a in args])
        got = built(*[_copy(a) for a in args])
        assert not difference(got, wanted), difference(got, wanted)
    return built


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


X = torch.linspace(-2, 2, 24).reshape(4, 6)


# -- closures, mutation, containers ---------------------------------------------------------------


def test_closures_and_nonlocal() -> None:
    scale, calls = torch.tensor(3.0), 0

    def function(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        inner = lambda y: y * scale  # noqa: E731
        return inner(x).sin() + calls

    built = fusec.compile(function)
    assert torch.allclose(built(X), (X * 3).sin() + 1)
    scale = torch.tensor(5.0)
    assert torch.allclose(built(X), (X * 5).sin() + 2)
    assert calls == 2


def test_lists_and_dicts_change() -> None:
    def function(x: torch.Tensor, store: dict[str, Any]) -> torch.Tensor:
        items = [x.sin(), x.cos()]
        items.append(items[0] * items[1])
        items[0] = items.pop() + 1
        store["mean"] = items[0].mean()
        store.setdefault("all", []).append(items[1])
        return torch.stack(items).sum(0)

    plain: dict[str, Any] = {}
    mine: dict[str, Any] = {}
    built = fusec.compile(function)
    for _ in range(3):
        assert not difference(built(X, mine), function(X, plain))
        assert not difference(mine, plain)


def test_attributes_and_buffers_of_a_module_change() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(6))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.total += x.mean(0)
            self.last = x.sum()
            return x * self.total

    plain, mine = Counter(), Counter()
    built = fusec.compile(mine, dynamic=False)
    for _ in range(3):
        assert not difference(built(X), plain(X))
        assert not difference((mine.total, mine.last), (plain.total, plain.last))
    assert mine.calls == 3


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclass
class Box:
    value: torch.Tensor
    name: str = "box"


def test_named_tuples_and_dataclasses() -> None:
    def function(pair: Pair, box: Box) -> tuple[Pair, Box]:
        return Pair(pair.first + 1, box.value.sin()), Box(pair.second * 2, box.name + "!")

    wanted = function(Pair(X, X * 2), Box(X))
    got = fusec.compile(function)(Pair(X, X * 2), Box(X))
    assert type(got[0]) is Pair
    assert not difference(tuple(got[0]), tuple(wanted[0]))
    assert got[1].name == "box!"
    assert not difference(got[1].value, wanted[1].value)


def test_generators_and_comprehensions() -> None:
    def powers(x: torch.Tensor, n: int) -> Iterator[torch.Tensor]:
        for k in range(n):
            yield x**k

    def function(x: torch.Tensor) -> torch.Tensor:
        total = sum(powers(x, 4))
        parts = {k: v for k, v in enumerate(x.unbind(0)) if k % 2}
        return total * torch.stack([*parts.values()]).sum()  # type: ignore[no-any-return]

    agree(function, X)


def test_context_managers() -> None:
    seen = []

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[None]:
        seen.append(name)
        try:
            yield
        finally:
            seen.append(f"/{name}")

    def function(x: torch.Tensor) -> torch.Tensor:
        with noted("a"):
            y = x.sin()
        with torch.no_grad():
            z = y * 2
        return y + z

    x = X.clone().requires_grad_()
    built = fusec.compile(function)
    y = built(x)
    assert seen == ["a", "/a"]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert not difference(gradient, X.cos())


def test_exceptions_inside_and_out() -> None:
    def function(x: torch.Tensor, fail: str) -> torch.Tensor:
        try:
            if fail == "caught":
                raise ValueError("inside")
            y = x.sin()
        except ValueError:
            y = x.cos()
        finally:
            y = y * 2 if fail != "out" else x
        if fail == "out":
            raise KeyError("gone")
        return y

    built = agree(lambda x: function(x, "no"), X)
    assert len(built.graphs) == 1
    agree(lambda x: function(x, "caught"), X)
    with pytest.raises(KeyError, match="gone"):
        fusec.compile(function)(X, "out")


def test_recursion() -> None:
    def function(x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if depth == 0 else function(x.sin() + depth, depth - 1)

    assert not difference(fusec.compile(function)(X, 5), function(X, 5))


def test_methods_properties_and_super() -> None:
    class Base(nn.Module):
        @property
        def gain(self) -> float:
            return 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.gain

    class Child(Base):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).sin() + self._more(x)

        @staticmethod
        def _more(x: torch.Tensor) -> torch.Tensor:
            return x.abs()

    agree(Child(), X)


def test_breaks_go_on_correctly(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor, log: list[float]) -> torch.Tensor:
        y = x.sin()
        log.append(y.sum().item())
        print("between")
        if y.sum() > 0:
            y = y.cos()
        else:
            y = y * 3
        for k in range(2):
            y = y + k
            print(k)
        return y

    for x in (X + 0.1, X + 0.3, X - 0.3):
        plain, mine = [], []  # type: list[float], list[float]
        wanted = function(x, plain)
        printed = capsys.readouterr().out
        built = fusec.compile(function)
        got = built(x, mine)
        assert capsys.readouterr().out == printed
        assert not difference(got, wanted)
        assert mine == pytest.approx(plain, abs=1e-5)
        assert built.breaks


# -- autograd -------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    """x³, with a gradient that is twice the right one, to tell it apart."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = context.saved_tensors
        return gradient * 6 * x**2


def test_custom_autograd_functions() -> None:
    x = X.clone().requires_grad_()
    y = fusec.compile(lambda x: Cube.apply(x.sin()).sum())(x)
    (gradient,) = torch.autograd.grad(y, x)
    assert not difference(gradient, 6 * X.sin() ** 2 * X.cos())


def test_hooks() -> None:
    seen = []
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2))
    model[0].register_forward_hook(lambda m, args, out: out * 2)
    model[2].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    model[0].weight.register_hook(lambda g: seen.append(g.shape))
    agree(model, X)
    fusec.compile(model)(X).sum().backward()
    assert seen == [torch.Size([5, 6])]


def test_tensor_hooks_inside() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda g: g * 10)
        return y * 2

    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(fusec.compile(function)(x).sum(), x)
    assert not difference(gradient, X.cos() * 20)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    layer = nn.Linear(6, 6)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype):
            y = layer(x).relu()
        return y, y.float().softmax(-1)

    # Where the processor multiplies halves slowly, less is rounded than in eager.
    found, eager = fusec.compile(function)(X), function(X)
    y = F.linear(X.double(), layer.weight.double(), layer.bias.double()).relu()
    for got, plain, true in zip(found, eager, (y, y.softmax(-1)), strict=True):
        assert got.dtype == plain.dtype
        assert (got - true).abs().max() <= 1.01 * (plain - true).abs().max() + 1e-6

    def outside(x: torch.Tensor) -> torch.Tensor:
        return layer(x).exp()

    built = fusec.compile(outside)
    with torch.autocast("cpu", dtype):
        assert built(X).dtype == outside(X).dtype
    assert built(X).dtype == torch.float32


@pytest.mark.parametrize("train", [False, True])
def test_a_region_without_autocast_inside_of_one_with_it(train: bool) -> None:
    # The product stays float32: nothing may convert it when the compiled graph runs, which is
    # while autocast is on. (Rotary embeddings are computed so.)
    def function(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            angles = x.float() @ x.float().T
        return (angles * 8).cos()

    for compiled in (
        fusec.compile(function),
        torch.compile(function, backend="fusec"),
    ):
        x = torch.randn(16, 32)
        for _ in range(2):  # the second call may take another way
            given, again = (x.clone().requires_grad_(train) for _ in range(2))
            with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(train):
                wanted, got = function(given), compiled(again)
            torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
            if train:
                wanted.sum().backward()
                got.sum().backward()
                assert given.grad is not None
                assert again.grad is not None
                torch.testing.assert_close(again.grad, given.grad, rtol=1e-2, atol=1e-2)


def test_inference_mode_and_no_grad() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU())
    built = fusec.compile(model)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            wanted, got = model(X), built(X)
        assert not difference(got, wanted)
        assert got.requires_grad == wanted.requires_grad
        assert got.is_inference() == wanted.is_inference()


def test_double_backward_is_refused_cleanly() -> None:
    x = X.clone().requires_grad_()
    y = fusec.compile(lambda x: (x.sin() ** 3).sum())(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    assert not difference(first.detach(), 3 * X.sin() ** 2 * X.cos())
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first.sum(), x)


def test_gradients_through_views_and_in_place() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, ::2] *= 3
        y.t()[1].add_(2)
        return y.view(-1)[3:20].exp().sum()

    x, z = X.clone().requires_grad_(), X.clone().requires_grad_()
    (got,) = torch.autograd.grad(fusec.compile(function)(x), x)
    (wanted,) = torch.autograd.grad(function(z), z)
    assert not difference(got, wanted)


# -- operators and tensors of the user's own ------------------------------------------------------


@torch.library.custom_op("fusec_tests::rolled", mutates_args=())
def rolled(x: torch.Tensor, by: int) -> torch.Tensor:
    return torch.roll(x, by, -1)


@rolled.register_fake
def _(x: torch.Tensor, by: int) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("fusec_tests::bump", mutates_args=("x",))
def bump(x: torch.Tensor, by: float) -> None:
    x.add_(by)


def test_custom_operators_are_extern_calls() -> None:
    built = agree(lambda x: rolled(x.sin(), 2) * 2, X)
    assert [e.name for e in built.graphs[0].externs] == ["fusec_tests.rolled.default"]


def test_custom_operators_that_mutate() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        bump(y, 2.0)
        return y * y

    agree(function, X)

    def given(x: torch.Tensor) -> torch.Tensor:
        bump(x, 1.5)
        return x * 2

    mine, plain = X.clone(), X.clone()
    assert not difference(fusec.compile(given)(mine), given(plain))
    assert not difference(mine, plain)


def test_subclasses_that_torch_flattens() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2 + 1).sum(0)

    given = TwoTensor(X, X * 3)
    wanted = function(given)
    got = fusec.compile(function)(given)
    assert type(got) is TwoTensor
    assert not difference((got.a, got.b), (wanted.a, wanted.b))


def test_parameters_and_subclasses_without_behavior() -> None:
    class Named(torch.Tensor):
        """A subclass that changes nothing."""

    agree(lambda x: x.sin() + 1, nn.Parameter(X))
    assert not difference(
        fusec.compile(lambda x: x * 2)(X.as_subclass(Named)).as_subclass(torch.Tensor), X * 2
    )


def test_vmap_and_functional_gradients() -> None:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().sum()

    def function(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))
        return each(w, x)  # type: ignore[no-any-return]

    agree(function, torch.randn(6), X)


def test_control_flow_operators() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))  # type: ignore[no-any-return]

    for x in (X + 1, X - 1):
        built = fusec.compile(function)
        assert not difference(built(x), function(x))


# -- optimizers -----------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "sgd foreach": lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adam amsgrad foreach": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "adamw capturable": lambda p: torch.optim.AdamW(p, torch.tensor(0.01), capturable=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01, foreach=True),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps(name: str) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    plain, mine = (OPTIMIZERS[name](m.parameters()) for m in models)

    built = fusec.compile(mine.step)
    for k in range(5):
        for model in models:
            model.zero_grad()
            F.mse_loss(model(X + k), torch.ones(4, 3)).backward()
        plain.step()
        built()
        weights = [list(m.parameters()) for m in models]
        assert not difference(weights[1], weights[0]), (k, difference(weights[1], weights[0]))
    assert built.kernels
    assert len(built.graphs) <= 3


def test_a_whole_training_step() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.AdamW(m.parameters(), 0.01) for m in models]

    def step(k: int, x: torch.Tensor) -> torch.Tensor:
        optimizers[k].zero_grad()
        loss = F.cross_entropy(models[k](x), torch.tensor([0, 1, 2, 1]))
        loss.backward()
        optimizers[k].step()
        return loss.detach()

    built = fusec.compile(step)
    for k in range(4):
        assert not difference(built(1, X + k), step(0, X + k))


@pytest.mark.slow
def test_every_operator_on_lists_is_taken_apart() -> None:
    from torch.testing._internal.common_methods_invocations import foreach_binary_op_db as binary
    from torch.testing._internal.common_methods_invocations import foreach_pointwise_op_db as three
    from torch.testing._internal.common_methods_invocations import foreach_unary_op_db as unary

    options: dict[str, Any] = {"noncontiguous": False, "num_input_tensors": [3]}
    done = set()
    for op in (*unary, *binary, *three):
        for sample in op.sample_inputs("cpu", torch.float32, **options):
            kind = (op.name, *(type(a) for a in sample.args))
            if kind in done:
                continue
            keywords = {k: v for k, v in sample.kwargs.items() if k != "disable_fastpath"}
            try:
                wanted = op.op(sample.input, *sample.args, **keywords)
            except RuntimeError:
                continue  # a sample that eager refuses
            if wanted is None:
                continue
            torch._dynamo.reset()
            built = fusec.compile(op.op, dynamic=False)
            got = built(sample.input, *sample.args, **keywords)
            assert not difference(got, wanted), (op.name, difference(got, wanted))
            assert not any("foreach" in e.name for g in built.graphs for e in g.externs), op.name
            done.add(kind)
    assert len({name for name, *_ in done}) > 35


# -- several devices ------------------------------------------------------------------------------


def test_a_meta_tensor_beside_a_real_one() -> None:
    def function(x: torch.Tensor, shape: torch.Tensor) -> torch.Tensor:
        return x.sin() * shape.shape[0] + (shape * 2).shape[1]

    agree(function, X, torch.empty(3, 5, device="meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_several_devices_in_one_graph() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x.sin() * 2
        b = a.cuda() + y.cos()
        return b.softmax(-1), b.cpu().exp() + a

    agree(function, X, X.cuda())
