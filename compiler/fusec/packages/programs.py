"""A captured call written down as a plain program: what is read of its part, guards and weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from fusec.call.input_check import size_range
from fusec.capture.dynamo.fixed_sizes import why_fixed
from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.ir.index import Expr
from fusec.ir.printer import dtype_name
from fusec.ir.program import Compute, Extern, TensorRef
from fusec.kernel import Kernel
from fusec.lower.program import OwnedTensor
from fusec.packages import bundled
from fusec.packages.capture import CapturedCall, plain_value
from fusec.packages.errors import CannotPackage
from fusec.packages.operators import NAMESPACES
from fusec.packages.plain_program import (
    KernelStep,
    OperatorStep,
    PackagedKernel,
    PlainProgram,
    Weights,
)
from fusec.packages.runtime.expressions import Expression
from fusec.packages.runtime.guards import size_name
from fusec.packages.runtime.json_text import LARGEST
from fusec.packages.sizes import (
    bounds,
    conditions,
    expression,
    known_size,
    of_sympy,
    shape_environment,
)
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target


def plain_program(
    captured: CapturedCall, name: str, weights: Weights, device: str = ""
) -> PlainProgram:
    """Write down a captured call's program.

    Args:
        captured: The call.
        name: Of the specialization.
        weights: Takes what the call does not give.
        device: Where its tensors are to be, if its kernels are for another one than it ran on.

    Raises:
        CannotPackage: It does what no package can hold.
    """
    if captured.part.draws_seed:
        raise CannotPackage(
            f"{captured.name} draws random numbers",
            "call .eval() on the module, or pass the random numbers as an argument",
        )
    return _Plain(captured, name, weights, device).program


class _Plain:
    def __init__(self, captured: CapturedCall, name: str, weights: Weights, device: str) -> None:
        self.captured = captured
        self.device = device
        self.program = PlainProgram(name)
        self.source = captured.part.state.scheduled
        self.numbers: dict[str, int] = {}
        self.environment = self._environment()
        self.symbols: dict[str, Any] = {}
        self._read_guards()
        self._read_sizes()
        for position, buffer in enumerate(self.source.inputs):
            self._input(position, buffer, weights)
        self._require_unchanged_weights()
        for step in self.source.steps:
            if isinstance(step, Extern) and isinstance(step.target, OwnedTensor):
                (buffer,) = step.outputs  # torch.tensor([1.0, 2.0]): a weight like others
                number = weights.number(step.target.tensor, self.source.buffers[buffer].hint)
                self._buffer(buffer, "weight", number)
                continue
            self.program.steps.append(
                self._kernel(step) if isinstance(step, Compute) else self._operator(step)
            )
        self._read_outputs()

    # -- sizes and guards -------------------------------------------------------------------

    def _fakes(self, kind: str) -> dict[int, Any]:
        """Return, for each leaf that the graph takes, what stood for it while it was captured.

        Args:
            kind: ``val`` for what was compiled, ``example_value`` for what TorchDynamo saw.
        """
        module = self.captured.part.state.module if kind == "val" else self.captured.graph.eager
        found = module.graph.find_nodes(op="placeholder")
        return {
            leaf: node.meta.get(kind)
            for leaf, node in zip(self.captured.inputs, found, strict=True)
            if isinstance(leaf, int) and leaf >= 0
        }

    def _environment(self) -> Any:
        found = self.captured.part.state.module.graph.find_nodes(op="placeholder")
        return shape_environment(node.meta.get("val") for node in found)

    def _read_guards(self) -> None:
        fakes, program = self._fakes("val"), self.program
        seen = self._fakes("example_value")
        for leaf, (value, label) in enumerate(
            zip(self.captured.leaves, self.captured.names, strict=True)
        ):
            if not isinstance(value, torch.Tensor):
                program.guards.append({"name": label, "value": plain_value(value)})
                continue
            fake = fakes.get(leaf)
            shape: list[Expression] = list(value.shape)
            strides: list[Expression] = list(value.stride())
            if isinstance(fake, torch.Tensor) and self.environment is not None:
                for dim, size in enumerate(fake.shape):
                    shape[dim] = self._size(leaf, dim, size, label)
                strides = [of_sympy(known_size(self.environment, s)) for s in fake.stride()]
            for dim in self.captured.asked.get(leaf, ()):
                if isinstance(shape[dim], int):
                    given = seen.get(leaf, value)
                    why = why_fixed(given.shape[dim], self.captured.graph.eager)
                    program.fixed.append(f"size {dim} of {label} is always {shape[dim]}: {why}")
            program.guards.append(
                {
                    "name": label,
                    "dtype": dtype_name(value.dtype),
                    "shape": shape,
                    "strides": strides,
                    "device": self.device or str(value.device),
                }
            )

    def _size(self, leaf: int, dim: int, size: Any, label: str) -> Expression:
        known = known_size(self.environment, size)
        if isinstance(known, int):
            return known
        if known.is_Symbol and str(known) not in self.symbols:
            low, high = bounds(self.environment, known)
            self.symbols[str(known)] = known
            self.program.sizes.append(
                {"name": str(known), "leaf": leaf, "dimension": dim, "low": low, "high": high}
            )
        return of_sympy(known)

    def _read_sizes(self) -> None:
        found = {entry["name"]: entry for entry in self.program.sizes}
        for symbol in self.source.sizes:
            if symbol.name not in found:
                raise self._no_size(symbol.name)
            low, high = size_range(symbol)
            entry = found[symbol.name]
            entry["low"] = max(entry["low"], low)
            entry["high"] = min(entry["high"], high, LARGEST)
        if self.environment is not None:
            names = {
                entry["name"]: size_name(self.captured.names[entry["leaf"]], entry["dimension"])
                for entry in self.program.sizes
            }
            graph = self.captured.graph.eager
            self.program.conditions = conditions(self.environment, names, graph)

    def _no_size(self, symbol: str) -> CannotPackage:
        """Return why a size cannot be read from a call's tensors."""
        name = self.captured.name
        for leaf, fake in self._fakes("val").items():
            if isinstance(fake, torch.Tensor) and symbol in map(str, fake.stride()):
                label, strides = self.captured.names[leaf], self.captured.leaves[leaf].stride()
                return CannotPackage(
                    f"{name}: {label} has sizes that stay dynamic, and gaps in its memory "
                    f"(strides {', '.join(map(str, strides))})",
                    f"give {label}.contiguous(), in the example and in calls, or leave it out of "
                    "dynamic=",
                )
        return CannotPackage(
            f"{name}: the size {symbol} comes from no tensor's dimension alone",
            "leave that dimension out of dynamic=",
        )

    # -- buffers ------------------------------------------------------------------------------

    def _input(self, position: int, buffer: str, weights: Weights) -> None:
        leaf = self.captured.inputs[position]
        if buffer not in self.source.buffers:
            return  # a size
        known = self.source.buffers[buffer]
        if isinstance(leaf, torch.Tensor):
            name = known.hint or f"weight{position}"
            source, role = weights.number(leaf, name), "weight"
        elif leaf < 0:
            raise CannotPackage(
                f"{self.captured.name}: a whole number is computed with as a tensor"
            )
        else:
            source, role = leaf, "input"
        self._buffer(buffer, role, source)

    def _buffer(self, name: str, role: str = "made", source: int = 0) -> int:
        if name not in self.numbers:
            buffer = self.source.buffers[name]
            self.numbers[name] = len(self.program.buffers)
            self.program.buffers.append(
                {
                    "name": buffer.hint or name,
                    "role": role,
                    "source": source,
                    "dtype": dtype_name(buffer.dtype),
                    "shape": [expression(size) for size in buffer.shape],
                    "strides": [expression(stride) for stride in buffer.strides],
                    "device": self.device or str(buffer.device),
                }
            )
        return self.numbers[name]

    def _require_unchanged_weights(self) -> None:
        changed = set(self.source.changed_inputs()) | set(self._updated())
        for position, name in enumerate(self.source.inputs):
            if name in changed and not isinstance(self.captured.inputs[position], int):
                hint = self.source.buffers[name].hint or name
                raise CannotPackage(
                    f"{self.captured.name} changes {hint}, which its calls do not give",
                    "call .eval() on the module, or pass the tensor as an argument",
                )

    # -- steps ----------------------------------------------------------------------------------

    def _kernel(self, step: Compute) -> KernelStep:
        kernel = self._packaged(step.name)
        names = argument_buffers(step.body)
        written = set(step.body.writes())
        numbers = tuple(self._buffer(name) for name in names)
        return KernelStep(
            kernel,
            step.name,
            numbers,
            tuple(n for n, name in zip(numbers, names, strict=True) if name in written),
            tuple(symbol.name for symbol in body_sizes(step.body, self.source.buffers)),
        )

    def _packaged(self, name: str) -> PackagedKernel:
        part = self.captured.part
        kernel: Kernel = part.kernels[name]
        leader = part.kernels[part.state.leaders[name]]
        if kernel.state == "generated" and leader.state == "generated":
            kernel = leader  # equal to it but for names
        source = kernel.generated
        digest = hashlib.sha256(f"{source.entry}\n{kernel.source}".encode()).hexdigest()
        if not self.device and not isinstance(find_target(kernel.target), LibraryTarget):
            raise CannotPackage(
                f"{name} is a kernel for {find_target(kernel.target).title}",
                'name the GPUs that it is for: gpus=("sm_80", "sm_90")',
            )
        return PackagedKernel(
            kernel.name,
            source.entry,
            kernel.source,
            kernel.state,
            kernel.target,
            source.signature.checks,
            digest,
        )

    def _operator(self, step: Extern) -> OperatorStep:
        target = step.target
        known = isinstance(target, torch._ops.OpOverload) and target.namespace in NAMESPACES
        if not known:
            raise CannotPackage(
                f"{self.captured.name} calls {step.label or target}, which is not an operator of "
                f"ATen ({step.reason})",
                "a package holds kernels and operators of ATen",
            )
        assert isinstance(target, torch._ops.OpOverload)
        if step.mutates:
            raise CannotPackage(f"{self.captured.name}: {target} changes tensors in place")
        line = f"line {step.where.line}" if step.where else "no line"
        reads = tuple(self._buffer(name) for name in step.reads())
        outputs = [self._buffer(name) if name else None for name in step.outputs]
        used = self._used()
        own, reason = bundled.own_call(step, self.source, self.numbers, used)
        if own is None:
            said = f"{target} ({line}): {reason}"
            if said not in self.program.needs_torch:
                self.program.needs_torch.append(said)
        json = {
            "operator": str(target),
            "arguments": [self._value(each) for each in step.args],
            "keywords": {key: self._value(each) for key, each in step.kwargs.items()},
            "outputs": [
                n if n is not None and name in used else None
                for n, name in zip(outputs, step.outputs, strict=True)
            ],
            "line": line,
        }
        made = tuple(n for n in outputs if n is not None)
        return OperatorStep(json, reads, made, own, reason)

    def _used(self) -> frozenset[str]:
        """Return the buffers that somebody reads."""
        found = set(self.source.output_buffers())
        for step in self.source.steps:
            found |= set(step.reads())
        return frozenset(found)

    def _value(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return self._view(value)
        if isinstance(value, Expr):
            known = expression(value)
            return known if isinstance(known, int) else {"size": known}
        if isinstance(value, (tuple, list)):
            return [self._value(each) for each in value]
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": repr(value)}
        for kind in (torch.dtype, torch.device, torch.layout, torch.memory_format):
            if isinstance(value, kind):
                name = kind.__name__
                return {"torch": name, "value": str(value).removeprefix("torch.")}
        raise CannotPackage(f"{self.captured.name} gives an operator a {type(value).__name__}")

    def _view(self, ref: TensorRef) -> dict[str, Any]:
        buffer = self.source.buffers[ref.buffer]
        if ref.dtype.itemsize != buffer.dtype.itemsize:
            raise CannotPackage(f"{self.captured.name} reads {buffer.dtype} as {ref.dtype}")
        number = self._buffer(ref.buffer)
        if ref.is_all_of(buffer):
            return {"buffer": number}
        found = {
            "buffer": number,
            "shape": [expression(size) for size in ref.shape],
            "strides": [expression(stride) for stride in ref.strides],
            "offset": expression(ref.offset),
        }
        bits = ref.dtype != buffer.dtype  # the same bytes, read as another type
        return {**found, "dtype": dtype_name(ref.dtype)} if bits else found

    # -- outputs ----------------------------------------------------------------------------

    def _updated(self) -> tuple[str, ...]:
        part = self.captured.part
        if part.epilogue.updates:
            return tuple(self.source.inputs[i] for i in part.epilogue.updates)
        return part.state.updated

    def _read_outputs(self) -> None:
        updated = self._updated()
        made = [self._value(each) for each in self.source.outputs]
        for position, name in enumerate(updated):
            self.program.updates.append({"output": position, "buffer": self._buffer(name)})
        for position, leaf in self.captured.views.items():
            place = position + len(updated)
            if made[place] is not None:  # else it is the argument itself
                made[place] = self._view_of_input(made[place], leaf, made)
        self.program.outputs = made

    def _view_of_input(self, value: dict[str, Any], leaf: int, made: Sequence[Any]) -> Any:
        """Return an output that lies in an argument's memory as a view of it.

        The graph returns a view of what it updates as one of the new value.

        Raises:
            CannotPackage: It is none as far as the program says.
        """
        name = self.source.inputs[self.captured.inputs.index(leaf)]
        number, buffers = self._buffer(name), self.program.buffers
        if value["buffer"] == number:
            return value
        for update in self.program.updates:
            new = made[update["output"]]
            alike = all(
                buffers[number][key] == buffers[new["buffer"]][key]
                for key in ("dtype", "shape", "strides")
            )
            if update["buffer"] == number and new == {"buffer": value["buffer"]} and alike:
                return {**value, "buffer": number}
        raise CannotPackage(
            f"{self.captured.name} returns a view of {self.captured.names[leaf]}, which it updates",
            "return a copy of it: .clone()",
        )


def outputs_before(captured: CapturedCall) -> int:
    """Return how many of a program's outputs are updates, and not returned."""
    part = captured.part
    return len(part.epilogue.updates or part.state.updated)


def with_shift(result: Any, count: int) -> Any:
    """Return a result's description with outputs counted from the program's first one."""
    if isinstance(result, dict):
        if "output" in result:
            return {"output": result["output"] + count}
        return {key: with_shift(each, count) for key, each in result.items()}
    if isinstance(result, list):
        return [with_shift(each, count) for each in result]
    return result


__all__ = ["outputs_before", "plain_program", "with_shift"]
