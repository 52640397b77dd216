"""What random programs found: nothing to do, operands without a place of their own, large steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Function = Callable[[torch.Tensor], torch.Tensor]

OF_NOTHING: dict[str, Function] = {
    "log_softmax": lambda x: torch.log_softmax(x * 2, -1),
    "layer norm": lambda x: F.layer_norm(x, (0,)),
    "cumsum": lambda x: (x * 0.5).cumsum(-1),
    "cummax": lambda x: x.cummax(0)[0],
    "sum": lambda x: (x + 1).sum(-1),
    "normalize": lambda x: F.normalize(x, dim=-1),
}


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("name", OF_NOTHING)
def test_rows_of_nothing(name: str, target: str) -> None:
    torch._dynamo.reset()
    function = OF_NOTHING[name]
    compiled = fusec.compile(function, target=target)
    torch.testing.assert_close(compiled(torch.randn(0)), function(torch.randn(0)))
    assert not compiled.fallbacks


@pytest.mark.triton
@pytest.mark.parametrize("rows", [3, 16, 33])
@pytest.mark.parametrize("across", [3, 17])
def test_a_product_of_the_same_column_over_and_over(rows: int, across: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        wide = x.unsqueeze(-1).expand(-1, across)
        return F.linear(wide, wide) / across

    def left(x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(-1).expand(-1, across) @ torch.ones(across, rows)

    for function in (f, left):
        torch._dynamo.reset()
        compiled = fusec.compile(function, target="triton", matmul="template")
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(x), function(x))
        assert any("tl.dot" in kernel.source for kernel in compiled.kernels.values())


@pytest.mark.triton
def test_steps_of_large_parts_fit_into_shared_memory() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x], -1).double().mean([0, 1])

    torch._dynamo.reset()
    compiled = fusec.compile(f, target="triton")
    x = torch.randn(8, 2080)
    torch.testing.assert_close(compiled(x), f(x))
    (kernel,) = compiled.kernels.values()
    tunables = {t.name: t.value for t in kernel.tunables}
    assert "SPLITS" in tunables
    ahead = (tunables["NUM_STAGES"] - 1) * tunables["UNROLL"] * tunables["RBLOCK"] * 2 * 4
    assert ahead <= 227 << 10


def test_a_computed_size_that_is_one_is_broadcast() -> None:
    """It is ``(s0 - 1) // 3 + 1``, and torch has asked whether it is 1."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        row = x.unfold(-1, 1, 3)
        return F.pad(row, [1, 1, 0, 2]) - row, row + torch.ones(4, 3), row.expand(5, 1) * 2

    torch._dynamo.reset()
    compiled = fusec.compile(f, dynamic=True)
    for size in (3, 2, 3):
        x = torch.randn(size)
        for found, wanted in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(found, wanted)
    assert not compiled.fallbacks


def test_what_is_the_same_along_the_innermost_loop_is_not_kept() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = F.adaptive_avg_pool2d(x, 3)  # of one column three equal ones
        apart = x.mean((1, 2, 3), keepdim=True) - pooled
        return pooled, F.batch_norm(apart, None, None, training=True)

    torch._dynamo.reset()
    compiled = fusec.compile(f)
    x = torch.randn(1, 4, 5, 2)[..., ::2]
    torch.testing.assert_close(compiled(x), f(x))
    assert not compiled.fallbacks


EXPANDED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "product": lambda x, w: (w * x).sum(-1),
    "sum": lambda x, w: x.sum(-1) + w[:, 0],
    "maximum": lambda x, w: (x - w.abs()).amax(-1),
    "least": lambda x, w: x.amin(-1) + w[:, 0],
    "softmax": lambda x, w: torch.softmax(x + w, -1),
    "norm": lambda x, w: F.layer_norm(x * 2 + w, (70,)),
}


@pytest.mark.sample(5)
@pytest.mark.triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", EXPANDED)
def test_rows_of_an_expanded_column(name: str, dtype: torch.dtype) -> None:
    """Of 70 elements in 128 places: what is the same along the row has no mask of its own."""
    torch._dynamo.reset()
    function = EXPANDED[name]
    compiled = fusec.compile(function, target="triton")
    for _ in range(2):
        x, w = torch.randn(33, 1).to(dtype).expand(33, 70), torch.randn(33, 70).to(dtype)
        exact = function(x.double(), w.double())
        torch.testing.assert_close(compiled(x, w).double(), exact, atol=5e-2, rtol=1e-2)
    assert not compiled.fallbacks


@pytest.mark.parametrize("right", [False, True])
def test_which_bucket(right: bool) -> None:
    boundaries = torch.tensor([-1.0, 0.0, 0.0, 0.5, 2.0])
    x = torch.tensor([[-2.0, -1.0, -0.5, 0.0], [0.25, 0.5, 2.0, 3.0]])

    def function(x: torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(x, boundaries, right=right)

    assert torch.equal(fusec.compile(function)(x, boundaries), function(x, boundaries))


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", [{"size": 9}, {"size": (9, 5)}, {"scale_factor": 2}], ids=str)
def test_images_of_bytes_are_enlarged(how: dict[str, object]) -> None:
    x = torch.randint(0, 256, (1, 3, 6, 8), dtype=torch.uint8)

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, mode="bilinear", **how) // 2  # type: ignore[arg-type]

    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
    # taken apart it would be computed in float, and rounded otherwise
    assert any("interpolate_bytes" in extern.name for extern in compiled.graphs[0].externs)


def test_sums_of_columns_beside_the_places_of_their_largest() -> None:
    """Threads that share the rows of a sum would each find a place of their own."""
    x = torch.randint(-50, 50, (20_000, 12)).float()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(0), x.argmax(0), (x + 1).argmin(0)

    compiled = fusec.compile(function)
    total, largest, smallest = compiled(x)
    assert torch.equal(total, x.sum(0))
    # the first of several, as in eager
    assert torch.equal(largest, (x == x.amax(0)).int().argmax(0))
    assert torch.equal(smallest, (x == x.amin(0)).int().argmax(0))
    (kernel,) = compiled.kernels.values()
    assert "PIECES" not in kernel.source


def test_a_value_of_no_column_beside_sums_of_columns() -> None:
    x, z = torch.randn(3, 40, 70), torch.randn(3)

    def function(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * z[:, None, None]).sum(1), (z[:, None] * 2).expand(3, 70).contiguous()

    torch.testing.assert_close(fusec.compile(function)(x, z), function(x, z))
