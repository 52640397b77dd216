"""Another compiler's form of a captured graph, to be timed beside our own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fuselab.errors import FuselabError

PEERS = ("inductor",)  # backends of ``torch.compile`` that a cell is timed beside


class PeerFailed(FuselabError):
    """The other compiler does not compile the graph, or what it compiled does not run."""


class Peer:
    """A graph under another backend of ``torch.compile``, compiled on a thread of its own.

    A compiler cannot be interrupted, but whoever waits for it can stop waiting: it then finishes
    behind the scenes, and is ready when somebody asks again.

    Attributes:
        graph: The captured graph (``fusec.compiled.graph.CompiledGraph``).
        compiler: The backend's name.
        call: What computes the graph, given its inputs; None while it is compiled, or in vain.
    """

    def __init__(self, graph: Any, compiler: str) -> None:
        self.graph = graph
        self.compiler = compiler
        self.call: Callable[..., object] | None = None
        self._problem = ""
        self._done = threading.Event()
        thread = threading.Thread(target=self._work, name=f"fuselab-{compiler}", daemon=True)
        thread.start()

    def _work(self) -> None:
        try:
            import torch

            inputs = self.graph.copies()
            # A thread begins with gradients on, whatever the cell's code ran with.
            with torch.set_grad_enabled(self.graph.records_gradients):
                call: Any = torch.compile(self.graph.held.eager, backend=self.compiler)
                call(*inputs)
            self.call = call
        except BaseException as error:
            error = getattr(error, "inner_exception", error)  # what TorchDynamo wraps
            message = str(error).strip().partition("\n")[0]
            self._problem = f"{type(error).__name__}: {message}" if message else repr(error)
        finally:
            self._done.set()

    @property
    def failed(self) -> bool:
        """Whether it was tried in vain."""
        return bool(self._problem)

    def wait(self, stop: Callable[[], bool] | None = None) -> Callable[..., object] | None:
        """Return what computes the graph, given its inputs; None if ``stop`` said so before.

        Raises:
            PeerFailed: With the other compiler's reason.
        """
        while not self._done.wait(0.05):
            if stop is not None and stop():
                return None
        if self.call is None:
            raise PeerFailed(self._problem)
        return self.call
