"""The reference interpreter: slow and obviously right, the oracle of all tests.

Every node becomes one tensor over the whole iteration space (broadcast where it does not depend
on an axis), computed by eager torch operators.  With ``precision=torch.float64`` all floating
point maths runs in float64, which gives the yardstick for everybody's rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusec.ir.body import Body
from fusec.ir.checks import check_parts, is_check
from fusec.ir.index import Expr, Symbol
from fusec.ir.library_calls import call_exactly
from fusec.ir.node import Cast, Const, Dot, IndexValue, Load, Node, Op, Reduce, Scan
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef
from fusec.ir.scalars import SCALARS


class CheckFailed(IndexError):
    """A run-time check of a body failed (an index out of range, say)."""


class Evaluator:
    """The values of a body's nodes, each a tensor over all its loops.

    Args:
        body: What to evaluate.
        tensors: By buffer name.
        sizes: Of the symbolic sizes.
        precision: As in ``run_body``.
        device: Where.
    """

    def __init__(
        self,
        body: Body,
        tensors: Mapping[str, torch.Tensor],
        sizes: Mapping[Symbol, int],
        precision: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self.tensors = tensors
        self.sizes = sizes
        self.precision = precision
        self.device = device
        self.axes = body.axes + body.reduce_axes
        self.values: dict[int, torch.Tensor] = {}
        self.extents = [self.size(axis.size) for axis in self.axes if axis.size is not None]
        for node in body.nodes():
            self.values[id(node)] = self.compute(node)

    def size(self, expr: Expr) -> int:
        """Return a size's value."""
        result = expr.evaluate(lambda s: self.sizes[s])
        assert isinstance(result, int)
        return result

    def symbol(self, symbol: Symbol) -> torch.Tensor | int:
        """Return a symbol's value; an axis's are all its positions."""
        if symbol.kind == "size":
            return self.sizes[symbol]
        if symbol.kind == "indirect":
            return self.values[id(symbol.payload)]
        position = self.axes.index(symbol)
        shape = [1] * len(self.axes)
        shape[position] = self.extents[position]
        return torch.arange(self.extents[position], device=self.device).reshape(shape)

    def index(self, expr: Expr) -> torch.Tensor:
        """Return an index expression's values."""
        result = expr.evaluate(self.symbol)
        if isinstance(result, torch.Tensor):
            return result
        shape = [1] * len(self.axes)
        return torch.full(shape, int(result), dtype=torch.int64, device=self.device)  # type: ignore[call-overload]

    def real(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type that is computed in where a node says ``dtype``."""
        return self.precision if self.precision and dtype.is_floating_point else dtype

    def compute(self, node: Node) -> torch.Tensor:
        """Return a node's values, from those of its arguments."""
        args = [self.values[id(arg)] for arg in node.args]
        dtype = self.real(node.dtype)
        if isinstance(node, Const):
            shape = [1] * len(self.axes)
            return torch.full(shape, node.value, dtype=dtype, device=self.device)
        if isinstance(node, IndexValue):
            return self.index(node.expr).to(dtype)
        if isinstance(node, Load):
            return self.load(node)
        if isinstance(node, Cast):
            return args[0].view(node.dtype) if node.bitcast else args[0].to(dtype)
        if isinstance(node, Dot):
            return self.dot(node, args[0], args[1])
        if isinstance(node, Reduce):
            return self.reduce(node, args[0])
        if isinstance(node, Scan):
            return self.scan(node, args[0])
        assert isinstance(node, Op)
        if is_check(node):
            if not bool(args[0].all()):
                raise CheckFailed(check_parts(node.name)[1])
            return args[1]
        result = SCALARS[node.name].reference(*args)
        assert isinstance(result, torch.Tensor)
        return result if result.dtype == dtype else result.to(dtype)

    def load(self, node: Load) -> torch.Tensor:
        """Return what a node loads."""
        tensor = self.tensors[node.buffer]
        index = [self.index(e) for e in node.index]
        if node.mask is None:
            value = tensor[tuple(index)] if index else tensor.reshape([1] * len(self.axes))
        else:
            mask = self.values[id(node.mask)]
            safe = [torch.where(mask, i, torch.zeros_like(i)) for i in index]
            if tensor.numel() == 0:
                shape = torch.broadcast_shapes(mask.shape, *(i.shape for i in index))
                value = torch.zeros(shape, dtype=tensor.dtype, device=self.device)
            elif safe:
                value = tensor[tuple(safe)]
            else:
                value = tensor.reshape([1] * len(self.axes))
            other = torch.full_like(value, node.other)
            value = torch.where(mask, value, other)
        return value.to(self.real(node.dtype))

    def scan(self, node: Scan, value: torch.Tensor) -> torch.Tensor:
        """Scan a value along its node's axis."""
        dim = self.axes.index(node.axis)
        shape = list(value.shape)
        shape[dim] = self.extents[dim]
        value = value.expand(shape)
        if node.kind == "sum":
            result = value.cumsum(dim, dtype=value.dtype)
        elif node.kind == "prod":
            result = value.cumprod(dim, dtype=value.dtype)
        elif node.kind == "logsumexp":
            result = value.logcumsumexp(dim)
        else:
            largest = node.kind.removeprefix("arg") == "max"
            values, positions = value.cummax(dim) if largest else value.cummin(dim)
            result = positions if node.kind.startswith("arg") else values
        return result.to(self.real(node.dtype))

    def dot(self, node: Dot, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Multiply by einsum: one letter a loop, without the loops that an argument has not."""
        dtype = self.real(node.dtype)
        reduced = {self.axes.index(axis) for axis in node.axes}
        dims = range(len(self.axes))
        operands, letters = [], []
        for value in (left.to(dtype), right.to(dtype)):
            shape = [self.extents[d] if d in reduced else value.shape[d] for d in dims]
            kept = [d for d in dims if shape[d] != 1 or d in reduced]
            operands.append(value.expand(shape).reshape([shape[d] for d in kept]))
            letters.append("".join(chr(ord("a") + d) for d in kept))
        result = [d for d in dims if chr(ord("a") + d) in letters[0] + letters[1]]
        result = [d for d in result if d not in reduced]
        to = "".join(chr(ord("a") + d) for d in result)
        total = torch.einsum(f"{letters[0]},{letters[1]}->{to}", *operands)
        return total.reshape([self.extents[d] if d in result else 1 for d in dims])

    def reduce(self, node: Reduce, value: torch.Tensor) -> torch.Tensor:
        """Reduce a value over its node's axes, which stay with one element each."""
        dims = [self.axes.index(axis) for axis in node.axes]
        shape = list(value.shape)
        for dim in dims:
            shape[dim] = self.extents[dim]
        value = value.expand(shape)
        kind = node.kind
        if kind == "sum":
            total = value.sum(dims, keepdim=True, dtype=value.dtype) if dims else value
            return total.to(self.real(node.dtype))
        # the others take one dimension: move the reduced ones last and flatten them
        rest = [d for d in range(len(shape)) if d not in dims]
        flat = value.permute([*rest, *dims]).reshape(
            [shape[d] for d in rest] + [math.prod(shape[d] for d in dims)]
        )
        if flat.shape[-1] == 0 and kind in ("max", "min", "argmax", "argmin"):
            # nothing is ever stored from here; any value of the right shape will do
            result = torch.zeros(flat.shape[:-1], dtype=self.real(node.dtype), device=flat.device)
        elif kind == "prod":
            result = flat.prod(-1, dtype=flat.dtype)
        elif kind in ("max", "min"):
            result = flat.amax(-1) if kind == "max" else flat.amin(-1)
        elif kind in ("any", "all"):
            result = flat.any(-1) if kind == "any" else flat.all(-1)
        elif kind == "xor":
            result = flat.to(torch.bool).sum(-1) % 2 == 1
        elif kind in ("argmax", "argmin"):
            result = flat.argmax(-1) if kind == "argmax" else flat.argmin(-1)
            extreme = flat.gather(-1, result.unsqueeze(-1))
            same = (flat == extreme) | (torch.isnan(flat) & torch.isnan(extreme))
            positions = torch.arange(flat.shape[-1], device=flat.device).expand(flat.shape)
            last = torch.full_like(positions, flat.shape[-1])
            result = torch.where(same, positions, last).amin(-1)
        else:
            raise AssertionError(f"reduction {kind}")
        kept = [1 if d in dims else shape[d] for d in range(len(shape))]
        return result.reshape(kept).to(self.real(node.dtype))


def run_body(
    body: Body,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    precision: torch.dtype | None = None,
    evaluate: type[Evaluator] = Evaluator,
) -> None:
    """Execute ``body`` on ``tensors`` (by buffer name), writing into its output buffers.

    With ``precision`` (``torch.float64``), floating-point inputs may be of that dtype and the
    outputs should be, so that no rounding to the buffers' own types occurs. ``evaluate`` is what
    works the nodes out.

    Raises:
        CheckFailed: A run-time check failed, as eager would raise IndexError.
    """
    names = body.writes() + body.reads()
    device = tensors[names[0]].device if names else torch.device("cpu")
    evaluator = evaluate(body, tensors, sizes or {}, precision, device)
    if 0 in evaluator.extents[: len(body.axes)]:
        return
    results = []
    for store in body.stores:
        index = [evaluator.index(e) for e in store.index]
        value = evaluator.values[id(store.value)]
        shape = torch.broadcast_shapes(value.shape, *(i.shape for i in index))
        if store.mode == "sum":  # every point counts, also where nothing depends on its row
            shape = torch.Size(evaluator.extents)
        places, value = [i.expand(shape) for i in index], value.expand(shape)
        if store.condition is not None:
            chosen = evaluator.values[id(store.condition)].expand(shape)
            places, value = [place[chosen] for place in places], value[chosen]
        results.append((store, places, value))
    for store, index, value in results:  # all values are read before anything is written
        if value.numel():
            _write(tensors[store.buffer], index, value, store.mode)


def body_values(
    body: Body,
    tensors: Mapping[str, torch.Tensor],
    sizes: Mapping[Symbol, int] | None = None,
    precision: torch.dtype | None = None,
) -> dict[Node, torch.Tensor]:
    """Return every value of a body over its loops, by node; nothing is written.

    Args:
        body: What to evaluate.
        tensors: By buffer name.
        sizes: Of the symbolic sizes.
        precision: As in ``run_body``.
    """
    device = next(iter(tensors.values())).device if tensors else torch.device("cpu")
    evaluator = Evaluator(body, tensors, sizes or {}, precision, device)
    return {node: evaluator.values[id(node)] for node in body.nodes()}


class Along:
    """The values of nodes along the one axis that they depend on, each computed once.

    Args:
        axis: The axis, of known size.
    """

    def __init__(self, axis: Symbol) -> None:
        self._evaluator = Evaluator(Body((axis,), (), ()), {}, {}, None, torch.device("cpu"))
        # their ids are the evaluator's keys
        self._nodes: dict[Node, torch.Tensor] = {}

    def __call__(self, node: Node) -> torch.Tensor:
        """Return a value for every position, 1-D."""
        if node not in self._nodes:
            for arg in node.args:
                self(arg)
            value = self._evaluator.compute(node)
            self._evaluator.values[id(node)] = value
            self._nodes[node] = value.expand(self._evaluator.extents[0])
        return self._nodes[node]


def size_values(program: Program, inputs: Sequence[object]) -> dict[Symbol, int]:
    """Return the values of a program's symbolic sizes, from its inputs."""
    given = dict(zip(program.inputs, inputs, strict=True))
    sizes: dict[Symbol, int] = {}
    for symbol, (name, dim) in program.sizes.items():
        value = given[name]
        sizes[symbol] = value.shape[dim] if isinstance(value, torch.Tensor) else value  # type: ignore[index,assignment]
    return sizes


def _evaluated(
    value: object, tensors: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]
) -> Any:
    """Return what stands for an argument: a tensor, a number, or a list of such."""
    if isinstance(value, Expr):
        result = value.evaluate(lambda s: sizes[s])
        assert isinstance(result, int)
        return result
    if isinstance(value, (list, tuple)):
        return type(value)(_evaluated(item, tensors, sizes) for item in value)
    if isinstance(value, TensorRef):
        memory = tensors[value.buffer]
        shape, strides, offset = _evaluated(
            (value.shape, value.strides, value.offset), tensors, sizes
        )
        view = memory.as_strided(shape, strides, memory.storage_offset() + offset)
        # A tensor in float64 stands for one of less where all is computed so: it is no other type.
        raised = view.dtype == torch.float64 and value.dtype.is_floating_point
        return view if raised or view.dtype == value.dtype else view.view(value.dtype)
    return value


def extern_results(
    step: Extern, tensors: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]
) -> tuple[torch.Tensor, ...]:
    """Call the operator of a step; return its results.

    Args:
        step: What to call.
        tensors: By buffer name.
        sizes: Of the symbolic sizes.
    """
    result = call_exactly(
        step.target,
        [_evaluated(a, tensors, sizes) for a in step.args],
        {k: _evaluated(v, tensors, sizes) for k, v in step.kwargs.items()},
    )
    if isinstance(result, (tuple, list)):
        return tuple(result)
    assert isinstance(result, torch.Tensor)
    return (result,)


_REDUCTIONS = {"sum": "sum", "add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _write(target: torch.Tensor, index: list[torch.Tensor], value: torch.Tensor, mode: str) -> None:
    value = value.to(target.dtype)
    if mode == "sum":
        target.zero_()
    if mode in _REDUCTIONS:
        places = torch.zeros_like(value, dtype=torch.int64)
        for position, size in zip(index, target.shape, strict=True):
            places = places * size + position
        flat = target.reshape(-1)  # a copy where the target has gaps or another order
        flat = flat.scatter_reduce(0, places.reshape(-1), value.reshape(-1), _REDUCTIONS[mode])
        target.copy_(flat.reshape(target.shape))
    elif index:
        target.index_put_(tuple(index), value)
    else:
        target.copy_(value.reshape(()))


def run_program(
    program: Program,
    inputs: Sequence[object],
    precision: torch.dtype | None = None,
    observe: Callable[[Step, Mapping[str, torch.Tensor]], None] | None = None,
) -> list[object]:
    """Execute a whole program with the interpreter; return its outputs.

    Args:
        program: What to run.
        inputs: Tensors and ints, in the order of ``program.inputs``; not modified unless the
            program mutates its inputs.
        precision: As in ``run_body``.
        observe: Told of each step when it has run, with all buffers so far.
    """
    sizes = size_values(program, inputs)
    tensors: dict[str, torch.Tensor] = {}
    given = dict(zip(program.inputs, inputs, strict=True))
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            raised = precision if precision and value.is_floating_point() else value.dtype
            tensors[name] = value.to(raised)

    for step in program.steps:
        if isinstance(step, Compute):
            for name in step.writes():
                if name not in tensors:
                    buffer = program.buffers[name]
                    raised = (
                        precision if precision and buffer.dtype.is_floating_point else buffer.dtype
                    )
                    tensors[name] = torch.empty_strided(
                        *_evaluated((buffer.shape, buffer.strides), tensors, sizes),
                        dtype=raised,
                        device=buffer.device,
                    )
            run_body(step.body, tensors, sizes, precision)
        else:
            assert isinstance(step, Extern)
            parts = extern_results(step, tensors, sizes)
            for name, part in zip(step.outputs, parts, strict=False):
                if name:
                    assert isinstance(part, torch.Tensor)
                    tensors[name] = part
        if observe is not None:
            observe(step, tensors)
    return [_evaluated(value, tensors, sizes) for value in program.outputs]


__all__ = [
    "Along",
    "CheckFailed",
    "Evaluator",
    "body_values",
    "extern_results",
    "run_body",
    "run_program",
    "size_values",
]
