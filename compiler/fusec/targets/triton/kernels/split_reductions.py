"""Few rows, or few columns: several programs share each, in as many kernels as it has passes.

Kernel ``p`` begins by combining what the programs of the kernels before it left in scratch
memory, walks its own part of each row, and leaves its parts for the next.  The last one has no
loop where only whole-row values remain to be stored.

Columns side by side have many parts, which every program would have to read: there a small kernel
in between combines them once.
"""

from __future__ import annotations

from collections.abc import Sequence

from fusec.codegen.common.identities import CARRIED_WITH
from fusec.codegen.common.reduction_passes import PassPlan, plan_passes
from fusec.ir.body import Store
from fusec.ir.node import Node, Reduce
from fusec.targets.triton.kernels.reducer import LOOP, Reducer, partner, scratch_names
from fusec.targets.triton.kernels.reductions import (
    delayed_stores,
    later_uses,
    loop_uses,
    write_pass,
    write_places,
)
from fusec.targets.triton.plan.eviction import for_passes
from fusec.targets.triton.plan.tiling import Tile
from fusec.targets.triton.text.block import Block
from fusec.targets.triton.text.expressions import Text, triton_type
from fusec.targets.triton.text.file import FEW_WARPS, WARPS, File, add_function, mentions
from fusec.targets.triton.text.indices import make_tile, write_outer_indices, write_padded
from fusec.targets.triton.text.kernel_writer import KernelWriter

# A program that combines parts: one warp of 1024 elements, which waits for no other, where that are
# 8 columns or more (32 bytes of a row of parts); else so many warps that a thread has 16 elements.
# Of moments in 64 parts 3.8 us became 1.8, in 264 parts 4 became 2.4, of sums in 64 parts 1.6
# became 1.1; and what a thread holds is written out an element at a time, so that with 128 such a
# kernel took as long to compile as the two around it.
JOINED = 1024
FEWEST_COLUMNS = 8
JOINED_BY_WARP = 512

# Where a step of a program's part begins. What the kernel before has read last is still in the L2
# when the next one begins: its programs take their parts in the opposite order, and where nothing
# is reduced, so that the order of the steps does not matter, go through them from the end as well
# (all programs run at once, mostly). Of the backward pass of batch norm channels-last 127 us
# became 120, of softmax of columns 63 became 62.
FORWARDS = "split * CHUNK + start"
BACKWARDS = "(split + 1) * CHUNK - RBLOCK - start"


def write(file: File) -> None:
    """Write the kernels of a split reduction, and the scratch memory they share."""
    body = file.body
    plan = plan_passes(body)
    tile = make_tile(file.choice, body)
    assert tile.inner is not None
    stores = delayed_stores(plan)
    looping = [n for n, each in enumerate(plan.passes) if each.reductions or stores[n]]
    row_stores: dict[int, list[Store]] = {}
    for number, each in enumerate(plan.passes):
        home = next((n for n in looping if n >= number), len(plan.passes))
        row_stores.setdefault(home, []).extend(each.row_stores)
    reductions = [r for each in plan.passes for r in each.reductions]
    # what is carried is combined with what it is carried with, which therefore comes first
    reductions.sort(key=lambda r: (plan.ready[r], r.kind in CARRIED_WITH))
    declare_scratch(file, reductions, tile)
    writer = _Writer(file, plan, tile, stores, row_stores, looping, reductions)
    last = max([*looping, *(n for n, s in row_stores.items() if s)])
    for number in [*looping, *([len(plan.passes)] if last == len(plan.passes) else [])]:
        suffix = "" if number == last else f"_part{looping.index(number) + 1}"
        writer.write(number, f"{file.name}{suffix}")


class _Writer:
    """Writes one kernel after the other.

    Args:
        file: Where they go.
        plan: The passes.
        tile: What a program computes in one step.
        stores: Of each pass, what its loop stores.
        row_stores: What is stored once a row, by the number of the kernel that does it.
        looping: The passes that have a loop.
        reductions: All of them, in the order in which they are combined.
    """

    def __init__(
        self,
        file: File,
        plan: PassPlan,
        tile: Tile,
        stores: list[tuple[Store, ...]],
        row_stores: dict[int, list[Store]],
        looping: Sequence[int],
        reductions: list[Reduce],
    ) -> None:
        self.file, self.plan, self.tile = file, plan, tile
        self.stores, self.row_stores = stores, row_stores
        self.looping, self.reductions = looping, reductions
        self.policies = for_passes(file.body, file.buffers, plan, one_program=False)
        self.joined: set[Reduce] = set()

    def write(self, number: int, name: str) -> None:
        """Write the kernel of a pass; a number past the last one is for what follows them all."""
        file, plan, tile, reductions = self.file, self.plan, self.tile, self.reductions
        needed = needed_rows(plan_roots(plan, number, self.stores, self.row_stores))
        earlier = [r for r in reductions if plan.ready[r] <= number and r in needed]
        loops = number in self.looping
        if loops and tile.rank == 2:
            self.join(number, [r for r in earlier if r not in self.joined])
        kernel = file.new_kernel(name, file.body, tile)
        kernel.evict = self.policies
        grid = write_outer_indices(file, kernel, tile)
        first = number in self.looping[:1]
        if loops:
            grid = [*grid, "SPLITS"] if grid != ["1"] else ["1", "SPLITS"]
            kernel.writer.line(f"split = {'' if first else 'SPLITS - 1 - '}tl.program_id(1)")
        if tile.walk is not None:
            write_padded(kernel, tile)
        block = Block(kernel)
        reducer = Reducer(kernel, block)
        load_joined(reducer, [r for r in earlier if r in self.joined], reductions, tile)
        unjoined = [r for r in earlier if r not in self.joined]
        if unjoined:
            load_parts(file, kernel, reducer, unjoined, reductions, tile)
        before = [n for each in plan.passes[: number + 1] for n in each.before if n in needed]
        if loops:
            block.must_name.update(loop_uses(plan, number))
        rows = self.row_stores.get(number, [])
        block.write(before, roots=later_uses(plan, number), stores=rows)
        if loops:
            self.loop(kernel, reducer, number, first=first)
        only = "split == 0" if loops else ""
        for store in rows:
            write_places(block, store)
            block.store(store, only and f"({only})")
        self.add(kernel, name, grid, loops=loops)

    def join(self, number: int, reductions: list[Reduce]) -> None:
        """Write the kernel that combines the parts of reductions, if there are any."""
        if reductions:
            name = f"{self.file.name}_join{number}"
            write_joining(self.file, self.tile, reductions, self.reductions, name)
            self.joined.update(reductions)

    def loop(self, kernel: KernelWriter, reducer: Reducer, number: int, *, first: bool) -> None:
        """Write a pass over a program's part, and where the outcome is kept."""
        each = self.plan.passes[number]
        back = not first and not each.reductions
        origin = BACKWARDS if back else FORWARDS
        loop = LOOP.format("CHUNK")
        write_pass(kernel, reducer, number, each, self.stores[number], loop, origin)
        for node in self.reductions:
            if node in each.reductions:
                reducer.end(node, partial=True)
                save_part(self.file, reducer, node, self.reductions, self.tile)

    def add(self, kernel: KernelWriter, name: str, grid: list[str], *, loops: bool) -> None:
        """Add a kernel to the file, with what its text mentions as parameters."""
        text = kernel.writer.text
        extra = mentioned(text, self.reductions)
        constants = [(k.name, k.name) for k in self.file.knobs]
        constants += [("PARTS", "triton.next_power_of_2(SPLITS)")]
        threads = WARPS
        if not loops:
            grid, constants, threads = narrowed(self.file, grid, constants, self.tile)
        assert self.tile.inner is not None
        if self.tile.inner.size.constant is not None:
            constants += [("CHUNK", "chunk")]
        elif mentions(text, "CHUNK"):
            extra += [("CHUNK", "chunk")]
        add_function(self.file, kernel, name, grid, constants, extra, warps=threads)


def mentioned(text: str, reductions: list[Reduce]) -> list[tuple[str, str]]:
    """Return the scratch memory that a kernel's text uses, as its parameters."""
    names = [scratch for node in reductions for scratch in scratch_names(node, reductions)]
    names += [joined_name(scratch) for scratch in names]
    return [(scratch, scratch) for scratch in names if mentions(text, scratch)]


def joined_name(scratch: str) -> str:
    """Return where the combination of the parts in ``scratch`` is."""
    return f"{scratch.removesuffix('_parts')}_joined"


def narrowed(
    file: File, grid: list[str], constants: list[tuple[str, str]], tile: Tile
) -> tuple[list[str], list[tuple[str, str]], str]:
    """Let programs that only combine parts take few columns each, all parts of which they hold.

    Returns:
        The grid, the constants, and how many warps such a program has.
    """
    if tile.rank != 2:
        return grid, constants, WARPS
    lines = [
        "# columns of a program that combines all parts of them, and its warps",
        f"few = min(XBLOCK, max({JOINED} // triton.next_power_of_2(SPLITS), {FEWEST_COLUMNS}))",
        "held = triton.next_power_of_2(SPLITS) * few",
        f"{FEW_WARPS} = 1 if held <= {JOINED} else min(held // {JOINED_BY_WARP}, 16)",
    ]
    if lines[1] not in file.setup:
        file.setup += lines
    constants = [(name, "few" if name == "XBLOCK" else value) for name, value in constants]
    return [size.replace("XBLOCK", "few") for size in grid], constants, FEW_WARPS


def write_joining(
    file: File, tile: Tile, fresh: list[Reduce], reductions: list[Reduce], name: str
) -> None:
    """Write a kernel that combines the parts of reductions for all programs of the next."""
    kernel = file.new_kernel(name, file.body, tile)
    grid = write_outer_indices(file, kernel, tile)
    reducer = Reducer(kernel, Block(kernel))
    load_parts(file, kernel, reducer, fresh, reductions, tile)
    outer = tile.outer[0]
    rows = file.host(outer.size)
    for node in fresh:
        names = [joined_name(scratch) for scratch in scratch_names(node, reductions)]
        reducer.save(node, names, outer.index, outer.mask)
        for scratch, dtype in zip(names, scratch_dtypes(file, node), strict=True):
            device = f"{next(iter(file.parameters.values()))}.device"
            file.setup.append(f"{scratch} = torch.empty({rows}, dtype={dtype}, device={device})")
    constants = [(k.name, k.name) for k in file.knobs]
    constants += [("PARTS", "triton.next_power_of_2(SPLITS)"), ("CHUNK", "chunk")]
    grid, constants, threads = narrowed(file, grid, constants, tile)
    extra = mentioned(kernel.writer.text, reductions)
    add_function(file, kernel, name, grid, constants, extra, warps=threads)


def load_joined(
    reducer: Reducer, nodes: list[Reduce], reductions: list[Reduce], tile: Tile
) -> None:
    """Write the loads of what ``write_joining`` combined."""
    outer = tile.outer[0]
    for node in nodes:
        scratch = joined_name(scratch_names(node, reductions)[-1])
        text = f"tl.load({scratch} + {outer.index}{', ' + outer.mask if outer.mask else ''})"
        if node.kind in ("argmax", "argmin"):
            text += f".to({triton_type(node.dtype)})"
        reducer.block.assign(node, Text(text), suggested=reducer.suggested(node))


def scratch_dtypes(file: File, node: Reduce) -> list[str]:
    """Return the types of a reduction's scratch memory, as torch calls them."""
    dtypes = [str(node.args[0].dtype)]
    if node.kind in ("argmax", "argmin"):
        dtypes.append("torch.int64" if file.index != "tl.int32" else "torch.int32")
    return dtypes


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
    return found


def declare_scratch(file: File, reductions: list[Reduce], tile: Tile) -> None:
    """Add the lines of ``launch`` that make the scratch memory and share out the rows."""
    assert tile.inner is not None
    rows = file.host(tile.outer[0].size)
    device = f"{next(iter(file.parameters.values()))}.device"
    columns = file.host(tile.inner.size)
    if tile.walk is not None:
        columns = f"{file.host(tile.walk.size)} * triton.cdiv({columns}, RBLOCK) * RBLOCK"
    file.setup.append(f"chunk = triton.cdiv(triton.cdiv({columns}, SPLITS), RBLOCK) * RBLOCK")
    for node in reductions:
        names = scratch_names(node, reductions)
        for scratch, dtype in zip(names, scratch_dtypes(file, node), strict=True):
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
    kernel: KernelWriter,
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

    # what is carried needs what it is carried with even where nothing else does
    chosen = list(wanted)
    for node in wanted:
        if node.kind in CARRIED_WITH:
            other = partner(node, reductions)
            if other not in chosen:
                chosen.append(other)
    reducer.part = part
    chosen.sort(key=reductions.index)
    reducer.combine(chosen, load, reductions)
