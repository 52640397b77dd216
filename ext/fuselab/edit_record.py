"""One text that a user tried for a kernel, and what became of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fusec.report import Verdict


@dataclass(frozen=True)
class Edit:
    """One text that a user tried for a kernel.

    Attributes:
        kernel: The kernel's name.
        target: The name of its target.
        state: ``kept``, ``refused``, or ``reverted`` (back to the generated text).
        text: The whole kernel file as typed.
        reason: The verdict in one line.
        signature: Digest of what the kernel takes: the edit fits kernels with the same one.
        generated: Hash of the generated text that it was an edit of.
        when: Seconds since the epoch.
        verdict: With all its figures; None for an edit of an earlier session.
    """

    kernel: str
    target: str
    state: str
    text: str = field(repr=False)
    reason: str
    signature: str = field(repr=False)
    generated: str = field(repr=False)
    when: float
    verdict: Verdict | None = field(default=None, repr=False, compare=False)

    @property
    def date(self) -> str:
        """When it was tried, in local time."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.when))


__all__ = ["Edit"]
