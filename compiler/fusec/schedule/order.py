"""Which steps of a program can share a kernel, as far as what they wait for says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fusec.ir.program import Compute, Extern, Step
from fusec.schedule import choices


@dataclass(frozen=True)
class Order:
    """What each step of a program waits for.

    Attributes:
        bits: A power of two for each step, by name.
        before: The bits of all steps that it is computed from.
        beyond: Those of them that no kernel can have in common with it: an operator of ATen, which
            is computed from them, stands between.
    """

    bits: Mapping[str, int]
    before: Mapping[str, int]
    beyond: Mapping[str, int]

    def waits(self, step: str, other: str) -> bool:
        """Whether a step is computed from another one."""
        return bool(self.before[step] & self.bits[other])

    def separated(self, step: str, other: str) -> bool:
        """Whether an operator stands between two steps."""
        ways = (self.beyond[step] & self.bits[other], self.beyond[other] & self.bits[step])
        return any(ways)


def order_of(steps: Sequence[Step]) -> Order:
    """Return what the steps of a program wait for."""
    makers = {name: step.name for step in steps for name in step.writes()}
    operators = {step.name for step in steps if isinstance(step, Extern)}
    bits = {step.name: 1 << n for n, step in enumerate(steps)}
    before: dict[str, int] = {}
    beyond: dict[str, int] = {}
    for step in steps:
        own = far = 0
        for name in {makers[read] for read in step.reads() if read in makers}:
            if name in before:  # not one that follows, and updates what is read here
                own |= before[name] | bits[name]
                far |= before[name] if name in operators else beyond[name]
        before[step.name], beyond[step.name] = own, far
    return Order(bits, before, beyond)


def expected_kernels(
    chains: Sequence[Sequence[Compute]], order: Order
) -> list[choices.ReadingKernel]:
    """Return the kernels that a value's readers are about to be.

    Those that loop alike share one, unless an operator stands between them.

    Args:
        chains: The readers, each with those that it is about to be inlined into.
        order: Of the program's steps.
    """
    groups: list[list[Sequence[Compute]]] = []
    for chain in chains:
        fitting = (group for group in groups if _may_share(chain[-1], group, order))
        group = next(fitting, None)
        if group is None:
            groups.append([chain])
        else:
            group.append(chain)
    found = []
    for group in groups:
        others = [chain[-1].name for each in groups if each is not group for chain in each]
        found.append(
            choices.ReadingKernel(
                group[0][-1].body.sizes(),
                frozenset(name for chain in group for step in chain for name in step.reads()),
                not any(order.waits(chain[-1].name, other) for chain in group for other in others),
            )
        )
    return found


def _may_share(step: Compute, group: Sequence[Sequence[Compute]], order: Order) -> bool:
    ends = [chain[-1] for chain in group]
    alike = ends[0].body.sizes() == step.body.sizes()
    return alike and not any(order.separated(step.name, end.name) for end in ends)


__all__ = ["Order", "expected_kernels", "order_of"]
