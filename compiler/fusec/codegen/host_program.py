"""The host program: the Python function that allocates, launches, calls and returns.

It is straight-line source text, one line a step, so that a person can read what a call does and so
that a call costs little more than its launches.  Kernels are looked up by name in the function's
globals, which is how an edited kernel takes the place of a generated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.codegen.common.signatures import argument_buffers, body_sizes, identifier
from fusec.codegen.host_values import (
    DTYPES,
    LARGE_BYTES,
    PRODUCTS,
    buffer_bytes,
    called_as,
    direct_target,
    returns_list,
)
from fusec.devices import is_gpu
from fusec.ir.body import Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.index_text import expr_text
from fusec.ir.printer import dtype_name
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef

# Over more memory than this, tensors are freed between kernels, as soon as nobody needs them: it
# is more than what the launches cost.
GROUPED_BYTES = 1 << 24


@dataclass(frozen=True)
class HostProgram:
    """A host program as text.

    Attributes:
        text: Source of ``def run(inputs)``: what a call executes. It empties the list, so that a
            tensor that nobody else needs is freed after the last step that reads it.
        constants: Names in the text that stand for Python objects (operators, tensors).
        groups: Kernels that run one after the other and are launched by one call, by the name that
            the call has in the text.
    """

    text: str
    constants: Mapping[str, object]
    groups: Mapping[str, Group]


@dataclass(frozen=True)
class Group:
    """Kernels that one call launches; memory that only they use has no name in the host program.

    Attributes:
        steps: In order.
        buffers: What the call takes, in order.
        sizes: The symbolic sizes that it takes after them.
        inner: Buffers of constant size that only these steps write and read.
    """

    steps: tuple[Compute, ...]
    buffers: tuple[str, ...]
    sizes: tuple[Symbol, ...]
    inner: tuple[str, ...]


class _Writer:
    def __init__(self, program: Program, by_pointers: Mapping[str, bool], traced: bool) -> None:
        self.program = program
        self.by_pointers = by_pointers
        self.traced = traced
        self.views = {
            name
            for step in program.steps
            if isinstance(step, Extern) and _returns_view(step.target)
            for name in step.outputs
        }
        self.taken = {"run", "inputs", "_", "status", "threads", "failed", "launch", "expect"}
        self.taken |= {
            "expect_inputs",
            "empty",
            "empty_cpu",
            "empty_large",
            "empty_cuda",
            *DTYPES,
            *by_pointers,
        }
        self.taken.add("multiply_into")
        self.constants: dict[str, object] = {}
        self.lines: list[str] = []
        self.groups: dict[str, Group] = {}
        self.names: dict[str, str] = {}
        self.sizes: dict[Symbol, str] = {}
        self.needed = set(program.output_buffers())
        self.kernels_read: set[str] = set()
        for step in program.steps:
            self.needed |= set(step.reads())
            if isinstance(step, Compute):
                self.needed |= set(step.writes())
                self.kernels_read |= set(step.reads())
            elif step.has_unknown_size:
                self.needed |= set(step.outputs) - {""}
        # Position of the last step that reads or writes a buffer; an output has none.
        self.last_use = {
            name: position
            for position, step in enumerate(program.steps)
            for name in (*step.reads(), *step.writes())
        }
        for name in program.output_buffers():
            self.last_use.pop(name, None)

    # -- expressions ------------------------------------------------------------------------

    def expr(self, expr: Expr) -> str:
        return expr_text(expr, lambda symbol: self.sizes[symbol])

    def tuple(self, values: Sequence[Expr]) -> str:
        inner = ", ".join(self.expr(v) for v in values)
        return f"({inner},)" if len(values) == 1 else f"({inner})"

    def constant(self, value: object, hint: str) -> str:
        for name, known in self.constants.items():
            if known is value:
                return name
        name = identifier(hint, self.taken, "value")
        self.constants[name] = value
        return name

    def value(self, value: object) -> str:
        if isinstance(value, TensorRef):
            return self.ref(value)
        if isinstance(value, Expr):
            return self.expr(value)
        if isinstance(value, tuple):
            inner = ", ".join(self.value(v) for v in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        if isinstance(value, list):
            return "[" + ", ".join(self.value(v) for v in value) + "]"
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float) and math.isfinite(value):
            return repr(value)
        return self.constant(value, str(value))

    def ref(self, ref: TensorRef) -> str:
        name = self.names[ref.buffer]
        buffer = self.program.buffers[ref.buffer]
        if ref.is_all_of(buffer):
            return name
        offset = self.expr(ref.offset)
        # An input may itself start inside its storage, and so may an extern call's view of one.
        if ref.buffer in self.program.inputs or ref.buffer in self.views:
            offset = f"{name}.storage_offset() + {offset}"
        view = f"{name}.as_strided({self.tuple(ref.shape)}, {self.tuple(ref.strides)}, {offset})"
        typed = view if ref.dtype == buffer.dtype else f"{view}.view({self.dtype(ref.dtype)})"
        return f"{typed}.detach()" if ref.detached else typed

    # -- steps ------------------------------------------------------------------------------

    def dtype(self, dtype: torch.dtype) -> str:
        name = dtype_name(dtype)
        return name if DTYPES.get(name) is dtype else self.constant(dtype, name)

    def allocate(self, buffer: Buffer) -> None:
        name = self.names[buffer.name]
        shape, strides = self.tuple(buffer.shape), self.tuple(buffer.strides)
        if buffer.device.type == "cpu":
            empty = "empty_large" if (buffer_bytes(buffer) or 0) >= LARGE_BYTES else "empty_cpu"
            self.lines.append(f"{name} = {empty}({shape}, {strides}, {dtype_name(buffer.dtype)})")
        elif is_gpu(buffer.device):
            device = self.constant(buffer.device, str(buffer.device))
            dtype = dtype_name(buffer.dtype)
            self.lines.append(f"{name} = empty_cuda({shape}, {strides}, {dtype}, {device})")
        else:
            device = self.constant(buffer.device, str(buffer.device))
            self.lines.append(
                f"{name} = empty({shape}, {strides}, dtype={dtype_name(buffer.dtype)}, "
                f"device={device})"
            )

    def compute(self, step: Compute) -> None:
        buffers = argument_buffers(step.body)
        for name in step.writes():
            if name not in self.names:
                self.bind(name)
                self.allocate(self.program.buffers[name])
        sizes = [self.sizes[s] for s in body_sizes(step.body, self.program.buffers)]
        names = [self.names[name] for name in buffers]
        if self.traced:
            self.lines.append(f"launch({step.name!r}, [{', '.join(names)}], [{', '.join(sizes)}])")
        elif self.by_pointers[step.name]:
            arguments = [f"{name}.data_ptr()" for name in names] + sizes + ["threads()"]
            self.lines.append(f"status = {step.name}({', '.join(arguments)})")
            self.lines.append(f"if status: failed({step.name!r}, status)")
        else:
            self.lines.append(f"{step.name}({', '.join(names + sizes)})")

    def group_at(self, start: int) -> Group | None:
        """Return the kernels from one step on that one call can launch, if it can."""
        steps: list[Compute] = []
        for step in self.program.steps[start:]:
            if not isinstance(step, Compute) or not self.by_pointers[step.name]:
                break
            steps.append(step)
        names = list(dict.fromkeys(name for s in steps for name in argument_buffers(s.body)))
        sizes = [buffer_bytes(self.program.buffers[name]) for name in names]
        if self.traced or not steps or None in sizes or sum(s or 0 for s in sizes) > GROUPED_BYTES:
            return None
        end = start + len(steps)
        inner = [n for n in names if self.last_use.get(n, end) < end and n not in self.names]
        symbols = {s: None for step in steps for s in body_sizes(step.body, self.program.buffers)}
        outer = [name for name in names if name not in inner]
        return Group(tuple(steps), tuple(outer), tuple(symbols), tuple(inner))

    def launch(self, group: Group) -> None:
        for name in group.buffers:
            if name not in self.names:
                self.bind(name)
                self.allocate(self.program.buffers[name])
        first, last = group.steps[0].name, group.steps[-1].name
        text = f"launch_{first}" if first == last else f"launch_{first}_to_{last}"
        name = identifier(text, self.taken, "launch")
        self.groups[name] = group
        arguments = [self.names[b] for b in group.buffers] + [self.sizes[s] for s in group.sizes]
        self.lines.append(f"{name}({', '.join(arguments)})")

    def extern(self, step: Extern) -> None:
        called = called_as(step.target)
        function = self.constant(called, str(step.target).replace(".", "_"))
        arguments = [self.value(a) for a in step.args]
        arguments += [f"{k}={self.value(v)}" for k, v in step.kwargs.items()]
        if self.is_large_product(step):
            self.bind(step.outputs[0])
            self.allocate(self.program.buffers[step.outputs[0]])
            arguments += [f"out={self.names[step.outputs[0]]}"]
            self.lines.append(f"multiply_into({', '.join([function, *arguments])})")
            return
        call = f"{function}({', '.join(arguments)})"
        # What nobody reads may be None instead of the tensor that was predicted.
        outputs = [name if name in self.needed else "" for name in step.outputs]
        if len(outputs) == 1 and outputs[0]:
            comma = "," if returns_list(step.target) else ""
            target = self.bind(outputs[0])
            self.lines.append(f"{target}{comma} = {call}")
        elif not any(outputs):
            self.lines.append(call)
        else:
            targets = [self.bind(name) if name else "_" for name in outputs]
            self.lines.append(f"{', '.join(targets)} = {call}")
            if "_" in targets:
                self.lines.append("del _")
        for name in outputs:
            if name:
                target, buffer = self.names[name], self.program.buffers[name]
                predicted = f"{self.tuple(buffer.shape)}, {self.tuple(buffer.strides)}"
                # What operators alone read may be of another type than torch's fake one was.
                dtype = self.dtype(buffer.dtype) if name in self.kernels_read else "None"
                predicted += f", {dtype}, {_named(step)!r}"
                self.lines.append(f"{target} = expect({target}, {predicted})")

    def is_large_product(self, step: Step) -> bool:
        """Whether a call is a product with so large a result that its memory is best ours."""
        if not isinstance(step, Extern) or step.target not in PRODUCTS or not step.outputs[0]:
            return False
        buffer = self.program.buffers[step.outputs[0]]
        large = buffer.device.type == "cpu" and (buffer_bytes(buffer) or 0) >= LARGE_BYTES
        return large and "out" not in step.kwargs and step.outputs[0] in self.needed

    def bind(self, name: str) -> str:
        buffer = self.program.buffers[name]
        self.names[name] = identifier(buffer.hint or name, self.taken, "buf")
        return self.names[name]

    def free(self, position: int, step: Step) -> None:
        gone = [
            self.names[name]
            for name in dict.fromkeys((*step.reads(), *step.writes()))
            if self.last_use.get(name) == position and name in self.names
        ]
        if gone:
            self.lines.append(f"del {', '.join(gone)}")

    def run(self) -> str:
        program = self.program
        for name in program.inputs:
            if name in program.buffers:
                self.bind(name)
            else:
                self.names[name] = identifier(name, self.taken, "n")
        if program.inputs:
            names = ", ".join(self.names[name] for name in program.inputs)
            self.lines.append(f"{names}{',' if len(program.inputs) == 1 else ''} = inputs")
            self.lines.append("expect_inputs(inputs)")
        self.lines.append("inputs.clear()")
        for symbol, (source, dim) in program.sizes.items():
            text = self.names[source] if dim is None else f"{self.names[source]}.size({dim})"
            self.sizes[symbol] = identifier(symbol.name, self.taken, "s")
            self.lines.append(f"{self.sizes[symbol]} = {text}")
        launched = 0  # steps that the last group has done
        for position, step in enumerate(program.steps):
            group = self.group_at(position) if position >= launched else None
            if group is not None:
                self.launch(group)
                launched = position + len(group.steps)
            elif position >= launched and isinstance(step, Compute):
                self.compute(step)
            elif isinstance(step, Extern):
                self.extern(step)
            self.free(position, step)
        outputs = ", ".join(self.value(v) for v in program.outputs)
        self.lines.append(f"return [{outputs}]")
        body = "\n".join(f"    {line}" for line in self.lines)
        return f"def run(inputs):\n{body}\n"


def _returns_view(target: object) -> bool:
    """Whether a result of an operator lies in memory of what it is given: ``view_as_real``."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(each.alias_info is not None for each in schema.returns)


def _named(step: Extern) -> str:
    """Return an operator with its line, as a message names it."""
    return f"{step.target} (line {step.where.line})" if step.where else f"{step.target}"


def function_of_buffers(
    program: Program, step: Extern, sizes: Mapping[Symbol, int]
) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Return an extern call as a function of whole buffers, and the buffers.

    Args:
        program: What the step is from.
        step: The call; it may take views and lists.
        sizes: The value of every symbolic size.
    """
    buffers = step.reads()
    writer = _bound(program, buffers, sizes)
    called = writer.constant(direct_target(step.target), "function")
    arguments = [writer.value(a) for a in step.args]
    arguments += [f"{k}={writer.value(v)}" for k, v in step.kwargs.items()]
    return _lambda(f"{called}({', '.join(arguments)})", writer), buffers


def view_of_buffer(
    program: Program, ref: TensorRef, sizes: Mapping[Symbol, int]
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what makes a view of its buffer; as for ``function_of_buffers``."""
    writer = _bound(program, (ref.buffer,), sizes)
    return _lambda(writer.ref(ref), writer)


def _bound(program: Program, buffers: Sequence[str], sizes: Mapping[Symbol, int]) -> _Writer:
    writer = _Writer(program, {}, traced=False)
    writer.names = {name: f"b{i}" for i, name in enumerate(buffers)}
    writer.sizes = {symbol: str(size) for symbol, size in sizes.items()}
    return writer


def _lambda(text: str, writer: _Writer) -> Callable[..., Any]:
    space = {**DTYPES, **writer.constants}
    made: Callable[..., Any] = eval(f"lambda {', '.join(writer.names.values())}: {text}", space)
    return made


def emit_host(
    program: Program, by_pointers: Mapping[str, bool], *, traced: bool = False
) -> HostProgram:
    """Write the host program of a scheduled program whose steps have their final names.

    Args:
        program: The program.
        by_pointers: Kernel name to whether it is called with pointers, or with tensors.
        traced: Launch each kernel through ``launch(name, tensors, sizes)``, so that its own inputs
            can be caught.
    """
    writer = _Writer(program, by_pointers, traced=traced)
    text = writer.run()
    return HostProgram(text, writer.constants, writer.groups)
