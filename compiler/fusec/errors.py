"""Errors: one class a mistake, one line for the user, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class FusecError(Exception):
    """Base of all errors that the compiler raises for a user's mistake.

    Attributes:
        message: What is wrong, in one line.
        hint: What to do next; empty where there is nothing to add.
    """

    def __init__(self, message: str, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message} ({hint})" if hint else message)


class BadOption(FusecError, ValueError):
    """An option that does not exist or a value that it does not take."""

    def __init__(self, name: str, value: object, allowed: Iterable[str]) -> None:
        super().__init__(f"{name} {value!r} is not known", f"allowed: {', '.join(allowed)}")


class ValueRefused(FusecError, IndexError, RuntimeError):
    """A number in a tensor is none that an operator takes: an index out of range, no probability.

    Eager raises IndexError where a tensor is indexed, RuntimeError in ``gather`` and ``scatter``.
    A kernel's notes are the user's lines that it computes.
    """


class BrokenPromise(FusecError, RuntimeError):
    """An operator's result, or a number read from a tensor, is not what it was said to be."""


@dataclass(frozen=True)
class Diagnostic:
    """One message of a compiler about a line of the kernel file.

    Attributes:
        line: Line in the kernel file, from 1.
        column: Column, from 1; 0 where the compiler names none.
        severity: ``error``, ``warning`` or ``note``.
        message: The compiler's words.
    """

    line: int
    column: int
    severity: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.severity}: {self.message}"


class CompilerNotFound(FusecError):
    """There is no C++ compiler that can build kernels."""


class CannotBuild(FusecError):
    """A kernel cannot be built, through no fault of its text: a full disk, say."""

    def __init__(self, error: OSError) -> None:
        place = f": {error.filename}" if error.filename else ""
        super().__init__(
            f"the kernel cannot be built: {error.strerror or error}{place}",
            "kernels are built in the folder for temporary files, which TMPDIR names",
        )


# Characters of a compiler's message that are shown; all of it is in ``CompileError.output``.
_MOST_SHOWN = 300


class CompileError(FusecError):
    """A kernel's text does not compile.

    Attributes:
        diagnostics: What the compiler says about the kernel file's own lines, in its order.
        output: Everything it printed.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic], output: str, hint: str = "") -> None:
        self.diagnostics = tuple(diagnostics)
        self.output = output
        first = next((d for d in self.diagnostics if d.severity == "error"), None)
        if first is not None:
            message = f"the kernel does not compile: line {first.line}: {first.message}"
        else:
            # What the linker and other compilers say has no form but its words.
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            marks = ("undefined reference", "error", "")
            telling = next((line for mark in marks for line in lines if mark in line), "")
            message = f"the kernel does not compile: {telling or 'the compiler says nothing'}"
        if len(message) > _MOST_SHOWN:
            message = f"{message[:_MOST_SHOWN]} ..."
        super().__init__(message, hint)


class BuildTimeout(FusecError, TimeoutError):
    """The compiler did not finish in the time allowed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"the compiler did not finish in {seconds:g} s", "simplify the kernel, or allow more"
        )


class LoadError(FusecError):
    """A built kernel cannot be loaded, or has no function of the name asked for."""


class DeviceNotThere(FusecError, RuntimeError):
    """A tensor is asked for on a device that this machine does not have."""

    def __init__(self, device: str, there: Iterable[str], where: str = "") -> None:
        place = f"{where}: " if where else ""
        super().__init__(
            f"{place}there is no device {device} here", f"there is: {', '.join(there)}"
        )


def in_words(error: Exception) -> str:
    """Return an error of Python's in one line, for somebody who has not seen its code.

    Args:
        error: A package that is missing is named as one installs it.
    """
    if isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
        return f"the package {error.name} is not installed"
    return f"{type(error).__name__}: {error}"
