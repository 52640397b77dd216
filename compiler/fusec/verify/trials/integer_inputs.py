"""Integers that the originals do not have: larger, negative, zero.

Fresh integers stay within the range of the originals, since they may be indices.  So a sum in an
``int`` is right on all of them, and so is an edit that forgets that an index may be negative.
Whether eager takes others, eager itself says.  One input at a time: the others may be indices.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import torch

from fusec.devices import CPU
from fusec.ir.body import Body
from fusec.ir.node import Op
from fusec.memory.strided import empty_like_strided, write_strided
from fusec.verify.isolation.layout import Case
from fusec.verify.timing import fresh_tensors, written
from fusec.verify.trials.candidate import Candidate
from fusec.verify.trials.inputs import Kind, secret_seed
from fusec.verify.trials.references import ReferencedCase, References

# Larger tensors cost more than they find.
_LARGEST = 16 << 20
_FEW_LIMITS = 3
_DIVIDE = frozenset({"floordiv", "truncdiv", "remainder", "fmod"})
_ZERO = "0 alone"
_ONCE = frozenset({"put", "some"})
_NEAR = 3  # how far from a power of two
_DRAWN = 5003  # values; more are these again, with a period that no shape has


def integer_trials(
    candidate: Candidate, like: Case, limits: Sequence[float] = ()
) -> Iterator[ReferencedCase]:
    """Yield a case for each input of integers, with those that eager takes of it.

    Args:
        candidate: What is to be run on them.
        like: The real inputs.
        limits: Numbers that the kernel compares with.
    """
    on_cpu = all(tensor.device.type == CPU for tensor in like.tensors)
    # On a device an index out of range ends all that the process has there.
    if not on_cpu or like.nbytes > _LARGEST or candidate.is_interpreted(like):
        return
    sizes = sorted({size for tensor in like.tensors for size in tensor.shape}, reverse=True)
    body = candidate.kernel.body
    least = body is not None and not _divides(body)
    # Where a place is stored to twice, which one stays is nobody's promise; sums are the same.
    sums = body is not None and all(store.mode not in _ONCE for store in body.stores)
    for at, argument in enumerate(candidate.kernel.signature.arguments):
        if argument.role == "out" or argument.listed or not holds_integers(like.tensors[at]):
            continue
        tensor = like.tensors[at]
        different = not sums and tensor.numel() > 1
        different = different and torch.unique(tensor).numel() == tensor.numel()
        ways = [_others(tensor, sizes, limits, different, least)]
        ways += [] if different else [_equal(tensor, 0)]
        for limit in [int(n) for n in limits if _holds(tensor, n)][:_FEW_LIMITS]:
            ways += [] if different else [_beside(tensor, sizes, limit), _equal(tensor, limit)]
        for way in ways:
            for label, values in way:
                tensors = (*like.tensors[:at], values, *like.tensors[at + 1 :])
                case = Case(tensors, like.sizes, f"on {label} in `{argument.name}`")
                with contextlib.suppress(RuntimeError, IndexError, ValueError, MemoryError):
                    references = References(case, candidate.interpret)
                    # Nobody says that the kernel has to take them.
                    kind: Kind = "equal integers" if label == _ZERO else "integers"
                    yield ReferencedCase(case, references, kind, doubtful=True)
                    break


def overflowing_trials(candidate: Candidate, like: Case) -> Iterator[ReferencedCase]:
    """Yield cases in which the least integer is divided by -1, which has no quotient.

    Some processors end the process there, and with it eager; the generated kernel does not, and its
    results are what is asked for.

    Args:
        candidate: What is to be run on them.
        like: The real inputs.
    """
    body, generated = candidate.kernel.body, candidate.generated
    on_cpu = all(tensor.device.type == CPU for tensor in like.tensors)
    if body is None or generated is None or not on_cpu or candidate.is_interpreted(like):
        return
    if not _divides(body):
        return
    signature = candidate.kernel.signature
    inputs = [
        at
        for at, argument in enumerate(signature.arguments)
        if argument.role != "out" and not argument.listed and holds_integers(like.tensors[at])
    ]
    for least in inputs:
        if like.nbytes > _LARGEST or torch.iinfo(like.tensors[least].dtype).min == 0:
            continue
        tensors = list(like.tensors)
        for at in inputs:
            number = torch.iinfo(tensors[at].dtype).min if at == least else -1
            tensors[at] = _like(tensors[at], torch.full((tensors[at].numel(),), number))
        name = signature.arguments[least].name
        case = Case(tuple(tensors), like.sizes, f"where `{name}` is the least integer, and divided")
        given = fresh_tensors(signature, case.tensors)
        with contextlib.suppress(RuntimeError, ArithmeticError, LookupError, ValueError):
            generated(given, case.sizes)
            results = tuple(written(signature, given))
            yield ReferencedCase(case, References(case, lambda *_, r=results: r), "integers")


def _divides(body: Body) -> bool:
    return any(isinstance(node, Op) and node.name in _DIVIDE for node in body.nodes())


def holds_integers(tensor: torch.Tensor) -> bool:
    """Whether a tensor has elements, and they are integers."""
    return bool(tensor.numel()) and not (
        tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool
    )


def _others(
    tensor: torch.Tensor,
    sizes: Sequence[int],
    limits: Sequence[float],
    different: bool,
    least: bool,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield other values for a tensor, those first that an index would be out of range with.

    ``different`` are the places of a scatter: they stay so. ``least`` says that the least integer
    may be among them: it has no negative, and dividing it by -1 ends a process on some processors.
    """
    draw = torch.Generator().manual_seed(secret_seed())
    dice = random.Random(secret_seed())
    info = torch.iinfo(tensor.dtype)
    count = tensor.numel()
    low = info.min + (info.min < 0 and not least)
    some = [_of_any_size(info, dice) for _ in range(min(count, _DRAWN))]
    if info.bits == 8:  # all there are
        every = dice.sample(range(low, info.max + 1), info.max + 1 - low)
        some[: len(every)] = every[: len(some)]
    elif len(some) > 1:
        some[:2] = low, info.max
    beside = [int(limit) + step for limit in limits for step in (-1, 0, 1)]
    dice.shuffle(some)
    places = dice.sample(range(len(some)), len(some) // 2)
    for at, number in enumerate(beside[: len(places)]):
        some[places[at]] = max(low, min(number, info.max))
    for label, numbers in (
        ("integers of every size", some),
        ("integers of every size but zero", [number or 1 for number in some]),
    ):
        wide = torch.tensor(numbers, dtype=tensor.dtype)
        yield label, _like(tensor, wide.repeat(-(-count // len(some)))[:count])
    for size in sizes:
        if size > info.max or size < (count if different else 1):
            continue
        drawn = torch.randperm(size, generator=draw)[:count]
        if not different:
            drawn = torch.randint(size, (count,), generator=draw)
        if info.min < 0:
            below = torch.randint(2, (count,), generator=draw) * size
            yield f"integers from {-size} to {size - 1}", _like(tensor, drawn - below)
        yield f"integers from 0 to {size - 1}", _like(tensor, drawn)


def _beside(
    tensor: torch.Tensor, sizes: Sequence[int], limit: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield values for a tensor of which half are a limit, and the others may be indices."""
    draw = torch.Generator().manual_seed(secret_seed())
    count = tensor.numel()
    for size in sizes:
        if 0 < size <= torch.iinfo(tensor.dtype).max:
            drawn = torch.randint(size, (count,), generator=draw)
            drawn[torch.rand(count, generator=draw) < 0.5] = limit
            yield f"integers from 0 to {size - 1} and {limit}", _like(tensor, drawn)


def _equal(tensor: torch.Tensor, number: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield one number everywhere."""
    yield f"{number} alone", _like(tensor, torch.full((tensor.numel(),), number))


def _holds(tensor: torch.Tensor, number: float) -> bool:
    info = torch.iinfo(tensor.dtype)
    return number == int(number) and info.min <= number <= info.max


def _of_any_size(info: torch.iinfo, dice: random.Random) -> int:
    """Return an integer of which each power of two is as likely; never the least of all."""
    power = 1 << dice.randrange(info.bits - (info.min < 0))
    drawn = dice.randrange(power, 2 * power) if dice.random() < 0.5 else power
    number = drawn + (dice.randrange(-_NEAR, _NEAR + 1) if dice.random() < 0.5 else 0)
    number = -number if info.min < 0 and dice.random() < 0.5 else number
    return max(info.min + (info.min < 0), min(number, info.max))


def _like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    made = empty_like_strided(tensor)
    write_strided(made, values.to(tensor.dtype).reshape(tensor.shape))
    return made


__all__ = ["holds_integers", "integer_trials", "overflowing_trials"]
