"""Compares a state program's compiled form with eager, float64, and the state of torch after it."""

from __future__ import annotations

import functools
import gc
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

import fusec
from programs import prelude
from programs.check import BASELINE, LAYOUT, NUDGE, TF32, Kind, differences, kind_of
from programs.nodes import StateProgram, space_of
from programs.ways import AS_EVER, Way

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
# By how much inputs are changed to see which elements are unstable, in parts of ``NUDGE``: about
# what one operator rounds.  A program has some ten of them.
NUDGES = (1.0, -1.0, 2.0)
AMPLIFIED = 6.0
LEFT = "state afterwards"
# What multiplies matrices: operators, and modules, most of which have linear layers.
_PRODUCTS = re.compile(r"@|\bm[01]\(|\blinear\(|\b(add|b)?mm\(|\beinsum\(|attention\(")
# What is torch's own shows in one of these.
BASELINES = (BASELINE, "aot_eager", "eager")
RAISED = ": raised: raised: "
# What torch 2.11 says in place of an error within a transform: a graph has not left it.
_HIDES = f"{RAISED}RuntimeError: !dynamicLayerStack.empty()"
# Graphs that run in eager as they should.
EXPECTED = (
    "whose memory holds other numbers",
    "elements are not each one of its memory",
    "was made in inference mode",
    "in inference mode, which records nothing",
    "would lose a hook beside a view",
    "would drop requires_grad_()",
    "would let a gradient through",
    "would miss what flows from one result to another",
    "asks for gradients of gradients",
    "on more than one stream",
    "it updates an input that shares memory with another one",
    "would lose a hook on what a view is returned of",
    "would record an update that is under no_grad",
    "would drop requires_grad of a view",
    "which may refuse it",
)


@dataclass(frozen=True)
class Note:
    """What a run left behind at one place.

    Attributes:
        call: Which call, and which time.
        what: In words.
        value: A tensor, or anything that can be compared.
    """

    call: tuple[int, int]
    what: str
    value: object

    @property
    def place(self) -> str:
        """Call and value in words."""
        number, time = self.call
        return f"call {number}{' again' * time}: {self.what}"


def order(program: StateProgram) -> list[tuple[int, int]]:
    """Return which call is made when: each twice, so that it is known, and the first once more."""
    found = [(number, time) for number in range(len(program.calls)) for time in range(2)]
    return [*found, (0, 2)] if len(program.calls) > 1 else found


def run(
    program: StateProgram,
    compiler: Compile,
    *,
    exact: bool = False,
    nudge: float = 0.0,
    device: str = "cpu",
    way: Way = AS_EVER,
    inference: bool = True,
) -> list[Note]:
    """Run all calls of a program, up to the first that raises.

    Args:
        program: The program.
        compiler: Makes the function that is called.
        exact: Whether all floating-point types are float64.
        nudge: By which part of themselves inputs and parameters are changed.
        device: Where it runs.
        way: How, in eager.
        inference: Whether blocks in inference mode are that, or else under ``no_grad``.
    """
    found: list[Note] = []
    prelude.DEVICE, prelude.NUDGE = device, nudge
    torch.manual_seed(0)
    if device != "cpu":
        torch.set_default_device(device)  # what statements make is where the inputs are
    if exact:
        torch.set_default_dtype(torch.float64)
    try:
        space = space_of(program, exact=exact, device=device, inference=inference)
        way.put(space)
        function = compiler(space["f"])
        for number, time in order(program):
            prelude.notes.clear()
            try:
                space["CALLS"][number](function)
                raised = ""
            except Exception as problem:
                raised = f"{type(problem).__name__}: {str(problem)[:500]}"
            found += [Note((number, time), what, value) for what, value in prelude.notes]
            if raised:
                # what left a block too late, as an exception's frames go, does it now
                gc.collect()
                found.append(Note((number, time), "raised", Raised(raised)))
                break
        found.append(Note((0, 0), LEFT, _left()))
    finally:
        prelude.DEVICE, prelude.NUDGE = "cpu", 0.0
        restore()
    return found


def _left() -> tuple[object, ...]:
    """Return the state of torch that a run leaves, an exception or not."""
    return (
        ("gradients", torch.is_grad_enabled()),
        ("inference", torch.is_inference_mode_enabled()),
        ("included", torch._C._dispatch_tls_local_include_set().raw_repr()),
        ("excluded", torch._C._dispatch_tls_local_exclude_set().raw_repr()),
        ("transform", torch._C._functorch.peek_interpreter_stack() is not None),
        ("forward gradients", torch._C._is_fwd_grad_enabled()),
        torch.get_default_dtype(),
    )


@dataclass(frozen=True)
class Raised:
    """An exception in words."""

    text: str


# As it is before anything runs: which of torch's dispatch keys are put in and left out.
_KEYS = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
_HEALED: list[Any] = []


def restore() -> None:
    """Undo what a run may have left, so that it is not the next one's."""
    keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    if any(a != b for a, b in zip(keys, _KEYS, strict=True)):
        _HEALED.append(torch._C._ForceDispatchKeyGuard(*_KEYS))
        _HEALED[-1].__enter__()  # and is never left
    if torch.is_inference_mode_enabled():
        _HEALED.append(torch._C._InferenceMode(False))
        _HEALED[-1].__enter__()
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    # Without them eager ends the process at a jvp under a dispatch mode.
    torch._C._set_fwd_grad_enabled(True)
    torch.use_deterministic_algorithms(False)
    torch.clear_autocast_cache()


def problems(program: StateProgram, *, device: str = "cpu", **options: Any) -> list[str]:
    """Return what is wrong with a program's compiled form; nothing if all is as in eager.

    What differs in the same way under TorchDynamo alone, or under AOTAutograd with eager's kernels,
    is torch's, and left out.

    Args:
        program: The program.
        device: Where it runs.
        options: Of ``fusec.compile``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _problems(program, device, options)


def _problems(program: StateProgram, device: str, options: dict[str, Any]) -> list[str]:
    made: list[Any] = []
    if "torch.func." in program.source and not _derives_in_inference_mode():
        program = replace(program, inference=False)

    def by_fusec(function: Callable[..., Any]) -> Callable[..., Any]:
        made.append(fusec.compile(function, **options))
        return made[0]  # type: ignore[no-any-return]

    eager = run_in_eager(program, device)
    torch._dynamo.reset()
    mine = run(program, by_fusec, device=device)
    found = compared(program, eager, mine, device)
    if found and _is_right_otherwise(program, mine, device, _raised(eager)):
        found = []
    found += [f"fell back: {each}" for each in made[0].fallbacks if not _is_expected(each)]
    if not found:
        return found
    for theirs in _baselines(program, eager, device):
        if any(LAYOUT in each for each in theirs):
            found = [each for each in found if LAYOUT not in each]
        known = {_kind(each) for each in theirs}
        hiding = {each.split(":")[0] for each in theirs if _HIDES in each}
        found = [
            each
            for each in found
            if _kind(each) not in known
            and not (RAISED + "RuntimeError" in each and each.split(":")[0] in hiding)
        ]
        if not found:
            return found
    # A call that runs in eager reads what hooks return, and one that is compiled may not.
    if 'saved("' in program.source:
        way = Way(strides=False)
        plain = run(program, lambda function: function, device=device, way=way)
        left = {_place(each) for each in compared(program, plain, mine, device, way)}
        found = [each for each in found if _place(each) in left or "differ" not in each]
    return found


def run_in_eager(program: StateProgram, device: str) -> list[Note]:
    """Run all calls in eager; a process that ends within, by the stack of it, ends in eager."""
    return run(program, lambda function: function, device=device)


def _place(problem: str) -> str:
    """Return which value of which call differs."""
    return ": ".join(problem.split(": ")[:2])


@functools.cache
def _derives_in_inference_mode() -> bool:
    """Whether eager's functional derivatives are any there; those of torch 2.11 are zeros."""
    one = torch.ones(())
    with torch.inference_mode():
        _, tangent = torch.func.jvp(torch.sin, (one,), (one,))
    return bool(tangent)


def _baselines(program: StateProgram, eager: Sequence[Note], device: str) -> Iterator[list[str]]:
    """Yield where each of torch's own backends differs from eager.

    After a call within a mode or a transform TorchDynamo leaves the function to eager for good; of
    what it does in the other calls each tells by itself.
    """
    for backend in BASELINES:
        torch._dynamo.reset()
        yield _theirs(program, eager, backend, device)
    for number, call in enumerate(program.calls if len(program.calls) > 1 else ()):
        alone = replace(program, calls=(call,))
        plain = run(alone, lambda function: function, device=device)
        for backend in BASELINES:
            torch._dynamo.reset()
            theirs = _theirs(alone, plain, backend, device)
            yield [each.replace("call 0", f"call {number}", 1) for each in theirs]


def _theirs(program: StateProgram, eager: Sequence[Note], backend: str, device: str) -> list[str]:
    """Return where one of torch's own backends differs from eager.

    AOTAutograd refuses many programs with a block in inference mode, some only when they run, some
    where eager raises something else.  What it does with such a one under ``no_grad``, beside eager
    under ``no_grad``, says what is its own there as well.  It keeps what backward reads, as we do:
    some programs run backward twice.
    """

    def compiler(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(function, backend=backend)  # type: ignore[no-any-return]

    with torch._functorch.config.patch(donated_buffer=False):
        notes = run(program, compiler, device=device)
        theirs = compared(program, eager, notes, device)
        refused = any(RAISED in each for each in theirs) or _raised(notes) != _raised(eager)
        if refused and "inference_mode" in str(program):
            torch._dynamo.reset()
            eager = run(program, lambda function: function, device=device, inference=False)
            other = run(program, compiler, device=device, inference=False)
            theirs += compared(program, eager, other, device)
    return theirs


def _raised(notes: Sequence[Note]) -> str:
    """Return what a run raised, if it did."""
    return next((each.value.text for each in notes if isinstance(each.value, Raised)), "")


def _is_right_otherwise(
    program: StateProgram, mine: Sequence[Note], device: str, raised: str = ""
) -> bool:
    """Whether a run is what eager does in another way that is no worse.

    What a checkpointed function does beside computing (it updates a buffer, asks for gradients) is
    done again in eager whenever a saved tensor is asked for.  That depends on what is saved, which
    a compiler decides, and torch says not to rely on it.  Saved tensors with other strides are the
    same numbers, of which torch's layer norm makes other gradients.  Zeros for no gradient are
    AOTAutograd's; an optimizer with momentum then moves what eager leaves where it is.  Eager may
    raise for a parameter that autocast has cast to another type before.
    """
    for way in Way.others(program, raised):
        plain = run(program, lambda function: function, device=device, way=way)
        if not compared(program, plain, mine, device, way):
            return True
    return False


def _is_expected(fallback: str) -> bool:
    return any(words in fallback for words in EXPECTED)


def _kind(problem: str) -> str:
    """Return what differs in which call, whichever time: torch may run one of them in eager.

    An exception is the same in whichever call: a run ends with it.
    """
    problem = problem.replace(" again", "")
    if " elements differ" in problem:
        return problem.split(" elements differ", maxsplit=1)[0]
    if ": requires_grad is " in problem:
        # of a view made under `no_grad` eager says the one or the other, by its strides
        return problem.split(": ", maxsplit=1)[1].split(" is ", maxsplit=1)[0]
    if RAISED in problem:
        words = problem.split(RAISED, maxsplit=1)[1]
        # addresses too: torch 2.11 raises a KeyError of a weak reference
        return re.sub(r"backend='[^']*'|0x[0-9a-f]+", "", words)[:120]
    return problem if "instead of" in problem else ": ".join(problem.split(": ")[:3])


def compared(
    program: StateProgram,
    eager: Sequence[Note],
    mine: Sequence[Note],
    device: str,
    way: Way = AS_EVER,
) -> list[str]:
    """Return where a run differs from eager's."""
    *eager, wanted = eager
    *mine, left = mine
    found = _compared(program, eager, mine, device, way)
    if left.value != wanted.value:
        found.append(f"{LEFT}: {_differing(wanted.value, left.value)}")
    return found


def _compared(
    program: StateProgram,
    eager: Sequence[Note],
    mine: Sequence[Note],
    device: str,
    way: Way,
) -> list[str]:
    found: list[str] = []
    references: list[list[Note]] = []
    for place, want in enumerate(eager):
        if place >= len(mine):
            return [*found, f"{want.place}: missing"]
        got = mine[place]
        if isinstance(want.value, Raised):
            # what eager computed before it raised is of no interest to the next calls
            if not any(isinstance(each.value, Raised) for each in mine[place:]):
                found.append(f"{want.place}: raised in eager alone: {want.value.text[:200]}")
            return found
        if isinstance(got.value, Raised):
            return [*found, f"{got.place}: raised: {got.value.text}"]
        if (got.call, got.what) != (want.call, want.what):
            return [*found, f"{got.place}: where eager has {want.place}"]
        if not isinstance(want.value, torch.Tensor) or not isinstance(got.value, torch.Tensor):
            if type(want.value) is not type(got.value) or want.value != got.value:
                found.append(f"{want.place}: {_differing(want.value, got.value)}")
            continue
        if got.value.device != want.value.device:
            found.append(f"{want.place}: on {got.value.device} instead of {want.value.device}")
            continue
        kind = _kind_of(program, want, device)
        texts = differences(want.value.detach(), got.value.detach(), None, [], kind)
        if any("elements differ" in text for text in texts):
            references = references or _references(program, device, kind, way)
            exact, *near = [_tensor_at(each, place, want) for each in references]
            texts = differences(
                want.value.detach(),
                got.value.detach(),
                exact,
                [n for n in near if n is not None],
                kind,
            )
        texts += _kept(want.value, got.value)
        found += [f"{want.place}: {text}" for text in texts]
    if len(mine) > len(eager):
        found.append(f"{mine[len(eager)].place}: not expected")
    return found


def _references(program: StateProgram, device: str, kind: Kind, way: Way) -> list[list[Note]]:
    """Return exact runs: of the inputs, and of inputs that are changed a little."""
    return [
        run(
            program,
            lambda f: f,
            exact=True,
            nudge=nudge * NUDGE[kind],
            device=device,
            way=way,
        )
        for nudge in (0.0, *NUDGES)
    ]


def _tensor_at(notes: Sequence[Note], place: int, like: Note) -> torch.Tensor | None:
    if place >= len(notes) or (notes[place].call, notes[place].what) != (like.call, like.what):
        return None
    value = notes[place].value
    return value.detach() if isinstance(value, torch.Tensor) else None


def _kind_of(program: StateProgram, note: Note, device: str) -> Kind:
    """Return the least exact type that a value may be computed in."""
    text = _text_of(program, note)
    kind = kind_of(text)
    exact = kind in (torch.float64, torch.float32)
    if device != "cpu" and "matmul_precision" in text and exact and _PRODUCTS.search(text):
        return TF32  # wherever in the program they are computed
    return kind


def _text_of(program: StateProgram, note: Note) -> str:
    """Return what decides how exact a value is: the lines of the function and of its call.

    Parameters are trained, and their gradients added up, in all calls.
    """
    nodes = [*program.body, *program.calls[note.call[0]]]
    if program.modules:
        nodes += [node for each in program.calls for node in each]
    return "\n".join(line for node in nodes for line in node.lines())


def _kept(want: torch.Tensor, got: torch.Tensor) -> list[str]:
    """Return what else of a tensor is not as in eager."""
    facts: dict[str, Callable[[torch.Tensor], object]] = {
        "requires_grad": lambda t: t.requires_grad,
        "is_inference": lambda t: t.is_inference(),
        "class": lambda t: type(t).__name__,
    }
    pairs = {name: (fact(got), fact(want)) for name, fact in facts.items()}
    return [f"{name} is {a} instead of {b}" for name, (a, b) in pairs.items() if a != b]


def _differing(want: object, got: object) -> str:
    if isinstance(want, tuple) and isinstance(got, tuple) and len(want) == len(got):
        pairs = [f"{a} instead of {b}" for a, b in zip(got, want, strict=True) if a != b]
        return ", ".join(pairs)
    return f"{type(got).__name__} instead of {type(want).__name__}"


__all__ = ["Note", "compared", "problems", "restore", "run", "run_in_eager"]
