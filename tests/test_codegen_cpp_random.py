"""C++ kernels of random bodies compute what the reference interpreter computes."""

from __future__ import annotations

import pytest

from codegen_cpp_bodies import check, random_bench
from fusec.runtime.cpp_build import build_many

BLOCK = 10


@pytest.mark.parametrize("block", range(16))
def test_random_bodies(block: int) -> None:
    seeds = range(block * BLOCK, (block + 1) * BLOCK)
    benches = [(seed, random_bench(seed)) for seed in seeds]
    build_many([bench.source().text for _, bench in benches])
    for seed, bench in benches:
        check(bench, seed=seed, special=seed % 3 == 0, context=f"seed {seed}")
