"""Row and column reductions in one kernel: what is crossed, what is not, and what comes out."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.inspect.whatif import part_view, what_if
from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store, axis_sizes
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import Reduce, indirect, recording
from fusec.ir.printer import format_body
from fusec.ir.program import Compute
from fusec.ir.shapes import contiguous_strides, flatten, product
from fusec.ir.walk import free_axes
from fusec.schedule import choices_sums
from fusec.schedule.overrides import Overrides, pair
from fusec.schedule.row_and_column import _along_rows, _stores, column_sums, one_row_axis
from fusec.schedule.step_graph import why
from fusec.targets.triton.toolchain.cross_compile import artifacts
from support.cpp_bodies import Bench, random_bench
from support.cpp_bodies import check as check_cpp
from support.interpreted import Interpreted
from support.random_bodies import Maker, settled
from support.triton_bodies import Case, at, axes, buffer, norm_gradient
from support.triton_cases import emit as emit_triton_case
from support.triton_cases import run as run_triton

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Forget sizes seen before: those that change would be symbolic."""
    torch._dynamo.reset()


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, w.shape, w, b)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def make(*shapes: tuple[int, ...], dtype: torch.dtype = F32, seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, dtype=F64).to(dtype) for shape in shapes)


def gradients(
    function: Callable[..., torch.Tensor], inputs: Tensors, seed: int = 1
) -> tuple[torch.Tensor, ...]:
    leaves = tuple(t.detach().requires_grad_() for t in inputs)
    result = function(*leaves)
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(result.shape, generator=generator, dtype=F64).to(result.dtype)
    return torch.autograd.grad(result, leaves, gradient)


def compare(function: Callable[..., torch.Tensor], compiled: Any, inputs: Tensors) -> None:
    """Gradients are as near to float64's as roundings allow, and shaped as eager's."""
    actual, expected = gradients(compiled, inputs), gradients(function, inputs)
    exact = gradients(function, tuple(t.double() for t in inputs))
    for mine, eager, truth in zip(actual, expected, exact, strict=True):
        assert mine.shape == eager.shape
        assert mine.dtype == eager.dtype
        size = truth.abs().max().item() if truth.numel() else 0.0
        # a rounding to half precision, or the roundings of a few hundred terms of a sum
        unit = torch.finfo(mine.dtype).eps * (1 if mine.dtype.itemsize == 2 else 32)
        torch.testing.assert_close(mine.double(), truth, rtol=0, atol=unit * size)


def schedule_of(function: Callable[..., torch.Tensor], inputs: Tensors) -> Interpreted:
    """Return what was scheduled for the gradients, which the interpreter has found right."""
    backend = Interpreted()
    compiled = torch.compile(function, backend=backend, dynamic=False)
    compare(function, compiled, inputs)
    return backend


def crossed_steps(backend: Interpreted) -> list[Compute]:
    steps = backend.schedules[-1].program.steps
    return [step for step in steps if isinstance(step, Compute) and step.body.sums]


def kernels(backend: Interpreted) -> list[Compute]:
    return [s for s in backend.schedules[-1].program.steps if isinstance(s, Compute)]


# -- what is crossed ----------------------------------------------------------------------


NORMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], Tensors], int]] = {
    "layer norm": (layer_norm, lambda: make((512, 256), (256,), (256,)), 2),
    "rms norm": (rms_norm, lambda: make((512, 256), (256,)), 1),
    "odd sizes": (layer_norm, lambda: make((333, 77), (77,), (77,)), 2),
    "several dimensions": (layer_norm, lambda: make((3, 5, 40, 96), (96,), (96,)), 2),
    "rows of two": (layer_norm, lambda: make((200, 6, 32), (6, 32), (6, 32)), 2),
    "half precision": (layer_norm, lambda: make((512, 256), (256,), (256,), dtype=BF16), 2),
    "double": (layer_norm, lambda: make((512, 256), (256,), (256,), dtype=F64), 2),
    "rows that are not one after the other": (
        layer_norm,
        lambda: (make((40, 10, 128))[0].transpose(0, 1), *make((128,), (128,))),
        2,
    ),
    "rows with gaps": (
        layer_norm,
        lambda: (make((300, 256))[0][:, :128], *make((128,), (128,))),
        2,
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NORMS)
def test_norm_gradients_are_one_kernel_and_a_small_one(name: str) -> None:
    function, inputs, sums = NORMS[name]
    backend = schedule_of(function, inputs())
    main, rest = kernels(backend)
    assert len(main.body.sums) == sums
    assert {store.buffer for store in main.body.sums} == set(rest.body.reads())
    assert len(main.body.axes) == 1
    (kept,) = [d for d in backend.schedules[-1].decisions if d.reason.startswith("sums of columns")]
    assert kept.fused
    assert kept.bytes_saved > 0
    # what was refused before, in whichever order, is not said as well
    refused = {(d.producer, d.consumer) for d in backend.schedules[-1].decisions if not d.fused}
    assert not refused & {(kept.producer, kept.consumer), (kept.consumer, kept.producer)}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", NORMS)
def test_norm_gradients_are_right(name: str) -> None:
    function, inputs, _ = NORMS[name]
    compiled = fusec.compile(function)
    given = inputs()
    compare(function, compiled, given)
    assert any("column_sums" in kernel.source for kernel in compiled.kernels.values())
    assert not compiled.fallbacks
    again = [gradients(compiled, given) for _ in range(2)]
    for first, second in zip(*again, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16], ids=str)
def test_half_precision_is_added_up_in_single(dtype: torch.dtype) -> None:
    backend = schedule_of(layer_norm, make((256, 128), (128,), (128,), dtype=dtype))
    main, _ = kernels(backend)
    buffers = backend.schedules[-1].program.buffers
    wanted = F64 if dtype == F64 else F32
    assert {buffers[store.buffer].dtype for store in main.body.sums} == {wanted}


def test_results_do_not_depend_on_the_threads() -> None:
    compiled = fusec.compile(layer_norm)
    inputs = make((1000, 256), (256,), (256,))
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(gradients(compiled, inputs))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        for mine, first in zip(other, found[0], strict=True):
            assert torch.equal(mine, first)


def test_the_gradient_of_a_bias_comes_from_the_kernel_that_makes_what_it_sums() -> None:
    """A residual block: the norm's gradient is also that of the linear layer below it."""

    def block(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, *norm: torch.Tensor) -> Any:
        return layer_norm(x + F.linear(x, w, b), *norm)

    inputs = make((256, 128), (128, 128), (128,), (128,), (128,))
    backend = schedule_of(block, inputs)
    (main,) = crossed_steps(backend)
    assert len(main.body.sums) >= 2
    compare(block, fusec.compile(block), inputs)


def test_a_transformer_block_adds_up_all_sums_of_a_kernel_in_one() -> None:
    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(x + self.down(F.gelu(self.up(self.one(x)))))

    torch.manual_seed(0)
    block, backend = Block(128), Interpreted()
    x = make((2, 128, 128))[0].requires_grad_()
    torch.compile(block, backend=backend, dynamic=False)(x).sum().backward()
    found = crossed_steps(backend)
    assert len(found) == 2
    for step in found:
        parts = {store.buffer for store in step.body.sums}
        readers = [k for k in kernels(backend) if parts & set(k.reads())]
        assert len(readers) == 1, "one kernel adds up what one leaves"
    assert max(len(step.body.sums) for step in found) == 3, "weight, bias, and the bias below"


def test_pointwise_work_and_the_sums_of_its_columns_are_one_kernel_as_ever() -> None:
    """The gradient of a bias beside that of gelu: nothing goes along the rows."""

    def gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, w, b))

    backend = schedule_of(gelu, make((128, 64), (96, 64), (96,)))
    (kernel,) = kernels(backend)
    assert {len(store.index) for store in kernel.body.stores} == {2}
    assert kernel.body.has_reduction
    assert not kernel.body.sums


def test_numbers_of_rows_that_change() -> None:
    compiled = fusec.compile(layer_norm)
    weights = make((256,), (256,))
    for count in (200, 130, 1, 64, 0, 3, 1000):
        x = make((count, 256), seed=count)[0]
        if count == 200:
            torch._dynamo.mark_dynamic(x, 0)
        compare(layer_norm, compiled, (x, *weights))
    sums = [k for k in compiled.kernels.values() if "column_sums" in k.source]
    assert len(sums) == 4, "those of the changing number, and those of one row's or none's own"


# -- what is not --------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[], Tensors], str]] = {
    "few rows": (lambda: make((32, 256), (256,), (256,)), "32 rows are too few"),
    "short rows": (lambda: make((512, 48), (48,), (48,)), "rows of 48 are too short"),
    "wide rows": (lambda: make((64, 40000), (40000,), (40000,)), "do not stay in the cache"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_pay_has_a_reason(name: str) -> None:
    inputs, reason = REFUSED[name]
    backend = schedule_of(layer_norm, inputs())
    assert crossed_steps(backend) == []
    assert any(reason in d.reason for d in backend.schedules[-1].decisions if not d.fused)


def test_sums_over_a_part_of_the_rows_stay_apart() -> None:
    """The bias is one for each of the heads: the sum goes over the batch alone."""

    def scores(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (x + bias).softmax(-1)

    backend = schedule_of(scores, make((64, 4, 64, 64), (4, 64, 64)))
    assert crossed_steps(backend) == []


def test_sums_that_the_rows_need_stay_before_them() -> None:
    def centered(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)).softmax(-1)

    backend = Interpreted()
    x = make((512, 128))[0]
    actual = torch.compile(centered, backend=backend, dynamic=False)(x)
    torch.testing.assert_close(actual, centered(x))
    assert crossed_steps(backend) == []


def test_rows_down_memory_stay_as_they_are() -> None:
    """A norm over the first dimension of memory: its columns are what lies side by side."""

    def turned(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.t(), w).t()

    backend = schedule_of(turned, make((256, 512), (256,)))
    assert crossed_steps(backend) == []


def test_who_asks_has_them_apart() -> None:
    inputs = make((512, 256), (256,), (256,))
    compiled = fusec.compile(layer_norm, apart=["layer_norm_backward:layer_norm_backward"])
    compare(layer_norm, compiled, inputs)
    assert not any("column_sums" in k.source for k in compiled.kernels.values())


def softmax_and_sum(x: torch.Tensor) -> Tensors:
    return x.softmax(-1), x.sum(0)


def test_the_drawing_shows_who_has_a_share_in_a_sum() -> None:
    compiled = fusec.compile(softmax_and_sum, keep_inputs=True)
    x = make((256, 128))[0]
    for mine, eager in zip(compiled(x), softmax_and_sum(x), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-5, atol=1e-5)
    graph = compiled.graphs[0]
    view = part_view(graph.parts[0])
    softmax, total = (
        next(n for n in view.before.nodes if n.label == label) for label in ("softmax", "sum")
    )
    assert len(total.kernels) == 2
    assert total.kernels[0] in softmax.kernels
    assert "share the kernel" in why(view, softmax.name, total.name)
    assert "sums of columns" in why(view, softmax.name, total.name)
    apart = Overrides(apart=frozenset([pair(softmax.name, total.name)]))
    found = what_if(graph, graph.parts[0], apart, seconds=0.02)
    assert found.same
    assert "you asked for them apart" in why(found.view, softmax.name, total.name)


def test_pieces_depend_on_sizes_alone() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    for count, width in ((4096, 1024), (8192, 4096), (100_000, 768), (65, 64)):
        for device in (cpu, gpu):
            saved = 8 * count * width
            found = choices_sums.rows_of_piece(Expr.of(count), width, [4, 4], saved, device)
            assert isinstance(found, int)
            assert 8 <= found <= 512
            assert count > found, "there are several pieces"
    wide = choices_sums.rows_of_piece(Expr.of(8192), 16384, [4, 4], 1 << 40, gpu)
    assert isinstance(wide, str)
    assert "registers" in wide
    assert choices_sums.rows_of_piece(Expr.of(512), 256, [4], 4096, cpu) == (
        "the sums of all pieces of the rows would take more memory traffic than they save"
    )


# -- the IR -------------------------------------------------------------------------------


def test_the_printed_body_says_what_is_summed() -> None:
    body = norm_gradient(70, 200, 16).body
    assert "dw_parts[(i0 // 16), r0] = the sum of v" in format_body(body)
    assert body.rows_of_piece == 16
    assert [store.buffer for store in body.sums] == ["dw_parts", "db_parts"]
    assert body.updated() == (), "every element is written"


def test_the_interpreter_sums_every_row_of_a_piece() -> None:
    case = norm_gradient(70, 8, 16, F64)
    tensors = case.inputs()
    found = case.expected(tensors)
    n = tensors["x"] * tensors["scale"]
    for name, terms in (("dw_parts", tensors["dy"] * n), ("db_parts", tensors["dy"])):
        expected = torch.stack([part.sum(0) for part in terms.split(16)])
        torch.testing.assert_close(found[name], expected)


def test_only_sums_of_what_was_read_are_taken_over() -> None:
    body = norm_gradient(70, 200, 16).body
    assert column_sums(body) is None


def test_what_is_written_to_places_that_a_row_has_is_of_whole_rows() -> None:
    with recording():
        (i,), (r,) = axes(64), axes(48, prefix="r")
        place = indirect(ops.load("places", at(r), torch.int64), Expr.of(48))
        one = ops.load("one", at(i), F32)
        stores = Store("y", (*at(i), place), one), Store("z", at(i), one)
        assert _stores(Body((i,), (r,), stores)) == ([stores[0]], [stores[1]])


def test_crossed_kernels_compile_for_gpus() -> None:
    for columns in (200, 4096):
        source = emit_triton_case(norm_gradient(512, columns, 16, BF16))
        for gpu in ("sm_90", "gfx942"):
            artifacts(source.text, source.signature, gpu=gpu, kinds=("llir",))


# -- random bodies ------------------------------------------------------------------------


def with_sums(
    body: Body, buffers: Mapping[str, Buffer], rng: random.Random
) -> tuple[Body, dict[str, Buffer]] | None:
    """Return a random body with sums down its columns; None where it has no rows to cut."""
    rows = product(axis_sizes(body.axes)).constant
    width = product(axis_sizes(body.reduce_axes)).constant
    if not any(isinstance(n, Reduce) for n in body.nodes()) or body.scans() or body.updated():
        return None
    if rows is None or rows < 3 or not width or any(b in body.reads() for b in body.writes()):
        return None
    body = one_row_axis(body)
    free = free_axes(body.computed)
    values = [n for n in body.nodes() if n.dtype in (F32, F64) and free[n]]
    if not values:
        return None
    piece = rng.randint(2, rows - 1)
    found = dict(buffers)
    (row,) = body.axes
    column = flatten([Expr.of(a) for a in body.reduce_axes], axis_sizes(body.reduce_axes))
    stores = list(body.stores)
    for number in range(rng.randint(1, 2)):
        value = rng.choice(values)
        shape = (Expr.of(-(-rows // piece)), Expr.of(width))
        name = f"parts{number}"
        found[name] = Buffer(name, shape, contiguous_strides(shape), value.dtype, hint=name)
        stores.append(Store(name, (Expr.of(row) // piece, column), value, "sum"))
    return Body(body.axes, body.reduce_axes, tuple(stores)), found


@pytest.mark.sample(2)
@pytest.mark.parametrize("block", range(4))
def test_random_bodies_in_cpp(block: int) -> None:
    checked = 0
    for seed in range(2000 + 500 * block, 2500 + 500 * block):
        bench = random_bench(seed)
        with recording():
            found = with_sums(bench.body, bench.buffers, random.Random(seed))
        if found is None:
            continue
        body, buffers = found
        crossed = Bench(
            f"crossed_{seed}",
            buffers,
            outer=list(body.axes),
            reduced=list(body.reduce_axes),
            stores=list(body.stores),
            sizes=bench.sizes,
        )
        check_cpp(crossed, seed=seed, terms=16.0, context=f"seed {seed}")
        checked += 1
        if checked == 4:
            return
    pytest.fail("too few bodies have rows to cut")


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(9000, 9009))
def test_random_bodies_in_triton(seed: int) -> None:
    check_triton(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9012, 9036))
def test_more_random_bodies_in_triton(seed: int) -> None:
    check_triton(seed)


def check_triton(seed: int) -> None:
    with recording():
        case = Maker(seed, reduces=True).case()
        found = with_sums(case.body, case.buffers, random.Random(seed))
        if found is None:
            pytest.skip("no rows to cut")
        body, buffers = found
        used = set(body.reads()) | set(body.writes())
        crossed = Case("random", body, {n: b for n, b in buffers.items() if n in used})
        if not settled(crossed):
            pytest.skip("a comparison or a cancellation on the edge: no result is the right one")
    run_triton(crossed)


def test_a_square_is_not_read_along_its_rows_and_its_columns_at_once() -> None:
    """Loops over a square fit either way round; a kernel of both steps from line to line."""

    def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x), (x.shape[-1],), w, b).square().mean()

    given = [torch.randn(64, 64), torch.randn(64), torch.randn(64)]
    inputs = [x.clone().requires_grad_() for x in given]
    compiled = fusec.compile(loss)
    compiled(*inputs).backward()
    eager = [x.clone().requires_grad_() for x in given]
    loss(*eager).backward()
    for a, b in zip(inputs, eager, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
    for kernel in compiled.kernels.values():
        orders: dict[str, set[tuple[object, ...]]] = {}
        for load in kernel.body.loads():
            order = tuple(frozenset(e.symbols()) for e in load.index)
            if sum(map(bool, order)) > 1:
                orders.setdefault(load.buffer, set()).add(order)
        assert all(len(each) == 1 for each in orders.values()), (kernel.name, orders)


def test_the_largest_of_a_column_is_no_sum() -> None:
    """What is added up beside the rows is a sum; a maximum waits for a kernel of its own."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.softmax(-1)
        return y, y.amax(0)

    x = torch.randn(512, 256)
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(x), function(x))
    assert not any("column_sums" in kernel.source for kernel in compiled.kernels.values())


def test_what_the_sums_wait_for_runs_before_the_rows_as_well() -> None:
    """A call that only the sums of columns need comes before the kernel that begins them."""

    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.softmax(-1), ((x @ w) * x).sum(0)

    x, w = torch.randn(512, 256), torch.randn(256, 256)
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(x, w), function(x, w), rtol=1e-3, atol=1e-2)
    assert any("column_sums" in kernel.source for kernel in compiled.kernels.values())


def outer(x: torch.Tensor) -> torch.Tensor:
    return (x.unsqueeze(-1) * x.unsqueeze(-2)).softmax(-1).amax(-2)


def rows_beside_columns(x: torch.Tensor) -> torch.Tensor:
    found = x.softmax(-1)
    return found.sum(0) + found.square().sum(-1)[: x.shape[1]]


def rows_over_columns(x: torch.Tensor) -> torch.Tensor:
    found = (x - x.mean(-1, keepdim=True)).square()
    return found.sum(-1)[-x.shape[1] :].flip(0) / (1 + found.sum(0))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (outer, (64,)),
        (outer, (96,)),
        (rows_beside_columns, (64, 64)),
        (rows_beside_columns, (512, 256)),
        (rows_over_columns, (257, 96)),
    ],
)
def test_what_is_found_of_rows_and_added_to_sums_of_columns_is_in_memory(
    function: Callable[..., torch.Tensor], shape: tuple[int, ...]
) -> None:
    """Only what ends the sums reads it: the kernel of the rows writes it all the same."""
    compiled = fusec.compile(function)
    inputs = make(shape)
    compare(function, compiled, inputs)
    torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
    assert any("column_sums" in kernel.source for kernel in compiled.kernels.values())


def test_memory_runs_along_the_rows_where_most_bytes_do() -> None:
    shape, turned = (64, 48), (1, 64)
    for steps, along in ((None, True), (turned, False)):
        buffers = {"x": buffer("x", shape, strides=steps), "w": buffer("w", (48,))}
        buffers["y"] = buffer("y", shape)
        with recording():
            (i,), (r,) = axes(64), axes(48, prefix="r")
            value = ops.binary("mul", ops.load("x", at(i, r), F32), ops.load("w", at(r), F32))
            body = Body((i,), (r,), (Store("y", at(i, r), value),))
        assert _along_rows(body, buffers) is along


def test_memory_runs_along_the_last_axis_or_down_the_columns() -> None:
    (i,), (q, r) = axes(64), axes(6, 8, prefix="r")
    held = {name: buffer(name, (64, 8)) for name in "xy"} | {"one": buffer("one", (64,))}
    held |= {"last": buffer("last", (6, 8)), "first": buffer("first", (8, 6))}

    def along(*loads: tuple[str, tuple[Symbol, ...]]) -> bool:
        stores = tuple(Store("y", at(i, r), ops.load(name, at(*a), F32)) for name, a in loads)
        return _along_rows(Body((i,), (q, r), stores), held)

    with recording():
        assert along(("last", (q, r)))
        assert not along(("first", (r, q)))
        assert not along(("one", (i,))), "neither"
        assert not along(("last", (q, r)), ("first", (r, q))), "as much"
        assert along(("last", (q, r)), ("x", (i, r)), ("first", (r, q)))
