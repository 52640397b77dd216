"""What can go wrong with a package: one class a mistake, each with what to do next."""

from __future__ import annotations


class PackageError(Exception):
    """Base of all errors about packages.

    Attributes:
        message: What is wrong, in one line.
        hint: What to do next; empty where there is nothing to add.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message} ({hint})" if hint else message)


class DamagedPackage(PackageError, ValueError):
    """A file that is no package, or no longer the one that was written."""

    def __init__(self, message: str) -> None:
        super().__init__(f"this package is damaged: {message}", "get it again from where it is")


class CannotRun(PackageError, RuntimeError):
    """A sound package that cannot run here: no binary for this processor, or it needs torch."""


class NoSpecialization(PackageError, TypeError):
    """A call that none of the package's programs was made for.

    Attributes:
        reasons: The guard that failed, by the name of each specialization.
    """

    def __init__(self, name: str, reasons: dict[str, str]) -> None:
        self.reasons = dict(reasons)
        lines = "".join(f"\n  {each}: {reason}" for each, reason in reasons.items())
        super().__init__(f"{name} was not packaged for such a call:{lines}")


class KernelStopped(PackageError, IndexError):
    """A check within a kernel failed: an index out of range, say."""


__all__ = ["CannotRun", "DamagedPackage", "KernelStopped", "NoSpecialization", "PackageError"]
