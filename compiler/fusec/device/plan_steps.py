"""A scheduled program on a GPU as steps with all sizes known, for one native call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.codegen.host_program import function_of_buffers, view_of_buffer
from fusec.codegen.host_values import direct_target, returns_list
from fusec.device.start_rows import in_rows
from fusec.device.step_memory import share_memory, with_frees
from fusec.device.step_numbers import MOST_PARAMETERS
from fusec.device.steps import (
    Join,
    Memory,
    MemoryPlace,
    Output,
    PythonCall,
    SizedProgram,
    Start,
    Step,
)
from fusec.ir.aliases import may_view
from fusec.ir.index import Expr, Symbol
from fusec.ir.program import Compute, Extern, Program, TensorRef, tensor_refs
from fusec.target_api.launches import LaunchRecord


def device_steps(
    program: Program,
    sizes: Mapping[Symbol, int],
    records: Mapping[str, LaunchRecord | None],
    functions: Mapping[str, Callable[..., Any]],
    join: Join | None = None,
) -> SizedProgram:
    """Return a program as steps.

    Args:
        program: The scheduled program.
        sizes: The value of every symbolic size.
        records: What each kernel's ``launch`` does at these sizes; None to call it by Python.
        functions: The kernels as Python functions of tensors and sizes.
        join: Returns steps with several starts as one, and what has to stay alive.
    """
    return _Builder(program, sizes, records, functions).build(join)


class _Builder:
    def __init__(
        self,
        program: Program,
        sizes: Mapping[Symbol, int],
        records: Mapping[str, LaunchRecord | None],
        functions: Mapping[str, Callable[..., Any]],
    ) -> None:
        self.program = program
        self.sizes = sizes
        self.records = records
        self.functions = functions
        self.steps: list[Step] = []
        self.made = set(program.inputs)
        self.kept: list[object] = []
        self.needed = program.output_buffers().union(*(step.reads() for step in program.steps))
        for step in program.steps:
            self.needed |= set(step.writes() if isinstance(step, Compute) else step.mutates)

    def number(self, expr: Expr) -> int:
        value: Any = expr.evaluate(lambda symbol: self.sizes[symbol])
        return int(value)

    def numbers(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(self.number(value) for value in values)

    def memory(self, name: str) -> Memory:
        buffer = self.program.buffers[name]
        shape, strides = self.numbers(buffer.shape), self.numbers(buffer.strides)
        return Memory(name, shape, strides, buffer.dtype)

    def build(self, join: Join | None) -> SizedProgram:
        for step in self.program.steps:
            if isinstance(step, Compute):
                self.compute(step)
            else:
                self.extern(step)
        outputs = tuple(self.output(value) for value in self.program.outputs)
        tensors = {n: self.memory(n) for n in self.program.inputs if n in self.program.buffers}
        returned = {each.name for each in outputs if each.name is not None}
        made = tuple(self.memory(name) for name in sorted(returned - set(tensors)))
        if join is not None:
            self.steps, kept = join(self.steps)
            self.kept.extend(kept)
        steps = with_frees(share_memory(self.steps, returned), returned)
        steps = in_rows(steps, tensors)
        return SizedProgram(
            self.program.inputs, tuple(steps), outputs, tensors, made, tuple(self.kept)
        )

    # -- steps ------------------------------------------------------------------------------

    def compute(self, step: Compute) -> None:
        names = argument_buffers(step.body)
        for name in step.writes():
            if name not in self.made:
                self.made.add(name)
                self.steps.append(self.memory(name))
        record = self.records.get(step.name)
        # A stack of hundreds of tensors is one kernel; what the native part takes has an end.
        if record is None or any(len(each.parameters) > MOST_PARAMETERS for each in record.starts):
            symbols = body_sizes(step.body, self.program.buffers)
            extra = [self.sizes[symbol] for symbol in symbols]
            arguments = (*(MemoryPlace(name) for name in names), *extra)
            function = self.functions[step.name]
            self.steps.append(PythonCall(function, arguments, (), (), (), False, tuple(names)))
            return
        self.kept.append(record.kernels)
        given = list(names)
        for i, each in enumerate(record.temporaries):
            given.append(f"{step.name}/{i}")
            self.steps.append(Memory(given[-1], each.shape, each.strides, each.dtype))
        written = (*step.writes(), *given[len(names) :])
        for start, kernel in zip(record.starts, record.kernels, strict=True):
            places = tuple(
                MemoryPlace(None, number) if i is None else MemoryPlace(given[i])
                for i, number in start.parameters
            )
            self.steps.append(
                Start(
                    start.function,
                    start.grid,
                    start.threads,
                    start.shared,
                    places,
                    written,
                    kernel,
                )
            )

    def extern(self, step: Extern) -> None:
        # What nobody reads may be None instead of the tensor that was predicted.
        outputs = tuple(name if name in self.needed else None for name in step.outputs)
        laid = tuple(self.memory(name) if name else None for name in outputs)
        if not any(outputs):
            outputs, laid = (), ()
        many = bool(outputs) and (len(step.outputs) > 1 or returns_list(step.target))
        self.made |= {name for name in outputs if name}
        reads = tuple(dict.fromkeys((*step.reads(), *step.mutates)))
        refs = list(tensor_refs((step.args, dict(step.kwargs))))
        values = (*step.args, *step.kwargs.values())
        plain = all(isinstance(value, TensorRef) or not has_refs(value) for value in values)
        viewed = [ref.buffer for ref in refs if not self.is_whole(ref)]
        beyond = [r.buffer for r in refs if self.reaches_beyond(r) or finds_storage(step.target)]
        fixed = tuple(dict.fromkeys((*step.mutates, *beyond)))
        if plain and not viewed:
            function = direct_target(step.target)
            arguments = tuple(
                MemoryPlace(v.buffer) if isinstance(v, TensorRef) else self.plain(v) for v in values
            )
            names = tuple(step.kwargs)
        else:
            function, buffers = function_of_buffers(self.program, step, self.sizes)
            arguments, names = tuple(MemoryPlace(name) for name in buffers), ()
        self.steps.append(
            PythonCall(
                function,
                arguments,
                names,
                outputs,
                laid,
                many,
                reads,
                fixed,
                step.is_random,
                bool(step.mutates),
                may_view(step.target),
            )
        )

    def is_whole(self, ref: TensorRef) -> bool:
        return ref.is_all_of(self.program.buffers[ref.buffer])

    def reaches_beyond(self, ref: TensorRef) -> bool:
        """Whether a view has elements outside of the memory that its buffer's elements span."""
        memory = self.memory(ref.buffer)
        if ref.dtype != memory.dtype:
            return True  # nobody knows
        shape, strides = self.numbers(ref.shape), self.numbers(ref.strides)
        offset = self.number(ref.offset)
        if 0 in shape:
            return False
        if offset < 0 or min(strides, default=0) < 0:
            return True
        reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        return (offset + reach + 1) * ref.dtype.itemsize > memory.bytes

    def plain(self, value: object) -> object:
        """Return an argument without tensors, its sizes as numbers."""
        if isinstance(value, Expr):
            return self.number(value)
        if isinstance(value, tuple):
            return tuple(self.plain(each) for each in value)
        if isinstance(value, list):
            return [self.plain(each) for each in value]
        return value

    def output(self, value: object) -> Output:
        if isinstance(value, TensorRef):
            if self.is_whole(value):
                return Output(value.buffer)
            return Output(value.buffer, view_of_buffer(self.program, value, self.sizes))
        return Output(None, constant=self.plain(value))


def finds_storage(target: object) -> bool:
    """Whether an operator goes by where a tensor lies in its storage."""
    schema = getattr(target, "_schema", None)
    return schema is not None and schema.name.startswith("aten::as_strided")


def has_refs(value: object) -> bool:
    """Whether there is a tensor in an argument."""
    return any(True for _ in tensor_refs(value))


__all__ = ["device_steps"]
