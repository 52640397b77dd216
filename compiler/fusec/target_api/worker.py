"""What a worker that runs candidates takes from a target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Placed(Protocol):
    """A tensor argument in the memory of a candidate's process."""

    @property
    def address(self) -> int:
        """Where its first element is."""

    def tensor(self) -> torch.Tensor:
        """Return it as a tensor."""


class WorkerKernel(Protocol):
    """What a target's worker returns: a kernel that is run where it can do no harm."""

    def __call__(self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int) -> int:
        """Run once; return 0, or the number of the check that failed."""

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return ``line`` and ``message`` of what its compiler refused; nothing if it did not.

        Where it asks for more than the device has, ``problem`` is ``resources``, with ``what``,
        ``wanted`` and ``there``.
        """


Prepare = Callable[[Mapping[str, Any]], WorkerKernel]
# Takes what a worker is at, and for how many seconds it may be silent meanwhile.
Tell = Callable[[str, float], None]


__all__ = ["Placed", "Prepare", "Tell", "WorkerKernel"]
