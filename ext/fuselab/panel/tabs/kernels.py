"""The Kernels tab: pick a kernel, read it, edit it, check it, keep it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import Any

from fusec.export.forms import FORMS, find_form
from fusec.kernel import Kernel
from fusec.report import Timing
from fusec.target_api.registry import find_target
from fusec.tunables import set_tunables
from fuselab.display import words
from fuselab.exporting import export
from fuselab.panel.context import Bench, Checked
from fuselab.panel.tabs.kernel_lines import KernelLines
from fuselab.panel.tabs.kernels_more import More
from fuselab.panel.tabs.tuning import TuningTab
from fuselab.panel.widgets import markup, plain
from fuselab.panel.widgets.controls import Moves, Tunables
from fuselab.panel.widgets.copying import CopyButton
from fuselab.panel.widgets.editor import Editor
from fuselab.panel.widgets.linking import cell_lines, links_of, packed
from fuselab.panel.widgets.plain_editor import PlainEditor

Work = Callable[[str, Kernel, str], None]  # a kernel's name, the kernel, its draft

NO_KERNEL = "Every operator of this cell runs as ATen’s own kernel: nothing to edit."


class KernelsTab:
    """One kernel at a time: list, source, tunables, actions, verdict."""

    title = "Kernels"

    def __init__(self, bench: Bench, tuning: TuningTab) -> None:
        self._bench = bench
        self._tuning = tuning
        self._filling = False
        self.editor: Editor | None = None
        self.on_shown: Callable[[], None] = lambda: None  # a page has drawn the editor
        self.on_near: Callable[[], None] = lambda: None  # somebody points at the panel
        self._label: tuple[object, ...] = ()
        self.choice = plain.choice("Kernel", "24em")
        self.choice.observe(self._choose, "value")
        self.summary = plain.beside()
        self.place = plain.box()
        self.tunables = Tunables(self._set_tunable)
        self._moves = Moves()
        self.check = plain.button(
            "Check",
            "Build it, run it in another process, compare and time it (Ctrl+Enter)",
            "check",
        )
        self.keep = plain.button("Keep", "Put it in use if it passes (Ctrl+Shift+Enter)", "save")
        self.revert = plain.button(
            "Revert", "Drop what was typed; then, back to the generated text", "undo"
        )
        self.tune = plain.button("Tune", "Search the tunables", "sliders")
        self.exports = {
            form.name: plain.button(form.label, f"Write {form.about}", "download") for form in FORMS
        }
        self.share = plain.button(
            "Share", "Write the result as one page that needs no server, and a .py", "share-alt"
        )
        self.copy = CopyButton("Copy", "Copy the text in the editor to the clipboard")
        self.check.button_style = "primary"
        self.check.on_click(lambda _: self.start_check())
        self.keep.on_click(lambda _: self.start_keep())
        self.revert.on_click(lambda _: self.start_revert())
        self.tune.on_click(lambda _: self._tuning.start_or_stop())
        self.share.on_click(lambda _: self.start_share())
        for name, button in self.exports.items():
            button.on_click(lambda _, form=name: self.start_export(form))
        self.sanitize = plain.switch("Sanitize")
        self.sanitize.tooltip = "AddressSanitizer and UndefinedBehaviorSanitizer look at it, too"
        self.trust = plain.switch("Trust")
        self.trust.tooltip = "Accept threads, files, assembly: nothing protects the notebook"
        # A verdict without it says less than one with it.
        self.sanitize.observe(lambda _: bench.checked.pop(bench.selected, None), "value")
        self.verdict = plain.html(width="100%", min_height="1.6em")
        self.verdict.add_class("fuselab-verdict")
        self.more = More(bench)
        self.lines = KernelLines(bench)
        actions = [self.check, self.keep, self.revert, self.tune, self.lines.button]
        actions += self.exports.values()
        actions += [self.share, self.copy, self.sanitize, self.trust]
        self.widget = plain.column(
            [
                plain.row([self.choice, self.summary]),
                self.place,
                self.tunables.widget,
                plain.row(actions),
                self.lines.said,
                self.verdict,
                self.more.widget,
            ]
        )
        bench.listen(self.refresh)

    def show(self) -> None:
        """Make the editor, at the first time that somebody looks."""
        with self._bench.state:
            if self._bench.kernel is not None:
                self.prepare()
            elif self.editor is not None:
                self.place.children = ()
                self.editor.close()
                self.editor = None
            self.refresh()

    def prepare(self) -> None:
        """Make the editor before there is a kernel to show in it."""
        with self._bench.state:
            if self.editor is None:
                self.editor = Editor(
                    self._bench.state, self._typed, self._key_check, self._key_keep
                )
                self.editor.on_shown, self.editor.on_near = self.on_shown, self.on_near
                self.place.children = [self.editor, PlainEditor(self.editor).widget]

    # --- what the user does; called on any thread, returns at once -------------------------

    def start_check(self) -> None:
        """Check the text in the editor."""
        self._start("Checking", self._check)

    def start_keep(self) -> None:
        """Put the text in the editor in use if it passes."""
        self._start("Keeping", self._keep)

    def start_revert(self) -> None:
        """Go back to the text in use; from there, to the generated one."""
        self._start("Reverting", self._revert)

    def start_export(self, form: str = "file") -> None:
        """Write the text in use to a file."""

        def work(name: str, kernel: Kernel, text: str) -> None:
            self._export(name, kernel, text, form)

        self._start("Exporting", work)

    def start_share(self) -> None:
        """Write the whole result as files to give away."""
        self._start("Sharing", self._share)

    def _start(self, activity: str, work: Work) -> None:
        """Queue a job for the kernel that is shown now; its text is read when the job begins."""
        bench = self._bench
        with bench.state:
            name, kernel = bench.selected, bench.kernel
        if kernel is None:
            return

        def job() -> None:
            with bench.state:
                moves = self._moves.known()
            arrived = self.editor is None or self.editor.sync()
            with bench.state:
                if arrived:
                    self._moves.drop(moves)
                text = bench.draft(name)
            work(name, kernel, text)

        # Of one kernel the latest counts; another kernel's is another matter.
        bench.do(f"{activity} {name}", job, replaces=f"{activity} {name}")

    def _choose(self, change: dict[str, Any]) -> None:
        with self._bench.state:
            if not self._filling and change["new"]:
                self._bench.selected = change["new"]
                self._bench.say("")
                self._bench.changed()

    def _typed(self, document: str, text: str) -> None:
        with self._bench.state:
            self._bench.set_draft(document, self._moves.apply(document, text))
            self.refresh()

    def _key_check(self, _document: str, _text: str) -> None:
        self.start_check()

    def _key_keep(self, _document: str, _text: str) -> None:
        self.start_keep()

    def _set_tunable(self, name: str, value: int) -> None:
        with self._bench.state:
            kernel = self._bench.kernel
            # While the controls are filled they report what the text already says.
            if kernel is None or self._filling:
                return
            selected = self._bench.selected
            text = self._bench.draft(selected)
            self._moves.add(selected, name, text, value)
            self._bench.set_draft(selected, set_tunables(text, {name: value}))
            self._bench.changed()
        self.start_check()

    # --- jobs; on the worker's thread -------------------------------------------------------

    def _check(self, name: str, kernel: Kernel, text: str) -> None:
        with self._bench.cell.lock:
            verdict = kernel.check(text, trust=self.trust.value, sanitize=self.sanitize.value)
        self._bench.tried(name, kernel, text, verdict)

    def _keep(self, name: str, kernel: Kernel, text: str) -> None:
        known = self._bench.checked.get(name)
        passed = known.verdict if known and known.text == text and known.verdict.ok else None
        with self._bench.cell.lock:
            verdict = kernel.keep(
                text, verdict=passed, trust=self.trust.value, sanitize=self.sanitize.value
            )
            if verdict.ok:
                self._bench.cell.refresh()
        with self._bench.state:
            if passed is None:
                self._bench.tried(name, kernel, text, verdict)
            else:
                self._bench.checked[name] = Checked(text, verdict)
            if verdict.ok:
                # The user may have typed on meanwhile: only what is in use is no draft.
                self._bench.set_draft(name, self._bench.draft(name))
                self._bench.say(f"{name}: the edit is in use")

    def _revert(self, name: str, kernel: Kernel, text: str) -> None:
        # What was typed goes first: the text in use may be a better one than the generated.
        if text == kernel.source and kernel.edited:
            with self._bench.cell.lock:
                kernel.revert()
                self._bench.cell.refresh()
        with self._bench.state:
            self._bench.drafts.pop(name, None)
            self._bench.checked.pop(name, None)
            which = f"{kernel.state} text, which is in use"
            if not kernel.edited:
                which = "generated text"
            self._bench.say(f"{name}: back to the {which}")

    def _export(self, name: str, kernel: Kernel, text: str, form: str) -> None:
        with self._bench.cell.lock:
            path = export(kernel, name, form, Path.cwd())
        with self._bench.state:
            note = f"Written to {path.name}"
            if then := find_form(form).then:
                note += f": {then.format(stem=path.stem)}"
            if text != kernel.source:
                note += " (the text in use; what you typed since is not kept yet)"
            self._bench.say(note)

    def _share(self, name: str, kernel: Kernel, text: str) -> None:
        with self._bench.cell.lock:
            paths = self._bench.cell.share(Path.cwd())
        with self._bench.state:
            note = "Written to " + " and ".join(path.name for path in paths)
            if name in self._bench.drafts:
                note += " (the text in use; what you typed since is not kept yet)"
            self._bench.say(note)

    # --- what is shown; with the state held -------------------------------------------------

    def refresh(self) -> None:
        """Show what is now the case."""
        with self._bench.state:
            self._filling = True
            try:
                self._show_choice()
                self._show_source()
                self.lines.refresh()
                self._show_verdict()
            finally:
                self._filling = False

    def _show_choice(self) -> None:
        facts = self._bench.facts
        shares = shares_of(facts.latest, facts.kernel_times)
        options = []
        for name, kernel in facts.kernels.items():
            marks = [name, "of earlier inputs" if name in facts.idle else shares.get(name, "")]
            marks += [kernel.state] if kernel.edited else []
            marks += ["unkept changes"] if name in self._bench.drafts else []
            options.append((" · ".join(mark for mark in marks if mark), name))
        with self.choice.hold_sync():
            if tuple(options) != self.choice.options:
                self.choice.options = tuple(options)
            self.choice.value = self._bench.selected or None
        shown = self._bench.kernel
        if shown is None:
            self.summary.value = NO_KERNEL
        else:
            said = f"{find_target(shown.target).title}, {shown.generated.summary}"
            self.summary.value = escape(said.rstrip(", "))

    def _show_source(self) -> None:
        kernel = self._bench.kernel
        tuning = self._tuning.running
        for control in (self.check, self.keep, self.revert, self.share, *self.exports.values()):
            control.disabled = kernel is None or tuning
        self._tuning.label(self.tune)
        self.tunables.disabled = tuning
        if kernel is None:
            return
        name, text = self._bench.selected, self._text()
        self.tunables.show(text)
        if self.editor is None:
            return
        file = str(getattr(self._bench.cell, "filename", "")) if self._is_cell else ""
        with self.editor.hold_sync():  # one message
            kernels = list(self._bench.facts.kernels.values())
            self.editor.cell = cell_lines(self._bench.cell, kernels)
            self.editor.links = packed(links_of(kernel, text, file))
            self.editor.costs = self.lines.shares(name, text)
            if self.editor.document != name:
                self.editor.load(name, text, find_target(kernel.target), f"Source of kernel {name}")
            elif self.editor.text != text:
                self.editor.replace(text)

    def _show_verdict(self) -> None:
        bench = self._bench
        checked = bench.checked.get(bench.selected)
        current = checked is not None and checked.text == self._text()
        spoken, mark = "", 0
        if bench.problem:
            message, details = bench.problem
            lines = ["That did not work", message]
            value = markup.notice(lines, markup.BAD, details)
            spoken = ". ".join(lines)
        elif checked is not None:
            verdict = checked.verdict
            # The head has times of another run: two figures for one thing say nothing.
            timed = bool(bench.facts.fused or bench.facts.kernel_times)
            lines = markup.verdict_lines(verdict, compared_alone=timed)
            if not current:
                lines[0] += " (the text has changed since)"
            elif bench.note:
                lines.insert(0, bench.note)
            elif verdict.ok and bench.selected in bench.drafts:
                lines[0] += " – not in use yet: press Keep"
            color = markup.GOOD if verdict.ok else markup.BAD
            value = markup.notice(lines, color, verdict.details, faded=not current)
            spoken = ". ".join(lines) if current else ""
            mark = verdict.line or 0 if current and not verdict.ok else 0
        else:
            value = markup.notice([bench.note], markup.QUIET) if bench.note else ""
            spoken = bench.note
        if bench.activity and (bench.waiting or not self._tuning.running):
            value = markup.notice([bench.doing], markup.QUIET) + (
                f"<div style='opacity:0.6'>{value}</div>" if value else ""
            )
            spoken = bench.activity
        self.verdict.value = value
        if self.editor is not None:
            self.editor.mark = mark
            self.editor.status = spoken

    @property
    def _is_cell(self) -> bool:
        return getattr(self._bench.cell, "plan", None) is not None

    def _text(self) -> str:
        return self._bench.draft(self._bench.selected) if self._bench.kernel else ""


def shares_of(kernels: Mapping[str, Kernel], times: Mapping[str, Timing]) -> dict[str, str]:
    """Say what part of the kernels' time each takes; of their bytes while times are unknown."""
    if len(kernels) < 2:
        return {}
    if kernels.keys() <= times.keys():
        unit = "of the kernels' time"
        values = {name: times[name].median for name in kernels}
    else:
        unit = "of the bytes"
        pairs = {n: (k.generated.read_bytes, k.generated.written_bytes) for n, k in kernels.items()}
        if any(min(pair) < 0 for pair in pairs.values()):
            return {}
        values = {name: float(sum(pair)) for name, pair in pairs.items()}
    if not sum(values.values()):
        return {}
    shares = words.shares(list(values.values()))
    return {name: f"{share} {unit}" for name, share in zip(values, shares, strict=True)}
