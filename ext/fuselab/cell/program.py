"""A planned cell, ready to run in a notebook's namespace, again and again."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import logging
import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FunctionType, TracebackType
from typing import Any, Protocol, cast

import torch

from fusec.report import GraphBreak
from fuselab.cell.loops import piece_name
from fuselab.cell.plan import CellPlan
from fuselab.cell.rewrite import TORCH, UNBOUND, function_code, wants_sentinel
from fuselab.cell.segments import Segment

_MISSING = object()
# How the names begin that compiled code looks up in the namespace.
_DYNAMO = ("__compiled_fn_", "__resume_at_", "__import_", "__builtins_dict__")


class Compiled(Protocol):
    """What a compiler makes of a function: something to call in its place."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; the first call compiles."""


# Takes a function and, for a definition, its name.
Compiler = Callable[[Callable[..., Any], str], Compiled]


@dataclass(frozen=True)
class _Variant:
    """One way to compile a fused segment; which one fits depends on what the notebook has.

    Attributes:
        guard: Names whose first read is checked, because the notebook did not have them.
        parameters: Local names that start with the notebook's value (``--out`` only).
        sentinel: Whether the last parameter is ``UNBOUND``.
        run: The compiled function.
    """

    guard: frozenset[str]
    parameters: tuple[str, ...]
    sentinel: bool
    run: Compiled


class CellProgram:
    """A cell's compiled functions, kept between runs.

    Attributes:
        plan: What runs, in order.
        namespace: The notebook's.
        functions: The compiled functions so far, in the order they were first needed.
        failures: What TorchDynamo gave up on, so that it runs in eager.
    """

    def __init__(self, plan: CellPlan, namespace: dict[str, Any], compiler: Compiler) -> None:
        self.plan = plan
        self.namespace = namespace
        self.functions: list[Compiled] = []
        self.failures = Failures()
        self._compiler = compiler
        self._variants: dict[object, list[_Variant]] = {}
        self._plain: dict[object, tuple[CodeType, CodeType | None]] = {}
        self._defined: dict[str, _Defined] = {}
        self._marks: frozenset[str] = frozenset()

    @property
    def stale(self) -> bool:
        """Whether the notebook was reset: what TorchDynamo keeps there is gone with the rest."""
        return not self._marks <= self.namespace.keys()

    def run(self) -> Any:
        """Run the whole cell; return the value of its last expression.

        Whatever an exception interrupts, the names assigned before it have landed.
        """
        kept = {name: self.namespace.get(name, _MISSING) for name in self.plan.carried}
        before = frozenset(self.namespace)
        value = None
        try:
            for index, segment in enumerate(self.plan.segments):
                if segment.kind == "plain":
                    value = self._run_plain(index, segment)
                elif segment.kind == "loop":
                    self._run_loop(index, segment)
                    value = None
                else:
                    value = self._run_fused(index, segment)
        finally:
            for name, old in kept.items():
                _put(self.namespace, name, old)
            new = self.namespace.keys() - before
            self._marks |= {name for name in new if name.startswith(_DYNAMO)}
        for name in self.plan.defines:
            self._compile_definition(name)
        return value

    def _run_plain(self, index: object, segment: Segment) -> Any:
        if index not in self._plain:
            # Compiled once, so that re-run definitions keep their code objects: TorchDynamo
            # knows a function by its code.
            flags, file = self.plan.flags, self.plan.filename
            module = ast.Module(list(segment.statements), [])
            body = compile(module, file, "exec", flags, dont_inherit=True)
            last = None
            if segment.value is not None:
                last = compile(ast.Expression(segment.value), file, "eval", flags, True)
            self._plain[index] = body, last
        body, last = self._plain[index]
        exec(body, self.namespace)
        return eval(last, self.namespace) if last is not None else None

    def _run_loop(self, index: int, segment: Segment) -> None:
        first = sum(len(earlier.pieces) for earlier in self.plan.segments[:index])
        names = [piece_name(first + i) for i in range(len(segment.pieces))]
        for i, (name, piece) in enumerate(zip(names, segment.pieces, strict=True)):
            run = self._run_fused if piece.kind == "fused" else self._run_plain
            self.namespace[name] = partial(run, (index, i), piece)
        try:
            self._run_plain(index, segment)
        finally:
            for name in names:
                self.namespace.pop(name, None)

    def replan(self, plan: CellPlan) -> None:
        """Take another plan for the same cell; what was compiled for the old one is dropped."""
        self.plan = plan
        self.failures = Failures()
        self.functions.clear()
        self._variants.clear()
        self._plain.clear()

    def _run_fused(self, index: object, segment: Segment) -> Any:
        self.namespace[TORCH] = torch
        self.namespace.setdefault("__builtins__", builtins)  # as `exec` does
        landing = set(segment.assigns) - set(self.plan.locals_of(segment))
        missing = frozenset(name for name in landing if name not in self.namespace)
        variant = self._variant(index, segment, missing)
        arguments = [self.namespace[name] for name in variant.parameters]
        if variant.sentinel:
            arguments.append(UNBOUND)
        try:
            with seeded(self.namespace, missing, landing), natural_errors() as failures:
                return variant.run(*arguments)
        except BaseException:
            # TorchDynamo never again compiles code that it failed on, and the next run may
            # well have inputs that fit: it gets code of its own.
            self._variants[index].remove(variant)
            self.functions.remove(variant.run)
            failures = Failures()  # what it failed on is the error that the user sees
            raise
        finally:
            self.failures.update(failures)

    def _variant(self, index: object, segment: Segment, missing: frozenset[str]) -> _Variant:
        local = self.plan.locals_of(segment)
        parameters = tuple(n for n in local if n in segment.unsure and n in self.namespace)
        guard = missing & frozenset(segment.unsure) - vars(builtins).keys()
        known = self._variants.setdefault(index, [])
        for variant in known:
            # More checks than needed do no harm; a second compilation would.
            if guard <= variant.guard and parameters == variant.parameters:
                return variant
        code = function_code(self.plan, segment, guard=guard, parameters=parameters)
        function = FunctionType(code, self.namespace, self.plan.name)
        variant = _Variant(guard, parameters, wants_sentinel(code), self._compiler(function, ""))
        known.append(variant)
        self.functions.append(variant.run)
        return variant

    def _compile_definition(self, name: str) -> None:
        value = self.namespace.get(name)
        if isinstance(value, FunctionType) and not _is_special(value):
            self.namespace[name] = self._wrapper(name, value)
        elif isinstance(value, type) and issubclass(value, torch.nn.Module):
            forward = value.__dict__.get("forward")
            if isinstance(forward, FunctionType) and not _is_special(forward):
                value.forward = self._wrapper(f"{name}.forward", forward)

    def _wrapper(self, name: str, function: FunctionType) -> FunctionType:
        old = self._defined.get(name)
        if old is not None and old.same(function):
            return old.wrapper
        compiled = self._compiler(function, name.removesuffix(".forward"))
        wrapper = compiled_function(function, compiled)
        self._defined[name] = _Defined(function, wrapper)
        self.functions.append(compiled)
        return wrapper


@dataclass(frozen=True)
class _Defined:
    """A function that the cell defined, and the compiled one that landed in its place."""

    function: FunctionType
    wrapper: FunctionType

    def same(self, other: FunctionType) -> bool:
        """Return whether ``other`` is the same definition, run again with the same values."""
        mine = self.function
        return (
            other.__code__ is mine.__code__
            and _identical(other.__defaults__, mine.__defaults__)
            and _identical(
                tuple((other.__kwdefaults__ or {}).values()),
                tuple((mine.__kwdefaults__ or {}).values()),
            )
            and not other.__closure__
            and not mine.__closure__
        )


def _identical(one: tuple[Any, ...] | None, two: tuple[Any, ...] | None) -> bool:
    one, two = one or (), two or ()
    return len(one) == len(two) and all(
        a is b or (type(a) is type(b) and isinstance(a, (int, float, str)) and a == b)
        for a, b in zip(one, two, strict=True)
    )


def _is_special(function: FunctionType) -> bool:
    """Return whether calling it does not compute: coroutines and generators run later."""
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    )


def compiled_function(function: Callable[..., Any], compiled: Compiled) -> FunctionType:
    """Return a real function with ``function``'s name, signature and docstring.

    Attributes of the result: ``__wrapped__`` the plain function, ``fused`` the compiled one.
    """

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            if _has_run(error.__traceback__):
                raise
        # Found on fake tensors, before anything has run: eager says it in its own words.
        return function(*args, **kwargs)

    # What TorchDynamo inlines when another fused cell calls it (and it calls itself).
    wrapper._torchdynamo_inline = function  # type: ignore[attr-defined]
    wrapper.fused = compiled  # type: ignore[attr-defined]
    return cast(FunctionType, wrapper)


@contextmanager
def seeded(
    namespace: MutableMapping[str, Any], missing: frozenset[str], names: set[str]
) -> Iterator[None]:
    """Let every name in ``missing`` exist while a fused function runs; see ``fuselab.cell.plan``.

    The name of a built-in stands for it until the cell assigns it.
    """
    for name in missing:
        namespace[name] = getattr(builtins, name, UNBOUND)
    try:
        yield
    finally:
        for name in names:
            value = namespace.get(name)
            untouched = name in missing and value is getattr(builtins, name, UNBOUND)
            if value is UNBOUND or untouched:
                namespace.pop(name, None)


@contextmanager
def natural_errors() -> Iterator[Failures]:
    """Let a statement that fails under TorchDynamo's trace fail as it does in eager.

    A mistake such as two shapes that do not fit shows up on fake tensors first, as an error of
    the compiler.  Suppressed, the function runs as it stands up to the same statement, which
    then raises the error that the user knows, after all that stands before it.

    Yields:
        What was suppressed, in place of pages on standard error.
    """
    failures = Failures()
    listener = _Listener(failures)
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addFilter(listener)
        if "TORCH_LOGS" not in os.environ:
            logger.setLevel(logging.INFO)  # the level at which it says that it skips a function
    try:
        # An assertion is the user's own, who may catch it: no operator that raises another error.
        own = {"rewrite_assert_with_torch_assert": False, "suppress_errors": True}
        with torch._dynamo.config.patch(own):
            yield failures
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeFilter(listener)
            logger.setLevel(level)


@dataclass
class Failures:
    """What TorchDynamo gave up on: the function that it was in runs in eager.

    Attributes:
        skips: Graph breaks in places from which it cannot resume, such as loops.
        mistakes: Errors of the compiler, a line each.
        loops: Lines of the breaks among ``skips`` that are in a loop.
    """

    skips: dict[GraphBreak, None] = field(default_factory=dict)
    mistakes: dict[str, None] = field(default_factory=dict)
    loops: set[int] = field(default_factory=set)

    def add(self, error: BaseException) -> None:
        """Take note of a suppressed exception."""
        from fusec.capture.dynamo import (
            graph_breaks as breaks,  # imports TorchDynamo, which takes seconds
        )

        text = str(error)
        if not isinstance(error, torch._dynamo.exc.Unsupported):
            first = " ".join(text.split("\n")[:2])
            self.mistakes[f"{type(error).__name__}: {first}"] = None
            return
        stack = getattr(error, "real_stack", None) or ()
        if breaks.makes_parameters(text) and breaks.is_within_init(stack):
            return  # as it should: the line that makes the module is a break of its own
        # TorchDynamo has one type for all of these, and says in words which it is
        looped = "graph break in loop" in text
        place = "in a loop" if looped else "in a place that cannot be resumed"
        reason = f"{breaks.summarize(text)}; {place}, so all of the function runs in eager"
        where = breaks.user_frame(stack)
        if breaks.is_torchs_generator(text, where):
            return  # likewise
        if looped and where is not None:
            self.loops.add(where.line)
        self.skips[GraphBreak(reason, breaks.hint_for(text), where)] = None

    def update(self, other: Failures) -> None:
        """Take over what another run failed on."""
        self.skips.update(other.skips)
        self.mistakes.update(other.mistakes)
        self.loops.update(other.loops)


# They report to developers what the result of a cell tells its user: graph breaks and errors.
_TALKATIVE = (
    "torch._dynamo.convert_frame",
    "torch._dynamo.variables.tensor",
    "torch._subclasses.fake_tensor",
)


class _Listener(logging.Filter):
    """Keeps TorchDynamo's complaints off standard error, and what it gave up on at hand."""

    def __init__(self, failures: Failures) -> None:
        super().__init__()
        self._failures = failures

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._failures.add(error)
        return "TORCH_LOGS" in os.environ


def _has_run(traceback: TracebackType | None) -> bool:
    """Return whether an error of the compiler comes from within the user's running code."""
    ours = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(ours) and f"{os.sep}fusec{os.sep}" not in file:
            return True
        traceback = traceback.tb_next
    return False


def _put(namespace: MutableMapping[str, Any], name: str, value: Any) -> None:
    if value is _MISSING:
        namespace.pop(name, None)
    else:
        namespace[name] = value
