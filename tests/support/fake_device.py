"""A GPU that is not there: plans, launches and graphs over ``fake_driver.cpp`` and CPU memory."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from fusec.call import native
from fusec.call.huge_pages import empty_cpu
from fusec.device.driver import PlanDriver
from fusec.device.plan import DeviceProgram
from fusec.device.residents import holders
from fusec.device.start_rows import in_rows
from fusec.device.step_memory import share_memory, with_frees
from fusec.device.steps import Memory, MemoryPlace, Output, PythonCall, SizedProgram, Start, Step
from fusec.targets.triton.toolchain import launch_records
from fusec.toolchain import build as cpp_build

STREAM = 7


@functools.cache
def library() -> tuple[ctypes.CDLL, str]:
    """Return the stand-in for the driver, and its path."""
    text = Path(__file__).with_name("fake_driver.cpp").read_text()
    path = str(cpp_build.build(text, kind="native"))
    loaded = ctypes.CDLL(path)
    loaded.fake_kernel.restype = ctypes.c_void_p
    loaded.fake_end.restype = ctypes.c_void_p
    loaded.fake_begin.argtypes = [ctypes.c_void_p]
    loaded.fake_calls.restype = ctypes.c_char_p
    return loaded, path


def calls() -> list[str]:
    """Return what the driver was asked since the last time."""
    return str(library()[0].fake_calls().decode()).splitlines()


def kernel(name: str) -> int:
    """Return the handle of a kernel: ``add_relu`` (a, b, out, n) or ``scale`` (x, out, n, by)."""
    return int(library()[0].fake_kernel(("add_relu", "scale").index(name)))


@dataclass
class Device:
    """The state of the GPU that is not there.

    Attributes:
        device: The current device.
        stream: The current stream.
        watchers: Hooks that want to know of launches.
        alive: Memory that captured graphs use.
        captures: How many graphs were captured.
        failing: What a capture fails with.
        alone: Of each capture, whether it was to have memory of its own.
        capturing: Whether somebody else captures the current stream.
        allocated: Sizes of what was allocated, in order.
        chaining: Whether kernels in a row are one launch: 0 never, 1 where it is quicker, 2 always.
    """

    device: int = 0
    stream: int = STREAM
    watchers: list[object] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)
    captures: int = 0
    failing: str = ""
    capturing: bool = False
    allocated: list[tuple[int, ...]] = field(default_factory=list)
    inside: bool = False
    alone: list[bool] = field(default_factory=list)
    chaining: int = 0

    def machine(self) -> PlanDriver:
        """Return it as plans see it."""
        found = native.device_types(build=True)
        assert found is not None
        return PlanDriver(
            found.Driver(library()[1], self.chaining),
            self.allocate,
            lambda: self.device,
            lambda device: self.stream + 100 * device,
            self.capture,
            lambda: self.capturing,
            (self.watchers,),
            holders=holders(),
        )

    def allocate(self, *layout: Any) -> torch.Tensor:
        """Return memory; what a graph uses stays, whoever holds the tensor."""
        shape, strides, dtype = layout
        self.allocated.append(tuple(shape))
        if not self.inside or 0 in shape:
            return empty_cpu(*layout)
        memory = (ctypes.c_char * Memory("", shape, strides, dtype).bytes)()
        self.alive.append(memory)
        storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
        with torch.no_grad():
            return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)

    def capture(
        self, plan: Any, inputs: Any, *, device: int, stream: int, random: bool, alone: bool = False
    ) -> None:
        """Capture a plan as the driver does."""
        self.captures += 1
        self.alone.append(alone)
        fresh = plan.allocate()
        lib = library()[0]
        lib.fake_begin(99)
        self.inside = True
        before, self.stream = self.stream, 99
        try:
            if self.failing:
                raise RuntimeError(self.failing)
            plan.capture(99, inputs, fresh)
        finally:
            self.inside, self.stream = False, before
            graph = lib.fake_end()
        plan.captured(
            graph, (lambda: lib.cuGraphLaunch(ctypes.c_void_p(graph), 0)) if random else None, None
        )


class JITFunction:
    """Looks like a kernel of Triton's: notes its launches, starts the driver's kernel."""

    def __init__(self, name: str, signature: dict[str, str], **metadata: object) -> None:
        usual = {"num_warps": 4, "shared": 0, "num_ctas": 1, "global_scratch_size": 0}
        self.compiled = SimpleNamespace(
            function=kernel(name),
            metadata=SimpleNamespace(**{**usual, **metadata}),
            src=SimpleNamespace(signature=signature),
        )
        self.signature = signature

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            values = [ctypes.c_int64(_value(arg)) for arg in args]
            pointers = (ctypes.c_void_p * len(values))(
                *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
            )
            function = ctypes.c_void_p(self.compiled.function)
            lib = library()[0]
            lib.cuLaunchKernel(function, *(*grid, 1, 1)[:3], 128, 1, 1, 0, None, pointers, None)
            launch_records.note(
                launch_records.RecordedLaunch(self.compiled, tuple(self.signature), grid, args)
            )

        return launch


def _value(arg: Any) -> int:
    return arg.data_ptr() if isinstance(arg, torch.Tensor) else int(arg)


# -- steps by hand --------------------------------------------------------------------------


def like(name: str, *shape: int) -> Memory:
    """Return a contiguous float32 tensor to allocate."""
    strides = torch.empty(shape, device="meta").stride()
    return Memory(name, tuple(shape), strides, torch.float32)


def scale(x: str, out: str, n: int, factor: int) -> Start:
    """Return a start of ``out = x * factor``."""
    places = (
        MemoryPlace(x),
        MemoryPlace(out),
        MemoryPlace(None, n),
        MemoryPlace(None, factor),
        MemoryPlace(None),
        MemoryPlace(None),
    )
    return Start(kernel("scale"), (1, 1, 1), 128, 0, places)


def operator(x: str, out: str, n: int, factor: int, device: Device, **more: Any) -> PythonCall:
    """Return a call of an operator that scales, by a kernel, into memory that it allocates."""

    def run(given: torch.Tensor) -> torch.Tensor:
        made = device.allocate((n,), (1,), torch.float32)
        values = [ctypes.c_int64(v) for v in (given.data_ptr(), made.data_ptr(), n, factor)]
        pointers = (ctypes.c_void_p * 4)(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
        )
        function = ctypes.c_void_p(kernel("scale"))
        stream = ctypes.c_void_p(device.stream)
        library()[0].cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, pointers, None)
        return made

    return PythonCall(run, (MemoryPlace(x),), (), (out,), (None,), False, (x,), **more)


def steps_of(
    inputs: tuple[Memory, ...], steps: list[Step], outputs: tuple[Memory, ...]
) -> SizedProgram:
    """Return a program of hand-made steps."""
    names = {m.name for m in outputs}
    tensors = {m.name: m for m in inputs}
    made = tuple(m for m in outputs if m.name not in tensors)
    return SizedProgram(
        tuple(tensors),
        tuple(in_rows(with_frees(share_memory(steps, names), names), tensors)),
        tuple(Output(m.name) for m in outputs),
        tensors,
        made,
        (),
    )


class ByHand(DeviceProgram):
    """A program whose steps are given; the host program is a function of the inputs."""

    def __init__(
        self,
        steps: SizedProgram,
        device: Device,
        run: Callable[..., list[torch.Tensor]],
        *,
        graphs: bool = True,
        sizes: Any = None,
        saved: Collection[int] = (),
    ) -> None:
        self.given = steps
        self.slow_runs = 0

        def host(inputs: list[Any]) -> list[torch.Tensor]:
            self.slow_runs += 1
            arguments = tuple(inputs)
            inputs.clear()
            return run(*arguments)

        self.host = host
        program: Any = SimpleNamespace(
            inputs=steps.inputs,
            buffers={
                n: SimpleNamespace(hint=f"my_{n}", name=n)
                for n in (*steps.tensors, *(m.name for m in steps.made))
            },
            sizes=sizes or {},
            changed_inputs=frozenset,
            steps=[SimpleNamespace(reads=lambda: tuple(steps.tensors), writes=lambda: ())],
        )
        on = device.machine()
        super().__init__(program, 0, on, host, host, lambda name: None, graphs=graphs, saved=saved)

    def _record(self, key: tuple[int, ...], inputs: list[Any]) -> tuple[list[Any], SizedProgram]:
        return self.host(list(inputs)), self.given


__all__ = [
    "STREAM",
    "ByHand",
    "Device",
    "JITFunction",
    "calls",
    "kernel",
    "library",
    "like",
    "operator",
    "scale",
    "steps_of",
]
