"""Knobs and search: every proposal once, downhill, and an end."""

from __future__ import annotations

import random

import pytest

from fusec.tunables import Tunable
from fusec.tune.knobs import Knobs
from fusec.tune.plan_search import PlanSearch
from fusec.tune.search import Search


def tunable(name, value, *choices):
    return Tunable(name, value, choices, "", 1)


SMALL = [tunable("A", 2, 1, 2, 4), tunable("B", 16, 16, 32)]
GRAIN = tunable("G", 2, 1, 2, 4)
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


def plans(**texts):
    return PlanSearch({name: Knobs(tuple(tunables)) for name, tunables in texts.items()}, seed=0)


def follow(search, cost):
    """Answer proposals as they come; return the points in order."""
    points = []
    while (point := search.propose()) is not None:
        points.append(point)
        search.tell(point, cost(point))
    return points


def test_every_plan_is_tried_and_the_fastest_is_searched():
    search = plans(a=[GRAIN], b=[GRAIN], c=[])
    points = follow(search, lambda p: {"a": 2.0, "b": 1.0, "c": 1.5}[p.plan])
    assert [p.plan for p in points[:3]] == ["a", "b", "c"]
    assert {p.plan for p in points[3:]} == {"b"}
    assert len({p.values for p in points if p.plan == "b"}) == len(GRAIN.choices)
    assert search.total == len(points)


def test_plans_that_are_close_are_searched_too():
    points = follow(plans(a=[GRAIN], b=[GRAIN]), lambda p: {"a": 1.1, "b": 1.0}[p.plan])
    order = [p.plan for p in points]
    assert order == ["a", "b", *["b"] * (len(GRAIN.choices) - 1), *["a"] * (len(GRAIN.choices) - 1)]


def test_a_plan_that_fails_is_not_searched():
    points = follow(plans(a=[GRAIN], b=[GRAIN]), lambda p: None if p.plan == "a" else 1.0)
    assert [p.plan for p in points].count("a") == 1


def test_which_plan_is_searched_waits_for_the_answers():
    search = plans(a=[GRAIN], b=[GRAIN])
    first, second = search.propose(), search.propose()
    assert search.propose() is None
    search.tell(first, 1.0)
    assert search.propose() is None
    search.tell(second, 3.0)
    assert search.propose().plan == "a"
