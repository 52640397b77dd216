"""Python's arithmetic and texts of numbers that TorchDynamo makes symbolic: they are Python's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

TEXTS: dict[str, Callable[[int, float], Any]] = {
    "digits": lambda n, a: f"{n:03d}",
    "spaces": lambda n, a: f"{n:5}|{n:<5}|{n!s:5}|{n!r:>5}",
    "alone": lambda n, a: f"{n}",
    "a fraction alone": lambda n, a: f"{a}",
    "rounded": lambda n, a: (f"{a:.1f}", f"{a:.2}", f"{n / 4:.1f}", f"{n:.1f}"),
    "computed": lambda n, a: f"{n * 2:04d} and {-n:4d}",
    "a width": lambda n, a: f"{a:{n}.1f}",
    "a key": lambda n, a: {"03": 1, "04": 2, "05": 3}[f"{n:02d}"],
    "format": lambda n, a: (format(a, ".1f"), format(n, "04d"), format(n), format("a", ">3")),
    "refused": lambda n, a: f"{a:d}",
    "refused by format": lambda n, a: format(a, "d"),
}
ARITHMETIC: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "halves": lambda x, n: (x.shape[0] / 2) % 1 == 0,
    "parts": lambda x, n: (x.shape[0] * 0.3) % 1,
    "a fraction": lambda x, n: x.shape[0] % 2.5,
    "a number": lambda x, n: (n % 2.5, n / 4 % 1, -n % 0.5, int(n % 1.5)),
    "of integers": lambda x, n: (x.shape[0] % 3, n % 4, -n % 4),
    "tens": lambda x, n: (round(x.shape[0], -1), round(n, -1), round(n), round(n, 1)),
}


def _said(function: Callable[..., Any], *args: Any) -> Any:
    try:
        found = function(*args)
    except Exception as error:
        return type(error)
    return repr(found)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text(name: str) -> None:
    write = TEXTS[name]
    compiled = fusec.compile(lambda x, n, a: (x + 1, write(n, a)))
    x = torch.ones(3)
    for n, a in ((3, 1.25), (4, 2.5)):
        assert _said(lambda: compiled(x, n, a)[1]) == _said(write, n, a)  # noqa: B023


def test_a_text_that_nobody_reads_fixes_no_size() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        message = f"{x.shape[0]:03d}"
        return x + 1 if x.ndim else x.reshape(int(message))

    compiled = fusec.compile(function, dynamic=True)
    for size in (4, 5, 6):
        assert compiled(torch.ones(size)).shape == (size,)
    assert len(compiled.graphs) == 1


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str) -> None:
    compute = ARITHMETIC[name]
    compiled = fusec.compile(lambda x, n: (x + 1, compute(x, n)))
    for n in (3, 4, 5, 7):
        x = torch.ones(n + 1)
        assert _said(lambda: compiled(x, n)[1]) == _said(compute, x, n)  # noqa: B023


def test_a_size_that_decides_by_its_half() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if (x.shape[0] / 2) % 1 == 0 else x - 1

    compiled = fusec.compile(function)
    for size in (4, 5, 6):
        assert torch.equal(compiled(torch.ones(size)), function(torch.ones(size)))


def test_a_factor_that_follows_from_a_size() -> None:
    compiled = fusec.compile(lambda x: x * (x.shape[0] % 2.5) + (x.shape[0] / 4) % 1)
    for size in (4, 5, 7, 8):
        wanted = torch.full((size,), size % 2.5 + size / 4 % 1)
        torch.testing.assert_close(compiled(torch.ones(size)), wanted)


DIVISIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "by a number of either sign": lambda x, n: x * (n // (n - 5)) + n % (n - 5),
    "by a negative number": lambda x, n: x * (n // -2) + n % -3,
    "a size": lambda x, n: x.sum() * (x.shape[0] // (x.shape[0] - 5)) + x.shape[0] % -3,
    "rounded up": lambda x, n: x.new_zeros(-(x.shape[0] // -2)) + 1,
    "a power": lambda x, n: x * n**n,
    "a power of a negative number": lambda x, n: x * (-n) ** n,
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", DIVISIONS)
def test_divisors_of_either_sign(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    compute = DIVISIONS[name]
    compiled = fusec.compile(compute, dynamic=True)
    for n in (3, 7, 4, 8, 3):
        x = torch.ones(n, dtype=torch.float64)
        assert torch.equal(compiled(x, n), compute(x, n)), n
