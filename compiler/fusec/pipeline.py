"""The pipeline: every stage of a graph's compilation, in order, in one list.

``capture`` and ``decompose`` happen before, in torch's own hands (TorchDynamo and AOTAutograd);
``capture/backend.py`` reports them.  Everything that wants to see or time a stage (printing, the
panel, saved reports, verification) is an observer of ``run_stages``.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from torch import fx

from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.codegen.host_program import HostProgram, emit_host
from fusec.codegen.host_values import DTYPES, PROVIDED
from fusec.ir.body_verifier import Problem
from fusec.ir.equality import body_key
from fusec.ir.node import Recorder, recording
from fusec.ir.printer import format_program
from fusec.ir.program import Compute, Program
from fusec.ir.verifier import check_program, order_problems, require, verifies
from fusec.kernel_source import Generated, KernelSource
from fusec.lower import lower_graph
from fusec.machine import MachineFacts, using
from fusec.options import Options
from fusec.report import Stage
from fusec.rule_text import loop_rule
from fusec.schedule import Schedule, products_of, schedule_program, small_products
from fusec.schedule.loop_overrides import with_loop_overrides
from fusec.schedule.overrides import Overrides
from fusec.schedule.rules import overrides_of
from fusec.target_api.base import LibraryTarget, Target
from fusec.target_api.registry import find_target


@dataclass
class Compilation:
    """What the stages pass on, each adding its own result.

    Attributes:
        module: The ATen-level graph.
        options: How to compile.
        taken: Kernel names in use; new ones are added.
        recorder: Interns the nodes of all stages.
        program: After ``lower``.
        schedule: After ``schedule``.
        kernels: After ``emit``: by name, in order; those that are built are written.
        leaders: After ``emit``: each kernel's name to the first that is equal to it but for names.
        host: After ``emit``.
        overrides: What somebody wants of the fusion, whatever the heuristics say.
        updated: The graph's inputs that its first outputs are copied into when it is done.
        saved: Positions of the outputs that nobody but the backward graph sees.
        written: Told of each kernel that has to be built, as soon as it is written.
        machine: What kernels are made for.
        choose_products: What schedules a program with ``matmul="auto"``, where the machine is
            asked which products are to be kernels; ``tune.asked``.
        writing: Held while a kernel is written, by whoever first reads it: the recorder is shared.
    """

    module: fx.GraphModule
    options: Options
    taken: set[str]
    recorder: Recorder = field(default_factory=Recorder)
    program: Program | None = None
    schedule: Schedule | None = None
    kernels: dict[str, Generated] = field(default_factory=dict)
    leaders: dict[str, str] = field(default_factory=dict)
    host: HostProgram | None = None
    overrides: Overrides = field(default_factory=Overrides)
    updated: tuple[str, ...] = ()
    saved: tuple[int, ...] = ()
    written: Callable[[KernelSource], object] = lambda kernel: None
    choose_products: Callable[..., Schedule] | None = None
    writing: threading.RLock = field(default_factory=threading.RLock)
    machine: MachineFacts = field(init=False)

    def __post_init__(self) -> None:
        """Take the machine as it is now: kernels may be written long after."""
        self.machine = self.options.facts

    @property
    def by_pointers(self) -> dict[str, bool]:
        """Whether each kernel is a function that takes pointers, by name."""
        return {name: self.takes_pointers(name) for name in self.kernels}

    def takes_pointers(self, name: str) -> bool:
        """Whether a kernel is a function that takes pointers."""
        return isinstance(find_target(self.kernels[name].target), LibraryTarget)

    @property
    def scheduled(self) -> Program:
        """The program as it will run."""
        assert self.schedule is not None
        return self.schedule.program


def lower(state: Compilation) -> Callable[[], str]:
    """Turn the graph into a loop-level program."""
    program = state.program = lower_graph(
        state.module,
        emulate_rounding=state.options.emulate_rounding,
        abilities=state.options.abilities,
        recorder=state.recorder,
    )
    return lambda: format_program(program)


def schedule(state: Compilation) -> Callable[[], str]:
    """Decide which computations share a kernel and how its loops run."""
    assert state.program is not None
    products = products_of(state.program)
    options = state.options
    if options.apart or options.together or options.loops:
        rules = overrides_of(state.program, options.apart, options.together, options.loops)
        state.overrides = state.overrides.over(rules)
    if state.options.matmul == "auto":
        assert state.choose_products is not None
        result = state.choose_products(state.program, products, overrides=state.overrides)
    else:
        if state.options.matmul == "small":
            products = small_products(state.program, products)
        result = schedule_program(state.program, state.overrides, products, state.updated)
    if state.overrides.loops:
        result = with_loop_overrides(state.program, result, state.overrides.loops)
    state.schedule = result
    return lambda: str(result)


def emit(state: Compilation) -> Callable[[], str]:
    """Write the kernels and the host program."""
    program = state.scheduled
    steps = []
    prefix = state.options.name
    alone = sum(isinstance(step, Compute) for step in program.steps) == 1
    for step in program.steps:
        if isinstance(step, Compute):
            # the only kernel of what the user named carries just that name
            label = "" if prefix and alone else step.label
            if state.saved:  # of a relu's gradient a forward kernel has the mask alone
                label = without_gradients(label)
            step = replace(step, name=kernel_name(label, prefix, state.taken))
        steps.append(step)
    program = replace(program, steps=tuple(steps))
    computes = {step.name: step for step in steps if isinstance(step, Compute)}
    state.leaders = find_leaders(computes.values(), program, state.options)
    state.kernels = {name: _generated(step, program, state) for name, step in computes.items()}
    # Those that are built are written now: the compilers run while the others are.
    for name in dict.fromkeys(state.leaders.values()):
        state.written(state.kernels[name].source)
    state.schedule = replace(state.schedule, program=program)  # type: ignore[type-var]
    host = state.host = emit_host(program, state.by_pointers)
    sources = list(state.kernels.values())
    return lambda: "\n\n".join([host.text, *(_with_plan(kernel.source) for kernel in sources)])


def _with_plan(source: KernelSource) -> str:
    """Return a kernel's text below what was decided of it."""
    lines = [f"  {line}" for line in source.plan.splitlines()]
    return "\n".join([f"{source.name} was decided so:", *lines, "", source.text])


def _generated(step: Compute, program: Program, state: Compilation) -> Generated:
    """Return a kernel that is written when its source is first read."""

    def write(plan: str) -> KernelSource:
        _, strategy, settings = loop_rule(f"{step.name}: {plan}") if plan else ("", "", ())
        asked = replace(
            step, strategy=strategy or step.strategy, settings=(*step.settings, *settings)
        )
        with state.writing, recording(state.recorder), using(state.machine):
            return emit_kernel(asked, program, state.options)

    return Generated(step.name, kernel_target(step, program, state.options).name, write)


def find_leaders(computes: Iterable[Compute], program: Program, options: Options) -> dict[str, str]:
    """Return, by each kernel's name, the first one that is equal to it but for names."""
    found: dict[str, str] = {}
    leaders = {}
    for step in computes:
        arguments = argument_buffers(step.body)
        sizes = body_sizes(step.body, program.buffers)
        key = body_key(step.body, program.buffers, arguments, sizes)
        target = kernel_target(step, program, options)
        chosen = f"{target.name} {step.strategy} {step.settings}"
        leaders[step.name] = found.setdefault(f"{chosen}\n{key}", step.name)
    return leaders


def kernel_target(step: Compute, program: Program, options: Options) -> Target:
    """Return the target that a kernel is written for: by the device that its tensors are on."""
    return options.target_for(program.buffers[step.writes()[0]].device.type)


def emit_kernel(step: Compute, program: Program, options: Options) -> KernelSource:
    """Write one kernel."""
    return kernel_target(step, program, options).emit(step, program.buffers)


def _problems(stage: str, state: Compilation) -> list[Problem]:
    if stage == "lower":
        assert state.program is not None
        return check_program(state.program)
    program = state.scheduled
    found = check_program(program)
    if stage != "emit" or found:
        return found
    from fusec.codegen.verifier import host_problems, kernel_problems

    for step in program.steps:
        # those that are equal to another but for names are written when somebody reads them
        if isinstance(step, Compute) and state.leaders[step.name] == step.name:
            found += kernel_problems(step, state.kernels[step.name].source, program.buffers)
    assert state.host is not None
    return found + host_problems(state.host, {*state.kernels, *PROVIDED, *DTYPES})


STAGES: tuple[tuple[str, Callable[[Compilation], Callable[[], str]]], ...] = (
    ("lower", lower),
    ("schedule", schedule),
    ("emit", emit),
)

Observer = Callable[[Stage], None]


def run_stages(state: Compilation, observe: Observer | None = None) -> list[Stage]:
    """Run all stages on ``state``; return what each yielded and how long it took."""
    done = []
    with recording(state.recorder), using(state.machine):
        for name, function in STAGES:
            started = time.perf_counter()
            text = function(state)
            done.append(Stage(name, time.perf_counter() - started, text))
            if verifies():
                require(name, _problems(name, state))
            elif name == "schedule":
                require(name, list(order_problems(state.scheduled)))
            if observe is not None:
                observe(done[-1])
    return done


# -- names --------------------------------------------------------------------------------

_PLAIN_WORDS = frozenset(
    "add sub mul div neg clone to convert_element_type expand view permute copy "
    "full alias maximum minimum output exp sum rsub unsqueeze pow sqrt rsqrt reciprocal "
    "lift_fresh lift_fresh_copy eq ne lt le gt ge logical_and logical_or logical_not bitwise_and "
    "bitwise_or bitwise_not checked".split()
)
# torch's names for what nobody calls so
_SAID = {"convert_element_type": "cast", "lift_fresh_copy": "tensor", "lift_fresh": "tensor"}


def without_gradients(label: str) -> str:
    """Return a label less the operators that compute gradients, where there are others."""
    words = [word for word in label.split(" + ") if not word.endswith("_backward")]
    return " + ".join(words) or label


def kernel_name(label: str, prefix: str, taken: set[str]) -> str:
    """Return a name that says what a kernel does, valid in every target language, and free.

    Args:
        label: The operators, joined by ``+``.
        prefix: The user's name for the cell or function; may be empty.
        taken: Names in use; the result is added.
    """
    words = [w.strip() for w in label.split("+")]
    telling = [w for w in words if w and w not in _PLAIN_WORDS]
    chosen = telling[-3:] if telling else [w for w in words if w][-3:]
    chosen = [_SAID.get(word, word) for word in chosen]
    name = "_".join(([prefix] if prefix else []) + (chosen or ([] if prefix else ["kernel"])))
    name = re.sub(r"\W+", "_", name)[:48].strip("_")
    if not name or name[0].isdigit():
        name = f"kernel_{name}"
    if not prefix and "_" not in name:
        name = f"{name}_kernel"  # `exp`, `div` and `index` are functions of the C library
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    taken.add(candidate)
    return candidate
