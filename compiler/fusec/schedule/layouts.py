"""Convolutions on the CPU with the channels innermost, where the layout is ours to choose.

oneDNN computes a convolution of channels-last tensors 1.3 to 2 times as fast as one of row-major
ones, which it has to reorder.  What only this program sees may lie as it likes: the tensors that
convolutions read and write, and what kernels make of them at the same places.  A buffer that the
graph returns, that comes in, or that an operator sees through a view stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fusec.ir import ops
from fusec.ir.body import (
    Body,
    Buffer,
    Compute,
    Extern,
    Program,
    Step,
    Store,
    TensorRef,
    new_axes,
    tensor_refs,
)
from fusec.ir.index import Expr
from fusec.schedule.choices import prefers_channels_last

_CONVOLUTION = torch.ops.aten.convolution.default
CHANNELS_LAST = "with the channels innermost"


def choose_layouts(program: Program) -> Program:
    """Return ``program`` with channels-last buffers around its convolutions; else itself.

    Must run within the recorder that lowered it.
    """
    wanted = [step for step in program.steps if _may_change(step, program.buffers)]
    if not wanted:
        return program
    free = _free_buffers(program)
    inner: set[str] = set()  # will be channels-last
    copied: set[str] = set()  # inputs that convolutions read as channels-last copies
    for step in program.steps:
        if isinstance(step, Extern) and step in wanted:
            x = _image(step)
            (output,) = step.outputs
            if output not in free or (x.buffer not in free and x.buffer not in program.inputs):
                continue
            (inner if x.buffer in free else copied).add(x.buffer)
            inner.add(output)
        elif isinstance(step, Compute):
            shapes = {program.buffers[name].shape for name in step.reads() if name in inner}
            inner |= {n for n in step.writes() if n in free and program.buffers[n].shape in shapes}
    if not inner:
        return program
    return _relaid(program, inner, copied)


def _may_change(step: Step, buffers: Mapping[str, Buffer]) -> bool:
    if not isinstance(step, Extern) or step.target is not _CONVOLUTION or step.kwargs:
        return False
    x, weight, _, _, _, _, transposed, _, groups = step.args
    if not isinstance(x, TensorRef) or not isinstance(weight, TensorRef) or transposed:
        return False
    sizes = [size.constant for size in (*x.shape, *weight.shape)]
    return (
        len(x.shape) == 4
        and None not in sizes
        and len(step.outputs) == 1
        and bool(step.outputs[0])
        and buffers[x.buffer].device.type == "cpu"
        and _is_whole(x, buffers)
        and prefers_channels_last(buffers[step.outputs[0]], weight.shape, groups)
    )


def _image(step: Extern) -> TensorRef:
    x = step.args[0]
    assert isinstance(x, TensorRef)
    return x


def _is_whole(ref: TensorRef, buffers: Mapping[str, Buffer]) -> bool:
    buffer = buffers[ref.buffer]
    same = (ref.shape, ref.strides, ref.dtype) == (buffer.shape, buffer.strides, buffer.dtype)
    return same and ref.offset == 0


def _free_buffers(program: Program) -> set[str]:
    """Return four-dimensional buffers that only this program sees, and only as they are."""
    free = {
        name
        for name, buffer in program.buffers.items()
        if len(buffer.shape) == 4
        and name not in program.inputs
        and None not in [size.constant for size in buffer.shape]
    }
    free -= program.output_buffers()
    for step in program.steps:
        if isinstance(step, Extern):
            refs = tensor_refs((step.args, tuple(step.kwargs.values())))
            free -= {ref.buffer for ref in refs if not _is_whole(ref, program.buffers)}
            free -= set(step.mutates)
            if step.target is not _CONVOLUTION:  # others may ask for the layout that was traced
                free -= {*step.reads(), *step.writes()}
    return free


def _relaid(program: Program, inner: set[str], copied: set[str]) -> Program:
    buffers = dict(program.buffers)
    for name in inner:
        buffers[name] = replace(buffers[name], strides=_channels_last(buffers[name].shape))
    steps: list[Step] = []
    copies: dict[str, str] = {}
    for name in sorted(copied):
        buffer = program.buffers[name]
        copy = f"{name}_channels_last"
        strides = _channels_last(buffer.shape)
        buffers[copy] = replace(buffer, name=copy, strides=strides)
        axes = new_axes(buffer.shape)
        index = tuple(Expr.of(0) if a.size == 1 else Expr.of(a) for a in axes)
        body = Body(axes, (), (Store(copy, index, ops.load(name, index, buffer.dtype)),))
        steps.append(Compute(f"copy_{copy}", body, "channels_last"))
        copies[name] = copy
    for step in program.steps:
        if isinstance(step, Extern):
            changed = step.target is _CONVOLUTION and step.outputs[0] in inner
            args = tuple(_moved(value, buffers, copies if changed else {}) for value in step.args)
            kwargs = {name: _moved(value, buffers, {}) for name, value in step.kwargs.items()}
            reason = f"{step.reason}, {CHANNELS_LAST}" if changed else step.reason
            step = replace(step, args=args, kwargs=kwargs, reason=reason)
        steps.append(step)
    return replace(program, buffers=buffers, steps=tuple(steps))


def _moved(value: object, buffers: Mapping[str, Buffer], copies: Mapping[str, str]) -> object:
    """Return an operator's argument as it lies now; only whole tensors have moved."""
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(each, buffers, copies) for each in value)
    if not isinstance(value, TensorRef):
        return value
    name = copies.get(value.buffer, value.buffer)
    buffer = buffers[name]
    moved = name != value.buffer or buffer.strides == _channels_last(buffer.shape)
    if moved and value.shape == buffer.shape and value.offset == 0:
        return replace(value, buffer=name, strides=buffer.strides)
    return value


def _channels_last(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    if len(shape) != 4:
        return ()
    _, channels, height, width = shape
    return (height * width * channels, Expr.of(1), width * channels, channels)


__all__ = ["CHANNELS_LAST", "choose_layouts"]
