"""How a result shows a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fuselab.display import words
from fuselab.display.summary import KernelView

if TYPE_CHECKING:
    from fusec.kernel import Kernel
    from fusec.report import Timing


def kernel_view(name: str, kernel: Kernel, *, filename: str, time: Timing | None) -> KernelView:
    """Return a kernel as a result shows it.

    Args:
        name: What the cell calls it.
        kernel: Its text in use is shown.
        filename: Of the cell: whose lines are named.
        time: The kernel's alone, where it was timed.
    """
    generated = kernel.generated
    places = {place for lines in generated.origins.values() for place in lines}
    known = generated.read_bytes >= 0 and generated.written_bytes >= 0
    return KernelView(
        name=name,
        target=kernel.target,
        state=kernel.state,
        summary=generated.summary,
        lines=words.lines_of(places, filename),
        moved=generated.read_bytes + generated.written_bytes if known else -1,
        time=time,
        source=kernel.source,
        # A tuned text has other numbers in the same lines; an edited one has other lines.
        origins=generated.origins if kernel.state != "edited" else {},
    )


__all__ = ["kernel_view"]
