"""What somebody wants of the fusion: which pairs, and whose word counts."""

from __future__ import annotations

import itertools

from fusec.schedule.overrides import LoopOverride, Overrides, pair


def test_a_pair_is_one_of_each_side_in_either_order() -> None:
    named = frozenset({pair("a", "b"), pair("c", "c")})
    sides: list[set[str]] = [{"a"}, {"b"}, {"a", "x"}, {"b", "y"}, {"x"}, {"c"}, set(), {"a", "b"}]
    for one, other in itertools.product(sides, sides):
        expected = ("a" in one and "b" in other) or ("b" in one and "a" in other)
        assert Overrides(apart=named).forbids(one, other) is expected, (one, other)
        assert Overrides(together=named).wants(one, other) is expected
    assert not Overrides(together=named).forbids({"a"}, {"b"})
    assert not Overrides(apart=named).wants({"a"}, {"b"})
    assert Overrides().forbids({"a"}, {"b"}) is False
    assert Overrides().wants({"a"}, {"b"}) is False


def test_the_first_word_counts() -> None:
    ab, cd, ef = pair("a", "b"), pair("c", "d"), pair("e", "f")
    loops = LoopOverride("a", "rows"), LoopOverride("b"), LoopOverride("a", "rows")
    mine = Overrides(frozenset({ab}), frozenset({cd}), loops[:1])
    others = Overrides(frozenset({cd, ef}), frozenset({ab, ef}), loops[1:])
    assert mine.over(others) == Overrides(
        frozenset({ab, ef}), frozenset({cd, ef}), (loops[0], loops[1])
    )
