"""The cases that a candidate is run on: the real ones, and what is made from the first of them."""

from __future__ import annotations

import contextlib
import math
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fusec.devices import CPU
from fusec.errors import FusecError
from fusec.ir.node import Const, Op, known_value
from fusec.report import Verdict
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target
from fusec.tunables import read_tunables
from fusec.verify.isolation.layout import Case
from fusec.verify.static.cpp_text import without_comments
from fusec.verify.trials.candidate import Candidate, Refused
from fusec.verify.trials.inputs import Kind, are_ordinary, fresh_inputs
from fusec.verify.trials.integer_inputs import holds_integers, integer_trials, overflowing_trials
from fusec.verify.trials.named_numbers import MOST, around, computed, named_numbers
from fusec.verify.trials.patterns import LABELS as PATTERN_LABELS
from fusec.verify.trials.references import LeftOut, ReferencedCase, References, no_memory
from fusec.verify.trials.refused_inputs import refused_trial, refused_trials
from fusec.verify.trials.variations import (
    at_ends_of_blocks,
    beside_numbers,
    fewest,
    lengthened,
    repeated,
    resized,
)

# Above this, the copies for further kinds of input cost more than they find.
_LARGE = 512 << 20
# Making trials that took this long so far leaves out what is not needed.
_PATIENCE = 5.0
# How many others may have run on the same processor meanwhile.
_CROWD = 3
# Without these no text is right, however large the inputs are and however long it takes: of what is
# wrong for special values alone, nothing else tells.
NEEDED: tuple[Kind, ...] = ("similar", "adversarial", "nonfinite")
_LABELS: dict[Kind, str] = {
    "similar": "fresh random inputs",
    "magnitudes": "inputs of very different magnitudes",
    "adversarial": "inputs with zeros of both signs, denormals and large values",
    "nonfinite": "inputs with NaN and infinities",
    "negative": "negative inputs alone",
    "positive": "positive inputs alone",
    "zeros": "zeros alone",
    "ones": "ones alone",
    "layers": "weights of ones and biases of zeros",
    "whole": "whole numbers",
    "padding": "zeros beside the weights",
    "sparse": "inputs that are mostly zero",
    "unit": "inputs from 0 to 1",
    "ordinary": "inputs of a normal distribution",
    "wide": "inputs of a wide normal distribution",
    "every power": "inputs of every power of two",
    "small": "inputs near zero",
    "tiny": "inputs very near zero",
    "far": "inputs far from zero",
    "nan": "NaN alone",
    "one nan": "inputs that begin with NaN",
    "many nonfinite": "inputs with many NaN and infinities",
}
# Of these a small tensor shows as much.
_SIMPLE = frozenset(_LABELS) - {"similar", "magnitudes", "adversarial", "nonfinite"}
for _pattern, _label in PATTERN_LABELS.items():
    _LABELS[_pattern] = _label
# What an interpreter has time for, of these.
_TELLING: frozenset[Kind] = frozenset({"layers", "nan", "positive", "negative"})
_TELLING_PATTERNS: frozenset[Kind] = frozenset({"minus infinite"})
# What begins with a wrong number shows on these; an element alone shows as much among others.
_OF_REDUCTIONS: frozenset[Kind] = frozenset({"positive", "negative", "minus infinite"})
_SMALL = 4 << 20
# Patterns are many: of a larger tensor a few are drawn.
_TINY = 256 << 10
_DRAWN = 4
_COMPARE = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_MOST_LIMITS = 8
# Of the numbers that may be about sizes so many are tried, and blocks of at least so many elements.
_SIZES_NAMED, _BLOCK = 3, 32
# More threads than that are nobody's.
_TEAM = 64
_PYTHONS_COMMENT = re.compile("#.*")


def make_trials(
    candidate: Candidate,
    cases: Sequence[Case],
    kinds: Sequence[Kind],
    left: LeftOut,
) -> Iterator[ReferencedCase]:
    """Yield the cases with their references, then those made from the first one.

    Args:
        candidate: What is to be run on them.
        cases: The real inputs.
        kinds: The kinds of fresh input to add.
        left: Takes what was left out, and why.

    Raises:
        Refused: There is no memory for a kind that is needed.
    """
    # Not when the check began: what else took long then, such as a worker's start, is over.
    started = time.perf_counter(), time.thread_time()
    for index, case in enumerate(cases):
        references = References(case, candidate.interpret)
        if index == 0:
            # These figures are shown.
            _ = references.float64
        yield ReferencedCase(case, references)
    for kind in _chosen(candidate, cases[0], kinds) if cases else ():
        label = f"on {_LABELS[kind]}"
        large = cases[0].nbytes > (_SMALL if kind in _SIMPLE else _LARGE)
        if candidate.is_interpreted(cases[0]) and not _tells_an_interpreter(kind, candidate):
            continue  # each takes long there
        if not _is_needed(kind, candidate, cases[0]) and (large or _elapsed(started) > _PATIENCE):
            why = "the inputs are large" if large else "eager takes long"
            left.notes.append(f"not checked {label}: {why}")
            left.hurried |= not large
            continue
        fresh: Case | None = None
        try:
            fresh = _fresh(candidate, cases[0], kind, label, resampled=left.resampled)
            found = _referenced(candidate, fresh)
            if found is None:
                # The integers may be the reason: not all that lies between two of them is one.
                again = _fresh(candidate, cases[0], kind, label, resampled=True)
                found = References(again, candidate.interpret)
                fresh, left.resampled = again, True
        except (RuntimeError, IndexError, ValueError, MemoryError) as error:
            if not no_memory(error):
                # The cell itself does not accept such inputs.
                left.notes.append(f"not checked {label}: eager refuses them")
                left.refused.add(kind)
                trial = refused_trial(candidate, fresh) if fresh is not None else None
                if trial is not None:
                    yield trial
            elif kind in NEEDED:
                raise Refused(_unchecked([kind], "there is not enough memory")) from None
            else:
                left.notes.append(f"not checked {label}: there is not enough memory")
                left.hurried = True
            continue
        yield ReferencedCase(fresh, found, kind)
    if cases and kinds:
        limits = _limits(candidate)
        if limits and cases[0].nbytes <= _SMALL:
            label = "on the numbers that it compares with"
            with contextlib.suppress(RuntimeError, IndexError, ValueError, MemoryError):
                case = _fresh(candidate, cases[0], "named", label, limits, resampled=left.resampled)
                yield ReferencedCase(case, References(case, candidate.interpret), "named")
        yield from integer_trials(candidate, cases[0], limits)
        yield from overflowing_trials(candidate, cases[0])
        yield from refused_trials(candidate, cases[0])
        yield from _variations(candidate, cases[0])


def _tells_an_interpreter(kind: Kind, candidate: Candidate) -> bool:
    """Whether an interpreter, in which every run takes long, has time for a kind."""
    if kind in _SIMPLE - _TELLING - _TELLING_PATTERNS:
        return False
    body = candidate.kernel.body
    return kind not in _OF_REDUCTIONS or body is None or bool(body.reduce_axes)


def _referenced(candidate: Candidate, case: Case) -> References | None:
    """Return a case's references; None where eager refuses it and has integers."""
    if not any(map(holds_integers, case.tensors)):
        return References(case, candidate.interpret)
    try:
        return References(case, candidate.interpret)
    except (RuntimeError, IndexError, ValueError) as error:
        if no_memory(error):
            raise
        return None


def _elapsed(started: tuple[float, float]) -> float:
    """Return seconds since then: this thread's own, where others have kept it from running."""
    clock, used = time.perf_counter() - started[0], time.thread_time() - started[1]
    return max(used, clock / _CROWD)


def _is_needed(kind: Kind, candidate: Candidate, case: Case) -> bool:
    """Whether no haste leaves a kind out.

    Real values may be a hundred times as large as others will be, and those that are like them
    likewise: what is off where a softmax is not all ones and zeros would go unseen.
    """
    if kind != "ordinary":
        return kind in NEEDED
    pairs = zip(candidate.kernel.signature.arguments, case.tensors, strict=True)
    read = [tensor for argument, tensor in pairs if argument.role != "out"]
    return case.nbytes <= _SMALL or (case.nbytes <= _LARGE and not are_ordinary(read))


def unseen(
    kinds: Sequence[Kind], trials: Sequence[ReferencedCase], left: LeftOut
) -> Verdict | None:
    """Return the verdict on a text that nothing shows to be right for special values, or None.

    Args:
        kinds: The kinds of fresh input that were asked for.
        trials: What it is run on.
        left: What was left out.
    """
    seen = {trial.kind for trial in trials} | left.refused
    missing = [kind for kind in NEEDED if kind in kinds and kind not in seen]
    return _unchecked(missing, "they were left out") if missing else None


def _unchecked(kinds: Sequence[Kind], why: str) -> Verdict:
    labels = " and ".join(_LABELS[kind] for kind in kinds)
    return Verdict(False, "crash", f"could not be checked on {labels}: {why}")


def _chosen(candidate: Candidate, case: Case, kinds: Sequence[Kind]) -> Sequence[Kind]:
    """Return the kinds that there is time for."""
    patterns = [kind for kind in kinds if kind in PATTERN_LABELS]
    left: set[Kind] = set()
    if candidate.is_interpreted(case):
        left = set(_TELLING_PATTERNS)
    elif any(t.device.type != CPU for t in case.tensors):
        left = set()
    elif case.nbytes <= _TINY:
        left = set(patterns)
    elif case.nbytes <= _SMALL:
        left = set(random.SystemRandom().sample(patterns, min(_DRAWN, len(patterns))))
    else:
        left = set()
    return [kind for kind in kinds if kind in left or kind not in PATTERN_LABELS]


def named_trials(
    candidate: Candidate,
    cases: Sequence[Case],
    built: Sequence[float] = (),
    *,
    resampled: bool = False,
) -> Iterator[ReferencedCase]:
    """Yield cases of the numbers that the text names: a condition may be about one of them.

    Args:
        candidate: What is to be run on them.
        cases: The real inputs.
        built: The numbers of its library that the generated kernel's has not.
        resampled: Whether eager takes such integers alone as the originals are.
    """
    if not cases or cases[0].nbytes > _SMALL:
        return
    target = find_target(candidate.kernel.target)
    code = without_comments if isinstance(target, LibraryTarget) else _without_pythons
    text, generated = map(code, (candidate.text, candidate.kernel.generated.text))
    found = named_numbers(text, generated)
    if len(found) > 1 and candidate.is_interpreted(cases[0]):
        every = [other for number in reversed(found) for other in around(number)]
        wanted: list[tuple[str, Kind, list[float]]] = [
            ("on inputs with the edit's own numbers", "named", every)  # each takes long there
        ]
    else:
        wanted = list(_named(candidate, cases[0], found, built))
    for label, kind, numbers in wanted:
        case = _fresh(candidate, cases[0], kind, label, numbers, resampled=resampled)
        with contextlib.suppress(RuntimeError, IndexError, ValueError):  # eager refuses them
            references = References(case, candidate.interpret)
            yield ReferencedCase(case, references, kind)


def teams(candidate: Candidate) -> list[int]:
    """Return the numbers that an edit names of which it may take one for a number of threads."""
    if not isinstance(find_target(candidate.kernel.target), LibraryTarget):
        return []
    text, generated = map(without_comments, (candidate.text, candidate.kernel.generated.text))
    found = named_numbers(text, generated)
    named = [int(number) for number in found if 1 < number <= _TEAM and number == int(number)]
    # An array for so many threads has no room for one more.
    return [*dict.fromkeys(team for number in named for team in (number, number + 1))]


def _named(
    candidate: Candidate, case: Case, found: Sequence[float], built: Sequence[float]
) -> Iterator[tuple[str, Kind, list[float]]]:
    """Yield the label, kind and numbers of each case of the edit's own numbers."""
    small = case.nbytes <= _TINY and all(t.device.type == CPU for t in case.tensors)
    numbers = list(dict.fromkeys([*found, *(built if small else ())[:MOST]]))
    for number in numbers:
        label = f"on inputs with {number:g}, a number of the edit's"
        yield label, "named", around(number)
        if small and not candidate.is_interpreted(case):
            yield label, "named data", [number]
            yield label, "named inside", [number]
            yield label, "named weights", [number]
            if number:
                yield (
                    f"on inputs beyond {number:g}, a number of the edit's",
                    "named beyond",
                    [number],
                )
            for other in computed(number):
                yield f"on inputs with {other:g}, of {number:g} in the edit", "named", [other]


def _without_pythons(text: str) -> str:
    """Return Python without what may be comments."""
    return _PYTHONS_COMMENT.sub("", text)


def _limits(candidate: Candidate) -> list[float]:
    """Return the numbers that a kernel compares with: whether `>` is `>=` shows at them alone."""
    body = candidate.kernel.body
    found: dict[float, None] = {}
    for node in body.nodes() if body else ():
        if isinstance(node, Op) and node.name in _COMPARE:
            values = [known_value(arg) for arg in node.args if isinstance(arg, Const)]
            found |= {float(v): None for v in values if not isinstance(v, complex)}
    return [number for number in found if math.isfinite(number) and number][:_MOST_LIMITS]


def _variations(candidate: Candidate, case: Case) -> Iterator[ReferencedCase]:
    """Yield cases of other sizes, and one in which a tensor is passed twice."""
    signature = candidate.kernel.signature
    if case.nbytes > _LARGE:
        return
    if candidate.is_interpreted(case):
        yield from _resized(candidate, case)
        return
    made = {
        "with one tensor in two places": repeated(case, signature),
        "at larger sizes": resized(case, signature, larger=True),
        "at smaller sizes": resized(case, signature, larger=False),
    }
    for label, other in made.items():
        if other is None:
            continue
        other = replace(other, label=label)
        try:
            trial = ReferencedCase(other, References(other, candidate.interpret), "similar")
        except (RuntimeError, IndexError, ValueError):
            continue  # no such call can be made
        if other.sizes == case.sizes or generated_takes(candidate, trial):
            yield trial
    if case.nbytes <= _SMALL:
        for other in (
            *at_ends_of_blocks(case, signature),
            *fewest(case, signature),
            *beside_numbers(case, signature, _about_sizes(candidate)),
        ):
            sizes = " and ".join(
                f"{n} is {v}" for n, v in zip(signature.sizes, other.sizes, strict=True)
            )
            other = replace(other, label=f"where {sizes}")
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                references = References(other, candidate.interpret)
                yield ReferencedCase(other, references, "similar", doubtful=True)
    for long in _lengthened(candidate, case):
        with contextlib.suppress(RuntimeError, IndexError, ValueError):
            references = References(long, candidate.interpret)
            # It is large: whether the generated kernel takes it is asked where this one does not.
            yield ReferencedCase(long, references, "similar", doubtful=True)


def _about_sizes(candidate: Candidate) -> list[float]:
    """Return numbers that may be about sizes: a few of the edit's own, and blocks of elements."""
    if not isinstance(find_target(candidate.kernel.target), LibraryTarget):
        return []
    text, generated = map(without_comments, (candidate.text, candidate.kernel.generated.text))
    blocks = [tunable.value for tunable in read_tunables(candidate.text) if tunable.value >= _BLOCK]
    return [*named_numbers(text, generated)[:_SIZES_NAMED], *blocks[:_SIZES_NAMED]]


def _resized(candidate: Candidate, case: Case) -> Iterator[ReferencedCase]:
    """Yield cases of other sizes for an interpreter."""
    for larger in (False, True):
        other = resized(case, candidate.kernel.signature, larger=larger)
        if other is not None:
            other = replace(other, label=f"at {'larger' if larger else 'smaller'} sizes")
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                references = References(other, candidate.interpret)
                yield ReferencedCase(other, references, "similar", doubtful=True)


def _lengthened(candidate: Candidate, case: Case) -> Iterator[Case]:
    """Yield cases that fit into no stack, where one can be had of the CPU's kernels."""
    if not case.sizes or any(tensor.device.type != CPU for tensor in case.tensors):
        return
    body, signature = candidate.kernel.body, candidate.kernel.signature
    if not body:
        return  # nothing says how long it would take
    loops = [axis.size for axis in (*body.axes, *body.reduce_axes) if axis.size is not None]
    for found in lengthened(case, signature, loops):
        name, size = max(zip(signature.sizes, found.sizes, strict=True), key=lambda pair: pair[1])
        yield replace(found, label=f"where {name} is {size:,}")


def generated_takes(candidate: Candidate, trial: ReferencedCase) -> bool:
    """Whether the generated kernel is right on a case that nobody says it has to take.

    What a graph was compiled for may be certain sizes alone: its guards stand before all of
    its kernels, and none of these knows them.
    """
    source = candidate.kernel.generated
    try:
        library = candidate.build(source.text)
    except FusecError:
        return False
    (result,) = candidate.run(source.text, library, [trial])
    if not result.ok:
        return False
    figures = trial.references.compare(candidate.names, result.outputs, figures=False)
    return all(figure.ok for figure in figures)


def _fresh(
    candidate: Candidate,
    like: Case,
    kind: Kind,
    label: str,
    numbers: Sequence[float] = (),
    *,
    resampled: bool = False,
) -> Case:
    """Return a case with other values; what is only written, or lists blocks, stays as it is."""
    arguments = candidate.kernel.signature.arguments
    drawn = [a.role != "out" and not a.listed for a in arguments]
    read = [t for wanted, t in zip(drawn, like.tensors, strict=True) if wanted]
    made = iter(fresh_inputs(read, kind=kind, numbers=numbers, resampled=resampled))
    tensors = [next(made) if wanted else t for wanted, t in zip(drawn, like.tensors, strict=True)]
    return Case(tuple(tensors), like.sizes, label)


__all__ = ["NEEDED", "generated_takes", "make_trials", "named_trials", "teams", "unseen"]
