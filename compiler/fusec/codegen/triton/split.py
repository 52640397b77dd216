"""Few rows, or few columns: several programs share each, in as many kernels as it has passes.

Kernel ``p`` begins by combining what the programs of the kernels before it left in scratch
memory, walks its own part of each row, and leaves its parts for the next.  The last one has no
loop where only whole-row values remain to be stored.
"""

from __future__ import annotations

from fusec.codegen.passes import PassPlan, plan_passes
from fusec.codegen.triton.block import Block, Kernel
from fusec.codegen.triton.expressions import Text
from fusec.codegen.triton.file import File, add_function, mentions
from fusec.codegen.triton.indices import make_tile, write_outer_indices
from fusec.codegen.triton.reductions import (
    Reducer,
    delayed_stores,
    later_uses,
    loop_uses,
    scratch_names,
    write_pass,
    write_places,
)
from fusec.codegen.triton.tiling import Tile
from fusec.ir.body import Store
from fusec.ir.node import Node, Reduce


def write(file: File) -> None:
    """Write the kernels of a split reduction, and the scratch memory they share."""
    body, choice = file.body, file.choice
    plan = plan_passes(body)
    tile = make_tile(choice, body)
    assert tile.inner is not None
    stores = delayed_stores(plan)
    reads = set(body.reads())
    # a row value that a neighbor still has to read may only be overwritten by a later kernel
    late = [s for each in plan.passes for s in each.row_stores if s.buffer in reads]
    looping = [n for n, each in enumerate(plan.passes) if each.reductions or stores[n]]
    row_stores: dict[int, list[Store]] = {}
    for number, each in enumerate(plan.passes):
        home = next((n for n in looping if n >= number), len(plan.passes))
        row_stores.setdefault(home, []).extend(s for s in each.row_stores if s not in late)
    row_stores.setdefault(len(plan.passes), []).extend(late)
    reductions = [r for each in plan.passes for r in each.reductions]
    # an online sum is combined with its maximum, which therefore comes first
    reductions.sort(key=lambda r: (plan.ready[r], r.kind == "online_sum"))

    declare_scratch(file, reductions, tile)
    last = max([*looping, *(n for n, s in row_stores.items() if s)])
    for number in [*looping, *([len(plan.passes)] if last == len(plan.passes) else [])]:
        suffix = "" if number == last else f"_part{looping.index(number) + 1}"
        name = f"{file.name}{suffix}"
        kernel = file.new_kernel(name, body, tile)
        writer = kernel.writer
        loops = number in looping
        grid = write_outer_indices(file, kernel, tile)
        if loops:
            grid = [*grid, "SPLITS"] if grid != ["1"] else ["1", "SPLITS"]
            writer.line("split = tl.program_id(1)")
        block = Block(kernel)
        reducer = Reducer(kernel, block)
        needed = needed_rows(plan_roots(plan, number, stores, row_stores))
        earlier = [r for r in reductions if plan.ready[r] <= number and r in needed]
        if earlier:
            load_parts(file, kernel, reducer, earlier, reductions, tile)
        before = [n for each in plan.passes[: number + 1] for n in each.before if n in needed]
        if loops:
            block.must_name.update(loop_uses(plan, number))
        block.write(before, roots=later_uses(plan, number), stores=row_stores.get(number, []))
        if loops:
            loop = "for start in tl.range(0, CHUNK, RBLOCK, num_stages=NUM_STAGES):"
            origin = "split * CHUNK + start"
            write_pass(kernel, reducer, number, plan.passes[number], stores[number], loop, origin)
            for node in reductions:
                if node in plan.passes[number].reductions:
                    reducer.end(node, partial=True)
                    save_part(file, reducer, node, reductions, tile)
        only = "split == 0" if loops else ""
        for store in row_stores.get(number, []):
            write_places(block, store)
            block.store(store, only and f"({only})")
        extra = [
            (scratch, scratch)
            for node in reductions
            for scratch in scratch_names(node, reductions)
            if mentions(writer.text, scratch)
        ]
        constants = [(k.name, k.name) for k in file.knobs]
        constants += [("PARTS", "triton.next_power_of_2(SPLITS)")]
        if tile.inner.size.constant is not None:
            constants += [("CHUNK", "chunk")]
        else:
            extra += [("CHUNK", "chunk")] if loops else []
        add_function(file, kernel, name, grid, constants, extra)


def plan_roots(
    plan: PassPlan,
    number: int,
    stores: list[tuple[Store, ...]],
    row_stores: dict[int, list[Store]],
) -> list[Node]:
    """Return the values that kernel ``number`` exists for."""
    roots = [s.value for s in row_stores.get(number, [])]
    if number < len(plan.passes):
        roots += [s.value for s in stores[number]]
        roots += [r.args[0] for r in plan.passes[number].reductions]
    return roots


def needed_rows(roots: list[Node]) -> set[Node]:
    """Return the nodes that ``roots`` are made of, not looking behind reductions."""
    found: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found.add(node)
        if not isinstance(node, Reduce):
            stack.extend(node.args)
        elif node.kind == "online_sum":
            continue
    return found


def declare_scratch(file: File, reductions: list[Reduce], tile: Tile) -> None:
    """Add the lines of ``launch`` that make the scratch memory and share out the rows."""
    assert tile.inner is not None
    rows = file.host(tile.outer[0].size)
    device = f"{next(iter(file.parameters.values()))}.device"
    columns = file.host(tile.inner.size)
    file.setup.append(f"chunk = triton.cdiv(triton.cdiv({columns}, SPLITS), RBLOCK) * RBLOCK")
    for node in reductions:
        dtypes = [str(node.args[0].dtype)]
        if node.kind in ("argmax", "argmin"):
            dtypes.append("torch.int64" if file.index != "tl.int32" else "torch.int32")
        for scratch, dtype in zip(scratch_names(node, reductions), dtypes, strict=True):
            file.setup.append(
                f"{scratch} = torch.empty((SPLITS, {rows}), dtype={dtype}, device={device})"
            )


def save_part(
    file: File, reducer: Reducer, node: Reduce, reductions: list[Reduce], tile: Tile
) -> None:
    """Write the stores of a program's part."""
    outer = tile.outer[0]
    rows = reducer.block.index(outer.size)
    address = "split" if outer.size == 1 else f"split * {rows} + {outer.index}"
    reducer.save(node, scratch_names(node, reductions), address, outer.mask)


def load_parts(
    file: File,
    kernel: Kernel,
    reducer: Reducer,
    wanted: list[Reduce],
    reductions: list[Reduce],
    tile: Tile,
) -> None:
    """Write the combination of the parts that ``wanted`` reductions were left in."""
    assert tile.inner is not None
    outer, writer = tile.outer[0], kernel.writer
    rows = reducer.block.index(outer.size)
    spread = tile.inner.spread(tile.rank)
    part = kernel.name("part")
    writer.line(f"{part} = tl.arange(0, PARTS){spread}")
    mask = f"({part} < SPLITS) & {outer.mask}" if outer.mask else f"{part} < SPLITS"
    address = part if outer.size == 1 else f"{part} * {rows} + {outer.index}"

    def load(scratch: str, other: Text) -> str:
        name = kernel.name(scratch.removesuffix("_parts") + "_part")
        writer.line(f"{name} = tl.load({scratch} + {address}, {mask}, {other.source})")
        return name

    # an online sum needs its maximum even where nothing else does
    chosen = list(wanted)
    for node in wanted:
        if node.kind == "online_sum":
            largest = next(r for r in reductions if r.kind == "max" and r.args == node.args)
            if largest not in chosen:
                chosen.append(largest)
    chosen.sort(key=reductions.index)
    reducer.combine(chosen, load, reductions)
