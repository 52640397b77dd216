"""From a body to a Triton file: the whole text, with tunables on top and ``launch`` below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fusec.codegen.naming import body_sizes, identifier, make_signature
from fusec.codegen.passes import plan_passes
from fusec.codegen.triton import split
from fusec.codegen.triton.block import Block, Kernel, favorite_names
from fusec.codegen.triton.choices import Choice, Knob, choose
from fusec.codegen.triton.expressions import Needs
from fusec.codegen.triton.helpers import HELPERS
from fusec.codegen.triton.online import carry_online
from fusec.codegen.triton.padding import Padding
from fusec.codegen.triton.patterns import use_patterns
from fusec.codegen.triton.pointwise import write_pointwise
from fusec.codegen.triton.reductions import write_looped, write_persistent
from fusec.codegen.triton.relaxed import relaxed_nodes
from fusec.codegen.triton.tiling import (
    LIMIT,
    Dim,
    Tile,
    all_roots,
    extents,
    move,
    without_empty_rows,
)
from fusec.codegen.triton.traffic import count_operations, read_bytes, summarize, written_bytes
from fusec.codegen.triton.writer import Writer
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Node, Reduce, free_axes, recording
from fusec.kernel import KernelSource, Signature


@dataclass
class Function:
    """One ``@triton.jit`` function of the file, and how ``launch`` starts it.

    Attributes:
        name: Its name.
        writer: Its text.
        grid: The grid's sizes, as host expressions.
        parameters: What it takes, in order: name in the kernel, and what ``launch`` passes.
        constants: Likewise for compile-time constants.
    """

    name: str
    writer: Writer
    grid: list[str]
    parameters: list[tuple[str, str]]
    constants: list[tuple[str, str]]


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
        wishes: Reductions to their names.
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
    wishes: dict[Node, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def host(self, expr: Expr) -> str:
        """Return a size as ``launch`` computes it."""
        return expr.render(lambda s: self.sizes[s], "//")

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The tunables that are constants of the kernels: not the warps."""
        return tuple(k for k in self.choice.knobs if k.name != "NUM_WARPS")

    def new_kernel(self, name: str, body: Body, tile: Tile) -> Kernel:
        """Return a kernel to write; the arguments' names are taken in it."""
        taken = {f"{p}_ptr" for p in self.parameters.values()} | set(self.sizes.values())
        taken |= {name, self.name, "INDEX", "start", "float", "range", "libdevice"}
        taken |= {"program", "split", "CHUNK", "PARTS"}
        taken |= {k.name for k in self.choice.knobs} | set(HELPERS)
        for dim in tile.dims:
            taken |= {dim.index, dim.mask}
        free = free_axes(all_roots(body))
        padding = None
        if tile.inner is not None and tile.inner.mask:
            padding = Padding(body.nodes(), tile.inner.symbol, free)
        return Kernel(
            tile=tile,
            buffers=self.buffers,
            parameters=self.parameters,
            needs=self.needs,
            writer=Writer(),
            taken=taken,
            free=free,
            index_type=self.index,
            favorite=favorite_names(all_roots(body)),
            relaxed=relaxed_nodes(body),
            padding=padding,
            size_names=self.sizes,
            wishes=self.wishes,
        )


def emit_triton(
    name: str,
    body: Body,
    buffers: Mapping[str, Buffer],
    *,
    label: str = "",
    strategy: str = "",
    device_properties: object = None,
) -> KernelSource:
    """Return a Triton file for ``body``: it runs without fusec.

    A failing run-time check (an index out of range) stops a program only in Triton's debug mode
    (``TRITON_DEBUG=1``, and always in the interpreter); elsewhere the access is left out, so that
    no memory outside a buffer is ever touched.

    Args:
        name: The kernel's name.
        body: What to compute; possibly several fused bodies.
        buffers: Its buffers by name.
        label: A few words about what it is: ``gelu, layer_norm``.
        strategy: ``persistent``, ``looped`` or ``split`` in place of the rules' choice.
        device_properties: Reserved for the GPU that the text is meant for.
    """
    signature, parameters = free_of(RESERVED, *make_signature(body, buffers))
    with recording():
        check_reductions(body)
        filled = without_empty_rows(body)
        choice = choose(filled, buffers, strategy)
        moved = move(filled, choice.groups, choice.reduced)
        if choice.kind in ("looped", "split"):
            moved = carry_online(moved)
        moved = use_patterns(moved)
        taken = {*parameters.values(), *RESERVED}
        sizes = {s: identifier(s.name, taken, "s") for s in body_sizes(body, buffers)}
        file = File(
            name=identifier(f"{name}_kernel" if name in taken else name, taken, "kernel"),
            choice=choice,
            body=moved,
            buffers=buffers,
            parameters=parameters,
            sizes=sizes,
            needs=Needs(),
            index=index_type(body, buffers),
            taken=taken,
        )
        if choice.kind == "split":
            split.write(file)
        else:
            write_single(file)
        summary = summarize(filled, choice.kind)
        writer = assemble(file, label, summary)
        return KernelSource(
            name=name,
            target="triton",
            entry="launch",
            text=writer.text,
            signature=signature,
            origins=writer.origins,
            read_bytes=read_bytes(body, buffers),
            written_bytes=written_bytes(body, buffers),
            operations=count_operations(body),
            summary=summary,
        )


RESERVED = frozenset({*HELPERS, "libdevice", "XBLOCK", "YBLOCK", "RBLOCK", "SPLITS", "chunk"}) | {
    "NUM_WARPS",
    "NUM_STAGES",
    "wide",
}


def free_of(
    reserved: frozenset[str], signature: Signature, parameters: Mapping[str, str]
) -> tuple[Signature, dict[str, str]]:
    """Return a signature whose parameters are not called like something in the file."""
    taken = set(reserved) | set(parameters.values())
    renamed = {p: identifier(f"{p}_in", taken, "x") for p in parameters.values() if p in reserved}
    arguments = tuple(replace(a, name=renamed.get(a.name, a.name)) for a in signature.arguments)
    names = {buffer: renamed.get(p, p) for buffer, p in parameters.items()}
    return replace(signature, arguments=arguments), names


def check_reductions(body: Body) -> None:
    """Refuse what a tile cannot express: reductions over a part of the reduced axes.

    Raises:
        NotImplementedError: There is one.
    """
    wanted = {a for a in body.reduce_axes if a.size != 1}
    for node in body.nodes():
        if isinstance(node, Reduce) and {a for a in node.axes if a.size != 1} != wanted:
            raise NotImplementedError("a reduction over a part of the body's reduced axes")


def index_type(body: Body, buffers: Mapping[str, Buffer]) -> str:
    """Return the type of positions: 32 bits where no position can exceed them."""
    reach = extents(body, buffers)
    if any(e.constant is not None and e.constant >= LIMIT for e in reach):
        return "tl.int64"
    return "tl.int32" if all(e.constant is not None for e in reach) else "INDEX"


# -- one kernel -----------------------------------------------------------------------------


def make_tile(choice: Choice, body: Body) -> Tile:
    """Return the tile of a kernel for the moved body."""
    if choice.kind == "scalar":
        return Tile(body, (Dim(body.axes[0], Expr.of(1), "i", "", "", -1),), None, 0)
    if choice.kind == "flat":
        size = body.axes[0].size or Expr.of(1)
        return Tile(body, (Dim(body.axes[0], size, "i", "XBLOCK", "inside", 0),), None, 1)
    if choice.kind == "tiled":
        y, x = body.axes
        dims = (
            Dim(y, y.size or Expr.of(1), "row", "YBLOCK", "row_inside", 0),
            Dim(x, x.size or Expr.of(1), "col", "XBLOCK", "col_inside", 1),
        )
        return Tile(body, dims, None, 2)
    x, r = body.axes[0], body.reduce_axes[0]
    rows, columns = x.size or Expr.of(1), r.size or Expr.of(1)
    whole = choice.row_block > 0 and columns.constant == choice.row_block
    if choice.scalar_rows:
        inner = Dim(r, columns, "col", "RBLOCK", "" if whole else "col_inside", 0)
        return Tile(body, (Dim(x, rows, "row", "", "", -1),), inner, 1)
    names = ("row", "col") if choice.inner_last else ("col", "row")
    place = 0 if choice.inner_last else 1
    outer = Dim(x, rows, names[0], "XBLOCK", f"{names[0]}_inside", place)
    mask = "" if whole else f"{names[1]}_inside"
    inner = Dim(r, columns, names[1], "RBLOCK", mask, 1 - place)
    return Tile(body, (outer,), inner, 2)


def write_single(file: File) -> None:
    """Write a file with one kernel."""
    choice, body = file.choice, file.body
    tile = make_tile(choice, body)
    kernel = file.new_kernel(file.name, body, tile)
    grid = write_outer_indices(file, kernel, tile)
    block = Block(kernel)
    if choice.kind in ("scalar", "flat", "tiled"):
        write_pointwise(kernel, block)
    elif choice.kind == "persistent":
        assert tile.inner is not None
        write_row_index(file, kernel, tile.inner)
        write_persistent(kernel, block)
    else:
        assert tile.inner is not None
        size = block.index(tile.inner.size)
        loop = f"for start in tl.range(0, {size}, RBLOCK, num_stages=NUM_STAGES):"
        write_looped(kernel, block, plan_passes(body), loop)
    constants = [(k.name, k.name) for k in file.knobs]
    if choice.row_block:
        constants.append(("RBLOCK", str(choice.row_block)))
    add_function(file, kernel, file.name, grid, constants=constants)


def add_function(
    file: File,
    kernel: Kernel,
    name: str,
    grid: list[str],
    constants: Sequence[tuple[str, str]],
    extra: Sequence[tuple[str, str]] = (),
) -> None:
    """Add a written kernel to the file, with the parameters that its text mentions."""
    text = kernel.writer.text
    parameters = [(f"{p}_ptr", p) for p in file.parameters.values() if f"{p}_ptr" in text]
    parameters += list(extra)
    parameters += [(s, s) for s in file.sizes.values() if mentions(text, s)]
    constants = [c for c in constants if mentions(text, c[0])]
    if file.index == "INDEX":
        constants = [("INDEX", "tl.int64 if wide else tl.int32"), *constants]
    file.functions.append(Function(name, kernel.writer, grid, parameters, list(constants)))


def mentions(text: str, name: str) -> bool:
    """Whether an identifier occurs in a text."""
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def write_outer_indices(file: File, kernel: Kernel, tile: Tile) -> list[str]:
    """Write the indices of the independent dimensions; return the grid."""
    writer = kernel.writer
    wide = "" if file.index == "tl.int32" else f".to({file.index})"
    block = Block(kernel)
    if tile.rank == 0:
        return ["1"]
    if len(tile.outer) == 2:
        row, col = tile.outer
        columns = f"tl.cdiv({block.index(col.size)}, XBLOCK)"
        writer.line(f"across = {columns}")
        writer.line(f"program = tl.program_id(0){wide}")
        for dim, position in ((row, "program // across"), (col, "program % across")):
            spread = dim.spread(2)
            writer.line(
                f"{dim.index} = {position} * {dim.block} + tl.arange(0, {dim.block}){spread}"
            )
            writer.line(f"{dim.mask} = {dim.index} < {block.index(dim.size)}")
        down, wide_tiles = (f"triton.cdiv({file.host(d.size)}, {d.block})" for d in (row, col))
        return [f"{down} * {wide_tiles}"]
    (dim,) = tile.outer
    if dim.place < 0:
        if dim.size != 1:
            writer.line(f"{dim.index} = tl.program_id(0){wide}")
        return [file.host(dim.size)]
    spread = dim.spread(tile.rank)
    writer.line(
        f"{dim.index} = tl.program_id(0){wide} * {dim.block} + tl.arange(0, {dim.block}){spread}"
    )
    writer.line(f"{dim.mask} = {dim.index} < {block.index(dim.size)}")
    return [f"triton.cdiv({file.host(dim.size)}, {dim.block})"]


def write_row_index(file: File, kernel: Kernel, dim: Dim) -> None:
    """Write the index along a row that a tile holds as a whole."""
    wide = "" if file.index == "tl.int32" else f".to({file.index})"
    spread = dim.spread(kernel.tile.rank)
    kernel.writer.line(f"{dim.index} = tl.arange(0, RBLOCK){spread}{wide}")
    if dim.mask:
        kernel.writer.line(f"{dim.mask} = {dim.index} < {dim.size}")


# -- the file -------------------------------------------------------------------------------


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
    out.line("import triton.language as tl")
    kernels = "\n".join(f.writer.text for f in file.functions)
    helpers = file.needs.texts(kernels)
    if "libdevice." in kernels + "".join(helpers):
        out.line("from triton.language.extra import libdevice")
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
        out.line("@triton.jit")
        parameters = [p for p, _ in function.parameters]
        parameters += [f"{c}: tl.constexpr" for c, _ in function.constants]
        write_call(out, f"def {function.name}(", parameters, "):")
        shift = len(out.lines)
        for line in function.writer.lines:
            out.line(f"    {line}" if line else "")
        for number, sources in function.writer.origins.items():
            out.origins[number + shift] = sources
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
        out.line(f"wide = {longest} >= 2**31 - 2**24")
    for line in file.setup:
        out.line(line)
    for function in file.functions:
        values = [value for _, value in function.parameters]
        values += [f"{name}={value}" for name, value in function.constants]
        if any(k.name == "NUM_WARPS" for k in file.choice.knobs):
            values.append("num_warps=NUM_WARPS")
        grid = ", ".join(function.grid) + ("," if len(function.grid) == 1 else "")
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
