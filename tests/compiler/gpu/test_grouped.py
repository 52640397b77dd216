"""On a GPU: products of groups of rows, as mixtures of experts have them. Skipped elsewhere."""

from __future__ import annotations

import pytest
import torch

import fusec.graph.products.grouped  # noqa: F401 - which defines the operators

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
Tensor = torch.Tensor


def looped(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], weight.shape[2])
    begin = 0
    for each, end in zip(weight, ends.tolist(), strict=True):
        out[begin:end] = x[begin:end] @ each
        begin = end
    return out


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(1000, 7, 200, 136), (70, 64, 33, 17), (3, 5, 8, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_products_and_gradients(
    dtype: torch.dtype, shape: tuple[int, int, int, int], turned: bool
) -> None:
    torch.manual_seed(0)
    rows, groups, inner, columns = shape
    made = (groups, columns, inner) if turned else (groups, inner, columns)
    x = torch.randn(rows, inner, device="cuda", dtype=dtype)
    weight = torch.randn(made, device="cuda", dtype=dtype)
    weight = weight.transpose(1, 2) if turned else weight
    gradient = torch.randn(rows, columns, device="cuda", dtype=dtype)
    cuts = torch.randint(0, rows + 1, (groups,)).sort().values.int().cuda()  # some are empty
    given = [each.double().requires_grad_() for each in (x, weight)]
    exact = looped(*given, cuts)
    wanted = torch.autograd.grad(exact, given, gradient.double())
    own = torch.ops.fusec.grouped_product(x, weight, cuts)
    found = torch.ops.fusec.grouped_product_backward(x, weight, cuts, gradient)
    assert found[1].stride() == weight.stride()
    for a, b in zip((own, *found), (exact, *wanted), strict=True):
        assert a.dtype == dtype
        assert (a.double() - b).norm() <= 4 * torch.finfo(dtype).eps * b.norm()


def test_infinities_are_as_a_loop_has_them() -> None:
    x, weight = torch.randn(64, 32, device="cuda"), torch.randn(2, 32, 48, device="cuda")
    x[3, 5], x[40, 0], weight[1, 7, 9] = float("inf"), float("nan"), float("-inf")
    ends = torch.tensor([20, 64], device="cuda")
    own, wanted = torch.ops.fusec.grouped_product(x, weight, ends), looped(x, weight, ends)
    torch.testing.assert_close(own, wanted, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_they_run_where_their_tensors_are() -> None:
    x, weight = torch.randn(64, 32, device="cuda:1"), torch.randn(2, 32, 48, device="cuda:1")
    ends = torch.tensor([20, 64], device="cuda:1")
    own = torch.ops.fusec.grouped_product(x, weight, ends)
    torch.testing.assert_close(own, looped(x, weight, ends), rtol=1e-5, atol=1e-5)
