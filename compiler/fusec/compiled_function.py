"""What ``fusec.compile`` returns: a function, with what became of it."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from torch.compiler import is_dynamo_compiling

from fusec.ahead.artefact import Kept, TakenUp, keep_call
from fusec.ahead.record import is_recording, note_call
from fusec.call.native import call_by_route
from fusec.capture.backend import Backend
from fusec.capture.dynamo import quiet_dynamo as quiet
from fusec.capture.dynamo.graph_breaks import break_marker, breaks_since
from fusec.capture.dynamo.repeated_layers import RepeatedLayers
from fusec.capture.dynamo.side_effects import Noted
from fusec.capture.frozen_calls import CompiledMeanwhile, FrozenWatch
from fusec.capture.guards.described import (
    NotedGuard,
    describe_guards,
    describe_recompile,
    note_guards,
    too_often,
)
from fusec.capture.limits import as_often_as_asked
from fusec.capture.module_hooks import hook_tables, put_around, puts_hook, share_hooks
from fusec.capture.shortcut import Shortcut, find_frame
from fusec.compiled.graph import CompiledGraph
from fusec.errors import BadOption, FusecError
from fusec.inspect.explain import Explanation
from fusec.kernel import Kernel
from fusec.options import Options
from fusec.report import GraphBreak, Guard, Recompile, counted

if TYPE_CHECKING:
    from fusec.inspect.reschedule import Rescheduled


_nothing = contextlib.nullcontext()
# Every compiled function of this process that is in use.
ALIVE: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()
# Whether torch can keep what a prediction captures from counting as compilations of the function.
ISOLATES = "isolate_recompiles" in inspect.signature(torch._dynamo.eval_frame._optimize).parameters

# Calls that find nothing although it is there, before one of them is believed.
_LOOKS = 8


class CompiledFunction:
    """A compiled function or module: call it as the original.

    Attributes:
        function: The original.
        options: How it is compiled.
    """

    def __init__(
        self, function: Callable[..., Any], options: Options, backend: Backend | None = None
    ) -> None:
        self.function = function
        self.options = options
        self._backend = backend or Backend(options)
        self._layers: RepeatedLayers[CompiledFunction] | None = None
        if options.layers == "once":
            self._layers = RepeatedLayers(_module(function), self._for_layers)
        self._breaks: dict[GraphBreak, None] = {}
        self._guards: dict[str, Guard] = {}
        self._noted: list[NotedGuard] = []  # of these those that nobody has asked for yet
        self._recompiles: list[Recompile] = []
        self._failures: list[Any] = []  # guards that failed since the last compilation
        alone = {} if self._backend.builds or not ISOLATES else {"isolate_recompiles": True}
        optimize: Any = torch._dynamo.optimize(
            self._backend,
            **alone,
            dynamic=options.dynamic,
            guard_export_fn=self._export_guards,
            guard_fail_fn=self._guard_failed,
        )
        quiet.install()
        self._watch: FrozenWatch | None = None
        if callable(getattr(optimize, "callback", None)):  # not where TorchDynamo is switched off
            self._watch = optimize.callback = FrozenWatch(optimize.callback)
        self._optimized = optimize(function)
        # Whether hooks were put on this, a module: they run around it.
        self._hooked = False
        self._hooks = hook_tables(function)
        self._taken: TakenUp | None = None  # what other processes have compiled; looked for once
        # What a call goes to: the ordinary path until there is a shorter one.
        self._route: Callable[..., Any] = self._run_noted if is_recording() else self._run
        self._shortcut = Shortcut(self._run, self._optimized)
        ALIVE.add(self)
        self._learned = True  # whether there is nothing to learn from the next ordinary call
        if not isinstance(function, nn.Module):
            functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; the first call with new kinds of inputs compiles."""
        # Where there is a native part, this is what TorchDynamo sees, and calls go to the route.
        if is_dynamo_compiling():  # another compiled function calls this one: it takes it in
            if self._hooked:  # TorchDynamo would leave out the hooks that run around a module
                return self._run(*args, **kwargs)
            for hooks in self._hooks:  # it asks for these then, which of a module's it does not
                tuple(hooks.keys())
            return self.function(*args, **kwargs)
        return self._route(*args, **kwargs)

    @torch.compiler.disable(reason="it runs apart")  # type: ignore[untyped-decorator]
    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """Run by the ordinary path, through TorchDynamo."""
        backend = self._backend
        backend.clock = time.perf_counter()
        marker, compiled = break_marker(), len(backend.graphs)
        taken = self._taken if self._taken is not None else self._look_for_artefacts()
        try:
            with quiet.Quiet(), taken if taken.artefacts else _nothing, self._layers or _nothing:
                result = self._call(args, kwargs)
        except BackendCompilerFailed as error:
            if isinstance(error.inner_exception, FusecError):
                raise error.inner_exception from None
            raise
        finally:
            if len(backend.graphs) != compiled or break_marker() != marker:
                self._breaks.update(dict.fromkeys(breaks_since(marker)))
            self._note_recompile([graph.name for graph in backend.graphs[compiled:]])
        if backend.builds and (len(backend.graphs) != compiled or not self._learned):
            self._learned = self._shortcut.learn(backend.graphs, args, kwargs)
            self._choose_route()
        return result

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with contextlib.suppress(CompiledMeanwhile):
            return self._optimized(*args, **kwargs)
        # outside of it: what the function itself raises is to name nothing of ours
        return self._call_again(args, kwargs)

    def _call_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what another thread has compiled, or moved in torch's list, meanwhile."""
        assert self._watch is not None
        for _ in range(_LOOKS):
            with contextlib.suppress(CompiledMeanwhile), self._watch.once_more(last=False):
                return self._optimized(*args, **kwargs)
        with self._watch.once_more(last=True):
            return self._optimized(*args, **kwargs)

    def _for_layers(self, forward: Callable[..., Any]) -> CompiledFunction:
        options = replace(self.options, layers="whole")
        return CompiledFunction(forward, options, Backend(options, beside=self._backend))

    def _look_for_artefacts(self) -> TakenUp:
        self._taken = TakenUp()
        if self._backend.builds and self._watch is not None:
            self._watch.others, self._watch.refused = self._taken.misfits, self._taken.refused
            frame = find_frame(self._optimized)
            self._watch.root = frame[0].__code__ if frame is not None else None
            self._taken.look(self._optimized, self.options)
        return self._taken

    @property
    def effects(self) -> tuple[Noted, ...]:
        """What it changes beside its result, with the code that was captured."""
        own = self._watch.effects if self._watch is not None else {}
        return (*own, *(each for part in self.parts for each in part.effects))

    @property
    def taken_up(self) -> TakenUp:
        """What ``fusec.precompile`` left in the store for this function, and how often it ran."""
        return self._taken if self._taken is not None else self._look_for_artefacts()

    def however_often(self) -> contextlib.AbstractContextManager[None]:
        """Have it compiled meanwhile for every kind of call, TorchDynamo's limit or not."""
        return as_often_as_asked(self._optimized)

    def keep(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kept:
        """Write down the compiled code of a call that has run, for other processes to take up."""
        return keep_call(self._optimized, self.options, self.graphs, args, kwargs)

    def _choose_route(self) -> None:
        """Have calls go the shortest way that there is; past whoever records them, if anybody."""
        if is_recording():
            self._route = self._run_noted
        elif self._shortcut.dispatcher is not None and not self._hooked:
            self._route = self._shortcut.dispatcher
            call_by_route(CompiledFunction)
        else:
            self._route = self._run

    def _run_noted(self, *args: Any, **kwargs: Any) -> Any:
        note_call(self, args, kwargs)
        short = None if self._hooked else self._shortcut.dispatcher
        return (short or self._run)(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledFunction:
        """Return another one, of a copy of the original, with nothing compiled yet."""
        return self._for_copy(CompiledFunction(copy.deepcopy(self.function, memo), self.options))

    def __copy__(self) -> CompiledFunction:
        """Return another one of the same original, with nothing compiled yet."""
        return self._for_copy(CompiledFunction(self.function, self.options))

    def _for_copy(self, other: CompiledFunction) -> CompiledFunction:
        if self._hooked:
            share_hooks(self._optimized, other._optimized)
            other._hooked = True
        return other

    def __reduce__(self) -> Any:
        """Be pickled as the original, or, where a decorator made it, by name as the original is.

        What is compiled belongs to this process.
        """
        name = getattr(self.function, "__qualname__", "")
        home: Any = sys.modules.get(getattr(self.function, "__module__", None) or "")
        for part in name.split("."):
            home = getattr(home, part, None)
        return name if home is self else (_original, (self.function,))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind like a function, so that a method can be decorated."""
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        """Offer what the original offers: a module's ``parameters()``, a function's docstring."""
        if name.startswith("_") or name == "function":
            raise AttributeError(name)
        if puts_hook(name) and isinstance(self._optimized, nn.Module):
            self._hooked = True
            self._choose_route()
            return put_around(self._optimized, name)
        return getattr(self.function, name)

    def _export_guards(self, guards: Any) -> None:
        self._noted.extend(note_guards(guards))

    def _guard_failed(self, failure: Any) -> None:
        self._failures.append(failure)

    def _note_recompile(self, compiled: Sequence[str]) -> None:
        failures, self._failures = self._failures, []
        found = describe_recompile(failures)
        if found is None:
            return
        limit = torch._dynamo.config.recompile_limit
        if compiled or len(failures) < limit:
            self._recompiles.append(replace(found, graph=compiled[0] if compiled else ""))
        elif not any(each.text == too_often(found, limit).text for each in self._recompiles):
            self._recompiles.append(too_often(found, limit))

    @property
    def frozen(self) -> bool:
        """Whether nothing is compiled for it any more."""
        return self._watch is not None and self._watch.frozen

    @frozen.setter
    def frozen(self, frozen: bool) -> None:
        if self._watch is not None:
            self._watch.frozen = frozen
        for part in self.parts:
            part.frozen = frozen

    # -- what became of it ------------------------------------------------------------------

    @property
    def graphs(self) -> tuple[CompiledGraph, ...]:
        """Every graph compiled so far, in order of first run."""
        return tuple(self._backend.every if self.parts else self._backend.graphs)

    @property
    def parts(self) -> tuple[CompiledFunction, ...]:
        """What is compiled once for several layers (``layers="once"``), one for each class."""
        return () if self._layers is None else self._layers.compiled

    @property
    def kernels(self) -> dict[str, Kernel]:
        """Every kernel by name."""
        return {k.name: k for graph in self.graphs for k in graph.kernels}

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """Every place where capture stopped and Python ran."""
        own = (each for each in self._breaks if not each.of_layers)
        return (*own, *(each for part in self.parts for each in part.breaks))

    @property
    def guards(self) -> tuple[Guard, ...]:
        """What must stay true for the compiled code to be used again."""
        noted, self._noted = self._noted, []
        for guard in describe_guards(noted):
            self._guards.setdefault(guard.text, guard)
        return (*self._guards.values(), *(each for part in self.parts for each in part.guards))

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """Why it was compiled again, each time: what changed, and how to avoid it."""
        return (*self._recompiles, *(each for part in self.parts for each in part.recompiles))

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The graphs that run in eager, with the reasons."""
        return tuple(f"{g.name}: {g.fallback}" for g in self.graphs if g.fallback)

    def reschedule(
        self,
        *,
        apart: Sequence[str] = (),
        together: Sequence[str] = (),
        loops: Sequence[str] | None = None,
        strict: bool = True,
    ) -> Rescheduled:
        """Use other fusions or loops from now on; without rules, the compiler's own again.

        What is compiled already is compiled beside what is in use, checked against eager and
        float64, and takes its place; what is compiled later (for other sizes) follows the rules.

        Args:
            apart: Pairs of computations that must not share a kernel: ``"gelu:layer_norm"``.
            together: Pairs that share one wherever it is legal.
            loops: How the loops of kernels are to run: ``"softmax: rows prefetch=0"``; None for
                what is in use.
            strict: Whether a pair that no graph computes is an error, or may come later.

        Returns:
            Which kernels there are now, and how right they are.

        Raises:
            BadOption: Something that is no pair of names.
            UnknownComputation: A pair that no graph computes; the message says what there is.
            ScheduleRefused: The result would be wrong; everything is as it was.
            NoInputs: It has not run, or was not compiled with ``keep_inputs=True``.
        """
        from fusec.inspect.reschedule import check_rules, reschedule

        kept = self.options.loops if loops is None else tuple(loops)
        chosen = replace(self.options, apart=tuple(apart), together=tuple(together), loops=kept)
        if strict:
            check_rules(self.graphs, (*chosen.apart, *chosen.together, *chosen.loops))
        found = reschedule(self.graphs, chosen, self.options)
        self.options = self._backend.options = chosen
        self._backend.take(found.kernels)
        return found

    @property
    def short_calls(self) -> int:
        """How many calls went past TorchDynamo, because their own guards held."""
        dispatcher = self._shortcut.dispatcher
        own = int(dispatcher.hits) if dispatcher is not None else 0
        return own + sum(part.short_calls for part in self.parts)

    def explain(self) -> Explanation:
        """Return what became of the calls so far, as one report: print it."""
        return Explanation(
            self._name(),
            self.graphs,
            self.breaks,
            self.guards,
            self.recompiles,
            self._layers.notes() if self._layers is not None else (),
        )

    def _name(self) -> str:
        return str(getattr(self.function, "__qualname__", type(self.function).__name__))

    def __repr__(self) -> str:
        name = self._name()
        return f"<fusec.CompiledFunction {name}: {counted(len(self.graphs), 'graph')}>"


def _module(function: Callable[..., Any]) -> nn.Module:
    if isinstance(function, nn.Module):
        return function
    raise BadOption("layers", "once", ("'whole', as this is not a module",))


def _original(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


__all__ = ["ALIVE", "ISOLATES", "CompiledFunction"]
