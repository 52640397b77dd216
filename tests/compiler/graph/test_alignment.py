"""Products padded to rows of 16 bytes: what changes in the graph, and that results stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.graph.choices import aligned, alignment_pays
from fusec.graph.facts.notes import NoteKind, add_note, has_note
from fusec.graph.products.alignment import ODD_ROWS, PADDED, align_products
from fusec.graph.products.bias import add_biases_later
from fusec.ir.node import Recorder, recording
from fusec.ir.program import Compute, Extern
from fusec.lower import lower_graph
from fusec.lower.matmul import BLAS
from fusec.options import Options
from fusec.schedule import products_of, small_products
from fusec.tune.product_choice import ProductChoice
from fusec.tune.products import choose_products

aten = torch.ops.aten
Made = tuple[torch.Tensor, ...]


def traced(f: Callable[..., object], given: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Trace with fake tensors on a GPU that need not be there."""
    with FakeTensorMode():
        fake = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda") for t in given
        ]
        return make_fx(f)(*fake)


def same(module: fx.GraphModule, f: Callable[..., Made], given: Sequence[torch.Tensor]) -> None:
    """The rewritten graph, run on the CPU, yields the function's results, layouts included."""
    for got, plain in zip(module(*given), f(*given), strict=True):
        torch.testing.assert_close(got, plain, rtol=2e-2, atol=2e-1)
        assert got.stride() == plain.stride()


def padded(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if has_note(n, NoteKind.PADDED)]


def head(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Made:
    """Logits over an odd vocabulary, their softmax, and the gradients of both operands."""
    weight = w.to(torch.bfloat16)
    y = x @ weight.t()
    grad = (g + 1).to(torch.bfloat16)
    return torch.log_softmax(y.float(), -1), grad @ weight, (grad.t() @ x).float()


@pytest.fixture
def eager_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products count like large ones."""
    monkeypatch.setattr("fusec.graph.choices._START", 0.0)
    monkeypatch.setattr("fusec.graph.choices._TERABYTES", 1e9)


@pytest.mark.parametrize("classes", [37, 50, 44])
def test_a_head_and_its_gradients(classes: int, eager_pays: None) -> None:
    given = (
        torch.randn(24, 64, dtype=torch.bfloat16),
        torch.randn(classes, 64),
        torch.randn(24, classes),
    )
    module = traced(head, given)
    assert align_products(module) == 3
    same(module, head, given)
    assert len(padded(module)) == 3
    pads = list(module.graph.find_nodes(op="call_function", target=aten.constant_pad_nd.default))
    assert len(pads) == 2  # the weight and the gradient, each for two products
    for node in padded(module):
        assert node.meta["val"].stride()[0] % 8 == 0


def test_layouts_bias_and_batches(eager_pays: None) -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, batch: torch.Tensor) -> Made:
        y = torch.addmm(b, x, w)
        z = torch.bmm(batch.transpose(1, 2), batch)
        return y.relu(), y, z.view(-1, z.shape[-1]), y.view(3, -1, 7).sum(1)

    half = torch.float16
    given = (
        torch.randn(21, 13, dtype=half),
        torch.randn(13, 35, dtype=half),
        torch.randn(35, dtype=half),
        torch.randn(2, 9, 11, dtype=half),
    )
    module = traced(f, given)
    assert align_products(module) == 2
    same(module, f, given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_stays(dtype: torch.dtype) -> None:
    """Aligned products, small ones, and other dtypes."""
    sizes = (64, 40) if dtype == torch.bfloat16 else (37, 41)
    given = (torch.randn(24, sizes[0], dtype=dtype), torch.randn(sizes[0], sizes[1], dtype=dtype))
    module = traced(lambda a, b: (a @ b,), given)
    before = module.code
    assert align_products(module) == 0
    assert module.code == before
    small = (given[0][:, :-1].contiguous(), given[1][:-1].contiguous())
    assert align_products(traced(lambda a, b: (a @ b,), small)) == 0


def returned(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Made:
    """Logits that nothing but the caller reads."""
    return (torch.addmm(b, x, w.t()).view(4, 6, -1),)


def test_results_for_the_caller_are_written_by_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.choices._LARGE_PRODUCT", 24 * 64 * 37)
    given = tuple(torch.randn(s, dtype=torch.bfloat16) for s in ((24, 64), (37, 64), (37,)))
    module = traced(returned, given)
    assert align_products(module) == 0
    same(module, returned, given)
    monkeypatch.setattr("fusec.lower.program.require_device", lambda *_: None)
    program = lower_graph(module, recorder=Recorder())
    (product,) = products_of(program)
    assert small_products(program, [product]) == (product,)
    (call,) = (step for step in program.steps if step.name == product)
    assert isinstance(call, Extern)
    assert call.odd_rows
    assert ODD_ROWS in call.reason


def test_what_is_not_measured_is_a_kernel_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is padded for BLAS, which would take several times as long."""
    monkeypatch.setattr("fusec.graph.choices._LARGE_PRODUCT", 24 * 64 * 37)
    monkeypatch.setattr("fusec.lower.program.require_device", lambda *_: None)
    given = tuple(torch.randn(s, dtype=torch.bfloat16) for s in ((24, 64), (37, 64), (37,)))
    module = traced(returned, given)
    align_products(module)
    recorder = Recorder()
    program = lower_graph(module, recorder=recorder)
    with recording(recorder):
        found = choose_products(
            program, products_of(program), lambda *_: ProductChoice("not measured")
        )
    assert [type(step) for step in found.program.steps] == [Compute]


@pytest.mark.parametrize(
    "change", ["too small", "no kernels", "read", "odd operand", "batch", "aligned"]
)
def test_what_no_kernel_writes(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = 40 if change == "aligned" else 37
    least = 24 * 64 * 37 + (change == "too small")
    monkeypatch.setattr("fusec.graph.choices._LARGE_PRODUCT", least)
    inner = 63 if change == "odd operand" else 64

    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Made:
        if change == "batch":
            return (torch.bmm(x.view(2, 12, inner), w.t().expand(2, -1, -1)),)
        (y,) = returned(x, w, b)
        return (y, y.exp()) if change == "read" else (y,)

    shapes = ((24, inner), (columns, inner), (columns,))
    module = traced(f, tuple(torch.randn(s, dtype=torch.bfloat16) for s in shapes))
    align_products(module, kernels=change != "no kernels")
    assert not any(has_note(n, NoteKind.ODD_ROWS) for n in module.graph.nodes)


def test_when_it_pays() -> None:
    gpt2, rows = 4096 * 768 * 50257, 4096
    assert alignment_pays(gpt2, [768, 768, 50257], 2 * 2 * rows * 50257)
    assert not alignment_pays(gpt2, [768, 768, 50264], 0)
    assert not alignment_pays(64 * 64 * 63, [64, 64, 63], 0)
    assert not alignment_pays(gpt2 // 50, [768, 768, 50257], 2 * 2 * rows * 50257)
    assert [aligned(n) for n in (0, 1, 8, 9, 50257)] == [0, 8, 8, 16, 50264]


@pytest.mark.parametrize(
    ("batch", "rows", "pays"),
    [(0, 100_000, False), (0, 140_000, True), (2, 2048, False), (256, 2048, True)],
)
def test_what_pays_for_many_matrices(batch: int, rows: int, pays: bool) -> None:
    """How many matrices there are counts, and of a single product not how many rows it has."""
    shapes = ((rows, 64), (64, 65))
    product = torch.bmm if batch else torch.mm
    with FakeTensorMode():
        given = [
            torch.empty((batch, *shape) if batch else shape, dtype=torch.bfloat16, device="cuda")
            for shape in shapes
        ]
        module = make_fx(lambda a, b: (product(a, b).relu(),))(*given)
    assert align_products(module) == pays


def test_biases_of_convolutions_on_a_gpu() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Made:
        return (torch.convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1).relu(),)

    given = (torch.randn(2, 3, 9, 8), torch.randn(5, 3, 3, 3), torch.randn(5))
    module = traced(f, given)
    assert add_biases_later(module) == 1
    (node,) = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert node.args[2] is None
    same(module, f, given)
    without = traced(lambda x, w: (torch.conv2d(x, w),), given[:2])
    assert add_biases_later(without) == 0


@pytest.mark.parametrize("products", [False, True])
def test_the_reason_is_shown(products: bool) -> None:
    """Also of a product that a kernel could have taken the place of."""
    with FakeTensorMode():
        given = [torch.empty(64, 512).half(), torch.empty(512, 5003).half()]
        module = make_fx(lambda a, b: (a @ b,))(*given)
    (product,) = [n for n in module.graph.nodes if n.target is aten.mm.default]
    add_note(product, NoteKind.PADDED, PADDED)
    options = Options(target="triton", matmul="small" if products else "extern")
    program = lower_graph(module, recorder=Recorder(), abilities=options.abilities)
    (step,) = program.steps
    assert isinstance(step, Extern)
    assert step.reason == f"{BLAS}, {PADDED}"


def test_a_batch_of_unknown_size_is_left_alone(eager_pays: None) -> None:
    half = torch.float16
    given = torch.randn(5, 9, 11, dtype=half), torch.randn(5, 9, 13, dtype=half)
    module = traced(lambda a, b: (torch.bmm(a.transpose(1, 2), b),), given)
    shape_env = ShapeEnv()
    with FakeTensorMode(shape_env=shape_env):
        batch = shape_env.create_unbacked_symint()
        for node in module.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                shape = (batch, *value.shape[1:])
                node.meta["val"] = torch.empty_strided(
                    shape, value.stride(), dtype=half, device="cuda"
                )
    assert align_products(module) == 0
    assert align_products(traced(lambda a, b: (torch.bmm(a.transpose(1, 2), b),), given)) == 1


def test_what_is_copied_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.choices._START", 0.0)
    given = torch.randn(24, 37, dtype=torch.float16), torch.randn(37, 41, dtype=torch.float16)
    for terabytes, count in ((1e9, 1), (1e-9, 0)):
        monkeypatch.setattr("fusec.graph.choices._TERABYTES", terabytes)
        assert align_products(traced(lambda a, b: ((a @ b).relu(),), given)) == count
