"""What the heuristics decide, over many sizes: a change of a rule shows in a golden file.

None of them affects correctness, so that no comparison with eager would notice; what they lose is
speed, which no test can measure reliably.  `UPDATE_GOLDEN=1` renews the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.graph import choices as graph
from fusec.ir.index import Expr, Symbol
from fusec.machine import this_machine, using
from fusec.targets.cpp.plan import choices as cpp
from fusec.targets.triton.plan.choice import Choice
from fusec.targets.triton.plan.choices import choose
from fusec.targets.triton.plan.choices_matmul import (
    better_transposed,
    candidates,
    choose_product,
    match_product,
)
from fusec.targets.triton.plan.phases import cut_into_phases
from support import triton_bodies as bodies
from support.decisions import compare, runs
from support.triton_bodies import F32, Case
from support.triton_windows import blended, neighbors, overlapping, weighted, windows

HALF, F64 = torch.float16, torch.float64


def near_powers(last: int) -> list[int]:
    """Return 0, 1, and the powers of two up to ``last`` with their neighbors."""
    found = {0, 1}
    power = 2
    while power <= last:
        found |= {power - 1, power, power + 1, power * 3 // 2}
        power *= 2
    return sorted(found)


def shown(choice: Choice) -> str:
    """Return a choice in a line."""

    def sizes(axes: Iterable[Symbol]) -> str:
        return "x".join(str(axis.size) for axis in axes) or "-"

    parts = [choice.kind, *(sizes(group) for group in choice.groups)]
    parts += [f"reduced {sizes(choice.reduced)}"] if choice.reduced else []
    parts += [f"walked {sizes(choice.walked)}"] if choice.walked else []
    flags = ("inner_last", "scalar_rows", "sized", "row_block")
    parts += [f"{flag}={getattr(choice, flag)}" for flag in flags if getattr(choice, flag)]
    return " ".join([*parts, *(f"{knob.name}={knob.value}" for knob in choice.knobs)])


def size(name: str, hint: int) -> Expr:
    return Expr.of(Symbol(name, "size", low=2, hint=hint))


# -- Triton -----------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[[], Case]] = {
    **{
        f"softmax {rows} x {columns} {str(dtype)[6:]}": lambda r=rows, c=columns, d=dtype: (
            bodies.softmax(r, c, d)
        )
        for rows, columns in (
            [(n, 1000) for n in (1, 2, 7, 64, 500, 4096, 100_000)]
            + [(4096, n) for n in (2, 16, 33, 128, 513, 2048, 5000, 17_000, 40_000)]
            + [(3, 1 << n) for n in range(10, 22, 2)]
            + [(5, (1 << 19) + 8), (5, (1 << 20) + 8)]
        )
        for dtype in (HALF, F32)
    },
    **{
        f"softmax down {rows} x {columns}": lambda r=rows, c=columns: bodies.softmax(
            r, c, F32, down=True
        )
        for rows in (3, 64, 1000, 20_000)
        for columns in (5, 64, 65, 600, 5000, 70_000)
    },
    **{
        f"sum of {rows} x {columns} {str(dtype)[6:]}": lambda r=rows, c=columns, d=dtype: (
            bodies.sum_columns(r, c, d)
        )
        for rows in (8, 60, 512, 4096, 100_000)
        for columns in (3, 100, 2048)
        for dtype in (HALF, F32)
    },
    **{f"sum of all {n}": lambda n=n: bodies.sum_all(n) for n in (1, 100, 5000, 1 << 20, 1 << 26)},
    **{
        f"sum of all {shape}": lambda s=shape: bodies.sum_all(*s)
        for shape in ((3, 5), (64, 1024), (4096, 4096))
    },
    **{
        f"layer norm {rows} x {columns}": lambda r=rows, c=columns: bodies.gelu_layer_norm(r, c)
        for rows in (4, 512, 40_000)
        for columns in (64, 768, 4096, 20_000)
    },
    **{
        f"group norm {shape}": lambda s=shape: bodies.group_norm(*s)
        for shape in ((2, 4, 3, 9), (8, 32, 16, 784), (64, 32, 4, 3136), (1, 2, 64, 50_176))
    },
    **{
        f"batch norm {shape}": lambda s=shape: bodies.batch_norm(*s)
        for shape in ((2, 4, 9), (32, 64, 784), (64, 512, 49), (256, 3, 50_176), (64, 2048, 12))
    },
    **{
        f"batch norm last {shape}": lambda s=shape: bodies.batch_norm_last(*s)
        for shape in ((8, 4), (1024, 64), (100_000, 64), (4096, 3000))
    },
    **{
        f"norm gradient {shape}": lambda s=shape: bodies.norm_gradient(*s)
        for shape in ((64, 100, 8), (4096, 768, 16), (8192, 4096, 32))
    },
    **{
        f"running mean {shape} down={down}": lambda s=shape, d=down: bodies.running_mean(*s, d)
        for shape in ((7, 50), (64, 100_000), (5000, 600))
        for down in (False, True)
    },
    **{
        f"cross entropy {shape}": lambda s=shape: bodies.cross_entropy(*s)
        for shape in ((8, 10), (4096, 1000), (512, 50_257))
    },
    "symbolic rows": lambda: bodies.softmax(size("rows", 5000), 1000),
    "all of a symbolic size": lambda: bodies.sum_all(size("n", 3000)),
}
POINTWISE: dict[str, Callable[[], Case]] = {
    **{
        f"chain {shape} {str(dtype)[6:]}": lambda s=shape, d=dtype: bodies.pointwise_chain(
            *s, dtype=d
        )
        for shape in ((1,), (100,), (30_000,), (1 << 17,), (1 << 20,), (1 << 24,))
        for dtype in (HALF, F32, F64)
    },
    **{
        f"rows {rows} x {columns} {str(dtype)[6:]}": lambda r=rows, c=columns, d=dtype: (
            bodies.broadcast_add(r, c, d)
        )
        for rows, columns in [(3, 5), (64, 15), (64, 16), (64, 17), (5000, 90), (5000, 4096)]
        for dtype in (HALF, F32)
    },
    **{
        f"transpose {rows} x {columns} {str(dtype)[6:]}": lambda r=rows, c=columns, d=dtype: (
            bodies.transpose_add(r, c, d)
        )
        for rows, columns in [(15, 64), (16, 64), (64, 15), (64, 16), (2048, 2048)]
        for dtype in (HALF, F32)
    },
    **{
        f"gather {shape}": lambda s=shape: bodies.gather(*s)
        for shape in ((50, 8, 30), (1000, 64, 5000), (30_000, 768, 4096))
    },
    **{
        f"scatter {shape}": lambda s=shape: bodies.scatter_add(*s)
        for shape in ((50, 8, 30), (30_000, 768, 4096))
    },
    **{
        f"windows {shape}": lambda s=shape: windows(*s)
        for shape in ((1, 9, 9), (8, 56, 56), (64, 112, 112), (64, 47, 47), (64, 48, 48))
    },
    **{
        f"weighted {shape}": lambda s=shape: weighted(*s)
        for shape in ((1, 5, 8), (2, 14, 16), (8, 28, 120), (64, 56, 96), (64, 14, 100), (1, 7, 32))
    },
    **{
        f"blended {shape}": lambda s=shape: blended(*s)
        for shape in ((9, 32), (512, 256), (5000, 30), (5000, 100))
    },
    **{
        f"row windows {shape}": lambda s=shape: bodies.row_windows(*s)
        for shape in ((9, 20), (5000, 47), (5000, 48), (5000, 300))
    },
    "symbolic rows": lambda: bodies.broadcast_add(size("rows", 5000), 90),
}
LEFT_TO_THE_RULES = ""
REDUCED = (LEFT_TO_THE_RULES, "persistent", "looped", "split")


def test_reductions_in_triton() -> None:
    def lines() -> Iterable[str]:
        for number, (name, made) in enumerate(REDUCTIONS.items()):
            case = made()
            for strategy in REDUCED if number % 4 == 1 else REDUCED[:1]:
                found = shown(choose(case.body, case.buffers, strategy))
                yield f"{name}{f' as {strategy}' if strategy else ''}: {found}"

    compare("triton_reductions", lines())


def test_pointwise_in_triton() -> None:
    def lines() -> Iterable[str]:
        for name, made in POINTWISE.items():
            case = made()
            body = cut_into_phases(case.body, case.buffers)
            for strategy in ("", "rows", "tiled") if "float16" not in name else ("",):
                found = shown(choose(body, case.buffers, strategy))
                yield f"{name}{f' as {strategy}' if strategy else ''}: {found}"

    compare("triton_pointwise", lines())


PRODUCTS = [(16, 4096, 4096), (64, 11008, 4096), (33, 100, 70), (4096, 16, 4096), (1, 4096, 512)]
PRODUCTS += [(16, 4096, 1000), (16, 9000, 11008), (32, 64, 4096), (32, 63, 4096), (65, 65, 65)]
PRODUCTS += [(4096, 4096, 4096), (8192, 768, 30522), (512, 512, 512), (20_000, 96, 200)]
PRODUCTS += [(16, 1024, 2048), (17, 1024, 2048), (16, 1023, 2048), (16, 1024, 2047)]
PRODUCTS += [(1056, 1024, 256), (128, 128, 8)]


def test_products_in_triton() -> None:
    def lines() -> Iterable[str]:
        for rows, columns, inner in PRODUCTS:
            for dtype in (HALF, F32):
                for batch in (0, 12):
                    case = bodies.product(rows, columns, inner, dtype, batch=batch)
                    yield from candidates_of(f"{rows} x {columns} over {inner}", case, dtype, batch)
            case = bodies.softmax_of_product(rows, min(columns, 512), inner)
            yield from candidates_of(f"rows of {rows} x {min(columns, 512)} over {inner}", case)

    def candidates_of(name: str, case: Case, *more: object) -> Iterable[str]:
        rows = int(name.removeprefix("rows of ").split()[0])
        product = match_product(case.body, case.buffers)
        turned = " transposed" if better_transposed(product) else ""
        yield " ".join(map(str, [name, *more])) + turned
        for kind, settings in candidates(product):
            yield f"  {kind} " + " ".join(f"{key}={value}" for key, value in settings)
        few = case.label == "mm + softmax" or (rows, *more) in ((16, HALF, 0), (4096, F32, 12))
        for strategy in ("", "tiles", "persistent", "split", "rows") if few else ():
            yield f"  as {strategy}: {shown(choose_product(product, case.buffers, strategy))}"

    compare("triton_products", lines())


def test_settings_of_products_are_what_the_hardware_takes() -> None:
    """Tiles and warps are powers of two, and all stages fit into an SM's shared memory."""
    for rows, columns, inner in PRODUCTS:
        for dtype in (HALF, F32):
            case = bodies.product(rows, columns, inner, dtype)
            for _, settings in candidates(match_product(case.body, case.buffers)):
                found = dict(settings)
                for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "NUM_WARPS"):
                    value = found.get(name, 1)
                    assert value & (value - 1) == 0, (name, settings)
                step = (found["BLOCK_M"] + found["BLOCK_N"]) * found["BLOCK_K"] * dtype.itemsize
                assert step * found["NUM_STAGES"] <= 227 << 10


# -- C++ --------------------------------------------------------------------------------------


def test_loops_in_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "last_cache", lambda: 32 << 20)
    monkeypatch.setattr(cpp, "can_stream", lambda: True)
    some, many = range(130), near_powers(1 << 18)
    kinds: list[tuple[torch.dtype, ...]] = [(), (torch.bfloat16,), (HALF,), (HALF, torch.bfloat16)]

    def lines() -> Iterable[str]:
        yield f"grain: {runs(cpp.grain, some)}"
        yield f"may_keep_rows: {runs(cpp.may_keep_rows, many)}; {cpp.may_keep_rows(None)}"
        yield f"worth_keeping: {runs(cpp.worth_keeping, some)}"
        yield f"whole_vectors: {runs(cpp.whole_vectors, range(26))}"
        for kind in ((), ("sum",), ("max",), ("max", "sum")):
            yield f"read_as_floats {kind}: {cpp.read_as_floats(kind)}"
        for dtypes in kinds:
            yield f"worth_staging {dtypes}: {runs(lambda n: cpp.worth_staging(n, dtypes), many)}"  # noqa: B023
        for moved in (31 << 20, 32 << 20, 64 << 20):
            for share in (4, 8, 9):
                found = runs(
                    lambda n: cpp.worth_streaming(moved // share, moved, n * moved),  # noqa: B023
                    [0, 1, 1.5, 1.6, 2],
                )
                yield f"worth_streaming 1/{share} of {moved >> 20}: {found}"
        for rows in (None, 63, 64, 65):
            for cost in (3, 4, 5):
                found = runs(lambda n: cpp.may_turn_rows(n, rows, cost), range(1, 40))  # noqa: B023
                yield f"may_turn_rows {rows} {cost}: {found}"
        yield f"turned_rows: {runs(cpp.turned_rows, range(1, cpp.TURNED_POINTS + 1))}"
        for rows in (None, 1, 127, 128, 129):
            for columns in (None, *near_powers(1 << 15)):
                found = f"{cpp.tile_columns(columns, rows)}"
                yield f"tile_columns {columns} {rows}: {found}"
        for rows in (None, 127, 128, 129):
            for work in (None, 65_535, 65_536):
                found = runs(lambda n: cpp.split_rows(n, work, rows), range(20))  # noqa: B023
                yield f"split_rows {work} {rows}: {found}; {cpp.split_rows(None, work, rows)}"
        found = [n for n in range(1, 2060) if cpp.worth_deinterleaving(n)]
        yield f"worth_deinterleaving: {found}; {cpp.worth_deinterleaving(None)}"
        yield f"turns: {[cpp.turns(n) for n in range(40)]}; {runs(cpp.turns, range(250, 260))}"
        for itemsize in (1, 2, 4, 8):
            for extent in (None, 1, 7, 8, 9, 31, 32, 33, 64, 128, 1000):
                found = [cpp.tile(itemsize, extent, step) for step in (None, 1, 1000, 1024, 4096)]
                yield f"tile {itemsize} {extent}: {found}"

    compare("cpp", lines())


# -- the graph --------------------------------------------------------------------------------


def test_products_and_convolutions_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SimpleNamespace(half=0.02, single=0.01, conversion=0.4)
    like = SimpleNamespace(half=0.0124, single=0.01, conversion=0.4)
    same = SimpleNamespace(half=0.0125, single=0.01, conversion=0.4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(graph, "has_avx512", lambda: True)

    def image(channels: int, side: int, dtype: torch.dtype, device: str) -> Any:
        made = torch.empty(2, channels, side, side, dtype=dtype, device="meta")
        return SimpleNamespace(
            numel=made.numel, shape=made.shape, dtype=dtype, device=torch.device(device)
        )

    def lines() -> Iterable[str]:
        for name, speed in (("slow", slow), ("like", like), ("same", same)):
            monkeypatch.setattr(graph, "half_speed", lambda dtype, speed=speed: speed)
            yield f"multiplies_slowly {name}: {graph.multiplies_slowly(HALF)}"
            found = runs(lambda n: graph.pays_to_widen(HALF, 1000 * n, 100), range(30))
            yield f"pays_to_widen {name}: {found}"
        sizes = [(1 << 10, 1 << 10), (1 << 10, 1 << 10, 2), ((1 << 20) + 1,)]
        yield f"stays_a_product: {[graph.stays_a_product(each) for each in sizes]}"
        monkeypatch.setattr(graph, "half_speed", lambda dtype: slow)
        for device in ("cpu", "cuda"):
            for dtype in (F32, HALF, torch.bfloat16, F64):
                for channels, side in ((16, 15), (16, 30), (1, 64), (64, 56)):
                    result = image(channels, side, dtype, device)
                    for groups in (1, 2, channels):
                        weight = torch.empty(channels, channels // groups or 1, 3, 3, device="meta")
                        found = graph.innermost_channels_pay(result, weight, groups)
                        yield f"innermost {device} {dtype} {channels} {side} {groups}: {found}"
        for gradient in (False, True):
            for dtype in (HALF, F32):
                found = runs(
                    lambda n: graph.own_windows_pay(dtype, (n, n), gradient=gradient),  # noqa: B023
                    range(1, 9),
                )
                yield f"own_windows_pay {dtype} {gradient}: {found}"
        for distance in (1, 2, 4, 6, 8, 16, 30522, 50257):
            found = runs(
                lambda n: graph.alignment_pays(n, (64, distance), 1 << 20),  # noqa: B023
                near_powers(1 << 36),
            )
            yield f"alignment_pays {distance}: {found}"
        yield f"own_rows_pay: {runs(lambda n: graph.own_rows_pay(n, 1 << 10, 1 << 10), [511, 512])}"
        yield f"aligned: {[graph.aligned(n) for n in range(20)]}"
        for amd in (False, True):
            monkeypatch.setattr(graph, "is_amd", lambda amd=amd: amd)
            for rows in (7, 8, 128):
                for copied in (0, 100_000):
                    found = runs(
                        lambda n: graph.onednn_multiplies_faster(rows, n, 512, copied),  # noqa: B023
                        near_powers(1 << 12),
                    )
                    yield f"onednn {amd} {rows} {copied}: {found}"
            for dtype in (F32, HALF):
                for shape in ((127, 300), (128, 300), (300, 127), (300, 300)):
                    image_, weight = torch.empty(1, dtype=dtype), torch.empty(*shape, 1, 1)
                    found = graph.multiply_pixels(image_, weight)
                    yield f"multiply_pixels {amd} {dtype} {shape}: {found}"

    with using(this_machine().with_isa("avx2")):  # SSE2 has rules of its own
        compare("graph", lines())


def test_windows_side_by_side_are_told_from_those_far_apart() -> None:
    """Whether most loads of a body move by more than one element along its last axis."""
    from fusec.targets.triton.plan.choices import steps_irregularly

    for case, expected in (
        (windows(2, 16, 16), True),
        (overlapping(8, 64, (0, 1, 2, 3)), True),
        (neighbors(4, 64), False),
        (bodies.broadcast_add(8, 64), False),
    ):
        assert steps_irregularly(case.body, case.buffers) is expected, case.name
