"""Products of float32 matrices by oneDNN: which are, where it is faster, and their results."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.graph import choices
from fusec.graph.choices import onednn_multiplies_faster
from fusec.inspect.numerics import trace_part
from fusec.inspect.whatif import what_if
from fusec.ir.library_calls import call_exactly
from fusec.schedule.overrides import Overrides

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
    reason="torch was built without oneDNN",
)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    # as on a processor whose MKL is slow
    monkeypatch.setattr("fusec.graph.choices.is_amd", lambda: True)
    monkeypatch.setattr("fusec.graph.choices.has_avx512", lambda: True)
    torch._dynamo.reset()
    torch.manual_seed(0)


def calls(compiled: fusec.CompiledFunction) -> list[str]:
    """Return the names of the library calls, forward and backward."""
    return [e.name.split(".")[1] for graph in compiled.graphs for e in graph.externs]


def check(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[str]:
    """Compare the result and the gradients with float64, on two sets of values."""
    compiled = fusec.compile(function)
    for attempt in range(2):
        if attempt:
            for tensor in inputs:
                tensor.normal_()  # as it lies
        found = []
        for call, dtype in ((compiled, None), (function, None), (function, torch.float64)):
            leaves = [t.detach().to(dtype or t.dtype).requires_grad_() for t in inputs]
            result = call(*leaves)
            result.square().mean().backward()
            found.append([result.detach(), *[leaf.grad for leaf in leaves]])
        for mine, eager, exact in zip(*found, strict=True):
            assert mine is not None
            assert mine.stride() == eager.stride()
            scale = exact.abs().max() + 1e-12
            own = (eager.double() - exact).abs().max() / scale
            assert (mine.double() - exact).abs().max() / scale <= 4 * own + 1e-6
    return calls(compiled)


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns) / columns**0.5


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda: (matrix(160, 200), matrix(200, 144)),
        lambda: (matrix(200, 160).t(), matrix(200, 144)),
        lambda: (matrix(160, 200), matrix(144, 200).t()),
        lambda: (matrix(200, 160).t(), matrix(144, 200).t()),
        lambda: (matrix(160, 300)[:, 7:207], matrix(200, 160)[:, 3:147]),
        lambda: (matrix(320, 200)[::2], matrix(400, 144)[1::2]),
    ],
    ids=["rows", "left turned", "right turned", "both turned", "parts", "every other"],
)
def test_operands_however_they_lie(make: Callable[[], tuple[torch.Tensor, ...]]) -> None:
    names = check(lambda a, b: torch.relu(a @ b), *make())
    assert names == ["_linear_pointwise"] * 3


def test_what_does_not_lie_in_rows_is_copied_first() -> None:
    """ATen would copy it as well, slowly."""
    rows, b = matrix(160, 200), matrix(200, 144)
    gaps, turned = matrix(160, 300)[:, 7:207], matrix(200, 160).t()
    with torch.no_grad():
        for a, copies in ((rows, 0), (gaps, 1), (turned, 1), (matrix(320, 200)[:160], 0)):
            torch._dynamo.reset()
            compiled = fusec.compile(lambda a, b: a @ b)
            torch.testing.assert_close(compiled(a, b), a @ b)
            assert calls(compiled) == ["_linear_pointwise"]
            assert len(compiled.kernels) == copies


def test_bias() -> None:
    def returned(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c, a, b)

    operands = matrix(160, 200), matrix(200, 144)
    assert check(returned, *operands, torch.randn(144)) == ["_linear_pointwise"] * 3
    # a bias of a row each, and one for all, stay BLAS's
    for bias in (torch.randn(160, 144), torch.randn(160, 1), torch.randn(1)):
        assert check(returned, *operands, bias)[0] == "addmm"
    scaled = check(lambda a, b, c: torch.addmm(c, a, b, beta=0.5), *operands, torch.randn(144))
    assert scaled[0] == "addmm"


def test_a_network_in_training() -> None:
    module = nn.Sequential(nn.Linear(96, 320), nn.GELU(), nn.Linear(320, 96), nn.LayerNorm(96))
    exact, eager = copy.deepcopy(module).double(), copy.deepcopy(module)
    compiled = fusec.compile(module)
    x = torch.randn(7, 30, 96)
    for call, given in ((compiled, x), (eager, x), (exact, x.double())):
        call(given).square().mean().backward()
    for mine, plain, right in zip(
        module.parameters(), eager.parameters(), exact.parameters(), strict=True
    ):
        assert mine.grad is not None
        assert plain.grad is not None
        assert right.grad is not None
        own = (plain.grad.double() - right.grad).abs().max()
        assert (mine.grad.double() - right.grad).abs().max() <= 4 * own + 1e-7
    assert set(calls(compiled)) == {"_linear_pointwise"}


def test_updates_its_own_result() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a @ b
        c[3:5] += 1
        return c

    a, b = matrix(160, 200), matrix(200, 144)
    with torch.no_grad():
        compiled = fusec.compile(function)
        torch.testing.assert_close(compiled(a, b), function(a, b))
        assert calls(compiled) == ["_linear_pointwise"]


def test_varying_sizes() -> None:
    compiled = fusec.compile(lambda a, b: (a @ b).relu(), dynamic=True)
    b = matrix(200, 144)
    with torch.no_grad():
        for rows in (160, 99, 3, 1, 0, 200):
            a = matrix(rows, 200)
            torch.testing.assert_close(compiled(a, b), (a @ b).relu())


def test_what_stays() -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    with torch.no_grad():
        for a, b in (
            (matrix(16, 16), matrix(16, 16)),  # small
            (matrix(4, 2000), matrix(2000, 2000)),  # few rows
            (matrix(160, 200).double(), matrix(200, 144).double()),
            (matrix(160, 0), matrix(0, 144)),
        ):
            torch._dynamo.reset()
            compiled = fusec.compile(product)
            torch.testing.assert_close(compiled(a, b), a @ b)
            assert "_linear_pointwise" not in calls(compiled)
        a, b = matrix(160, 200), matrix(200, 144)
        with torch.backends.mkldnn.flags(enabled=False):
            torch._dynamo.reset()
            compiled = fusec.compile(product)
            torch.testing.assert_close(compiled(a, b), a @ b)
            assert calls(compiled) == ["mm"]


def test_only_where_mkl_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert onednn_multiplies_faster(128, 768, 3072, 0)
    # an operand that must be copied costs more than few columns gain
    assert not onednn_multiplies_faster(16384, 768, 8, 16384 * 768)
    monkeypatch.setattr(choices, "is_amd", lambda: False)
    assert not onednn_multiplies_faster(128, 768, 3072, 0)


def test_a_product_by_onednn_has_a_reference_in_float64() -> None:
    # What the Fusion and Numerics tabs compare with; oneDNN itself refuses float64.
    compiled = fusec.compile(lambda a, b: torch.relu(a @ b) + 1, keep_inputs=True)
    with torch.no_grad():
        compiled(matrix(160, 200), matrix(200, 144))
    assert calls(compiled) == ["_linear_pointwise"]
    (graph,) = compiled.graphs
    (part,) = graph.parts
    found = what_if(graph, part, Overrides(), seconds=0.01)
    assert [error.ok for error in found.errors] == [True]
    assert found.errors[0].against_float64 is not None
    trace = trace_part(part)
    assert trace.tensors


@pytest.mark.parametrize("name", ["mm", "bmm"])
def test_a_wider_product_is_exact_in_float64(name: str) -> None:
    operator = getattr(torch.ops.aten, name)
    left, right = torch.randn(2, 3, 3, dtype=torch.float64)
    if name == "bmm":
        left, right = left[None], right[None]
    with pytest.raises(RuntimeError):
        operator.dtype(left, right, torch.float32)
    result = call_exactly(operator.dtype, [left, right, torch.float32], {})
    torch.testing.assert_close(result, left @ right, rtol=0, atol=0)


def test_a_bias_beside_columns_of_an_unknown_number() -> None:
    def project(bias: torch.Tensor, x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> Any:
        columns = n.item()
        torch._check(columns >= 0)
        return torch.addmm(bias, x, w.expand(8, columns))

    inputs = torch.randn(1), torch.randn(4, 8), torch.randn(8, 1)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = fusec.compile(project)
        for number in (5, 1, 3):
            got = compiled(*inputs, torch.tensor(number))
            torch.testing.assert_close(got, project(*inputs, torch.tensor(number)))


def test_long_sums_of_a_copied_matrix_stay() -> None:
    assert not onednn_multiplies_faster(64, 4096, 64, 64 * 4096)
    assert onednn_multiplies_faster(512, 4096, 512, 512 * 4096)
    assert onednn_multiplies_faster(64, 4096, 64, 0)
