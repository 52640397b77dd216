"""``aot_compile`` of torch: what it asks of a backend that compiles to files.

``torch.compile(f, fullgraph=True, backend="fusec").aot_compile(((x,), {}))`` hands its backend one
graph and wants back something that it can save. TorchDynamo's own part of the file (guards, code)
is a pickle, which is torch's; ours is JSON.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from torch._functorch import config as functorch_config

from fusec.compiled.graph import CompiledGraph
from fusec.compiled.references import NotKept
from fusec.compiled.written import LoadedGraph, written_graph
from fusec.errors import FusecError

try:
    from torch._dynamo.aot_compile_types import SerializableCallable
except ImportError:  # a torch without aot_compile
    SerializableCallable = object  # type: ignore[assignment, misc]

# What aot_compile switches on while a backend runs: AOTAutograd's own cache, for TorchInductor.
_ASKED = "bypass_autograd_cache_key"
_CACHES = ("force_autograd_cache", "strict_autograd_cache", "bundled_autograd_cache", _ASKED)


class CannotSave(FusecError, RuntimeError):
    """A compiled graph that no file can hold."""


class SavedGraph(SerializableCallable):
    """A compiled graph that torch can save.

    Attributes:
        call: What runs it.
        graph: The graph; None where it was read from a file.
    """

    def __init__(self, call: Callable[..., Any], graph: CompiledGraph | None = None) -> None:
        self.call = call
        self.graph = graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self.call(*args, **kwargs)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Return it as bytes.

        Raises:
            CannotSave: It has symbolic sizes, draws random numbers or runs on a GPU; the message
                says which.
        """
        if fn.graph is None:
            raise CannotSave("this function was read from a file", "copy the file")
        try:
            kept = written_graph(fn.graph)
        except NotKept as error:
            raise CannotSave(f"it cannot be saved: {error}") from None
        files = {name: base64.b64encode(data).decode() for name, data in kept.tensors.items()}
        return json.dumps({"graph": kept.data, "files": files}).encode()

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> Any:
        """Return what ``serialize_compile_artifacts`` wrote; its kernels are built if need be."""
        found = json.loads(data)
        files = {name: base64.b64decode(text) for name, text in found["files"].items()}
        return cls(LoadedGraph(found["graph"], files.__getitem__))


def is_asked() -> bool:
    """Whether torch compiles ahead of time now."""
    return bool(getattr(functorch_config, _ASKED, False))


@contextlib.contextmanager
def without_torchs_cache() -> Iterator[None]:
    """Leave AOTAutograd's own cache out, which takes TorchInductor's results alone."""
    known = [name for name in _CACHES if hasattr(functorch_config, name)]
    with functorch_config.patch(dict.fromkeys(known, False)):
        yield


__all__ = ["CannotSave", "SavedGraph", "is_asked", "without_torchs_cache"]
