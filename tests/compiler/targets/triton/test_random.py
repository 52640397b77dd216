"""Random bodies, from a seed: whatever the IR can say, Triton computes as the reference does."""

from __future__ import annotations

import pytest

from fusec.ir.node import recording
from support.random_bodies import Maker, settled
from support.triton_cases import run


def check(seed: int, reduces: bool, strategy: str = "") -> None:
    with recording():
        case = Maker(seed, reduces).case()
        if not settled(case):
            pytest.skip("a comparison or a cancellation on the edge: no result is the right one")
    run(case, strategy)


@pytest.mark.parametrize("seed", range(15))
def test_random_pointwise_bodies(seed: int) -> None:
    check(seed, reduces=False)


@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(20))
def test_random_reducing_bodies(seed: int) -> None:
    check(1000 + seed, True, ("persistent", "looped", "split", "")[seed % 4])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15, 200))
def test_more_random_bodies(seed: int) -> None:
    check(seed, reduces=False)
    check(5000 + seed, True, ("persistent", "looped", "split", "")[seed % 4])
