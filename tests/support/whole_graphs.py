"""Small graphs of every kind, as the passes over graphs meet them; nothing is run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_map

from fusec.graph.decompositions import decomposition_table
from fusec.graph.facts.half_speed import HalfSpeed
from fusec.graph.pipeline import GraphForm, Subject, run_passes
from fusec.machine import using
from fusec.options import Options
from support.whole_programs import MACHINE

aten = torch.ops.aten
F16, BF16, F32, I64 = torch.float16, torch.bfloat16, torch.float32, torch.int64
Tensor = torch.Tensor
FAST, SLOW = HalfSpeed(0.01, 0.02, 0.4), HalfSpeed(0.04, 0.01, 0.4)
AMD = replace(MACHINE, amd=True, isa="avx512")


@dataclass(frozen=True)
class Case:
    """A function and where it is traced.

    Attributes:
        function: Of tensors.
        shapes: Theirs; a type at the end is not float32.
        gradients: Whether it is followed by the gradients of its floating-point inputs.
        device: Where the tensors are said to be.
        speed: Of products in half precision on the CPU.
        amd: Whether the processor is an EPYC.
        options: Of the compilation.
    """

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    gradients: bool = False
    device: str = "cpu"
    speed: HalfSpeed = FAST
    amd: bool = False
    options: tuple[tuple[str, Any], ...] = ()


on_gpu = partial(Case, device="cuda")
training = partial(Case, gradients=True)
gpu_training = partial(Case, gradients=True, device="cuda")


def flat(made: object) -> list[Tensor]:
    return list(made) if isinstance(made, (tuple, list)) else [made]  # type: ignore[list-item]


def traced(case: Case, mode: FakeTensorMode) -> tuple[fx.GraphModule, int]:
    """Return a case's graph, and how many of its results are not gradients."""

    def joint(primals: Sequence[Tensor], tangents: Sequence[Tensor]) -> list[Tensor]:
        made = flat(case.function(*primals))
        wanted = [each for each in primals if each.requires_grad]
        differing = [each for each in made if each.requires_grad]
        return [*made, *torch.autograd.grad(differing, wanted, tangents)]

    # autograd asks for a GPU's streams, where there is none
    device = "cpu" if case.gradients else case.device
    with mode:
        given = []
        for shape in case.shapes:
            *sizes, dtype = shape if isinstance(shape[-1], torch.dtype) else (*shape, F32)
            given.append(torch.empty(sizes, dtype=dtype, device=device))
        table = decomposition_table()
        if not case.gradients:
            function = functionalize(lambda *x: flat(case.function(*x)))
            return make_fx(function, decomposition_table=table)(*given), 0
        for each in given:
            each.requires_grad_(each.is_floating_point())
        results = flat(case.function(*given))
        tangents = [torch.empty_like(each) for each in results if each.requires_grad]
        module = make_fx(joint, decomposition_table=table)(given, tangents)
    if device != case.device:
        move(module, mode, case.device)
    return module, len(results)


def move(module: fx.GraphModule, mode: FakeTensorMode, device: str) -> None:
    """Say that all tensors of a graph are somewhere else."""

    def moved(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        with mode:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=device
            )

    for node in module.graph.nodes:
        node.meta["val"] = tree_map(moved, node.meta.get("val"))
        if "device" in node.kwargs:
            node.update_kwarg("device", torch.device(device))


def told(node: fx.Node) -> str:
    """Return a node in a line: what it is, of what, and what comes of it."""

    def one(value: object) -> str:
        if isinstance(value, Tensor):
            lies = "" if value.is_contiguous() else f" by {list(value.stride())}"
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{lies}"
        return f"[{', '.join(map(one, value))}]" if isinstance(value, (list, tuple)) else str(value)

    target = node.op
    if node.op == "call_function":
        is_overload = isinstance(node.target, torch._ops.OpOverload)
        target = str(node.target) if is_overload else node.target.__name__  # type: ignore[union-attr]
    named = "".join(f", {k}={v}" for k, v in node.kwargs.items())
    line = f"{node.name} = {target.removeprefix('aten.')}({', '.join(map(str, node.args))}{named})"
    marks = sorted(
        str(key) for key in node.meta if isinstance(key, str) and key.startswith("fusec")
    )
    return " ".join([line, one(node.meta.get("val")), *marks]).removesuffix(" None")


def told_of(name: str) -> Iterable[str]:
    """Yield how torch traces a case, which passes find something, and the graph if it changes."""
    case = CASES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fusec.graph.choices.half_speed", lambda dtype: case.speed)
        patch.setattr(torch, "get_num_threads", lambda: 2)
        machine = AMD if case.amd else MACHINE
        options = Options(machine=machine, **dict(case.options))
        mode = FakeTensorMode()
        with using(machine), tracing(TracingContext(mode)):
            module, results = traced(case, mode)
            seen = "\n".join(map(told, module.graph.nodes))
            yield f"traced as {hashlib.sha256(seen.encode()).hexdigest()[:8]}"
            subject = Subject(module, options, results)
            forms = [GraphForm.JOINT if case.gradients else GraphForm.INFERENCE, GraphForm.PART]
            for form in forms:
                did = [run for run in run_passes(form, subject) if run.changes]
                # What passes have changed is run where nobody compiles it, as it is now.
                code = subject.module.graph.python_code("self").src
                assert subject.module.code == code, form
                yield f"{form.value}: {', '.join(f'{run.name} {run.changes}' for run in did)}"
    after = list(map(told, subject.module.graph.nodes))
    if "\n".join(after) != seen:
        yield from after


def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.linear(x, w, b)


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, w.shape, w, b)


def rms(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def mlp(x: Tensor, w: Tensor, b: Tensor, v: Tensor, c: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w, b)), v, c)


def block(x: Tensor, g: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return x + F.linear(F.silu(F.linear(rms(x, g), w)), v)


def convolved(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, padding=1).mean((2, 3))


def residual(x: Tensor, w: Tensor, g: Tensor, b: Tensor) -> Tensor:
    y = F.conv2d(x, w, padding=1)
    return F.relu(F.batch_norm(y, None, None, g, b, True) + x)


def separable(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.conv2d(F.relu(F.conv2d(x, w, padding=1, groups=x.shape[1])), v)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q @ k.mT) * 0.125).softmax(-1) @ v


def taken_apart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return aten._scaled_dot_product_attention_math(q, k, v, None, 0.0, False, None, scale=0.1)[0]


def tied(t: Tensor, w: Tensor) -> Tensor:
    return F.embedding(t, w).relu() @ w.t()


def compared(x: Tensor) -> Any:
    top = x.exp().amax(1, keepdim=True)
    return (x.exp() == top), (x.exp() == x.exp().amin(1, keepdim=True)), top


def random(x: Tensor) -> Any:
    more = torch.rand(4, 5, device=x.device), torch.randn_like(x), torch.randint_like(x, 3, 9)
    return F.dropout(x, 0.25, True), *more, torch.bernoulli(x, 0.5), x.uniform_(2, 3), x.normal_()


def twice(x: Tensor, y: Tensor) -> Any:
    view = x.view(-1).exp()
    return x.exp() + y, y + x.exp(), view, x.exp().sum(1), torch.rand_like(x), torch.rand_like(x)


def written(x: Tensor, y: Tensor) -> Any:
    x.copy_(x * 2 + y)
    return x, y.exp()


def in_lists(x: Tensor, y: Tensor, n: Tensor) -> Any:
    more = torch._foreach_addcmul([x, y], [y, x], [x, x], n)
    return [*torch._foreach_add([x, y], 2), *more, *torch._foreach_maximum([x, y], 1)]


def under_autocast(function: Callable[..., Any], device: str, dtype: torch.dtype) -> Any:
    def inside(*given: Tensor) -> Any:
        with torch.autocast(device, dtype):
            return function(*given)

    return inside


MLP = ((32, 256), (512, 256), (512,), (256, 512), (256,))
BLOCK = ((64, 256), (256,), (512, 256), (256, 512))


def typed(shapes: Iterable[tuple[int, ...]], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple((*shape, dtype) for shape in shapes)


CASES: dict[str, Case] = {
    "random": Case(random, ((4, 5),)),
    "eager's random": Case(random, ((4, 5),), options=(("eager_random", True),)),
    "nothing": Case(lambda x: x + 1, ((4, 5),)),
    "common": Case(twice, ((8, 16), (8, 16))),
    "compared": Case(compared, ((8, 16),)),
    "written": Case(written, ((8, 16), (8, 16))),
    "bias": Case(lambda x, w, b: linear(x, w, b).relu(), ((32, 64), (48, 64), (48,))),
    "bias, returned": Case(linear, ((32, 64), (48, 64), (48,))),
    "bias on a gpu": on_gpu(lambda x, w, b: linear(x, w, b).relu(), ((32, 64), (48, 64), (48,))),
    "bias, scaled": Case(
        lambda x, w, b: torch.addmm(b, x, w, alpha=2).exp(), ((32, 64), (64, 48), (48,))
    ),
    "a matrix added": Case(
        lambda x, w, b: torch.addmm(b, x, w, beta=0.5).exp(), ((32, 64), (64, 48), (32, 48))
    ),
    "batches added": Case(
        lambda x, w, b: torch.baddbmm(b, x, w).exp(), ((4, 32, 64), (4, 64, 48), (4, 1, 48))
    ),
    "bias of windows on a gpu": on_gpu(
        lambda x, w, b: F.conv2d(x, w, b).relu(), ((2, 8, 12, 12), (16, 8, 3, 3), (16,))
    ),
    "bias of windows": Case(
        lambda x, w, b: F.conv2d(x, w, b).relu(), ((2, 8, 12, 12), (16, 8, 3, 3), (16,))
    ),
    "odd rows": on_gpu(
        lambda x, w: (x @ w).relu(), ((2048, 1024, F16), (1024, 3001, F16))
    ),
    "odd rows, returned": on_gpu(lambda x, w: x @ w, ((2048, 1024, F16), (1024, 3001, F16))),
    "odd rows, turned": on_gpu(
        lambda x, w: (x @ w.t()).exp(), ((2048, 1021, BF16), (3008, 1021, BF16))
    ),
    "odd rows of batches": on_gpu(
        lambda x, w: (x @ w).relu(), ((16, 512, 515, F16), (16, 515, 512, F16))
    ),
    "odd rows and a bias": on_gpu(
        lambda x, w, b: linear(x, w, b).relu(), ((2048, 1024, F16), (3001, 1024, F16), (3001, F16))
    ),
    "odd rows that do not pay": on_gpu(lambda x, w: x @ w, ((16, 24, F16), (24, 13, F16))),
    "odd rows of float32": on_gpu(lambda x, w: x @ w, ((2048, 1024), (1024, 3001))),
    "for oneDNN": Case(mlp, MLP, amd=True),
    "for MKL": Case(mlp, MLP),
    "for oneDNN, turned": Case(
        lambda x, w: (x.t() @ w, x.t() @ w.t()), ((512, 128), (512, 512)), amd=True
    ),
    "few rows": Case(lambda x, w: x @ w, ((7, 512), (512, 512)), amd=True),
    "small": Case(lambda x, w: x @ w, ((8, 16), (16, 16)), amd=True),
    "wide results": on_gpu(
        lambda x, w: (x @ w).float(), ((128, 256, F16), (256, 128, F16))
    ),
    "wide results, read as halves, too": on_gpu(
        lambda x, w: ((y := x @ w).float(), y), ((128, 256, F16), (256, 128, F16))
    ),
    "wide results, turned": on_gpu(
        lambda x, w: (x @ w).t().float(), ((128, 256, F16), (256, 128, F16))
    ),
    "wide views of results": on_gpu(
        lambda x, w: (x @ w).view(16, 8, 128).float(), ((128, 256, BF16), (256, 128, BF16))
    ),
    "wide results of batches": on_gpu(
        lambda x, w: (x @ w).float(), ((4, 128, 256, BF16), (4, 256, 128, BF16))
    ),
    "widened first": on_gpu(
        lambda x, w: x.float() @ w.float(), ((128, 256, F16), (256, 128, F16))
    ),
    "one widened": on_gpu(lambda x, w: x.float() @ w, ((128, 256, F16), (256, 128))),
    "widened, scaled and turned": on_gpu(
        lambda x, w: (x.float() * 0.5) @ (w.float().t() * 3), ((128, 256, BF16), (128, 256, BF16))
    ),
    "attention in halves": on_gpu(taken_apart, ((2, 6, 128, 128, F16),) * 3),
    "attention in float32": Case(taken_apart, ((2, 4, 64, 32),) * 3),
    "slow halves": Case(mlp, typed(MLP, BF16), speed=SLOW),
    "slow halves, rounded": Case(
        mlp, typed(MLP, BF16), speed=SLOW, options=(("emulate_rounding", True),)
    ),
    "fast halves": Case(mlp, typed(MLP, BF16)),
    "slow halves of batches": Case(attended, ((2, 4, 64, 32, F16),) * 3, speed=SLOW),
    "slow halves, one row": Case(
        lambda x, w: x @ w, ((1, 256, BF16), (256, 256, BF16)), speed=SLOW
    ),
    "slow halves, windows": Case(
        convolved, ((2, 8, 16, 16, BF16), (16, 8, 3, 3, BF16), (8, 16, 3, 3, BF16)), speed=SLOW
    ),
    "slow attention": Case(
        F.scaled_dot_product_attention, ((2, 4, 64, 32, BF16),) * 3, speed=SLOW
    ),
    "channels inward": Case(convolved, ((2, 16, 32, 32), (32, 16, 3, 3), (16, 32, 3, 3))),
    "channels inward on a gpu": on_gpu(
        convolved, ((2, 16, 32, 32, F16), (32, 16, 3, 3, F16), (16, 32, 3, 3, F16))
    ),
    "channels of float32 on a gpu": on_gpu(
        convolved, ((2, 16, 32, 32), (32, 16, 3, 3), (16, 32, 3, 3))
    ),
    "single pixels": Case(
        lambda x, w, v: F.conv2d(F.conv2d(x, w, padding=1), v).relu().mean((2, 3)),
        ((2, 128, 32, 32), (128, 128, 3, 3), (256, 128, 1, 1)),
    ),
    "single pixels on an EPYC": Case(
        lambda x, w, v: F.conv2d(F.conv2d(x, w, padding=1), v).relu().mean((2, 3)),
        ((2, 128, 32, 32), (128, 128, 3, 3), (256, 128, 1, 1)), amd=True,
    ),
    "each channel by itself": on_gpu(
        separable, ((4, 64, 28, 28, F16), (64, 1, 3, 3, F16), (128, 64, 1, 1, F16))
    ),
    "compared with a number": Case(
        lambda x: ((y := x.exp()) == 2, y == y.amax(), x.eq(x.amax()), x.amax() == x.abs().amax()),
        ((8, 16),),
    ),
    "channels inward, then as they were": Case(
        lambda x, w, v: (
            y := F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, padding=1),
            (y * 2).cumsum(1), y.sort(2)[0], y.flatten(1).amax(1), y[:, 3].exp(),
        )[1:],
        ((2, 16, 32, 32), (32, 16, 3, 3), (16, 32, 3, 3)),
    ),
    "pooled, then convolved": Case(
        lambda x, w: F.conv2d(F.max_pool2d(F.conv2d(x, w, padding=1), 2), w).amax((2, 3)),
        ((2, 16, 32, 32), (16, 16, 3, 3)),
    ),
    "odd rows, too few": on_gpu(lambda x, w: (x @ w).relu(), ((64, 1024, F16), (1024, 3, F16))),
    "odd rows of few": on_gpu(lambda x, w: (x @ w).relu(), ((2, 100, F16), (100, 3001, F16))),
    "joined rows": training(
        lambda t, u, w: F.embedding(t, w).relu() @ F.embedding(u, w).t(),
        ((64, I64), (16, I64), (100, 32)),
    ),
    "lists": Case(
        in_lists, ((4, 5), (4, 5), (2,)),
    ),
    "in Triton's interpreter": Case(
        lambda x, w, v: separable(x, w, v).relu(),
        ((4, 64, 28, 28), (64, 1, 3, 3), (128, 64, 1, 1)),
        options=(("target", "triton"),),
    ),
    "separable, training, interpreted": training(
        separable, ((4, 64, 28, 28, F16), (64, 1, 3, 3, F16), (128, 64, 1, 1, F16)),
        options=(("target", "triton"),),
    ),
    "odd rows for kernels": on_gpu(
        lambda x, w: x @ w, ((2048, 1024, F16), (1024, 3001, F16)), options=(("matmul", "auto"),)
    ),
    "odd rows for BLAS": on_gpu(
        lambda x, w: x @ w, ((2048, 1024, F16), (1024, 3001, F16)), options=(("matmul", "extern"),)
    ),
    "odd rows, two of them": on_gpu(
        lambda x, w: (y := x @ w, (y @ w.t()).relu()), ((2048, 1024, F16), (1024, 3001, F16)),
    ),
    "training": training(mlp, MLP),
    "training on an EPYC": training(mlp, MLP, amd=True),
    "training on a gpu": gpu_training(block, BLOCK),
    "training in halves": gpu_training(block, typed(BLOCK, F16)),
    "training in slow halves": training(block, typed(BLOCK, BF16), speed=SLOW),
    "training under autocast": training(under_autocast(mlp, "cpu", BF16), MLP, speed=SLOW),
    "training with norms of halves": training(
        lambda x, w: rms(F.gelu(x), w), ((64, 256, BF16), (256, BF16))
    ),
    "cross entropy": training(
        lambda x, w, t: F.cross_entropy(x @ w, t), ((64, 32), (32, 100), (64, I64))
    ),
    "cross entropy of halves": gpu_training(
        lambda x, w, t: F.cross_entropy((x @ w).float(), t),
        ((64, 32, F16), (32, 101, F16), (64, I64)),
    ),
    "log-softmax": training(lambda x: x.log_softmax(1), ((64, 100),)),
    "an embedding": training(lambda t, w: F.embedding(t, w).relu(), ((64, I64), (100, 32))),
    "a tied embedding": training(tied, ((64, I64), (100, 32))),
    "convolutions, training": training(
        convolved, ((2, 16, 32, 32), (32, 16, 3, 3), (16, 32, 3, 3))
    ),
    "residual": training(residual, ((4, 16, 28, 28), (16, 16, 3, 3), (16,), (16,))),
    "residual on a gpu": gpu_training(
        residual, ((4, 16, 28, 28, F16), (16, 16, 3, 3, F16), (16,), (16,))
    ),
    "separable, training": gpu_training(
        separable, ((4, 64, 28, 28, F16), (64, 1, 3, 3, F16), (128, 64, 1, 1, F16))
    ),
    "dropout, training": training(
        lambda x, w: torch.native_dropout(F.relu(x @ w), 0.1, True)[0], ((64, 32), (32, 48))
    ),
    "attention, training": training(attended, ((2, 4, 64, 32),) * 3),
    "activations": training(
        lambda x, w, b: F.silu(norm(F.gelu(x) * 2, w, b)).tanh(), ((64, 256), (256,), (256,))
    ),
}  # fmt: skip
