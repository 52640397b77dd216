"""The driver: walks an FX graph, asks the registry, and collects a ``Program``."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fusec.abilities import Abilities
from fusec.devices import CPU, GPU, has_float8, is_gpu
from fusec.errors import DeviceNotThere
from fusec.graph.facts.notes import Note, NoteKind, notes, said_of_captured
from fusec.graph.facts.storages import makers_of_shared_results
from fusec.graph.facts.user_lines import user_line
from fusec.graph.products.widened_halves import STORED
from fusec.graph.refusals.kernels import refused
from fusec.graph.simplify.extremes import COMPARED
from fusec.graph.training.norm_inputs import ROUNDED
from fusec.ir.body import Buffer, ExternKind, Program, TensorRef
from fusec.ir.index import Expr
from fusec.ir.node import Recorder, const, recording, source_line
from fusec.lower import (  # noqa: F401  (importing a family registers it)
    attention,
    attention_backward,
    convolution,
    embedding,
    factories,
    indexing,
    matmul,
    normalization,
    pointwise,
    pooling,
    pooling_backward,
    promises,
    random,
    reductions,
    scans,
    scatter,
    special,
    views,
    windows,
)
from fusec.lower.gaps import laid_out, lies_as
from fusec.lower.higher_order import Subgraph, call_whole
from fusec.lower.names import part_of, readable
from fusec.lower.promises import PromisedNumber
from fusec.lower.registry import find_rule
from fusec.lower.sizes import SizeTable, fixed
from fusec.lower.values import (
    SUPPORTED_DTYPES,
    GraphNotLowered,
    Lowering,
    NotLowered,
    ResultMeta,
    TensorValue,
)
from fusec.options import Options
from fusec.report import SourceLine

# What may meet types that nothing computes in: it converts them.
CONVERSIONS = frozenset({torch.ops.aten._to_copy, torch.ops.prims.convert_element_type})


class _Driver:
    def __init__(
        self,
        module: fx.GraphModule,
        emulate_rounding: bool,
        abilities: Callable[[str], Abilities],
        recorder: Recorder,
    ) -> None:
        self.module = module
        self.sizes = SizeTable()
        self.lowering = Lowering(recorder, emulate_rounding, abilities)
        self.lowering.inline = self.inline
        self.values: dict[fx.Node, object] = {}
        self.inputs: list[str] = []
        self.bindings: dict[str, tuple[str, int | None]] = {}
        self.outputs: tuple[object, ...] = ()
        self.shared = makers_of_shared_results(module.graph)
        self.notes: list[str] = []
        self.once: set[str] = set()
        self.form: TreeSpec | None = None  # of the results of the call being lowered

    # -- metadata ---------------------------------------------------------------------------

    def tensor_meta(self, value: object) -> ResultMeta | None:
        if not isinstance(value, torch.Tensor):
            return None
        if value.layout != torch.strided:
            raise GraphNotLowered(f"{value.layout} tensors")
        return ResultMeta(
            tuple(self.sizes.convert(s) for s in value.shape),
            value.dtype,
            value.device,
            tuple(self.sizes.convert_stride(s) for s in value.stride()),
            self.sizes.convert(value.storage_offset()),
        )

    # -- nodes ------------------------------------------------------------------------------

    def placeholder(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        name = node.name
        self.inputs.append(name)
        if isinstance(value, torch.SymInt):
            expr = self.sizes.convert(value)
            if expr.constant is None:
                (symbol,) = expr.symbols() if len(expr.symbols()) == 1 else (None,)
                if symbol is not None and expr == Expr.of(symbol):
                    self.bindings.setdefault(symbol.name, (name, None))
            self.values[node] = expr
            return
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        meta = self.tensor_meta(value)
        assert meta is not None
        for dim, size in enumerate(meta.shape):
            symbols = size.symbols()
            if len(symbols) == 1 and size == Expr.of(next(iter(symbols))):
                self.bindings.setdefault(next(iter(symbols)).name, (name, dim))
        hint = readable(node)
        buffer = Buffer(name, meta.shape, meta.strides, meta.dtype, meta.device, hint)
        self.lowering.buffers[name] = buffer
        self.lowering.storage_offsets[name] = meta.offset
        self.values[node] = self.lowering.from_buffer(buffer)

    def argument(self, value: object) -> object:
        if isinstance(value, fx.Node):
            found = self.values[value]
            if isinstance(found, (torch.SymFloat, torch.SymBool)):
                try:
                    found = self.values[value] = fixed(found)
                except NotLowered as reason:
                    raise GraphNotLowered(str(reason)) from None
            return found
        if isinstance(value, (list, tuple)):
            return type(value)(self.argument(v) for v in value)
        if isinstance(value, dict):
            return {k: self.argument(v) for k, v in value.items()}
        return value

    def call(self, node: fx.Node) -> None:
        target = node.target
        value = node.meta.get("val")
        if isinstance(value, (torch.SymBool, torch.SymFloat, bool, float)):
            if isinstance(target, torch._ops.OpOverload):
                raise GraphNotLowered(f"{target} gives a Python value")
            self.values[node] = value  # used, if at all, by a call that takes a number
            return
        if target is operator.getitem:
            several, position = (self.argument(a) for a in node.args)
            self.values[node] = several[position]  # type: ignore[index]
            return
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            self.values[node] = self.sizes.convert(value)
            if target is torch.ops.aten._local_scalar_dense.default:
                self.promised(node)
            return
        args = tuple(self.argument(a) for a in node.args)
        kwargs = {k: self.argument(v) for k, v in node.kwargs.items()}
        if value is None and not isinstance(target, torch._ops.OpOverload):
            raise GraphNotLowered(f"{target} computes on Python values")
        lowering = self.lowering
        several = isinstance(value, (tuple, list))
        # a tuple may have tuples in it: the gradients of what a function has captured
        metas, self.form = tree_flatten(value if several else (value,))
        lowering.results = tuple(self.tensor_meta(v) for v in metas)
        lowering.result = lowering.results[0] if lowering.results else None
        lowering.wanted = _read_results(node)
        lowering.label = _label(target)
        lowering.hint = readable(node)
        lowering.where = user_line(node.meta.get("stack_trace"))
        lowering.stored = bool(node.meta.get(STORED))
        lowering.rounds = bool(node.meta.get(ROUNDED))
        said = said_of_captured(node)
        lowering.notes = (*notes(node), *((Note(NoteKind.LEFT, said),) if said else ()))
        for meta in lowering.results:
            if meta is not None:
                _require_device(meta.device, lowering.where)
        with source_line(lowering.where):
            asked = str(node.meta.get("original_aten")) == str(target)
            found = self.lower_call(target, args, kwargs, several, asked)
            if node in self.shared and isinstance(found, TensorValue):
                found = lowering.realize(found, lowering.result)
            self.values[node] = found
        if isinstance(found, (tuple, list)):
            self.name_parts(target, found)
        if COMPARED in node.meta and isinstance(found, TensorValue) and found.ref is not None:
            self.once.add(found.ref.buffer)
        lowering.notes = ()

    def name_parts(self, target: object, results: Sequence[object]) -> None:
        """Tell apart by name what a call of several results has just made: a norm's mean."""
        lowering = self.lowering
        for position, value in enumerate(results):
            part = part_of(target, position)
            if part and isinstance(value, TensorValue) and value.ref is not None:
                buffer = lowering.buffers[value.ref.buffer]
                if buffer.hint == lowering.hint:
                    named = replace(buffer, hint=f"{buffer.hint}_{part}")
                    lowering.buffers[buffer.name] = named

    def promised(self, node: fx.Node) -> None:
        """Have a number that is read from a tensor compared with what the program says of it.

        With ``torch._check(x.item() == 5)`` torch traces on with 5, and nothing reads the tensor.
        """
        lowering = self.lowering
        where = user_line(node.meta.get("stack_trace"))
        lowering.results, lowering.result = (), None
        lowering.label, lowering.where, lowering.notes = "promise", where, ()
        number = self.argument(node.args[0])
        with source_line(where):
            lowering.extern(
                PromisedNumber(where), (number, self.values[node]), {}, ExternKind.PROMISE
            )

    def lower_call(
        self,
        target: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        several: bool,
        asked: bool,
    ) -> object:
        """Lower a call, or emit it as one of ATen.

        Args:
            target: What is called.
            args: Its arguments, as values.
            kwargs: The named ones.
            several: Whether it has several results.
            asked: Whether the user called it, rather than a decomposition.
        """
        lowering = self.lowering
        rule = find_rule(target)
        before = (len(lowering.steps), dict(lowering.buffers))
        try:
            if rule is None:
                raise NotLowered(f"{_label(target)} runs as ATen's own kernel")
            if asked:
                _require_implemented(target, args, kwargs)
            _require_supported(args, kwargs, lowering.results, self.converted(target))
            _require_known_numbers(rule, args, kwargs)
            return rule(lowering, *args, **kwargs)
        except NotLowered as reason:
            del lowering.steps[before[0] :]
            lowering.buffers = before[1]
            if not callable(target):
                raise GraphNotLowered(f"{target} cannot be called") from None
            if isinstance(target, torch._ops.HigherOrderOperator):
                because = "" if rule is None else str(reason)
                found = call_whole(lowering, target, args, kwargs, because)
                assert self.form is not None
                return tree_unflatten(list(found), self.form) if several else found[0]
            mutated = self.mutated(target, args, kwargs)
            results = lowering.extern(
                target, args, kwargs, reason.why, mutated, refused=reason.refused
            )
            return results if several else results[0]

    def converted(self, target: object) -> frozenset[torch.dtype]:
        """Return the types that kernels may convert from and to, and nothing else."""
        if getattr(target, "overloadpacket", None) not in CONVERSIONS:
            return frozenset()
        devices = {meta.device.type for meta in self.lowering.results if meta is not None}
        can = all(self.lowering.abilities(d).float8 and has_float8(d) for d in devices)
        return frozenset({torch.float8_e4m3fn}) if can else frozenset()

    def mutated(
        self, target: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[str, ...]:
        """Return the buffers that an operator writes to, from its schema."""
        if not isinstance(target, torch._ops.OpOverload):
            return ()
        names: list[str] = []
        schema = target._schema.arguments
        for position, argument in enumerate(schema):
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                for value in given if isinstance(given, (list, tuple)) else (given,):
                    if isinstance(value, TensorValue):
                        if value.ref is None:
                            raise GraphNotLowered(f"{target} writes to a computed value")
                        names.append(value.ref.buffer)
        return tuple(dict.fromkeys(names))

    def output(self, node: fx.Node) -> None:
        values = node.args[0]
        assert isinstance(values, (tuple, list))
        results: list[object] = []
        for value in values:
            placed = self.argument(value)
            if isinstance(placed, TensorValue):
                self.lowering.label = "output"
                made = value if isinstance(value, fx.Node) else None
                self.lowering.hint = readable(made) if made is not None else ""
                asked = user_line(made.meta.get("stack_trace")) if made is not None else None
                with source_line(asked):  # of what exists only as a function until now
                    meta = self.tensor_meta(made.meta.get("val")) if made is not None else None
                    placed = self.lowering.realize(placed, meta).ref
                    assert placed is not None
                    if meta is not None and not lies_as(placed, meta):
                        placed = self.laid_out(placed, meta)
            results.append(placed)
        # A view that changes nothing is a tensor of its own all the same, and a view of the first.
        for position, (value, placed) in enumerate(zip(values, results, strict=True)):
            same = [
                other
                for other, ref in zip(values, results, strict=True)
                if isinstance(other, fx.Node) and isinstance(placed, TensorRef) and ref == placed
            ]
            if len(same) > 1 and value is not min(same):
                results[position] = replace(placed, apart=True)
        self.outputs = tuple(results)

    def laid_out(self, ref: TensorRef, meta: ResultMeta) -> TensorRef | None:
        """Return a copy that lies as eager's result does: with gaps, where kernels leave none."""
        self.lowering.results = (meta,)
        (value,) = self.lowering.extern(
            laid_out, (ref, meta.shape, meta.strides), {}, ExternKind.GAPS
        )
        return value.ref if value is not None else None

    def inline(
        self, module: fx.GraphModule, values: Sequence[object], kind: type[Lowering]
    ) -> list[object]:
        """Lower a function that a call was given, as a part of that call; return its results.

        Args:
            module: The traced function.
            values: Its arguments.
            kind: What lowers it: it says what becomes of a computation.
        """
        outer = self.lowering
        inner = _Driver(module, outer.emulate_rounding, outer.abilities, outer.recorder)
        inner.sizes = self.sizes
        inner.lowering = kind(
            outer.recorder, outer.emulate_rounding, outer.abilities, outer.buffers
        )
        given = iter(values)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                inner.values[node] = next(given)
            elif node.op == "call_function":
                inner.call(node)
            elif node.op == "get_attr":
                inner.constant(node)
            elif node.op == "output":
                found = inner.argument(node.args[0])
                return list(found) if isinstance(found, (list, tuple)) else [found]
            else:
                raise GraphNotLowered(f"{node.op} {node.target}")
        return []

    def run(self) -> Program:
        attention.specialize_heads(self.module.graph)
        with recording(self.lowering.recorder):
            for node in self.module.graph.nodes:
                if node.op == "placeholder":
                    self.placeholder(node)
                elif node.op == "call_function":
                    self.call(node)
                elif node.op == "get_attr":
                    self.constant(node)
                elif node.op == "output":
                    self.output(node)
                else:
                    raise GraphNotLowered(f"{node.op} {node.target}")
        sizes = {}
        for name, symbol in self.sizes.symbols.items():
            if name not in self.bindings:
                raise GraphNotLowered(f"size {name} is not a size of any input")
            sizes[symbol] = self.bindings[name]
        return Program(
            tuple(self.inputs),
            sizes,
            dict(self.lowering.buffers),
            tuple(self.lowering.steps),
            self.outputs,
            tuple(self.notes),
            frozenset(self.once),
        )

    def constant(self, node: fx.Node) -> None:
        """A tensor that the graph owns becomes an extern 'call' that returns it.

        A number that the user wrote (``x[0] = 3``) becomes that number, wherever it is used.
        """
        value: object = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, fx.GraphModule):
            self.values[node] = Subgraph(node.name, value)
            return
        if not isinstance(value, torch.Tensor):
            raise GraphNotLowered(f"{node.target} is a {type(value).__name__}")
        tensor = value
        self.lowering.results = (self.tensor_meta(tensor),)
        returned = any(user.op == "output" for user in node.users)
        on_cpu = tensor.device.type == "cpu"
        if on_cpu and tensor.dim() == 0 and tensor.dtype in SUPPORTED_DTYPES and not returned:
            with unset_fake_temporarily():
                number = const(tensor.item(), tensor.dtype)
            self.values[node] = self.lowering.lazy(lambda index: number)
            return
        self.lowering.label, self.lowering.hint = "constant", readable(node)
        (self.values[node],) = self.lowering.extern(
            _Constant(tensor), (), {}, ExternKind.OWNED_TENSOR
        )


class _Constant:
    """Returns a tensor that the graph holds."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> torch.Tensor:
        return self.tensor

    def __repr__(self) -> str:
        return f"constant{list(self.tensor.shape)}"


def _require_device(device: torch.device, where: SourceLine | None) -> None:
    """Raise where a tensor would lie on a device that is not there.

    Fake tensors do not mind, and eager would fail only when the step is reached, in the middle.
    """
    if not is_gpu(device):
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        there = ["cpu", *(f"cuda:{n}" for n in range(count))]
        raise DeviceNotThere(str(device), there, str(where) if where else "")


def _require_implemented(target: object, args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Raise where eager has no kernel for an operator's types: it is left to raise its own error.

    Raises:
        NotLowered: It has none.
    """
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, TensorValue)]
    kinds = [(tensor.dtype, tensor.device.type) for tensor in tensors]
    dtype = refused(target, kinds, kwargs.get("dtype"))
    if dtype is not None:
        raise NotLowered(f"eager refuses {str(dtype).removeprefix('torch.')}", refused=True)


@cache
def _numbers_of(rule: Callable[..., object]) -> dict[object, str]:
    """Return the parameters of a rule that are plain numbers: name by name, and by position."""
    found: dict[object, str] = {}
    for position, (name, parameter) in enumerate(inspect.signature(rule).parameters.items()):
        if str(parameter.annotation).removesuffix(" | None") == "float":
            found |= {name: name, position: name}
    return found


def _require_known_numbers(
    rule: Callable[..., object], args: Sequence[object], kwargs: dict[str, object]
) -> None:
    """Raise where a rule takes a number and is given a size: the order of a norm, say.

    Raises:
        NotLowered: It computes with the number while the kernel is written.
    """
    places: list[object] = [n for n, value in enumerate(args, 1) if isinstance(value, Expr)]
    places += [name for name, value in kwargs.items() if isinstance(value, Expr)]
    if not places:
        return
    numbers = _numbers_of(rule)
    symbolic = [numbers.get(place) for place in places]
    name = next((name for name in symbolic if name), "")
    if name:
        raise NotLowered(f"{name} is a symbolic number")


def _require_supported(
    args: Sequence[object],
    kwargs: dict[str, object],
    results: Sequence[ResultMeta | None],
    converted: frozenset[torch.dtype],
) -> None:
    tensors: list[TensorValue] = []
    supported = SUPPORTED_DTYPES | converted
    if any(isinstance(a, TensorValue) and a.dtype == torch.float64 for a in args):
        supported = SUPPORTED_DTYPES  # through float32 it would be rounded twice

    def visit(value: object) -> None:
        if isinstance(value, TensorValue):
            tensors.append(value)
            if value.dtype not in supported:
                raise NotLowered(f"{value.dtype} has no kernels")
            if value.device.type not in (CPU, GPU):
                raise NotLowered(f"no kernels for {value.device}")
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)
        elif isinstance(value, complex):
            raise NotLowered("complex numbers have no kernels")

    visit(tuple(args))
    visit(tuple(kwargs.values()))
    devices = {meta.device for meta in results if meta is not None}
    apart = len(devices | {t.device for t in tensors}) > 1
    if apart and len(devices | {t.device for t in tensors if not t.is_number}) > 1:
        raise NotLowered("its tensors are on different devices")
    for meta in results:
        if meta is not None and meta.dtype not in supported:
            raise NotLowered(f"{meta.dtype} has no kernels")


def _read_results(node: fx.Node) -> frozenset[int] | None:
    """Return which results of a call somebody reads; None where it is read as a whole."""
    found = set()
    for user in node.users:
        position = user.args[1] if user.target is operator.getitem else None
        if not isinstance(position, int) or not user.users:
            if user.target is operator.getitem and not user.users:
                continue
            return None
        found.add(position)
    return frozenset(found)


def _label(target: object) -> str:
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[-1].strip("_")
    return getattr(target, "__name__", str(target))


def lower_graph(
    module: fx.GraphModule,
    *,
    emulate_rounding: bool = False,
    abilities: Callable[[str], Abilities] | None = None,
    recorder: Recorder | None = None,
) -> Program:
    """Lower an ATen-level graph, whose nodes carry fake tensors in ``meta["val"]``.

    Args:
        module: A functionalized, decomposed graph.
        recorder: Where nodes are interned; pass one to go on with the program's values.
        emulate_rounding: Round half-precision intermediate values wherever eager does.
        abilities: Type of torch's device to what kernels of its tensors can do; by default those
            of the targets that are taken where nobody asks for any.

    Raises:
        GraphNotLowered: The graph has something that cannot even be an extern call.
    """
    try:
        recorder = recorder or Recorder()
        abilities = abilities or Options().abilities
        return _Driver(module, emulate_rounding, abilities, recorder).run()
    except NotLowered as reason:  # a size or shape outside any operator
        raise GraphNotLowered(str(reason)) from None
