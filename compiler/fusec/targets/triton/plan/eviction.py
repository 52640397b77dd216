"""How long the cache should keep what a kernel loads.

The L2 throws out the least recently used lines first, which is the wrong choice for a tensor that
is larger than the L2 and read once: its lines push out what somebody still needs, such as the
results of the kernel before, which then go to memory while this kernel is waiting for its own
reads.  Lines that are loaded to be thrown out first leave the others alone: a sum of squares of
134 MB takes 44 us instead of 49.  A kernel that writes about as much as it reads pushes the others
out in any case, and is 2 % slower so.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusec.codegen.common.reduction_passes import PassPlan
from fusec.ir.body import Body, Buffer
from fusec.ir.node import Load
from fusec.targets.triton.plan.choice import kept_in_l2, known

FIRST, LAST = "evict_first", "evict_last"
MOSTLY = 4  # how many times as much as it writes a kernel reads that mostly reads
OUTSIDE = -1  # the number of what is in no loop over a row

Policies = dict[tuple[int, str], str]


def streamed(body: Body, buffers: Mapping[str, Buffer]) -> frozenset[str]:
    """Return the buffers too large for the cache of which each element is read in one place.

    Of a kernel that mostly reads; of others none.
    """
    read, written = (
        sum(known(buffers[n].elements) * buffers[n].dtype.itemsize for n in names)
        for names in (body.reads(), body.writes())
    )
    if written * MOSTLY > read:
        return frozenset()
    loads: dict[str, list[Load]] = {}
    for load in body.loads():
        loads.setdefault(load.buffer, []).append(load)
    along = {a for a in (*body.axes, *body.reduce_axes) if a.size != 1}
    found = set()
    for name, each in loads.items():
        large = known(buffers[name].elements) * buffers[name].dtype.itemsize > kept_in_l2()
        reached = {symbol for expr in each[0].index for symbol in expr.symbols()}
        if large and len(each) == 1 and along <= reached and name not in body.writes():
            found.add(name)
    return frozenset(found)


def for_one_reading(body: Body, buffers: Mapping[str, Buffer]) -> Policies:
    """Return the policies of a kernel that reads everything before it loops, or without loops."""
    return {(OUTSIDE, name): FIRST for name in streamed(body, buffers)}


def for_passes(
    body: Body, buffers: Mapping[str, Buffer], plan: PassPlan, *, one_program: bool
) -> Policies:
    """Return the policies of a row that is walked several times.

    Args:
        body: What is computed.
        buffers: By name.
        plan: Its passes.
        one_program: Whether a program goes through all passes of its row, which is to stay in
            the cache until the last one; otherwise each pass is a kernel of its own.
    """
    passes: dict[str, list[int]] = {}
    for number, each in enumerate(plan.passes):
        for node in each.inside:
            if isinstance(node, Load) and number not in passes.setdefault(node.buffer, []):
                passes[node.buffer].append(number)
    once = streamed(body, buffers)
    found = {}
    for buffer, (*earlier, last) in passes.items():
        if buffer in once or (earlier and one_program):
            found[(last, buffer)] = FIRST
        if one_program:
            found.update({(number, buffer): LAST for number in earlier})
    return found


__all__ = ["for_one_reading", "for_passes", "streamed"]
