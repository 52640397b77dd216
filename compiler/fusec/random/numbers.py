"""The numbers themselves, and the operators that draw them, as plain torch: the reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fusec.random.generators import own_generator

ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_INCREMENTS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def random_bits(
    seed: torch.Tensor, position: torch.Tensor, stream: int | torch.Tensor, word: int
) -> torch.Tensor:
    """Return 32 random bits for each position, as int32.

    Args:
        seed: int64, of a shape that broadcasts with ``position``.
        position: int64.
        stream: Which of the graph's random tensors.
        word: Which of the four words, 0 to 3.
    """
    return _as_int32(_numbers(seed, position, stream)[word])


def random_word(
    seed: torch.Tensor, position: torch.Tensor, stream: int | torch.Tensor
) -> torch.Tensor:
    """Return 32 random bits for each position, as int32, a quarter of a Philox number each.

    Positions go 64 by 64: the first words of 16 numbers, then their second ones, and so on.  So a
    vector of 16 lanes computes 64 words without moving any from lane to lane.

    Args:
        seed: int64, of a shape that broadcasts with ``position``.
        position: int64.
        stream: Which of the graph's random tensors.
    """
    number = position >> 6 << 4 | position & 15
    words = torch.stack(torch.broadcast_tensors(*_numbers(seed, number, stream)))
    which = (position >> 4 & 3).expand(words.shape[1:])
    return _as_int32(words.gather(0, which[None])[0])


def _numbers(
    seed: torch.Tensor, position: torch.Tensor, stream: int | torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the four words of the Philox number of each position, as non-negative int64."""
    c0, c1 = position & _WORD, (position >> 32) & _WORD
    c2, c3 = torch.zeros_like(c0) + stream, torch.zeros_like(c0)
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    for _ in range(ROUNDS):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high2, low2 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _INCREMENTS[0]) & _WORD, (k1 + _INCREMENTS[1]) & _WORD
    return c0, c1, c2, c3


def _as_int32(bits: torch.Tensor) -> torch.Tensor:
    return torch.where(bits > 0x7FFFFFFF, bits - (1 << 32), bits).to(torch.int32)


def _product(x: torch.Tensor, y: int) -> tuple[torch.Tensor, torch.Tensor]:
    product = x * y  # modulo 2**64, which keeps all bits of it
    return (product >> 32) & _WORD, product & _WORD


# What a random tensor is made of: mantissa bits that a dtype takes, as torch's own generators do.
MANTISSA = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.float64: 53}


def uniform(
    seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return numbers from [0, 1), all multiples of the same power of two being equally likely.

    Args:
        seed: int64, one element.
        stream: Which of the graph's random tensors.
        size: Shape of the result.
        dtype: Of the result; floating point.
    """
    position = _positions(seed, size)
    bits = MANTISSA[dtype]
    if dtype == torch.float64:
        words = random_bits(seed, position, stream, 0).to(torch.int64) & _WORD
        second = random_bits(seed, position, stream, 1).to(torch.int64) & _WORD
        words = ((words & 0x1FFFFF) << 32) | second
    else:
        words = random_word(seed, position, stream).to(torch.int64) & ((1 << bits) - 1)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    return (words.to(real) * 2.0**-bits).to(dtype)


def normal(
    seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return normally distributed numbers by the method of Box and Muller.

    Arguments as for ``uniform``.
    """
    position = _positions(seed, size)
    real = torch.float64 if dtype == torch.float64 else torch.float32
    first = random_bits(seed, position, stream, 0).to(torch.int64) & _WORD
    second = random_bits(seed, position, stream, 1).to(torch.int64) & _WORD
    radius = torch.sqrt(-2.0 * torch.log((first.to(real) + 0.5) * 2.0**-32))
    angle = (second & 0xFFFFFF).to(real) * (2.0 * math.pi * 2.0**-24)
    return (radius * torch.cos(angle)).to(dtype)


def integers(
    seed: torch.Tensor, stream: int, low: int, high: int, size: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """Return integers from [low, high).

    Further arguments as for ``uniform``, with any dtype.
    """
    position = _positions(seed, size)
    if high - low <= 1 << 31:
        first = random_word(seed, position, stream).to(torch.int64) & _WORD
        return (((first * (high - low)) >> 32) + low).to(dtype)
    first = random_bits(seed, position, stream, 0).to(torch.int64) & _WORD
    second = random_bits(seed, position, stream, 1).to(torch.int64) & _WORD
    wide = ((first & 0x7FFFFFFF) << 32) | second
    return (wide % (high - low) + low).to(dtype)


def _positions(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    count = math.prod(size)
    return torch.arange(count, dtype=torch.int64, device=seed.device).reshape(tuple(size))


# -- as torch operators ---------------------------------------------------------------------------

_LIBRARY = torch.library.Library("fusec", "DEF")
_LIBRARY.define("uniform(Tensor seed, int stream, SymInt[] size, ScalarType dtype) -> Tensor")
_LIBRARY.define("normal(Tensor seed, int stream, SymInt[] size, ScalarType dtype) -> Tensor")
_LIBRARY.define(
    "integers(Tensor seed, int stream, SymInt low, SymInt high, SymInt[] size, ScalarType dtype)"
    " -> Tensor"
)
for _function in (uniform, normal, integers):
    _LIBRARY.impl(_function.__name__, _function, "CompositeExplicitAutograd")


def _fake(seed: torch.Tensor, stream: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return seed.new_empty(size, dtype=dtype)


def _fake_integers(
    seed: torch.Tensor, stream: int, low: int, high: int, size: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    return seed.new_empty(size, dtype=dtype)


for _name, _shape in (("uniform", _fake), ("normal", _fake), ("integers", _fake_integers)):
    # as `register_fake` does, which looks at every module there is to find who calls it
    _LIBRARY.impl(_name, _shape, "Meta")

SEED_RANGE = (-(2**63), 2**63 - 1)


def random_seed(device: torch.device) -> torch.Tensor:
    """Return a seed from the generator of ``device``: int64, one element."""
    own = own_generator(device)
    if own is None:
        return torch.randint(*SEED_RANGE, (), dtype=torch.int64, device=device)
    return torch.randint(*SEED_RANGE, (), generator=own, dtype=torch.int64, device=device)


__all__ = [
    "MANTISSA",
    "ROUNDS",
    "SEED_RANGE",
    "integers",
    "normal",
    "random_bits",
    "random_seed",
    "random_word",
    "uniform",
]
