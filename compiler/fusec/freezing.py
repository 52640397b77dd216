"""Frozen mode: within it nothing is captured, and no compiler is started.

``with fusec.frozen():`` holds for the whole process, for as long as any thread is within it: a
server enters it once, and the threads that answer requests are covered.  What would have to be
compiled is a ``FrozenMiss``, which says what was asked for and what there is.  The native part of
calls, which is built in the background, goes on being built where that began before.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fusec.errors import FusecError

_lock = threading.Lock()
_depth = 0
_this_thread = threading.local()
_MOST_SHOWN = 8
_MEND = (
    "call it so once before it is frozen, or name this call in fusec.precompile, with the options "
    "that this function is compiled with"
)


@dataclass(frozen=True)
class Unfit:
    """Something that was compiled, and why a call does not fit it.

    Attributes:
        what: What it was compiled for, in a few words.
        guard: What it asks for that did not hold, in words.
        found: What was there instead.
    """

    what: str
    guard: str
    found: str = ""

    def __str__(self) -> str:
        found = f"; found: {self.found}" if self.found else ""
        return f"{self.what}: {self.guard}{found}"


class FrozenMiss(FusecError, RuntimeError):
    """Something would have to be compiled where nothing may be.

    Attributes:
        what: What would have been compiled.
        compiled: What there is, each with the guard that did not hold and the value found.
        refused: What was precompiled and is not used, with the reasons.
    """

    def __init__(
        self, what: str, compiled: Sequence[Unfit] = (), refused: Sequence[str] = ()
    ) -> None:
        self.what = what
        self.compiled = tuple(compiled)
        self.refused = tuple(refused)
        lines = [f"{what} would have to be compiled, and compilation is frozen"]
        if compiled:
            lines.append("what was compiled, and why this call does not fit:")
            said = Counter(map(str, compiled))
            lines += [
                f"  {number}. {each}{f' ({count} such)' if count > 1 else ''}"
                for number, (each, count) in enumerate([*said.items()][:_MOST_SHOWN], 1)
            ]
            if len(said) > _MOST_SHOWN:
                lines.append(f"  and {sum([*said.values()][_MOST_SHOWN:])} more")
        elif not refused:
            lines.append("nothing was compiled for it")
        if refused:
            lines.append("what was precompiled, and is not used:")
            lines += [f"  {each}" for each in dict.fromkeys(refused)]
        super().__init__("\n".join(lines), _MEND)
        self.args = ("\n".join([*lines, f"to mend it: {_MEND}"]),)


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Compile nothing in this process meanwhile, in any thread.

    Raises:
        FrozenMiss: From the call that would have to be compiled.
    """
    global _depth
    with _lock:
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1


def is_frozen() -> bool:
    """Whether nothing may be compiled now, which holds for every thread."""
    return _depth > 0


@contextlib.contextmanager
def begun_before() -> Iterator[None]:
    """Let this thread end what it began before anything was frozen.

    A server compiles, and is frozen a moment later: the native part of its calls, whose build the
    first graph began in the background, would otherwise never be there.
    """
    _this_thread.may_compile = True
    try:
        yield
    finally:
        _this_thread.may_compile = False


def refuse_if_frozen(what: str) -> None:
    """Refuse to compile something if nothing may be compiled.

    Raises:
        FrozenMiss: It is so.
    """
    if _depth and not getattr(_this_thread, "may_compile", False):
        raise FrozenMiss(what)


__all__ = ["FrozenMiss", "Unfit", "begun_before", "frozen", "is_frozen", "refuse_if_frozen"]
