"""What a student sees of a Triton kernel without a GPU: its programs, and its machine code."""

from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from fuselab.errors import FuselabError

if TYPE_CHECKING:
    from fusec.targets.triton.toolchain.lines import CompiledLine
    from fusec.targets.triton.toolchain.starts import RecordedStart
    from fusec.targets.triton.toolchain.watch import Access, Watch

_MOST = 24  # accesses that are shown
_GAP = 1 << 16  # elements between two tensors, so that what lies outside is nobody's
_CODE = (
    "white-space: pre-wrap; overflow-wrap: anywhere; font-family: monospace; "
    "vertical-align: top; padding: 1px 8px"
)


class NoTriton(FuselabError):
    """Triton is not installed."""


@dataclass(frozen=True)
class Programs:
    """What the programs of a start touch; shown as a table.

    Attributes:
        watch: What was seen.
    """

    watch: Watch

    @property
    def outside(self) -> list[Access]:
        """What lies outside of its tensor."""
        return [each for each in self.watch.accesses if each.outside]

    @property
    def title(self) -> str:
        """All of it in a line."""
        watch = self.watch
        wrong = len(self.outside)
        said = f"{wrong} out of bounds" if wrong else "nothing out of bounds"
        return (
            f"{_count(watch.programs, 'program')} in {_count(watch.starts, 'start')}: "
            f"{watch.read:,} bytes loaded, {watch.written:,} stored, {said}"
        )

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return line, program, what it does, the lanes that are masked, and what is wrong."""
        from fusec.targets.triton.toolchain.watch import ranges

        found = []
        for each in self._shown():
            what = f"{each.kind} {each.tensor}[{ranges(each.elements)}]" if each.elements else ""
            masked = f"{each.masked} masked" if each.masked else ""
            found.append(
                (str(each.line or ""), each.place, what or f"{each.kind} nothing", masked, "")
            )
            if each.outside:
                count = f"{each.tensor} has {each.size:,} elements"
                wrong = f"[{ranges(each.outside)}] is outside: {count}"
                found[-1] = (*found[-1][:4], wrong)
        return found

    def _shown(self) -> list[Access]:
        """Return the first accesses, and those that are wrong."""
        accesses = self.watch.accesses
        head = accesses[:_MOST]
        return head + [each for each in accesses[_MOST:] if each.outside][:_MOST]

    @property
    def _rest(self) -> str:
        left = len(self.watch.accesses) + self.watch.dropped - len(self._shown())
        return f"... and {left:,} more" if left > 0 else ""

    def __str__(self) -> str:
        lines = [("line", "program", "touches", "", ""), *self.rows()]
        widths = [max(len(line[n]) for line in lines) for n in range(4)]
        shown = [
            "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[4]]).rstrip()
            for line in lines
        ]
        return "\n".join([self.title, *shown, *([self._rest] if self._rest else [])])

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        rows = "".join(
            f"<tr{_RED if line[4] else ''}>"
            + "".join(f'<td style="text-align: left">{html.escape(cell)}</td>' for cell in line)
            + "</tr>"
            for line in self.rows()
        )
        head = "".join(
            f'<th style="text-align: left">{n}</th>' for n in ("line", "program", "touches")
        )
        text = f"<div>{html.escape(self.title)}</div><table><tr>{head}</tr>{rows}</table>"
        return {"text/plain": str(self), "text/html": f"{text}<div>{self._rest}</div>"}


_RED = ' style="background: #fef3f2; color: #b42318"'


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


@dataclass(frozen=True)
class MachineCode:
    """A kernel's lines with their PTX and machine code beside them.

    Attributes:
        name: The kernel's.
        gpu: What it is compiled for.
        lines: Line by line.
    """

    name: str
    gpu: str
    lines: tuple[CompiledLine, ...]

    @property
    def ptx(self) -> str:
        """The PTX instructions, line by line."""
        return "".join(f"\t{text}\n" for each in self.lines for text in each.ptx)

    @property
    def sass(self) -> str:
        """The machine's instructions, line by line."""
        return "".join(f"\t{text}\n" for each in self.lines for text in each.sass)

    def __str__(self) -> str:
        found = [f"{self.name} on {self.gpu}: PTX, and the machine's own instructions"]
        for each in self.lines:
            found.append(f"{each.number:3} {each.text}")
            width = max((len(text) for text in each.ptx), default=0)
            for place in range(max(len(each.ptx), len(each.sass))):
                left = each.ptx[place] if place < len(each.ptx) else ""
                right = each.sass[place] if place < len(each.sass) else ""
                found.append(f"      {left.ljust(min(width, 56))}  | {right}".rstrip())
        return "\n".join(found)

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        rows = []
        style = f"text-align: left; {_CODE}"
        for each in self.lines:
            text = html.escape(f"{each.number} {each.text}")
            if not (each.ptx or each.sass):
                rows.append(f'<tr><td colspan="2" style="{style}">{text}</td></tr>')
                continue
            left, right = (html.escape("\n".join(code)) for code in (each.ptx, each.sass))
            head = f'<td colspan="2" style="font-weight: bold; {style}">{text}</td>'
            cells = "".join(f'<td style="{style}">{code}</td>' for code in (left, right))
            rows.append(f"<tr>{head}</tr><tr>{cells}</tr>")
        heads = ("PTX", f"machine code ({html.escape(self.gpu)})")
        head = "".join(f'<th style="text-align: left">{each}</th>' for each in heads)
        shown = f'<table style="font-size: 85%"><tr>{head}</tr>{"".join(rows)}</table>'
        return {"text/plain": str(self), "text/html": shown}


def programs(start: Callable[..., Any], *tensors: torch.Tensor) -> Programs:
    """Run what a function starts in Triton's interpreter; show what each program touches.

    What lies outside of a tensor is shown and not touched, so that no mistake does harm.

    Args:
        start: A function that starts kernels: ``scale``.
        tensors: What it takes; results are written to them.

    Raises:
        CompileError: Triton refuses the kernel.
        NoTriton: Triton is not installed.
    """
    _require()
    from fusec.targets.triton.toolchain.watched_run import check_start, interpret_starts

    guarded = [_with_margins(tensor) for tensor in tensors]
    starts, namespace, path = _starts(start, guarded)
    for each in starts:
        check_start(each, namespace, path)
    names = list(inspect.signature(start).parameters)
    named = dict(zip(names, guarded, strict=True))
    watch = interpret_starts(starts, named, strict=False)
    for tensor, copy in zip(tensors, guarded, strict=True):
        tensor.copy_(copy)
    return Programs(watch)


def machine_code(
    start: Callable[..., Any], *tensors: torch.Tensor, gpu: str = "sm_90"
) -> MachineCode:
    """Compile the first kernel that a function starts for a GPU that need not be there; show it.

    Args:
        start: A function that starts kernels.
        tensors: What it takes.
        gpu: For example ``sm_80``.

    Raises:
        CompileError: Triton refuses the kernel.
        NoTriton: Triton is not installed.
    """
    _require()
    from fusec.targets.triton.toolchain.lines import machine_code as lines_of

    starts, namespace, path = _starts(start, list(tensors))
    found = lines_of(starts[0], namespace, path, gpu)
    return MachineCode(starts[0].function.fn.__name__, gpu, tuple(found))


def _require() -> None:
    try:
        import triton  # noqa: F401
    except ImportError:
        raise NoTriton("Triton is not installed here", "pip install triton (Linux)") from None


def _with_margins(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with much unused memory around it."""
    area = torch.zeros(tensor.numel() + 2 * _GAP, dtype=tensor.dtype)
    copy = area[_GAP : _GAP + tensor.numel()].view(tensor.shape)
    return copy.copy_(tensor)


def _starts(
    start: Callable[..., Any], tensors: Sequence[torch.Tensor]
) -> tuple[list[RecordedStart], dict[str, Any], str]:
    from fusec.targets.triton.toolchain.watched_run import Handle, collecting, with_tensors

    namespace: dict[str, Any] = start.__globals__
    names = list(inspect.signature(start).parameters)
    if len(names) != len(tensors):
        raise FuselabError(
            f"{start.__name__} takes {len(names)} tensors, not {len(tensors)}",
            f"give it {', '.join(names)}",
        )
    with collecting(namespace) as found:
        start(*[Handle(tensor, name) for tensor, name in zip(tensors, names, strict=True)])
    if not found:
        raise FuselabError("nothing was started", "kernel[(programs,)](...) starts a kernel")
    return [with_tensors(each) for each in found], namespace, start.__code__.co_filename


__all__ = ["MachineCode", "NoTriton", "Programs", "machine_code", "programs"]
