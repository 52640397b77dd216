"""Attention in Gluon: two groups of warps multiply and weigh, a third one loads for both.

The functions' bodies are parts of ``templates/attention_warpgroups.py.j2``; what becomes of a score
is generated, as everywhere.  A step's scores are multiplied while the weights of the last ones are
computed (as in FlashAttention-3 by Shah et al., 2024), and tiles of keys and values lie in a ring
of ``NUM_STAGES`` whose places are filled and given back through barriers in shared memory.
"""

from __future__ import annotations

import re

from fusec.ir.node import Load
from fusec.targets.triton.kernels.attention import FINITE, LOWEST, AttentionWriter
from fusec.targets.triton.plan.choices_attention import Attention, size_of
from fusec.targets.triton.plan.tiling import Dim
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import triton_type
from fusec.targets.triton.text.file import File, Function, add_function, mentions
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.templates import template
from fusec.targets.triton.text.writer import Writer

# What the template itself calls its values, beside those of ``attention``.
_NAMES = frozenset(
    "turn stage last phase heavy summed coming none half whole steps step rest slots slot after "
    "changed barrier place query_place key_place value_place queries values async_copy mbarrier "
    "fence_async_shared warpgroup_mma warpgroup_mma_wait gluon aligned".split()
)
_ASSIGNED = re.compile(r"(\w+) = ")
_TILES = ("queries", "keys", "values")
_BARRIERS = (
    "queries_there",
    "queries_free",
    "keys_there",
    "keys_free",
    "values_there",
    "values_free",
)
_CONSTANTS = ("BLOCK_M", "BLOCK_N", "GROUP_H", "TURNS", "NUM_STAGES", "ALIGNED")


def write(file: File, found: Attention) -> None:
    """Write the kernel of attention and the functions that its groups of warps run."""
    _Writer(file, found).write()


class _Writer(AttentionWriter):
    def write(self) -> None:
        file, found = self.file, self.found
        outer = Block(self.kernel(file.name))
        place = [line.partition(" = ")[0] for line in self.places(outer)]
        self.context: dict[str, object] = {
            "name": file.name,
            "m": outer.index(found.sizes[0]),
            "n": outer.index(found.sizes[1]),
            "pairs": outer.index(found.pairs),
            "places": self.places(outer),
            "depth": size_of(found.depth).constant,
            "row": self.row_name,
            "half": triton_type(found.values.dtype),
            "careful": found.careful,
            "lowest": '-float("inf")' if found.careful else LOWEST,
            "finite": FINITE,
            "factor": repr(found.factor),
        }
        kernel = self.kernel(file.name)
        described = []
        loops = self.loops()
        roots = [loop.value for loop in loops]
        if self.row_term is not None and self.gives_back:
            roots.append(self.row_term)
        pieces = {
            "query": self.tile_of(kernel, found.query, "query", self.row_dim(), self.depth_dim()),
            "key": self.tile_of(kernel, found.keys, "key", self.key_dim(True), self.depth_dim()),
            "value": self.tile_of(
                kernel, found.values, "value", self.key_dim(True), self.width_dim()
            ),
        }
        pieces["before"], before = self.before(kernel, roots, {})
        for loop in loops:
            pieces[loop.name], score = self.score(kernel, before, loop.value)
            described.append(self.describe(kernel, loop, score))
        pieces["epilogue"] = self.epilogue(kernel, "[:, None]", self.row_dim())
        self.context |= {
            "loops": described,
            "lists": [each for each in described if each["count"]],
            "row_term": self.row_text(before),
        }
        start = self.add(
            "start", f"{file.name}_start", pieces, ["step", "first", *place, "whole", "BLOCK_N"]
        )
        for which, step in (("zero", "0"), ("step", "step"), ("next", "step + 1")):
            arguments = ", ".join(step if name == "step" else name for name in start)
            self.context[f"start_{which}"] = f"{file.name}_start({arguments})"
        matches = (_ASSIGNED.match(line.text) for line in pieces["before"].lines)
        known = [match[1] for match in matches if match]
        # each function is written once it is known what those take that it calls
        self.add("copy", f"{file.name}_copy", pieces, ["tile", "place", "ALIGNED"])
        self.add("announce", f"{file.name}_announce", pieces, ["barrier"])
        self.context["tile"] = ", ".join([*place, "first", "whole", "steps"])
        tile = self.add(
            "tile", f"{file.name}_tile", pieces, ["turn", "BLOCK_M", "BLOCK_N", "GROUP_H", "TURNS"]
        )
        self.context["tile_call"] = f"{file.name}_tile({', '.join(tile)})"
        load = self.add(
            "load",
            f"{file.name}_load",
            pieces,
            [*_TILES, *_BARRIERS, *_CONSTANTS],
        )
        weigh = self.add(
            "weigh",
            f"{file.name}_weigh",
            pieces,
            [
                "score",
                "most",
                "total",
                "step",
                *place,
                "first",
                "whole",
                self.row_name,
                *known,
                "BLOCK_N",
            ],
        )
        self.context |= {
            "weigh_first": ", ".join("0" if name == "step" else name for name in weigh),
            "weigh_step": ", ".join(weigh),
        }
        attend = self.add(
            "attend",
            f"{file.name}_attend",
            pieces,
            ["half", *_TILES, *_BARRIERS, *_CONSTANTS],
        )
        self.context |= {
            "first_half": ", ".join("0" if name == "half" else name for name in attend),
            "second_half": ", ".join("1" if name == "half" else name for name in attend),
            "loaded": ", ".join(load),
        }
        self.fill_part(kernel, "kernel", pieces)
        m, pairs = file.host(found.sizes[0]), file.host(found.pairs)
        grid = f"{m} // BLOCK_M // TURNS" + ("" if pairs == "1" else f" * {pairs}")
        aligned = " and ".join(
            f"{name}.data_ptr() % 16 == 0"
            for name in dict.fromkeys(
                file.parameters[load.buffer] for load in (found.query, found.keys, found.values)
            )
        )
        file.setup.append(f"aligned = {aligned}")
        constants = [(knob.name, knob.name) for knob in file.knobs] + [("ALIGNED", "aligned")]
        add_function(file, kernel, file.name, [grid], constants)
        file.functions[-1].gluon = True

    def kernel(self, name: str) -> KernelWriter:
        kernel = super().kernel(name)
        kernel.taken.update(_NAMES)
        return kernel

    def tile_of(self, kernel: KernelWriter, load: Load, name: str, *dims: Dim) -> Writer:
        """Write where the elements of a tile are."""
        own = self.operand(kernel, load, f"{name}_place", *dims)
        found = Writer()
        for line in own.lines:
            found.line(re.sub(r"tl\.load\((.*)\)$", r"\1", line.text), line.sources)
        return found

    def add(self, part: str, name: str, pieces: dict[str, Writer], wanted: list[str]) -> list[str]:
        """Write a function that others call; return what it takes, in order.

        Args:
            part: Of the template.
            name: The function's.
            pieces: Generated statements, by name.
            wanted: What it takes if its text mentions it, beside pointers and sizes.
        """
        kernel = self.kernel(name)
        self.fill_part(kernel, part, pieces)
        text = kernel.writer.text
        pointers = [f"{p}_ptr" for p in self.file.parameters.values()]
        names = [*pointers, *self.file.sizes.values(), *wanted]
        taken = [each for each in dict.fromkeys(names) if mentions(text, each)]
        fixed = [each for each in taken if each.isupper() or each == "half"]
        plain = [each for each in taken if each not in fixed]
        # constants last, as in every kernel
        self.file.functions.append(
            Function(
                name,
                kernel.writer,
                [],
                [(each, each) for each in plain],
                [(each, each) for each in fixed],
                gluon=True,
                started=False,
            )
        )
        return [*plain, *fixed]

    def fill_part(self, kernel: KernelWriter, part: str, pieces: dict[str, Writer]) -> None:
        """Write a function's body: a part of the template, with generated statements in it."""
        context: dict[str, object] = {
            "loops": [],
            "lists": [],
            "row_term": "",
            "tile": "",
            "tile_call": "",
            "start_zero": "",
            "start_step": "",
            "start_next": "",
            "weigh_first": "",
            "weigh_step": "",
            "first_half": "",
            "second_half": "",
            "loaded": "",
            **self.context,
            "part": part,
        }
        text = template("attention_warpgroups").render(context)
        self.insert_text(kernel, text, pieces, (self.found.product.source,))


__all__ = ["write"]
