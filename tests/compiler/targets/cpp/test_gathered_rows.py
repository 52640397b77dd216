"""C++ kernels that reduce rows at computed places: the next row is asked for ahead."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec

TABLE = (600, 512)  # larger than what stays in the cache


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def embed(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.embedding(index, table), (table.shape[1],))


def check(got: torch.Tensor, index: torch.Tensor, table: torch.Tensor) -> None:
    torch.testing.assert_close(got, embed(index, table.double()).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2,), (7,), (3, 5)])
def test_next_row_is_asked_for_and_results_stay(shape: tuple[int, ...]) -> None:
    index, table = torch.randint(0, TABLE[0], shape), torch.randn(TABLE)
    compiled = fusec.compile(embed)
    check(compiled(index, table), index, table)
    (kernel,) = compiled.graphs[0].kernels
    assert kernel.source.count("_next = at_most(") == 1
    assert kernel.source.count("prefetch<LINE>(&table[") == 1
    other = torch.randint(0, TABLE[0], shape)
    check(compiled(other, table), other, table)


@pytest.mark.parametrize("wrong", [0, 3, 6])
@pytest.mark.parametrize("value", [-1, TABLE[0], 1 << 40])
def test_an_index_out_of_range_is_an_error_wherever_it_is(wrong: int, value: int) -> None:
    index, table = torch.randint(0, TABLE[0], (7,)), torch.randn(TABLE)
    compiled = fusec.compile(embed)
    compiled(index, table)
    index[wrong] = value
    with pytest.raises(IndexError):
        compiled(index, table)


def test_any_number_of_rows() -> None:
    table = torch.randn(TABLE)
    compiled = fusec.compile(embed, dynamic=True)
    for count in (5, 1, 0, 130):
        index = torch.randint(0, TABLE[0], (count,))
        check(compiled(index, table), index, table)


def test_small_tables_and_short_rows_are_left_alone() -> None:
    for rows, columns in ((20, 512), (6000, 64)):
        torch._dynamo.reset()
        index, table = torch.randint(0, rows, (9,)), torch.randn(rows, columns)
        compiled = fusec.compile(embed)
        check(compiled(index, table), index, table)
        assert "_next" not in "".join(k.source for k in compiled.graphs[0].kernels)


def test_chosen_images_turned_over() -> None:
    def function(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return x[chosen].transpose(1, 2).contiguous() + 1

    x, chosen = torch.randn(20, 64, 48), torch.randint(0, 20, (10,))
    torch.testing.assert_close(fusec.compile(function)(x, chosen), function(x, chosen))
