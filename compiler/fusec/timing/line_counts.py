"""What each line of a kernel costs while it runs: where it is seen, again and again.

On a CPU Linux says where the thread is (``systems.linux_samples``), and the notes for debuggers of
the same text, built once more with them, say which line that is.  On a GPU Nsight Compute looks at
every warp (``timing.nsight``).  A helper's instructions are the line's that calls it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fusec.call.launch import CppRunnable
from fusec.helper_block import without_helpers
from fusec.kernel import Kernel
from fusec.systems import this_system
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target
from fusec.toolchain.addresses import DEBUG_FLAG, find_tool, lines_at
from fusec.toolchain.build import SOURCE

FEWEST = 50  # samples: below that nothing is said of lines


@dataclass(frozen=True)
class LineCount:
    """What was seen of a line.

    Attributes:
        share: Of all samples, 0 to 1.
        waits: What it mostly waits for, in words; empty where nobody says.
        instructions: Executed, by warps; -1 where not counted.
        bytes: Moved between the multiprocessors and L2; -1 where not counted.
    """

    share: float
    waits: str = ""
    instructions: float = -1.0
    bytes: float = -1.0


@dataclass(frozen=True)
class LineCounts:
    """What was seen of the lines of a kernel's text.

    Attributes:
        text: The text that ran.
        lines: By their numbers in it, from 1.
        samples: How often somebody looked.
        by: Who looked, in words.
        what: What the shares are of: the time, or that of all warps together.
        missing: Why nothing is known of lines, in words; else empty.
    """

    text: str
    lines: Mapping[int, LineCount] = field(default_factory=dict)
    samples: int = 0
    by: str = ""
    missing: str = ""
    what: str = "time"

    @property
    def elsewhere(self) -> float:
        """The share that is no line's: what starts threads, libraries."""
        return max(0.0, 1.0 - sum(line.share for line in self.lines.values()))


def line_counts_on_cpu(
    kernel: Kernel, tensors: Sequence[torch.Tensor], sizes: Sequence[int], seconds: float = 0.3
) -> LineCounts:
    """Run a kernel of a shared library on the calling thread and see at which lines it is.

    Args:
        kernel: Its text in use is built once more, with notes for debuggers.
        tensors: What it runs on; it may write to them.
        sizes: The symbolic sizes.
        seconds: How long to look, about.

    Raises:
        FusecError: It cannot be built.
    """
    text, target = kernel.source, find_target(kernel.target)
    tool = find_tool()
    if not isinstance(target, LibraryTarget):
        return LineCounts(text, missing="its lines are counted on a GPU alone")
    if tool is None:
        return LineCounts(text, missing="no addr2line is here: binutils has it, beside g++")
    flags, edited = (*kernel.generated.flags, DEBUG_FLAG), text != kernel.generated.text
    path = target.compile(text, flags=flags, edited=edited)
    built = CppRunnable(path, kernel.generated.entry, kernel.signature, kernel.name)
    call = built.bound(tensors, sizes)
    samples = this_system().sample(lambda: _repeat(call, seconds))
    if samples.missing:
        return LineCounts(text, missing=samples.missing)
    place = this_system().mapped_at(str(path))
    if place is None:
        return LineCounts(text, missing="the kernel's library is not found in this process")
    inside = [a - place[0] for a in samples.addresses if place[0] <= a < place[1]]
    frames = lines_at(tool, path, inside, SOURCE)
    own = without_helpers(text)[0].count("\n") + 1
    seen = Counter(_own(frames.get(address, ()), own) for address in inside)
    return counted_lines(text, seen, f"{samples.by}, on one thread")


def counted_lines(text: str, seen: Mapping[int, int], by: str) -> LineCounts:
    """Return shares of lines.

    Args:
        text: The kernel's.
        seen: How often each line was seen; 0 is what is no line's.
        by: Who looked.
    """
    total = sum(seen.values())
    if total < FEWEST:
        missing = f"the kernel was seen {total} times only, too few to say: give it larger inputs"
        return LineCounts(text, missing=missing)
    lines = {line: LineCount(count / total) for line, count in sorted(seen.items()) if line}
    return LineCounts(text, lines, total, by)


def _own(frames: Sequence[int], own: int) -> int:
    """Return the kernel's line among those of what was inlined and of its callers; 0 for none."""
    return next((line for line in frames if 0 < line <= own), 0)


def _repeat(call: Callable[[], object], seconds: float) -> None:
    call()
    # Of this thread's own time: others may want the processor.
    end, latest = time.thread_time() + seconds, time.perf_counter() + 10 * seconds
    while time.thread_time() < end and time.perf_counter() < latest:
        for _ in range(3):
            call()


__all__ = ["LineCount", "LineCounts", "counted_lines", "line_counts_on_cpu"]
