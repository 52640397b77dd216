"""Tab completion of the magics: their options, and the names of kernels and cells."""

from __future__ import annotations

import argparse
import weakref
from typing import Any

_known: weakref.WeakSet[Any] = weakref.WeakSet()
PATTERN = r"\s*%%?(fuse|kernel|predict)"
_KERNELS = frozenset({"kernel", "fuse_revert", "fuse_export", "fuse_compare"})
_CELLS = frozenset({"fuse_report", "fuse_kernels", "fuse_compare"})


def register(shell: Any) -> None:
    """Let a shell complete what our magics take; once a shell, whatever is loaded again."""
    if shell not in _known:
        _known.add(shell)
        shell.set_hook("complete_command", _complete, re_key=PATTERN)


def completions(magics: Any, line: str, symbol: str) -> list[str]:
    """Return what may stand at the end of a line.

    Args:
        magics: ``FuseMagics``, or ``PredictMagics`` for what that has.
        line: All of it, up to the cursor.
        symbol: The word that the cursor is in.
    """
    head, _, rest = line.lstrip().lstrip("%").partition(" ")
    magic = getattr(magics, head, None)
    parser: argparse.ArgumentParser | None = getattr(magic, "parser", None)
    if parser is None or not line.rstrip("\n").lstrip().startswith("%"):
        return []
    words = rest.split()
    if words and words[-1] == symbol:
        words.pop()
    option = next(
        (a for a in parser._actions if words and words[-1] in a.option_strings and a.nargs != 0),
        None,
    )
    if option is not None and option.choices:
        return _starting([str(choice) for choice in option.choices], symbol)
    found = [a.option_strings[-1] for a in parser._actions if a.option_strings]
    if head in _KERNELS or (option is not None and option.dest == "edit"):
        found += list(magics.session.kernels)
    if head in _CELLS:
        found += list(magics.session.cells)
    return _starting(found, symbol)


def _starting(words: list[str], symbol: str) -> list[str]:
    return [word for word in dict.fromkeys(words) if word.startswith(symbol)]


def _complete(shell: Any, event: Any) -> list[str]:
    own = "PredictMagics" if event.line.lstrip(" %").startswith("predict") else "FuseMagics"
    magics = shell.magics_manager.registry.get(own)
    if magics is None:
        return []
    return completions(magics, event.line[: len(event.line)], event.symbol)
