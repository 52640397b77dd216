"""Whether a compiled graph may be called without AOTAutograd's wrappers around it.

The wrappers copy back what the graph updates in place, make outputs views of inputs again, take
tensor subclasses apart, switch autograd and autocast off round operators of ATen. Where
AOTAutograd's own record of the graph, and the code that it generated for it, say that there is
nothing of this to do but what an ``Epilogue`` does, the call goes past them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CellType, FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import fx

from fusec.call.epilogue import Epilogue, Marks, Views
from fusec.compiled.part import CompiledPart

_PLAIN_OUTPUTS = ("non_alias", "unsafe_view_alias")
_METADATA_MUTATIONS = (
    "mutates_metadata",
    "mutates_storage_metadata",
    "mutation_inductor_storage_resize",
)
# What the generated part of the wrapper of a graph without gradients may name.
_GENERATED = frozenset(
    "torch _C is_grad_enabled _set_grad_enabled isinstance tuple list len AssertionError "
    "_apply_mutations_ _replay_aliases_ _mark_dynamic_ _DisableAutocast_".split()
)
_UNKNOWN = (AttributeError, LookupError, TypeError, ValueError)

# Before torch 2.12 the wrapper is one function for all graphs, which looks up in AOTAutograd's
# record what there is to do. It may know this much.
LOOKED_UP = frozenset(
    "compiled_fn disable_amp epilogue_args_idx first_invocation_ctx indices_of_inps_to_detach "
    "keep_input_mutations output_handlers record_runtime_wrapper_prologue_enter "
    "record_runtime_wrapper_prologue_exit runtime_metadata trace_joint".split()
)

_IDLE = ("EffectTokensWrapper.post_compile.", "FunctionalizedRngRuntimeWrapper.post_compile.")


def epilogue_instead_of_wrappers(inputs: int, *, would_record: bool) -> Epilogue | None:
    """Return what to do in place of AOTAutograd's wrappers; None if they are needed.

    It is asked while AOTAutograd compiles the graph.

    Args:
        inputs: How many inputs the graph has that TorchDynamo captured.
        would_record: Whether ATen's operators run in it, of which autograd would keep a record
            where the graph is called.
    """
    context = torch._guards.TracingContext.try_get()
    record = getattr(context, "fw_metadata", None)
    try:
        if record is None or not _is_plain(record, inputs):
            return None
        views = _views(record)
        if views is None:
            return None
        # Operators then run with autograd off, in which a view of an input must not be made.
        if would_record and any(make is not None for _, _, make in views):
            return None
        return Epilogue(tuple(record.mutated_inp_runtime_indices), views, marks_of(record))
    except _UNKNOWN:
        return None  # another release of torch keeps another record


def marks_of(record: Any) -> Marks:
    """Return what AOTAutograd puts on results whose sizes vary, by its record of the graph."""
    dims = [each.dynamic_dims for each in record.output_info]
    name = _name_of_marks() if any(dims) else ""
    return tuple((i, name, frozenset(each)) for i, each in enumerate(dims) if each)


def saved_outputs(module: fx.GraphModule, outputs: int | None) -> tuple[int, ...]:
    """Return the positions of a forward graph's outputs that nobody but backward sees.

    It is asked while AOTAutograd compiles the graph.

    Args:
        module: As torch's partitioner made it.
        outputs: How many results the partitioner was told are the caller's; None if it was not.

    Returns:
        None of them where AOTAutograd's record does not say the same.
    """
    record = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    (output,) = module.graph.find_nodes(op="output")
    try:
        plain = (
            outputs is not None
            and record is not None
            and record.num_forward == record.num_forward_returns == outputs
            and not record.tokens
            and not record.num_backward_tokens
            and not record.is_rng_op_functionalized
            and not record.num_graphsafe_rng_states
        )
        return tuple(range(outputs or 0, len(output.args[0]))) if plain else ()
    except _UNKNOWN:
        return ()  # another release of torch keeps another record


def keep_saved_tensors() -> None:
    """Let a gradient be asked for more than once: backward leaves what forward saved as it is.

    It is asked while AOTAutograd compiles the graph, which has made a list of saved tensors that a
    compiler may write over. Unless that is empty, AOTAutograd refuses ``retain_graph=True``.
    """
    record = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    donated = getattr(record, "bw_donated_idxs", None)
    if isinstance(donated, list):
        donated.clear()  # in place: it is shared by AOTAutograd's records of the graph


def wraps_no_more(compiled: Callable[..., Any], part: CompiledPart) -> bool:
    """Whether what AOTAutograd returned does no more than an ``Epilogue`` can say.

    Args:
        compiled: Of a graph without gradients.
        part: What it wraps.
    """
    try:
        wrapper = wrapper_of(compiled)
        names = wrapper.__code__.co_freevars
        inner = cell(wrapper, next(n for n in ("_inner_compiled_fn", "compiled_fn") if n in names))
        if not part.is_entry(within_idle(inner)):
            return False  # another wrapper is between them: it takes tensor subclasses apart, say
        if "_codegen_runtime_wrapper" in wrapper.__code__.co_freevars:
            return names_only(cell(wrapper, "_codegen_runtime_wrapper"), _GENERATED)
        # The record said that there is nothing to do; see ``epilogue_instead_of_wrappers``.
        switches = [cell(wrapper, name) for name in ("trace_joint", "keep_input_mutations")]
        return LOOKED_UP.issuperset(wrapper.__code__.co_freevars) and not any(switches)
    except _UNKNOWN:
        return False


def within_idle(function: Any) -> Any:
    """Return what is within wrappers that have nothing to do in a graph with a plain record.

    Before torch 2.12 two of them are round every graph, and ask whether there are effects to put in
    order or random numbers to count: in a plain record there are none.
    """
    for _ in _IDLE:
        code = getattr(function, "__code__", None)
        if code is None or not code.co_qualname.startswith(_IDLE):
            break
        function = cell(function, "compiled_fn")
    return function


def analyze_no_operators(compiled: Callable[..., Any]) -> None:
    """Keep AOTAutograd from looking at operators in the first call of what it returned.

    It does so for custom operators whose results share memory, in a mode that sees all of them.
    ATen computes some in another way where a mode does: inverses of complex matrices wrongly. So
    torch's warning of a custom operator that returns what it was given is not heard from us.

    Args:
        compiled: Of any graph.
    """
    waiting, seen = [compiled], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if hasattr(each, "_is_first"):
            each._is_first = False
        if isinstance(each, FunctionType):
            found = [c.cell_contents for c in each.__closure__ or () if _is_filled(c)]
            found.append(getattr(each, "__wrapped__", None))
        else:
            found = list(vars(each).values()) if hasattr(each, "__dict__") else []
        waiting += [value for value in found if _is_aots(value)]


def _is_filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _is_aots(value: object) -> bool:
    """Whether a value is a function or an object of AOTAutograd's wrappers."""
    owner = value if isinstance(value, FunctionType) else type(value)
    where: str | None = getattr(owner, "__module__", None)
    if where is None:
        return isinstance(value, FunctionType)  # code that it generated
    return where.startswith("torch._functorch.") and not isinstance(value, type)


def wrapper_of(compiled: Any) -> Any:
    """Return the only wrapper that AOTAutograd put round a graph.

    Raises:
        LookupError: There are others, or none.
    """
    wrapper = cell(compiled, "compiled_fn")
    if cell(compiled, "params_buffers_flat") or wrapper.__code__.co_name != "runtime_wrapper":
        raise LookupError(wrapper)
    return wrapper


def applied_function(method: Any) -> type[torch.autograd.Function] | None:
    """Return the class of autograd's functions that a call of ``method`` applies; None if none.

    Args:
        method: ``apply`` of a class: a method of Python's up to torch 2.13, from 2.14 on of C.
    """
    owner = getattr(method, "__self__", None)
    if (
        not isinstance(owner, type)
        or not issubclass(owner, torch.autograd.Function)
        or method.__name__ != "apply"
    ):
        return None
    own = (inspect.getattr_static(each, "apply") for each in (owner, torch.autograd.Function))
    return owner if next(own) is next(own) else None


def names_only(function: FunctionType, known: frozenset[str]) -> bool:
    """Whether generated code names nothing outside of what is known, but its own constants."""
    names = function.__code__.co_names
    return all(name in known or name.startswith("_dyn_dims_") for name in names)


def cell(function: Any, name: str) -> Any:
    """Return what a function knows by a name of the function round it.

    Raises:
        ValueError: It does not know the name.
    """
    position = function.__code__.co_freevars.index(name)
    return function.__closure__[position].cell_contents


@functools.cache
def _name_of_marks() -> str:
    """Return the attribute that AOTAutograd's wrapper sets: it has been called several things.

    Raises:
        LookupError: The wrapper of this release is not known.
    """
    from torch._functorch._aot_autograd import runtime_wrappers

    marked: Any = SimpleNamespace()
    known = vars(runtime_wrappers)
    names = ("mark_dynamo_propagated_dynamic_indices", "maybe_mark_dynamic_helper")
    (name,) = (name for name in names if name in known)
    known[name](marked, {0})
    ((name, dims),) = vars(marked).items()
    if dims != {0}:
        raise LookupError(name)
    return str(name)


def _is_plain(record: Any, inputs: int) -> bool:
    if len(record.input_info) != inputs:
        return False
    return bool(
        updates_are_plain(record)
        and record.grad_enabled_mutation is None
        and not any(each.requires_grad for each in record.output_info)
        and not record.tokens
        and not record.num_intermediate_bases
        and not record.is_rng_op_functionalized
        and not record.num_graphsafe_rng_states
        and all(type(each).__name__ == "PlainTensorMeta" for each in record.subclass_inp_meta)
        and all(
            type(each).__name__ == "PlainTensorMeta" for each in record.subclass_fw_graph_out_meta
        )
    )


def updates_are_plain(record: Any) -> bool:
    """Whether all that the graph does to inputs is to give elements new values, without gradients.

    Args:
        record: AOTAutograd's, of any graph.
    """
    copied = record.mutated_inp_runtime_indices
    for position, each in enumerate(record.input_info):
        if any(getattr(each, name) for name in _METADATA_MUTATIONS):
            return False
        # Where it needs a gradient, AOTAutograd decides who may see that it was updated.
        if each.mutates_data != (position in copied) or (each.mutates_data and each.requires_grad):
            return False
    return all(stream is None for stream in record.mutated_inp_stream_indices or ())


def _views(record: Any) -> Views | None:
    """Return which outputs are inputs or views of them; None for aliases of another kind."""
    found: list[tuple[int, int, Callable[[torch.Tensor], torch.Tensor] | None]] = []
    for position, each in enumerate(record.output_info):
        kind = each.output_type.name
        if kind in _PLAIN_OUTPUTS:
            continue
        if kind not in ("is_input", "alias_of_input") or each.dynamic_dims:
            return None
        if record.input_info[each.base_idx].requires_grad:
            return None  # the view would be recorded
        make = None
        if kind == "alias_of_input":
            steps = each.view_meta_sequence
            if steps is None or not torch._functorch.config.view_replay_for_aliased_outputs:
                return None  # AOTAutograd would look at how the graph made it
            if any(step.has_symbolic_inputs for step in steps.sequence):
                return None
            make = functools.partial(_replay, steps.sequence)
        found.append((position, each.base_idx, make))
    return tuple(found)


def views_of_updated_inputs() -> tuple[int, ...]:
    """Return the updated inputs whose views, returned by a graph, AOTAutograd makes by strides.

    It is asked while AOTAutograd compiles the graph. Where a view has symbolic sizes, AOTAutograd
    does not make it as the user did, but with the strides of what the graph returns; of an updated
    input these are the strides of the new value, which has no gaps where the input has some.
    """
    record = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    found: dict[int, None] = {}
    try:
        for each in getattr(record, "output_info", ()):
            if each.output_type.name != "alias_of_input":
                continue
            steps = each.view_meta_sequence
            replayed = steps is not None and not any(s.has_symbolic_inputs for s in steps.sequence)
            if record.input_info[each.base_idx].mutates_data and not replayed:  # type: ignore[union-attr]
                found[each.base_idx] = None
    except _UNKNOWN:
        return ()
    return tuple(found)


def returns_a_base(inputs: int) -> bool:
    """Return whether AOTAutograd takes what inputs are views of for one of them, as a result.

    It is asked while AOTAutograd compiles the graph. Of inputs that share memory, of which one is
    updated, it makes their base the only input; up to torch 2.11 a result that is one of them is
    the base then, in the base's shape.

    Args:
        inputs: How many the graph has.
    """
    record = getattr(torch._guards.TracingContext.try_get(), "fw_metadata", None)
    try:
        fewer = len(record.input_info) < inputs  # type: ignore[union-attr]
        kinds = [each.output_type.name for each in record.output_info]  # type: ignore[union-attr]
    except _UNKNOWN:
        return False
    return fewer and "is_input" in kinds


def _replay(steps: Any, base: torch.Tensor) -> torch.Tensor:
    """Make a view as AOTAutograd does."""
    made: torch.Tensor = torch._C._functionalization.apply_view_meta_sequence(base, steps)
    return made


__all__ = [
    "LOOKED_UP",
    "analyze_no_operators",
    "applied_function",
    "cell",
    "epilogue_instead_of_wrappers",
    "keep_saved_tensors",
    "marks_of",
    "names_only",
    "returns_a_base",
    "saved_outputs",
    "updates_are_plain",
    "views_of_updated_inputs",
    "within_idle",
    "wrapper_of",
    "wraps_no_more",
]
