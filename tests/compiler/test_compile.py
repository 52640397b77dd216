"""The compiler end to end: generated kernels, host program, gradients, mutation, breaks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from support.compare import difference


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure inside the compiler fails the test instead of running in eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def agrees(function: Callable[..., Any], *args: Any, **options: Any) -> fusec.CompiledFunction:
    compiled = fusec.compile(function, **options)
    for _ in range(2):
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        others = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        problem = difference(compiled(*copies), function(*others))
        assert not problem, problem
        problem = difference(copies, others)
        assert not problem, f"inputs: {problem}"
    return compiled


def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = F.layer_norm(x, (x.shape[-1],))
    attention = (h @ h.transpose(-1, -2) / 8).softmax(-1) @ h
    return x + F.gelu(attention @ w)


def test_a_block() -> None:
    compiled = agrees(block, torch.randn(2, 17, 33), torch.randn(33, 33))
    assert len(compiled.graphs) == 1
    assert not compiled.fallbacks
    assert compiled.kernels


@pytest.mark.sample(6)
@pytest.mark.parametrize("shape", [(0, 8), (1,), (3, 5, 7), (129, 257), (2, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_shapes_and_dtypes(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> Any:
        y = torch.tanh(x) * 2 + x.sigmoid()
        return y, y.sum(-1), y.softmax(-1)

    # Off zero: of a sum of halves that cancel little is left but how each torch rounds them.
    agrees(function, (torch.randn(shape) + 1).to(dtype))


def test_in_place_update_of_an_input() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x[0].add_(1)
        return x.sum()

    agrees(function, torch.randn(4, 5))


def test_views_of_inputs_and_overlap() -> None:
    base = torch.randn(6, 8)
    agrees(lambda x: x + 1, base.t())
    agrees(lambda x: x + 1, base[1:, ::2])
    agrees(lambda x: x.exp().sum(0), torch.randn(3, 1).expand(3, 5))
    x = torch.randn(10)
    compiled = fusec.compile(lambda a, b: a * 2 + b)
    assert torch.equal(compiled(x[:8], x[2:]), x[:8] * 2 + x[2:])


def test_output_aliases_input() -> None:
    x = torch.randn(4, 4)
    view, total = fusec.compile(lambda x: (x.t(), x + 1))(x)
    assert view.data_ptr() == x.data_ptr()
    assert torch.equal(total, x + 1)


def test_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(8, 16, requires_grad=True)
    target = torch.randint(0, 4, (8,))

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), target)

    expected = torch.autograd.grad(loss(x), [x, *model.parameters()])
    compiled = fusec.compile(loss)
    actual = torch.autograd.grad(compiled(x), [x, *model.parameters()])
    assert not difference(actual, expected)
    assert {part.kind for part in compiled.graphs[0].parts} == {"forward", "backward"}


def test_a_module_and_the_entry_point() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)).eval()
    x = torch.randn(3, 8)
    with torch.no_grad():
        expected = model(x)
        assert not difference(fusec.compile(model)(x), expected)
        assert not difference(torch.compile(model, backend="fusec")(x), expected)


def test_a_print_breaks_the_graph_and_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("here")
        return y + 1

    compiled = agrees(function, torch.randn(4))
    assert capsys.readouterr().out.count("here") == 4
    assert len(compiled.graphs) == 2
    (found,) = compiled.breaks
    assert found.where is not None
    assert found.where.text == 'print("here")'
    assert found.hint


def test_another_size_becomes_symbolic() -> None:
    compiled = fusec.compile(lambda x: (x * 2).sum(1))
    for rows in (4, 7, 9, 12, 33):
        x = torch.randn(rows, 6)
        assert not difference(compiled(x), (x * 2).sum(1))
    assert len(compiled.graphs) == 2
    assert compiled.recompiles


def test_random_numbers_are_eagers() -> None:
    x = torch.randn(64)
    compiled = fusec.compile(
        lambda x: torch.rand_like(x) * x + F.dropout(x, 0.5), eager_random=True
    )
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert not difference(compiled.function(x), first)


def test_bad_index_raises_as_in_eager() -> None:
    compiled = fusec.compile(lambda x, i: x[i] + 1)
    x = torch.randn(4, 3)
    assert torch.equal(compiled(x, torch.tensor([0, -1])), x[[0, -1]] + 1)
    with pytest.raises(IndexError, match="out of range"):
        compiled(x, torch.tensor([0, 4]))
    assert torch.equal(compiled(x, torch.tensor([1, 2])), x[[1, 2]] + 1)


def test_integer_division_by_zero_raises_as_in_eager() -> None:
    compiled = fusec.compile(lambda x, y: x // y)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        compiled(torch.tensor([1, 2]), torch.tensor([1, 0]))


def test_special_values() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, inf, -inf, nan, 1e-40, 3e38, -3e38, 1.0])

    def function(x: torch.Tensor) -> Any:
        return (
            *(f(x) for f in (torch.exp, torch.tanh, torch.sigmoid, torch.erf, torch.relu)),
            # not gelu: eager's comes from a library that gives nan for inf and inf for 3e38
            *(f(x) for f in (torch.log, torch.sqrt, torch.rsqrt, torch.sin, F.silu)),
            x.max(),
            x[:4].sum(),
            x.argmax(),
            torch.maximum(x, x.flip(0)),
            x.clamp(-1, 1),
            x + 0.0,
            x * 1.0,
        )

    compiled = fusec.compile(function)
    actual, expected = compiled(x), function(x)
    assert not difference(actual, expected)
    for a, e in zip(actual, expected, strict=True):
        if e.is_floating_point():
            zero = e == 0
            assert torch.equal(torch.signbit(a)[zero], torch.signbit(e)[zero])


def test_measure_verify_and_kernel_timings() -> None:
    compiled = fusec.compile(lambda x: F.layer_norm(F.gelu(x), (64,)), keep_inputs=True)
    compiled(torch.randn(32, 64))
    (graph,) = compiled.graphs
    verdict = graph.verify()
    assert verdict.ok, verdict.reason
    assert verdict.outputs[0].against_float64 is not None
    eager, fused = graph.measure(0.05)
    assert eager.median > 0
    assert fused.median > 0
    assert set(graph.kernel_timings(0.05)) == set(compiled.kernels)


def test_an_edit_is_checked_kept_and_reverted() -> None:
    compiled = fusec.compile(lambda x: torch.tanh(x) * 2 + 1, keep_inputs=True, name="chain")
    x = torch.randn(1000)
    expected = compiled(x)
    (kernel,) = compiled.kernels.values()
    wrong = kernel.source.replace("2.0f", "3.0f")
    assert wrong != kernel.source
    verdict = kernel.keep(wrong)
    assert not verdict.ok
    assert verdict.stage == "wrong"
    assert torch.equal(compiled(x), expected)
    verdict = kernel.keep("// mine\n" + kernel.source)
    assert verdict.ok, verdict.reason
    assert kernel.edited
    assert torch.equal(compiled(x), expected)
    kernel.revert()
    assert not kernel.edited


def test_the_options_are_checked() -> None:
    with pytest.raises(fusec.FusecError, match=r"cpp.*triton"):
        fusec.compile(lambda x: x, target="cuda")
    with pytest.raises(fusec.FusecError, match="keep_inputs"):
        fusec.compile(lambda x: x, speed="high")


def test_attention_and_convolution_stay_extern_with_a_reason() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, torch.ones(4, 2, 3, 3), padding=1).relu()
        return F.scaled_dot_product_attention(y, y, y) * 2

    compiled = agrees(function, torch.randn(1, 2, 8, 8))
    externs = compiled.graphs[0].externs
    assert len(externs) == 2
    assert all(e.reason and e.where for e in externs)


def test_several_random_operators_keep_their_order() -> None:
    def function(x: torch.Tensor) -> Any:
        late = torch.rand_like(x)
        early = torch.randn_like(x).exp().sum(0)
        return (late * early).tanh() + torch.rand_like(x), early

    x = torch.randn(8, 4)
    compiled = fusec.compile(function, eager_random=True)
    torch.manual_seed(1)
    actual = compiled(x)
    torch.manual_seed(1)
    assert not difference(actual, function(x))


def test_emulated_rounding_is_eagers() -> None:
    x = torch.randn(64, 64, dtype=torch.bfloat16)

    def function(x: torch.Tensor) -> torch.Tensor:
        return ((x * 1.01 - x) * 64).tanh()

    assert torch.equal(fusec.compile(function, emulate_rounding=True)(x), function(x))


def test_dynamic_sizes_from_the_start() -> None:
    compiled = fusec.compile(lambda x: F.softmax(x * 2, -1).sum(0), dynamic=True)
    for shape in ((3, 5), (8, 7), (64, 33)):
        x = torch.randn(shape)
        assert not difference(compiled(x), F.softmax(x * 2, -1).sum(0))
    assert len(compiled.graphs) == 1


def test_a_missing_compiler_runs_in_eager_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEC_STRICT")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setitem(sys.modules, "ziglang", None)  # the bundled one, where it is installed
    compiled = fusec.compile(lambda x: torch.tanh(x) * 17.25)
    x = torch.randn(5)
    assert torch.equal(compiled(x), torch.tanh(x) * 17.25)
    (reason,) = compiled.fallbacks
    assert "compiler" in reason
    assert "CXX" in reason


def test_a_device_that_is_not_there() -> None:
    compiled = fusec.compile(lambda x: x.to("cuda:77") * 2)
    with pytest.raises(RuntimeError, match="cuda:77") as caught:
        compiled(torch.randn(3))
    assert "x.to" in str(caught.value)


def test_two_functions_at_once() -> None:
    import threading

    x = torch.randn(50, 50)
    results: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        compiled = fusec.compile(lambda x: (x * number).softmax(-1) + number)
        results[number] = compiled(x)

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, result in results.items():
        assert not difference(result, (x * number).softmax(-1) + number)
    assert len(results) == 3


def test_a_compiled_module_offers_what_the_module_offers() -> None:
    model = nn.Linear(3, 2)
    compiled = fusec.compile(model)
    assert list(compiled.parameters()) == list(model.parameters())
    assert compiled.in_features == 3
    with pytest.raises(AttributeError):
        _ = compiled.nothing_of_the_kind
