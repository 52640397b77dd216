"""Cases made from a real one that a kernel has to get right as well: other sizes, one tensor twice.

A kernel for symbolic sizes will be called with others than those it is checked on, and a call may
pass one tensor in two places.  ``fresh_inputs`` makes other values; here is what else may vary.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

import torch

from fusec.ir.index import Expr
from fusec.kernel_source import Argument, Signature
from fusec.memory.strided import write_strided
from fusec.verify.isolation.layout import Case
from fusec.verify.trials.inputs import fresh_inputs, secret_seed

# Larger tensors cost more than they find.
_LARGEST = 1 << 24
# Elements that fit into no stack (8 MB), nor into an array that somebody took to be long enough.
_LONG = (1 << 21) + 4097
# Numbers that may be about sizes, and what these may be divided by for the second size.
_MOST_NAMED = 1 << 14
_FACTORS = (3, 5, 7, 11, 13)
# More than sixteen bits count to: sizes but the last one are not longer, for it takes too long.
_MANY = (1 << 16) + 4465
# Several blocks of any kernel, and how many of each other size are enough beside it.
_BLOCKS_LONG, _FEW = 5003, 4
_SHORT = 2  # the other sizes then
# What is left of blocks of sixteen, and how many of these there may be.
_RESTS, _BLOCKS = (2, 6, 12, 15), 5
# Points of its loops that a run may have then.
_MOST_POINTS = 1 << 24


def repeated(case: Case, signature: Signature) -> Case | None:
    """Return a case in which the first two arguments that can be the same tensor are; else None.

    Only what is read can be: a result that lies where an input does is never asked of a kernel.
    What holds indices is left alone, for it fits one place only.
    """
    arguments = signature.arguments
    for at, (argument, tensor) in enumerate(zip(arguments, case.tensors, strict=True)):
        if argument.role != "in" or not tensor.is_floating_point() or not tensor.numel():
            continue
        for other in range(at + 1, len(arguments)):
            same = case.tensors[other]
            if (
                arguments[other].role == "in"
                and same.dtype == tensor.dtype
                and same.shape == tensor.shape
                and same.stride() == tensor.stride()
            ):
                tensors = list(case.tensors)
                tensors[other] = tensor
                return Case(tuple(tensors), case.sizes, "")
    return None


def resized(case: Case, signature: Signature, *, larger: bool) -> Case | None:
    """Return a case of other sizes, with values of the same character; None where there is none.

    Args:
        case: The real one.
        signature: Says how shapes and strides follow from the symbolic sizes.
        larger: Whether the sizes are larger, or smaller.
    """
    if not case.sizes or any(not isinstance(size, int) for size in case.sizes):
        return None
    return with_sizes(case, signature, [_other(size, larger=larger) for size in case.sizes])


def lengthened(case: Case, signature: Signature, loops: Sequence[Expr]) -> Iterator[Case]:
    """Yield a case whose last size is so long that no stack holds as much; others of the others.

    A kernel that keeps a row in an array of its own, or calls itself for each element, is right at
    any size that is like the first, and so is one that counts in a ``short``: the other sizes are
    longer than that, one at a time.

    Args:
        case: The real one.
        signature: Says how shapes and strides follow from the symbolic sizes.
        loops: How often each of the kernel's loops runs.
    """
    if any(not isinstance(size, int) for size in case.sizes):
        return
    for at in reversed(range(len(case.sizes))):
        long = _LONG if at == len(case.sizes) - 1 else _MANY
        if not 2 <= case.sizes[at] < long:
            continue
        sizes = [min(other, _SHORT) for other in case.sizes]
        sizes[at] = long
        counts = evaluated(loops, dict(zip(signature.sizes, sizes, strict=True)))
        if counts is not None and math.prod(counts) <= _MOST_POINTS:
            other = with_sizes(case, signature, sizes)
            if other is not None:
                yield other


def spread_out(case: Case, signature: Signature) -> Case | None:
    """Return a case whose last size has several blocks of any kernel's; None where there is none.

    Threads that are given one block share nothing.

    Args:
        case: The real one.
        signature: Says how shapes and strides follow from the symbolic sizes.
    """
    if not case.sizes or any(not isinstance(size, int) for size in case.sizes):
        return None
    sizes = [min(size, _FEW) for size in case.sizes]
    sizes[-1] = max(case.sizes[-1], _BLOCKS_LONG)
    return with_sizes(case, signature, sizes)


def fewest(case: Case, signature: Signature) -> Iterator[Case]:
    """Yield cases of which a size is 0, or 1, where the kernel is compiled for that as well.

    Sizes that are read from data may be: nothing is found, or one thing.

    Args:
        case: The real one.
        signature: Says how shapes and strides follow from the symbolic sizes, and what these
            are at least.
    """
    if any(not isinstance(size, int) for size in case.sizes):
        return
    shapes = (expr for argument in signature.arguments for expr in argument.shape)
    low = {symbol.name: symbol.low for shape in shapes for symbol in shape.symbols()}
    for few in (0, 1):
        for at, name in enumerate(signature.sizes):
            if low.get(name, _SHORT) <= few < case.sizes[at]:
                other = with_sizes(case, signature, [*case.sizes[:at], few, *case.sizes[at + 1 :]])
                if other is not None:
                    yield other


def with_sizes(case: Case, signature: Signature, others: Sequence[int]) -> Case | None:
    """Return a case of given sizes, with values of the same character; None where there is none.

    Args:
        case: The real one.
        signature: Says how shapes and strides follow from the symbolic sizes.
        others: A value for each of these.
    """
    sizes = tuple(others)
    named = dict(zip(signature.sizes, sizes, strict=True))
    if sizes == case.sizes or any(argument.listed for argument in signature.arguments):
        return None
    made = []
    for argument, tensor in zip(signature.arguments, case.tensors, strict=True):
        found = _resized(argument, tensor, named)
        if found is None:
            return None
        made.append(found)
    shapes = (tuple(tensor.shape) for tensor in made)
    if list(shapes) == [tuple(tensor.shape) for tensor in case.tensors]:
        # Its sizes are no shapes of what it takes: nothing says what they may be.
        return None
    read = [t for a, t in zip(signature.arguments, made, strict=True) if a.role != "out"]
    fresh = iter(fresh_inputs(read))
    tensors = tuple(
        tensor if argument.role == "out" else next(fresh)
        for argument, tensor in zip(signature.arguments, made, strict=True)
    )
    return Case(tensors, sizes, "")


def at_ends_of_blocks(
    case: Case, signature: Signature, *, seed: int | None = None
) -> Iterator[Case]:
    """Yield cases of sizes that leave what no other does of blocks of 4, 8, 16 and 32.

    A kernel that takes some elements at a time has to take the rest as well, and an odd one is what
    people think of.

    Args:
        case: The real one.
        signature: Says how shapes and strides follow from the symbolic sizes.
        seed: For tests; a secret one by default.
    """
    if not case.sizes or any(not isinstance(size, int) for size in case.sizes):
        return
    dice = random.Random(secret_seed() if seed is None else seed)
    rests = list(_RESTS)
    dice.shuffle(rests)
    turns = [
        [rests[(turn + at) % len(rests)] for at in range(len(case.sizes))]
        for turn in range(len(rests))
    ]
    if len(case.sizes) > 1:
        # Loops over two sizes may be one: what is left of their product is what is left of one.
        turns += [[1] * (len(case.sizes) - 1) + [rest] for rest in rests]
    for left in turns:
        sizes = [
            16 * dice.randrange(rest == 1, _BLOCKS) + rest if size >= _SHORT else size
            for size, rest in zip(case.sizes, left, strict=True)
        ]
        other = with_sizes(case, signature, sizes)
        if other is not None:
            yield other


def beside_numbers(case: Case, signature: Signature, numbers: Sequence[float]) -> Iterator[Case]:
    """Yield cases of which a size is a number, or next to it: what holds for small sizes alone.

    The number may also be that of the elements of all sizes but for one that is left, as loops over
    two sizes may be one.

    Args:
        case: The real one.
        signature: Says how shapes and strides follow from the symbolic sizes.
        numbers: Those that the edit names, and the blocks that it takes elements in.
    """
    if not case.sizes or any(not isinstance(size, int) for size in case.sizes):
        return
    made: dict[tuple[int, ...], None] = {}
    few = [min(size, _FEW) for size in case.sizes]
    for number in (int(n) for n in numbers if _SHORT <= n <= _MOST_NAMED and n == int(n)):
        for at, size in enumerate(case.sizes):
            beside = (number - 1, number, number + 1) if size >= _SHORT else ()
            made |= {(*few[:at], n, *few[at + 1 :]): None for n in beside if n >= _SHORT}
        if len(few) == 2 and min(case.sizes) >= _SHORT:
            counts = (number * turns + 1 for turns in (2, 1, 3, 4))
            pairs = [(rows, n // rows) for n in counts for rows in _FACTORS if n % rows == 0]
            made |= dict.fromkeys(pairs[:1])
    for sizes in made:
        other = with_sizes(case, signature, sizes)
        if other is not None:
            yield other


def _other(size: int, *, larger: bool) -> int:
    """Return another size: odd, so that no vector or block divides it; 0 and 1 are their own."""
    if size < 2:
        return size
    return (size + size // 3) | 1 if larger else max(2, (size // 2) | 1)


def _resized(
    argument: Argument, tensor: torch.Tensor, named: Mapping[str, int]
) -> torch.Tensor | None:
    shape, strides = evaluated(argument.shape, named), evaluated(argument.strides, named)
    if shape is None or strides is None or min((*shape, *strides), default=0) < 0:
        return None
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n)
    if extent > _LARGEST:
        return None
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    if argument.role == "out" or not made.numel():
        return made
    values = tensor.detach().reshape(-1)
    if not values.numel():
        return None
    count = math.prod(shape)
    values = values.repeat(-(-count // values.numel()))[:count].reshape(shape)
    write_strided(made, values)
    return made


def evaluated(exprs: Sequence[Expr], named: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return what expressions are for given sizes; None where they hang on something else."""
    found = []
    for expr in exprs:
        if any(symbol.name not in named for symbol in expr.symbols()):
            return None
        value = expr.evaluate(lambda symbol: named[symbol.name])
        if not isinstance(value, int):
            return None
        found.append(value)
    return tuple(found)


__all__ = [
    "at_ends_of_blocks",
    "beside_numbers",
    "evaluated",
    "fewest",
    "lengthened",
    "repeated",
    "resized",
    "spread_out",
    "with_sizes",
]
