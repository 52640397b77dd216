"""Capturing a plan as a CUDA graph, with torch's own graphs: their memory, their random numbers.

Graphs that run on one stream share one pool of memory. Nothing in it lives from one replay to the
next (outputs are elsewhere), and what runs on one stream runs one after the other. A graph with
residents has a pool that no other graph is captured into, before or after it: what is free there
when a graph is captured may be where another graph writes. Each stream has
a pool of its own, and a stream that its graphs are captured on, because operators of ATen keep
workspaces by stream.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from fusec.devices import GPU
from fusec.gc_pause import collector_off


class _Pool:
    """The memory of all graphs that run on one stream."""

    def __init__(self, device: int, used_by: int) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        if self.stream.cuda_stream == used_by:  # torch hands out its streams in turns
            self.stream = torch.cuda.Stream(device)
        self.graphs: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handle: Any = None

    def handle(self) -> Any:
        """Return torch's name of the pool: a new one where no graph keeps the old one alive."""
        if self._handle is None or not self.graphs:
            self._handle = torch.cuda.graph_pool_handle()
        return self._handle

    def spoiled(self, handle: Any) -> None:
        """Clean up after a capture that did not even end: torch leaves that to its user.

        Allocations must no longer be taken for the capture's, the pool is given up, and the
        generators learn from a capture that ends that there is none any more.

        Args:
            handle: The name of the pool that it was for.
        """
        if handle == self._handle:
            self._handle = None
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device, handle)
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_releasePool(self.device, handle)
        with contextlib.suppress(RuntimeError):
            something = torch.zeros(1, device=torch.device(GPU, self.device))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(torch.cuda.Stream(self.device)):
                graph.capture_begin(capture_error_mode="thread_local")
                something.zero_()
                graph.capture_end()


_pools: dict[tuple[int, int], _Pool] = {}
_lock = threading.Lock()  # one capture at a time


def capture(
    plan: Any,
    inputs: tuple[Any, ...],
    *,
    device: int,
    stream: int,
    random: bool,
    alone: bool = False,
) -> None:
    """Capture a plan, so that running it replays a graph.

    Args:
        plan: A native plan.
        inputs: Of the call; nothing is computed on them.
        device: The current device.
        stream: The stream that the graph will run on, as the driver's number.
        random: Whether operators draw from torch's generators: then torch replays the graph and
            moves the generators on.
        alone: Whether no other graph may write where this one does: it has residents.

    Raises:
        RuntimeError: Something in the plan cannot be captured.
    """
    fresh = plan.allocate()
    with _lock, collector_off():
        pool = _pools.get((device, stream))
        if pool is None:
            pool = _pools[device, stream] = _Pool(device, stream)
        # The pool of a graph alone lives as long as the graph, and each part of its memory as long
        # as a tensor in it.
        handle = torch.cuda.graph_pool_handle() if alone else pool.handle()
        if alone:
            # What was saved so far lay in memory that torch keeps for later, and that a capture
            # can neither use nor give back.
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph(keep_graph=True)  # its nodes are told where memory is
        ended = False
        try:
            with torch.cuda.stream(pool.stream):
                graph.capture_begin(pool=handle, capture_error_mode="thread_local")
                try:
                    plan.capture(pool.stream.cuda_stream, inputs, fresh)
                finally:
                    graph.capture_end()
                    ended = True
        finally:
            if not ended:
                pool.spoiled(handle)
        graph.instantiate()
        if not alone:
            pool.graphs.add(graph)
    replay: Callable[[], None] | None = graph.replay if random else None
    plan.captured(graph.raw_cuda_graph_exec(), replay, graph)


__all__ = ["capture"]
