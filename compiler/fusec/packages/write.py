"""``fusec.package``: what a function was compiled to, for some kinds of calls, as one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fusec.api import compile
from fusec.compiled_function import CompiledFunction
from fusec.errors import BadOption
from fusec.inspect.planner import Call
from fusec.packages.binaries import (
    check_names,
    default_names,
)
from fusec.packages.capture import (
    CapturedCall,
    capture,
    parameters_of,
    require_tensors,
)
from fusec.packages.contents import Contents, Packaged
from fusec.packages.errors import CannotPackage
from fusec.packages.gpu import DEVICE, check_gpus, gpu_target
from fusec.packages.plain_program import PlainProgram, Weights
from fusec.packages.programs import plain_program

WEIGHTS = ("inside", "reference")


def package(
    function: Callable[..., Any],
    signatures: Sequence[Any],
    path: str | Path,
    *,
    weights: str = "inside",
    dynamic: Mapping[str, Sequence[int]] | None = None,
    binaries: Sequence[str] | None = None,
    gpus: Sequence[str] = (),
    name: str = "",
    before_writing: Callable[[CompiledFunction], object] | None = None,
) -> Packaged:
    """Write a package: the function's programs for these calls, to be loaded without compiling.

    Args:
        function: A function, a module, or what ``fusec.compile`` returned: then with the kernels
            that it has in use, edited and tuned ones too.
        signatures: The calls, each one specialization: a tuple of arguments, or
            ``fusec.inspect.planner.Call`` for keywords. What ``fusec.record`` noted will do.
        path: Where to write: ``model.fuse``.
        weights: ``inside`` the file, or by ``reference``: in ``model.safetensors`` beside it.
        dynamic: Dimensions whose sizes stay dynamic, by the argument's name: ``{"ids": (0, 1)}``.
            What does not stay so is said in ``fixed``, with the line that fixes it.
        binaries: For which processors: ``x86-64-v4`` (AVX-512), ``x86-64-v3`` (AVX2),
            ``x86-64``, ``aarch64``. This one and plainer ones of its family by default.
        gpus: For which of NVIDIA's architectures, in place of processors: ``sm_80``, ``sm_90``. The
            function is compiled for Triton, which needs no GPU; kernels are all that it may have.
        name: What the package calls itself; the function's name by default.
        before_writing: Called when all calls are compiled and nothing is written: it may put
            other texts of kernels in use.

    Returns:
        What was written. Before, it was loaded and compared with the compiled function.

    Raises:
        CannotPackage: A call does something that no package can hold; the message says what.
        BadOption: A value that an option does not take.
    """
    place = Path(path)
    if place.suffix != ".fuse":
        raise BadOption("path", str(path), ("a name that ends in .fuse",))
    if weights not in WEIGHTS:
        raise BadOption("weights", weights, WEIGHTS)
    gpus = check_gpus(gpus)
    if gpus and binaries:
        raise BadOption("binaries", tuple(binaries), ("nothing beside gpus=",))
    chosen = check_names(binaries) if binaries is not None else default_names()
    options = {"target": gpu_target(), "matmul": "template", "gpu": gpus[-1]} if gpus else {}
    compiled = (
        function
        if isinstance(function, CompiledFunction)
        else compile(function, dynamic=False, keep_inputs=False, **options)
    )
    calls = [_call(each) for each in signatures]
    if not calls:
        raise CannotPackage("a package needs at least one call", "give signatures=[(x, y)]")
    require_tensors(compiled, calls, dynamic or {})
    shared = Weights()
    captured: list[CapturedCall] = []
    programs: list[PlainProgram] = []
    for call in calls:
        found = capture(compiled, call, dynamic or {})
        captured.append(found)
    if before_writing is not None:
        before_writing(compiled)
    for found in captured:
        label = f"{len(programs)}: {_described(found)}"
        programs.append(plain_program(found, label, shared, DEVICE if gpus else ""))
    contents = Contents(
        name or compiled._name(), parameters_of(compiled), captured, programs, shared, gpus
    )
    shipped = {id(kernel) for each in captured for kernel in each.part.kernels.values()}
    left = [
        kernel.name
        for kernel in compiled.kernels.values()
        if kernel.state == "edited" and id(kernel) not in shipped
    ]
    return contents.write(place, weights, chosen, tuple(left))


def _call(signature: Any) -> Call:
    if isinstance(signature, Call):
        return signature
    made = getattr(signature, "call", None)
    if callable(made):
        found = made()
        if isinstance(found, Call):
            return found
        args, kwargs = found
        return Call(tuple(args), dict(kwargs))
    if isinstance(signature, torch.Tensor):
        return Call((signature,), {})
    if isinstance(signature, (tuple, list)):
        return Call(tuple(signature), {})
    raise CannotPackage(
        f"a {type(signature).__name__} is not a call", "give a tuple of arguments for each"
    )


def _described(found: CapturedCall) -> str:
    parts = []
    for name, leaf in zip(found.names, found.leaves, strict=True):
        if isinstance(leaf, torch.Tensor):
            sizes = " x ".join(map(str, leaf.shape)) or "one number"
            parts.append(f"{name} {sizes}")
    return ", ".join(parts)[:120] or "no tensors"


__all__ = ["Packaged", "package"]
