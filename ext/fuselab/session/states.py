"""What has become of a kernel's generated text, and how a result shows the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusec.tunables import read_tunables, set_tunables
from fuselab.display import words
from fuselab.display.render import KernelView

if TYPE_CHECKING:
    from fusec.kernel import Kernel
    from fuselab.session.fused_cell import FusedCell


def kernel_state(kernel: Kernel) -> str:
    """Return ``generated``, ``tuned`` (other values of its tunables) or ``edited``."""
    if not kernel.edited:
        return "generated"
    same = _without_values(kernel.source) == _without_values(kernel.generated.text)
    return "tuned" if same else "edited"


def _without_values(text: str) -> str:
    return set_tunables(text, dict.fromkeys((t.name for t in read_tunables(text)), 0))


def kernel_view(cell: FusedCell, name: str, kernel: Kernel) -> KernelView:
    """Return a kernel as a result shows it."""
    generated = kernel.generated
    places = {place for lines in generated.origins.values() for place in lines}
    known = generated.read_bytes >= 0 and generated.written_bytes >= 0
    state = kernel_state(kernel)
    return KernelView(
        name=name,
        target=kernel.target,
        state=state,
        summary=generated.summary,
        lines=words.lines_of(places, cell.filename),
        moved=generated.read_bytes + generated.written_bytes if known else -1,
        time=cell.kernel_times.get(name),
        source=kernel.source,
        # A tuned text has other numbers in the same lines; an edited one has other lines.
        origins=generated.origins if state != "edited" else {},
    )
