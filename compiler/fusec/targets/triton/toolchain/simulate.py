"""Triton kernels on a machine without a GPU: interpreted, or stood in for where that is hopeless.

Triton's interpreter runs a kernel's programs one after the other in NumPy, exact but about a
million times slower than a GPU.  Small launches are interpreted: the values come from the Triton
text itself.  For a large launch the reference interpreter runs the same loop-level IR with eager's
operators, so that a cell on real-sized data still yields its values, and yields the right ones:
what is in use has passed a check, at sizes for which the interpreter is quick enough.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fusec.codegen.common.signatures import argument_buffers
from fusec.ir.index import Symbol
from fusec.ir.interpret import CheckFailed, run_body
from fusec.kernel import Kernel
from fusec.kernel_source import Runnable

# About a second of interpreting.
INTERPRETED_ELEMENTS = 1 << 17

SIMULATION_NOTE = (
    "no GPU here: small Triton kernels run in Triton's interpreter, and eager stands in for large "
    "ones; nothing that is timed here says how fast they are on a GPU"
)


class Simulated:
    """A Triton kernel on CPU tensors."""

    simulation = SIMULATION_NOTE

    def __init__(self, interpreted: Runnable, kernel: Kernel) -> None:
        self.interpreted = interpreted
        self.body = kernel.body
        self.signature = kernel.signature
        self.sizes = _size_symbols(kernel)

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Run once."""
        if sum(t.numel() for t in tensors) <= INTERPRETED_ELEMENTS:
            self.interpreted(tensors, sizes)
            return
        names = argument_buffers(self.body)
        given = dict(zip(names, tensors, strict=True))
        try:
            run_body(self.body, given, dict(zip(self.sizes, sizes, strict=True)))
        except CheckFailed as error:
            raise self.signature.failure(str(error)) or error from None


def _size_symbols(kernel: Kernel) -> tuple[Symbol, ...]:
    """Return the symbols behind the signature's size names, in its order."""
    known: dict[str, Symbol] = {}
    exprs = [a.size for a in kernel.body.axes + kernel.body.reduce_axes if a.size is not None]
    exprs += [e for node in kernel.body.nodes() for e in node.exprs()]
    exprs += [e for store in kernel.body.stores for e in store.index]
    exprs += [e for a in kernel.signature.arguments for e in a.shape + a.strides]
    for expr in exprs:
        known.update({s.name: s for s in expr.symbols() if s.kind == "size"})
    return tuple(known[name] for name in kernel.signature.sizes)
