"""Cases that the generated kernel refuses: an index out of range, a division by zero.

Eager raises there, and so does what is compiled: the kernel looks before it reads and returns the
number of the check that failed.  An edit without that look is right on all that is right, and reads
or writes anywhere, or ends the process, at the first number that is not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from fusec.devices import CPU
from fusec.errors import ValueRefused
from fusec.memory.strided import empty_like_strided, write_strided
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target
from fusec.verify.isolation.layout import Case
from fusec.verify.timing import fresh_tensors
from fusec.verify.trials.candidate import Candidate
from fusec.verify.trials.integer_inputs import holds_integers
from fusec.verify.trials.references import ReferencedCase, References

# So far from a tensor lies no memory of a process, or as far as a type reaches.
_FAR = {2: 1 << 14, 4: (1 << 31) - 3, 8: 1 << 40}
_SMALL = 4 << 20
_FEW = 2  # ways of being out of range that a larger case is tried in


def refused_trials(candidate: Candidate, like: Case) -> Iterator[ReferencedCase]:
    """Yield cases in each of which one number is none that the kernel takes.

    Args:
        candidate: What is to be run on them.
        like: A case that it takes.
    """
    if not _has_checks(candidate, like):
        return
    sizes = sorted({size for tensor in like.tensors for size in tensor.shape})
    for at, argument in enumerate(candidate.kernel.signature.arguments):
        tensor = like.tensors[at]
        if argument.role == "out" or argument.listed or not holds_integers(tensor):
            continue
        ways = _outside(sizes, tensor.dtype)
        if like.nbytes > _SMALL:
            ways = random.SystemRandom().sample(ways, _FEW)
        for numbers in ways:
            made = (
                Case(
                    (*like.tensors[:at], _with(tensor, number), *like.tensors[at + 1 :]),
                    like.sizes,
                    f"where `{argument.name}` has {number} in it",
                )
                for number in numbers
            )
            trial = next(filter(None, (refused_trial(candidate, case) for case in made)), None)
            if trial is not None:
                yield trial


def refused_trial(candidate: Candidate, case: Case) -> ReferencedCase | None:
    """Return a case as one that has to be refused, if the generated kernel refuses it."""
    if not _has_checks(candidate, case) or candidate.generated is None:
        return None
    signature = candidate.kernel.signature
    try:
        candidate.generated(fresh_tensors(signature, case.tensors), case.sizes)
    except ValueRefused as error:
        found = next((check for check in signature.checks if check in str(error)), None)
        if found is None:
            return None
        words = found
    except RuntimeError as error:
        if str(error) != "ZeroDivisionError":  # as ATen words it
            return None
        words = "division by zero"
    else:
        return None
    case = replace(case, refused=words)
    return ReferencedCase(case, References(case, lambda *_: ()), "refused")


def _has_checks(candidate: Candidate, case: Case) -> bool:
    # A device's kernel that reads where nothing is ends all that the process has there.
    runs_here = isinstance(find_target(candidate.kernel.target), LibraryTarget)
    return bool(
        candidate.kernel.signature.checks
        and candidate.generated is not None
        and (runs_here or candidate.is_interpreted(case))
        and all(tensor.device.type == CPU for tensor in case.tensors)
    )


def _outside(sizes: Sequence[int], dtype: torch.dtype) -> list[list[int]]:
    """Return numbers that an index may not be: far, one too many, one too few; and a divisor.

    Of the numbers in one list the first that is refused lies right beside those that are not.
    """
    info = torch.iinfo(dtype)
    far = _FAR.get(dtype.itemsize, info.max)
    ways = [[far], [-far], [*sizes], [-1, *(-size - 1 for size in sizes)], [0]]
    return [[n for n in numbers if info.min < n <= info.max] for numbers in ways]


def _with(tensor: torch.Tensor, number: int) -> torch.Tensor:
    """Return a tensor with a number at a place drawn at random; the last is one of two."""
    changed = empty_like_strided(tensor)
    write_strided(changed, tensor.detach())
    last = random.SystemRandom().random() < 0.5
    place = tuple(n - 1 if last else random.SystemRandom().randrange(n) for n in tensor.shape)
    changed[place] = number
    return changed


__all__ = ["refused_trial", "refused_trials"]
