"""Attention in Gluon: two groups of warps multiply and weigh, a third one loads for both.

The functions' bodies are parts of ``templates/attention_warpgroups.py.j2``; what becomes of a score
is generated, as everywhere.  A step's scores are multiplied while the weights of the last ones are
computed (as in FlashAttention-3 by Shah et al., 2024), and tiles of keys and values lie in a ring
of ``NUM_STAGES`` whose places are filled and given back through barriers in shared memory.
"""

from __future__ import annotations

import re
from dataclasses import replace

from fusec.ir.body import Store
from fusec.ir.node import Load
from fusec.targets.triton.kernels.attention import FINITE, LOWEST, AttentionWriter
from fusec.targets.triton.kernels.template_parts import TemplateParts, call
from fusec.targets.triton.plan.choices_attention import Attention, size_of
from fusec.targets.triton.plan.tiling import Dim
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import triton_type
from fusec.targets.triton.text.file import File, add_function
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.writer import Writer

# What the template itself calls its values, beside those of ``attention``.
_NAMES = frozenset(
    "turn seat stage last phase heavy summed coming none half whole steps step rest slots slot "
    "after changed barrier place query_place key_place value_place queries values async_copy "
    "mbarrier fence_async_shared warpgroup_mma warpgroup_mma_wait gluon aligned".split()
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
_CONSTANTS = ("BLOCK_M", "BLOCK_N", "GROUP_H", "TURNS", "SEATS", "NUM_STAGES", "ALIGNED")


def write(file: File, found: Attention) -> None:
    """Write the kernel of attention and the functions that its groups of warps run."""
    _Writer(file, found).write()


class _Writer(AttentionWriter, TemplateParts):
    template = "attention_warpgroups"

    def write(self) -> None:
        """Write the kernel, after the functions that it calls: what those take is known then."""
        file, found = self.file, self.found
        self.product = found.product
        kernel = self.kernel(file.name)
        places = self.places(Block(kernel))
        self.place = [line.partition(" = ")[0] for line in places]
        self.context = self.facts(Block(kernel), places)
        self.pieces = self.statements(kernel)
        self.add_steps()
        load = self.add_part("load", [*_TILES, *_BARRIERS, *_CONSTANTS])
        attend = self.add_part("attend", ["half", *_TILES, *_BARRIERS, *_CONSTANTS])
        self.context |= {
            "first_half": call(attend, "half", "0"),
            "second_half": call(attend, "half", "1"),
            "loaded": ", ".join(load),
        }
        self.fill_part(kernel, "kernel")
        m, pairs = file.host(found.sizes[0]), file.host(found.pairs)
        grid = f"{m} // BLOCK_M // TURNS" + ("" if pairs == "1" else f" * {pairs}")
        tiles = [file.parameters[t.buffer] for t in (found.query, found.keys, found.values)]
        aligned = [f"{name}.data_ptr() % 16 == 0" for name in dict.fromkeys(tiles)]
        file.setup.append(f"aligned = {' and '.join(aligned)}")
        constants = [(knob.name, knob.name) for knob in file.knobs] + [("ALIGNED", "aligned")]
        add_function(file, kernel, file.name, [grid], constants)
        file.functions[-1].gluon = True

    def facts(self, outer: Block, places: list[str]) -> dict[str, object]:
        """Return what all parts of the template may ask."""
        found = self.found
        return {
            "name": self.file.name,
            "m": outer.index(found.sizes[0]),
            "n": outer.index(found.sizes[1]),
            "pairs": outer.index(found.pairs),
            "places": places,
            "depth": size_of(found.depth).constant,
            "row": self.row_name,
            "half": triton_type(found.values.dtype),
            "careful": found.careful,
            "lowest": '-float("inf")' if found.careful else LOWEST,
            "finite": FINITE,
            "factor": repr(found.factor),
            "tile": ", ".join([*self.place, "first", "whole", "steps"]),
        }

    def statements(self, kernel: KernelWriter) -> dict[str, Writer]:
        """Return the generated statements, by the names that the template has for them."""
        found, loops = self.found, self.loops()
        roots = [loop.value for loop in loops]
        if self.row_term is not None and self.gives_back:
            roots.append(self.row_term)
        keys, depth = self.key_dim(True), self.depth_dim()
        pieces = {
            "query": self.tile_of(kernel, found.query, "query", self.row_dim(), depth),
            "key": self.tile_of(kernel, found.keys, "key", keys, depth),
            "value": self.tile_of(kernel, found.values, "value", keys, self.width_dim()),
        }
        pieces["before"], before = self.before(kernel, roots, {})
        described = []
        branches: list[KernelWriter] = []
        for loop in loops:
            pieces[loop.name], score = self.score(kernel, before, loop.value, branches)
            described.append(self.describe(kernel, loop, score))
            if loop.listed is not None:  # one block may be larger than there are keys
                columns = min(loop.listed.columns, found.sizes[1].constant or 0)
                described[-1]["columns"] = columns
        pieces["epilogue"] = self.epilogue(kernel, "[:, None]", self.row_dim())
        self.context |= {
            "loops": described,
            "lists": [each for each in described if each["count"]],
            "row_term": self.row_text(before),
        }
        return pieces

    def add_steps(self) -> None:
        """Write the small functions: where a tile and a step lie, copies, weights."""
        name, place = self.file.name, self.place
        start = self.add_part("start", ["step", "first", *place, "whole", "BLOCK_N"])
        for which, step in (("zero", "0"), ("step", "step"), ("next", "step + 1")):
            self.context[f"start_{which}"] = f"{name}_start({call(start, 'step', step)})"
        self.add_part("copy", ["tile", "place", "ALIGNED"])
        self.add_part("announce", ["barrier"])
        tile = self.add_part("tile", ["turn", "BLOCK_M", "BLOCK_N", "GROUP_H", "TURNS"])
        self.context["tile_call"] = f"{name}_tile({', '.join(tile)})"
        matches = (_ASSIGNED.match(line.text) for line in self.pieces["before"].lines)
        known = [match[1] for match in matches if match]
        given = ["score", "most", "total", "step", *place, "first", "whole", self.row_name, *known]
        weigh = self.add_part("weigh", [*given, "BLOCK_N"])
        self.context |= {
            "weigh_first": call(weigh, "step", "0"),
            "weigh_step": ", ".join(weigh),
        }

    def kernel(self, name: str) -> KernelWriter:
        kernel = super().kernel(name)
        kernel.taken.update(_NAMES)
        return kernel

    def tile_of(self, kernel: KernelWriter, load: Load, name: str, *dims: Dim) -> Writer:
        """Write where the elements of a tile are; all of them are inside."""
        own = replace(kernel, tile=self.tile(*dims), writer=Writer(), names={})
        address, _ = Block(own).pointer(load.buffer, load.index)
        own.writer.line(f"{name}_place = {address}", (load.source,))
        return own.writer

    def save(self, kernel: KernelWriter, store: Store, value: str) -> None:
        """Write a store of a tile's rows: results line by line, not as products leave them."""
        if value == "result":
            half = triton_type(store.value.dtype)
            kernel.writer.line(f"result = tl.convert_layout(result.to({half}), LINES)")
            line = replace(self.row_dim(), index="line")
            kernel = replace(kernel, tile=self.tile(line, self.width_dim()))
        super().save(kernel, store, value)


__all__ = ["write"]
