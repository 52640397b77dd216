"""Matrix products of half-precision tensors in float32, where the processor has no others.

A product takes its operands in float32, and what it yields is rounded when it is stored, as any
half-precision value that a kernel computes.  Where an operand was rounded only to be multiplied
(by autocast, or between two products), the product takes the unrounded value: nothing is converted.
What the user himself casts stays rounded, and so does what a norm's statistics are of.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.graph.choices import multiplies_slowly, pays_to_widen
from fusec.graph.facts.notes import NoteKind, add_note
from fusec.graph.facts.rounded import ROUNDED

aten = torch.ops.aten
_CONVERT = torch.ops.prims.convert_element_type.default
# In a node's ``meta``: that the cast is a rounding for memory's sake.
STORED = "fusec_stored"

_HALVES = (torch.bfloat16, torch.float16)
_PRODUCTS = (
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten.convolution_backward.default,
)
# ATen's fused attention multiplies halves fast enough; but it need not have them rounded.
_ATTENTION = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
VIEWS = (
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
    aten.expand.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.slice.Tensor,
    aten.select.int,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.alias.default,
    aten.detach.default,
    operator.getitem,
)
_CASTS = (aten._to_copy.default, _CONVERT)
# Calls by which users cast; a cast that comes of another call is autocast's.
_USERS_CASTS = frozenset("to type type_as half bfloat16 copy_ copy float _to_copy".split())


def widen_products(module: fx.GraphModule, *, rounds_as_eager: bool = False) -> int:
    """Let slow half-precision products run in float32, in place; return how many do.

    Args:
        module: Functional, with fake tensors in ``meta["val"]``: a joint or an inference graph.
        rounds_as_eager: Whether every rounding that eager does is kept.
    """
    return _Widening(module, rounds_as_eager).run()


class _Widening:
    def __init__(self, module: fx.GraphModule, rounds_as_eager: bool) -> None:
        self.graph = module.graph
        self.module = module
        self.exact = rounds_as_eager
        self.wide: dict[fx.Node, fx.Node] = {}  # a half-precision node to the same in float32
        self.returned: set[fx.Node] = set()  # roots of what the graph returns instead of a cast
        self.here = next(iter(self.graph.nodes))  # the node that is looked at
        self.widened = 0

    def run(self) -> int:
        nodes = list(self.graph.nodes)
        if not any(_is_slow(node.meta.get("val")) for node in nodes):
            return 0
        for node in nodes:
            self.here = node
            if node.target in _CASTS:
                self.cast(node)
            elif self.pays(node):
                self.product(node)
        self.graph.eliminate_dead_code()
        self.module.recompile()
        return self.widened

    # -- what is there in float32 -----------------------------------------------------------

    def cast(self, node: fx.Node) -> None:
        source = node.args[0]
        if self.exact or not isinstance(source, fx.Node) or not _same_but_dtype(node, source):
            return
        before, after = source.meta["val"].dtype, node.meta["val"].dtype
        if before == torch.float32 and _is_slow(node.meta["val"]) and _is_autocast(node):
            if ROUNDED not in node.meta:
                self.wide[node] = source
        elif after == torch.float32 and _is_slow(source.meta["val"]):
            found = self.find(source, make=False)
            if found is None or not self.may_stand_for(found, node):
                return
            made = self.find(source, make=True)
            assert made is not None
            node.replace_all_uses_with(made)

    def may_stand_for(self, found: fx.Node, node: fx.Node) -> bool:
        """Whether the graph may return what it would: a tensor that nothing else shares."""
        if not any(user.op == "output" for user in node.users):
            return True
        if found.op != "call_function" or found in self.returned:
            return False
        self.returned.add(found)
        return True

    def find(self, node: fx.Node, *, make: bool) -> fx.Node | None:
        """Return the float32 value that ``node`` is the rounding of, if it is known.

        Args:
            node: In half precision, or a list of such.
            make: Whether views of it are added to the graph; else what they are views of is
                returned.
        """
        found = self.wide.get(node)
        if found is not None and (make or found.target not in VIEWS):
            return found
        source = node.args[0] if node.args else None
        if node.target not in VIEWS or not isinstance(source, fx.Node):
            return None
        below = self.find(source, make=make)
        if below is None or not make:
            return below
        # In front of the user, not behind the source: weights are converted one after the other.
        with self.graph.inserting_before(self.here):
            made = self.add(node, node.target, (below, *node.args[1:]), dict(node.kwargs))
        self.wide[node] = made
        return made

    def is_wide_already(self, node: fx.Node) -> bool:
        operands = [n for n in node.all_input_nodes if _is_slow(n.meta.get("val"))]
        missing = [n for n in operands if self.find(n, make=False) is None]
        converted, given = (sum(_elements(n.meta["val"]) for n in ns) for ns in (missing, operands))
        return 4 * converted < given  # a mask, or the gradient

    def pays(self, node: fx.Node) -> bool:
        if node.target in _ATTENTION:
            return self.is_wide_already(node)
        if node.target not in _PRODUCTS:
            return False
        operands = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
        first = operands[0].meta["val"]  # torch multiplies tensors of one type
        if not _is_slow(first):
            return False
        missing = [n for n in operands if self.find(n, make=False) is None]
        converted = sum(_elements(n.meta["val"]) for n in missing)
        return pays_to_widen(first.dtype, _multiplications(node), converted)

    # -- rewriting --------------------------------------------------------------------------

    def product(self, node: fx.Node) -> None:
        dtype = next(n.meta["val"].dtype for n in node.all_input_nodes if _is_slow(n.meta["val"]))
        with self.graph.inserting_before(node):
            operands = {n: self.operand(n) for n in node.all_input_nodes}
            args = fx.node.map_arg(node.args, lambda n: operands[n])
            kwargs = fx.node.map_arg(node.kwargs, lambda n: operands[n])
            made = self.add(node, node.target, args, kwargs)
            name = str(dtype).removeprefix("torch.")
            words = f"in float32: this processor multiplies {name} slowly"
            add_note(made, NoteKind.WIDENED, words)
            if isinstance(node.meta["val"], torch.Tensor):
                self.replace(node, self.stored(node, made))
            else:
                for user in list(node.users):
                    self.part(user, made)
        self.graph.erase_node(node)
        self.widened += 1

    def part(self, user: fx.Node, made: fx.Node) -> None:
        """Replace ``user``, which picks one of several results."""
        assert user.target is operator.getitem
        picked = self.add(user, operator.getitem, (made, user.args[1]), {})
        half = isinstance(user.meta["val"], torch.Tensor) and user.meta["val"].dtype in _HALVES
        self.replace(user, self.stored(user, picked) if half else picked)
        self.graph.erase_node(user)

    def replace(self, node: fx.Node, by: fx.Node) -> None:
        node.replace_all_uses_with(by)

    def stored(self, node: fx.Node, made: fx.Node) -> fx.Node:
        """Return the rounding of a float32 result to what ``node`` was."""
        narrow = self.add(node, _CONVERT, (made, node.meta["val"].dtype), {})
        narrow.meta[STORED] = True
        if not self.exact and ROUNDED not in node.meta:
            self.wide[narrow] = made
        return narrow

    def operand(self, node: fx.Node) -> fx.Node:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.dtype not in _HALVES:
            return node
        if self.find(node, make=False) is None:
            root = node  # two views of a tensor take one conversion
            while (
                root.target in VIEWS
                and isinstance(root.args[0], fx.Node)
                and _elements(_first(root.args[0])) <= _elements(_first(root))
            ):
                root = root.args[0]
            if not isinstance(root.meta["val"], torch.Tensor):
                root = node
            with self.graph.inserting_before(self.here):
                wide = self.wide[root] = self.add(node, _CONVERT, (root, torch.float32), {})
                # No line makes an input: it is converted for the line that multiplies it.
                wide.meta.setdefault("stack_trace", self.here.meta.get("stack_trace"))
        found = self.find(node, make=True)
        assert found is not None
        return found

    def add(self, like: fx.Node, target: Any, args: Any, kwargs: Any) -> fx.Node:
        made = self.graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in like.meta.items() if k not in ("val", "tensor_meta", STORED)}
        values, named = fx.node.map_arg((args, kwargs), lambda n: n.meta["val"])
        fake = detect_fake_mode([n.meta.get("val") for n in like.all_input_nodes])
        assert fake is not None
        with fake:
            made.meta["val"] = target(*values, **named)
        return made


def _is_slow(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_slow, value))
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in _HALVES
        and value.device.type == "cpu"
        and multiplies_slowly(value.dtype)
    )


def _is_autocast(node: fx.Node) -> bool:
    stack = node.meta.get("source_fn_stack") or node.meta.get("fwd_source_fn_stack")
    if not stack:
        return False
    called = stack[-1][1]
    return getattr(called, "__name__", str(called)) not in _USERS_CASTS


def _same_but_dtype(node: fx.Node, source: fx.Node) -> bool:
    value, before = node.meta.get("val"), source.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and isinstance(before, torch.Tensor)
        and value.device == before.device
        and value.stride() == before.stride()
        and value.dtype != before.dtype
    )


def _first(node: fx.Node) -> torch.Tensor:
    value = node.meta["val"]
    return value[0] if isinstance(value, (list, tuple)) else value  # type: ignore[no-any-return]


def _elements(value: torch.Tensor) -> int:
    """Return how many elements there are in memory; symbolic sizes by their hint."""
    count = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        count *= 1 if stride == 0 else _number(size)
    return count


def _number(size: Any) -> int:
    if isinstance(size, int):
        return size
    hint = size.node.hint
    return 1024 if hint is None else int(hint)


def _multiplications(node: fx.Node) -> int:
    values = [n.meta.get("val") if isinstance(n, fx.Node) else None for n in node.args]
    if node.target is aten.convolution.default:
        return _count(node.meta["val"].shape) * _count(values[1].shape[1:])  # type: ignore[union-attr]
    if node.target is aten.convolution_backward.default:
        wanted = sum(node.args[10][:2])  # type: ignore[index,arg-type]
        return wanted * _count(values[0].shape) * _count(values[2].shape[1:])  # type: ignore[union-attr]
    left = values[-2 if node.target in (aten.mm.default, aten.bmm.default) else 1]
    return _count(node.meta["val"].shape) * _number(left.shape[-1])  # type: ignore[union-attr]


def _count(shape: Any) -> int:
    total = 1
    for size in shape:
        total *= _number(size)
    return total


__all__ = ["STORED", "VIEWS", "widen_products"]
