"""On a GPU: kernels through Triton, checked, edited, tuned. Skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fusec
from fusec.ir.program import Extern
from support.compare import difference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def everything(x: torch.Tensor) -> Any:
    y = F.layer_norm(F.gelu(x * 2 + 1), (x.shape[-1],))
    return y, y.sum(0), y.argmax(-1), x.softmax(-1), x.t().contiguous(), x.std(), (x > 0).any(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(128, 256), (33, 1027), (1, 7), (2048, 5000)])
def test_agrees_with_eager(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype, device="cuda")
    compiled = fusec.compile(everything, keep_inputs=True)
    compiled(x)
    assert {k.target for k in compiled.kernels.values()} == {"triton"}
    verdict = compiled.graphs[0].verify()
    assert verdict.ok, verdict.reason


def test_cross_entropy_and_gather() -> None:
    logits = torch.randn(300, 5003, device="cuda")
    target = torch.randint(0, 5003, (300,), device="cuda")
    target[7] = -100
    compiled = fusec.compile(lambda x, t: (F.cross_entropy(x, t), x[t[:5].clamp(0, 299)]))
    assert not difference(compiled(logits, target), compiled.function(logits, target))


def test_gradients() -> None:
    x = torch.randn(64, 512, device="cuda", requires_grad=True)
    w = torch.randn(512, device="cuda", requires_grad=True)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(F.gelu(x), (512,), w).square().mean()

    expected = torch.autograd.grad(loss(x, w), [x, w])
    actual = torch.autograd.grad(fusec.compile(loss)(x, w), [x, w])
    assert not difference(actual, expected)


def test_a_scalar_on_the_cpu_among_tensors_on_the_gpu() -> None:
    scale = torch.tensor(2.5)
    x = torch.randn(1000, device="cuda")
    compiled = fusec.compile(lambda x: (x + 1) * scale)
    assert not difference(compiled(x), (x + 1) * scale)


def test_edit_and_tune() -> None:
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
    compiled = fusec.compile(lambda x: F.softmax(x * 2, -1), keep_inputs=True, name="soft")
    expected = compiled(x)
    (kernel,) = compiled.kernels.values()
    wrong = kernel.keep(kernel.source.replace("* 2.0", "* 3.0"))
    assert not wrong.ok
    assert wrong.stage == "wrong"
    right = kernel.keep(kernel.source + "\n# mine\n")
    assert right.ok, right.reason
    assert right.timing is not None
    kernel.revert()
    run = kernel.tune(budget=8)
    assert run.best is not None
    assert len(run.trials) > 1
    assert not difference(compiled(x), expected)


def test_tuning_compiles_while_it_times() -> None:
    """By processes; the start comes first, and what needs no timing says why."""
    x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
    compiled = fusec.compile(lambda x: x.softmax(0), keep_inputs=True, tuned=False)
    compiled(x)
    (kernel,) = compiled.kernels.values()
    start = {t.name: t.value for t in kernel.tunables}
    run = kernel.tune(budget=8.0)
    assert dict(run.trials[0].values) == start
    assert run.trials[0].timing is not None
    assert sum(trial.timing is not None for trial in run.trials) > 5
    assert all(trial.timing or trial.error or trial.note for trial in run.trials)
    if run.best:
        assert run.checked
    assert not difference(compiled(x), x.softmax(0))
    again = fusec.compile(lambda x: x.softmax(0), keep_inputs=True)
    assert not difference(again(x), x.softmax(0))


def test_the_short_launch_follows_alignment_sizes_and_streams() -> None:
    compiled = fusec.compile(lambda x, y: (x + y).relu().sum(-1), dynamic=True)
    base = torch.randn(70_000, device="cuda")
    for start, rows, columns in ((0, 64, 256), (1, 64, 256), (3, 33, 257), (0, 64, 256), (4, 7, 8)):
        x = base[start : start + rows * columns].view(rows, columns)
        assert not difference(compiled(x, x), (x + x).relu().sum(-1))
    stream = torch.cuda.Stream()
    x = torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        y = x * 2 + 1  # nothing waits for it but what runs on the same stream
        actual = compiled(y, y)
        expected = (y + y).relu().sum(-1)
    stream.synchronize()
    assert not difference(actual, expected)


@pytest.mark.parametrize("plans", ["0", "1"])
@pytest.mark.parametrize("graphs", [False, True])
def test_inputs_are_updated_where_they_lie(
    graphs: bool, plans: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEC_GPU_PLANS", plans)

    def step(p: list[Any], g: list[Any], m: list[Any]) -> None:
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_add_(p, m, alpha=-0.01)

    def made() -> tuple[list[Any], ...]:
        torch.manual_seed(3)
        shapes = [(300, 70), (70,), (1,), (8, 1024)]
        return tuple([torch.randn(s, device="cuda") for s in shapes] for _ in range(3))

    compiled = fusec.compile(step, cuda_graphs=graphs)
    ours, theirs = made(), made()
    with torch.no_grad():
        for _ in range(8):
            compiled(*ours)
            step(*theirs)
            assert not difference(ours, theirs)
        with torch.profiler.profile() as profile:
            compiled(*ours)
            torch.cuda.synchronize()
    assert not any("Memcpy DtoD" in event.key for event in profile.key_averages())
    assert sum("where it lies" in d.reason for d in compiled.graphs[0].fusions) == 8


def test_variances_alone() -> None:
    x = torch.randn(33, 40000, device="cuda") + 50
    for function in (lambda x: x.std(), lambda x: x.var(-1), lambda x: x.var(0)):
        assert not difference(fusec.compile(function)(x), function(x))


@pytest.mark.usefixtures("exact_convolutions")
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(4, 3, 9, 9), (16, 3, 96, 96), (2, 3, 300, 280)])
def test_running_statistics(
    shape: tuple[int, ...],
    format: torch.memory_format,
    graphs: bool,
) -> None:
    def made() -> torch.nn.Module:
        torch.manual_seed(0)
        norms = (torch.nn.BatchNorm2d(c, momentum=0.3) for c in (64, 5, 3))
        convolutions = (torch.nn.Conv2d(*c, 1) for c in ((3, 64), (64, 5), (5, 3)))
        layers = [layer for pair in zip(convolutions, norms, strict=True) for layer in pair]
        return torch.nn.Sequential(*layers).cuda()

    ours, theirs = made(), made()
    compiled = fusec.compile(ours, cuda_graphs=graphs)
    for _ in range(5):
        x = torch.randn(shape, device="cuda").to(memory_format=format)
        one, two = compiled(x), theirs(x)
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-3)
        one.square().mean().backward()
        two.square().mean().backward()
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)
    updated = [d for g in compiled.graphs for d in g.fusions if "updated where" in d.reason]
    assert len(updated) == 9


@pytest.mark.parametrize("first", [0, 1, 6])
@pytest.mark.parametrize("columns", [50257, 30522])
def test_rows_that_begin_anywhere(columns: int, first: int) -> None:
    space = torch.full((300 * columns + 16,), float("nan"), device="cuda", dtype=torch.bfloat16)
    x = space[first : first + 300 * columns].view(300, columns)
    x.normal_()
    x[7] = float("nan")
    target = torch.randint(0, columns, (300,), device="cuda")

    def loss(x: torch.Tensor, target: torch.Tensor) -> Any:
        return F.cross_entropy(x.float(), target, reduction="none"), x.float().amax(1)

    compiled = fusec.compile(loss)
    for got, plain in zip(compiled(x, target), loss(x, target), strict=True):
        torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-4, equal_nan=True)
    assert any("loaded as one" in kernel.source for kernel in compiled.kernels.values())


@pytest.mark.parametrize("columns", [10001, 30522])
@pytest.mark.parametrize("rows", [5, 200, 2049])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_for_the_caller(dtype: torch.dtype, rows: int, columns: int) -> None:
    x = torch.randn(rows, 768, device="cuda", dtype=dtype)
    weight = (torch.randn(columns, 768, device="cuda") / 28).to(dtype)
    bias = torch.randn(columns, device="cuda", dtype=dtype)

    def head(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias)

    compiled = fusec.compile(head)
    found, exact = compiled(x, weight, bias), head(x.double(), weight.double(), bias.double())
    assert found.stride() == (columns, 1)
    own = (head(x, weight, bias).double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= 1.1 * own
    large = rows * 768 * columns >= 1 << 29
    assert bool(compiled.kernels) == large


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_whose_length_each_call_says(dtype: torch.dtype, graphs: bool) -> None:
    def normed(x: torch.Tensor) -> Any:
        return F.layer_norm(x, (x.shape[-1],)), x.softmax(-1)

    compiled = fusec.compile(normed, dynamic=True, cuda_graphs=graphs)
    for length in (1000, 7, 16384, 1024, 12001, 2, 1000, 1000, 1000, 7, 7):
        x = torch.randn(77, length, dtype=dtype, device="cuda")
        torch._dynamo.mark_dynamic(x, (0, 1))
        assert not difference(compiled(x), normed(x))
    assert len(compiled.graphs) == 1
    assert all("TILE" in {t.name for t in k.tunables} for k in compiled.kernels.values())
    x = torch.randn(77, 40000, dtype=dtype, device="cuda")
    torch._dynamo.mark_dynamic(x, (0, 1))
    assert not difference(compiled(x), normed(x))
    assert len(compiled.graphs) == 2


def test_gradients_of_weights_are_written_in_float32() -> None:
    def made() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Linear(512, 768), torch.nn.GELU(), torch.nn.Linear(768, 384)
        ).cuda()

    plain, exact = made(), made().double()
    compiled = fusec.compile(made())
    for _ in range(3):
        x = torch.randn(64, 512, device="cuda")
        exact.zero_grad()
        exact(x.double()).square().mean().backward()
        for module, call in ((plain, plain), (compiled.function, compiled)):
            module.zero_grad(set_to_none=True)
            with torch.autocast("cuda", torch.bfloat16):
                call(x).float().square().mean().backward()
        for name, parameter in exact.named_parameters():
            truth = parameter.grad
            found = compiled.function.get_parameter(name).grad
            eager = (plain.get_parameter(name).grad - truth).abs().max()
            assert found.dtype == torch.float32
            assert (found - truth).abs().max() <= 2 * eager + 1e-3 * truth.abs().max(), name
    steps = [step for part in compiled.graphs[0].parts for step in part.state.scheduled.steps]
    targets = [step.target for step in steps if isinstance(step, Extern)]
    assert targets.count(torch.ops.aten.mm.dtype) == 2, targets


def test_attention_that_is_taken_apart() -> None:
    """As with a bias that learns; its halves are multiplied as such, forward and backward."""
    shape = (2, 8, 160, 64)
    exact = [torch.randn(shape, device="cuda").bfloat16().double() for _ in range(3)]
    exact.append(torch.randn(1, 8, 160, 160, device="cuda").bfloat16().double())
    gradient = torch.randn(shape, device="cuda").bfloat16()

    def attend(*given: torch.Tensor) -> torch.Tensor:
        q, k, v, bias = given
        return F.scaled_dot_product_attention(q, k, v, bias, scale=0.2)

    compiled = fusec.compile(attend)
    found = []
    for call, dtype in ((compiled, torch.bfloat16), (attend, torch.bfloat16), (attend, None)):
        leaves = [x.to(dtype or x.dtype).requires_grad_() for x in exact]
        with sdpa_kernel(SDPBackend.MATH):
            result = call(*leaves)
        result.backward(gradient.to(result.dtype))
        found.append([result, *(leaf.grad for leaf in leaves)])
    for got, eager, truth in zip(*found, strict=True):
        assert got.stride() == eager.stride()
        scale = truth.abs().max()
        own = (eager - truth).abs().max() / scale
        assert (got - truth).abs().max() / scale <= 1.5 * own + 1e-3
    steps = [step for part in compiled.graphs[0].parts for step in part.state.scheduled.steps]
    targets = [step.target for step in steps if isinstance(step, Extern)]
    assert targets.count(torch.ops.aten.bmm.dtype) == 2, targets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "shape"), [(32, (257, 300, 8)), (2, (16, 512, 768))])
def test_tables_of_few_rows(rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    def function(at: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(rows, shape[-1], dtype=gradient.dtype, device="cuda")
        return zeros.index_put((at,), gradient * 2, accumulate=True)

    compiled = fusec.compile(function)
    for _ in range(2):
        at = torch.randint(0, rows, shape[:-1], device="cuda")
        gradient = torch.randn(shape, device="cuda", dtype=dtype)
        got, exact = compiled(at, gradient), function(at, gradient.double())
        assert (got - exact).abs().max() <= 1e-5 * exact.abs().max() + (
            1e-3 if dtype == torch.float32 else 1e-2 * exact.abs().max()
        )
    assert not any("atomic" in kernel.source for kernel in compiled.kernels.values())


def test_layouts_that_tritons_compiler_fails_on() -> None:
    """Triton 3.6 compiles it with four warps, and not with the one that a row of 64 would have."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        highest = x.amax(1)
        weight = torch.sigmoid(highest)
        mixed = torch.lerp(weight, weight * weight, 0.25)
        return weight, mixed, torch.add(highest, mixed, alpha=0.5)

    compiled = fusec.compile(function)
    for _ in range(2):
        x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(compiled(x), function(x), atol=2e-2, rtol=2e-2)
    assert not compiled.fallbacks


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int16])
@pytest.mark.parametrize("shape", [(102, 102), (3, 5), (70, 33), (7, 300), (1, 9)])
def test_extremes_of_lanes_beyond_the_end(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    # ptxas made infinity of -infinity where a block's last lanes are never within
    x = torch.randn(shape, device="cuda").mul(100).to(dtype)

    def extremes(x: torch.Tensor) -> Any:
        pooled = F.pad(x, (1, 1), value=-3).amax(0)
        return x.amax(0), x.amin(0), x.amax(1), x.amin(1), x.clamp(min=-2).amax(0), pooled

    results = fusec.compile(extremes)(x)
    for result, expected in zip(results, extremes(x), strict=True):
        assert torch.equal(result, expected)
