"""What a person types, clicks and moves arrives on different threads, in any order."""

from __future__ import annotations

import threading

import pytest

from support.panel_use import settle, type_text


def test_a_job_asks_the_page_for_its_text(bench, cell, monkeypatch):
    """A click may arrive before the edit that it is about."""
    editor = bench.kernels.editor
    editor._handle_custom_msg({"kind": "ready"}, [])
    typed = cell.kernels["gelu_norm"].source + "// late\n"

    def answer(message):
        seen = editor.content["seen"] + 1
        reply = {"kind": "sync", "id": message["id"], "document": editor.document}
        editor._handle_custom_msg({**reply, "text": typed, "seen": seen}, [])

    monkeypatch.setattr(editor, "send", answer)
    bench.kernels.keep.click()
    settle(bench)
    assert cell.kernels["gelu_norm"].source == typed


def test_a_closed_page_holds_nobody_up(bench, cell, monkeypatch):
    editor = bench.kernels.editor
    editor._handle_custom_msg({"kind": "ready"}, [])
    monkeypatch.setattr(editor, "send", lambda message: None)
    bench.kernels.check.click()
    settle(bench)
    assert cell.host.calls == ["check"]


def test_an_edit_that_was_overtaken_is_dropped(bench):
    editor = bench.kernels.editor
    type_text(bench, "// first")
    type_text(bench, "// second")
    stale = {"kind": "edit", "document": editor.document, "text": "// first", "seen": 1}
    editor._handle_custom_msg(stale, [])
    assert editor.text == "// second"
    assert bench.bench.draft("gelu_norm") == "// second"


def test_showing_what_is_known_does_not_undo_what_was_just_typed(bench):
    """An edit arrives on one thread while a job that begins on another draws the panel."""
    editor = bench.kernels.editor
    shown, drawing = [], []

    def draw(change):
        shown.append(change["new"]["text"])
        if not drawing:
            drawing.append(threading.Thread(target=bench.bench.changed))
            drawing[0].start()
            drawing[0].join(0.5)

    editor.observe(draw, "content")
    type_text(bench, "// typed")
    drawing[0].join(10)
    # The page would have taken the text before it for Python's answer to what was typed.
    assert set(shown) == {"// typed"}
    assert bench.bench.draft("gelu_norm") == "// typed"


def test_an_edit_of_the_kernel_left_behind_counts_for_the_next(bench, cell):
    """It may arrive after the choice of another kernel; what Python shows next is not older."""
    editor = bench.kernels.editor
    first = editor.document
    bench.kernels.choice.value = "tanh_add"
    late = {"kind": "edit", "document": first, "text": "// typed before", "seen": 7}
    editor._handle_custom_msg(late, [])
    assert bench.bench.draft(first) == "// typed before"
    assert editor.document == "tanh_add"
    assert "tanh" in editor.text
    # A page that has sent the seventh edit would drop a text that has only seen the sixth.
    assert editor.content["seen"] == 7
    bench.kernels.tunables.widget.children[0].value = 512
    settle(bench)
    assert "XBLOCK = 512" in editor.text
    assert editor.content["seen"] == 7


def test_an_edit_of_a_kernel_that_is_not_shown_is_dropped_if_overtaken(bench):
    editor = bench.kernels.editor
    first = editor.document
    for text, seen in (("// second", 5), ("// first", 4)):
        bench.kernels.choice.value = "tanh_add"
        message = {"kind": "edit", "document": first, "text": text, "seen": seen}
        editor._handle_custom_msg(message, [])
    assert bench.bench.draft(first) == "// second"


def test_a_late_answer_does_not_bring_back_what_was_reverted(bench, cell):
    """The page is busy, the job goes on without its answer, which comes after all."""
    editor = bench.kernels.editor
    type_text(bench, "// broken")
    late = {"kind": "sync", "id": editor._asked, "document": editor.document}
    late |= {"text": "// broken", "seen": editor.content["seen"]}
    bench.kernels.revert.click()
    settle(bench)
    editor._handle_custom_msg(late, [])
    assert editor.text == cell.kernels["gelu_norm"].source
    assert not bench.bench.drafts


@pytest.mark.parametrize("answered", [True, False])
def test_a_text_typed_before_a_slider_moved_may_arrive_after_it(bench, cell, monkeypatch, answered):
    """They come on different threads; the page answers what it is asked, or is too busy."""
    editor, slider = bench.kernels.editor, bench.kernels.tunables.widget.children[0]
    editor._handle_custom_msg({"kind": "ready"}, [])
    typed = cell.kernels["gelu_norm"].source + "// typed\n"

    def page(message):
        if answered:
            said = {"kind": "sync", "id": message["id"], "document": editor.document}
            editor._handle_custom_msg({**said, "text": typed, "seen": 1}, [])

    monkeypatch.setattr(editor, "send", page)
    slider.value = 16
    settle(bench)
    late = {"kind": "edit", "document": editor.document, "text": typed, "seen": 1}
    editor._handle_custom_msg(late, [])
    assert editor.text == bench.bench.draft("gelu_norm") == typed.replace("GRAIN = 4", "GRAIN = 16")
    assert slider.value == 16
    # Once the page has answered, it is as it is typed.
    monkeypatch.undo()
    answered = True
    monkeypatch.setattr(editor, "send", page)
    bench.kernels.check.click()
    settle(bench)
    again = {"kind": "edit", "document": editor.document, "text": typed, "seen": 2}
    editor._handle_custom_msg(again, [])
    assert editor.text == typed
    assert slider.value == 4
