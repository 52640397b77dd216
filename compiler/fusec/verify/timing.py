"""Timing a checked kernel against the generated one, and against what memory allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from fusec.kernel import Kernel
from fusec.kernel_source import Signature
from fusec.memory.strided import clone_strided, empty_like_strided
from fusec.report import Timing

# Nothing runs this many times faster than a copy of the bytes that it has to touch.
_TOO_GOOD = 10.0
_COPIED_AT_MOST = 128 << 20


class TooGoodToBeTrue(Exception):  # a finding, which the caller turns into a verdict
    """A kernel finished faster than its memory traffic can.

    Attributes:
        factor: How many times faster than a copy of the same bytes.
        timing: Its own timing.
        generated: The generated kernel's.
    """

    def __init__(self, factor: float, timing: Timing, generated: Timing) -> None:
        self.factor = factor
        self.timing = timing
        self.generated = generated
        super().__init__(
            f"{factor:.0f}x faster than a copy of the bytes that it must touch: "
            "it cannot have done the work"
        )


def fresh_tensors(signature: Signature, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return tensors that a run may change: inputs shared, the rest copied or left empty."""
    made = []
    for argument, tensor in zip(signature.arguments, tensors, strict=True):
        if argument.role == "in":
            made.append(tensor.detach())
        elif argument.role == "inout":
            made.append(clone_strided(tensor))
        else:
            made.append(empty_like_strided(tensor))
    return made


def written(signature: Signature, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return those tensors that a run has written."""
    pairs = zip(signature.arguments, tensors, strict=True)
    return [tensor for argument, tensor in pairs if argument.role != "in"]


def restore(
    signature: Signature, tensors: Sequence[torch.Tensor], originals: Sequence[torch.Tensor]
) -> Callable[[], None] | None:
    """Return what puts updated arguments back before a run; None where there are none."""
    updated = [
        (tensor, original)
        for argument, tensor, original in zip(signature.arguments, tensors, originals, strict=True)
        if argument.role == "inout"
    ]
    if not updated:
        return None

    def put_back() -> None:
        for tensor, original in updated:
            tensor.copy_(original)

    return put_back


def traffic(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> int:
    """Return how many bytes a run must move at least."""
    arguments = kernel.signature.arguments
    if kernel.generated.read_bytes >= 0 and kernel.generated.written_bytes >= 0:
        return kernel.generated.read_bytes + kernel.generated.written_bytes
    pairs = zip(arguments, tensors, strict=True)
    # What it reads may be a part only; what it writes, it writes.
    return sum(t.numel() * t.element_size() for a, t in pairs if a.role == "out")


def too_good(times: Mapping[str, Timing], moved: int, copied: int) -> None:
    """Refuse times that no work explains.

    Args:
        times: Of the ``candidate``, the ``generated`` kernel and, if there was one, a ``copy``.
        moved: Bytes that a run must move.
        copied: Bytes that the copy moved.

    Raises:
        TooGoodToBeTrue: It is faster than its memory traffic can be.
    """
    timing = times["candidate"]
    if "copy" in times:
        # A copy in a bad moment of a busy machine proves nothing: its quick quarter counts. Nor
        # does a candidate that is no quicker than the kernel that surely does the work.
        share = times["copy"].low * (moved / copied) / timing.median
        if share > _TOO_GOOD and 2 * timing.median < times["generated"].low:
            raise TooGoodToBeTrue(share, timing, times["generated"])


def copied_bytes(moved: int) -> int:
    """Return how many bytes the copy beside a kernel copies that moves so many."""
    return min(moved // 2, _COPIED_AT_MOST)
