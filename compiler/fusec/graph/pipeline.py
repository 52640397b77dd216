"""The passes over graphs, in order, in one table.

A compilation runs through the table once for each form that its graph takes on the way
(``GraphForm``) and applies the passes that are for that form.  What each of them
changed and how long it took is kept; any that is not needed for right results can be left out by
name (``Options.without``).

Adding a pass is one function in a file of this folder and one entry here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import fx

from fusec.devices import CPU
from fusec.errors import BadOption, FusecError
from fusec.graph.attention_formulas import write_attention_out
from fusec.graph.convolutions.channels_last import turn_channels_inward
from fusec.graph.convolutions.depthwise import divide_gradients
from fusec.graph.convolutions.one_pixel import multiply_single_pixels
from fusec.graph.losses.in_parts import compute_in_parts
from fusec.graph.products.alignment import align_products
from fusec.graph.products.bias import add_biases_later
from fusec.graph.products.expert_loops import trace_gradients
from fusec.graph.products.grouped import multiply_groups
from fusec.graph.products.onednn import multiply_by_onednn
from fusec.graph.products.products_of_halves import multiply_halves
from fusec.graph.products.wide_results import ask_for_wide_results
from fusec.graph.products.widened_halves import widen_products
from fusec.graph.refusals.byte_images import keep_interpolations_of_bytes
from fusec.graph.refusals.classes import check_classes
from fusec.graph.refusals.sizes import keep_promised_sizes
from fusec.graph.simplify.attention_blocks import drop_block_lists
from fusec.graph.simplify.attention_masks import simplify_attention_masks
from fusec.graph.simplify.attention_numbers import numbers_to_device
from fusec.graph.simplify.compared_halves import round_compared
from fusec.graph.simplify.cse import merge_common
from fusec.graph.simplify.extremes import compute_compared_once
from fusec.graph.simplify.few_strides import lay_out_few
from fusec.graph.simplify.gaps import view_what_has_gaps
from fusec.graph.simplify.idle_dropout import pass_input_on
from fusec.graph.simplify.inference_regions import record_nothing_instead
from fusec.graph.simplify.number_tensors import keep_digits
from fusec.graph.simplify.out_types import sum_in_the_type_of_out
from fusec.graph.simplify.random_seeds import replace_random
from fusec.graph.simplify.short_rows import bound_rows
from fusec.graph.simplify.written_attention import attend_at_once
from fusec.graph.simplify.zero_tensors import write_zeros_out
from fusec.graph.training.embedding_gradients import add_rows_in_place
from fusec.graph.training.exponent_inputs import compute_exponents_once, round_exponents
from fusec.graph.training.log_softmax import open_log_softmax
from fusec.graph.training.narrow_saved import widen_again
from fusec.graph.training.norm_inputs import round_norm_inputs, round_what_they_follow_from
from fusec.graph.training.old_values import copy_old_values
from fusec.graph.training.rematerialize import activate_again
from fusec.graph.training.rematerialize_inputless import compute_inputless_again
from fusec.graph.training.returned_inputs import drop_returned_inputs
from fusec.ir.verifier import require, verifies
from fusec.machine import using
from fusec.options import Options
from fusec.report import PassRun


class RequiredPass(FusecError, ValueError):
    """A pass was to be left out that results would be wrong without."""


class GraphForm(Enum):
    """What a graph is when passes look at it."""

    CAPTURED = "captured"  # as TorchDynamo hands it over: torch's functions, views, updates
    JOINT = "joint"  # functional and decomposed: forward and backward in one
    INFERENCE = "inference"  # functional and decomposed, without gradients
    SPLIT = "split"  # forward, and beside it backward
    PART = "part"  # any that is lowered next: forward, backward or inference


_FUNCTIONAL = frozenset({GraphForm.JOINT, GraphForm.INFERENCE})


@dataclass
class Subject:
    """What passes work on.

    Attributes:
        module: The graph; passes change it in place, or put another one here.
        options: How it is compiled.
        results: In a joint graph, how many of its outputs are forward's own.
        updated: Names of the inputs that the first outputs are copied into afterwards.
        backward: With the form ``SPLIT``, the backward graph.
        unwraps_subclasses: Whether AOTAutograd takes tensor subclasses apart before the graph.
    """

    module: fx.GraphModule
    options: Options
    results: int = 0
    updated: Collection[str] = ()
    backward: fx.GraphModule | None = None
    unwraps_subclasses: bool = False

    @property
    def interpreted(self) -> bool:
        """Whether what is on the CPU stands for what is on a GPU."""
        return self.options.abilities(CPU).many_programs


@dataclass(frozen=True)
class Pass:
    """One entry of the table.

    Attributes:
        name: What options and reports call it.
        run: Changes the graph, not the module's code; returns how many things it changed.
        forms: The forms of a graph that it is for.
        why: What it is good for, in one line.
        applies: Whether options ask for it.
        after: Passes that must stand before it in the table.
        required: Why results would be wrong without it; empty where it only makes them quicker.
    """

    name: str
    run: Callable[[Subject], int]
    forms: frozenset[GraphForm]
    why: str
    applies: Callable[[Options], bool] = lambda options: True
    after: tuple[str, ...] = ()
    required: str = ""


def _for_libraries(options: Options) -> bool:
    """Whether the libraries that the graph calls are those of the device that it is meant for."""
    return options.asked is None or options.asked.for_libraries


def _may_ask_for_wide_results(options: Options) -> bool:
    """Whether BLAS may write what is returned.

    Not from within a CUDA graph, whose memory is its own: it would be copied out, where a kernel
    that converts writes it to its place.
    """
    return not (options.matmul == "auto" or options.emulate_rounding or options.cuda_graphs)


def _compute_in_parts(subject: Subject) -> int:
    before, budget = subject.module, subject.options.budget
    assert budget is not None
    subject.module = compute_in_parts(before, budget)
    return int(subject.module is not before)


def _attend_at_once(subject: Subject) -> int:
    before = subject.module
    subject.module = attend_at_once(before, interpreted=subject.interpreted)
    return int(subject.module is not before)


def _replacing(function: Callable[[fx.GraphModule], fx.GraphModule]) -> Callable[[Subject], int]:
    """Return a pass of what returns another graph where there is something to change."""

    def run(subject: Subject) -> int:
        before, subject.module = subject.module, function(subject.module)
        return int(subject.module is not before)

    return run


def _dead_code(subject: Subject) -> int:
    before = len(subject.module.graph.nodes)
    subject.module.graph.eliminate_dead_code()
    return before - len(subject.module.graph.nodes)


def _rematerialize_constants(subject: Subject) -> int:
    assert subject.backward is not None
    return len(compute_inputless_again(subject.module, subject.backward, subject.results))


def _copy_old_values(subject: Subject) -> int:
    assert subject.backward is not None
    return copy_old_values(subject.module, subject.backward, subject.results, subject.updated)


PASSES: tuple[Pass, ...] = (
    Pass(
        "byte_interpolation",
        _replacing(keep_interpolations_of_bytes),
        frozenset({GraphForm.CAPTURED}),
        "interpolation of uint8 images stays ATen's, which rounds by integers",
        required="the decomposition rounds otherwise than eager",
    ),
    Pass(
        "classes",
        _replacing(check_classes),
        frozenset({GraphForm.CAPTURED}),
        "one_hot refuses classes that are not there, where tracing loses eager's check",
        required="a class that is not there would be a row of zeros, in silence",
    ),
    Pass(
        "promised_sizes",
        _replacing(keep_promised_sizes),
        frozenset({GraphForm.CAPTURED}),
        "what a program promises the size of is computed, even if nobody reads it",
        required="a promise that does not hold would be kept silent",
    ),
    Pass(
        "out_types",
        _replacing(sum_in_the_type_of_out),
        frozenset({GraphForm.CAPTURED}),
        "sums into a tensor of another type are added up in that type",
        required="integers would be those of the sum, not the sum of integers",
    ),
    Pass(
        "idle_dropout",
        _replacing(pass_input_on),
        frozenset({GraphForm.CAPTURED}),
        "dropout that drops nothing is its input, not a copy of it",
        required="an update of its result would not reach its input",
    ),
    Pass(
        "gaps",
        _replacing(view_what_has_gaps),
        frozenset({GraphForm.CAPTURED}),
        "memory with gaps that is written into is a view of memory without",
        required="what is returned would have other strides than eager's",
    ),
    Pass(
        "expert_loops",
        _replacing(trace_gradients),
        frozenset({GraphForm.CAPTURED}),
        "a mixture of experts is trained as one graph, not cut at every layer",
    ),
    Pass(
        "inference_regions",
        _replacing(record_nothing_instead),
        frozenset({GraphForm.CAPTURED}),
        "blocks of inference mode only switch autograd off",
        required="AOTAutograd fails on views in inference mode, and leaves torch broken",
    ),
    Pass(
        "attention_masks",
        _replacing(simplify_attention_masks),
        frozenset({GraphForm.CAPTURED}),
        "a mask that says nothing, or only 'causal', costs attention its fast kernels",
    ),
    Pass(
        "written_attention",
        _attend_at_once,
        frozenset({GraphForm.CAPTURED}),
        "attention as formulas have it keeps all scores in memory; ATen's does not",
        # the mode is guarded
        applies=lambda options: (
            not (options.emulate_rounding or torch.are_deterministic_algorithms_enabled())
        ),
    ),
    Pass(
        "losses_in_parts",
        _compute_in_parts,
        frozenset({GraphForm.CAPTURED}),
        "logits that are more than a budget of memory allows are never whole",
        applies=lambda options: options.memory_budget is not None,
    ),
    Pass(
        "zero_tensors",
        lambda s: write_zeros_out(s.module),
        _FUNCTIONAL,
        "tensors of zeros without memory, in forward gradients, are plain zeros",
        required="no kernel can read a tensor without memory",
    ),
    Pass(
        "number_tensors",
        lambda s: keep_digits(s.module),
        _FUNCTIONAL,
        "a tensor that torch makes of an integer for float64 is not rounded to float32 first",
        required="powers of integers would have float32's digits",
    ),
    Pass(
        "few_strides",
        lambda s: lay_out_few(s.module),
        _FUNCTIONAL,
        "a dimension of one element or none has the stride that eager gives it",
        required="strides of results would be other than eager's",
    ),
    Pass(
        "kernel_random",
        lambda s: replace_random(s.module),
        _FUNCTIONAL,
        "random numbers are computed in the kernels that use them, not read from memory",
        applies=lambda options: not options.eager_random,
    ),
    Pass(
        "norm_inputs",
        lambda s: round_norm_inputs(s.module),
        frozenset({GraphForm.JOINT}),
        "a norm's input is the same number for its statistics and for backward",
        required="of equal elements in half precision, gradients would be their rounding",
    ),
    Pass(
        "exponent_inputs",
        lambda s: round_exponents(s.module),
        frozenset({GraphForm.JOINT}),
        "what exponentials are of is the same number for forward and for backward",
        required="a gradient that is one at most would be the exponential of a rounding",
    ),
    Pass(
        "compared_halves",
        lambda s: round_compared(s.module),
        _FUNCTIONAL,
        "what is compared in half precision is rounded first, as in eager",
        required="the same computation would not be equal to itself",
    ),
    Pass(
        "widen_half_products",
        lambda s: widen_products(s.module, rounds_as_eager=s.options.emulate_rounding),
        _FUNCTIONAL,
        "half-precision products run in float32 where this processor is faster at that",
        applies=_for_libraries,
        after=("norm_inputs", "exponent_inputs", "compared_halves"),
    ),
    Pass(
        "bias_epilogue",
        lambda s: add_biases_later(s.module),
        _FUNCTIONAL,
        "a bias is added by the kernel that reads the product, not in a pass of its own",
        applies=_for_libraries,
    ),
    Pass(
        "groups_of_rows",
        lambda s: multiply_groups(s.module),
        _FUNCTIONAL,
        "the host waits in no layer of a mixture of experts for how many rows each expert has",
        applies=_for_libraries,
    ),
    Pass(
        "half_products",
        lambda s: multiply_halves(s.module),
        _FUNCTIONAL,
        "products of what was half precision before it was widened move half the bytes",
        applies=lambda options: _for_libraries(options) and not options.emulate_rounding,
        after=("widen_half_products",),
    ),
    Pass(
        "attention_blocks",
        lambda s: drop_block_lists(s.module),
        _FUNCTIONAL,
        "attention without a block mask makes no lists of blocks, and saves none",
    ),
    Pass(
        "attention_numbers",
        lambda s: numbers_to_device(s.module),
        _FUNCTIONAL,
        "a number that attention's function captures is read by the kernel, not by the host",
    ),
    Pass(
        "dead_code",
        _dead_code,
        frozenset({GraphForm.JOINT}),
        "what nobody reads is not saved for backward",
    ),
    Pass(
        "row_bounds",
        lambda s: bound_rows(s.module, interpreted=s.interpreted),
        _FUNCTIONAL,
        "rows whose symbolic length fits into registers now are guarded to go on doing so",
    ),
    Pass(
        "channels_last",
        lambda s: turn_channels_inward(s.module),
        _FUNCTIONAL,
        "convolutions and their gradients are faster with the channels innermost",
        applies=_for_libraries,
    ),
    Pass(
        "pad_products",
        lambda s: align_products(s.module, kernels=s.options.matmul != "extern"),
        _FUNCTIONAL,
        "products whose rows BLAS is slow at are padded",
        applies=_for_libraries,
        after=("channels_last",),
    ),
    Pass(
        "pointwise_convolutions",
        lambda s: multiply_single_pixels(s.module),
        _FUNCTIONAL,
        "convolutions of single pixels are products of matrices",
        applies=_for_libraries,
        after=("channels_last",),
    ),
    Pass(
        "accumulate_rows",
        lambda s: add_rows_in_place(s.module),
        _FUNCTIONAL,
        "an embedding's gradient is added to the one that is there, not to zeros first",
        applies=_for_libraries,
    ),
    Pass(
        "depthwise_gradients",
        lambda s: divide_gradients(s.module, interpreted=s.interpreted),
        _FUNCTIONAL,
        "the image's gradient of a depthwise convolution gets a kernel of its own",
    ),
    Pass(
        "returned_inputs",
        # of tensor subclasses, AOTAutograd's record is of what is inside of them
        lambda s: 0 if s.unwraps_subclasses else drop_returned_inputs(s.module),
        frozenset({GraphForm.INFERENCE}),
        "an updated input that is also returned is one result of a kernel, not two",
    ),
    Pass(
        "log_softmax",
        lambda s: open_log_softmax(s.module),
        frozenset({GraphForm.JOINT}),
        "backward of a log-softmax needs two numbers a row, not the whole result",
    ),
    Pass(
        "cse",
        lambda s: merge_common(s.module.graph),
        _FUNCTIONAL,
        "equal computations are done once",
        after=("log_softmax",),
    ),
    Pass(
        "compare_once",
        lambda s: compute_compared_once(s.module),
        _FUNCTIONAL,
        "what is compared with its own extremes is the same number for all who read it",
        after=("cse",),
        required="computed twice, no element need equal its own maximum",
    ),
    Pass(
        "exponents_once",
        lambda s: compute_exponents_once(s.module),
        frozenset({GraphForm.JOINT}),
        "what exponentials are of is not computed again from what is rounded",
        after=("cse", "exponent_inputs"),
        required="a gradient that is one at most would be the exponential of a rounding",
    ),
    Pass(
        "rematerialize_upcasts",
        lambda s: widen_again(s.module, s.results),
        frozenset({GraphForm.JOINT}),
        "backward converts to wider types again, so that the narrow tensor is saved",
        after=("cse",),
    ),
    Pass(
        "rematerialize_activations",
        lambda s: activate_again(s.module, s.results, s.updated),
        frozenset({GraphForm.JOINT}),
        "backward computes activations again from what is saved anyway",
        after=("cse", "rematerialize_upcasts"),
    ),
    Pass(
        "kept_for_norm_inputs",
        lambda s: round_what_they_follow_from(s.module),
        frozenset({GraphForm.SPLIT}),
        "a norm's input that backward computes again follows from the same numbers",
        after=("norm_inputs",),
        required="of equal elements in half precision, gradients would be their rounding",
    ),
    Pass(
        "rematerialize_constants",
        _rematerialize_constants,
        frozenset({GraphForm.SPLIT}),
        "what follows from no input is computed in backward, not saved",
    ),
    Pass(
        "old_values",
        _copy_old_values,
        frozenset({GraphForm.SPLIT}),
        "backward reads what an updated input was before, as autograd's own copy of it",
        required="backward would read the new values, and raise where eager does not",
    ),
    Pass(
        "attention_formulas",
        lambda s: write_attention_out(s.module, lambda d: s.options.abilities(d).attention),
        frozenset({GraphForm.PART}),
        "attention with the user's functions is kernels where it has none of its own",
    ),
    Pass(
        "onednn_products",
        lambda s: multiply_by_onednn(s.module),
        frozenset({GraphForm.PART}),
        "oneDNN multiplies some shapes faster than BLAS",
        applies=_for_libraries,
    ),
    Pass(
        "wide_products",
        lambda s: ask_for_wide_results(s.module),
        frozenset({GraphForm.PART}),
        "BLAS writes float32 where nothing else is made of a half-precision product",
        applies=_may_ask_for_wide_results,
        after=("onednn_products",),
    ),
)


def run_passes(form: GraphForm, subject: Subject) -> tuple[PassRun, ...]:
    """Run the passes for a form of a graph on it, in order.

    Args:
        form: What the graph is.
        subject: The graph and what passes need to know of it; changed in place.

    Returns:
        What each pass did, those that found nothing included.
    """
    with using(subject.options.facts):
        runs = tuple(_run(form, subject))
    if any(run.changes for run in runs):
        for module in filter(None, (subject.module, subject.backward)):
            module.recompile()  # once for all passes: none of them runs it
    return runs


def _run(form: GraphForm, subject: Subject) -> Iterator[PassRun]:
    for each in PASSES:
        if form not in each.forms or not each.applies(subject.options):
            continue
        if each.name in subject.options.without:
            continue
        started = time.perf_counter()
        changes = each.run(subject)
        if changes and form is not GraphForm.CAPTURED and verifies():
            from fusec.graph.verifier import graph_problems

            for module in (subject.module, subject.backward):
                require(f"the pass {each.name}", graph_problems(module) if module else [])
        yield PassRun(each.name, form.value, changes, time.perf_counter() - started)


def format_passes(runs: Sequence[PassRun], without: Collection[str] = ()) -> str:
    """Return what passes did as a table: those that changed something, then the names of the rest.

    Args:
        runs: What ``run_passes`` returned, of all forms of a graph.
        without: Passes that were left out.
    """
    reasons = {each.name: each.why for each in PASSES}
    found = [run for run in runs if run.changes]
    rows = [("pass", "graph", "changes", "ms", "what it is good for")] if found else []
    rows += [
        (r.name, r.form, str(r.changes), f"{1e3 * r.seconds:.1f}", reasons[r.name]) for r in found
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(4)] if rows else []
    lines = [
        f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}  {d:>{widths[3]}}  {e}"
        for a, b, c, d, e in rows
    ]
    named = {run.name for run in found}
    nothing = dict.fromkeys(run.name for run in runs if run.name not in named)
    if nothing:
        lines.append(f"found nothing to change: {', '.join(nothing)}")
    if without:
        lines.append(f"left out: {', '.join(without)}")
    return "\n".join(lines)


def check_without(names: Iterable[str]) -> None:
    """Raise if passes cannot be left out.

    Raises:
        BadOption: There is no such pass.
        RequiredPass: Results would be wrong without it.
    """
    known = {each.name: each for each in PASSES}
    optional = sorted(name for name, each in known.items() if not each.required)
    for name in names:
        if name not in known:
            raise BadOption("without", name, optional)
        if known[name].required:
            raise RequiredPass(
                f"the pass {name} cannot be left out",
                f"{known[name].required}; what can be: {', '.join(optional)}",
            )


__all__ = [
    "PASSES",
    "GraphForm",
    "Pass",
    "RequiredPass",
    "Subject",
    "check_without",
    "format_passes",
    "run_passes",
]
