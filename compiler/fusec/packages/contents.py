"""What is in a package's file: its members, put together, written, loaded and compared."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fusec.memory.strided import clone_strided
from fusec.packages import host_text
from fusec.packages.binaries import (
    Binary,
    build_binaries,
    header,
)
from fusec.packages.c_entry import c_entry
from fusec.packages.capture import (
    CapturedCall,
    plain_value,
    sharing,
)
from fusec.packages.errors import CannotPackage
from fusec.packages.gpu import DEVICE, GpuCodes
from fusec.packages.load import load
from fusec.packages.plain_program import KernelStep, PackagedKernel, PlainProgram, Weights
from fusec.packages.programs import outputs_before, with_shift
from fusec.packages.runtime.archive import write_archive
from fusec.packages.runtime.binding import marked, rest_of
from fusec.packages.runtime.json_text import canonical
from fusec.packages.runtime.structure import flatten, names_of
from fusec.packages.runtime.weights import MEMBER
from fusec.packages.watched_call import PLAIN, rebuilt
from fusec.version import __version__

_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "either",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_POSITIONAL: "args",
    inspect.Parameter.VAR_KEYWORD: "kwargs",
}


@dataclass(frozen=True)
class Packaged:
    """What was written.

    Attributes:
        path: The file.
        specializations: Their names.
        fixed: Dimensions that were to stay dynamic and did not: why, and by which line.
        needs_torch: What keeps a specialization from running without torch, by its name.
        edited: Kernels whose text is a user's.
        left_out: Kernels with edits that these calls do not launch: they were compiled for others.
        binaries: For which processors.
        size: Bytes of the file.
    """

    path: Path
    specializations: tuple[str, ...]
    fixed: tuple[str, ...]
    needs_torch: Mapping[str, tuple[str, ...]]
    edited: tuple[str, ...]
    left_out: tuple[str, ...]
    binaries: tuple[str, ...]
    size: int

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.size:,} bytes, for {', '.join(self.binaries)}"]
        lines += [f"  {name}" for name in self.specializations]
        lines += [f"  edited: {name}" for name in self.edited]
        lines += [f"  not in it: the edit of {name}, for other calls" for name in self.left_out]
        lines += [f"  fixed: {reason}" for reason in self.fixed]
        said = {reason: None for found in self.needs_torch.values() for reason in found}
        lines += [f"  needs torch: {reason}" for reason in said]
        if not said:
            lines.append("  runs without torch")
        return "\n".join(lines)


class Contents:
    """The members of a package's file.

    Args:
        name: What the package calls itself.
        signature: The function's parameters.
        captured: The calls.
        programs: Of each call.
        weights: What the programs share.
        gpus: Architectures, in place of processors.
    """

    def __init__(
        self,
        name: str,
        signature: inspect.Signature,
        captured: Sequence[CapturedCall],
        programs: Sequence[PlainProgram],
        weights: Weights,
        gpus: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.codes = GpuCodes(gpus) if gpus else None
        self.signature = signature
        self.captured = captured
        self.programs = programs
        self.weights = weights
        self.kernels: dict[str, PackagedKernel] = {}
        for program in programs:
            for step in program.steps:
                if isinstance(step, KernelStep):
                    self.kernels.setdefault(step.kernel.digest, step.kernel)

    def write(
        self, path: Path, weights: str, names: Sequence[str], left_out: tuple[str, ...]
    ) -> Packaged:
        """Write the file, once it was loaded and compared.

        Args:
            path: Where to.
            weights: ``inside`` or by ``reference``.
            names: Of the processors.
            left_out: Kernels with edits that no call launches.

        Raises:
            CannotPackage: It cannot be written, or computes something else.
        """
        host = host_text.HostText()
        members: dict[str, bytes] = {}
        alone = []
        for number, program in enumerate(self.programs):
            found = self._program(program, host, number)
            alone.append(found["alone"])
            members[f"programs/{number}.json"] = canonical(found)
        data = self._weights_file()
        if self.codes is None:
            host.functions.append(c_entry(self.programs, alone, self._places(data)))
        facts: dict[str, Any] = {
            "name": self.name,
            "versions": {
                "fusec": __version__,
                "torch": torch.__version__.partition("+")[0],
                "python": platform.python_version(),
            },
            "weights": {},
        }
        members = {
            "guards.json": canonical(self._guards()),
            "kernels.json": canonical(self._kernels()),
            "weights.json": canonical(self._weights()),
            **members,
            **self._code(host),
            **{kernel.member: kernel.text.encode() for kernel in self.kernels.values()},
        }
        beside: Path | None = None
        if self.codes is not None:
            facts["gpus"] = list(self.codes.names)
        last: dict[str, bytes] = {}
        if data is not None and weights == "reference":
            beside = path.with_suffix(".safetensors")
            facts["weights"] = {
                "file": beside.name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "size": len(data),
            }
        elif data is not None:
            last[MEMBER] = data
        binaries, code = self._machine_code(facts, {**members, **last}, host, names)
        facts["binaries"] = [binary.json() for binary in binaries]
        members |= {**code, **last}
        path.parent.mkdir(parents=True, exist_ok=True)
        if beside is not None and data is not None:
            with _new_file(beside) as new:
                new.write_bytes(data)
                new.replace(beside)
        with _new_file(path) as new:
            write_archive(new, facts, members)
            self._compare(new)
            new.replace(path)
        return self._packaged(path, binaries, left_out)

    def _packaged(
        self, path: Path, binaries: Sequence[Binary], left_out: tuple[str, ...]
    ) -> Packaged:
        fixed = dict.fromkeys(reason for program in self.programs for reason in program.fixed)
        return Packaged(
            path,
            tuple(program.name for program in self.programs),
            tuple(fixed),
            {program.name: tuple(program.needs_torch) for program in self.programs},
            tuple(k.name for k in self.kernels.values() if k.state == "edited"),
            left_out,
            tuple(binary.name for binary in binaries) + self._gpus(),
            path.stat().st_size,
        )

    def _gpus(self) -> tuple[str, ...]:
        return tuple(self.codes.names) if self.codes is not None else ()

    def _machine_code(
        self,
        facts: dict[str, Any],
        members: dict[str, bytes],
        host: host_text.HostText,
        names: Sequence[str],
    ) -> tuple[list[Binary], dict[str, bytes]]:
        """Return libraries, and all machine code by member: made for everything else."""
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}
        rest = rest_of(facts, sums)
        if self.codes is not None:
            return [], {n: marked(rest, n, code) for n, code in self.codes.members.items()}
        binaries = build_binaries(list(self.kernels.values()), host.text(), names, rest)
        return binaries, {binary.member: binary.data for binary in binaries}

    def _code(self, host: host_text.HostText) -> dict[str, bytes]:
        """Return what runs the programs, as text."""
        if self.codes is None:
            return {"programs.cpp": host.text().encode(), "fuse.h": header().encode()}
        codes = {"codes": list(self.codes.entries.values())}
        return {"gpu.json": canonical(codes)}

    def _compare(self, path: Path) -> None:
        """Load what was written and hold it against what it was made of, where it can run."""
        loaded = load(path)
        gpu = self.codes is not None
        if gpu and not torch.cuda.is_available():
            return
        for found in self.captured:
            leaves = [clone_strided(v) if isinstance(v, torch.Tensor) else v for v in found.leaves]
            if gpu:
                leaves = [v.to(DEVICE) if isinstance(v, torch.Tensor) else v for v in leaves]
            values = rebuilt(found.form, iter(leaves))
            bound = inspect.BoundArguments(self.signature, values)
            with torch.no_grad():
                result = loaded(*bound.args, **bound.kwargs)
            _require_alike(self.name, result, found.expected)
            shares = sharing(result, leaves)
            if shares != found.sharing:
                raise _other_memory(self.name, found, min(shares ^ found.sharing))

    # -- members --------------------------------------------------------------------------------

    def _program(
        self, program: PlainProgram, host: host_text.HostText, number: int
    ) -> dict[str, Any]:
        alone: Any = None
        if self.codes is not None:
            alone = steps = self.codes.steps_json(program)
        elif not program.needs_torch:
            alone = host_text.steps_json(program, host, f"fuse_{number}_alone", alone=True)
        if self.codes is None:
            steps = host_text.steps_json(program, host, f"fuse_{number}", alone=False)
        return {
            "name": program.name,
            "sizes": program.sizes,
            "conditions": program.conditions,
            "buffers": program.buffers,
            "alone": alone,
            "with_torch": steps,
            "outputs": program.outputs,
            "updates": program.updates,
            "needs_torch": program.needs_torch,
        }

    def _guards(self) -> dict[str, Any]:
        parameters = []
        for each in self.signature.parameters.values():
            entry: dict[str, Any] = {"name": each.name, "kind": _KINDS[each.kind]}
            if each.default is not inspect.Parameter.empty:
                entry["default"] = _default(each.default)
            parameters.append(entry)
        return {
            "parameters": parameters,
            "specializations": [
                {
                    "name": program.name,
                    "program": f"programs/{number}.json",
                    "arguments": found.form,
                    "leaves": program.guards,
                    "result": with_shift(found.result, outputs_before(found)),
                    "fixed": program.fixed,
                }
                for number, (found, program) in enumerate(
                    zip(self.captured, self.programs, strict=True)
                )
            ],
        }

    def _kernels(self) -> dict[str, Any]:
        return {
            "kernels": [
                {
                    "name": k.name,
                    "member": k.member,
                    "entry": k.entry,
                    "symbol": k.symbol,
                    "state": k.state,
                    "target": k.target,
                }
                for k in self.kernels.values()
            ]
        }

    def _weights(self) -> dict[str, Any]:
        return {
            "weights": [
                {
                    "name": name,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "shape": list(tensor.shape),
                    "strides": list(tensor.stride()),
                }
                for name, tensor in self.weights.tensors
            ]
        }

    def _places(self, data: bytes | None) -> list[int]:
        """Return where each weight begins in the data of the weights' file."""
        if data is None:
            return []
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return [header[name]["data_offsets"][0] for name, _ in self.weights.tensors]

    def _weights_file(self) -> bytes | None:
        """Return all weights as a safetensors file; None where there are none."""
        if not self.weights.tensors:
            return None
        from safetensors.torch import save

        found = {}
        for name, tensor in self.weights.tensors:
            if not tensor.is_contiguous():  # its memory as it lies, from first to last element
                extent = 1 + sum(
                    (n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
                )
                count = 0 if 0 in tensor.shape else extent
                tensor = tensor.as_strided((count,), (1,))
            found[name] = tensor.cpu().clone(memory_format=torch.contiguous_format)
        return bytes(save(found))


def _default(value: Any) -> dict[str, Any]:
    """Return a parameter's default as JSON; of what no package holds, its type alone."""
    if type(value) in PLAIN:
        return plain_value(value)
    if type(value) in (tuple, list):
        return {type(value).__name__: [_default(each) for each in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": [{"key": k, "value": _default(v)} for k, v in value.items()]}
    return {"left_out": type(value).__name__}


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Give a file beside another one that takes its place when it is whole: nobody else's.

    Raises:
        CannotPackage: It cannot be written.
    """
    new = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield new
    except OSError as error:
        raise CannotPackage(
            f"{path} cannot be written: {error.strerror or error}", "give a place that has room"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def _other_memory(name: str, found: CapturedCall, pair: tuple[int, int]) -> CannotPackage:
    """Return why two tensors would share memory in a package and not in eager, or otherwise."""
    results: list[Any] = []
    form = flatten(found.expected, results)
    words = [*found.names, *names_of(form, "its result")]
    one, other = (words[each] for each in pair)
    if pair in found.sharing:
        what = "share memory, and in a package each would have its own"
    else:
        what = "would share memory in a package"
    return CannotPackage(f"{name}: {one} and {other} {what}", "return copies: .clone()")


def _require_alike(name: str, result: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            result.to(expected.device),
            expected,
            equal_nan=True,
            check_stride=True,
            msg=lambda said: f"the package of {name} computes something else: {said}",
        )
    elif isinstance(expected, Mapping):
        for key, value in expected.items():
            _require_alike(name, result[key], value)
    elif isinstance(expected, (tuple, list)):
        for left, right in zip(result, expected, strict=True):
            _require_alike(name, left, right)
    else:
        assert result == expected or repr(result) == repr(expected)  # NaN is NaN


__all__ = ["Contents", "Packaged"]
