"""Inlining: pointwise results that are better computed where they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fusec.devices import is_gpu
from fusec.ir.body import Body, Buffer
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Cast, Load, Node
from fusec.ir.program import Compute, Extern, Program, Step
from fusec.ir.walk import free_axes
from fusec.report import FusionDecision
from fusec.schedule import choices, choices_products
from fusec.schedule.align import Refusal, inline_producer
from fusec.schedule.fusion_groups import join_labels
from fusec.schedule.order import expected_kernels, order_of
from fusec.schedule.overrides import FORBIDDEN, Overrides

UNSEEN = "it has a check that would not be made of what nobody reads"
ONCE = "it is compared with its own extremes, and must be the same number for both"


def inline_pointwise(
    program: Program, overrides: Overrides | None = None
) -> tuple[tuple[Step, ...], list[FusionDecision]]:
    """Return the steps with cheap pointwise producers computed at their consumers.

    Args:
        program: As lowered.
        overrides: What somebody wants together or apart; nothing if None.
    """
    inliner = _Inliner(program, overrides or Overrides())
    # What only widens goes first, into all that read it: what is kept then is the narrow one.
    for step in sorted(program.steps, key=lambda s: not _only_widens(s, program.buffers)):
        inliner.try_inlining(step.name)
    steps = inliner.steps
    return tuple(steps[s.name] for s in program.steps if s.name in steps), inliner.decisions


class _Inliner:
    """The steps of a program while producers disappear into their consumers.

    Attributes:
        steps: By name; those that were computed where they are read are gone.
        decisions: So far.
    """

    def __init__(self, program: Program, overrides: Overrides) -> None:
        self.program, self.overrides = program, overrides
        self.steps: dict[str, Step] = {step.name: step for step in program.steps}
        self.decisions: list[FusionDecision] = []
        self._members = {step.name: frozenset((step.name,)) for step in program.steps}
        self._order = order_of(program.steps)
        self._readers: dict[str, list[str]] = {}
        for step in program.steps:
            for name in step.reads():
                self._readers.setdefault(name, []).append(step.name)
        computes = [step for step in program.steps if isinstance(step, Compute)]
        externs = [step for step in program.steps if isinstance(step, Extern)]
        self._mutated = {name for step in externs for name in step.mutates}
        self._kept = program.output_buffers() | set(program.inputs)
        self._kept |= {name for step in computes for name in step.body.updated()}
        self._products = {n for step in computes if step.body.products for n in step.writes()}

    def try_inlining(self, name: str) -> None:
        """Compute a step where it is read, if that is possible and pays."""
        step = self.steps.get(name)
        if not isinstance(step, Compute) or not self._is_candidate(step):
            return
        made = step.body.stores[0].buffer
        users = self._readers.get(made, [])
        if made in self.program.once:
            self.decisions += [FusionDecision(name, user, False, ONCE) for user in users]
            return
        consumers = [self.steps[user] for user in users]
        computes = [consumer for consumer in consumers if isinstance(consumer, Compute)]
        if len(computes) != len(consumers):
            return
        reason = self._refusal(step, computes)
        merged = Refusal(reason) if reason is not None else _inlined(step.body, computes)
        if isinstance(merged, Refusal):
            self.decisions += [
                FusionDecision(name, consumer.name, False, merged.reason) for consumer in computes
            ]
            return
        self._replace(step, computes, merged)

    def _is_candidate(self, step: Compute) -> bool:
        """Whether a step is pointwise, and nobody but later computations sees its result."""
        body = step.body
        if len(body.stores) != 1 or body.has_reduction or body.stores[0].updates:
            return False
        made = body.stores[0].buffer
        if made in self._kept or not self._readers.get(made):
            return False
        return not self._mutated & {made, *body.reads()}

    def _refusal(self, step: Compute, computes: list[Compute]) -> str | None:
        """Return why a step is not computed where it is read, or None."""
        body, buffers = step.body, self.program.buffers
        if any(consumer.body.products for consumer in computes):
            reason = choices_products.may_feed_product(body, computes, buffers, self._products)
            if reason is not None:
                return reason
        reason = self._does_not_pay(body, computes)
        members = self._members
        if reason is not None and all(
            self.overrides.wants(members[step.name], members[c.name]) for c in computes
        ):
            reason = None
        if reason is None and choices.reads_windows(body):
            unfit = [choices.unfit_for_windows(body, c.body, buffers) for c in computes]
            reason = next(filter(None, unfit), None)
        if any(self.overrides.forbids(members[step.name], members[c.name]) for c in computes):
            return FORBIDDEN
        if reason is None and _leaves_unchecked(body, computes):
            return UNSEEN
        return reason

    def _does_not_pay(self, body: Body, computes: list[Compute]) -> str | None:
        """Return why a body had better be computed once, or None."""
        buffers = self.program.buffers

        def is_cheap() -> bool:
            chains = [_chain(c, self.steps, self._readers, self._kept) for c in computes]
            return choices.cheaper_again(body, expected_kernels(chains, self._order), buffers)

        reason = choices.may_recompute(
            body,
            len(computes),
            _expansion(body, computes, self.program),
            choices.large_inputs(body, buffers),
            is_cheap,
            any(choices.is_convolution(c.body) for c in computes),
        )
        if reason is not None:
            return reason
        if choices.is_turned_over(body, [c.body for c in computes], buffers):
            return "it is small, and turned over once for all who read it"
        if _belongs_to_its_producer(body, computes, self.program, self.steps):
            return "it picks from a large result, and belongs in the kernel that makes it"
        return None

    def _replace(self, step: Compute, computes: list[Compute], merged: list[Body]) -> None:
        """Put consumers that compute a step by themselves in place of those that read it."""
        body = step.body
        saved = 2 * choices.buffer_bytes(self.program.buffers[body.stores[0].buffer])
        for consumer, fused in zip(computes, merged, strict=True):
            label = join_labels(step.label, consumer.label)
            self.steps[consumer.name] = Compute(consumer.name, fused, label)
            self._members[consumer.name] |= self._members[step.name]
            self.decisions.append(
                FusionDecision(step.name, consumer.name, True, "computed where it is read", saved)
            )
            for read in body.reads():
                if consumer.name not in self._readers.setdefault(read, []):
                    self._readers[read].append(consumer.name)
        for read in body.reads():
            self._readers[read] = [user for user in self._readers[read] if user != step.name]
        del self.steps[step.name]


def _only_widens(step: Step, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a step on a GPU converts a tensor to a wider type, and does no more."""
    if not isinstance(step, Compute) or len(step.body.stores) != 1:
        return False
    (store,) = step.body.stores
    value = store.value
    while isinstance(value, Cast):
        (value,) = value.args
    made = buffers[store.buffer]
    return (
        is_gpu(made.device)
        and store.mode == "set"
        and isinstance(value, Load)
        and value.mask is None
        and value.index == store.index
        and value.dtype.is_floating_point
        and value.dtype.itemsize < made.dtype.itemsize
    )


def _chain(
    consumer: Compute,
    steps: Mapping[str, Step],
    readers: Mapping[str, list[str]],
    kept: Collection[str],
) -> tuple[Compute, ...]:
    """Return a consumer and, while it is pointwise and has one reader, that and its likes.

    No more of them than one kernel may hold.
    """
    chain = [consumer]
    values = 0
    while True:
        body = chain[-1].body
        values += len(body.nodes())
        if values > choices.MAX_NODES:
            return tuple(chain)
        if len(body.stores) != 1 or body.has_reduction or body.stores[0].buffer in kept:
            return tuple(chain)
        following = [steps[name] for name in readers.get(body.stores[0].buffer, [])]
        if len(following) != 1 or not isinstance(following[0], Compute):
            return tuple(chain)
        chain.append(following[0])


def _belongs_to_its_producer(
    body: Body, consumers: list[Compute], program: Program, steps: dict[str, Step]
) -> bool:
    """Whether a small pointwise body reads a few elements of a large computed buffer.

    Such as the loss of each row out of all log-probabilities: in one kernel with the reduction
    that makes them, the large buffer is never written.  Inlined into a sum over the rows, it would
    be out of that kernel's reach.
    """
    if not any(consumer.body.has_reduction for consumer in consumers):
        return False
    own = choices.points(body.axes)
    large = {
        name for name in body.reads() if choices.estimate(program.buffers[name].elements) >= 4 * own
    }
    return bool(large) and any(
        isinstance(step, Compute)
        and not large.isdisjoint(step.writes())
        and step.body.has_reduction
        for step in steps.values()
    )


def _leaves_unchecked(body: Body, consumers: list[Compute]) -> bool:
    """Whether elements that a body checks are read by none of its consumers: eager checks them all.

    A view that leaves elements out visits fewer of them than there are.
    """
    free = free_axes(tuple(body.nodes()))
    checked = {axis for node in body.nodes() if is_check(node) for axis in free[node]}
    (store,) = body.stores
    dims = [n for n, place in enumerate(store.index) if checked & set(place.symbols())]
    everything = choices.points(tuple(axis for axis in body.axes if axis in checked))

    def sees_all(load: Load) -> bool:
        places = [load.index[n] for n in dims]
        loops = {symbol for place in places for symbol in place.symbols()}
        if any(symbol.kind == "indirect" for symbol in loops):
            return False
        return choices.points(tuple(s for s in loops if s.kind == "axis")) >= everything

    loads = [load for consumer in consumers for load in consumer.body.loads()]
    return bool(dims) and not any(sees_all(x) for x in loads if x.buffer == store.buffer)


def _inlined(producer: Body, consumers: list[Compute]) -> list[Body] | Refusal:
    results = []
    for consumer in consumers:
        fused = inline_producer(consumer.body, producer, alone=len(consumers) == 1)
        if isinstance(fused, Refusal):
            return fused
        too_large = choices.too_large(fused)
        if too_large is not None:
            return Refusal(too_large)
        results.append(fused)
    return results


def _expansion(producer: Body, consumers: list[Compute], program: Program) -> float:
    """Return how often the busiest consumer would compute an element of the producer.

    Values that do not depend on the innermost loop are computed outside of it, so a row vector
    read by all elements of a row costs nothing.
    """
    buffer = program.buffers[producer.stores[0].buffer]
    own = max(choices.estimate(buffer.elements), 1)
    worst = 1.0
    for consumer in consumers:
        body = consumer.body
        loads = [node for node in body.loads() if node.buffer == buffer.name]
        for load in loads:
            visited = _visited_axes(load, body)
            worst = max(worst, choices.points(visited) / own)
        worst = max(worst, float(len(loads)) if len(loads) > 2 else 1.0)
    return worst


def _visited_axes(load: Load, body: Body) -> tuple[Symbol, ...]:
    """Return the loops that a load is inside of, once it is hoisted out of the innermost."""
    used: set[Symbol] = set()
    for expr in load.index:
        used |= _loop_symbols(expr)
    loops = body.axes + body.reduce_axes
    depth = max((n + 1 for n, axis in enumerate(loops) if axis in used), default=0)
    return loops[:depth]


def _loop_symbols(expr: Expr) -> set[Symbol]:
    found: set[Symbol] = set()
    for symbol in expr.symbols():
        if symbol.kind == "axis":
            found.add(symbol)
        elif symbol.kind == "indirect":
            payload = symbol.payload
            assert isinstance(payload, Node)
            found |= free_axes((payload,))[payload]
    return found


def inlined_members(decisions: Iterable[FusionDecision]) -> dict[str, frozenset[str]]:
    """Return, by each consumer's name, its own name and those of what was inlined into it.

    Args:
        decisions: Of ``inline_pointwise``, in its order.
    """
    found: dict[str, frozenset[str]] = {}
    for decision in decisions:
        if decision.fused:
            own = found.get(decision.consumer, frozenset((decision.consumer,)))
            found[decision.consumer] = own | found.get(
                decision.producer, frozenset((decision.producer,))
            )
    return found


__all__ = ["inline_pointwise", "inlined_members"]
