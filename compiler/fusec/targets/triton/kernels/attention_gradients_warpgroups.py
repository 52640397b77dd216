"""The gradients of attention in Gluon: two groups of warps multiply and sum, a third one loads.

As ``attention_warpgroups`` does for attention itself.  A program has 128 rows of queries and takes
steps along the keys, or the other way round; each half of its rows is one group's.  The functions'
bodies are parts of ``templates/attention_gradients_warpgroups.py.j2``.  What there is one number of
for each row of a step (the logarithms of sums, what a row's weights have in common) lies in shared
memory beside the step's tiles: read from memory it takes as many registers as are left, and half as
long again (docs/gpu-figures.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusec.ir.body import Store
from fusec.ir.index import Expr
from fusec.ir.node import Load, Node, Reduce
from fusec.ir.walk import walk
from fusec.targets.triton.kernels.attention_gradients import GradientsWriter, Part
from fusec.targets.triton.kernels.attention_tiles import unlike
from fusec.targets.triton.kernels.template_parts import TemplateParts, call
from fusec.targets.triton.plan.attention_gradients import Gradients, given_of, stepped_numbers
from fusec.targets.triton.plan.tiling import Dim
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Text, triton_type
from fusec.targets.triton.text.file import File, add_function, mentions
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.writer import Writer

# What the template itself calls its values, beside those of ``attention_gradients``.
_NAMES = frozenset(
    "stage last phase heavy summed total change left right none half whole steps step rest line "
    "part place turn slot slots asked own_there own_free async_copy mbarrier "
    "fence_async_shared warpgroup_mma warpgroup_mma_wait gluon aligned weight slope slope_2 "
    "slope_3 slope_4".split()
)
_ASSIGNED = re.compile(r"(\w+) = ")
_GIVEN = ("weight", "slope", "slope_2", "slope_3", "slope_4")
_CONSTANTS = ("BLOCK_M", "BLOCK_N", "GROUP_H", "TURNS", "NUM_STAGES", "ALIGNED")
_TILES = {"query": "queries", "key": "keys", "value": "values", "gradient": "gradients"}
_NAMED = {False: ("query", "gradient", "key", "value"), True: ("key", "value", "query", "gradient")}


@dataclass(frozen=True)
class _Vector:
    """What a step has one number a row of: its load, its name and that of its shared memory."""

    load: Load
    name: str
    ring: str
    type: str


@dataclass(frozen=True)
class _Steps:
    """What becomes of a step's scores in one loop.

    Attributes:
        given: What of the scores the gradients need: first the weights.
        weigh: Its text.
        change: The text of the scores' gradients.
    """

    given: tuple[Node, ...]
    weigh: tuple[str, ...]
    change: tuple[str, ...]


def write(file: File, found: Gradients) -> None:
    """Write the kernel of gradients and the functions that its groups of warps run."""
    _Writer(file, found).write()


class _Writer(GradientsWriter, TemplateParts):
    template = "attention_gradients_warpgroups"

    def write(self) -> None:
        """Write the kernel, after the functions that it calls: what those take is known then."""
        file, found = self.file, self.found
        kernel = self.kernel(file.name)
        self.names, self.product = _NAMED[found.by_keys], found.score
        places = self.places(Block(kernel))
        self.place = [line.partition(" = ")[0] for line in places]
        self.vectors = self.named_vectors(kernel)
        self.context = self.facts(Block(kernel), places)
        self.pieces: dict[str, Writer] = {}
        self.statements(kernel)
        shared = self.shared()
        self.add_steps()
        if self.in_turn:
            tile = self.add_part("load_tile", ["turn", "done", *shared, *_CONSTANTS])
            self.context["load_call"] = f"{file.name}_load_tile({', '.join(tile)})"
        load = self.add_part("load", [*shared, *_CONSTANTS])
        differentiate = self.add_part("differentiate", ["half", *shared, *_CONSTANTS])
        self.context |= {
            "first_half": call(differentiate, "half", "0"),
            "second_half": call(differentiate, "half", "1"),
            "loaded": ", ".join(load),
        }
        self.fill_part(kernel, "kernel")
        size, pairs = file.host(found.own.size or Expr.of(1)), file.host(found.pairs)
        grid = f"{size} // {self.own.block}{' // TURNS' if self.in_turn else ''}"
        grid += "" if pairs == "1" else f" * {pairs}"
        tiles = [file.parameters[load.buffer] for load in found.operands]
        first, *others = (f"{name}.data_ptr() % 16 == 0" for name in dict.fromkeys(tiles))
        file.setup.append(f"aligned = {first}")
        file.setup += [f"aligned = aligned and {other}" for other in others]
        constants = [(knob.name, knob.name) for knob in file.knobs] + [("ALIGNED", "aligned")]
        add_function(file, kernel, file.name, [grid], constants)
        file.functions[-1].gluon = True

    def kernel(self, name: str) -> KernelWriter:
        kernel = super().kernel(name)
        kernel.taken.update(_NAMES)
        return kernel

    def shared(self) -> list[str]:
        """Return the names of what lies in shared memory."""
        own, over = self.context["own"], self.context["over"]
        assert isinstance(own, dict)
        assert isinstance(over, dict)
        rings = [vector.ring for vector in self.vectors]
        own_barriers = ("own_there", "own_free") if self.in_turn else ("own_there",)
        barriers = *own_barriers, *over["there"], *over["free"]
        return [*own["tiles"], *over["tiles"], *rings, *barriers]

    def named_vectors(self, kernel: KernelWriter) -> list[_Vector]:
        """Return what a step has one number a row of, with names."""
        found = []
        for load in stepped_numbers(self.found, self.file.buffers):
            name = self.file.parameters[load.buffer]
            kernel.taken.update({name, f"{name}_ring"})
            found.append(_Vector(load, name, f"{name}_ring", triton_type(load.dtype)))
        return found

    def facts(self, outer: Block, places: list[str]) -> dict[str, object]:
        """Return what all parts of the template may ask."""
        found, own, over = self.found, self.own, self.across
        mine, theirs = self.names[:2], self.names[2:]
        return {
            "name": self.file.name,
            "by_keys": found.by_keys,
            "in_turn": self.in_turn,
            "own": {
                "size": outer.index(own.axis.size or Expr.of(1)),
                "block": own.block,
                "down": own.down,
                "tiles": [_TILES[name] for name in mine],
            },
            "over": {
                "size": outer.index(over.axis.size or Expr.of(1)),
                "block": over.block,
                "lines": "line",
                "down": over.down,
                "across": over.across,
                "tiles": [_TILES[name] for name in theirs],
                "there": [f"{_TILES[name]}_there" for name in theirs],
                "free": [f"{_TILES[name]}_free" for name in theirs],
            },
            "names": self.names,
            "vectors": self.vectors,
            "pairs": outer.index(found.pairs),
            "places": places,
            "depth": self.depth,
            "half": triton_type(found.score.args[0].dtype),
            "members": (
                "" if found.member is None else outer.index(found.member.size or Expr.of(1))
            ),
            "tile": ", ".join([*self.place, "first"]),
            "totals": self.total_names(),
        }

    @property
    def in_turn(self) -> bool:
        """Whether a program has several tiles, one after the other."""
        return any(knob.name == "TURNS" for knob in self.file.knobs)

    def total_names(self) -> list[str]:
        """Return the names of gradients: first what the gradients of scores are multiplied for."""
        totals = sorted(self.found.totals, key=self.wide_rows)
        return [self.name(total) for total in totals]

    # -- the generated statements -------------------------------------------------------------

    def statements(self, kernel: KernelWriter) -> None:
        """Write the generated statements, by the names that the template has for them."""
        found, parts = self.found, self.parts()
        self.copies(kernel)
        roots = [root for part in parts for root in self.quickened(part.roots)]
        known: dict[Node, Text] = {}
        self.pieces["rows"] = Writer()
        if found.common is not None and found.row_sum is not None:
            self.sum_rows(kernel, self.pieces["rows"])
            roots.append(found.common.value)
            known[found.row_sum] = Text("row_sum")
        self.pieces["before"], before = self.before(kernel, roots, known)
        described = []
        given: tuple[str, ...] = ()
        branches: dict[str, list[KernelWriter]] = {"weigh": [], "change": []}
        for part in parts:
            steps = self.steps(kernel, part, before, branches)
            given = _GIVEN[: len(steps.given)]
            loop: dict[str, object] = {"name": part.name, "count": "", "comment": part.comment}
            if part.listed is not None:
                loop |= self.lists(kernel, part.listed, found.own, self.members())
                over = found.over.size
                assert over is not None
                loop["columns"] = min(part.listed.columns, over.constant or 0)
            described.append(loop | {"weigh": steps.weigh, "change": steps.change})
        self.pieces["epilogue"] = self.epilogue(kernel, before)
        lists = [each for each in described if each["count"]]
        self.context |= {"loops": described, "lists": lists, "given": given}

    def copies(self, kernel: KernelWriter) -> None:
        """Write the copies of tiles and numbers to shared memory; all of them are inside."""
        found = self.found
        loads = dict(zip(("query", "key", "gradient", "value"), found.operands, strict=True))
        for name, load in loads.items():
            mine = name in self.names[:2]
            side = self.own if mine else self.across
            product = found.score if name in ("query", "key") else found.of_weight
            column = self.column(product.axes[0], product is found.of_weight)
            place = f"{_TILES[name]}.index({'part' if mine else 'stage'})"
            copied = f"{self.file.name}_copy({place}, %s, ALIGNED)"
            self.pieces[name] = self.copy(kernel, load, copied, side.dim(True), column)
        self.pieces["numbers"] = Writer()
        axis = self.across.axis
        line = Dim(axis, axis.size or Expr.of(1), "line", self.across.block, "", 0)
        for vector in self.vectors:
            copied = f"async_copy.async_copy_global_to_shared({vector.ring}.index(stage), %s)"
            self.pieces["numbers"].lines += self.copy(kernel, vector.load, copied, line).lines

    def copy(self, kernel: KernelWriter, load: Load, statement: str, *dims: Dim) -> Writer:
        """Write a copy of what is read; ``%s`` in the statement is where that lies."""
        own = replace(kernel, tile=self.tile(*self.members(), *dims), writer=Writer(), names={})
        address, _ = Block(own).pointer(load.buffer, load.index)
        own.writer.line(statement % address, (load.source,))
        return own.writer

    def steps(
        self,
        kernel: KernelWriter,
        part: Part,
        before: Block,
        branches: Mapping[str, list[KernelWriter]],
    ) -> _Steps:
        """Write what becomes of a step's scores: the weights, then the scores' gradients.

        Args:
            kernel: The function.
            part: The steps of a list of blocks.
            before: What is known before.
            branches: The other lists' statements, which are branches of one condition; these are
                added.
        """
        found = self.found
        roots = self.quickened(part.roots)
        nodes = self.own_nodes(roots)
        differentiated = {n for n in nodes if found.of_weight in walk((n,))}
        scored = [n for n in nodes if n not in differentiated and found.score in walk((n,))]
        given = given_of(found, roots, scored, differentiated)
        (change,) = (root for root in roots if root in differentiated)
        numbers: dict[Node, Text] = {v.load: Text(v.name) for v in self.vectors}
        scores: dict[Node, Text] = {found.score: Text("score")}
        changes: dict[Node, Text] = {found.of_weight: Text("of_weight")}
        changes |= {node: Text(name) for node, name in zip(given, _GIVEN, strict=False)}
        texts = {}
        for name, wanted, known in (("weigh", given, scores), ("change", (change,), changes)):
            block = self.step(kernel, before, roots, wanted, known | numbers, {})
            if named := unlike(block.kernel, branches[name]):
                block = self.step(kernel, before, roots, wanted, known | numbers, named)
            branches[name].append(block.kernel)
            self.pieces[f"{part.name}_{name}"] = block.kernel.writer
            texts[name] = tuple(block.value(node).source for node in wanted)
        return _Steps(given, texts["weigh"], texts["change"])

    def step(
        self,
        kernel: KernelWriter,
        before: Block,
        roots: Sequence[Node],
        wanted: Sequence[Node],
        known: Mapping[Node, Text],
        named: Mapping[Node, str],
    ) -> Block:
        """Write what is wanted of a step's scores, with names that some values have."""
        nodes = self.own_nodes(roots)
        names = {**before.kernel.names, **named}
        taken = {*kernel.taken, *named.values()}
        own = replace(kernel, writer=Writer(), names=names, taken=taken)
        own.free = {**kernel.free, **self.free_of(nodes)}
        own.relaxed = self.relaxed(roots)
        block = Block(own, before)
        block.known.update(known)
        needed = self.needed(wanted, block, nodes)
        block.must_name.update(n for n in wanted if n not in block.known)
        block.write(needed, roots=wanted)
        return block

    def needed(self, wanted: Sequence[Node], block: Block, nodes: Sequence[Node]) -> list[Node]:
        """Return what has to be computed for some values, arguments first, of what is not known."""
        asked: set[Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node in asked or node in block.known or isinstance(node, Reduce):
                continue
            asked.add(node)
            stack.extend(node.args)
        return [node for node in nodes if node in asked]

    def sum_rows(self, kernel: KernelWriter, writer: Writer) -> None:
        """Write the sum of a row's result times its gradient."""
        row_sum, gradient = self.found.row_sum, self.found.of_weight.args[0]
        assert row_sum is not None
        (out,) = (n for n in walk(row_sum.args) if isinstance(n, Load) and n is not gradient)
        line = replace(self.own.dim(True), index="line")
        column = self.column(self.found.of_weight.axes[0], True)
        for load, name in ((out, "out"), (gradient, "gradient")):
            assert isinstance(load, Load)
            writer.lines += self.operand(kernel, load, name, line, column).lines
        sources = (row_sum.source,)
        writer.line("row_sum = tl.sum(out.to(tl.float32) * gradient.to(tl.float32), 1)", sources)
        rows = "tl.SliceLayout(1, SCORES)"
        writer.line(f"row_sum = tl.convert_layout(row_sum, {rows})[:, None]", sources)

    def save(self, kernel: KernelWriter, store: Store, value: str) -> None:
        """Write a store of a program's rows: gradients line by line, not as products leave them."""
        if any(store is total.store for total in self.found.totals):
            half = triton_type(store.value.dtype)
            name = value.partition(" ")[0]
            lines = f"tl.convert_layout(({value}).to({half}), LINES)"
            kernel.writer.line(f"{name} = {lines.replace(f'({name})', name)}")
            line = replace(self.own.dim(True), index="line")
            (total,) = (t for t in self.found.totals if t.store is store)
            column = self.column(total.column, self.wide_rows(total))
            kernel, value = replace(kernel, tile=self.tile(line, column)), name
        super().save(kernel, store, value)

    # -- the functions ------------------------------------------------------------------------

    def add_steps(self) -> None:
        """Write the small functions: where a tile and a step lie, copies, weights and changes."""
        name, place = self.file.name, self.place
        member = ["member"] if self.found.member is not None else []
        start = self.add_part("start", ["step", "first", *place, *member, "whole", *_CONSTANTS])
        self.context["start_step"] = f"{name}_start({', '.join(start)})"
        self.add_part("copy", ["tile", "place", "ALIGNED"], "attention_warpgroups")
        self.add_part("announce", ["barrier"], "attention_warpgroups")
        tile = self.add_part("tile", [*(["turn"] if self.in_turn else []), *_CONSTANTS])
        self.context["tile_call"] = f"{name}_tile({', '.join(tile)})"
        extent = self.add_part("extent", ["first", *place, *member, *_CONSTANTS])
        self.context["extent_call"] = f"{name}_extent({', '.join(extent)})"
        matches = (
            _ASSIGNED.match(line.text)
            for piece in ("rows", "before")
            for line in self.pieces[piece].lines
        )
        known = [match[1] for match in matches if match]
        rings = [vector.ring for vector in self.vectors]
        given = self.context["given"]
        assert isinstance(given, tuple)
        for part, first, results in (
            ("weigh", ["score"], given),
            ("change", ["of_weight", *given], ("change",)),
        ):
            pieces = [self.pieces[f"{loop['name']}_{part}"] for loop in self.loops()]
            values = [loop[part] for loop in self.loops()]
            texts = [piece.text for piece in pieces] + [text for value in values for text in value]
            self.context |= {
                "asks_start": any(mentions(text, self.across.across) for text in texts),
                "asked": [v for v in self.vectors if any(mentions(t, v.name) for t in texts)],
                "results": results,
                "differ": len(
                    {(piece.text, *value) for piece, value in zip(pieces, values, strict=True)}
                )
                > 1,
            }
            wanted = [*first, "step", "stage", *place, *member, "first", "whole", self.own.down]
            wanted += [*known, *rings, *_CONSTANTS]
            taken = self.add_part(part, wanted)
            calls = {"call": taken, "first": [_at_first(each) for each in taken]}
            for which, arguments in calls.items():
                self.context[f"{part}_{which}"] = f"{name}_{part}({', '.join(arguments)})"

    def loops(self) -> list[dict[str, tuple[str, ...]]]:
        loops = self.context["loops"]
        assert isinstance(loops, list)
        return loops


def _at_first(name: str) -> str:
    """Return an argument of a call for the first step."""
    return "0" if name in ("step", "stage") else name


__all__ = ["write"]
