"""A cell of very many lines: the scheduler's work grows as their number, not as its square."""

from __future__ import annotations

import pytest
import torch

from fusec.ir import body
from fusec.ir.walk import walk
from fusec.schedule import align
from support.interpreted import Interpreted


def chain(links):
    def function(x, w):
        for link in range(links):
            x = x * 0.5 + link if link % 2 else x - w
        return x

    return function


@pytest.fixture
def rewritten(monkeypatch):
    """The values that are written anew, one number a call."""
    counts: list[int] = []
    original = body.rewrite

    def counted(roots, *rest, **more):
        counts.append(len(walk(tuple(roots))))
        return original(roots, *rest, **more)

    monkeypatch.setattr(body, "rewrite", counted)
    monkeypatch.setattr(align, "rewrite", counted)
    return counts


def test_a_chain_of_twice_as_many_links_is_twice_the_work(rewritten):
    work = []
    for links in (80, 160):
        torch._dynamo.reset()
        rewritten.clear()
        function, given = chain(links), (torch.randn(3, 5), torch.randn(3, 5))
        found = torch.compile(function, backend=Interpreted(), dynamic=False)(*given)
        torch.testing.assert_close(found, function(*given))
        work.append(sum(rewritten))
    assert work[1] < 2.7 * work[0], work
