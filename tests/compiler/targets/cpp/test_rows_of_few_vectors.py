"""Rows of a few vectors in C++: windows that move by two, and halves converted by the row."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Function = Callable[[torch.Tensor], torch.Tensor]
HALVES = (torch.float16, torch.bfloat16)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def text_of(compiled: fusec.CompiledFunction) -> str:
    return "\n".join(kernel.source for kernel in compiled.kernels.values())


def require_close(found: torch.Tensor, wanted: torch.Tensor, atol: float = 2e-2) -> None:
    """Raise AssertionError where found is not wanted within the rounding of halves."""
    torch.testing.assert_close(found, wanted.to(found.dtype), rtol=2e-2, atol=atol, equal_nan=True)


def special(x: torch.Tensor) -> torch.Tensor:
    """Return x with NaN and infinities at the ends of rows and elsewhere."""
    flat = x.view(-1)
    flat[:: max(1, flat.numel() // 37)] = float("nan")
    flat[3 :: max(1, flat.numel() // 23)] = float("inf")
    flat[-1], flat[0] = float("-inf"), float("nan")
    return x


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES, torch.uint8], ids=str)
@pytest.mark.parametrize("width", [15, 16, 32, 63, 112, 257, 600])
def test_windows_that_move_by_two(width: int, dtype: torch.dtype) -> None:
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x if x.is_floating_point() else x.float(), 3, 2, 1)

    compiled = fusec.compile(pooled)
    for height in (6, 9):
        if dtype == torch.uint8:
            x = torch.randint(0, 255, (3, 2, height, width), dtype=dtype)
        else:
            x = special(torch.randn(3, 2, height, width).to(dtype))
        assert torch.equal(compiled(x).nan_to_num(nan=77.0), pooled(x).nan_to_num(nan=77.0))


ROWS: dict[str, Function] = {
    "gaps": lambda x: x[..., 4::2] + x[..., 1:-3:2] * 2,
    "far apart": lambda x: x[..., 64::2] - x[..., :-64:2],
    "three of five": lambda x: x[..., :-4:2] + x[..., 2:-2:2] * x[..., 4::2],
    "average": lambda x: F.avg_pool1d(x, 4, 2, 1),
    "padded on both sides": lambda x: F.max_pool1d(x, 5, 2, 2),
    "turned round": lambda x: F.max_pool1d(x.flip(-1), 3, 2, 1),
    "written back": lambda x: x[..., ::2].add_(x[..., 1::2]) + x[..., ::2],
    "divided": lambda x: F.pad(x[..., 1:-2:2].long() // 2, (1, 0)) + x[..., ::2].long(),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_with_a_step_of_two(name: str, dtype: torch.dtype) -> None:
    compiled = fusec.compile(ROWS[name])
    for width in (96, 112, 130):
        base = torch.randn(2, 5, width + 6).to(dtype)
        for x in (base[..., :width].clone(), base[..., 3 : 3 + width], base[:, :3, 6:].clone()):
            ours, eagers = x.clone(), x.clone()
            wanted = ROWS[name](eagers.double() if name != "written back" else eagers)
            require_close(compiled(ours), wanted)


def test_the_first_rows_are_not_read_beyond_their_ends() -> None:
    """What lies around a view is NaN: no result may be."""
    memory = torch.full((4, 40, 80), float("nan"))
    memory[1:3, 4:36, 8:72] = torch.randn(2, 32, 64)
    x = memory[1:3, 4:36, 8:72]
    compiled = fusec.compile(lambda x: F.max_pool2d(x, 3, 2, 1))
    assert torch.equal(compiled(x), F.max_pool2d(x, 3, 2, 1))


def test_what_is_written() -> None:
    """Two arrays for each row, ends over a loop of whole vectors; not where tails would be long."""

    def written(width: int, dtype: torch.dtype = torch.float32) -> str:
        compiled = fusec.compile(lambda x: F.max_pool2d(x, 3, 2, 1))
        compiled(torch.randn(4, 16, 64, width).to(dtype))
        return text_of(compiled)

    whole = written(112)
    assert "x_even[57]" in whole
    assert "i3 < 56" in whole
    assert "i3 < 55" in whole  # of the first row: what is before it is no part of the image
    assert "fx_to_floats(" in written(112, torch.float16)
    assert "_even" not in written(58)


ALONG: dict[str, Function] = {
    "neighbors": lambda x: x[..., 1:] + x[..., :-1] * 0.5,
    "bias": lambda x: F.relu(x + x[:1, :1]),
    "softmax": lambda x: x.softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "sum": lambda x: (x * 2).sum(-1),
    "largest": lambda x: x.amax(-1),
    "spread": lambda x: x.std(-1),
    "product of powers of two": lambda x: (x.sign() * 0.75 + 1.25).prod(-1),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("width", [8, 23, 49, 255])
@pytest.mark.parametrize("name", ALONG)
def test_halves_of_short_rows(name: str, width: int, dtype: torch.dtype) -> None:
    function = ALONG[name]
    compiled = fusec.compile(function)
    for shape in ((4, 70, width), (1, 3, width)):
        # what is beyond a row must neither be read into it nor written
        memory = torch.full((*shape[:-1], width + 5), float("nan"), dtype=dtype)
        memory[..., 2:-3] = torch.randn(shape).to(dtype)
        for x in (memory[..., 2:-3], memory[..., 2:-3].clone()):
            require_close(compiled(x), function(x.double()), atol=4e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_half_by_rows_of_all_lengths(dtype: torch.dtype) -> None:
    """NaN, infinities and subnormal values too; what is added up is rounded once."""
    every = torch.arange(2**16).to(torch.int32).to(torch.uint16).view(dtype)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + x[:, :1] * 0.5

    def once(x: torch.Tensor) -> torch.Tensor:
        return function(x.float()).to(x.dtype)

    compiled = fusec.compile(function)
    for width in (8, 13, 50, 63):
        x = every[: 2**16 // width * width].view(1, -1, width)
        torch.testing.assert_close(compiled(x), once(x), rtol=0, atol=0, equal_nan=True)
