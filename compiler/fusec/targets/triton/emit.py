"""From a body to a Triton file: the whole text, with tunables on top and ``launch`` below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusec.codegen.common.operation_count import count_operations
from fusec.codegen.common.reduction_passes import plan_passes
from fusec.codegen.common.signatures import body_sizes, identifier, make_signature
from fusec.codegen.common.traffic import read_bytes, written_bytes
from fusec.ir.body import Body, Buffer
from fusec.ir.index import Expr, lower_bound, upper_bound
from fusec.ir.node import Reduce, recording
from fusec.kernel_source import KernelSource, Signature
from fusec.targets.triton.kernels import (
    attention,
    attention_gradients,
    attention_gradients_warpgroups,
    attention_warpgroups,
    matmul,
    word_product,
)
from fusec.targets.triton.kernels import row_and_column as crossed
from fusec.targets.triton.kernels import split_reductions as split
from fusec.targets.triton.kernels.pointwise import write_pointwise, write_rows
from fusec.targets.triton.kernels.reducer import LOOP
from fusec.targets.triton.kernels.reductions import write_looped, write_persistent
from fusec.targets.triton.plan import choices_attention
from fusec.targets.triton.plan.attention_gradients import (
    choose_gradients,
    is_gradient,
    match_gradients,
)
from fusec.targets.triton.plan.choice import Choice
from fusec.targets.triton.plan.choices import choose
from fusec.targets.triton.plan.choices_matmul import choose_product, match_product
from fusec.targets.triton.plan.choices_warpgroups import KIND as WARPGROUPS
from fusec.targets.triton.plan.choices_warpgroups import (
    choose_warpgroup_gradients,
    choose_warpgroups,
)
from fusec.targets.triton.plan.eviction import for_one_reading
from fusec.targets.triton.plan.phases import cut_into_phases
from fusec.targets.triton.plan.tiling import LIMIT, extents, move, without_empty_rows
from fusec.targets.triton.plan.word_products import in_words
from fusec.targets.triton.rewrite.online_softmax import carry_online
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Needs
from fusec.targets.triton.text.file import RESERVED, File, add_function, assemble
from fusec.targets.triton.text.indices import (
    make_tile,
    write_outer_indices,
    write_padded,
    write_row_index,
)
from fusec.targets.triton.text.patterns import use_patterns
from fusec.targets.triton.text.traffic import summarize
from fusec.targets.triton.text.unaligned_rows import write_odd_row


def emit_triton(
    name: str,
    body: Body,
    buffers: Mapping[str, Buffer],
    *,
    label: str = "",
    strategy: str = "",
    settings: tuple[tuple[str, int], ...] = (),
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
        strategy: ``persistent``, ``looped`` or ``split``, or ``rows`` or ``tiled``, in place of the
            rules' choice; for a matrix product one of ``choices_matmul.STRATEGIES``.
        settings: Values of a matrix product's tunables in place of the rules' own.
    """
    signature, parameters = free_of(RESERVED, *make_signature(body, buffers))
    with recording():
        filled, moved, choice = _planned(body, buffers, strategy, settings)
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
            index=index_type(moved, buffers),
            taken=taken,
        )
        _write(file)
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
            plan=str(choice),
            strategy=choice.kind if choice.kind in ("persistent", "looped", "split") else "",
        )


def choose_attention(
    body: Body, buffers: Mapping[str, Buffer], settings: tuple[tuple[str, int], ...]
) -> tuple[Body, Choice]:
    """Return the body that a kernel of attention computes, and its tunables."""
    narrow = index_type(body, buffers) == "tl.int32"  # Gluon's positions have 32 bits
    if is_gradient(body):
        gradients = match_gradients(body)
        apart = choose_warpgroup_gradients(gradients, buffers, dict(settings)) if narrow else None
        return body, apart or choose_gradients(gradients, buffers, settings)
    grouped = choices_attention.group_heads(body)
    found = choices_attention.match_attention(grouped)
    apart = choose_warpgroups(found, buffers, dict(settings)) if narrow else None
    return grouped, apart or choices_attention.choose_attention(found, buffers, settings)


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


def size_rows(file: File, size: Expr) -> list[str]:
    """Return the lines of ``launch`` that make tiles for the rows of a call."""
    length = file.host(size)
    if (lower_bound(size) or 0) < 1:
        length = f"max({length}, 1)"
    return [
        f'assert {file.host(size)} <= {upper_bound(size)}, "made for shorter rows"',
        f"RBLOCK = triton.next_power_of_2({length})",
        "XBLOCK = max(TILE // RBLOCK, 1)  # rows a program",
        "warps = min(max(NUM_WARPS * RBLOCK // TILE, NUM_WARPS), 32)",
    ]


def _planned(
    body: Body, buffers: Mapping[str, Buffer], strategy: str, settings: tuple[tuple[str, int], ...]
) -> tuple[Body, Body, Choice]:
    """Return a body as a kernel is to compute it, over the kernel's loops, and how that runs."""
    if body.attends:
        filled, choice = choose_attention(body, buffers, settings)
        return filled, filled, choice
    if body.products:
        return body, body, choose_product(match_product(body, buffers), buffers, strategy, settings)
    check_reductions(body)
    filled = without_empty_rows(body)
    cut = filled if strategy else cut_into_phases(filled, buffers)
    choice = choose(cut, buffers, strategy)
    moved = move(cut, choice.groups, choice.reduced, choice.walked)
    return filled, carry_online(moved) if choice.kind in ("looped", "split") else moved, choice


def _write(file: File) -> None:
    """Write the functions of a file, by what its body is and how it is to run."""
    body, kind = file.body, file.choice.kind
    if body.attends and is_gradient(body):
        apart = kind == WARPGROUPS
        writes = attention_gradients_warpgroups if apart else attention_gradients
        writes.write(file, match_gradients(body))
    elif kind == WARPGROUPS:
        attention_warpgroups.write(file, choices_attention.match_attention(body))
    elif body.attends:
        attention.write(file, choices_attention.match_attention(body))
    elif body.products:
        product = match_product(body, file.buffers)
        laid = in_words(product, product.group, file.buffers) if kind == "words" else None
        if laid is not None:
            word_product.write(file, product, laid)
        else:
            matmul.write(file, product)
    elif kind == "crossed":
        crossed.write(file)
    elif kind == "split":
        split.write(file)
    else:
        write_single(file)


def write_single(file: File) -> None:
    """Write a file with one kernel."""
    choice, body = file.choice, file.body
    tile = make_tile(choice, body)
    kernel = file.new_kernel(file.name, body, tile)
    grid = write_outer_indices(file, kernel, tile)
    block = Block(kernel)
    kernel.evict = for_one_reading(body, kernel.buffers)
    if choice.kind in ("scalar", "flat", "tiled"):
        write_pointwise(kernel, block)
    elif choice.kind == "rows":
        write_rows(kernel, block)
    elif choice.kind == "persistent":
        assert tile.inner is not None
        write_row_index(file, kernel, tile.inner)
        write_persistent(kernel, block)
    else:
        assert tile.inner is not None
        size = block.index(tile.inner.size)
        if tile.walk is not None:
            size = f"{block.index(tile.walk.size)} * {write_padded(kernel, tile)}"
        kernel.odd = write_odd_row(kernel, block)
        loop = LOOP.format(size if kernel.odd is None else f"{size} + {kernel.odd.shift}")
        write_looped(kernel, block, plan_passes(body), loop)
    constants = [(k.name, k.name) for k in file.knobs]
    if choice.sized:
        assert tile.inner is not None
        file.setup += size_rows(file, tile.inner.size)
        constants += [("XBLOCK", "XBLOCK"), ("RBLOCK", "RBLOCK")]
    if choice.row_block:
        constants.append(("RBLOCK", str(choice.row_block)))
    add_function(file, kernel, file.name, grid, constants=constants)
