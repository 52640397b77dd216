"""A package's kernels for GPUs: what each step starts, and machine code for each architecture.

Triton compiles for a GPU that need not be there. What a kernel file's ``launch`` starts, and with
what, is noted without starting it; it may do nothing else than start kernels and ask for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusec.errors import BadOption
from fusec.machine import gpu_named
from fusec.packages.errors import CannotPackage
from fusec.packages.plain_program import KernelStep, PackagedKernel, PlainProgram
from fusec.packages.runtime.layout import ITEM_BYTES
from fusec.target_api.base import GpuCode, PythonTarget
from fusec.target_api.registry import default_target, find_target

DEVICE = "cuda"
_MEMORY = (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default)


def gpu_target() -> str:
    """Return the name of the target that kernels for GPUs are of."""
    return default_target(DEVICE).name


def check_gpus(names: Sequence[str]) -> tuple[str, ...]:
    """Return the architectures that are asked for, each once, the newest first.

    Raises:
        BadOption: One is none of NVIDIA's.
    """
    for name in names:
        if not (name.startswith("sm_") and name[3:].isdigit()):
            raise BadOption("gpu", name, ("sm_80, sm_90 ...: NVIDIA's architectures",))
    return tuple(sorted(set(names), key=lambda name: -int(name[3:])))


def _mend(operator: str) -> str:
    alone = "a package for GPUs holds kernels alone"
    if "attention" in operator:
        return f"{alone}: attention has one where the example's tensors are on a GPU"
    if any(operator.startswith(f"aten.{name}.") for name in ("mm", "addmm", "bmm", "baddbmm")):
        return f'{alone}: fusec.compile(..., matmul="template")'
    return f"{alone}: compute that outside of what is packaged"


@dataclass
class GpuCodes:
    """The machine code of a package's kernels.

    Attributes:
        names: The architectures.
        members: Machine code by the names of members.
        entries: What the loader reads of each start: by the code's name.
    """

    names: Sequence[str]
    members: dict[str, bytes] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def steps_json(self, program: PlainProgram) -> list[dict[str, Any]]:
        """Return a program's steps as the loader reads them, adding their code.

        Raises:
            CannotPackage: A step is no kernel, has symbolic sizes, or does more than start kernels.
        """
        if program.sizes:
            raise CannotPackage(
                f"{program.name}: its sizes are symbolic",
                "packages for GPUs hold known sizes so far: leave dynamic= out",
            )
        if program.updates:
            raise CannotPackage(
                f"{program.name} updates {program.buffers[program.updates[0]['buffer']]['name']}",
                "packages for GPUs return what they compute: return it instead",
            )
        made: set[int] = set()
        return [self._step(program, step, made) for step in program.steps]

    def _step(self, program: PlainProgram, step: Any, made: set[int]) -> dict[str, Any]:
        if not isinstance(step, KernelStep):
            raise CannotPackage(
                f"{step.json['operator']} ({step.json['line']}) is an operator of ATen",
                _mend(step.json["operator"]),
            )
        tensors = [_meta(program.buffers[number]) for number in step.buffers]
        known = {id(tensor): number for tensor, number in zip(tensors, step.buffers, strict=True)}
        memory: dict[int, tuple[int, int]] = {}
        starts = []
        found = self._starts(step, tensors)
        for name, arguments, grid in found:
            values = [_argument(step.name, each, known, memory) for each in arguments]
            starts.append({"code": name, "grid": list(grid), "arguments": values})
        new = [n for n in step.buffers if program.buffers[n]["role"] == "made" and n not in made]
        made |= set(new)
        return {
            "kernel": step.name,
            "buffers": list(step.buffers),
            "made": new,
            "memory": [size for _, size in memory.values()],
            "starts": starts,
        }

    def _starts(
        self, step: KernelStep, tensors: Sequence[torch.Tensor]
    ) -> list[tuple[str, Sequence[Any], Sequence[int]]]:
        kernel = step.kernel
        target = find_target(kernel.target)
        if not isinstance(target, PythonTarget):
            raise CannotPackage(
                f"kernel {step.name} is for the CPU",
                f'compile it by fusec.compile(..., target="{gpu_target()}") to package it for GPUs',
            )
        with _Watch(step.name):
            starts = target.starts_for(kernel.text, kernel.entry, tensors)
        found: list[tuple[str, Sequence[Any], Sequence[int]]] = []
        for number, start in enumerate(starts):
            name = f"{kernel.symbol}_{number}"
            if name not in self.entries:
                self._add(name, kernel, [start.compile(gpu) for gpu in self.names])
            found.append((name, start.arguments, start.grid))
        return found

    def _add(self, name: str, kernel: PackagedKernel, codes: Sequence[GpuCode]) -> None:
        binaries = []
        for gpu, code in zip(self.names, codes, strict=True):
            most = gpu_named(gpu).shared
            if code.shared > most:
                raise CannotPackage(
                    f"kernel {kernel.name} needs {code.shared} bytes of shared memory, and {gpu} "
                    f"has {most}",
                    f'compile it by fusec.compile(..., target="{gpu_target()}", gpu="{gpu}")',
                )
            if code.more:
                raise CannotPackage(f"kernel {kernel.name} needs {code.more} when it is started")
            member = f"cubins/{name}-{gpu}.cubin"
            self.members[member] = code.binary
            binaries.append(
                {
                    "gpu": gpu,
                    "member": member,
                    "function": code.function,
                    "shared": code.shared,
                    "threads": code.threads,
                }
            )
        self.entries[name] = {"name": name, "binaries": binaries}


class _Watch(TorchDispatchMode):
    """Within it nothing is computed with tensors: what is started is all that a kernel does."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = name

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function not in _MEMORY:
            raise CannotPackage(
                f"the launch of kernel {self.name} calls {function}",
                "do that in the kernel: a package starts kernels alone",
            )
        return function(*args, **{**(kwargs or {}), "device": "meta"})


def _meta(buffer: dict[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, buffer["dtype"])
    return torch.empty_strided(buffer["shape"], buffer["strides"], dtype=dtype, device="meta")


def _argument(
    kernel: str, value: Any, known: dict[int, int], memory: dict[int, tuple[int, int]]
) -> dict[str, Any]:
    if isinstance(value, torch.Tensor):
        if id(value) in known:
            return {"buffer": known[id(value)]}
        if id(value) not in memory:  # what launch asked for; it lives as long as its starts do
            size = value.numel() * ITEM_BYTES[str(value.dtype).removeprefix("torch.")]
            memory[id(value)] = (len(memory), size)
        return {"memory": memory[id(value)][0]}
    if type(value) is tuple and value[0] in ("i32", "i64", "u64", "fp32") and len(value) == 2:
        return {value[0]: value[1] if value[0] != "fp32" else {"float": repr(value[1])}}
    raise CannotPackage(f"kernel {kernel} is started with a {type(value).__name__}")


__all__ = ["DEVICE", "GpuCodes", "check_gpus"]
