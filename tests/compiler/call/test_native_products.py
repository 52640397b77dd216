"""Products between kernels, called natively: what they compute, and when Python calls them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import fusec
from fusec.call import native, native_layout
from fusec.call.native import products
from fusec.call.native_program import NativeProgram

Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def there() -> None:
    native.types(wait=True)
    if products.part.problem:
        pytest.skip(products.part.problem)
    torch._dynamo.reset()


def compiled_once(function: Function, *given: torch.Tensor) -> tuple[Function, bool]:
    """Return the compiled function after a call, and whether all of it is native."""
    compiled = fusec.compile(function)
    compiled(*given)
    parts = [part for graph in compiled.graphs for part in graph.parts]
    return compiled, all(isinstance(part.native(), NativeProgram) for part in parts)


def agrees(got: torch.Tensor, function: Function, *given: torch.Tensor) -> None:
    """Compare with eager: type, sizes, strides; and with float64."""
    eager = function(*given)
    assert (got.dtype, got.shape, got.stride()) == (eager.dtype, eager.shape, eager.stride())
    exact = function(*(each.double() for each in given))
    off = (got.double() - exact).abs().max() if got.numel() else torch.tensor(0.0)
    scale = exact.abs().max() if got.numel() else torch.tensor(1.0)
    assert off <= 4 * torch.finfo(got.dtype).eps * max(scale, 1.0) * 2


CASES: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "mm": (lambda x, y: (x @ y).relu(), ((33, 17), (17, 29))),
    "alone": (lambda x, y: x @ y, ((33, 17), (17, 29))),
    "transposed": (lambda x, y: (x.t() @ y.t()).relu(), ((17, 33), (29, 17))),
    "parts": (lambda x, y: (x[1:5] @ y[:, 2:7]).relu(), ((8, 9), (9, 12))),
    "every second": (lambda x, y: (x[::2, ::2] @ y).relu(), ((8, 10), (5, 12))),
    "expanded": (lambda x, y: torch.bmm(x.expand(3, 4, 5), y).relu(), ((4, 5), (3, 5, 6))),
    "bmm": (lambda x, y: torch.bmm(x, y.transpose(1, 2)).relu(), ((3, 4, 5), (3, 6, 5))),
    "addmm": (
        lambda m, x, y: torch.addmm(m, x, y, beta=0.5, alpha=2).relu(),
        ((6,), (4, 5), (5, 6)),
    ),
    "baddbmm": (
        lambda m, x, y: torch.baddbmm(m, x, y, beta=2).relu(),
        ((4, 1), (3, 4, 5), (3, 5, 6)),
    ),
    "two": (lambda x, y, z: (x @ y).relu() @ z, ((7, 5), (5, 9), (9, 3))),
    "seen otherwise": (lambda x, y: (x @ y).view(2, 2, 6).transpose(0, 1), ((4, 5), (5, 6))),
    "nothing to add up": (lambda x, y: (x @ y) + 1, ((3, 0), (0, 4))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(8)
def test_native_products_are_eagers(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    draw = [[torch.randn(shape).to(dtype) for shape in shapes] for _ in range(2)]
    compiled, is_native = compiled_once(function, *draw[0])
    assert is_native
    excluded = torch._C._dispatch_tls_local_exclude_set().raw_repr()
    for given in (*draw, draw[0]):
        agrees(compiled(*given), function, *given)
    assert torch._C._dispatch_tls_local_exclude_set().raw_repr() == excluded


def test_training_is_native_both_ways() -> None:
    layers = [torch.nn.Linear(20, 30), torch.nn.GELU(), torch.nn.Linear(30, 5)]
    model, x = torch.nn.Sequential(*layers), torch.randn(8, 20)
    compiled = fusec.compile(model)
    for _ in range(2):
        compiled(x).square().sum().backward()
        found = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
    model(x).square().sum().backward()
    for ours, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad)
        assert ours is not None
        assert parameter.grad is not None
        assert ours.stride() == parameter.grad.stride()
    parts = [part for graph in compiled.graphs for part in graph.parts]
    assert {part.kind for part in parts} == {"forward", "backward"}
    assert all(isinstance(part.native(), NativeProgram) for part in parts)


@pytest.mark.parametrize("mode", ["no_grad", "inference", "autocast"])
def test_modes_of_torch_leave_products_alone(mode: str) -> None:
    """Tensors that need gradients are multiplied without; autocast has converted before."""
    contexts = {
        "no_grad": torch.no_grad,
        "inference": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }
    x, y = torch.randn(6, 7, requires_grad=mode != "autocast"), torch.randn(7, 8)
    with contexts[mode]():
        compiled, _ = compiled_once(lambda x, y: (x @ y).sin(), x, y)
        got, eager = compiled(x, y), (x @ y).sin()
    assert got.dtype == eager.dtype
    assert got.requires_grad == eager.requires_grad
    torch.testing.assert_close(got, eager)


def test_large_tensors_are_freed_between_steps() -> None:
    x, y = torch.randn(4, 1 << 20), torch.randn(1 << 20, 4)
    compiled, is_native = compiled_once(lambda x, y: (x @ y).relu(), x, y)
    assert not is_native
    torch.testing.assert_close(compiled(x, y), (x @ y).relu(), rtol=1e-3, atol=1e-2)


def test_symbolic_sizes_and_other_types_stay_with_python() -> None:
    compiled = fusec.compile(lambda x, y: (x @ y).relu(), dynamic=True)
    for rows in (5, 6):
        x, y = torch.randn(rows, 7), torch.randn(7, rows + 3)
        agrees(compiled(x, y), lambda x, y: (x @ y).relu(), x, y)
    x, y = torch.arange(12).view(3, 4), torch.arange(12).view(4, 3)
    compiled, is_native = compiled_once(lambda x, y: (x @ y) + 1, x, y)
    assert not is_native
    assert torch.equal(compiled(x, y), (x @ y) + 1)


def test_what_has_no_memory_is_no_operand() -> None:
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    compiled, is_native = compiled_once(lambda x, y: (x @ y).relu(), x, y)
    assert is_native
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = compiled(mode.from_tensor(x), mode.from_tensor(y))
    assert type(fake).__name__ == "FakeTensor"
    torch.testing.assert_close(compiled(x, y), (x @ y).relu())


def test_a_profiler_sees_the_product() -> None:
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    compiled, is_native = compiled_once(lambda x, y: (x @ y).relu(), x, y)
    assert is_native
    with torch.profiler.profile() as profile:
        compiled(x, y)
    assert any(event.name == "aten::mm" for event in profile.events())


def test_what_aten_refuses_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    made = products.native_product

    def broken(*given: object) -> products.NativeProduct | None:
        product = made(*given)  # type: ignore[arg-type]
        if product is not None:
            product.record.operands[1].sizes[1] = 3
        return product

    monkeypatch.setattr(native_layout, "native_product", broken)
    x, y = torch.randn(3, 4), torch.randn(4, 5)
    for _ in range(2):  # and nothing is left of it
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            compiled_once(lambda x, y: (x @ y).relu(), x, y)


def test_an_edit_between_products_takes_its_place() -> None:
    x, y, z = torch.randn(7, 5), torch.randn(5, 9), torch.randn(9, 3)
    compiled, is_native = compiled_once(lambda x, y, z: (x @ y).relu() @ z, x, y, z)
    assert is_native
    (kernel,) = compiled.graphs[0].kernels
    kernel.use(kernel.source.replace("return 0;", "return 7;"))
    with pytest.raises(fusec.FusecError, match=f"{kernel.name} failed with status 7"):
        compiled(x, y, z)
    kernel.revert()
    torch.testing.assert_close(compiled(x, y, z), (x @ y).relu() @ z)
