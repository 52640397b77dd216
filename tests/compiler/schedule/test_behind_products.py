"""Kernels right behind a product, whose threads are awake, are shared out sooner."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

THREADS = "#pragma omp parallel"


def square(size: int) -> torch.Tensor:
    return torch.randn(size, size)


def kernel_texts(function: Callable[..., object], *args: torch.Tensor) -> list[str]:
    """Return the kernels of a function, of which the results are eager's."""
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(*args), function(*args), rtol=2e-5, atol=2e-5)
    return [kernel.source for kernel in compiled.kernels.values()]


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        (lambda x, y: (x @ y).softmax(-1), (100, 100)),
        (lambda x, y: torch.addmm(y[0], x, y).softmax(-1), (100, 100)),
        (lambda x, y: (x.view(4, 25, 100) @ y.expand(4, 100, 100)).softmax(-1), (100, 100)),
        (lambda x, y: F.gelu(x @ y), (130, 130)),
    ],
)
def test_what_follows_a_product_is_shared_out(
    function: Callable[..., torch.Tensor], sizes: tuple[int, int]
) -> None:
    (text,) = kernel_texts(function, square(sizes[0]), square(sizes[1]))
    assert THREADS in text


def test_kernels_elsewhere_and_cheap_or_short_ones_are_not() -> None:
    x, y = square(100), square(100)
    thin = torch.randn(100, 4), torch.randn(4, 100)
    # no product before; one that no library shares out; elements that are soon done; too few
    assert THREADS not in "".join(kernel_texts(lambda x: x.softmax(-1), x))
    assert THREADS not in "".join(kernel_texts(lambda x, y: (x @ y).softmax(-1), *thin))
    assert THREADS not in "".join(kernel_texts(lambda x, y: (x @ y).relu(), x, y))
    assert THREADS not in "".join(kernel_texts(lambda x, y: F.gelu(x @ y), x, y))


def test_a_kernel_of_any_size_keeps_its_grain() -> None:
    compiled = fusec.compile(lambda x, y: (x @ y).softmax(-1), dynamic=True)
    x, y = square(100), square(100)
    torch.testing.assert_close(compiled(x, y), (x @ y).softmax(-1))
    (kernel,) = compiled.kernels.values()
    assert "GRAIN = 32768" in kernel.source
