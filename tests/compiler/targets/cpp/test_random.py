"""C++ kernels of random bodies compute what the reference interpreter computes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fusec.targets.cpp.plan import choices
from fusec.toolchain.build import build
from support.cpp_bodies import check, random_bench

BLOCK = 10
# With these, bodies of a few hundred elements take the paths of large ones.
SHRUNK = {
    "GRAIN": 4,
    "GRAIN_EXPENSIVE": 4,
    "SUM_CHUNK": 16,
    "INDEX_CHUNK": 8,
    "COLUMNS": 16,
    "SCAN_COLUMNS": 16,
    "ROW_CHUNK": 4,
    "PIECES": 4,
    "UNCUT_ROWS": 6,
    "NARROW_COLUMNS": 8,
    "KEEP_COST": 1,
    "SCAN_BLOCK": 16,
    "SCAN_BLOCK_COST": 1,
    "BLOCK": 16,
    "TILE_BYTES": 64,
    "MIN_TILE": 2,
    "LINE": 8,
    "PREFETCH_DISTANCE": 12,
    "SMALL_BUFFER": -1,
    "WORTH_ASKING": 0,
    "ROW_IN_CACHE": 64,
    "MIN_BLOCKED": 8,
    "TABLE_COST": 1,
    "TABLE_ROWS": 2,
    "TURNED_LEAST_ROWS": 2,
    "TURNED_COST": 0,
    "TURNED_ROWS": 8,
    "TURNED_ROWS_LEAST": 4,
}


def check_block(block: int) -> None:
    seeds = range(block * BLOCK, (block + 1) * BLOCK)
    benches = [(seed, random_bench(seed)) for seed in seeds]
    with ThreadPoolExecutor() as pool:
        list(pool.map(build, [bench.source().text for _, bench in benches]))
    for seed, bench in benches:
        check(bench, seed=seed, special=seed % 3 == 0, context=f"seed {seed}")


@pytest.mark.sample(1)
@pytest.mark.parametrize("block", range(6))
def test_random_bodies(block: int) -> None:
    check_block(block)


@pytest.mark.sample(1)
@pytest.mark.parametrize("block", range(100, 109))
def test_random_bodies_as_if_large(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHRUNK.items():
        monkeypatch.setattr(choices, name, value)
    check_block(block)
