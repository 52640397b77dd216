"""Launching compiled Triton kernels with less work a call than Triton's own launcher.

Triton binds arguments, inspects each of them and builds a key of strings at every launch, which
costs more than a small kernel takes.  What it looks at is little: the types, whether pointers and
integers are divisible by 16, whether an integer is 1, and the constants.  ``Launcher`` asks Triton
once for each combination of those and launches what Triton compiled from then on.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from triton import knobs
from triton.runtime.jit import JITFunction

from fusec.targets.triton.toolchain.launch_records import RecordedLaunch, is_recording, note

_ALIGNMENT = 16
_INT32 = 1 << 31


class _Compiled:
    """A compiled kernel with what goes to its launch beside the arguments."""

    __slots__ = ("constants", "function", "kernel", "launch", "metadata")

    def __init__(self, kernel: Any, constants: tuple[Any, ...]) -> None:
        self.kernel = kernel
        self.launch = kernel.run
        self.function = kernel.function
        self.metadata = kernel.packed_metadata
        self.constants = constants


class Launcher:
    """Stands in for a ``@triton.jit`` function where it is launched: ``launcher[grid](...)``.

    Args:
        kernel: The function.
    """

    def __init__(self, kernel: JITFunction[Any]) -> None:
        self._kernel = kernel
        self._names = tuple(kernel.arg_names)
        self._compiled: dict[Any, _Compiled] = {}

    @property
    def compiled(self) -> tuple[Any, ...]:
        """What Triton compiled for the launches so far."""
        return tuple(found.kernel for found in self._compiled.values())

    def __getattr__(self, name: str) -> Any:
        """Offer everything else that the function has."""
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """Return the launch over ``grid``."""
        return lambda *args, **options: self._launch(grid, args, options)

    def _launch(self, grid: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        device = torch._C._cuda_getDevice()
        marks: list[Any] = [device, *options.values()]
        values: list[Any] = []
        for arg in args:
            if isinstance(arg, torch.Tensor):
                pointer = arg.data_ptr()
                values.append(pointer)
                marks.append(arg.dtype)
                marks.append(pointer % _ALIGNMENT == 0)
            elif type(arg) is int:
                values.append(arg)
                # of an integer, these decide what is compiled: 1 becomes a constant
                marks.append((arg == 1, arg % _ALIGNMENT == 0, -_INT32 <= arg < _INT32))
            else:
                return self._by_triton(grid, args, options)
        key = tuple(marks)
        try:
            found = self._compiled.get(key)
        except TypeError:  # an option that has no hash
            return self._by_triton(grid, args, options)
        if found is None or type(grid) is not tuple or _is_watched():
            return self._first(key, grid, args, options)
        x, y, z = (*grid, 1, 1)[:3]
        stream = torch._C._cuda_getCurrentRawStream(device)
        found.launch(
            x,
            y,
            z,
            stream,
            found.function,
            found.metadata,
            None,
            None,
            None,
            *values,
            *found.constants,
        )
        if is_recording():
            note(RecordedLaunch(found.kernel, self._names, grid, args))
        return None

    def _by_triton(self, grid: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        note(None)
        return self._kernel[grid](*args, **options)

    def _first(self, key: Any, grid: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Let Triton compile and launch; remember what it compiled."""
        kernel = self._kernel[grid](*args, **options)
        rest = self._names[len(args) :]
        plain = all(name in options for name in rest) and hasattr(kernel, "packed_metadata")
        if plain and not self._kernel.pre_run_hooks:
            self._compiled[key] = _Compiled(kernel, tuple(options[name] for name in rest))
            note(RecordedLaunch(kernel, self._names, grid, args) if type(grid) is tuple else None)
        else:
            note(None)
        return kernel


def _is_watched() -> bool:
    """Whether a profiler wants to know of launches: then Triton tells it."""
    for name in ("launch_enter_hook", "launch_exit_hook"):
        hook = getattr(knobs.runtime, name, None)
        if hook is not None and getattr(hook, "calls", True):
            return True
    return False


def on_device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Return a block within which kernels start on the device that a tensor is on."""
    index = tensor.get_device()
    if index < 0 or index == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(index)


def with_launchers(entry: Callable[..., None]) -> Callable[..., None]:
    """Return a file's entry function, launching through ``Launcher``.

    The kernels themselves, which refer to each other, keep seeing the originals.
    """
    if not isinstance(entry, types.FunctionType):
        return entry
    seen = {
        name: Launcher(value) if isinstance(value, JITFunction) else value
        for name, value in entry.__globals__.items()
    }
    made = types.FunctionType(
        entry.__code__, seen, entry.__name__, entry.__defaults__, entry.__closure__
    )
    made.__kwdefaults__ = entry.__kwdefaults__
    return made


__all__ = ["Launcher", "on_device_of", "with_launchers"]
