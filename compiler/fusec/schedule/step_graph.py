"""A program as a graph that can be drawn: its steps, what flows between them, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fusec.ir.printer import format_body
from fusec.ir.program import Compute, Extern, Program, Step
from fusec.report import FusionDecision, SourceLine
from fusec.schedule.rules import numbered, step_label

Kind = Literal["input", "kernel", "extern", "output"]


@dataclass(frozen=True)
class GraphNode:
    """One step of a program, or one of its inputs or outputs.

    Attributes:
        name: Unique in its graph; for a computation before fusion, what decisions call it.
        label: For people: ``gelu``, ``aten.mm``, or the user's name of a tensor.
        kind: What it is; a ``kernel`` is a computation that becomes (a part of) a kernel.
        kernels: The kernels that compute it; several where it is computed at each use.
        where: The user's lines.
        detail: Its loops, or why it is no kernel.
    """

    name: str
    label: str
    kind: Kind
    kernels: tuple[str, ...] = ()
    where: tuple[SourceLine, ...] = ()
    detail: str = ""


@dataclass(frozen=True)
class GraphEdge:
    """A tensor that one node hands to another through memory.

    Attributes:
        source: Name of the node that writes it.
        target: Name of the node that reads it.
        tensor: What the user calls it.
        bytes: What it takes; -1 where a size is symbolic.
    """

    source: str
    target: str
    tensor: str
    bytes: int


@dataclass(frozen=True)
class StepGraph:
    """The steps of a program and what flows between them, in the order in which they run."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]

    def node(self, name: str) -> GraphNode:
        """Return a node by name."""
        return next(node for node in self.nodes if node.name == name)

    @property
    def traffic(self) -> int:
        """Bytes that its steps read and write; -1 where a size is symbolic."""
        computed = {node.name for node in self.nodes if node.kind in ("kernel", "extern")}
        reads = {
            (e.target, e.tensor, e.source): e.bytes for e in self.edges if e.target in computed
        }
        writes = {(e.source, e.tensor): e.bytes for e in self.edges if e.source in computed}
        counts = [*reads.values(), *writes.values()]
        return -1 if any(count < 0 for count in counts) else sum(counts)


@dataclass(frozen=True)
class FusionView:
    """What fusion did to one part of a graph.

    Attributes:
        before: As lowered: a node a computation.
        after: As it runs: a node a kernel or call.
        decisions: Every fusion made or refused.
    """

    before: StepGraph
    after: StepGraph
    decisions: tuple[FusionDecision, ...]


def fusion_view(
    lowered: Program, scheduled: Program, decisions: Sequence[FusionDecision]
) -> FusionView:
    """Return what fusion did, to be drawn and read.

    Args:
        lowered: Before fusion.
        scheduled: After it, with the kernels' final names.
        decisions: Of the schedule.
    """
    lowered = _with_its_products(lowered, scheduled)
    before = live_steps(lowered)
    kernels = kernels_of(before, scheduled)
    first = step_graph(lowered, before, kernels)
    own = {step.name: (step.name,) for step in scheduled.steps if isinstance(step, Compute)}
    second = step_graph(scheduled, scheduled.steps, own, lowered)
    return FusionView(first, second, tuple(decisions))


def _with_its_products(lowered: Program, scheduled: Program) -> Program:
    """Return the program with the matrix products that became kernels as computations."""
    from fusec.schedule.plan import products_of, with_products

    called = {b for s in scheduled.steps if isinstance(s, Extern) for b in s.writes()}
    names = set(products_of(lowered))
    taken = {s.name for s in lowered.steps if s.name in names and not called & set(s.writes())}
    return with_products(lowered, taken)


def live_steps(program: Program) -> tuple[Step, ...]:
    """Return the steps whose results somebody reads; the others are dropped before fusion."""
    from fusec.schedule.plan import drop_dead

    return drop_dead(program).steps


def kernels_of(steps: Sequence[Step], scheduled: Program) -> dict[str, tuple[str, ...]]:
    """Return, for each computation before fusion, the kernels that compute it.

    What is written to memory belongs to the kernel that writes it; what is not, to the kernels
    of those who read it.  A kernel that leaves sums of pieces for another to add up has a share in
    what the other writes.
    """
    writer = {
        store.made or store.buffer: step.name
        for step in scheduled.steps
        if isinstance(step, Compute)
        for store in step.body.stores
    }
    readers: dict[str, list[str]] = {}
    for step in steps:
        for buffer in step.reads():
            readers.setdefault(buffer, []).append(step.name)
    leaves = {
        store.buffer: kernel.name
        for kernel in scheduled.steps
        if isinstance(kernel, Compute)
        for store in kernel.body.sums
    }
    begun = {
        kernel.name: [leaves[b] for b in kernel.reads() if b in leaves]
        for kernel in scheduled.steps
        if isinstance(kernel, Compute)
    }
    found: dict[str, tuple[str, ...]] = {}
    for step in reversed(steps):
        if not isinstance(step, Compute):
            continue
        own = [writer[b] for b in step.writes() if b in writer]
        own = [each for kernel in own for each in (*begun[kernel], kernel)]
        if not own:
            own = [k for b in step.writes() for r in readers.get(b, ()) for k in found.get(r, ())]
        found[step.name] = tuple(dict.fromkeys(own))
    return found


def step_graph(
    program: Program,
    steps: Sequence[Step],
    kernels: Mapping[str, tuple[str, ...]],
    lowered: Program | None = None,
) -> StepGraph:
    """Return steps of a program as a graph.

    Args:
        program: Where the buffers are described.
        steps: In order; those that no user asked for (constants, seeds) count as inputs.
        kernels: Step name to the kernels that compute it.
        lowered: The program before fusion, which describes what is written over other tensors.
    """
    lowered = lowered or program
    nodes: dict[str, GraphNode] = {}
    names = {name: tensor_name(program, name) for name in program.buffers}
    writers: dict[str, str] = {}
    edges: dict[tuple[str, str, str], GraphEdge] = {}
    for name in program.inputs:
        if name in program.buffers:
            writers[name] = f"input {name}"

    def edge(buffer: str, target: str) -> None:
        source = writers.get(buffer)
        if source is None or source == target:
            return
        if source.startswith("input ") and source not in nodes:
            nodes[source] = GraphNode(source, names[buffer], "input")
        size = program.buffers[buffer].bytes
        edges.setdefault((source, target, buffer), GraphEdge(source, target, names[buffer], size))

    for step in steps:
        if isinstance(step, Extern) and step.is_plumbing:
            name = f"input {step.name}"
            nodes[name] = GraphNode(name, step.reason, "input")
            writers |= dict.fromkeys(step.writes(), name)
            continue
        for buffer in step.reads():
            edge(buffer, step.name)
        nodes[step.name] = _node(step, kernels)
        writers |= dict.fromkeys(step.writes(), step.name)
        stores = step.body.stores if isinstance(step, Compute) else ()
        for store in stores:
            if store.made and store.buffer not in program.inputs:
                names[store.buffer] = tensor_name(lowered, store.made)
    for buffer in sorted(program.output_buffers()):
        if buffer in program.buffers and writers.get(buffer):
            name = f"output {buffer}"
            nodes[name] = GraphNode(name, names[buffer], "output")
            edge(buffer, name)
    return StepGraph(tuple(nodes.values()), tuple(edges.values()))


def _node(step: Step, kernels: Mapping[str, tuple[str, ...]]) -> GraphNode:
    label = step_label(step)
    if isinstance(step, Compute):
        where = step.body.origins()
        return GraphNode(
            step.name, label, "kernel", kernels.get(step.name, ()), where, format_body(step.body)
        )
    where = (step.where,) if step.where is not None else ()
    return GraphNode(step.name, label, "extern", (), where, step.reason)


def tensor_name(program: Program, buffer: str) -> str:
    """Return what the user calls a buffer."""
    return program.buffers[buffer].hint or buffer


def node_names(view: FusionView) -> dict[str, str]:
    """Return what to call each node before fusion: its label, numbered where there are several."""
    plain = {node.name: node.label for node in view.before.nodes}
    computed = [(n.name, n.label) for n in view.before.nodes if n.kind in ("kernel", "extern")]
    return plain | numbered(computed)


def rule_for(view: FusionView, first: str, second: str) -> str:
    """Return two computations as the options ``apart`` and ``together`` name them."""
    names = node_names(view)
    return ":".join(names[name].replace(" #", "#") for name in (first, second))


def why(view: FusionView, first: str, second: str) -> str:
    """Say why two computations of ``view.before`` share a kernel, or why they do not.

    Args:
        view: What fusion did.
        first: A node's name.
        second: Another one's.

    Returns:
        A sentence or two.
    """
    a, b = view.before.node(first), view.before.node(second)
    for node in (a, b):
        if node.kind in ("input", "output"):
            return f"{node.label} is an {node.kind}: it has to be in memory."
    shared = [kernel for kernel in a.kernels if kernel in b.kernels]
    if shared:
        reasons = _reasons(view, {first}, {second}, fused=True)
        text = f"{a.label} and {b.label} share the kernel {shared[0]}"
        return f"{text}: {reasons[0]}." if reasons else f"{text}, through what is between them."
    text = f"{a.label} and {b.label} are apart"
    for node in (a, b):
        if node.kind == "extern":
            return f"{text}: {node.label} runs as ATen's own kernel ({node.detail})."
    reasons = _reasons(view, {first}, {second}, fused=False)
    if not reasons:
        # A refusal is recorded under the names of the first computations of two groups.
        groups = [
            {n.name for n in view.before.nodes if set(n.kernels) & set(node.kernels)}
            for node in (a, b)
        ]
        reasons = _reasons(view, groups[0], groups[1], fused=False)
    if reasons:
        return f"{text}: {reasons[0]}."
    touching = {e.tensor for e in view.before.edges if first in (e.source, e.target)} & {
        e.tensor for e in view.before.edges if second in (e.source, e.target)
    }
    if not touching:
        return f"{text}: they share no tensor, so that one kernel would save no memory traffic."
    return f"{text}: other fusions saved more, and left no way to put these two together."


def _reasons(view: FusionView, first: set[str], second: set[str], *, fused: bool) -> list[str]:
    return [
        d.reason
        for d in view.decisions
        if d.fused == fused
        and (
            (d.producer in first and d.consumer in second)
            or (d.producer in second and d.consumer in first)
        )
    ]
