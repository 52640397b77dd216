"""Knobs and search: every proposal once, downhill, and an end."""

from __future__ import annotations

import random

import pytest

from fusec.tunables import Tunable
from fusec.tune.knobs import Knobs
from fusec.tune.search import Search


def tunable(name, value, *choices):
    return Tunable(name, value, choices, "", 1)


SMALL = [tunable("A", 2, 1, 2, 4), tunable("B", 16, 16, 32)]
LARGE = [tunable(name, 8, 1, 2, 4, 8, 16, 32, 64) for name in "ABCD"]


def test_knobs():
    knobs = Knobs([*SMALL, tunable("C", 3, 1, 2)])
    assert knobs.start == (("A", 2), ("B", 16), ("C", 3))
    assert knobs.choices[2] == (1, 2, 3)
    assert len(knobs) == 18 == len(set(knobs.all()))
    assert (("A", 4), ("B", 16), ("C", 3)) in knobs.neighbors(knobs.start)
    assert len(knobs.neighbors(knobs.start)) == 4
    assert len(knobs.lines(knobs.start)) == 5
    assert knobs.random(random.Random(0)) in set(knobs.all())


def run(search, cost, limit=10_000, ahead=1):
    tried = []
    while len(tried) < limit:
        batch = []
        while len(batch) < ahead and (config := search.propose()) is not None:
            batch.append(config)
        if not batch:
            return tried
        for config in batch:
            tried.append(config)
            search.tell(config, cost(dict(config)))
    return tried


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_small_space_is_tried_as_a_whole(ahead):
    search = Search(Knobs(SMALL))
    assert search.total == 6
    tried = run(search, lambda c: abs(c["A"] - 4) + abs(c["B"] - 32), ahead=ahead)
    assert tried[0] == Knobs(SMALL).start
    assert len(tried) == len(set(tried)) == 6
    assert search.best == (("A", 4), ("B", 32))


@pytest.mark.parametrize("ahead", [1, 4])
def test_a_large_space_is_descended(ahead):
    search = Search(Knobs(LARGE), seed=1)
    target = {"A": 64, "B": 1, "C": 16, "D": 8}

    def cost(config):
        return 1 + sum(abs(config[k].bit_length() - v.bit_length()) for k, v in target.items())

    tried = run(search, cost, ahead=ahead)
    assert tried[0] == search.knobs.start
    assert len(tried) == len(set(tried)) < 7**4 / 4
    assert dict(search.best) == target
    assert search.total >= len(tried)


def test_failures_are_no_best():
    search = Search(Knobs(SMALL))
    run(search, lambda c: None if c["B"] == 16 else c["A"])
    assert search.best == (("A", 1), ("B", 32))
    nothing = Search(Knobs(SMALL))
    assert len(run(nothing, lambda c: None)) == 6
    assert nothing.best is None


def test_failures_in_a_large_space_end():
    search = Search(Knobs(LARGE), seed=0)
    assert 1 < len(run(search, lambda c: None)) < 7**4
    assert search.best is None


def test_no_knobs():
    search = Search(Knobs([]))
    assert search.propose() == ()
    search.tell((), 1.0)
    assert search.propose() is None
    assert search.best == ()


def test_a_random_restart_can_win():
    # Two valleys; the descent from the start ends in the wrong one.
    def cost(config):
        a = config["A"].bit_length()
        return 10 - 5 * (a == 7) if a > 5 else 6 + abs(a - 2)

    knobs = Knobs([tunable("A", 2, 1, 2, 4, 8, 16, 32, 64), *LARGE[1:]])
    search = Search(knobs, seed=3)
    run(search, cost)
    assert dict(search.best)["A"] == 64
