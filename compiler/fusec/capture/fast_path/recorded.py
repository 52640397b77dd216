"""Calls that record for autograd, without AOTAutograd's wrappers around them.

AOTAutograd makes a class of ``torch.autograd.Function`` of every forward graph with its backward
graph, and wraps it so that anything can be handled: tensor subclasses, aliases, tokens, states of
random numbers, autocast. What it put in is written in the code that it generates and in its record
of the graph. Where that is nothing but "run, save, hand out", a subclass of its own class does just
this: ``forward`` in fewer steps, ``backward`` likewise where a call asks for nothing special (a
gradient of the gradient, a graph that is kept, a transform) and AOTAutograd's own where it does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from fusec.call.input_check import SharedMemory
from fusec.call.recorded_plan import RecordedPlan, laying_out, saving
from fusec.call.unasked_hooks import pass_none_by_at
from fusec.call.updates import note_updates
from fusec.capture.fast_path.direct import (
    LOOKED_UP,
    applied_function,
    cell,
    marks_of,
    names_only,
    updates_are_plain,
    wrapper_of,
)
from fusec.capture.fast_path.given_inputs import note_given
from fusec.compiled.part import CompiledPart
from fusec.memory.readable import has_tangent

# What the generated parts of AOTAutograd's wrappers may name: running, and normalizing results,
# and that operators convert nothing once more where the graph was made under autocast.
_NO_AUTOCAST = "_DisableAutocast_"
_COMMON = frozenset(("torch isinstance tuple list len AssertionError " + _NO_AUTOCAST).split())
_WRAPPER = _COMMON | frozenset(
    "_C _is_view_replay_enabled _set_view_replay_enabled enable_grad _apply_mutations_ "
    "_mark_dynamic_".split()
)
_FORWARD = _COMMON
_BACKWARD = _COMMON | frozenset(
    "saved_tensors symints opaque_objects _C _is_key_in_tls _get_obj_in_tls functools partial run "
    "is_grad_enabled any requires_grad Tensor copy".split()
)
_PLAIN_OUTPUTS = ("non_alias", "unsafe_view_alias")
# What AOTAutograd's backward looks for in the context of a call, beside tensors: nothing is there.
_NOTHING_SAVED = ("symints", "opaque_objects", "_tensors_no_vc_check")


@dataclass(frozen=True)
class AutogradPlan(RecordedPlan):
    """What a pair of graphs does, and AOTAutograd's class of them.

    Attributes:
        function: AOTAutograd's class.
        listed: Whether backward is given its gradients in a list, to be emptied.
    """

    function: type[torch.autograd.Function]
    listed: bool


def recorded_plan(compiled: Callable[..., Any]) -> AutogradPlan | None:
    """Return what calls do beside running a graph and its gradient.

    Args:
        compiled: What AOTAutograd returned.

    Returns:
        None where AOTAutograd's wrappers do more than is known here.
    """
    if not torch.is_grad_enabled():
        return None
    try:
        return _plan(compiled)
    except (AttributeError, LookupError, TypeError, ValueError):
        return None  # another release of torch builds other wrappers


def recorded_call(
    compiled: Callable[..., Any],
    plan: AutogradPlan,
    part: CompiledPart,
    captured: Callable[..., Any],
) -> Callable[..., Any] | None:
    """Return a shorter way to call what AOTAutograd made of a graph and its gradient.

    Args:
        compiled: What AOTAutograd returned; it is what calls of another kind go to.
        plan: What ``recorded_plan`` returned.
        part: The forward part.
        captured: The graph in eager: autograd's functions know no tangents of forward-mode AD.

    Returns:
        None where sizes vary, or nothing keeps TorchDynamo from tracing it.
    """
    if plan.symbols or plan.marks or plan.function.metadata.dynamic_saved_tensors_idxs:  # type: ignore[attr-defined]
        return None
    try:
        skipped = never_traced()
    except (AttributeError, ImportError):
        return None  # another release of torch
    run = part.entry()
    try:
        made = _subclass(plan, run)
    except AttributeError:
        return None  # likewise
    for method in (made.forward, made.backward):
        skipped(method.__code__)
    # Not Function.apply, which asks about transforms once more, and unwraps what is left of them.
    apply = super(torch.autograd.Function, made).apply  # type: ignore[misc]
    updated = plan.updated
    is_grad_enabled = torch.is_grad_enabled
    transformed = torch._C._are_functorch_transforms_active

    def call(*inputs: Any) -> Any:
        if transformed():
            return captured(*inputs)  # autograd's functions refuse to run within a transform
        if not is_grad_enabled():
            return compiled(*inputs)
        if forward_ad._current_level >= 0 and any(map(has_tangent, inputs)):
            return captured(*inputs)
        if updated and any(inputs[i]._is_view() for i in updated):
            # an update counts for all views of its memory, and what is saved may be one of them
            return captured(*inputs)
        try:
            outputs: Any = apply(*inputs)
        except SharedMemory:  # raised before anything ran
            return captured(*inputs)
        if not updated:
            return outputs
        note_updates([inputs[i] for i in updated], outputs)
        return outputs[len(updated) :]

    return call


def _subclass(
    plan: AutogradPlan, run: Callable[[list[Any]], list[Any]]
) -> type[torch.autograd.Function]:
    function = plan.function
    slow: Callable[..., Any] = function.backward
    forward_cls: Any = function
    never = plan.unasked.never if plan.unasked is not None else ()
    listed, save, laid_out = plan.listed, saving(plan), laying_out(plan)
    # Others are leaves, and whether an input wants gradients is guarded.
    wanting = tuple(
        i
        for i, each in enumerate(function.metadata.input_info)  # type: ignore[attr-defined]
        if each.requires_grad
    )
    is_plain = _plain_call(plan)
    stashed, context_of = torch._C._is_key_in_tls, torch._C._get_obj_in_tls

    def forward(ctx: Any, *inputs: Any) -> Any:
        for i in wanting:  # here, as calls of leaves alone are many, and cost little else
            if not inputs[i].is_leaf:
                note_given(ctx, inputs)
                break
        return save(ctx, inputs, run(list(inputs)))

    def backward(ctx: Any, *given: Any) -> Any:
        # From the first gradient on it is there, wrapped so that TorchDynamo leaves it alone.
        compiled = getattr(forward_cls.compiled_bw, "_torchdynamo_orig_callable", None)
        gradients: Any = given[0] if listed else given
        if compiled is None or not is_plain(gradients):
            return slow(ctx, *given)
        if never:
            pass_none_by_at(ctx, never)
        arguments = [*ctx.saved_tensors, *laid_out(gradients)]
        if listed:
            gradients.clear()
        ctx.maybe_clear_saved_tensors()
        # That of whoever asked for gradients, put there by torch 2.13, not by 2.11: a device's
        # thread has its own, and operators may look at its variables.
        context = context_of("context") if stashed("context") else None
        if context is None:
            return tuple(compiled(arguments))
        return tuple(context.run(compiled, arguments))

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    # The name is what a result's grad_fn shows.
    made = type(function.__name__, (function,), methods)
    for name in _NOTHING_SAVED:
        setattr(made._backward_cls, name, ())  # type: ignore[attr-defined]
    return made


def _plain_call(plan: AutogradPlan) -> Callable[[Sequence[Any]], bool]:
    """Return what says whether AOTAutograd would run the backward graph on some gradients.

    They may have to be laid out as the graph wants them.
    """
    positions = plan.gradients
    plain, strided = torch.Tensor, torch.strided
    records = torch.is_grad_enabled
    is_deterministic = torch._C._get_deterministic_algorithms
    keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph
    transform = torch._C._functorch.peek_interpreter_stack

    def is_plain(gradients: Sequence[Any]) -> bool:
        # AOTAutograd's own refuses where buffers were to be used again, and are needed once more.
        if records() or is_deterministic() or keeps_graph() or transform() is not None:
            return False
        for position in positions:
            gradient = gradients[position]
            if type(gradient) is not plain or gradient.layout is not strided:
                return False
        return True

    return is_plain


# -- what AOTAutograd built -----------------------------------------------------------------


def _plan(compiled: Any) -> AutogradPlan | None:
    wrapper = wrapper_of(compiled)
    listed = "_codegen_runtime_wrapper" in wrapper.__code__.co_freevars
    inner = cell(cell(wrapper, "_inner_compiled_fn" if listed else "compiled_fn"), "f")
    function: Any = applied_function(inner)
    if (
        function is None
        or function.__mro__[1] is not torch.autograd.Function
        or not (_is_generated(wrapper, function) if listed else _is_looked_up(wrapper, function))
    ):
        return None
    record = function.metadata
    if not _is_plain(record) or function.maybe_subclass_metadata is not None:
        return None
    updated = tuple(record.mutated_inp_runtime_indices)
    infos = [*(record.input_info[i] for i in updated), *record.output_info]
    returned = record.num_forward_returns
    if len(infos) != returned:
        return None
    gradients = tuple(
        len(updated) + i
        for i, each in enumerate(record.output_info)
        if issubclass(each.raw_type, torch.Tensor)
        and getattr(each, "requires_grad_for_backward", each.requires_grad)
    )
    formats = [each.memory_format for each in record.subclass_tangent_meta]
    if len(formats) != len(gradients):
        return None
    return AutogradPlan(
        updated,
        returned,
        tuple(i for i, each in enumerate(infos) if not each.requires_grad),
        gradients,
        tuple((each.size, each.stride, each.memory_format) for each in formats),
        record.num_symints_saved_for_bw,
        marks_of(record),
        tuple(len(updated) + i for i in record.unsafe_view_out_indices),
        getattr(function, "unasked", None),
        function,
        listed,
    )


def _is_generated(wrapper: Any, function: Any) -> bool:
    """Whether the text of AOTAutograd's wrappers says that they do no more than is known here."""
    return (
        names_only(cell(wrapper, "_codegen_runtime_wrapper"), _WRAPPER)
        and names_only(function._fwd_fn, _FORWARD)
        and names_only(function._bwd_fn, _BACKWARD)
    )


def _is_looked_up(wrapper: Any, function: Any) -> bool:
    """Likewise of releases before 2.12, whose wrappers look up in records what to do."""
    forward = inspect.unwrap(function.forward)  # in that of unasked gradients
    return (
        frozenset(wrapper.__code__.co_freevars) <= LOOKED_UP
        and cell(wrapper, "trace_joint")
        and not cell(wrapper, "keep_input_mutations")
        and not cell(wrapper, "indices_of_inps_to_detach")
        and not cell(forward, "backward_state_indices")
        and not cell(forward, "num_rng")
    )


def _is_plain(record: Any) -> bool:
    return bool(
        updates_are_plain(record)
        and all(each.output_type.name in _PLAIN_OUTPUTS for each in record.output_info)
        and record.grad_enabled_mutation is None
        and not record.tokens
        and not record.num_backward_tokens
        and not record.num_intermediate_bases
        and not record.num_outputs_aliased
        and not record.num_opaque_objects_saved_for_bw
        and record.num_tensors_saved_with_no_vc_check == 0
        and not record.is_rng_op_functionalized
        and not record.num_graphsafe_rng_states
        and not record.indices_of_inputs_that_requires_grad_with_mutations_in_bw
    )


@functools.cache
def never_traced() -> Callable[[Any], None]:
    """Return what keeps TorchDynamo from tracing code, and what that calls."""
    from torch._C._dynamo.eval_frame import set_code_exec_strategy
    from torch._dynamo.types import (  # type: ignore[attr-defined]
        FrameAction,
        FrameExecStrategy,
    )

    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    return lambda code: set_code_exec_strategy(code, skip)


__all__ = ["AutogradPlan", "never_traced", "recorded_call", "recorded_plan"]
