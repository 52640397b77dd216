"""Writes whose sizes do not fit, or that reach one element twice: as eager, errors and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

Case = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
ROWS = torch.tensor([1, 2, 3])


def put(x: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    x[index] = value
    return x


# Of x (16 x 16), y (16 x 2) and v (6): what eager refuses, and beside it what it computes.
CASES: dict[str, Case] = {
    "slice_scatter, too narrow": lambda x, y, v: x.slice_scatter(y, 1, 4, 10),
    "slice_scatter": lambda x, y, v: x.slice_scatter(y, 1, 4, 6),
    "slice_scatter, from the end": lambda x, y, v: x.slice_scatter(y, 1, -2),
    "select_scatter, of one": lambda x, y, v: x.select_scatter(v[:1], 1, 4),
    "select_scatter, outside": lambda x, y, v: x.select_scatter(y[:, 0], 1, 40),
    "select_scatter": lambda x, y, v: x.select_scatter(y[:, 0], 1, -4),
    "diagonal_scatter, too short": lambda x, y, v: x.diagonal_scatter(v),
    "diagonal_scatter": lambda x, y, v: x.diagonal_scatter(y[:15, 0], 1),
    "index_add, of other rows": lambda x, y, v: x.index_add(0, ROWS[:2], y[:2]),
    "index_add": lambda x, y, v: x.index_add(1, ROWS[:2], y),
    "index_select by a matrix": lambda x, y, v: x.index_select(0, ROWS.view(3, 1)),
    "index_put of other rows": lambda x, y, v: x.index_put((ROWS,), x[:2]),
    "index_put with a dimension more": lambda x, y, v: x.index_put((ROWS,), x[None, :1]),
    "index_put": lambda x, y, v: x.index_put((ROWS,), x[:1]),
    "index_put of columns and rows": lambda x, y, v: x.index_put(
        (ROWS, ROWS[:2, None]), y[:3].t(), accumulate=True
    ),
    "assignment of other rows": lambda x, y, v: put(x, ROWS, x[:2] + 1),
    "assignment with dimensions more": lambda x, y, v: put(x, ROWS, x[None, None, :3] + 1),
    "assignment of columns": lambda x, y, v: put(x, (slice(None), ROWS[:2]), y),
    "assignment by a mask": lambda x, y, v: put(x, x > 0, 1.0),
    "assignment by a shorter mask": lambda x, y, v: put(x, v > 0, 1.0),
    "assignment by a mask of a row": lambda x, y, v: put(y, v[:2] > 0, 1.0),
    "assignment by a mask, for columns": lambda x, y, v: put(y, (slice(None), v > 0), 1.0),
    "assignment by a mask, from the end": lambda x, y, v: put(y, (..., v[:2] > 0), 1.0),
    "assignment by a mask and None": lambda x, y, v: put(y, (None, y[:, 0] > 0), v[0]),
    "assignment by a mask, unread": lambda x, y, v: put(y.clone(), v > 0, 1.0).shape[0] + x,
    "compared in place with more": lambda x, y, v: x[0].clone().gt_(x) + v[0],
    "compared in place with more, a view": lambda x, y, v: (v * 2)[:, None].lt_(v),
    "in place twice, with more": lambda x, y, v: v.clone().mul_(2).clamp_(x[:, :6]),
    "an input compared in place with more": lambda x, y, v: v.gt_(x[:, :6]),
    "an input divided in place by more": lambda x, y, v: v.clone().__ifloordiv__(x[:, :6]),
    "compared in place with less": lambda x, y, v: x.clone().gt_(x[0]) + v[0],
    "out= of another size": lambda x, y, v: torch.histogram(x, 5, out=(v, v.clone())),
    "out= of the size": lambda x, y, v: torch.histogram(x, 6, out=(v, torch.empty(7))),
    "out= by other names": lambda x, y, v: torch.ops.aten._native_batch_norm_legit.out(
        y,
        None,
        None,
        v[:2],
        v[2:4],
        True,
        0.1,
        1e-5,
        out=x,
        save_mean=torch.zeros(3),
        save_invstd=torch.zeros(3),
    ),
    "expanded, times": lambda x, y, v: v.expand(3, 6).mul_(2),
    "expanded, cut": lambda x, y, v: v.expand(3, 6).clamp_(0, 1),
    "expanded, out=": lambda x, y, v: torch.add(x[:3, :6], 1, out=v.expand(3, 6)),
    # AOTAutograd sums what lands on one element.
    "expanded, filled": lambda x, y, v: (v.expand(3, 6).fill_(2), v),
    "expanded to one": lambda x, y, v: (v.expand(1, 6).mul_(2), v),
    "expanded to none": lambda x, y, v: v.expand(0, 6).mul_(2),
    # Each element more than once, in the order in which they lie.
    "windows": lambda x, y, v: (v.unfold(0, 3, 1).add_(1), v),
    "rows that overlap": lambda x, y, v: (v.as_strided((3, 2), (1, 1)).mul_(2), v),
    "rows that do not": lambda x, y, v: (v.as_strided((3, 2), (2, 1)).mul_(2), v),
    "its own neighbors": lambda x, y, v: v[1:].add_(v[:-1]),
    "its own halves": lambda x, y, v: (v[:3].add_(v[3:]), v),
    "itself": lambda x, y, v: v.add_(v),
    "itself, in another form": lambda x, y, v: x.view(-1).mul_(x.view(256)),
    "its own transpose": lambda x, y, v: x.mul_(x.t()),
    "its own rows": lambda x, y, v: x.add_(x[0]),
    "into its own neighbors": lambda x, y, v: torch.add(x[1:], 1, out=x[:-1]),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_as_eager(name: str, dynamic: bool) -> None:
    given = torch.randn(16, 16), torch.randn(16, 2), torch.randn(6)
    ours, theirs = ([each.clone() for each in given] for _ in range(2))
    compiled = fusec.compile(CASES[name], dynamic=dynamic)
    try:
        expected = CASES[name](*theirs)
    except (RuntimeError, IndexError) as error:
        with pytest.raises(type(error)):
            compiled(*ours)
    else:
        torch.testing.assert_close(compiled(*ours), expected)
    torch.testing.assert_close(ours, theirs)


def test_the_error_is_all_that_one_sees(capfd: pytest.CaptureFixture[str]) -> None:
    compiled = fusec.compile(CASES["expanded, times"])
    with pytest.raises(RuntimeError, match="single memory location"):
        compiled(torch.randn(16, 16), torch.randn(16, 2), torch.randn(6))
    assert "Traceback" not in capfd.readouterr().err


def test_a_custom_operator_may_be_called_like_one_of_torchs() -> None:
    with torch.library._scoped_library("writes_of_mine", "FRAGMENT") as library:
        library.define("index_select(Tensor x) -> Tensor")
        library.impl("index_select", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_fake("writes_of_mine::index_select", torch.empty_like, lib=library)
        compiled = fusec.compile(lambda x: torch.ops.writes_of_mine.index_select(x) + 1)
        x = torch.randn(4, 5)
        torch.testing.assert_close(compiled(x), x * 2 + 1)
        (graph,) = compiled.graphs
        assert not graph.fallback


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_custom_operator_may_read_what_it_updates(dynamic: bool) -> None:
    """AOTAutograd would have it read what was there before."""

    def double_and_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> None:
        z.mul_(2)
        x.add_(y)

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        made = x * 1
        torch.ops.updates_of_mine.double_and_add(made[0], made[1], made[1:])
        torch.ops.updates_of_mine.double_and_add(x[0], y, x[1:])
        return made, x + 1

    with torch.library._scoped_library("updates_of_mine", "FRAGMENT") as library:
        library.define("double_and_add(Tensor(a!) x, Tensor y, Tensor(b!) z) -> ()")
        library.impl("double_and_add", double_and_add, "CompositeExplicitAutograd")
        x, y = torch.randn(3, 4), torch.randn(4)
        ours = x.clone()
        compiled = fusec.compile(function, dynamic=dynamic)
        torch.testing.assert_close(compiled(ours, y), function(x, y))
        torch.testing.assert_close(ours, x)
