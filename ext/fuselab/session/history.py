"""Edits of kernels: every text that was tried, its verdict, and the kept one across restarts.

A text that a user has typed is never lost: it is in the history of this session whatever the
verdict, and on disk (``fusec.cache``, kind ``edits``) once it was kept or refused.

The store is content-addressed and has no listing, so a kernel's edits are a chain: entry 0, 1,
2 ... under a key with the notebook, the kernel's name and its target.  The last entry says what
is in use: a kept text, or none after a revert.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusec.report import Verdict
from fusec.target_api.registry import all_targets
from fuselab.edit_record import Edit

if TYPE_CHECKING:
    from fusec.cache import CacheStore
    from fusec.kernel import Kernel

KIND = "edits"
KEPT, REFUSED, REVERTED = "kept", "refused", "reverted"


def make_edit(kernel: Kernel, text: str, state: str, verdict: Verdict | None) -> Edit:
    """Describe what a user did to a kernel just now."""
    return Edit(
        kernel=kernel.name,
        target=kernel.target,
        state=state,
        text=text,
        reason=verdict.reason if verdict is not None else "",
        signature=kernel.signature.digest(),
        generated=text_hash(kernel.generated.text),
        when=time.time(),
        verdict=verdict,
    )


def text_hash(text: str) -> str:
    """Return a hash of a kernel text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def notebook_scope(namespace: Mapping[str, Any]) -> str:
    """Return what tells this notebook from others: its path where the frontend says, or a folder.

    Kernels are named for what they compute, so two notebooks may well have a kernel of the
    same name and signature; an edit of one must not turn up in the other.
    """
    named = namespace.get("__vsc_ipynb_file__") or os.environ.get("JPY_SESSION_NAME")
    return str(named) if named else str(Path.cwd())


class EditHistory:
    """All edits of a notebook's kernels, of this session and of earlier ones.

    Args:
        scope: See ``notebook_scope``.
        store: Where kept edits go; None to keep them in memory only.
    """

    def __init__(self, scope: str, store: CacheStore | None = None) -> None:
        self.scope = scope
        self._store = store
        self._edits: dict[tuple[str, str], list[Edit]] = {}

    def of(self, kernel: str, target: str = "") -> tuple[Edit, ...]:
        """Return the edits of a kernel, the oldest first; of all targets if none is named."""
        targets = [target] if target else [each.name for each in all_targets()]
        found = [edit for each in targets for edit in self._load(kernel, each)]
        return tuple(sorted(found, key=lambda edit: edit.when))

    @property
    def known(self) -> tuple[Edit, ...]:
        """The edits of every kernel that this process has asked for, the oldest first."""
        found = [edit for edits in self._edits.values() for edit in edits]
        return tuple(sorted(found, key=lambda edit: edit.when))

    def add(self, edit: Edit) -> None:
        """Remember an edit, in memory and on disk."""
        chain = self._load(edit.kernel, edit.target)
        chain.append(edit)
        if self._store is None:
            return
        facts = {
            "state": edit.state,
            "reason": edit.reason,
            "signature": edit.signature,
            "generated": edit.generated,
            "when": edit.when,
        }
        files = {
            "edit.json": json.dumps(facts).encode(),
            "kernel.txt": edit.text.encode(errors="backslashreplace"),
        }
        number = len(chain) - 1
        # Another kernel process on the same notebook may have written this number already;
        # then the store answers with that entry, and ours takes the next one.
        for _ in range(1000):
            entry = self._store.put(KIND, self._key(edit.kernel, edit.target, number), files)
            if entry.read_bytes("edit.json") == files["edit.json"]:
                return
            number += 1

    def latest(self, kernel: str, target: str) -> Edit | None:
        """Return the kept edit of a kernel; None where there is none or it was reverted."""
        decided = [e for e in self._load(kernel, target) if e.state in (KEPT, REVERTED)]
        return decided[-1] if decided and decided[-1].state == KEPT else None

    def candidates(self, kernel: str, target: str) -> tuple[Edit, ...]:
        """Return the kept edits of a kernel since it was last reverted, the latest first."""
        found: list[Edit] = []
        for edit in reversed(self._load(kernel, target)):
            if edit.state == REVERTED:
                break
            if edit.state == KEPT and all(edit.text != other.text for other in found):
                found.append(edit)
        return tuple(found)

    def _key(self, kernel: str, target: str, number: int) -> dict[str, Any]:
        return {"notebook": self.scope, "kernel": kernel, "target": target, "number": number}

    def _load(self, kernel: str, target: str) -> list[Edit]:
        chain = self._edits.get((kernel, target))
        if chain is not None:
            return chain
        chain = self._edits[kernel, target] = []
        while self._store is not None:
            entry = self._store.get(KIND, self._key(kernel, target, len(chain)))
            if entry is None:
                break
            try:
                facts = json.loads(entry.read_text("edit.json"))
                chain.append(
                    Edit(
                        kernel=kernel,
                        target=target,
                        state=str(facts["state"]),
                        text=entry.read_text("kernel.txt"),
                        reason=str(facts["reason"]),
                        signature=str(facts["signature"]),
                        generated=str(facts["generated"]),
                        when=float(facts["when"]),
                    )
                )
            except (OSError, ValueError, KeyError, TypeError):
                break  # removed or damaged between the check and the read
        return chain
