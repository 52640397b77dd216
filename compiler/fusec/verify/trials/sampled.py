"""Some of an interpreted kernel's programs, at the cell's own sizes: see ``small``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fusec.kernel import Kernel
from fusec.kernel_source import Argument, Signature
from fusec.memory.strided import empty_like_strided
from fusec.report import Verdict, counted
from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import find_target
from fusec.tunables import read_tunables, set_tunables
from fusec.verify.comparison.words import describe
from fusec.verify.isolation import sandbox
from fusec.verify.isolation.layout import Case
from fusec.verify.trials.inputs import secret_seed
from fusec.verify.trials.references import Interpret, References

_SAMPLED = 8
_TIMEOUT = 10.0
_OWN_SIZES = "at the cell's own sizes"


def sampled(kernel: Kernel, text: str, case: Case, interpret: Interpret) -> Verdict | None:
    """Check some programs of a text at the cell's own sizes.

    They have to write what the same programs of the generated kernel do.

    Args:
        kernel: The kernel.
        text: What is checked in its place; it compiles, and does no harm.
        case: The real inputs.
        interpret: As for ``check_kernel``.

    Returns:
        How they do; None where a part of the programs says nothing: they update, another kernel
        goes on with what they leave, or there are not as many as the generated kernel has.
    """
    arguments = kernel.signature.arguments
    updates = any(argument.role == "inout" for argument in arguments)
    if updates or any(store.mode != "set" for store in kernel.body.stores):
        return None
    entry = kernel.generated.entry
    target = python_target(kernel)
    programs = target.programs(text, entry, case.tensors, case.sizes)
    generated = with_tunables_of(text, kernel.generated.text)
    if len(programs) != 1 or programs != target.programs(
        generated, entry, case.tensors, case.sizes
    ):
        return None
    references = References(case, interpret)
    sample = (_SAMPLED, secret_seed())
    cases = _spoiled(arguments, case)
    found: list[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]] = []
    for each in (text, generated):
        results = sandbox.run_cases(
            target=kernel.target,
            text=each,
            entry=entry,
            signature=prefilled(kernel.signature),
            library=None,
            cases=cases,
            timeout=_TIMEOUT,
            sample=sample,
        )
        bad = next((result for result in results if not result.ok), None)
        if bad is not None:
            reason = f"{bad.reason} {_OWN_SIZES}"
            return Verdict(False, bad.stage, reason, bad.line, details=bad.details)
        found.append((results[0].outputs, _written(arguments, cases, results)))
    (outputs, mine), (_, theirs) = found
    names = [argument.name for argument in arguments if argument.role != "in"]
    for name, own, other in zip(names, mine, theirs, strict=True):
        if bool((other & ~own).any()) and not bool((own & ~other).any()):
            at = (other & ~own).nonzero()[0].tolist()
            reason = f"leaves part of `{name}` unwritten (first at {at}) {_OWN_SIZES}"
            return Verdict(False, "wrong", reason)
    # What these programs do not write is none of their business.
    held = [
        torch.where(own, output, right)
        for own, output, right in zip(mine, outputs, references.eager, strict=True)
    ]
    figures = references.compare(names, held, figures=True)
    for figure, tensor in zip(figures, references.eager, strict=True):
        if not figure.ok:
            reason = f"{describe(figure, tensor.dtype)} {_OWN_SIZES}"
            return Verdict(False, "wrong", reason, outputs=figures)
    words = f"in {min(_SAMPLED, programs[0])} of its {counted(programs[0], 'program')} {_OWN_SIZES}"
    return Verdict(True, "passed", words, outputs=figures)


def _spoiled(arguments: Sequence[Argument], case: Case) -> list[Case]:
    """Return cases in which what is to be written holds noise, and the opposite of that noise."""
    first, second = [], []
    for argument, tensor in zip(arguments, case.tensors, strict=True):
        noise = other = tensor
        if argument.role != "in":
            noise = empty_like_strided(tensor)
            other = empty_like_strided(tensor)
            if tensor.is_floating_point():
                # of few bits, too, neither the other's nor 0; float8 has no arithmetic of its own
                values = torch.randn(tensor.shape) * 50
                values += torch.sign(values)
                noise.copy_(values)
                other.copy_(-values)
            else:
                truths = tensor.dtype == torch.bool
                noise.copy_(torch.randint(0, 2 if truths else 100, tensor.shape))
                other.copy_(noise == 0 if truths else noise + 1)
        first.append(noise)
        second.append(other)
    return [Case(tuple(first), case.sizes), Case(tuple(second), case.sizes)]


def _written(
    arguments: Sequence[Argument], cases: Sequence[Case], results: Sequence[sandbox.RunResult]
) -> list[torch.Tensor]:
    """Return where a run wrote: it left other numbers there than it found, in either case."""
    outs = [at for at, argument in enumerate(arguments) if argument.role != "in"]
    return [
        torch.stack(
            [
                result.outputs[place] != case.tensors[at]
                for case, result in zip(cases, results, strict=True)
            ]
        ).any(0)
        for place, at in enumerate(outs)
    ]


def with_tunables_of(text: str, generated: str) -> str:
    """Return a generated text with the values that another one has of the same tunables."""
    values = {t.name: t.value for t in read_tunables(text)}
    known = {t.name: values.get(t.name, t.value) for t in read_tunables(generated)}
    return set_tunables(generated, known)


def python_target(kernel: Kernel) -> PythonTarget:
    """Return a kernel's target, of which it is known that Python loads it."""
    target = find_target(kernel.target)
    assert isinstance(target, PythonTarget)
    return target


def prefilled(signature: Signature) -> Signature:
    """Return a signature of which nothing is to be written as a whole."""
    return replace(
        signature,
        arguments=tuple(
            replace(a, role="inout" if a.role == "out" else a.role) for a in signature.arguments
        ),
    )


__all__ = ["prefilled", "python_target", "sampled", "with_tunables_of"]
