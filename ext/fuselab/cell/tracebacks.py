"""What a notebook shows of an error in a fused cell: the cell's own lines, as of a plain cell."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusec.errors import FusecError

if TYPE_CHECKING:
    from types import TracebackType

# TorchDynamo's name for the rest of a cell after a graph break, with its arguments and colors.
_RESUMED = re.compile(r"torch_dynamo_resume_in_(\w+?)_at_\d+(?:_\d+)?(?:\x1b\[[\d;]*m)*\([^\n]*\)")
_OURS = re.compile(r"[/\\](torch[/\\]_dynamo|fusec|fuselab)[/\\]|^<(traced )?host program")
# An operator that a compiled cell calls by its overload stands in no line of the cell.
_CALLED = re.compile(r"[/\\]torch[/\\]_ops\.py$")


def shorten_traceback(shell: Any, error: BaseException) -> None:
    """Let IPython show an error of a fused cell as it shows one of a plain cell.

    The exception itself keeps its whole traceback; only what is drawn is shorter.
    """
    if isinstance(error, SyntaxError) or hasattr(error, "_render_traceback_"):
        return
    if isinstance(error, FusecError):
        lines = [f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]
        with contextlib.suppress(AttributeError, TypeError):
            error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]
        return
    frames = _user_frames(error.__traceback__)
    if not frames:
        return
    short: TracebackType | None = None
    for frame in reversed(frames):
        short = types.TracebackType(short, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)

    def render() -> Sequence[str]:
        lines: Sequence[str] = shell.InteractiveTB.structured_traceback(
            type(error), error, short, tb_offset=0
        )
        return [_RESUMED.sub(r"\1()", line) for line in lines]

    with contextlib.suppress(AttributeError, TypeError):
        error._render_traceback_ = render  # type: ignore[attr-defined]


def _user_frames(traceback: TracebackType | None) -> list[TracebackType]:
    """Return the frames from the cell's first one on, without the compiler's in between."""
    frames: list[TracebackType] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        in_cell = code.co_filename.startswith("<fuse ")
        if in_cell and frames and _continues(frames[-1].tb_frame.f_code, code):
            # A graph break runs the rest of the cell as another function, one frame deeper.
            frames[-1] = traceback
        elif in_cell or (frames and not _is_ours(code.co_filename)):
            frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _is_ours(file: str) -> bool:
    return bool(_OURS.search(file) or _CALLED.search(file))


def _continues(before: types.CodeType, after: types.CodeType) -> bool:
    return before.co_filename == after.co_filename and after.co_name.startswith(
        "torch_dynamo_resume_in_"
    )
