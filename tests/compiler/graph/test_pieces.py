"""Padding with what is there, and ``roll``: copies of pieces, as eager has them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusec


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


PADDINGS: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((3, 9), (2, 3)),
    ((2, 3, 9), (0, 8)),
    ((2, 3, 6, 9), (1, 2, 5, 0)),
    ((3, 6, 9), (0, 0, 2, 0)),
    ((2, 3, 6, 9), (-1, 2, 1, -2)),  # crops
    ((2, 3, 4, 5, 6), (1, 2, 3, 0, 0, 2)),
    ((2, 3, 6, 9), (0, 0, 0, 0)),
    ((1, 1, 6, 1), (0, 0, 1, 1)),
)


@pytest.mark.sample(4)
@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(("shape", "padding"), PADDINGS, ids=str)
def test_padding(shape: tuple[int, ...], padding: tuple[int, ...], mode: str) -> None:
    x = torch.randn(shape)
    kinds = [x, x.to(torch.bfloat16).transpose(-1, -2).contiguous().transpose(-1, -2)]
    if x.ndim == 4:
        kinds.append(x.to(memory_format=torch.channels_last))
    for given in kinds:
        torch._dynamo.reset()
        compiled = fusec.compile(lambda x: F.pad(x, padding, mode=mode))
        got, eager = compiled(given), F.pad(given, padding, mode=mode)
        assert torch.equal(got, eager)
        assert got.stride() == eager.stride()


def test_too_much_reflection_is_refused_as_in_eager() -> None:
    compiled = fusec.compile(lambda x: F.pad(x, (5, 5), mode="reflect"))
    with pytest.raises(RuntimeError, match="Padding size should be less"):
        compiled(torch.randn(2, 3, 4))


def test_reflection_reads_no_computed_places() -> None:
    compiled = fusec.compile(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect") * 2)
    x = torch.randn(4, 8, 32, 32, requires_grad=True)
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    (eager,) = torch.autograd.grad((F.pad(x, (1, 1, 1, 1), mode="reflect") * 2).sum(), x)
    torch.testing.assert_close(got, eager)
    assert "fx_abs" not in "\n".join(k.source for k in compiled.kernels.values())


def test_edges_are_repeated_beyond_the_size() -> None:
    x = torch.tensor([[[1.0, -0.0, float("nan")]]])
    got = fusec.compile(lambda x: F.pad(x, (7, 4), mode="replicate"))(x)
    eager = F.pad(x, (7, 4), mode="replicate")
    assert torch.equal(got.view(torch.int32), eager.view(torch.int32))


def test_replication_reads_no_computed_places() -> None:
    compiled = fusec.compile(lambda x: F.pad(x, (3, 3, 2, 2), mode="replicate"))
    compiled(torch.randn(4, 8, 32, 32))
    assert "clamped" not in "\n".join(k.source for k in compiled.kernels.values())


def test_replication_has_gradients() -> None:
    function = lambda x: F.pad(x, (1, 5, 2, 0), mode="replicate") * 2  # noqa: E731
    x = torch.randn(2, 3, 5, 7, requires_grad=True)
    (got,) = torch.autograd.grad(fusec.compile(function)(x).square().sum(), x)
    (eager,) = torch.autograd.grad(function(x).square().sum(), x)
    torch.testing.assert_close(got, eager)


ROLLS: tuple[tuple[tuple[int, ...], int | tuple[int, ...], int | tuple[int, ...] | None], ...] = (
    ((5, 7), 2, 1),
    ((5, 7), -2, 0),
    ((5, 7), 23, -1),
    ((5, 7), 7, 1),  # nothing moves
    ((5, 7), (1, -3), (0, 1)),
    ((5, 7), (1, 2), (1, 1)),
    ((5, 7), 9, None),
    ((3, 4, 6, 5), (-2, 3), (2, 3)),
    ((1, 9), 4, 0),
    ((0, 3), 1, 1),
    ((3, 0), (1, 1), (0, 1)),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize(("shape", "shifts", "dims"), ROLLS, ids=str)
def test_roll(
    shape: tuple[int, ...],
    shifts: int | tuple[int, ...],
    dims: int | tuple[int, ...] | None,
    dtype: torch.dtype,
) -> None:
    x = torch.randn(shape).mul(3).to(dtype)
    kinds = [x, x.transpose(-1, -2).contiguous().transpose(-1, -2)]
    if x.ndim == 4:
        kinds.append(x.to(memory_format=torch.channels_last))
    for given in kinds:
        torch._dynamo.reset()
        got, eager = fusec.compile(lambda x: x.roll(shifts, dims))(given), given.roll(shifts, dims)
        assert torch.equal(got, eager)
        assert got.stride() == eager.stride()
        assert got.data_ptr() != given.data_ptr() or not got.numel()


def test_roll_of_any_size() -> None:
    compiled = fusec.compile(lambda x: x.roll((3, 1), (0, 1)) + 1, dynamic=True)
    for rows, columns in ((4, 5), (3, 7), (11, 2), (2, 9)):
        x = torch.randn(rows, columns)
        assert torch.equal(compiled(x), x.roll((3, 1), (0, 1)) + 1)


def test_roll_reads_no_computed_places() -> None:
    compiled = fusec.compile(lambda x: x.roll(5, -1))
    compiled(torch.randn(64, 130))
    assert "index_table" not in "\n".join(k.source for k in compiled.kernels.values())
