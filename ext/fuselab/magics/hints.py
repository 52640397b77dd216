"""What a notebook says where a magic was guessed, or has no code below it.

IPython's own words are of magics in general: that one was not found, or that a cell is empty.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Sequence
from typing import Any

# Cell magics that say themselves what they want where nothing stands below them.
_OWN = re.compile(r"%%(fuse\s+\S|(kernel|predict|task)(?=\s|$))(?!.*\?\s*$)")
_UNKNOWN = re.compile(r"(?:Line|Cell) magic (?:function )?`(%%?)(fuse_?\w*|kernels?|predict)`")
_CONFIG = re.compile(r"Invalid config statement: '(%*[Ff]use\w*)")

# What people call things, and what does them.
_MEANT = {
    "explain": "%fuse_report NAME --show fusion says why computations are together or apart, "
    "--show guards what breaks the graph",
    "tune": "%%fuse --tune 10 in the first line of a cell, or fuselab.tune('KERNEL')",
    "panel": "%fuse_report NAME --panel shows the workbench",
    "profile": "%fuse_report NAME --show counters has the time of each line",
    "time": "%fuse_report NAME --show timings",
    "bench": "%fuse_report NAME --show timings",
    "show": "%fuse_report NAME shows a result again",
    "history": "fuselab.edits('KERNEL') lists every text that was tried for a kernel",
    "edit": "%%fuse --edit KERNEL puts a kernel's text into the next cell",
    "undo": "%fuse_revert KERNEL puts the generated text back in use",
    "save": "%%fuse --save DIR writes all stages of a cell as files",
    "predict": "%%predict, and the cell's code below it",
    "kernel": "%%kernel NAME, and the kernel's text below it",
}


def keep_empty_body(lines: Sequence[str]) -> list[str]:
    """Give a cell magic of ours an empty line as its body, where it has none."""
    if len(lines) == 1 and _OWN.match(lines[0]):
        return [lines[0].rstrip("\n") + "\n", "\n"]
    return list(lines)


# IPython leaves out what has side effects where it asks whether a cell is complete: in a terminal
# the first line of a cell would be, with an empty body, and run before anything could be typed.
keep_empty_body.has_side_effects = True  # type: ignore[attr-defined]


def hint(message: str, known: Sequence[str]) -> str:
    """Say what may have been meant by a magic that there is not; empty for none of ours.

    Args:
        message: IPython's.
        known: The magics that there are, with their signs.
    """
    if _CONFIG.match(message):
        return "%config FuseMagics lists the defaults of %%fuse that can be set"
    found = _UNKNOWN.search(message)
    if found is None:
        return ""
    name = found[2].removeprefix("fuse_").rstrip("s")
    meant = next((said for word, said in _MEANT.items() if name.startswith(word)), "")
    if not meant:
        close = difflib.get_close_matches(found[1] + found[2], known, 1, 0.7)
        meant = f"did you mean {close[0]}?" if close else ""
    return "; ".join(filter(None, (meant, "%fuse_help lists what there is")))


class Hints:
    """Adds both to a shell, until they are taken away.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        shell.input_transformers_cleanup.append(keep_empty_body)
        shell.events.register("post_run_cell", self._after)

    def remove(self) -> None:
        """Take them away."""
        if keep_empty_body in self._shell.input_transformers_cleanup:
            self._shell.input_transformers_cleanup.remove(keep_empty_body)
        self._shell.events.unregister("post_run_cell", self._after)

    def _after(self, result: Any) -> None:
        error = getattr(result, "error_in_exec", None)
        if type(error).__name__ != "UsageError":
            return
        magics = self._shell.magics_manager.magics
        signs = {"line": "%", "cell": "%%"}
        known = [sign + name for kind, sign in signs.items() for name in magics[kind]]
        if said := hint(str(error), known):
            print(said, file=sys.stderr)  # where IPython has written the error


__all__ = ["Hints", "hint", "keep_empty_body"]
