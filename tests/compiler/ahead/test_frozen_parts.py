"""Frozen mode and the native part of calls, which is built in the background."""

from __future__ import annotations

import threading

import pytest

import fusec
from fusec.call import native
from fusec.call.native_part import NativePart
from fusec.freezing import refuse_if_frozen
from fusec.toolchain.children import Children


@pytest.fixture
def background(monkeypatch):
    """The native part as a process begins, with a build that waits to be let go."""
    go, built = threading.Event(), []

    def prepare_all(awaited):
        go.wait(60)
        refuse_if_frozen("the native part")
        built.append(awaited)

    for name, value in {"_thread": None, "_refused": False, "_problem": ""}.items():
        monkeypatch.setattr(native, name, value)
    monkeypatch.setattr(native, "_prepare_all", prepare_all)
    monkeypatch.setattr(native, "_types", None)
    yield go, built
    go.set()
    if native._thread is not None:
        native._thread.join()


def test_a_build_that_began_before_goes_on(background):
    go, built = background
    native.prepare()
    with fusec.frozen():
        go.set()
        native.types(wait=True)
    assert built == [False]
    assert native.problem() == ""


def test_a_build_that_nothing_may_begin_begins_later(background):
    go, built = background
    go.set()
    with fusec.frozen():
        native.types(wait=True)
        assert native.problem().startswith("FrozenMiss")
        native.types(wait=True)  # not again and again meanwhile
    assert built == []
    native.types(wait=True)
    assert built == [True]
    assert native.problem() == ""


def test_a_part_that_was_refused_is_no_lost_one():
    def load(children):
        refuse_if_frozen("a part")
        return "found"

    part = NativePart(load)
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss):
        part.prepare(Children())
    assert (part.found, part.problem) == (None, "")
    part.prepare(Children())
    assert part.found == "found"
