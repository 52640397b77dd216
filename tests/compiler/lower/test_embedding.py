"""The gradient of an embedding table: in a table of sums, and by the first row of each place."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def gradient(
    given: torch.Tensor, index: torch.Tensor, rows: int, padding: int = -1, scale: bool = False
) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(given, index, rows, padding, scale)


def kernels_of(compiled: fusec.CompiledFunction) -> int:
    return len(compiled.kernels)


@pytest.mark.sample(5)
@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [F16, BF16, F32])
@pytest.mark.parametrize(
    ("rows", "columns", "shape"),
    [(60, 40, (40,)), (61, 33, (5, 7)), (21, 40, (30,)), (90, 8, (12,)), (51, 40, (1,))],
)
def test_gradients(
    rows: int, columns: int, shape: tuple[int, ...], dtype: torch.dtype, target: str
) -> None:
    padding = 3 if rows % 2 else -1
    compiled = fusec.compile(gradient, target=target)
    for seed in range(2):
        torch.manual_seed(seed)
        index = torch.randint(0, rows, shape)
        index.view(-1)[: index.numel() // 3] = 3  # one that occurs often
        given = torch.randn(*shape, columns, dtype=dtype)
        found = compiled(given, index, rows, padding)
        exact = gradient(given.double(), index, rows, padding)
        assert found.dtype == dtype
        assert found.stride() == (columns, 1)
        # a sum in float32, rounded once
        allowed = torch.finfo(dtype).eps * exact.abs() + 1e-5
        assert ((found.double() - exact).abs() <= allowed).all()
        assert torch.equal(found == 0, exact == 0)
    few = target == "triton" and dtype != F32 and columns >= 32 and 3 * index.numel() <= 2 * rows
    assert kernels_of(compiled) == (5 if few else 2 if dtype == F32 else 3)


@pytest.mark.sample(3)
@pytest.mark.triton
@pytest.mark.parametrize("padding", [-1, 7])
@pytest.mark.parametrize("repeated", [0, 1, 2])
def test_rows_that_get_one_are_copied(repeated: int, padding: int) -> None:
    """Exactly, that is, the padding's row apart; and beside them one that gets several."""
    index = torch.arange(1, 25).flip(0).view(4, 6)
    index.view(-1)[:repeated] = 20
    given = torch.randn(4, 6, 40, dtype=BF16)
    given[0, 3, :5] = torch.tensor([float("nan"), float("inf"), -0.0, 0.0, -float("inf")])
    found = fusec.compile(gradient, target="triton")(given, index, 90, padding)
    exact = gradient(given.double(), index, 90, padding)
    single = (torch.bincount(index.view(-1), minlength=90) == 1)[:, None]
    torch.testing.assert_close(
        torch.where(single, found, 0.0),
        torch.where(single, exact, 0.0).to(BF16),
        rtol=0,
        atol=0,
        equal_nan=True,
    )
    torch.testing.assert_close(found.double(), exact, rtol=0.01, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_of_a_model(target: str) -> None:
    table = torch.randn(64, 48, dtype=BF16)
    index = torch.randint(0, 64, (2, 9))

    def step(table: torch.Tensor) -> torch.Tensor:
        table = table.detach().requires_grad_()
        (F.embedding(index, table, padding_idx=5).float() ** 2).sum().backward()
        assert table.grad is not None
        return table.grad

    index[0, 0] = 5
    compiled = fusec.compile(
        lambda t: (F.embedding(index, t, padding_idx=5).float() ** 2).sum(), target=target
    )
    leaf = table.clone().requires_grad_()
    compiled(leaf).backward()
    torch.testing.assert_close(leaf.grad, step(table))
    assert leaf.grad is not None
    assert (leaf.grad[5] == 0).all()


@pytest.mark.triton
def test_an_index_that_is_not_there_is_an_error() -> None:
    compiled = fusec.compile(gradient, target="triton")
    given = torch.randn(8, 40, dtype=BF16)
    compiled(given, torch.arange(8), 60)
    with pytest.raises(IndexError, match="out of range"):
        compiled(given, torch.tensor([0, 1, 2, 3, 4, 5, 6, 60]), 60)


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_divided_by_how_often_an_index_occurs(target: str) -> None:
    index = torch.tensor([1, 4, 1, 1, 0])
    given = torch.randn(5, 40)
    compiled = fusec.compile(gradient, target=target)
    torch.testing.assert_close(
        compiled(given, index, 12, -1, True), gradient(given, index, 12, -1, True)
    )


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_of_nothing(target: str) -> None:
    compiled = fusec.compile(gradient, target=target)
    found = compiled(torch.randn(0, 40, dtype=BF16), torch.empty(0, dtype=torch.int64), 60)
    assert torch.equal(found, torch.zeros(60, 40, dtype=BF16))
