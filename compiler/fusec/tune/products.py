"""Which matrix products become kernels: BLAS and separate kernels against one kernel, measured.

No rule knows when a kernel with its epilogue beats BLAS followed by a kernel for the
epilogue; both are a few percent apart, either way.  So the first compilation on a GPU runs both on
random data of the very shapes, for some tenths of a second each shape, and the disk cache remembers
who won.  No matrix product is taken that was not measured to be faster; products of a vector with
contiguous rows are sums by rule (``schedule.choices_products.is_vector_product``).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from fusec.codegen.common.product_axes import product_axes
from fusec.codegen.common.signatures import argument_buffers
from fusec.devices import is_gpu
from fusec.ir.equality import body_key
from fusec.ir.program import Compute, Extern, Program
from fusec.report import FusionDecision
from fusec.schedule import Schedule, schedule_program
from fusec.schedule.overrides import Overrides
from fusec.target_api.base import PythonTarget
from fusec.target_api.registry import default_target
from fusec.tune.product_choice import ProductChoice
from fusec.version import __version__

KIND = "products"
FILE = "choice.json"
SCHEMA = 2  # one more where the candidates change: what lost may win now
# Seconds of measuring for each graph; what they do not suffice for stays with BLAS.
GRAPH_SECONDS = 20.0
# From so many products on, float32 without tensor cores is not even tried.
EXACT_WORK = 1 << 24
# What a kernel has to save, to be taken: less is within what clocks and neighbors do.
WORTH = 0.02


Judge = Callable[[Compute, Program], ProductChoice]


def choose_products(
    program: Program,
    products: Collection[str],
    judge: Judge | None = None,
    overrides: Overrides | None = None,
) -> Schedule:
    """Schedule a program; what is measured to be faster as a kernel becomes one.

    Args:
        program: The lowered program.
        products: The calls that could become kernels.
        judge: Decides for one fused product; measures by default.
        overrides: What somebody wants together or apart.
    """
    on_gpu = any(
        isinstance(step, Extern)
        and step.name in products
        and is_gpu(program.buffers[step.outputs[0]].device)
        for step in program.steps
    )
    if judge is None and not on_gpu:
        return schedule_program(program, overrides)
    judge = judge or Measuring(GRAPH_SECONDS)
    wanted = set(products)
    odd = {s.name for s in program.steps if isinstance(s, Extern) and s.odd_rows}
    refused: dict[str, str] = {}
    # Without a product that BLAS keeps, its neighbors may fuse in another way: look again.
    while True:
        result = schedule_program(_with_reasons(program, refused), overrides, wanted)
        found = {
            step.name: judge(step, result.program)
            for step in result.program.steps
            if isinstance(step, Compute) and step.body.products and not step.body.attends
        }
        # Their operands are not padded: BLAS would take several times as long.
        for name in [name for name in odd & found.keys() if not found[name].strategy]:
            found[name] = ProductChoice("BLAS is slow to write its rows (by rule)")
        losers = {
            name: choice.reason
            for name, choice in found.items()
            if not choice.strategy and name not in odd
        }
        if not losers:
            return _chosen(result, found, refused)
        refused |= losers
        wanted -= set(losers)


def _with_reasons(program: Program, refused: Mapping[str, str]) -> Program:
    steps = tuple(
        replace(step, reason=refused[step.name])
        if isinstance(step, Extern) and step.name in refused
        else step
        for step in program.steps
    )
    return replace(program, steps=steps)


def _chosen(
    result: Schedule, found: Mapping[str, ProductChoice], refused: Mapping[str, str]
) -> Schedule:
    steps = tuple(
        replace(step, strategy=found[step.name].strategy, settings=found[step.name].settings)
        if isinstance(step, Compute) and step.name in found
        else step
        for step in result.program.steps
    )
    names = {step.name: step.label for step in steps if isinstance(step, Compute)}
    decisions = [
        FusionDecision(name, name, True, f"{names[name]}: {choice.reason}")
        for name, choice in found.items()
    ]
    decisions += [FusionDecision(name, name, False, reason) for name, reason in refused.items()]
    program = replace(result.program, steps=steps)
    return replace(result, program=program, decisions=(*result.decisions, *decisions))


class Measuring:
    """Decides by measuring, until its time is up; what the disk cache knows costs none of it.

    Args:
        seconds: For all products together, compiling the candidates included.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, step: Compute, program: Program) -> ProductChoice:
        """Return what is faster for one product."""
        started = time.perf_counter()
        try:
            return measured(step, program, may_measure=self.seconds > 0)
        except Exception as error:  # BLAS is always right
            return ProductChoice(f"BLAS, for measuring failed: {type(error).__name__}: {error}")
        finally:
            self.seconds -= time.perf_counter() - started


def measured(step: Compute, program: Program, *, may_measure: bool = True) -> ProductChoice:
    """Return what is faster for one product, from the disk cache or by measuring now."""
    names = argument_buffers(step.body)
    buffers = [program.buffers[name] for name in names]
    sizes = [size.constant for b in buffers for size in (*b.shape, *b.strides)]
    if None in sizes:
        return ProductChoice(
            "its sizes change from call to call, and BLAS chooses by them each time"
        )
    axes = product_axes(step.body)
    exact = axes.node.args[0].dtype == torch.float32 and axes.node.precision == "ieee"
    rows, columns, inner = (
        (axis.size.constant or 0) if axis.size is not None else 1
        for axis in (axes.row, axes.column, axes.inner)
    )
    if exact and min(rows, columns) > 64 and rows * columns * inner > EXACT_WORK:
        return ProductChoice("float32 without tensor cores runs best in BLAS")
    from fusec.cache import default_store

    target = default_target(program.buffers[step.writes()[0]].device.type)
    assert isinstance(target, PythonTarget), "only such a target multiplies"
    store, key = default_store(), _key(step, program, names, target)
    entry = store.get(KIND, key)
    if entry is not None:
        known = json.loads(entry.read_text(FILE))
        settings = tuple((name, int(value)) for name, value in known["settings"])
        return ProductChoice(known["reason"], known["strategy"], settings)
    if not may_measure:
        return ProductChoice(
            "BLAS, unmeasured: other products of the graph took the time for measuring"
        )
    from fusec.tune.products_race import race

    candidates = target.product_candidates(step.body, program.buffers)
    choice = race(step, program, candidates, WORTH, target)
    if choice is None:
        return ProductChoice(
            "BLAS, unmeasured: there was no memory for it, or a capture was under way"
        )
    record = {"reason": choice.reason, "strategy": choice.strategy, "settings": choice.settings}
    store.put(KIND, key, {FILE: json.dumps(record).encode()})
    return choice


def _key(
    step: Compute, program: Program, names: Collection[str], target: PythonTarget
) -> dict[str, Any]:
    """Return what a choice depends on: the computation, the GPU, and whose code runs on it."""
    text = body_key(step.body, program.buffers, tuple(names), ())
    device = program.buffers[step.writes()[0]].device
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "schema": SCHEMA,
        "body": hashlib.sha256(text.encode()).hexdigest(),
        "gpu": f"{torch.cuda.get_device_name(device)} sm_{major}{minor}",
        "versions": [torch.__version__, target.version(), __version__],
    }


__all__ = ["choose_products", "measured"]
