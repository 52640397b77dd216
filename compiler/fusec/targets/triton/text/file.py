"""The file: tunables on top, helper functions, the kernels, and ``launch`` below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusec.codegen.common.relaxed_maths import relaxed_nodes
from fusec.codegen.common.writer import INDENT, Line
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.index_text import expr_text
from fusec.ir.node import Node
from fusec.ir.walk import free_axes
from fusec.targets.triton.plan.choice import Choice, Knob
from fusec.targets.triton.plan.padding import Padding
from fusec.targets.triton.plan.pairs import TWICE, Pair, StorePair, pairs_along, store_pairs_along
from fusec.targets.triton.plan.tiling import REACHING_LIMIT, Tile, extents
from fusec.targets.triton.text import reductions as rt
from fusec.targets.triton.text.expressions import Needs
from fusec.targets.triton.text.helpers import HELPERS
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.masked_load import knows_masks
from fusec.targets.triton.text.names import favorite_names
from fusec.targets.triton.text.writer import Writer

WARPS = "NUM_WARPS"  # the tunable
FEW_WARPS = "few_warps"  # of the programs that combine parts, where ``launch`` computes that

# What a file may define itself: no argument may be called so.
RESERVED = frozenset(
    {
        *HELPERS,
        "libdevice",
        "XBLOCK",
        "YBLOCK",
        "RBLOCK",
        "SPLITS",
        "chunk",
        "few",
        "held",
        FEW_WARPS,
        "group",
        rt.GROUP,
    }
) | {
    WARPS,
    "TILE",
    "warps",
    "NUM_STAGES",
    "UNROLL",
    "group",
    "wide",
    "min",
    "max",
    *"BLOCK_M BLOCK_N BLOCK_K GROUP_M PROGRAMS TensorDescriptor parts moved".split(),
}


_GLUON = (
    "from triton.experimental import gluon",
    "from triton.experimental.gluon import language as tl",
    "from triton.experimental.gluon.language.nvidia.hopper import (",
    "    async_copy,",
    "    fence_async_shared,",
    "    mbarrier,",
    "    warpgroup_mma,",
    "    warpgroup_mma_wait,",
    ")",
)


@dataclass
class Function:
    """One ``@triton.jit`` function of the file, and how ``launch`` starts it.

    Attributes:
        name: Its name.
        writer: Its text.
        grid: The grid's sizes, as host expressions.
        parameters: What it takes, in order: name in the kernel, and what ``launch`` passes.
        constants: Likewise for compile-time constants.
        warps: Those of a program, as a host expression.
        pipelined: Whether the compiler is to load ``NUM_STAGES`` steps of all loops ahead.
        gluon: Whether it is written in Gluon, in which layouts and waits are the text's own.
        started: Whether ``launch`` starts it; others are called by what it starts.
    """

    name: str
    writer: Writer
    grid: list[str]
    parameters: list[tuple[str, str]]
    constants: list[tuple[str, str]]
    warps: str = WARPS
    pipelined: bool = False
    gluon: bool = False
    started: bool = True


@dataclass
class File:
    """A file being put together.

    Attributes:
        name: The kernel's name.
        choice: What was decided.
        body: The body over the tile's axes.
        buffers: By name.
        parameters: Buffer name to argument name.
        sizes: Symbolic size to argument name.
        needs: What the text relies on.
        index: ``tl.int32``, ``tl.int64``, or ``INDEX`` where ``launch`` decides.
        functions: The kernels.
        setup: Lines of ``launch`` before the first start.
        reduction_names: Reductions to their names.
        taken: Names in use in the module and in ``launch``.
    """

    name: str
    choice: Choice
    body: Body
    buffers: Mapping[str, Buffer]
    parameters: Mapping[str, str]
    sizes: Mapping[Symbol, str]
    needs: Needs
    index: str
    functions: list[Function] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    reduction_names: dict[Node, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def host(self, expr: Expr) -> str:
        """Return a size as ``launch`` computes it."""
        return expr_text(expr, lambda s: self.sizes[s])

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The tunables that are constants of the kernels: not the warps."""
        return tuple(k for k in self.choice.knobs if k.name != WARPS)

    def new_kernel(self, name: str, body: Body, tile: Tile) -> KernelWriter:
        """Return a kernel to write; the arguments' names are taken in it."""
        taken = {f"{p}_ptr" for p in self.parameters.values()} | set(self.sizes.values())
        taken |= {name, self.name, "INDEX", "start", "float", "range", "libdevice"}
        taken |= {"piece", "program", "split", "CHUNK", "PARTS", "PADDED", "first", TWICE}
        taken |= {k.name for k in self.choice.knobs} | set(HELPERS)
        for dim in tile.dims:
            taken |= {dim.index, dim.mask, dim.line, dim.line_mask}
        free = free_axes(body.computed)
        padding = None
        pairs: tuple[Pair, ...] = ()
        store_pairs: tuple[StorePair, ...] = ()
        if self.choice.kind in ("flat", "tiled"):
            pairs = pairs_along(body, self.buffers, tile.outer[-1].symbol, free)
            store_pairs = store_pairs_along(body, self.buffers, tile.outer[-1].symbol)
        if tile.inner is not None and tile.inner.mask:
            padding = Padding(body.nodes(), tile.inner.symbol, free, self.buffers)
        return KernelWriter(
            tile=tile,
            buffers=self.buffers,
            parameters=self.parameters,
            needs=self.needs,
            writer=Writer(),
            taken=taken,
            free=free,
            index_type=self.index,
            favorite=favorite_names(body.computed),
            relaxed=relaxed_nodes(body, quick=True),
            padding=padding,
            size_names=self.sizes,
            reduction_names=self.reduction_names,
            pairs={load: pair for pair in pairs for load in pair.loads},
            store_pairs=store_pairs,
            step=next((k.value for k in self.choice.knobs if k.name == "RBLOCK"), 0),
            knows_masks=(
                tile.inner is None
                or tile.walk is not None
                or knows_masks(self.choice, tile.inner.size)
            ),
        )


def add_function(
    file: File,
    kernel: KernelWriter,
    name: str,
    grid: list[str],
    constants: Sequence[tuple[str, str]],
    extra: Sequence[tuple[str, str]] = (),
    pipelined: bool = False,
    warps: str = WARPS,
) -> None:
    """Add a written kernel to the file, with the parameters that its text mentions."""
    text = kernel.writer.text
    parameters = [(f"{p}_ptr", p) for p in file.parameters.values() if f"{p}_ptr" in text]
    parameters += list(extra)
    parameters += [(s, s) for s in file.sizes.values() if mentions(text, s)]
    constants = [c for c in constants if mentions(text, c[0])]
    if kernel.access:
        line = f"group = min(max(XBLOCK * RBLOCK // (NUM_WARPS * {32 * kernel.access}), 1), RBLOCK)"
        if line not in file.setup:
            file.setup += ["# rows of a step that one thread holds of its columns", line]
        constants.append((rt.GROUP, "group"))
    if file.index == "INDEX":
        constants = [("INDEX", "tl.int64 if wide else tl.int32"), *constants]
    function = Function(name, kernel.writer, grid, parameters, list(constants), warps, pipelined)
    file.functions.append(function)


def mentions(text: str, name: str) -> bool:
    """Whether an identifier occurs in a text."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def assemble(file: File, label: str, summary: str) -> Writer:
    """Return the whole file."""
    out = Writer()
    title = f"{label}: {summary}" if label else summary
    arguments = [*file.parameters.values(), *file.sizes.values()]
    out.line(f'"""{title[0].upper()}{title[1:]}.')
    out.line()
    out.line(f"Generated by fusec; runs without it: ``launch({', '.join(arguments)})``.")
    out.line('"""')
    out.line()
    if any("torch." in line for line in file.setup):
        out.line("import torch")
    out.line("import triton")
    gluon = any(f.gluon for f in file.functions)
    out.block("\n".join(_GLUON) if gluon else "import triton.language as tl")
    descriptors = any("TensorDescriptor(" in line for line in file.setup)
    kernels = "\n".join(f.writer.text for f in file.functions)
    helpers = file.needs.texts(kernels, gluon)
    if "libdevice." in kernels + "".join(helpers):
        out.line("from triton.language.extra import libdevice")
    if descriptors:
        out.line("from triton.tools.tensor_descriptor import TensorDescriptor")
    out.line()
    for knob in file.choice.knobs:
        choices = " ".join(str(c) for c in sorted({*knob.choices, knob.value}))
        out.line(f"{knob.name} = {knob.value}  # tunable: {choices} ({knob.meaning})")
    for text in helpers:
        out.line()
        out.line()
        out.block(text)
    for function in file.functions:
        out.line()
        out.line()
        out.line("@gluon.jit" if function.gluon else "@triton.jit")
        parameters = [p for p, _ in function.parameters]
        parameters += [f"{c}: tl.constexpr" for c, _ in function.constants]
        write_call(out, f"def {function.name}(", parameters, "):")
        for line in function.writer.lines or [
            Line("pass")
        ]:  # of no elements there is nothing to do
            out.line(f"{INDENT}{line.text}" if line.text else "", line.sources)
    out.line()
    out.line()
    write_call(out, "def launch(", arguments, "):")
    with out.indented():
        out.line('"""Run on the current device and stream; the tensors are as when it was made."""')
        write_launch(out, file)
    return out


def write_launch(out: Writer, file: File) -> None:
    """Write the body of ``launch``."""
    if file.index == "INDEX":
        reach = [e for e in extents(file.body, file.buffers) if e.constant is None]
        texts = list(dict.fromkeys(file.host(e) for e in reach))
        longest = texts[0] if len(texts) == 1 else f"max({', '.join(texts)})"
        out.line("# positions need 64 bits where a tensor is that large")
        limit = f"2**{REACHING_LIMIT.bit_length() - 1}" if file.needs.reaching else "2**31 - 2**24"
        out.line(f"wide = {longest} >= {limit}")
    for line in file.setup:
        out.line(line)
    for function in (f for f in file.functions if f.started):
        values = [value for _, value in function.parameters]
        values += [f"{name}={value}" for name, value in function.constants]
        if any(k.name == WARPS for k in file.choice.knobs):
            values.append(f"num_warps={'warps' if file.choice.sized else function.warps}")
        if function.pipelined:
            values.append("num_stages=NUM_STAGES")
        grid = ", ".join(function.grid) + ("," if len(function.grid) == 1 else "")
        if len(function.name) + len(grid) > 80:
            out.line("grid = (")
            with out.indented():
                for size in function.grid:
                    out.line(f"{size},")
            out.line(")")
            write_call(out, f"{function.name}[grid](", values, ")")
            continue
        write_call(out, f"{function.name}[({grid})](", values, ")")


def write_call(out: Writer, head: str, items: Sequence[str], tail: str) -> None:
    """Write ``head items tail`` on one line, or an item a line where that is too long."""
    one = f"{head}{', '.join(items)}{tail}"
    if len(one) + 4 * out.depth <= 100:
        out.line(one)
        return
    out.line(head)
    with out.indented():
        for item in items:
            out.line(f"{item},")
    out.line(tail)
