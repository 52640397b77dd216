"""Matrix products as Triton kernels: text, numerics, what fuses into them, who is chosen."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import BadOption
from fusec.ir.body import Buffer
from fusec.ir.index import Expr, Symbol
from fusec.ir.program import Compute, Extern, Program
from fusec.kernel_source import KernelSource
from fusec.schedule import small_products
from fusec.schedule.step_graph import fusion_view, why
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.plan.choices_matmul import candidates, match_product
from fusec.targets.triton.target import TARGET as TRITON
from fusec.targets.triton.target import Triton
from fusec.targets.triton.toolchain.build import build_triton
from fusec.targets.triton.toolchain.cross_compile import artifacts
from fusec.tunables import set_tunables
from fusec.tune import products as chooser
from fusec.tune import products_race
from fusec.tune.product_choice import ProductChoice
from fusec.tune.products import choose_products as choose
from support.paths import GOLDEN
from support.products import BF16, F64, FUNCTIONS, HALF, VECTORS, Tensors, int8, random, weight
from support.triton_bodies import F32, Case, product, softmax_of_product
from support.triton_cases import compare, guarded

TEXTS = GOLDEN / "triton"


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


# -- the text -----------------------------------------------------------------------------

CASES: dict[str, Callable[[], tuple[Case, str]]] = {
    "product_persistent": lambda: (product(4096, 4096, 4096), "persistent"),
    "product_tiles": lambda: (product(70, 90, 130, turned=True, quantized=True), "tiles"),
    "product_split": lambda: (product(5, 90, 1300), "split"),
    "product_rows": lambda: (softmax_of_product(70, 90, 130), ""),
    "product_batched": lambda: (product(50, 40, 70, batch=3), "tiles"),
}


@pytest.mark.parametrize("name", CASES)
def test_golden_text(name: str) -> None:
    case, strategy = CASES[name]()
    text = emit_triton(case.name, case.body, case.buffers, label=case.label, strategy=strategy).text
    path = TEXTS / f"{name}.py"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "renew with UPDATE_GOLDEN=1 if the change is meant"
    assert max(len(each) for each in text.splitlines()) <= 100


@pytest.mark.sample(2)
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("name", CASES)
def test_compiles_for_gpus(name: str, gpu: str) -> None:
    case, strategy = CASES[name]()
    source = emit_triton(case.name, case.body, case.buffers, strategy=strategy)
    kind = "amdgcn" if gpu == "gfx942" else "ptx"
    code = artifacts(source.text, source.signature, gpu=gpu, kinds=(kind,))[kind]
    words = {"sm_80": "mma.sync", "gfx942": "v_mfma", "sm_90": "mma.sync"}
    if name in ("product_persistent",):
        words["sm_90"] = "wgmma.mma_async"
        assert gpu != "sm_90" or "cp.async.bulk.tensor" in code, "tensor descriptors"
    if name in ("product_tiles", "product_batched", "product_split"):
        words["sm_90"] = "wgmma.mma_async"
    assert words[gpu] in code, "tensor cores"


def test_every_line_of_the_epilogue_knows_its_cell_line() -> None:
    case, strategy = CASES["product_persistent"]()
    source = emit_triton(case.name, case.body, case.buffers, strategy=strategy)
    lines = source.text.splitlines()
    dot = next(n for n, text in enumerate(lines, 1) if "tl.dot(" in text)
    store = next(n for n, text in enumerate(lines, 1) if "tl.store(" in text)
    assert [each.line for each in source.origins[dot]] == [2]
    assert [each.line for each in source.origins[store]] == [3]


# -- numerics, in the interpreter ---------------------------------------------------------


def run(case: Case, strategy: str, settings: dict[str, int], *, edited: bool = False) -> None:
    """Run a case between margins; compare with float64 and with the reference.

    The tunables are those of the text from the start, or (edited) changed in the finished text.
    """
    given = () if edited else tuple(settings.items())
    source = emit_triton(case.name, case.body, case.buffers, strategy=strategy, settings=given)
    declared = {k: v for k, v in settings.items() if f"\n{k} = " in source.text}
    kernel = build_triton(set_tunables(source.text, declared), source.signature)
    tensors = case.inputs()
    expected, exact = case.expected(tensors), case.expected(tensors, F64)
    names = [n for n in case.body.reads() if n not in case.body.writes()] + ["out"]
    placed = {n: guarded(tensors[n]) for n in names}
    kernel([placed[n][0] for n in names], list(case.sizes.values()))
    for name in names:
        result, intact = placed[name]
        assert intact(), f"{name}: written out of bounds"
        if name != "out":
            assert torch.equal(result, tensors[name]), f"{name} changed"
    result = placed["out"][0]
    scale = exact["out"].abs().max().item()  # a sum is as exact as its largest terms
    wrong = (result.double() - exact["out"]).abs().max().item()
    theirs = (expected["out"].double() - exact["out"]).abs().max().item()
    assert wrong <= 2 * theirs + 4 * torch.finfo(result.dtype).eps * scale


SMALL = {"BLOCK_M": 32, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 2, "PROGRAMS": 3, "SPLITS": 3}
WIDE = {"BLOCK_M": 16, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 4, "PROGRAMS": 2, "SPLITS": 1}


@pytest.mark.sample(6)
@pytest.mark.parametrize("settings", [SMALL, WIDE], ids=["small", "wide"])
@pytest.mark.parametrize("strategy", ["tiles", "persistent", "split"])
@pytest.mark.parametrize("dtype", [HALF, BF16, F32], ids=str)
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_computes_what_the_reference_does(
    turned: bool, dtype: torch.dtype, strategy: str, settings: dict[str, int]
) -> None:
    run(product(72, 88, 104, dtype, turned=turned), strategy, settings)


SHAPES = [(67, 89, 131), (1, 33, 70), (33, 1, 70), (3, 5, 2), (1, 1, 999)]
# few rows: the transposed product
SHAPES += [(1, 97, 70), (16, 64, 128), (29, 200, 31), (16, 256, 768)]


@pytest.mark.sample(3)
@pytest.mark.parametrize("strategy", ["tiles", "split"])
@pytest.mark.parametrize("shape", SHAPES)
def test_odd_shapes(shape: tuple[int, int, int], strategy: str) -> None:
    run(product(*shape), strategy, SMALL, edited=True)
    run(product(*shape, quantized=True), strategy, WIDE)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["tiles", "persistent", "split"])
def test_tunables_change_in_the_finished_text(strategy: str) -> None:
    case = product(256, 256, 256)  # sizes that need no masks
    run(case, strategy, SMALL, edited=True)
    run(case, strategy, WIDE, edited=True)


@pytest.mark.parametrize("columns", [90, 128, 2])
@pytest.mark.parametrize("dtype", [HALF, F32], ids=str)
def test_whole_rows(columns: int, dtype: torch.dtype) -> None:
    run(softmax_of_product(70, columns, 50, dtype), "", {"BLOCK_M": 16, "BLOCK_K": 32})


@pytest.mark.parametrize("strategy", ["tiles", "split"])
def test_batches(strategy: str) -> None:
    run(product(37, 21, 50, batch=3), strategy, SMALL)


def test_names_of_the_users_do_not_collide() -> None:
    def function(x: torch.Tensor, x_tiles: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        row = x @ x_tiles
        return row * moved

    tensors = random(96, 72), weight(72, 80), random(96, 80)
    compiled = fusec.compile(function, target="triton", matmul="template")
    torch.testing.assert_close(compiled(*tensors), function(*tensors), rtol=5e-3, atol=5e-3)
    assert "TensorDescriptor(" in compiled.graphs[0].kernels[0].source


@pytest.mark.parametrize("strategy", ["tiles", "persistent"])
def test_results_of_more_than_32_bits(strategy: str) -> None:
    case = product(1 << 17, 1 << 15, 64)
    source = emit_triton(case.name, case.body, case.buffers, strategy=strategy)
    assert (
        "row = tile_row.to(tl.int64)" in source.text or "program_id(0).to(tl.int64)" in source.text
    )
    code = artifacts(source.text, source.signature, "sm_90", ("ttir",))["ttir"]
    assert "xi64>" in code


def test_symbolic_rows() -> None:
    rows = Symbol("s0", "size", low=2)
    case = product(Expr.of(rows), 48, 40)
    source = emit_triton(case.name, case.body, case.buffers)
    kernel = build_triton(source.text, source.signature)
    for count in (2, 63, 64, 130):
        case.sizes = {rows: count}
        tensors = case.inputs()
        expected, exact = case.expected(tensors), case.expected(tensors, F64)
        kernel([tensors[n] for n in ("x", "w", "b", "out")], [count])
        compare(tensors["out"], expected["out"], exact["out"], scan=True)


def test_an_operand_that_begins_at_an_odd_place_is_moved() -> None:
    case = product(72, 88, 104)
    source = emit_triton(case.name, case.body, case.buffers, strategy="persistent")
    kernel = build_triton(source.text, source.signature)
    tensors = case.inputs()
    space = torch.empty(72 * 104 + 1, dtype=HALF)
    odd = space[1:].view(72, 104).copy_(tensors["x"])
    assert odd.data_ptr() % 16
    kernel([odd, tensors["w"], tensors["b"], tensors["out"]], [])
    compare(tensors["out"], case.expected(tensors)["out"], case.expected(tensors, F64)["out"], True)


# -- what fuses, and whether it is right --------------------------------------------------


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    function, make, kernels = FUNCTIONS[name]
    tensors = make()
    compiled = fusec.compile(function, target="triton", matmul="template")
    actual, eager = compiled(*tensors), function(*tensors)
    raised = [t.double() if t.is_floating_point() else t for t in tensors]
    exact = function(*raised)
    several = isinstance(eager, tuple)
    for a, e, x in zip(*(v if several else (v,) for v in (actual, eager, exact)), strict=True):
        assert (a.shape, a.stride(), a.dtype) == (e.shape, e.stride(), e.dtype)
        if a.dtype == torch.bool:
            assert (a != e).float().mean() < 0.01  # what is 0 but for roundings
            continue
        wrong, theirs = ((v.double() - x).abs().max().item() for v in (a, e))
        assert wrong <= 2 * theirs + 4 * torch.finfo(a.dtype).eps * x.abs().max().item()
    (graph,) = compiled.graphs
    assert not graph.externs
    assert len(graph.kernels) == kernels
    assert all(decision.reason for decision in graph.fusions)


@pytest.mark.parametrize(
    ("rows", "columns", "inner"), [(9, 8, 0), (9, 8, 1), (0, 8, 9), (9, 0, 8), (0, 0, 0)]
)
def test_nothing_to_add_up_stays_with_blas(rows: int, columns: int, inner: int) -> None:
    x, w, b = random(rows, inner), random(inner, columns), random(columns)
    compiled = fusec.compile(
        lambda b, x, w: torch.addmm(b, x, w).relu(), target="triton", matmul="template"
    )
    torch.testing.assert_close(compiled(b, x, w), torch.addmm(b, x, w).relu())


def test_changing_sizes() -> None:
    function = lambda x, w, b: F.gelu(F.linear(x, w, b))  # noqa: E731
    compiled = fusec.compile(function, target="triton", matmul="template", dynamic=True)
    w, b = random(48, 64, scale=0.1), random(48)
    for rows in (5, 70, 33, 200, 0, 1):
        x = random(rows, 64)
        torch.testing.assert_close(compiled(x, w, b), function(x, w, b), rtol=2e-3, atol=2e-3)


def test_gradients() -> None:
    x = random(40, 24, dtype=F32).requires_grad_()
    w = weight(24, 56, dtype=F32).requires_grad_()
    function = lambda x, w: F.gelu(x @ w).square().sum()  # noqa: E731
    expected = torch.autograd.grad(function(x, w), (x, w))
    compiled = fusec.compile(function, target="triton", matmul="template")
    actual = torch.autograd.grad(compiled(x, w), (x, w))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_emulated_rounding_is_eagers() -> None:
    generator = torch.Generator().manual_seed(0)
    # whole numbers: the sums are exact in any order, and the roundings after them are not
    x, w = (torch.randint(-4, 5, (64, 64), generator=generator).to(HALF) for _ in range(2))
    r = random(64, 64)
    function = lambda x, w: (x @ w) * r + r  # noqa: E731
    expected = function(x, w)
    compiled = fusec.compile(function, target="triton", matmul="template", emulate_rounding=True)
    assert torch.equal(compiled(x, w), expected)
    torch._dynamo.reset()
    plain = fusec.compile(function, target="triton", matmul="template")
    assert not torch.equal(plain(x, w), expected)
    torch.testing.assert_close(plain(x, w), expected, rtol=2e-3, atol=5e-3)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_float32_is_multiplied_as_the_user_allows(precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        compiled = fusec.compile(lambda x, w: (x @ w).relu(), target="triton", matmul="template")
        compiled(random(64, 64, dtype=F32), random(64, 64, dtype=F32))
        word = "ieee" if precision == "highest" else "tf32"
        assert f'input_precision="{word}"' in compiled.graphs[0].kernels[0].source
    finally:
        torch.set_float32_matmul_precision(before)


def test_refusals_carry_reasons() -> None:
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> Tensors:
        y = torch.exp(x) @ w  # costly for every tile
        return y.softmax(-1), (x @ v).sum(0), (x @ v).cumsum(1)

    compiled = fusec.compile(function, target="triton", matmul="template")
    compiled(random(70, 130, scale=0.1), weight(130, 300), weight(130, 40))
    reasons = " ".join(d.reason for d in compiled.graphs[0].fusions if not d.fused)
    assert "each tile of the matrix product would compute it again" in reasons
    assert "a row of 300 is longer than a tile of a matrix product" in reasons
    assert "it reduces down columns" in reasons
    assert "a running value of a matrix product has a kernel of its own" in reasons


def test_the_view_of_fusion_has_products_as_computations() -> None:
    compiled = fusec.compile(
        lambda x, w: (x @ w).relu(), target="triton", matmul="template", keep_inputs=True
    )
    compiled(random(70, 130), weight(130, 90))
    (part,) = compiled.graphs[0].parts
    state = part.state
    assert state.program is not None
    assert state.schedule is not None
    view = fusion_view(state.program, state.scheduled, state.schedule.decisions)
    first, second = (node for node in view.before.nodes if node.kind == "kernel")
    assert first.kernels == second.kernels == ("mm_relu",)
    assert "share the kernel mm_relu" in why(view, first.name, second.name)


def test_an_edited_product_is_checked() -> None:
    compiled = fusec.compile(
        lambda x, w: (x @ w) * 2, target="triton", matmul="template", keep_inputs=True
    )
    compiled(random(64, 64), weight(64, 64))
    (kernel,) = compiled.graphs[0].kernels
    wrong = kernel.keep(kernel.source.replace("2.0", "3.0"))
    assert not wrong.ok
    assert wrong.stage == "wrong"
    right = kernel.keep(kernel.with_tunables({"BLOCK_M": 32}))
    assert right.ok, right.reason


def test_the_default_is_blas_where_there_is_no_gpu() -> None:
    compiled = fusec.compile(lambda x, w: (x @ w).relu(), target="triton")
    compiled(random(64, 64), weight(64, 64))
    (call,) = compiled.graphs[0].externs
    assert call.reason == "a matrix product runs best in BLAS"
    with pytest.raises(BadOption, match="matmul"):
        fusec.compile(lambda x: x, matmul="fast")


@pytest.mark.parametrize(
    ("shape", "small"),
    [
        ((100, 100, 100), True),
        ((128, 16, 128), True),
        ((128, 128, 128), False),
        ((8, 8, 512), False),
    ],
)
def test_what_takes_less_time_than_calling_blas_is_a_kernel(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], small: bool
) -> None:
    rows, columns, inner = shape

    def products(program: Program, names: tuple[str, ...]) -> tuple[str, ...]:
        assert not small_products(program, names)  # there is no GPU
        gpu = {n: replace(b, device=torch.device("cuda")) for n, b in program.buffers.items()}
        return small_products(replace(program, buffers=gpu), names)

    monkeypatch.setattr("fusec.pipeline.small_products", products)
    torch._dynamo.reset()
    compiled = fusec.compile(lambda x, y: torch.softmax(x @ y, -1), target="triton")
    x, y = random(rows, inner), random(inner, columns)
    torch.testing.assert_close(compiled(x, y), torch.softmax(x @ y, -1), atol=2e-3, rtol=2e-2)
    assert len(compiled.graphs[0].externs) == (0 if small else 1)
    assert len(compiled.kernels) == 1


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", VECTORS)
def test_products_of_a_vector_are_reductions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def products(program: Program, names: tuple[str, ...]) -> tuple[str, ...]:
        gpu = {n: replace(b, device=torch.device("cuda")) for n, b in program.buffers.items()}
        return small_products(replace(program, buffers=gpu), names)

    monkeypatch.setattr("fusec.pipeline.small_products", products)
    torch._dynamo.reset()
    function, shapes, kernels, calls = VECTORS[name]
    compiled = fusec.compile(function, target="triton")
    for _ in range(2):
        tensors = [random(*shape) for shape in shapes]
        actual, exact = compiled(*tensors), function(*(t.double() for t in tensors))
        assert (actual.double() - exact).abs().max() <= 4e-3 * exact.abs().max()
    assert (len(compiled.kernels), len(compiled.graphs[0].externs)) == (kernels, calls)
    assert not any("matrix product" in k.generated.summary for k in compiled.graphs[0].kernels)


# -- who is chosen ------------------------------------------------------------------------


def choosing(monkeypatch: pytest.MonkeyPatch, judge: chooser.Judge) -> Any:
    """Return a compiler whose products are judged by ``judge`` instead of a GPU."""
    monkeypatch.setattr(
        chooser, "choose_products", lambda p, names, overrides: choose(p, names, judge, overrides)
    )
    return lambda function: fusec.compile(function, target="triton", matmul="auto")


def test_the_faster_one_is_taken_and_the_reason_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def judge(step: Compute, program: Program) -> ProductChoice:
        seen.append(step.label)
        if "tanh" in step.label:
            return ProductChoice("BLAS was faster (measured)")
        return ProductChoice("one kernel was faster (measured)", "tiles", (("BLOCK_M", 32),))

    function = lambda x, w, v: torch.tanh((x @ w).relu() @ v)  # noqa: E731
    tensors = random(70, 130), weight(130, 90), weight(90, 64)
    compiled = choosing(monkeypatch, judge)(function)
    torch.testing.assert_close(compiled(*tensors), function(*tensors), rtol=2e-3, atol=2e-3)
    (graph,) = compiled.graphs
    assert [call.reason for call in graph.externs] == ["BLAS was faster (measured)"]
    first, second = graph.kernels
    assert "BLOCK_M = 32 " in first.source
    assert second.generated.summary.startswith("pointwise")
    reasons = [d.reason for d in graph.fusions]
    assert any("one kernel was faster" in reason for reason in reasons)
    assert any("BLAS was faster" in reason for reason in reasons)
    assert sum("tanh" in label for label in seen) == 1, "a refused product is not judged again"


def test_a_race_on_the_real_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a race but the GPU: the interpreter runs, and the times are made up."""
    times = {"blas": 2.0, "0": 3.0, "1": 1.5, "kernel": 1.5}
    raced: list[list[str]] = []

    def clock(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
        for call in calls.values():
            call()
        raced.append(sorted(calls))
        return {name: times[name] for name in calls}

    monkeypatch.setattr(products_race, "_times", clock)
    monkeypatch.setattr(products_race, "_on_device", lambda device: torch.no_grad())
    monkeypatch.setattr(products_race, "_may_measure", lambda needed: True)

    def judge(step: Compute, program: Program) -> ProductChoice:
        found = candidates(match_product(step.body, program.buffers))[:2]
        choice = products_race.race(step, program, found, 0.02, TRITON)
        assert choice is not None
        return choice

    function = lambda x, q, s, b: F.gelu(F.linear(x, q.to(x.dtype) * s[:, None], b))  # noqa: E731
    tensors = random(70, 130), int8(90, 130), random(90, scale=0.01), random(90)
    seed = torch.random.get_rng_state()
    compiled = choosing(monkeypatch, judge)(function)
    torch.testing.assert_close(compiled(*tensors), function(*tensors), rtol=5e-3, atol=5e-3)
    assert torch.equal(torch.random.get_rng_state(), seed), "the user's random numbers"
    assert raced == [["0", "1", "blas"], ["blas", "kernel"]]
    (graph,) = compiled.graphs
    assert not graph.externs
    assert any("(measured)" in d.reason for d in graph.fusions)
    times["kernel"] = 1.99  # not worth it
    torch._dynamo.reset()
    compiled = choosing(monkeypatch, judge)(function)
    torch.testing.assert_close(compiled(*tensors), function(*tensors), rtol=5e-3, atol=5e-3)
    (call,) = compiled.graphs[0].externs
    assert "(measured)" in call.reason


def test_a_wrong_candidate_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = product(64, 64, 64)
    step = Compute("op0", case.body, "mlp")
    program = Program((), {}, case.buffers, (step,), ())
    emit = type(TRITON).emit

    def broken(target: Triton, step: Compute, buffers: Mapping[str, Buffer]) -> KernelSource:
        source = emit(target, step, buffers)
        wrong = step.strategy == "tiles"
        return replace(source, text=source.text.replace("* 0.5", "* 0.6")) if wrong else source

    monkeypatch.setattr(Triton, "emit", broken)
    monkeypatch.setattr(products_race, "_times", lambda calls, seconds: dict.fromkeys(calls, 1.0))
    monkeypatch.setattr(products_race, "_on_device", lambda device: torch.no_grad())
    monkeypatch.setattr(products_race, "_may_measure", lambda needed: True)
    choice = products_race.race(step, program, [("tiles", ())], 0.02, TRITON)
    assert choice is not None
    assert choice.reason == "no candidate kernel runs here"


def test_blas_and_kernels_do_the_same() -> None:
    turned = product(9, 17, 30, quantized=True, turned=True)
    for case in (product(33, 40, 50), turned, softmax_of_product(33, 40, 50)):
        tensors = case.inputs()
        products_race.blas_and_kernels(case.body, case.buffers, tensors, TRITON)()
        expected, exact = case.expected(tensors), case.expected(tensors, F64)
        scale = exact["out"].abs().max().item()
        wrong = (tensors["out"].double() - exact["out"]).abs().max().item()
        theirs = (expected["out"].double() - exact["out"]).abs().max().item()
        assert wrong <= 2 * theirs + 4 * torch.finfo(HALF).eps * scale


def test_measuring_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> ProductChoice:
        raise RuntimeError("no device")

    step = Compute("op0", product(8, 8, 8).body)
    program = Program((), {}, {}, (), ())
    monkeypatch.setattr(chooser, "measured", fail)
    assert "no device" in chooser.Measuring(1.0)(step, program).reason
    given: list[bool] = []

    def note(*_: object, may_measure: bool) -> ProductChoice:
        given.append(may_measure)
        return ProductChoice("")

    monkeypatch.setattr(chooser, "measured", note)
    for seconds in (1.0, -1.0):
        chooser.Measuring(seconds)(step, program)
    assert given == [True, False]


@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (16, 11008, 4096), (16, 4096, 11008)])
@pytest.mark.parametrize("dtype", [HALF, F32], ids=str)
def test_candidates_fit_into_shared_memory(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    case = product(*shape, dtype)
    found = candidates(match_product(case.body, case.buffers))
    assert 2 <= len(found) <= 8
    for _, settings in found:
        values = dict(settings)
        step = (values["BLOCK_M"] + values["BLOCK_N"]) * values["BLOCK_K"] * dtype.itemsize
        assert step * values["NUM_STAGES"] <= 227 << 10


def test_without_a_gpu_auto_is_blas() -> None:
    compiled = fusec.compile(lambda x, w: (x @ w).relu(), target="triton", matmul="auto")
    x, w = random(64, 64), weight(64, 64)
    torch.testing.assert_close(compiled(x, w), (x @ w).relu())
    assert len(compiled.graphs[0].externs) == 1


def test_no_extern_is_made_a_kernel_by_accident() -> None:
    compiled = fusec.compile(lambda x, w: x @ w)
    compiled(random(8, 8, dtype=F32), random(8, 8, dtype=F32))
    (step,) = compiled.graphs[0].parts[0].state.scheduled.steps
    assert isinstance(step, Extern)
    assert step.body is None
