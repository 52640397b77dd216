"""What calls on a GPU need of torch and the driver, in one place that tests can stand in for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.call import native
from fusec.device.cuda_capture import capture
from fusec.device.packing import pack_starts
from fusec.device.residents import Holders, holders
from fusec.device.steps import Join
from fusec.devices import GPU
from fusec.errors import BadOption
from fusec.systems import this_system
from fusec.target_api.base import PackedKernel, PythonTarget
from fusec.target_api.registry import default_target

_CHAINS = "FUSEC_GPU_CHAINS"
_CHAINING = {"never": 0, "measured": 1, "always": 2}  # as in driver.cpp


@dataclass(frozen=True)
class PlanDriver:
    """What plans need of torch and the driver; tests put others in their place.

    Attributes:
        driver: The native driver.
        allocate: Makes an uninitialized tensor of sizes, strides and dtype on the current device.
        get_device: Returns the current device.
        get_stream: Returns a device's current stream, as the driver's number.
        capture: As ``cuda_capture.capture``.
        is_capturing: Whether the current stream is being captured.
        hooks: Lists that are empty unless somebody watches launches.
        join: As ``device_steps`` takes it.
        holders: How to ask who holds memory; None where nobody knows.
    """

    driver: Any
    allocate: Callable[..., torch.Tensor]
    get_device: Callable[[], int]
    get_stream: Callable[[int], int]
    capture: Callable[..., None]
    is_capturing: Callable[[], bool]
    hooks: tuple[Sequence[object], ...]
    join: Join | None = None
    holders: Holders | None = None


def chaining() -> int:
    """Return when kernels in a row become one launch, as the driver's native part takes it.

    ``FUSEC_GPU_CHAINS`` says so: ``measured`` (where that takes the CPU less time), ``never``
    (profilers that show a launch of several kernels as one thing), ``always``.

    Raises:
        BadOption: It says something else.
    """
    value = os.environ.get(_CHAINS, "measured")
    if value not in _CHAINING:
        raise BadOption(_CHAINS, value, tuple(_CHAINING))
    return _CHAINING[value]


def _packer() -> Callable[[Any, int], PackedKernel | None]:
    target = default_target(GPU)
    assert isinstance(target, PythonTarget)
    return target.pack


def machine() -> PlanDriver | None:
    """Return this machine's; None where CUDA has no driver, or the native part is not there yet."""
    found = native.device_types()
    return None if found is None or torch.version.hip is not None else _machine(found)


@functools.cache
def _machine(found: native.DeviceTypes) -> PlanDriver | None:
    from triton import knobs

    try:
        driver = found.Driver(this_system().cuda_driver, chaining())
    except OSError:
        return None
    hooks = [getattr(knobs.runtime, n, None) for n in ("launch_enter_hook", "launch_exit_hook")]
    calls = tuple(hook.calls for hook in hooks if hook is not None and hasattr(hook, "calls"))
    if len(calls) != len(hooks):
        return None  # this Triton tells its watchers in another way
    return PlanDriver(
        driver,
        torch._C._dynamo.guards._empty_strided_cuda,  # type: ignore[attr-defined]
        torch._C._cuda_getDevice,
        torch._C._cuda_getCurrentRawStream,
        capture,
        torch.cuda.is_current_stream_capturing,
        calls,
        functools.partial(pack_starts, build=_packer()),
        holders(),
    )


__all__ = ["PlanDriver", "chaining", "machine"]
