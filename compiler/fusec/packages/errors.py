"""What cannot be packaged, and why."""

from __future__ import annotations

from fusec.errors import FusecError


class CannotPackage(FusecError):
    """A function, or one of its calls, that no package can hold as it is."""


__all__ = ["CannotPackage"]
