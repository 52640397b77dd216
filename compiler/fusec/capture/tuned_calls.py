"""``mode="max-autotune"``: the kernels of a captured graph are tuned in its first calls.

A kernel is tuned on the inputs of a real call, so it is done after the call that first brings
some: forward's in the first, backward's in the one after backward has run.  What is found is
recorded: the next process starts from it, and searches no kernel that has a record.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fusec.compiled.graph import CompiledGraph
from fusec.errors import FusecError
from fusec.kernel import Kernel
from fusec.tune.pins import is_recorded

# After so many calls nothing new is waited for: a backward part may never run.
_CALLS = 4


class TunedCalls:
    """What TorchDynamo calls in place of a graph, until the graph's kernels are tuned.

    Args:
        graph: As it was compiled.
        seconds: For each of its kernels, at most.
    """

    def __init__(self, graph: CompiledGraph, seconds: float) -> None:
        self.graph = graph
        self.seconds = seconds
        self._entry = graph.entry()
        self._left = _CALLS
        self._done: set[Kernel] = set()

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph; tune afterwards what has run, if that is still to be done."""
        if not self._left:
            return self._entry(*inputs)
        self._left -= 1
        wanted = self.graph.keep  # by the user
        self.graph.keep_inputs(True)
        try:
            result = self.graph(*inputs)
            self._tune()
        finally:
            # Those of backward come between this call and the next.
            self.graph.keep_inputs(wanted or self._left > 0)
        if not self._left:
            if not wanted:
                self.graph.forget_inputs()
            self._entry = self.graph.entry()
        return result

    def _tune(self) -> None:
        for kernel in self.graph.kernels:
            if kernel in self._done or not self.graph.has_inputs(kernel):
                continue
            self._done.add(kernel)
            if not kernel.can_be_tuned or is_recorded(kernel):
                continue
            # It runs as the rules chose it else: a search is nothing that a call may fail for.
            with contextlib.suppress(FusecError, torch.OutOfMemoryError), torch.no_grad():
                kernel.tune(self.seconds)
        if self._done.issuperset(self.graph.kernels) and self._is_whole():
            self._left = 0

    def _is_whole(self) -> bool:
        """Whether every part that the graph will have is there."""
        parts = self.graph.parts
        recorded = any(part.kind == "forward" for part in parts)
        return not recorded or any(part.is_backward for part in parts)


__all__ = ["TunedCalls"]
