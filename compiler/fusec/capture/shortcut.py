"""The short path of ``fusec.compile``: calls that TorchDynamo has compiled, without its wrapper.

TorchDynamo spends most of a small call on preparing to capture. Once it has compiled a call as one
whole graph, all that matters is what it left behind: its guards, and the code that it would run.
An *entry* has both. The guards are TorchDynamo's own tree of native guards; where that tree asks
only about tensors that are arguments, about fixed global names and about the state of torch, the
same questions are asked of torch's native parts one by one, in half the time. The code is
TorchDynamo's, with the compiled graph in place of its wrapper, so that results, side effects and
whatever else it rebuilds are the same.

What is not understood here gets no entry and takes the ordinary path.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

from fusec.call import native
from fusec.capture.eager_reasons import strict
from fusec.capture.fast_path.compiled_code import (
    FastCode,
    Plan,
    fast_code,
    graph_of,
    parameter_count,
    plan_of,
)
from fusec.capture.guards import tree as guard_tree
from fusec.capture.guards.tree import ABSENT, EMPTY, IS
from fusec.compiled.graph import CompiledGraph

MOST_ENTRIES = 8
NO_LEVEL = -1
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_backward_pre_hooks", "_global_backward_hooks") + (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


class _NoShortcut(Exception):
    """The ordinary path is the only one."""


@dataclass
class _Target:
    """The frame that TorchDynamo compiles when the function is called.

    Attributes:
        function: Whose code runs.
        prefix: Arguments that come before those of the call: ``self``.
        lookups: What must hold for the call to arrive there, as the native part wants it.
        types: Likewise.
    """

    function: FunctionType
    prefix: tuple[object, ...] = ()
    lookups: list[tuple[object, ...]] = field(default_factory=list)
    types: list[tuple[object, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class _Known:
    """An entry, and what it was made from.

    Attributes:
        entry: The native entry.
        code: TorchDynamo's compiled code.
        guards: Attributes of TorchDynamo's object that holds the guards.
    """

    entry: Any
    code: CodeType
    guards: dict[str, Any]

    @property
    def alive(self) -> bool:
        """Whether TorchDynamo has neither dropped nor invalidated the code."""
        return self.guards.get("cache_entry") is not None


class Shortcut:
    """The entries of one compiled function.

    Attributes:
        dispatcher: To call instead of the ordinary path; None until there is an entry.
    """

    def __init__(self, slow: Callable[..., Any], optimized: object) -> None:
        self.dispatcher: Any = None
        self._slow = slow
        self._optimized = optimized
        self._known: list[_Known] = []
        # A call may be learned from while another thread learns: neither makes the other's entry
        # once more, or drops it twice. What is looked at may run Python, which may call.
        self._learning = threading.RLock()

    def learn(
        self, graphs: Sequence[CompiledGraph], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Look for an entry that serves calls like the one that just ran.

        Returns:
            Whether there is nothing more to learn of this call: False where the native part is
            still being built, or may be another time.
        """
        found = native.types()
        if found is None:
            return native.is_lost()
        try:
            with self._learning:
                self._forget_dead()
                if len(self._known) < MOST_ENTRIES:
                    self._learn(found, graphs, args, kwargs)
        except (_NoShortcut, guard_tree.NotUnderstood):
            pass
        except (AttributeError, TypeError, ValueError, KeyError, IndexError):
            if strict():
                raise
            # Another release of torch looks different inside: nothing is lost but time.
        return True

    def _learn(
        self,
        found: native.NativeTypes,
        graphs: Sequence[CompiledGraph],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        target = _find_target(self._optimized)
        function = target.function
        for cached in torch._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__):
            if any(cached.code is each.code for each in self._known):
                continue
            graph = graph_of(cached.code, function, graphs)
            if graph is None:
                continue
            fast = fast_code(cached.code, function, graph)
            entry = _make_entry(found, cached, target, fast, graph, args, kwargs)
            if entry is not None:
                self._add(found, _Known(entry, cached.code, vars(cached.guard_manager)))
                return

    def _add(self, found: native.NativeTypes, known: _Known) -> None:
        if self.dispatcher is None:
            tracing = torch._C._dynamo.eval_frame.get_eval_frame_callback
            self.dispatcher = found.Dispatcher(self._slow, tracing)
        self._known.append(known)
        self.dispatcher.entries.insert(0, known.entry)

    def _forget_dead(self) -> None:
        """Drop what TorchDynamo has thrown away."""
        for each in [known for known in self._known if not known.alive]:
            self._known.remove(each)
            self.dispatcher.entries.remove(each.entry)


# -- where a call arrives -------------------------------------------------------------------


def find_frame(optimized: Any) -> tuple[FunctionType, tuple[object, ...]] | None:
    """Return the function whose frame TorchDynamo compiles, and what comes before its arguments.

    Args:
        optimized: What TorchDynamo returned.
    """
    try:
        target = _find_target(optimized)
    except _NoShortcut:
        return None
    return target.function, target.prefix


def _find_target(optimized: Any) -> _Target:
    inner = optimized
    if isinstance(optimized, nn.Module):
        if "_call_lazy_check" in repr(vars(optimized).get("forward")):
            raise _NoShortcut  # a lazy module: its parameters come with the first call
        inner = optimized.forward
    called = getattr(inner, "_torchdynamo_orig_callable", None)
    if isinstance(called, FunctionType):
        target = _Target(called)
    elif isinstance(called, MethodType) and isinstance(called.__func__, FunctionType):
        module = called.__self__
        if isinstance(module, nn.Module) and called.__func__ is nn.Module.__call__:
            target = _forward_of(module)
        else:
            target = _Target(called.__func__, (module,))
    else:
        raise _NoShortcut
    if isinstance(optimized, nn.Module):
        # The wrapper itself is a module whose hooks run.
        _expect_no_hooks(target, optimized)
    return target


def _forward_of(module: nn.Module) -> _Target:
    """Return the frame of a module's ``forward``, where no hook comes first."""
    kind = type(module)
    forward = inspect.getattr_static(kind, "forward")
    if not isinstance(forward, FunctionType):
        raise _NoShortcut
    target = _Target(forward, (module,))
    target.types.append((module, kind, "forward", forward))
    target.types.append((module, kind, "__call__", inspect.getattr_static(kind, "__call__")))
    target.types.append((module, kind, "_call_impl", inspect.getattr_static(kind, "_call_impl")))
    for name in ("forward", "_call_impl", "_compiled_call_impl"):
        if vars(module).get(name) is not None:
            raise _NoShortcut
        mode = IS if name in vars(module) else ABSENT
        target.lookups.append((vars(module), name, mode, None))
    _expect_no_hooks(target, module)
    return target


def _expect_no_hooks(target: _Target, module: nn.Module) -> None:
    for name in _HOOKS:
        mode = EMPTY if name in vars(module) else ABSENT
        target.lookups.append((vars(module), name, mode, None))
    for name in _GLOBAL_HOOKS:
        target.lookups.append((vars(nn.modules.module), name, EMPTY, None))


# -- entries --------------------------------------------------------------------------------


def _make_entry(
    found: native.NativeTypes,
    cached: Any,
    target: _Target,
    fast: FastCode,
    graph: CompiledGraph,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return the entry for compiled code; None if it does not serve the call that just ran."""
    function, code = target.function, target.function.__code__
    parameters = code.co_varnames[: parameter_count(code)]
    wrapper = cached.guard_manager
    stance = torch._dynamo.eval_frame._stance
    if vars(wrapper).get("cache_entry") is None or stance.stance != "default":
        return None
    lookups = [
        *target.lookups,
        # None as soon as TorchDynamo drops or invalidates the code.
        (vars(wrapper), "cache_entry", IS, wrapper.cache_entry),
        (vars(torch._dynamo.eval_frame), "_stance", IS, stance),
        # Within a level of forward-mode AD, inputs may have tangents.
        (vars(forward_ad), "_current_level", IS, NO_LEVEL),
    ]

    def entry(checks: guard_tree.Checks, plan: Plan) -> Any:
        return found.Entry(
            function,
            code,
            fast.function,
            graph.entry(),
            (plan.shape, plan.order, plan.results),
            target.prefix,
            parameters,
            code.co_argcount,
            code.co_posonlyargcount,
            code.co_kwonlyargcount,
            bool(code.co_flags & inspect.CO_VARARGS),
            bool(code.co_flags & inspect.CO_VARKEYWORDS),
            checks.tensors,
            checks.positions,
            checks.absent,
            checks.tree,
            checks.conditions,
            (*lookups, *checks.lookups),
            tuple(target.types),
            tuple(zip(code.co_freevars, function.__closure__ or (), strict=True)),
            checks.sizes,
            native.exchange(),
        )

    whole = entry(guard_tree.whole(wrapper.root), Plan())
    if not whole.fits(*args, **kwargs):
        return None
    values = whole.bind(*args, **kwargs)
    try:
        bound = dict(zip(parameters, values, strict=True))
        checks = guard_tree.cheap_checks(wrapper.root, bound, function.__globals__)
    except guard_tree.NotUnderstood:
        return whole
    plan = Plan()
    if len(checks.positions) == len(parameters):  # all of them are tensors, and different ones
        plan = plan_of(fast, values, graph.output_count)
    cheaper = entry(checks, plan)
    return cheaper if cheaper.fits(*args, **kwargs) else whole


__all__ = ["Shortcut", "find_frame"]
