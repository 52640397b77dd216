"""The driver: walks an FX graph, asks the registry, and collects a ``Program``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from fusec.abilities import Abilities
from fusec.graph.facts.notes import Note, NoteKind, notes, said_of_captured
from fusec.graph.facts.rounded import ROUNDED
from fusec.graph.facts.storages import makers_of_shared_results
from fusec.graph.facts.user_lines import user_line
from fusec.graph.products.widened_halves import STORED
from fusec.graph.simplify.extremes import COMPARED
from fusec.ir.body import Buffer
from fusec.ir.index import Expr
from fusec.ir.node import Recorder, const, recording, source_line
from fusec.ir.program import Extern, ExternKind, Program, TensorRef
from fusec.lower import families  # noqa: F401  (importing it registers every rule)
from fusec.lower.accepted import (
    converted,
    require_device,
    require_implemented,
    require_known_numbers,
    require_supported,
)
from fusec.lower.attention.forward import specialize_heads
from fusec.lower.calls import asked_of, label_of, mutated, read_results
from fusec.lower.gaps import laid_out, lies_as
from fusec.lower.higher_order import Subgraph, call_whole
from fusec.lower.names import name_parts, readable
from fusec.lower.nested_results import NestedResults
from fusec.lower.promises import PromisedNumber
from fusec.lower.registry import find_rule
from fusec.lower.size_numbers import SizeNumber, SizeNumbers
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
        self.lowering.less = self.sizes.less
        self.values: dict[fx.Node, object] = {}
        self.numbers = SizeNumbers(self.sizes, self.values)
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
                if meta.strides[dim].constant != 0:
                    self.sizes.in_memory.add(next(iter(symbols)))
        hint = readable(node)
        buffer = Buffer(name, meta.shape, meta.strides, meta.dtype, meta.device, hint)
        self.lowering.buffers[name] = buffer
        self.lowering.storage_offsets[name] = meta.offset
        self.values[node] = self.lowering.from_buffer(buffer)

    def argument(self, value: object, computing: torch.device | None = None) -> object:
        """Return what an argument is.

        Args:
            value: It, in the graph.
            computing: Where kernels compute it, if it is a number that follows from sizes; None
                where it has to be known.
        """
        if isinstance(value, fx.Node):
            found = self.values[value]
            if isinstance(found, torch.SymFloat) and computing is not None:
                with suppress(NotLowered):
                    return self.numbers.number(value, computing)
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

    def computing(self, node: fx.Node, *, named: bool = False) -> torch.device | None:
        """Return where the call being lowered computes numbers that follow from sizes, if it does.

        Args:
            node: The call.
            named: Whether the numbers are given by name.
        """
        meta = self.lowering.result
        if meta is None or not self.numbers.taken_by(node, meta.dtype, named=named):
            return None
        return meta.device

    def call(self, node: fx.Node) -> None:
        target = node.target
        value = node.meta.get("val")
        if isinstance(value, (torch.SymBool, torch.SymFloat, bool, float)):
            given = [self.values[a] if isinstance(a, fx.Node) else a for a in node.args]
            number = self.lowering.number(target, given)
            if number is not None:
                self.values[node] = number
                return
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
        if value is None and not isinstance(target, torch._ops.OpOverload):
            raise GraphNotLowered(f"{target} computes on Python values")
        lowering = self.lowering
        several = isinstance(value, (tuple, list))
        # a tuple may have tuples in it: the gradients of what a function has captured
        metas, self.form = tree_flatten(value if several else (value,))
        lowering.results = tuple(self.tensor_meta(v) for v in metas)
        lowering.result = lowering.results[0] if lowering.results else None
        args = tuple(self.argument(a, self.computing(node)) for a in node.args)
        named = self.computing(node, named=True)
        kwargs = {k: self.argument(v, named) for k, v in node.kwargs.items()}
        lowering.wanted = read_results(node)
        lowering.label, lowering.asked = label_of(target), asked_of(node)
        lowering.hint = readable(node)
        lowering.where = user_line(node.meta.get("stack_trace"))
        lowering.stored = bool(node.meta.get(STORED))
        lowering.rounds = bool(node.meta.get(ROUNDED))
        said = said_of_captured(node)
        lowering.notes = (*notes(node), *((Note(NoteKind.LEFT, said),) if said else ()))
        for meta in lowering.results:
            if meta is not None:
                require_device(meta.device, lowering.where)
        with source_line(lowering.where):
            asked = str(node.meta.get("original_aten")) == str(target)
            found = self.lower_call(target, args, kwargs, several, asked)
            if node in self.shared and isinstance(found, TensorValue):
                found = lowering.realize(found, lowering.result)
            self.values[node] = found
        if isinstance(found, (tuple, list)):
            name_parts(lowering, target, found)
        if COMPARED in node.meta and isinstance(found, TensorValue) and found.ref is not None:
            self.once.add(found.ref.buffer)
        lowering.notes = ()

    def promised(self, node: fx.Node) -> None:
        """Have a number that is read from a tensor compared with what the program says of it.

        With ``torch._check(x.item() == 5)`` torch traces on with 5, and nothing reads the tensor.
        """
        lowering = self.lowering
        where = user_line(node.meta.get("stack_trace"))
        lowering.results, lowering.result = (), None
        lowering.label, lowering.asked = "promise", ""
        lowering.where, lowering.notes = where, ()
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
        before = (len(lowering.steps), dict(lowering.buffers))
        rule = find_rule(target)
        try:
            rule = lowering.own_rule(target, args) or rule
            if rule is None:
                raise NotLowered(f"{label_of(target)} runs as ATen's own kernel")
            if asked:
                require_implemented(target, args, kwargs)
            require_supported(args, kwargs, lowering.results, converted(lowering, target))
            require_known_numbers(rule, args, kwargs)
            return rule(lowering, *args, **kwargs)
        except NotLowered as reason:
            del lowering.steps[before[0] :]
            lowering.buffers = before[1]
            if any(isinstance(each, SizeNumber) for each in (*args, *kwargs.values())):
                # as ATen is to be given them
                known = tuple(_known(each) for each in args)
                named = {name: _known(each) for name, each in kwargs.items()}
                return self.lower_call(target, known, named, several, asked)
            if not callable(target):
                raise GraphNotLowered(f"{target} cannot be called") from None
            if isinstance(target, torch._ops.HigherOrderOperator):
                because = "" if rule is None else str(reason)
                found = call_whole(lowering, target, args, kwargs, because)
                assert self.form is not None
                return tree_unflatten(list(found), self.form) if several else found[0]
            written = mutated(target, args, kwargs)
            assert self.form is not None
            nested = not all(each.is_leaf() for each in self.form.children())
            results = lowering.extern(
                NestedResults(target) if nested else target,
                args,
                kwargs,
                reason.why,
                written,
                refused=reason.refused,
            )
            if nested:
                return tree_unflatten(list(results), self.form)
            return results if several else results[0]

    def output(self, node: fx.Node) -> None:
        values = node.args[0]
        assert isinstance(values, (tuple, list))
        results: list[object] = []
        for value in values:
            placed = self.argument(value)
            if isinstance(placed, TensorValue):
                self.lowering.label, self.lowering.asked = "output", ""
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
        firsts: dict[TensorRef, fx.Node] = {}
        for value, ref in zip(values, results, strict=True):
            if isinstance(ref, TensorRef) and isinstance(value, fx.Node):
                firsts[ref] = min(firsts.get(ref, value), value)
        for place, (value, ref) in enumerate(zip(values, results, strict=True)):
            if isinstance(ref, TensorRef) and isinstance(value, fx.Node):
                detached = _is_detached(value)
                apart = value is not firsts[ref] or (detached and self.is_atens_view(ref))
                results[place] = replace(ref, apart=apart, detached=detached)
        self.outputs = tuple(results)

    def is_atens_view(self, ref: TensorRef) -> bool:
        """Whether ATen makes a tensor as a view: to autograd, perhaps of another result."""
        made_by = [s for s in self.lowering.steps if isinstance(s, Extern)]
        made_by = [step for step in made_by if ref.buffer in step.outputs]
        return any(_is_view(step.target) for step in made_by)

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
        inner.numbers = SizeNumbers(self.sizes, inner.values)
        inner.lowering = kind(
            outer.recorder, outer.emulate_rounding, outer.abilities, outer.buffers
        )
        inner.lowering.less = self.sizes.less
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
        specialize_heads(self.module.graph)
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
        value: object = operator.attrgetter(str(node.target))(self.module)
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
            OwnedTensor(tensor), (), {}, ExternKind.OWNED_TENSOR
        )


class OwnedTensor:
    """Returns a tensor that the graph holds.

    Attributes:
        tensor: It; nobody changes it.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> torch.Tensor:
        """Return it."""
        return self.tensor

    def __repr__(self) -> str:
        return f"constant{list(self.tensor.shape)}"


def _known(value: object) -> object:
    """Return an argument, fixed where it is a number that follows from sizes."""
    if not isinstance(value, SizeNumber):
        return value
    try:
        return fixed(value.symbolic)
    except NotLowered as reason:
        raise GraphNotLowered(str(reason)) from None


# What ``detach()`` is traced as.
_DETACHES = (torch.ops.aten.alias.default, torch.ops.aten.detach.default)


def _is_view(target: object) -> bool:
    """Whether an operator's result shares memory with its first argument."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    arguments = target._schema.arguments
    return bool(arguments) and arguments[0].alias_info is not None


def _is_detached(value: object) -> bool:
    """Whether a result is what ``detach()`` returned, or a view of that."""
    while isinstance(value, fx.Node) and value.op == "call_function":
        if value.target in _DETACHES:
            return True
        if isinstance(value.target, torch._ops.OpOverload):
            if not _is_view(value.target):
                return False
        elif value.target is not operator.getitem:
            return False
        value = value.args[0] if value.args else None
    return False


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
