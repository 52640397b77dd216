"""Frozen mode and the native part of calls, which is built in the background."""

from __future__ import annotations

import errno
import threading

import pytest
import torch

import fusec
from fusec.call import native
from fusec.call.native_part import NativePart, passes
from fusec.capture.shortcut import Shortcut
from fusec.device import driver
from fusec.errors import BuildTimeout, CannotBuild, CompileError, CompilerNotFound, Diagnostic
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

    for name, value in {"_thread": None, "_lack": native._Lack(), "_failed": 0}.items():
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


_FULL = CannotBuild(OSError(errno.ENOSPC, "No space left on device"))
_ENDED = CompileError((), "error: the compiler was ended by signal 9 (Killed)")
_WRONG = CompileError((Diagnostic(3, 1, "error", "Python.h: No such file"),), "...")


def test_what_passes():
    assert all(map(passes, (_FULL, _ENDED, BuildTimeout(60), OSError(errno.EAGAIN, "busy"))))
    lasting = (_WRONG, CompilerNotFound("none", ""), NotImplementedError("only made for Linux"))
    assert not any(map(passes, lasting))


@pytest.mark.parametrize("error", [_FULL, _ENDED, BuildTimeout(60)], ids=lambda e: type(e).__name__)
def test_a_part_whose_build_failed_for_what_passes_is_built_another_time(error):
    errors = [error]

    def load(children):
        if errors:
            raise errors.pop()
        return "found"

    part = NativePart(load)
    part.prepare(Children())
    assert part.found is None
    assert part.problem
    part.prepare(Children())
    assert (part.found, part.problem) == ("found", "")


def test_a_part_that_cannot_be_built_is_not_tried_again():
    tried = []

    def load(children):
        tried.append(1)
        raise _WRONG

    part = NativePart(load)
    part.prepare(Children())
    part.prepare(Children())
    assert len(tried) == 1


def test_the_native_part_is_built_when_the_disk_has_room_again(background, monkeypatch):
    go, built = background
    go.set()
    full = [_FULL]

    def prepare_all(awaited):
        if full:
            raise full[0]
        built.append(awaited)

    monkeypatch.setattr(native, "_prepare_all", prepare_all)
    native.types(wait=True)
    assert "No space left" in native.problem()
    full.clear()
    assert not native.is_lost()  # which asks for it
    native._thread.join()
    assert built == [False]
    assert native.problem() == ""


def test_it_is_not_tried_for_ever(background, monkeypatch):
    tried = []

    def prepare_all(awaited):
        tried.append(1)
        raise _FULL

    monkeypatch.setattr(native, "_prepare_all", prepare_all)
    for _ in range(10):
        native.types(wait=True)
    assert len(tried) == 3
    assert native.is_lost()


def test_a_function_that_is_called_while_frozen_learns_its_short_way_later(background):
    go, built = background
    go.set()
    shortcut = Shortcut(lambda: None, None)
    with fusec.frozen():
        native.types(wait=True)
        assert native.problem().startswith("FrozenMiss")
        assert not shortcut.learn((), (), {})  # it took this for the last word
    assert not shortcut.learn((), (), {})
    native._thread.join()
    assert built == [False]


def test_a_gpu_without_the_native_part_yet_is_looked_for_again(monkeypatch):
    asked = []
    monkeypatch.setattr(driver, "_machine", lambda found: asked.append(found) or "there")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(native, "device_types", lambda: None)
    assert driver.machine() is None
    monkeypatch.setattr(native, "device_types", lambda: "types")
    assert driver.machine() == "there"
    assert asked == ["types"]
