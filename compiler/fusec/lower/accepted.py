"""What a call may ask of kernels; all else is left to ATen's own, or to eager's error."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache

import torch

from fusec.devices import CPU, GPU, has_float8, is_gpu
from fusec.errors import DeviceNotThere
from fusec.graph.refusals.kernels import refused
from fusec.ir.index import Expr
from fusec.lower.values import SUPPORTED_DTYPES, Lowering, NotLowered, ResultMeta, TensorValue
from fusec.report import SourceLine

# What may meet types that nothing computes in: it converts them.
CONVERSIONS = frozenset({torch.ops.aten._to_copy, torch.ops.prims.convert_element_type})


def converted(lowering: Lowering, target: object) -> frozenset[torch.dtype]:
    """Return the types that kernels may convert from and to, and nothing else."""
    if getattr(target, "overloadpacket", None) not in CONVERSIONS:
        return frozenset()
    devices = {meta.device.type for meta in lowering.results if meta is not None}
    can = all(lowering.abilities(d).float8 and has_float8(d) for d in devices)
    return frozenset({torch.float8_e4m3fn}) if can else frozenset()


def require_device(device: torch.device, where: SourceLine | None) -> None:
    """Raise where a tensor would lie on a device that is not there.

    Fake tensors do not mind, and eager would fail only when the step is reached, in the middle.
    """
    if not is_gpu(device):
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        there = ["cpu", *(f"cuda:{n}" for n in range(count))]
        raise DeviceNotThere(str(device), there, str(where) if where else "")


def require_implemented(target: object, args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Raise where eager has no kernel for an operator's types: it is left to raise its own error.

    Raises:
        NotLowered: It has none.
    """
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, TensorValue)]
    kinds = [(tensor.dtype, tensor.device.type) for tensor in tensors]
    dtype = refused(target, kinds, kwargs.get("dtype"))
    if dtype is not None:
        raise NotLowered(f"eager refuses {str(dtype).removeprefix('torch.')}", refused=True)


@cache
def _numbers_of(rule: Callable[..., object]) -> dict[object, str]:
    """Return the parameters of a rule that are plain numbers: name by name, and by position."""
    found: dict[object, str] = {}
    for position, (name, parameter) in enumerate(inspect.signature(rule).parameters.items()):
        if str(parameter.annotation).removesuffix(" | None") == "float":
            found |= {name: name, position: name}
    return found


def require_known_numbers(
    rule: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]
) -> None:
    """Raise where a rule takes a number and is given a size: the order of a norm, say.

    Raises:
        NotLowered: It computes with the number while the kernel is written.
    """
    places: list[object] = [n for n, value in enumerate(args, 1) if isinstance(value, Expr)]
    places += [name for name, value in kwargs.items() if isinstance(value, Expr)]
    if not places:
        return
    numbers = _numbers_of(rule)
    symbolic = [numbers.get(place) for place in places]
    name = next((name for name in symbolic if name), "")
    if name:
        raise NotLowered(f"{name} is a symbolic number")


def require_supported(
    args: Sequence[object],
    kwargs: dict[str, object],
    results: Sequence[ResultMeta | None],
    converted: frozenset[torch.dtype],
) -> None:
    """Raise where kernels know a type or a device of the call's tensors not, or several at once.

    Raises:
        NotLowered: What it is.
    """
    tensors: list[TensorValue] = []
    supported = SUPPORTED_DTYPES | converted
    if any(isinstance(a, TensorValue) and a.dtype == torch.float64 for a in args):
        supported = SUPPORTED_DTYPES  # through float32 it would be rounded twice

    def visit(value: object) -> None:
        if isinstance(value, TensorValue):
            tensors.append(value)
            if value.dtype not in supported:
                raise NotLowered(f"{value.dtype} has no kernels")
            if value.device.type not in (CPU, GPU):
                raise NotLowered(f"no kernels for {value.device}")
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif isinstance(value, complex):
            raise NotLowered("complex numbers have no kernels")

    visit(tuple(args))
    visit(tuple(kwargs.values()))
    devices = {meta.device for meta in results if meta is not None}
    several = len(devices | {t.device for t in tensors}) > 1
    if several and len(devices | {t.device for t in tensors if not t.is_number}) > 1:
        raise NotLowered("its tensors are on different devices")
    for meta in results:
        if meta is not None and meta.dtype not in supported:
            raise NotLowered(f"{meta.dtype} has no kernels")


__all__ = [
    "converted",
    "require_device",
    "require_implemented",
    "require_known_numbers",
    "require_supported",
]
