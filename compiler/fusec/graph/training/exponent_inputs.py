"""What an exponential's argument is the difference of is the same number on both sides of it.

``exp(x - max)`` and the gradient of ``logsumexp``, ``exp(x - result)``, are one at most in eager:
``x`` is not above its maximum, nor above the logarithm of its exponentials' sum, and numbers keep
their order when they are rounded.  Where forward goes on with an ``x`` that is not rounded to its
half precision, and backward computes it again from what is, one may be above the other by half of
a last place.  At four thousand that is 16 in bfloat16, and ``exp(16)`` is nine million.  Such an
``x`` is rounded, and computed once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from fusec.graph.facts.rounded import ROUNDED, is_half, makers
from fusec.graph.simplify.extremes import mark_once, origin_of

aten = torch.ops.aten

_LOGARITHMS = frozenset((aten.logsumexp, aten.logcumsumexp, aten._log_softmax))
_GREATEST = frozenset((aten.amax, aten.max, aten.cummax, aten.logsumexp))
# Their results are in memory, of which all read the same number.
_LIBRARIES = frozenset(
    (
        *(aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution),
        *(aten._scaled_dot_product_flash_attention_for_cpu, aten.embedding),
    )
)


def round_exponents(module: fx.GraphModule) -> int:
    """Mark what is rounded although nothing stores it; return how many nodes.

    Args:
        module: A joint graph before it is divided.
    """
    marked = 0
    for source in _sources(module):
        for maker in makers(source):
            if maker.op == "call_function" and is_half(maker) and ROUNDED not in maker.meta:
                maker.meta[ROUNDED] = True
                marked += 1
    return marked


def compute_exponents_once(module: fx.GraphModule) -> int:
    """Mark what backward reads, and does not compute again; return how many nodes.

    Args:
        module: A joint graph before it is divided, in which equal nodes are one.
    """
    marked = round_exponents(module)
    for source in _sources(module):
        root = origin_of(source)
        if _follows_from_halves(root):
            marked += mark_once(root)
    return marked


def _sources(module: fx.GraphModule) -> Iterator[fx.Node]:
    """Yield what is compared with its own greatest element, or its own sum of exponentials."""
    for node in module.graph.nodes:
        packet = _packet(node)
        if packet in _LOGARITHMS and isinstance(node.args[0], fx.Node):
            yield node.args[0]
        elif packet is aten.sub:
            source, other = node.args[:2]
            if not (isinstance(source, fx.Node) and isinstance(other, fx.Node)):
                continue
            greatest = origin_of(other)
            if _packet(greatest) in _GREATEST:
                of = greatest.args[0]
                if isinstance(of, fx.Node) and origin_of(source) is origin_of(of):
                    yield source


def _follows_from_halves(node: fx.Node) -> bool:
    """Whether it is computed from what a kernel may go on with unrounded."""
    seen, waiting = {node}, [node]
    while waiting:
        each = waiting.pop()
        if each.op != "call_function" or _packet(each) in _LIBRARIES:
            continue
        if origin_of(each) is each and is_half(each):
            return True
        waiting += [given for given in each.all_input_nodes if given not in seen]
        seen.update(each.all_input_nodes)
    return False


def _packet(node: fx.Node) -> object:
    return getattr(node.target, "overloadpacket", node.target)


__all__ = ["compute_exponents_once", "round_exponents"]
