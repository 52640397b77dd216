"""The panel without a browser: what a click does, what is shown, and on which thread."""

from __future__ import annotations

import base64
import gzip
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from fusec.errors import FusecError
from fusec.tuning_report import Trial, TuningRun
from fuselab.exporting import free_path
from fuselab.panel import Workbench, workbench
from fuselab.panel.widgets.copying import CopyButton
from fuselab.panel.widgets.editor import Editor
from fuselab.panel.worker import JobQueue
from support.panel_fake import FakeCell
from support.panel_use import opened, settle, type_text
from support.waiting import wait_for

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def verdict(panel: Workbench) -> str:
    return str(panel.kernels.verdict.value)


# --- showing -----------------------------------------------------------------------------


def test_showing_runs_nothing(cell, bench):
    assert cell.host.calls == []
    assert cell.refreshed == 0


def test_bundle_carries_the_static_forms_and_the_view(bench, cell):
    bundle = bench._repr_mimebundle_()
    static = cell._repr_mimebundle_()
    assert bundle["text/html"] == static["text/html"]
    assert bundle["text/plain"] == static["text/plain"]
    assert WIDGET_VIEW in bundle


def test_editor_is_made_once_and_only_when_shown(cell):
    panel = opened(cell)
    assert panel.kernels.editor is None
    panel._repr_mimebundle_()
    editor = panel.kernels.editor
    panel._repr_mimebundle_()
    assert isinstance(editor, Editor)
    assert panel.kernels.editor is editor


def test_a_cell_that_runs_again_forgets_what_was_done_before(bench):
    with bench.bench.state:
        bench.bench.say("Written to filt.html")
        bench.bench.changed()
    assert "Written to filt.html" in verdict(bench)
    bench._repr_mimebundle_()
    assert "Written to" not in verdict(bench)


def test_head_line_says_it_all(bench):
    head = bench.head.value
    for fact in ("cell_3", "2 kernels", "eager 9.84 ms", "fused 3.27 ms", "3.0× faster"):
        assert fact in head
    assert "2.4e-07" in head


def test_cell_without_kernels_has_no_editor():
    panel = workbench(FakeCell(kernels=False))
    panel._repr_mimebundle_()
    assert panel.kernels.editor is None
    assert "nothing to edit" in panel.kernels.summary.value
    assert panel.kernels.check.disabled
    assert panel.kernels.tune.disabled


def test_cell_that_was_not_timed(cell):
    cell.eager = cell.fused = cell.error = None
    panel = opened(cell)
    panel._repr_mimebundle_()
    settle(panel)
    assert "eager" not in panel.head.value


def test_everything_shown_is_escaped(cell):
    cell.name = "<img src=x onerror=alert(1)>"
    panel = opened(cell)
    panel._repr_mimebundle_()
    type_text(panel, "static_assert(false)")
    panel.kernels.check.click()
    settle(panel)
    assert "<img" not in panel.head.value
    assert "<b>not bold" not in verdict(panel)
    assert "&lt;b&gt;not bold" in verdict(panel)


def test_cell_has_one_panel_which_keeps_what_was_typed(bench, cell):
    type_text(bench, "// typed\n")
    again = workbench(cell)
    assert again is bench
    cell.eager = None
    assert "eager" not in str(again._repr_mimebundle_()["text/html"])
    assert "eager 9.84" not in again.head.value, "shown again, it shows what is now the case"
    assert again.kernels.editor.text == "// typed\n"
    editor = again.kernels.editor
    bench.close()
    assert editor.comm is None
    assert workbench(cell) is not bench


def test_cell_compiled_again_has_other_kernels(bench, cell):
    type_text(bench, "RAISE")
    bench.kernels.check.click()
    settle(bench)
    cell.kernels = {"tanh_add": cell.kernels["tanh_add"]}
    bench._repr_mimebundle_()
    assert bench.kernels.choice.value == "tanh_add"
    assert bench.kernels.editor.document == "tanh_add"


# --- checking ----------------------------------------------------------------------------


def test_right_edit_is_checked_then_kept(bench, cell):
    kernel = cell.kernels["gelu_norm"]
    edit = kernel.source + "// mine\n"
    type_text(bench, edit)
    bench.kernels.check.click()
    settle(bench)
    assert "Passed" in verdict(bench)
    assert "not in use yet" in verdict(bench)
    assert "generated" in verdict(bench)
    assert not kernel.edited
    bench.kernels.keep.click()
    settle(bench)
    assert kernel.source == edit
    assert cell.host.calls.count("check") == 1, "a verdict for this very text is used again"
    assert cell.refreshed == 1
    assert "1 edited" in bench.head.value
    assert "in use" in verdict(bench)
    assert any("edited" in label for label, _ in bench.kernels.choice.options)


def test_wrong_edit_is_refused_with_its_error(bench, cell):
    type_text(bench, cell.kernels["gelu_norm"].source + "// WRONG\n")
    bench.kernels.keep.click()
    settle(bench)
    assert "wrong result" in verdict(bench)
    assert "3.1e-01" in verdict(bench)
    assert not cell.kernels["gelu_norm"].edited


def test_edit_that_does_not_compile_marks_its_line(bench, cell):
    type_text(bench, "// one\n// two\nstatic_assert(false);\n")
    bench.kernels.check.click()
    settle(bench)
    assert "does not compile" in verdict(bench)
    assert bench.kernels.editor.mark == 3
    assert "line 3" in bench.kernels.editor.status
    type_text(bench, "// one\n")
    assert bench.kernels.editor.mark == 0
    assert "changed since" in verdict(bench)


def test_empty_edit_is_refused_and_the_kernel_stays(bench, cell):
    type_text(bench, "")
    bench.kernels.keep.click()
    settle(bench)
    assert "empty" in verdict(bench)
    assert not cell.kernels["gelu_norm"].edited


def test_trust_and_sanitizers_are_asked_for(bench, cell, monkeypatch):
    asked = []
    check = cell.host.check

    def noted(kernel, text, **options):
        asked.append((options["trust"], options["sanitize"]))
        return check(kernel, text, **options)

    monkeypatch.setattr(cell.host, "check", noted)
    type_text(bench, cell.kernels["gelu_norm"].source + "// mine\n")
    bench.kernels.check.click()
    settle(bench)
    bench.kernels.sanitize.value = True
    bench.kernels.keep.click()  # a verdict without them is not used again
    settle(bench)
    bench.kernels.trust.value = True
    bench.kernels.check.click()
    settle(bench)
    assert asked == [(False, False), (False, True), (True, True)]


def test_failure_of_the_checker_is_shown(bench):
    type_text(bench, "RAISE")
    bench.kernels.check.click()
    settle(bench)
    assert "could not be started" in verdict(bench)
    assert "Traceback" in verdict(bench)
    type_text(bench, "// fine again\n")
    bench.kernels.check.click()
    settle(bench)
    assert "Passed" in verdict(bench)


def test_mistake_of_the_user_is_one_line(bench, cell, monkeypatch):
    def check(*_: Any, **__: Any) -> None:
        raise FusecError("graph 0 has not run", "run the cell once")

    monkeypatch.setattr(cell.host, "check", check)
    bench.kernels.check.click()
    settle(bench)
    assert "graph 0 has not run (run the cell once)" in verdict(bench)
    assert "Traceback" not in verdict(bench)


def test_keyboard_checks_and_keeps(bench, cell):
    edit = cell.kernels["gelu_norm"].source + "// by key\n"
    type_text(bench, edit, "check")
    settle(bench)
    assert "Passed" in verdict(bench)
    type_text(bench, edit, "keep")
    settle(bench)
    assert cell.kernels["gelu_norm"].source == edit


def test_revert_goes_back_to_the_text_in_use_then_to_the_generated(bench, cell):
    kernel = cell.kernels["gelu_norm"]
    type_text(bench, kernel.source + "// mine\n", "keep")
    settle(bench)
    kept = kernel.source
    type_text(bench, kept + "// and more\n")
    bench.kernels.revert.click()
    settle(bench)
    assert bench.kernels.editor.text == kept == kernel.source
    assert "edited text, which is in use" in verdict(bench)
    bench.kernels.revert.click()
    settle(bench)
    assert not kernel.edited
    assert bench.kernels.editor.text == kernel.generated.text
    assert "generated text" in verdict(bench)


def test_draft_survives_looking_at_another_kernel(bench, cell):
    edit = cell.kernels["gelu_norm"].source + "// draft\n"
    type_text(bench, edit)
    bench.kernels.choice.value = "tanh_add"
    assert bench.kernels.editor.document == "tanh_add"
    assert bench.kernels.editor.language == "python"
    bench.kernels.choice.value = "gelu_norm"
    assert bench.kernels.editor.text == edit
    assert bench.kernels.editor.language == "cpp"


def test_late_edit_of_a_kernel_no_longer_shown_is_not_lost(bench):
    editor = bench.kernels.editor
    bench.kernels.choice.value = "tanh_add"
    shown = editor.text
    message = {"kind": "edit", "document": "gelu_norm", "text": "// late\n", "seen": 5}
    editor._handle_custom_msg(message, [])
    assert editor.text == shown
    bench.kernels.choice.value = "gelu_norm"
    assert editor.text == "// late\n"


def test_bad_messages_are_ignored(bench, cell):
    editor = bench.kernels.editor
    for message in ({}, {"kind": "check"}, {"kind": "check", "document": "no", "text": 3}):
        editor._handle_custom_msg(message, [])
    settle(bench)
    assert cell.host.calls == []


def test_export_overwrites_nothing(tmp_path):
    assert free_path(tmp_path, "gelu", ".cpp").name == "gelu.cpp"
    (tmp_path / "gelu.cpp").write_text("mine")
    assert free_path(tmp_path, "gelu", ".cpp").name == "gelu-2.cpp"


def test_export_says_where(bench, cell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def export(path: Path, *, form: str) -> Path:
        Path(path).write_text(f"{form}: {kernel.source}")
        return Path(path)

    kernel = cell.kernels["gelu_norm"]
    monkeypatch.setattr(kernel, "export", export)
    bench.kernels.exports["file"].click()
    settle(bench)
    assert (tmp_path / "gelu_norm.cpp").read_text() == f"file: {kernel.source}"
    assert "Written to gelu_norm.cpp" in verdict(bench)
    for name in ("gelu_norm_op", "gelu_norm_op_2"):  # a module's name has no dash in it
        bench.kernels.exports["library"].click()
        settle(bench)
        assert (tmp_path / f"{name}.py").read_text() == f"library: {kernel.source}"
        assert f"Written to {name}.py: import {name} registers" in verdict(bench)


def test_copy_is_the_pages_own_affair(bench, cell):
    shown = [w for w in bench.kernels.widget.children[3].children if isinstance(w, CopyButton)]
    assert [button.description for button in shown] == ["Copy"]
    script = gzip.decompress(base64.b64decode(shown[0].script.copy)).decode()
    assert "navigator.clipboard" in script
    assert "execCommand" in script, "where a page has no clipboard"
    assert cell.host.calls == []


# --- tunables ----------------------------------------------------------------------------


def test_slider_changes_the_text_and_checks_it(bench, cell):
    controls = bench.kernels.tunables.widget.children
    assert [c.description for c in controls] == ["GRAIN", "UNROLL", "STREAM"]
    assert isinstance(controls[0], widgets.SelectionSlider)
    assert isinstance(controls[2], widgets.Dropdown)
    controls[0].value = 16
    assert "GRAIN = 16;" in bench.kernels.editor.text
    settle(bench)
    assert cell.host.calls == ["check"]
    assert "Passed" in verdict(bench)
    assert not cell.kernels["gelu_norm"].edited


def test_typing_moves_the_slider_without_a_check(bench, cell):
    type_text(bench, cell.kernels["gelu_norm"].source.replace("GRAIN = 4", "GRAIN = 3"))
    control = bench.kernels.tunables.widget.children[0]
    assert control.value == 3
    assert control.options == (1, 2, 3, 4, 8, 16)
    settle(bench)
    assert cell.host.calls == []


# --- tuning ------------------------------------------------------------------------------


def test_tuning_shows_progress_plot_and_winner(bench, cell):
    bench.kernels.tune.click()
    settle(bench)
    kernel = cell.kernels["gelu_norm"]
    assert bench.tabs.titles[bench.tabs.selected_index] == "Tuning"
    assert bytes(bench.tuning.plot.picture.image[:4]) == b"\x89PNG"
    assert "30 of 30, in use" in bench.tuning.line.value
    assert "GRAIN=8" in bench.tuning.ranking.value
    assert "1 of 30 failed" in bench.tuning.ranking.value
    assert "GRAIN = 8;" in kernel.source
    assert bench.kernels.editor.text == kernel.source
    assert bench.kernels.tune.description == "Tune"
    assert cell.refreshed == 1


def test_ranking_puts_the_winner_first_and_says_why_a_faster_median_lost():
    from fuselab.panel.tabs.tuning import ranking_table
    from support.panel_fake import timing

    trials = tuple(Trial((("GRAIN", 2**i),), timing(ms)) for i, ms in enumerate((3.0, 2.9, 4.0)))
    table = ranking_table(TuningRun("gelu", trials, 0, 3, None, "finished", 1.0))
    order = [table.index(f"GRAIN={n}") for n in (1, 2, 4)]
    assert order == sorted(order)
    assert "GRAIN=1 (in use, at the start)" in table
    assert "within the noise" in table
    assert "eager" not in table


def test_stop_keeps_the_best(cell):
    cell.host.pause = 0.2
    panel = opened(cell)
    panel._repr_mimebundle_()
    panel.tuning.button.click()
    assert panel.tuning.button.description == "Stop"
    wait_for(lambda: "of 30" in panel.tuning.line.value)
    assert panel.kernels.check.disabled
    panel.tuning.button.click()
    settle(panel)
    run = cell.kernels["gelu_norm"].tuning
    assert isinstance(run, TuningRun)
    assert run.stopped == "stopped"
    assert len(run.trials) < 30
    assert "stopped" in panel.tuning.line.value
    assert not panel.kernels.check.disabled


def test_tuning_redraws_at_most_four_times_a_second(cell, monkeypatch):
    from fuselab.panel.tabs import tuning

    drawn: list[float] = []

    def draw(_run: TuningRun, _picture: object) -> tuple[bytes, list[Any]]:
        drawn.append(time.monotonic())
        return b"png", []

    monkeypatch.setattr(tuning, "tuning_png", draw)
    cell.host.pause = 0.12
    panel = opened(cell)
    panel._repr_mimebundle_()
    settle(panel)
    panel.tuning.button.click()
    settle(panel)
    gaps = [b - a for a, b in itertools.pairwise(drawn[:-1])]  # the last is the result
    assert len(drawn) > 3
    assert cell.kernels["gelu_norm"].tuning.stopped == "finished"
    assert all(gap >= 0.24 for gap in gaps), gaps


def test_edit_of_the_user_survives_tuning(bench, cell):
    edit = cell.kernels["gelu_norm"].source + "// mine\n"
    type_text(bench, edit)
    bench.kernels.tune.click()
    settle(bench)
    assert bench.kernels.editor.text == edit
    assert "Revert shows them" in verdict(bench)
    bench.kernels.revert.click()
    settle(bench)
    assert bench.kernels.editor.text == cell.kernels["gelu_norm"].source
    assert "tuned text" in verdict(bench)


def test_failing_search_is_shown(bench, cell, monkeypatch):
    def fail(*_: Any) -> TuningRun:
        raise OSError("no space left on device")

    monkeypatch.setattr(cell.kernels["gelu_norm"], "tune", fail)
    bench.kernels.tune.click()
    settle(bench)
    assert "no space left" in verdict(bench)
    assert "no space left" in bench.tuning.line.value
    assert not bench.tuning.running


# --- timings -----------------------------------------------------------------------------


def test_timings_tab_draws_when_opened(bench):
    assert not bench.tab("Timings").plot.png
    bench.tabs.selected_index = 1
    settle(bench)
    assert bytes(bench.tab("Timings").plot.png[:4]) == b"\x89PNG"
    assert "eager, whole cell" in bench.tab("Timings").table.value
    assert "interleaved" in bench.tab("Timings").method.value


def test_measure_again(bench, cell):
    bench.tabs.selected_index = 1
    bench.tab("Timings").again.click()
    settle(bench)
    assert cell.refreshed == 1


# --- threads -----------------------------------------------------------------------------


def test_callbacks_return_at_once_and_work_runs_on_the_worker(cell, capfd):
    cell.host.go = threading.Event()
    panel = opened(cell)
    panel._repr_mimebundle_()
    started = time.monotonic()
    panel.kernels.check.click()
    panel.kernels.keep.click()
    assert time.monotonic() - started < 30.0  # of the sixty for which a check would wait here
    cell.host.go.set()
    settle(panel)
    assert cell.host.threads == {"fuselab-cell_3"}
    assert capfd.readouterr().out == "", "nothing is printed from the worker"


def test_callbacks_do_not_wait_for_the_cells_lock(bench, cell):
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with cell.lock:
            held.set()
            release.wait(40)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    started = time.monotonic()
    bench.kernels.check.click()
    bench.kernels.choice.value = "tanh_add"
    type_text(bench, "XBLOCK = 512  # tunable: 256 512\n")
    bench.kernels.tunables.widget.children[0].value = 256
    bench.tuning.button.click()
    bench.tuning.button.click()
    bench.tabs.selected_index = 1
    bench.tab("Timings").again.click()
    took = time.monotonic() - started
    release.set()
    thread.join()
    assert took < 20, "it waited for the lock"  # which is held for forty
    settle(bench)
    assert "check" in cell.host.calls
    assert "tune" not in cell.host.calls, "stopped before it began"


def test_a_cell_gets_its_turn_while_another_is_tuned(cell):
    cell.host.pause = 0.8
    panel = opened(cell)
    panel._repr_mimebundle_()
    settle(panel)
    panel.tuning.button.click()
    wait_for(lambda: cell.host.calls)
    started = time.monotonic()
    with cell.lock:
        waited = time.monotonic() - started
    panel.tuning.button.click()
    settle(panel)
    assert waited < 3
    assert cell.kernels["gelu_norm"].tuning.stopped == "stopped"


def test_search_ends_when_its_own_cell_runs_again(cell, monkeypatch):
    from fuselab.panel.tabs import tuning

    monkeypatch.setattr(tuning.Turns, "PATIENCE", 0.1)
    graph = threading.RLock()  # a graph has a lock of its own, taken after the cell's
    search = cell.host.tune

    def tune(*arguments: Any, **options: Any) -> TuningRun:
        with graph:
            return search(*arguments, **options)

    monkeypatch.setattr(cell.host, "tune", tune)
    cell.host.pause = 0.4
    panel = opened(cell)
    panel._repr_mimebundle_()
    settle(panel)
    panel.tuning.button.click()
    wait_for(lambda: cell.host.calls)
    with cell.lock:
        assert graph.acquire(timeout=20), "each waits for the other"
        graph.release()
    settle(panel)
    assert cell.kernels["gelu_norm"].tuning.stopped == "stopped"
    assert panel.tuning.line.value.endswith("s")


def test_only_the_last_of_several_waiting_checks_runs(cell):
    cell.host.pause = 0.3
    panel = opened(cell)
    panel._repr_mimebundle_()
    settle(panel)
    panel.kernels.check.click()
    wait_for(lambda: cell.host.calls)
    for value in (1, 2, 8, 16):
        panel.kernels.tunables.widget.children[0].value = value
    settle(panel)
    assert cell.host.calls == ["check", "check"]
    assert "changed since" not in verdict(panel)


def test_a_waiting_keep_of_another_kernel_is_not_forgotten(cell):
    cell.host.pause = 0.3
    panel = opened(cell)
    panel._repr_mimebundle_()
    settle(panel)
    panel.kernels.check.click()  # the worker has something to do
    texts = {}
    for name in ("gelu_norm", "tanh_add"):
        panel.kernels.choice.value = name
        texts[name] = cell.kernels[name].source + "\n"
        type_text(panel, texts[name])
        panel.kernels.keep.click()
    settle(panel)
    assert {name: kernel.source for name, kernel in cell.kernels.items()} == texts
    panel.close()


def test_panel_leaves_no_thread_behind(bench):
    bench.kernels.check.click()
    settle(bench)
    wait_for(lambda: all(thread.name != "fuselab-cell_3" for thread in threading.enumerate()))


def test_worker_goes_on_after_a_job_that_fails():
    errors: list[BaseException] = []
    done: list[int] = []
    worker = JobQueue("test", errors.append, lambda _: None)
    worker.submit(lambda: 1 // 0)  # type: ignore[arg-type]
    worker.submit(lambda: done.append(1))
    assert worker.wait(60)
    assert isinstance(errors[0], ZeroDivisionError)
    assert done == [1]


def test_worker_takes_jobs_from_many_threads():
    done: list[int] = []
    worker = JobQueue("test", lambda error: None, lambda _: None)

    def submit() -> None:
        for i in range(50):
            worker.submit(lambda i=i: done.append(i))

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worker.wait(60)
    assert len(done) == 400


# --- the built files ----------------------------------------------------------------------


def test_built_editor_is_small_and_loads_nothing():
    from fuselab.panel.widgets.script import STATIC

    script = (STATIC / "editor.js").read_text()
    assert len(script) < 40_000
    assert "://" not in script
    assert "import(" not in script
    assert "@import" not in (STATIC / "editor.css").read_text()


def test_scripts_are_held_once_whatever_the_number_of_panels():
    from fuselab.panel.widgets.script import Script

    panels = [workbench(FakeCell()) for _ in range(3)]
    for panel in panels:
        panel._repr_mimebundle_()
    editors = [panel.kernels.editor for panel in panels]
    assert len({id(editor.script) for editor in editors}) == 1
    assert isinstance(editors[0].script, Script)
    state = editors[0].get_state()
    assert state["script"] == f"IPY_MODEL_{editors[0].script.model_id}"
    assert len(state["_esm"]) < 1200
    for panel in panels:
        settle(panel)
        panel.close()
