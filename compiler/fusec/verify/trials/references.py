"""What a kernel's results are held against, and may be held against again at the next edit.

Working out the references takes most of a check, and depends on the kernel and the inputs alone,
not on the text that is checked.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from fusec.kernel import Kernel
from fusec.report import OutputError
from fusec.verify.comparison.compare import compare_output
from fusec.verify.comparison.kept_bytes import KeptBytes
from fusec.verify.isolation.layout import Case
from fusec.verify.trials.inputs import Kind
from fusec.verify.words import alike, as_integers

Interpret = Callable[
    [Sequence[torch.Tensor], Sequence[int], torch.dtype | None], Sequence[torch.Tensor]
]

# What is kept between checks at most, of all graphs; and how often the same made-up inputs are
# used, since others may find more.
_KEPT_BYTES = 64 << 20
KEPT = KeptBytes()
_MOST_USES = 8
# What torch, CUDA and its libraries say of it in words alone.
_NO_MEMORY = re.compile("allocate memory|out of memory|alloc_failed", re.IGNORECASE)
# Of how many right results each case remembers the digest: an edit rarely changes any bit.
_RIGHT = 3


class References:
    """What a case's results are held against; the float64 run is made when it is asked for.

    Args:
        case: The inputs.
        interpret: As for ``check_kernel``.

    Attributes:
        hard: Whether the generated kernel, too, is off here; None until somebody finds out.
        missing: Where eager's outputs and the generated kernel's both are NaN, if it is off on
            inputs with NaN.
        seconds: How long eager took, operator by operator.
        processor: For how much of that time the thread that called it had a processor.
    """

    def __init__(self, case: Case, interpret: Interpret) -> None:
        self.hard: bool | None = None
        self.missing: tuple[torch.Tensor, ...] = ()
        self.case = case
        self.interpret = interpret
        started, used = time.perf_counter(), time.thread_time()
        self.eager = tuple(interpret(case.tensors, case.sizes, None))
        self.seconds, self.processor = time.perf_counter() - started, time.thread_time() - used
        self._right: list[tuple[bytes, bool, tuple[OutputError, ...]]] = []

    @functools.cached_property
    def float64(self) -> tuple[torch.Tensor | None, ...]:
        """The outputs of a run in float64; None where there is none."""
        if any(t.is_floating_point() or t.is_complex() for t in self.case.tensors):
            with contextlib.suppress(RuntimeError, TypeError, NotImplementedError):
                # Not everything exists in float64; eager alone decides then.
                return tuple(self.interpret(self.case.tensors, self.case.sizes, torch.float64))
        return (None,) * len(self.eager)

    @property
    def nbytes(self) -> int:
        """The references' size."""
        made = self.__dict__.get("float64", ())
        return sum(t.nbytes for t in (*self.eager, *made) if t is not None)

    def compare(
        self, names: Sequence[str], outputs: Sequence[torch.Tensor], *, figures: bool
    ) -> tuple[OutputError, ...]:
        """Compare; with float64 only where ``figures`` are wanted or eager does not suffice.

        What is bit for bit what was right before is right again, and as far off as it was.
        """
        digest = _digest(outputs)
        for known, shown, found in self._right:
            if shown >= figures and known == digest:
                return found
        found = self._compared(names, outputs, figures)
        if all(figure.ok for figure in found):
            self._right = [*self._right[1 - _RIGHT :], (digest, figures, found)]
        return found

    def _compared(
        self, names: Sequence[str], outputs: Sequence[torch.Tensor], figures: bool
    ) -> tuple[OutputError, ...]:
        if not figures:
            quick = tuple(
                compare_output(name, mine, plain, strict=True)
                for name, mine, plain in zip(names, outputs, self.eager, strict=True)
            )
            if all(figure.ok for figure in quick):
                return quick
        narrow = functools.partial(compare_output, narrow=True)
        return tuple(map(narrow, names, outputs, self.eager, self.float64))


def _digest(outputs: Sequence[torch.Tensor]) -> bytes:
    """Return what only outputs share that lie alike and hold the same bits."""
    digest = hashlib.sha256()
    for output in outputs:
        laid_out = output.dtype, tuple(output.shape), output.stride(), str(output.device)
        digest.update(repr(laid_out).encode())
        digest.update(as_integers(output.detach()).cpu().contiguous().numpy().data)
    return digest.digest()


@dataclass(frozen=True)
class ReferencedCase:
    """A case with its references; of a kind where the inputs are made up.

    ``doubtful`` is one of which nobody knows whether the kernel has to take it.
    """

    case: Case
    references: References
    kind: Kind | None = None
    doubtful: bool = False


@dataclass
class LeftOut:
    """What there is no trial of.

    Attributes:
        notes: What it is and why, in words.
        refused: Kinds of input that eager does not take.
        hurried: Whether there was no time for some.
        resampled: Whether eager takes such integers alone as the originals are.
    """

    notes: list[str] = field(default_factory=list)
    refused: set[Kind] = field(default_factory=set)
    hurried: bool = False
    resampled: bool = False


def no_memory(error: BaseException) -> bool:
    """Whether torch, or Python, had no room: that says nothing of the inputs."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or _NO_MEMORY.search(str(error)) is not None


class KeptTrials:
    """The trials of the latest check, for the next one of the same kernel on the same inputs."""

    def __init__(self) -> None:
        self._kernel: Kernel | None = None
        self._cases: tuple[Case, ...] = ()
        self._kinds: tuple[Kind, ...] = ()
        self._trials: tuple[ReferencedCase, ...] = ()
        self._left = LeftOut()
        self._uses = 0

    def keep(
        self,
        kernel: Kernel,
        cases: Sequence[Case],
        kinds: Sequence[Kind],
        trials: Sequence[ReferencedCase],
        left: LeftOut,
    ) -> None:
        """Keep a check's trials, unless they are large or there was no time for some.

        Args:
            kernel: The kernel.
            cases: The real inputs.
            kinds: The kinds of fresh input that were asked for.
            trials: All of them.
            left: What was left out.
        """
        self.forget()
        if left.hurried:
            return  # the next check may have time
        if sum(each.case.nbytes + each.references.nbytes for each in trials) <= _KEPT_BYTES:
            self._kernel, self._cases, self._kinds = kernel, tuple(cases), tuple(kinds)
            self._trials, self._left = tuple(trials), left
            KEPT.used(self, _KEPT_BYTES)

    def find(
        self, kernel: Kernel, cases: Sequence[Case], kinds: Sequence[Kind]
    ) -> tuple[tuple[ReferencedCase, ...], LeftOut] | None:
        """Return the trials of an earlier check, and what it left out, if they are this one's.

        Args:
            kernel: As for ``keep``.
            cases: Likewise; compared by their bits.
            kinds: Likewise.
        """
        if (
            self._kernel is not kernel
            or self._kinds != tuple(kinds)
            or len(self._cases) != len(cases)
            or not all(
                _same(kernel, kept, case) for kept, case in zip(self._cases, cases, strict=True)
            )
        ):
            self.forget()
            return None
        self._uses += 1
        found = self._trials, self._left
        KEPT.used(self, _KEPT_BYTES)  # they have grown by what was worked out since
        if self._uses >= _MOST_USES:
            self.forget()
        return found

    @property
    def nbytes(self) -> int:
        """The size of what is kept."""
        return sum(each.case.nbytes + each.references.nbytes for each in self._trials)

    def forget(self) -> None:
        """Keep nothing."""
        self._kernel, self._cases, self._kinds = None, (), ()
        self._trials, self._left, self._uses = (), LeftOut(), 0


def _same(kernel: Kernel, kept: Case, case: Case) -> bool:
    if kept.sizes != case.sizes or kept.label != case.label:
        return False
    for argument, mine, other in zip(
        kernel.signature.arguments, kept.tensors, case.tensors, strict=True
    ):
        # what is only written may hold anything
        if not alike(mine, other, bits=argument.role != "out"):
            return False
    return True


__all__ = [
    "KEPT",
    "Interpret",
    "KeptTrials",
    "LeftOut",
    "ReferencedCase",
    "References",
    "no_memory",
]
