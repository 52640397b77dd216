"""Precompile a function for calls that are known: here and now, or by several processes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fusec.ahead.artefact import Kept
from fusec.ahead.signatures import CallSignature, NotWritable
from fusec.report import counted


@dataclass(frozen=True)
class Precompiled:
    """What became of one signature.

    Attributes:
        signature: The call's, in words.
        seconds: How long it took.
        kernels: How many kernels it has.
        problem: Why another process has to capture it again; empty where it need not.
        error: What the call raised; empty where it ran.
    """

    signature: str
    seconds: float
    kernels: int = 0
    problem: str = ""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"{self.signature}: {self.error}"
        text = f"{self.signature}: {counted(self.kernels, 'kernel')} in {self.seconds:.1f} s"
        return f"{text}; captured again in each process: {self.problem}" if self.problem else text


@dataclass(frozen=True)
class Precompilation:
    """What became of all signatures.

    Attributes:
        name: The function's.
        calls: One for each signature that was reached, in their order.
        stopped: Whether somebody stopped it before all were.
    """

    name: str
    calls: tuple[Precompiled, ...]
    stopped: bool = False

    @property
    def complete(self) -> bool:
        """Whether another process has to capture nothing for these calls."""
        return not self.stopped and not any(each.problem or each.error for each in self.calls)

    def __str__(self) -> str:
        title = f"{self.name}: {counted(len(self.calls), 'signature')} precompiled"
        lines = [title + (", then stopped" if self.stopped else "")]
        return "\n".join([*lines, *(f"  {each}" for each in self.calls)])

    __repr__ = __str__


class Precompilable(Protocol):
    """What is precompiled, as far as it is known here."""

    @property
    def kernels(self) -> dict[str, Any]:
        """Every kernel."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run."""

    def however_often(self) -> contextlib.AbstractContextManager[None]:
        """Have it compiled meanwhile for every kind of call, TorchDynamo's limit or not."""

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kept:
        """Write down the compiled code of a call that has run."""


def precompile_here(
    compiled: Precompilable,
    name: str,
    signatures: Sequence[CallSignature | tuple[Any, ...] | torch.Tensor],
    *,
    progress: Callable[[int, int, Precompiled], object] | None = None,
    stop: threading.Event | None = None,
) -> Precompilation:
    """Call a function once for each signature, and write down what was compiled.

    Args:
        compiled: The function.
        name: For people.
        signatures: What the calls are like, or the arguments of one.
        progress: Told after each: how many are done, of how many, and what became of it.
        stop: Set it, and no further signature is begun.

    Raises:
        NotWritable: One is neither a signature nor a tuple of arguments.
    """
    calls = [_call(each) for each in signatures]
    done: list[Precompiled] = []
    for call in calls:
        if stop is not None and stop.is_set():
            return Precompilation(name, tuple(done), stopped=True)
        done.append(_precompile(compiled, call))
        if progress is not None:
            progress(len(done), len(calls), done[-1])
    return Precompilation(name, tuple(done))


def _call(given: object) -> CallSignature | tuple[Any, ...]:
    """Return what a call is like; a tensor stands for the only argument of one."""
    if isinstance(given, CallSignature):
        return given
    if isinstance(given, torch.Tensor):
        return (given,)
    if isinstance(given, (tuple, list)):
        return tuple(given)
    raise NotWritable(
        f"a {type(given).__name__} does not say what a call is given",
        "give tuples of arguments: [(x,), (x, y)]",
    )


def _precompile(compiled: Precompilable, signature: CallSignature | tuple[Any, ...]) -> Precompiled:
    started, before = time.perf_counter(), len(compiled.kernels)
    with _state(signature):
        if isinstance(signature, CallSignature):
            (args, kwargs), text = signature.call(), str(signature)
        else:
            args, kwargs = tuple(signature), {}
            text = _text(args)
        try:
            with compiled.however_often():
                compiled(*args, **kwargs)
        except Exception as error:
            seconds = time.perf_counter() - started
            return Precompiled(text, seconds, error=f"{type(error).__name__}: {error}")
        kept = compiled.keep(args, kwargs)
    seconds = time.perf_counter() - started
    return Precompiled(text, seconds, len(compiled.kernels) - before, kept.problem)


def _text(args: tuple[Any, ...]) -> str:
    try:
        return str(CallSignature.of(*args))
    except TypeError:
        return f"({', '.join(type(each).__name__ for each in args)})"


@contextlib.contextmanager
def _state(signature: object) -> Iterator[None]:
    """Put torch in the state that a call was made in."""
    if not isinstance(signature, CallSignature):
        yield
        return
    with torch.inference_mode(signature.inference), torch.set_grad_enabled(signature.grad):
        yield


__all__ = ["Precompilable", "Precompilation", "Precompiled", "precompile_here"]
