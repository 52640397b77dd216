"""Random numbers that are a function of a seed and a position.

A compiled graph draws one seed a call from torch's own generator, so that ``torch.manual_seed``
makes its results repeatable; every random tensor of the graph is a *stream* of its own, and each
element a function of (seed, stream, position).  Kernels compute numbers where they are used, in any
order, and forward and backward see the same ones.

The bits are those of Philox 4x32 with 7 rounds: Salmon, Moraes, Dror, Shaw, "Parallel random
numbers: as easy as 1, 2, 3" (SC 2011), who found 7 rounds to pass all of BigCrush.  ``numbers`` is
the reference: plain torch operators, which eager fallbacks and comparisons with eager run.
"""

from __future__ import annotations

from fusec.random.generators import Generators, generators_kept, reseed
from fusec.random.numbers import (
    MANTISSA,
    ROUNDS,
    SEED_RANGE,
    integers,
    normal,
    random_bits,
    random_seed,
    random_word,
    uniform,
)
from fusec.random.replaced import RULES, SUPPORTED, Rule, SameNumbers, Source, may_replace

__all__ = [
    "MANTISSA",
    "ROUNDS",
    "RULES",
    "SEED_RANGE",
    "SUPPORTED",
    "Generators",
    "Rule",
    "SameNumbers",
    "Source",
    "generators_kept",
    "integers",
    "may_replace",
    "normal",
    "random_bits",
    "random_seed",
    "random_word",
    "reseed",
    "uniform",
]
