"""Where errors begin: every kernel's results and every value inside of it against float64.

The scheduled program runs step by step: as compiled (the tensors that the kernels really wrote),
in the tensors' own dtypes by eager operators, and in float64.  Inside of a kernel the values
exist nowhere in memory, so there the second and the third are compared, line by line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from fusec.compiled.part import CompiledPart
from fusec.devices import is_gpu
from fusec.errors import FusecError
from fusec.inspect.trace import Anomaly, ElementPlace, LineError, TensorError, Trace
from fusec.ir.body import Body
from fusec.ir.index import Expr, Symbol
from fusec.ir.interpret import body_values, extern_results, run_body, size_values
from fusec.ir.node import Const, Load, Node, Reduce, Scan
from fusec.ir.program import Compute, Extern
from fusec.memory.strided import clone_strided
from fusec.random import generators_kept, reseed
from fusec.report import SourceLine
from fusec.schedule.choices import points
from fusec.schedule.step_graph import tensor_name

# Values of a body held at once, in elements; beyond that only what it writes is looked at.
MOST_VALUES = 1 << 26
_SEED = 0


class NotTraced(FusecError):
    """A part whose numbers cannot be followed."""


def trace_part(part: CompiledPart) -> Trace:
    """Follow the numbers of a part's latest call.

    Raises:
        NotTraced: It has not run with its inputs kept.
    """
    if part.last_inputs is None:
        raise NotTraced("it has not run with its inputs kept", "run the cell again")
    given = [clone_strided(t) if isinstance(t, torch.Tensor) else t for t in part.last_inputs]
    devices = {t.device for t in given if isinstance(t, torch.Tensor) and is_gpu(t.device)}
    kept = torch.random.fork_rng(devices) if part.draws else generators_kept()
    with torch.no_grad(), kept:
        reseed(_SEED, draws=part.draws)
        written = _written(part, given)
        return _Tracer(part, given, written).run()


def _written(part: CompiledPart, inputs: list[Any]) -> list[tuple[str, list[torch.Tensor]]]:
    """Run the host program and keep what each kernel wrote, in order of launch."""
    from fusec.codegen.common.signatures import argument_buffers

    found: list[tuple[str, list[torch.Tensor]]] = []

    def launch(name: str, tensors: list[torch.Tensor], sizes: list[int]) -> None:
        kernel = part.kernels[name]
        kernel.runnable()(tensors, sizes)
        names = argument_buffers(kernel.body)
        found.extend(
            (buffer, [tensor.detach().clone()])
            for buffer, tensor, argument in zip(
                names, tensors, kernel.signature.arguments, strict=True
            )
            if argument.role != "in"
        )

    part.trace([clone_strided(t) if isinstance(t, torch.Tensor) else t for t in inputs], launch)
    return found


class _Tracer:
    def __init__(
        self,
        part: CompiledPart,
        inputs: list[Any],
        written: list[tuple[str, list[torch.Tensor]]],
    ) -> None:
        self.program = part.state.scheduled
        self.draws = part.draws
        self.written: dict[str, list[torch.Tensor]] = {}
        for buffer, tensors in written:
            self.written.setdefault(buffer, []).extend(tensors)
        self.sizes = size_values(self.program, inputs)
        named = zip(self.program.inputs, inputs, strict=True)
        self.own = {name: v for name, v in named if isinstance(v, torch.Tensor)}
        self.exact = {name: _raised(tensor) for name, tensor in self.own.items()}
        self.tensors: list[TensorError] = []
        self.lines: list[LineError] = []
        self.anomalies: list[Anomaly] = []
        self.skipped: list[str] = []

    def run(self) -> Trace:
        for name, tensor in self.own.items():
            if not _finite(tensor):
                label = tensor_name(self.program, name)
                bad = ~tensor.isfinite()
                self._note("input", label, None, bad, tensor, tensor, [])
        for step in self.program.steps:
            if isinstance(step, Compute):
                self._compute(step)
            else:
                self._extern(step)
        self.lines.sort(key=lambda each: (each.where.file, each.where.line))
        return Trace(
            tuple(self.tensors), tuple(self.lines), tuple(self.anomalies), tuple(self.skipped)
        )

    def _compute(self, step: Compute) -> None:
        self._allocate(step)
        body = step.body
        if _held(body) > MOST_VALUES:
            self.skipped.append(step.name)
            run_body(body, self.own, self.sizes)
            run_body(body, self.exact, self.sizes, torch.float64)
        else:
            own = body_values(body, self.own, self.sizes)
            exact = body_values(body, self.exact, self.sizes, torch.float64)
            self._lines(step, own, exact)
            del own, exact
            run_body(body, self.own, self.sizes)
            run_body(body, self.exact, self.sizes, torch.float64)
        for name in step.writes():
            mine = self.written.get(name, [None]).pop(0) if self.written.get(name) else None
            self._tensor(step.name, name, mine, kernel=True)

    def _allocate(self, step: Compute) -> None:
        for name in step.writes():
            if name in self.own:
                continue
            buffer = self.program.buffers[name]
            shape, strides = ([_number(e, self.sizes) for e in each]
                              for each in (buffer.shape, buffer.strides))  # fmt: skip
            made = torch.empty_strided(shape, strides, dtype=buffer.dtype, device=buffer.device)
            self.own[name] = made
            self.exact[name] = torch.empty_strided(
                shape, strides, dtype=_exact_dtype(buffer.dtype), device=buffer.device
            )

    def _extern(self, step: Extern) -> None:
        reseed(_SEED, draws=self.draws)  # what is drawn is one and the same in all three
        results = extern_results(step, self.own, self.sizes)
        reseed(_SEED, draws=self.draws)
        raised = extern_results(step, self.exact, self.sizes)
        for name, mine, exact in zip(step.outputs, results, raised, strict=False):
            if name:
                self.own[name], self.exact[name] = mine, _raised(exact)
        if step.is_plumbing:
            return
        label = str(step.target).removesuffix(".default")
        for name in step.writes():
            if name:
                self._tensor(label, name, None, kernel=False)
                self._appears(label, label, step, name)

    def _tensor(self, step: str, name: str, mine: torch.Tensor | None, *, kernel: bool) -> None:
        own, exact = self.own[name], self.exact[name]
        if not own.is_floating_point():
            return
        shown = mine if mine is not None else own
        error, worst = _difference(shown, exact)
        self.tensors.append(
            TensorError(
                step,
                tensor_name(self.program, name),
                str(own.dtype).removeprefix("torch."),
                error,
                _difference(own, exact)[0],
                worst,
                kernel,
            )
        )

    def _appears(self, label: str, operator: str, step: Extern, name: str) -> None:
        read = [self.own[b] for b in step.reads() if b in self.own]
        if all(_finite(t) for t in read) and not _finite(self.own[name]):
            bad = ~self.own[name].isfinite()
            self._note(label, operator, step.where, bad, self.own[name], self.exact[name], [])

    def _lines(
        self, step: Compute, own: Mapping[Node, torch.Tensor], exact: Mapping[Node, torch.Tensor]
    ) -> None:
        """Compare the values inside of a kernel, and note each line's largest error."""
        errors: dict[Node, float] = {}
        best: dict[SourceLine, tuple[float, str]] = {}
        entering: dict[SourceLine, float] = {}
        for node in step.body.nodes():
            value = own[node]
            if not value.is_floating_point() or isinstance(node, Const):
                continue
            errors[node] = _difference(value, exact[node])[0]
            if not isinstance(node, Load):
                self._anomaly(step, node, own, exact)
            if node.source is None:
                continue
            arguments = [errors[a] for a in node.args if a in errors and a.source != node.source]
            arguments += [errors[node]] if isinstance(node, Load) else []
            for error in arguments:
                if not math.isnan(error):
                    entering[node.source] = max(entering.get(node.source, 0.0), error)
            known = best.get(node.source, (-1.0, ""))
            if math.isnan(errors[node]) or errors[node] > known[0]:
                best[node.source] = (errors[node], operator_name(node))
        for where, (error, operator) in best.items():
            self.lines.append(
                LineError(step.name, where, operator, error, entering.get(where, 0.0))
            )

    def _anomaly(
        self,
        step: Compute,
        node: Node,
        own: Mapping[Node, torch.Tensor],
        exact: Mapping[Node, torch.Tensor],
    ) -> None:
        value = own[node]
        if _finite(value):
            return
        if isinstance(node, Reduce | Scan) and not all(_finite(own[a]) for a in node.args):
            return  # one element of what it takes is enough
        bad = ~value.isfinite()
        for argument in node.args:
            if not isinstance(node, Reduce | Scan) and own[argument].is_floating_point():
                bad = bad & own[argument].isfinite()
        if bool(bad.any()):
            arguments = [own[a] for a in node.args]
            self._note(step.name, operator_name(node), node.source, bad, value, exact[node],
                       arguments)  # fmt: skip

    def _note(
        self,
        step: str,
        operator: str,
        where: SourceLine | None,
        bad: torch.Tensor,
        value: torch.Tensor,
        exact: torch.Tensor,
        arguments: list[torch.Tensor],
    ) -> None:
        value = value.expand(bad.shape)
        place = _index(int(bad.reshape(-1).to(torch.uint8).argmax()), bad.shape)
        found = float(value[place])
        given = tuple(
            float(a.expand(bad.shape)[place]) for a in arguments if _expands(a.shape, bad.shape)
        )
        same = not math.isfinite(float(exact.expand(bad.shape)[place]))
        kind = "NaN" if math.isnan(found) else "infinity"
        self.anomalies.append(
            Anomaly(kind, step, operator, where, place, given, int(bad.sum()), same)
        )


def operator_name(node: Node) -> str:
    """Return what a person calls what a node computes."""
    if isinstance(node, Load):
        return "load"
    name = str(getattr(node, "name", "") or getattr(node, "kind", "") or "cast")
    return {"truediv": "div", "floordiv": "floor_divide"}.get(name, name)


def _held(body: Body) -> int:
    return points(body.axes) * points(body.reduce_axes) * len(body.nodes())


def _number(expr: Expr, sizes: Mapping[Symbol, int]) -> int:
    result = expr.evaluate(lambda s: sizes[s])
    assert isinstance(result, int)
    return result


def _exact_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype


def _raised(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def _expands(shape: torch.Size, to: torch.Size) -> bool:
    return len(shape) == len(to) and all(a in (1, b) for a, b in zip(shape, to, strict=True))


def _index(flat: int, shape: torch.Size) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        found.append(flat % size)
        flat //= size
    return tuple(reversed(found))


def _difference(value: torch.Tensor, exact: torch.Tensor) -> tuple[float, ElementPlace]:
    """Return the relative error of a tensor, and the element that is furthest off."""
    if not value.numel():
        return 0.0, ElementPlace((), math.nan, math.nan)
    value, exact = torch.broadcast_tensors(value, exact)
    mine = value.double()
    both = mine.isfinite() & exact.isfinite()
    equal = (mine == exact) | (mine.isnan() & exact.isnan())
    gap = torch.where(both, (mine - exact).abs(), math.inf).masked_fill_(equal, 0.0)
    place = _index(int(gap.reshape(-1).argmax()), gap.shape)
    worst = ElementPlace(place, float(mine[place]), float(exact[place]))
    if not math.isfinite(float(gap[place])):
        return math.nan, worst
    scale = math.sqrt(float(torch.where(both, exact, 0.0).square().mean()))
    error = math.sqrt(float(gap.square().mean()))
    return (error / scale if scale else error), worst
