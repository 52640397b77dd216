"""Edits of a notebook's kernels: checked, kept, reverted, and put back in use after a restart."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from fusec.cache import CacheStore, default_store
from fusec.report import Verdict
from fuselab.display.outcomes import EditOutcome
from fuselab.edit_record import Edit
from fuselab.session.fused_cell import FusedCell
from fuselab.session.history import (
    KEPT,
    REFUSED,
    REVERTED,
    EditHistory,
    make_edit,
    notebook_scope,
)

if TYPE_CHECKING:
    from fusec.kernel import Kernel


class KernelEdits(ABC):
    """The part of a session that knows its kernels' texts.

    Args:
        namespace: The notebook's names.
        store: Where kept edits go; the user's cache if None.

    Attributes:
        cells: By name, the latest run last.
        lock: Round compile, launch and drawing; re-entrant.
    """

    def __init__(self, namespace: dict[str, Any], store: CacheStore | None) -> None:
        self.namespace = namespace
        self.cells: dict[str, FusedCell] = {}
        self.lock = threading.RLock()
        self._store = store
        self._history: EditHistory | None = None
        # Kernels seen so far with the text they had then: id to (kernel, text).
        self._seen: dict[int, tuple[Kernel, str]] = {}

    @abstractmethod
    def find(self, name: str) -> tuple[FusedCell, Kernel]:
        """Return a kernel and its cell. Raises UnknownName."""

    @property
    def history(self) -> EditHistory:
        """Every edit of this notebook's kernels, of earlier sessions too."""
        if self._history is None:
            store = self._store if self._store is not None else default_store()
            self._history = EditHistory(notebook_scope(self.namespace), store)
        return self._history

    def adopt(self, cell: FusedCell) -> None:
        """Put kept edits back in use for kernels that were built just now."""
        for name, kernel in cell.kernels.items():
            if id(kernel) in self._seen:
                continue
            with contextlib.suppress(OSError):
                self._restore(cell, name, kernel)
            self._seen[id(kernel)] = kernel, kernel.source

    def _restore(self, cell: FusedCell, name: str, kernel: Kernel) -> None:
        """Use the latest kept edit that still passes: what ended a process does not."""
        for number, edit in enumerate(self.history.candidates(kernel.name, kernel.target)):
            if edit.text == kernel.source:
                return
            found = f"the edit of {name} kept on {edit.date}"
            edits = self.history.of(kernel.name, kernel.target)
            place = edits.index(edit) - len(edits)  # the latest is -1
            text = f"its text is fuselab.edits({kernel.name!r})[{place}].text"
            if edit.signature != kernel.signature.digest():
                cell.notes.append(
                    f"{found} no longer fits: the kernel takes other tensors now; {text}"
                )
                return
            # The signature says that it can be called, not that it still computes the same.
            verdict = kernel.check(edit.text, timed=False)
            if verdict.ok:
                kernel.use(edit.text)
                before = ", the last that passes," if number else ""
                cell.notes.append(
                    f"{found}{before} was checked again and is in use; %fuse_revert {name} undoes"
                )
                return
            cell.notes.append(f"{found} does not pass any more: {verdict.reason}; {text}")

    def edit(
        self,
        name: str,
        text: str,
        *,
        keep: bool = True,
        offset: int = 1,
        trust: bool = False,
        sanitize: bool = False,
    ) -> EditOutcome:
        """Check a text for a kernel and put it in use if it passes.

        Args:
            name: The kernel's.
            text: The whole kernel file.
            keep: False to check only.
            offset: Added to a kernel line to get the line that the user sees.
            trust: Whether it may act on the process: see ``Kernel.check``.
            sanitize: Whether sanitizers look at it as well.
        """
        _, kernel = self.find(name)
        text = _same_ending(text, kernel)
        from fusec.random import generators_kept  # imports the compiler

        with self.lock:
            try:
                if not text.strip():
                    verdict = Verdict(False, "empty", "the edit is empty")
                else:
                    with generators_kept():
                        check = kernel.keep if keep else kernel.check
                        verdict = check(text, trust=trust, sanitize=sanitize)
            except BaseException as error:
                # The checker itself failed, or was interrupted: the text must not be lost.
                reason = f"{type(error).__name__}: {error}"
                self._remember(make_edit(kernel, text, REFUSED, Verdict(False, "crash", reason)))
                raise
            kept = keep and verdict.ok
            edit = make_edit(kernel, text, KEPT if kept else REFUSED, verdict)
            if kept or not verdict.ok:
                self._remember(edit)
            self._seen[id(kernel)] = kernel, kernel.source
        return EditOutcome(name, kernel, text, verdict, kept, edit, offset)

    def revert(self, name: str) -> Kernel:
        """Put a kernel's generated text back in use, here and after a restart."""
        _, kernel = self.find(name)
        with self.lock:
            kernel.revert()
            if self.history.latest(kernel.name, kernel.target) is not None:
                self._remember(make_edit(kernel, kernel.source, REVERTED, None))
            self._seen[id(kernel)] = kernel, kernel.source
        return kernel

    def edits(self, name: str) -> tuple[Edit, ...]:
        """Return every text tried for a kernel, the oldest first, of earlier sessions too."""
        return self.history.of(name.rpartition(".")[2])

    def sync(self) -> None:
        """Remember what the panel or the user's own calls kept or reverted.

        While the panel checks or tunes nothing is done: no cell should wait for that, and the
        call after the next cell catches up.
        """
        if not self.lock.acquire(blocking=False):
            return
        try:
            for key, (kernel, known) in list(self._seen.items()):
                if kernel.source == known:
                    continue
                self._seen[key] = kernel, kernel.source
                state = kernel.state
                if state == "edited":
                    verdict = kernel.last_verdict
                    self._remember(make_edit(kernel, kernel.source, KEPT, verdict))
                elif self.history.latest(kernel.name, kernel.target) is not None:
                    self._remember(make_edit(kernel, kernel.source, REVERTED, None))
            # A kernel keeps its graph's inputs alive; nobody can reach these any more.
            alive = {id(k) for cell in self.cells.values() for k in cell.kernels.values()}
            self._seen = {key: value for key, value in self._seen.items() if key in alive}
        finally:
            self.lock.release()

    def _remember(self, edit: Edit) -> None:
        # A full disk must not undo an edit that is in use; it is in memory in any case.
        with contextlib.suppress(OSError):
            self.history.add(edit)


def _same_ending(text: str, kernel: Kernel) -> str:
    """Return ``text`` with the final newline that it lost on its way through a cell."""
    for known in (kernel.source, kernel.generated.text):
        if text.rstrip("\n") == known.rstrip("\n"):
            return known
    return text.rstrip("\n") + "\n" if text.strip() else text
