"""What a kernel file starts, and with what, found out without starting it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.errors import FusecError
from fusec.kernel_source import Signature
from fusec.targets.triton.toolchain.load import lines_of, load
from fusec.targets.triton.toolchain.sources import source_class

SAMPLE_SIZE = 1000  # what a symbolic size is while compiling for a GPU that is not there


@dataclass(frozen=True)
class RecordedStart:
    """One kernel start that ``launch`` made."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grid: Any = None


class StartRecorder:
    """Stands for a kernel while ``launch`` runs, and notes what it is started with."""

    def __init__(self, function: Any, starts: list[RecordedStart]) -> None:
        self.function = function
        self.starts = starts

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def start(*args: Any, **kwargs: Any) -> None:
            self.starts.append(RecordedStart(self.function, args, kwargs, grid))

        return start

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def record_starts(
    namespace: dict[str, Any], signature: Signature, entry: str, size: int = SAMPLE_SIZE
) -> list[RecordedStart]:
    """Return what ``launch`` starts for tensors of the signature.

    Symbolic sizes are what they were in the call that is compiled for, ``size`` if not known.
    """
    from triton.runtime.jit import JITFunction

    starts: list[RecordedStart] = []
    functions = {n: f for n, f in namespace.items() if isinstance(f, JITFunction)}
    exprs = [e for a in signature.arguments for e in (*a.shape, *a.strides)]
    hints = {s.name: s.hint for e in exprs for s in e.symbols() if s.hint is not None}

    def number(expr: Any) -> int:
        return int(expr.evaluate(lambda s: hints.get(s.name, size)))

    with unset_fake_temporarily():  # while a graph is compiled, tensors have no address
        tensors = [
            torch.empty_strided(
                [number(e) for e in a.shape],
                [number(e) for e in a.strides],
                dtype=a.dtype,
                device="meta",
            )
            for a in signature.arguments
        ]
    namespace.update({n: StartRecorder(f, starts) for n, f in functions.items()})
    try:
        namespace[entry](*tensors, *[hints.get(name, size) for name in signature.sizes])
    finally:
        namespace.update(functions)
    return starts


def starts_of(
    namespace: dict[str, Any],
    entry: str,
    tensors: Sequence[torch.Tensor],
    sizes: Sequence[int] = (),
) -> list[RecordedStart]:
    """Return what a loaded file's ``launch`` would start for these tensors; nothing is started."""
    from triton.runtime.jit import JITFunction

    starts: list[RecordedStart] = []
    functions = {n: f for n, f in namespace.items() if isinstance(f, JITFunction)}
    namespace.update({n: StartRecorder(f, starts) for n, f in functions.items()})
    try:
        namespace[entry](*tensors, *sizes)
    finally:
        namespace.update(functions)
    return starts


def programs(
    text: str, entry: str, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return how many programs each start of a text's ``launch`` has for such tensors."""
    namespace, _ = load(text)
    with unset_fake_temporarily():
        shaped = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors
        ]
    found = []
    for start in starts_of(namespace, entry, shaped, sizes):
        grid = start.grid(start.kwargs) if callable(start.grid) else start.grid
        found.append(prod(int(size) for size in grid))
    return tuple(found)


def launched(
    namespace: dict[str, Any], path: str, signature: Signature, entry: str
) -> list[RecordedStart]:
    """Return ``record_starts``, a failure in the file's own lines being a compile error."""
    with lines_of(path):
        return record_starts(namespace, signature, entry)


def gpu_target(gpu: str) -> Any:
    """Return Triton's description of a GPU: ``sm_90``, ``gfx942``...

    Raises:
        FusecError: It is neither.
    """
    from triton.backends.compiler import GPUTarget

    nvidia = re.fullmatch(r"sm_?(\d+)[af]?", gpu)
    if nvidia:
        return GPUTarget("cuda", int(nvidia[1]), 32)
    if re.fullmatch(r"gfx[0-9a-f]+", gpu):
        return GPUTarget("hip", gpu, 64 if gpu.startswith("gfx9") else 32)
    raise FusecError(f"{gpu} is no GPU that Triton knows", "for example sm_80, sm_90, gfx942")


def source_of(start: RecordedStart) -> tuple[Any, dict[str, Any]]:
    """Return Triton's source object for a kernel start, and the compile options."""
    from triton.runtime.jit import mangle_type

    function = start.function
    names = [p.name for p in function.params]
    given = dict(zip(names, start.args, strict=False))
    given.update({k: v for k, v in start.kwargs.items() if k in names})
    options = {k: v for k, v in start.kwargs.items() if k not in names}
    types_of: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, parameter in enumerate(function.params):
        value = given.get(parameter.name, parameter.default)
        if parameter.is_constexpr or value is None:
            types_of[parameter.name] = "constexpr"
            constants[(place,)] = value
        else:
            types_of[parameter.name] = mangle_type(value)
            if hasattr(value, "data_ptr"):  # torch aligns its own allocations
                attributes[(place,)] = [["tt.divisibility", 16]]
    source = source_class(function)(
        fn=function, signature=types_of, constexprs=constants, attrs=attributes
    )
    return source, options


__all__ = [
    "RecordedStart",
    "StartRecorder",
    "gpu_target",
    "launched",
    "programs",
    "record_starts",
    "source_of",
    "starts_of",
]
