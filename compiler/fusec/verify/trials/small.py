"""A kernel's check at small sizes: an interpreter stands in for a GPU, and is too slow for its own.

The sizes are literals in the text of a kernel.  Which ones, the emitter says: it writes the kernel
once more, from the same body over fewer rows and columns, and where the two generated texts differ
in numbers alone, these numbers are the sizes.  The same ones are replaced in the text that is
checked.  Strides and tunables stay, so that the last block of a row is still cut short, and tensors
are the real ones' corners: what is stored outside of the loops' reach, or read beyond the last row,
shows.

What a literal hides that happens to be a size is seen by ``sampled``, which runs some programs of
the text itself, at the cell's own sizes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fusec.codegen.common.signatures import argument_buffers
from fusec.errors import FusecError
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol, upper_bound
from fusec.ir.node import recording
from fusec.ir.program import Compute, Program
from fusec.kernel import Kernel
from fusec.target_api.registry import find_target
from fusec.tunables import read_tunables, set_tunables
from fusec.verify.isolation import sandbox
from fusec.verify.isolation.layout import Case
from fusec.verify.trials.references import Interpret, References
from fusec.verify.trials.sampled import prefilled, python_target, with_tunables_of
from fusec.verify.trials.sized_text import at_sizes
from fusec.verify.trials.variations import with_sizes

# What an interpreter does in about 0.1 s.
_PROGRAMS = 12
_ELEMENTS = 1 << 16
# More than that and a kernel is checked at other sizes than its own.
_MOST_ELEMENTS = 1 << 14
_TRIES = 3  # sizes at which the generated kernel itself is run


@dataclass(frozen=True)
class Small:
    """A kernel over fewer rows and columns, and a text for it.

    Attributes:
        kernel: Computes that; its generated text is the emitter's, at these sizes.
        text: The text that is checked, with these sizes in it.
        case: The corners of the real tensors.
        words: The sizes: ``5 x 768 of 512 x 768``.
    """

    kernel: Kernel
    text: str
    case: Case
    words: str


def is_too_slow(kernel: Kernel, case: Case) -> bool:
    """Whether an interpreter runs a kernel on a case, and takes too long for its sizes."""
    interprets = find_target(kernel.target).interprets
    elements = sum(tensor.numel() for tensor in case.tensors)
    on_cpu = all(tensor.device.type in interprets for tensor in case.tensors)
    return bool(interprets) and on_cpu and elements > _MOST_ELEMENTS


def smaller(
    kernel: Kernel,
    program: Program,
    text: str,
    case: Case,
    interpret: Callable[[Kernel], Interpret],
) -> Small | None:
    """Return a kernel, a text and a case at smaller sizes; None where there are none for it.

    Args:
        kernel: The kernel.
        program: The one that it is of.
        text: What is checked in its place.
        case: What it is called with.
        interpret: Returns for a kernel what ``check_kernel`` takes.
    """
    found: Iterator[Small] = iter(())
    if case.sizes:
        found = _resized(kernel, text, case)
    else:
        for step in program.steps:
            if isinstance(step, Compute) and step.body is kernel.body:
                found = shrunk(kernel, step, program.buffers, text, case.tensors)
    for small in itertools.islice(found, _TRIES):
        if takes(small, interpret(small.kernel)):
            return small
    return None


def _resized(kernel: Kernel, text: str, case: Case) -> Iterator[Small]:
    """Yield cases of a kernel for all sizes, the largest first that an interpreter runs soon."""
    target = python_target(kernel)
    block = max((t.value for t in read_tunables(text)), default=1)
    for chosen, most in _candidates(case.sizes, block):
        other = with_sizes(case, kernel.signature, chosen)
        if other is None:
            continue
        source = with_tunables_of(text, kernel.generated.text)
        programs = target.programs(source, kernel.generated.entry, other.tensors, other.sizes)
        if programs and sum(programs) <= most:
            words = f"{_product(chosen)} of {_product(case.sizes)}"
            yield Small(kernel, text, replace(other, label=f"at {words}"), words)


def shrunk(
    kernel: Kernel,
    step: Compute,
    buffers: Mapping[str, Buffer],
    text: str,
    tensors: Sequence[torch.Tensor],
) -> Iterator[Small]:
    """Yield a kernel at smaller sizes, the largest first that an interpreter runs in no time.

    Args:
        kernel: The kernel, of constant sizes.
        step: What it computes, as its program has it.
        buffers: The program's.
        text: What is checked in its place.
        tensors: What it is called with.
    """
    target = python_target(kernel)
    axes = (*step.body.axes, *step.body.reduce_axes)
    extents = [axis.size.constant if axis.size is not None else None for axis in axes]
    known = [extent for extent in extents if extent is not None]
    if len(known) != len(axes) or not axes:
        return
    mine = {t.name: t.value for t in read_tunables(kernel.generated.text)}
    values = {t.name: t.value for t in read_tunables(text)}
    changed = {name: value for name, value in values.items() if mine.get(name) != value}
    candidates = list(_candidates(known, max(values.values(), default=1)))
    # What nobody has changed may be as the emitter has it for such sizes; it is asked for loops
    # like those of the text where it would choose others.
    ways = dict.fromkeys((step.strategy, kernel.generated.strategy))
    tries = itertools.product((values, changed), ways, candidates)
    for fixed, strategy, (chosen, most) in tries:
        try:
            body = _over(step.body, chosen)
            with recording():
                source = target.emit(replace(step, body=body, strategy=strategy), buffers)
            other = at_sizes(kernel.generated.text, source.text, text)
            if other is None:
                continue
            own = {t.name: fixed.get(t.name, t.value) for t in read_tunables(source.text)}
            source = replace(source, text=set_tunables(source.text, own))
            other = set_tunables(other, own)
            corners = [
                _corner(body, name, buffers[name], tensor)
                for name, tensor in zip(argument_buffers(step.body), tensors, strict=True)
            ]
            programs = target.programs(source.text, source.entry, corners, ())
        except (NotImplementedError, AssertionError, ValueError, FusecError, KeyError):
            continue  # no kernel is written for such sizes
        if not programs or sum(programs) > most:
            continue
        source = replace(source, signature=prefilled(kernel.signature))
        small = Kernel(source, body, kernel.host)
        words = f"{_product(chosen)} of {_product(known)}"
        yield Small(small, other, Case(tuple(corners), (), f"at {words}"), words)


def _product(extents: Sequence[int]) -> str:
    return " x ".join(str(extent) for extent in extents if extent != 1) or "1"


def _candidates(extents: Sequence[int], block: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield sizes, odd where they are not whole, and how many programs there may be of them."""
    inner = sorted({2 * block + 3, block + 5, 16389, 4101, 1029, 261, 67, 19, 5, 3}, reverse=True)
    found: dict[tuple[int, ...], int] = {}
    for last, rest in itertools.product(inner, (67, 19, 7, 3, 1)):
        chosen = (*(min(size, rest) for size in extents[:-1]), min(extents[-1], last))
        found.setdefault(chosen, _PROGRAMS)
    # Rows that are written as one loop stay whole but for the outermost.
    for count in range(1, len(extents)):
        outer = [min(size, 2) for size in extents[: count - 1]]
        for few in (5, 3, 2):
            chosen = (*outer, min(extents[count - 1], few), *extents[count:])
            found.setdefault(chosen, 2 * _PROGRAMS)
    for chosen, most in found.items():
        if chosen != tuple(extents) and math.prod(chosen) <= _ELEMENTS:
            yield chosen, most


def _over(body: Body, extents: Sequence[int]) -> Body:
    """Return a body over the first rows and columns alone."""
    axes = (*body.axes, *body.reduce_axes)
    fewer = [
        Symbol(axis.name, axis.kind, Expr.of(extent))
        for axis, extent in zip(axes, extents, strict=True)
    ]
    mapping = {axis: Expr.of(other) for axis, other in zip(axes, fewer, strict=True)}
    count = len(body.axes)
    with recording():
        return body.moved(tuple(fewer[:count]), tuple(fewer[count:]), mapping)


def _corner(body: Body, name: str, buffer: Buffer, tensor: torch.Tensor) -> torch.Tensor:
    """Return what a body reaches of a tensor, with the tensor's own strides.

    What it writes holds numbers that nobody computes.
    """
    indices = [load.index for load in body.loads() if load.buffer == name]
    indices += [store.index for store in body.stores if store.buffer == name]
    corner = tensor
    for dim, size in enumerate(tensor.shape):
        bounds = [upper_bound(index[dim]) for index in indices]
        last = max((size - 1 if bound is None else bound for bound in bounds), default=size - 1)
        corner = corner.narrow(dim, 0, min(size, max(last, 0) + 1))
    made = torch.empty_strided(corner.shape, corner.stride(), dtype=tensor.dtype)
    made.copy_(corner)
    if name not in body.reads():
        made.copy_(torch.full_like(made, 77 if made.dtype != torch.bool else True))
    return made


def takes(small: Small, interpret: Interpret) -> bool:
    """Whether the generated kernel is right at these sizes: else nothing else can be held to it."""
    source = small.kernel.generated
    references = References(small.case, interpret)
    (result,) = sandbox.run_cases(
        target=small.kernel.target,
        text=source.text,
        entry=source.entry,
        signature=source.signature,
        library=None,
        cases=[small.case],
    )
    names = [a.name for a in source.signature.arguments if a.role != "in"]
    return result.ok and all(
        figure.ok for figure in references.compare(names, result.outputs, figures=False)
    )


__all__ = ["Small", "is_too_slow", "smaller", "takes"]
