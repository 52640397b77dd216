"""Small programs of every kind, lowered and scheduled as for a CPU or a GPU; nothing is run."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize, vjp
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from fusec.graph.decompositions import decomposition_table
from fusec.ir.node import Recorder, recording
from fusec.lower import lower_graph
from fusec.machine import GpuFacts, MachineFacts, using
from fusec.options import Options
from fusec.schedule import Schedule, products_of, schedule_program
from support.decisions import compare_part, parts_of
from support.more_programs import MORE, PRODUCTS
from support.paths import ROOT

PINNED = re.search(r"^torch==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
IS_PINNED = PINNED is not None and torch.__version__.split("+")[0] == PINNED[1]
MACHINE = MachineFacts("Test", False, "avx2", False, 8, 32 << 20, True, gpu=GpuFacts())

Function = Callable[..., Any]
HALF, I8, I64 = torch.float16, torch.int8, torch.int64


def gradients(function: Function) -> Function:
    """Return a function of a result's gradient, and of what it is the result of."""

    def backward(gradient: torch.Tensor, *inputs: torch.Tensor) -> Any:
        return vjp(function, *inputs)[1](gradient)

    return backward


def six_readers(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.sin().cos()
    return [y + n for n in range(6)]


def upsampled(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2, mode="bilinear")


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q @ k.mT) * 0.125).softmax(-1) @ v


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Any:
    m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
    return p - m / (v.sqrt() + 1e-8), m, v


def batch_norm(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Any:
    new = x.mean((0, 2)), x.var((0, 2))
    shown = (x - new[0][:, None]) * (new[1][:, None] + 1e-5).rsqrt()
    return mean * 0.9 + new[0] * 0.1, variance * 0.9 + new[1] * 0.1, shown


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, w.shape, w, b)


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def dequantized(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x @ (w.to(x.dtype) * scale)).relu()


BIG, SMALL = (2048, 1024), (16, 32)
# name: a function, the shapes (and types) of its inputs, how many of them it updates
CASES: dict[str, tuple[Function, tuple[Any, ...], int]] = {
    "chain": (lambda x: (x.tanh() * 2 + 1).exp(), (BIG,), 0),
    "two readers": (lambda x: ((y := x.exp()) * 2, y + 1), (BIG,), 0),
    "two cheap readers": (lambda x: ((y := x + 1).sum(1), y.t() * 2), (BIG,), 0),
    "costly, read by many rows": (
        lambda x, y: x.exp().sin().tanh()[:, None] * y, ((64,), (64, 4096)), 0,
    ),
    "cheap, read by many rows": (lambda x, y: (x + 1)[:, None] * y, ((64,), (64, 4096)), 0),
    "six readers": (six_readers, (SMALL,), 0),
    "all pairs": (lambda x, y: (x.exp()[:, None] * y.exp()[None]), ((300,), (500,)), 0),
    "casts": (lambda x: (x.float() * 2).half().float().sum(1), ((*BIG, HALF),), 0),
    "transposes": (lambda x: x.t().contiguous() + x.t(), ((512, 512),), 0),
    "turned twice": (lambda x: (x.t().exp().contiguous().t() * x), (BIG,), 0),
    "channels": (lambda x: x.permute(0, 2, 3, 1).contiguous().relu(), ((8, 32, 14, 14),), 0),
    "reshaped": (
        lambda x: x.view(64, 32, 1024).exp().permute(1, 0, 2).reshape(2048, 1024) + x, (BIG,), 0,
    ),
    "joined": (lambda x, y: torch.cat([x.relu(), y * 2], 1).sigmoid(), (SMALL, SMALL), 0),
    "padded": (lambda x: F.pad(x * 2, (3, 2)).exp(), (SMALL,), 0),
    "parts": (lambda x: x[:, :512] * x[:, 512:].sigmoid(), (BIG,), 0),
    "stacked": (lambda x, y: torch.stack([x, y], -1).exp(), (SMALL, SMALL), 0),
    "rows": (lambda x: x.softmax(-1), (BIG,), 0),
    "columns": (lambda x: x.softmax(0), (BIG,), 0),
    "rows, then columns": (lambda x: (x / x.exp().sum(0)).sum(1), (BIG,), 0),
    "rows and columns": (lambda x: (x.sum(0), x.sum(1)), (BIG,), 0),
    "siblings": (lambda x: (x.sum(1), x.amax(1), x - x.mean(1, keepdim=True)), (BIG,), 0),
    "a square both ways": (lambda x: (x.sum(0) + x.sum(1), x.amax(0)), ((512, 512),), 0),
    "all": (lambda x: (x.sum(), (x * x).mean()), (BIG,), 0),
    "positions": (lambda x: (x.argmax(1), x.amax(1)), (BIG,), 0),
    "variance": (lambda x: torch.var_mean(x, 1), (BIG,), 0),
    "running": (lambda x: x.exp().cumsum(1) * 2, (BIG,), 0),
    "running, then summed": (lambda x: x.cumsum(1).sum(1), (BIG,), 0),
    "layer norm": (layer_norm, (BIG, (1024,), (1024,)), 0),
    "layer norm, backward": (gradients(layer_norm), (BIG, BIG, (1024,), (1024,)), 0),
    "rms norm of halves, backward": (
        gradients(rms_norm), ((*BIG, HALF), (*BIG, HALF), (1024, HALF)), 0,
    ),
    "gelu and bias, backward": (
        gradients(lambda x, b: F.gelu(x + b)), (BIG, BIG, (1024,)), 0,
    ),
    "softmax, backward": (gradients(lambda x: x.softmax(-1)), (BIG, BIG), 0),
    "group norm": (lambda x: F.group_norm(x, 4).relu(), ((4, 32, 28, 28),), 0),
    "batch norm": (batch_norm, ((8, 16, 900), (16,), (16,)), 2),
    "cross entropy": (F.cross_entropy, ((256, 1000), (256, I64)), 0),
    "one hot": (lambda x, t: (F.one_hot(t, 50) * x).sum(1), ((256, 50), (256, I64)), 0),
    "gathered": (F.embedding, ((64, I64), (1000, 128)), 0),
    "gathered and normed": (
        lambda t, w, g: rms_norm(F.embedding(t, w), g), ((64, I64), (1000, 128), (128,)), 0,
    ),
    "scattered": (
        lambda x, t, y: x.index_add(0, t, y * 2).relu(), ((50, 64), (200, I64), (200, 64)), 0,
    ),
    "windows": (lambda x: F.max_pool2d(x.relu(), 3, 2), ((4, 16, 33, 33),), 0),
    "averages of windows": (lambda x: F.avg_pool2d(x.exp(), 2) * 2, ((4, 16, 32, 32),), 0),
    "upsampled": (lambda x: upsampled(x.relu()), ((2, 8, 16, 16),), 0),
    "updated": (lambda x, y: (x * 0.9 + y, y * 2), (BIG, BIG), 1),
    "updated by its neighbors": (lambda x: (x + x.roll(1, 0), x * 2), (BIG,), 1),
    "adam": (adam, (BIG, BIG, BIG, BIG), 1),
    "product": (lambda x, w: x @ w, ((64, 128), (128, 96)), 0),
    "product and more": (
        lambda x, w, b, y: F.gelu(x @ w + b) + y, ((64, 128), (128, 96), (96,), (64, 96)), 0,
    ),
    "product, softmax": (lambda x, w: (x @ w).softmax(-1), ((64, 128), (128, 96)), 0),
    "product, columns": (lambda x, w: (x @ w).sum(0), ((64, 128), (128, 96)), 0),
    "product of what is cheap": (lambda x, w: (x * 2 + 1) @ w, ((64, 128), (128, 96)), 0),
    "product of what is costly": (lambda x, w: x.sin().exp().tanh() @ w, ((64, 128), (128, 96)), 0),
    "product of bytes": (
        dequantized, ((8, 512, HALF), (512, 1024, I8), (1024, HALF)), 0,
    ),
    "product of a vector": (lambda x, w: (w @ x).relu(), ((128,), (96, 128)), 0),
    "products": (lambda x, w, v: (x @ w).relu() @ v, ((64, 128), (128, 96), (96, 64)), 0),
    "batches": (attention, ((2, 4, 64, 64),) * 3, 0),
    "halves multiplied": (
        lambda x, w: (x @ w).float().softmax(-1).half(), ((64, 128, HALF), (128, 256, HALF)), 0,
    ),
    "rounded weights": (
        lambda x, *w: [x @ each.half() for each in w],
        ((64, 128, HALF), *((128, 4096),) * 3), 0,
    ),
    "added where a product lies": (
        lambda x, w, y: (x @ w + y * 2, y.exp()), ((512, 512), (512, 512), (512, 512)), 0,
    ),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1).relu() * 2, ((2, 8, 32, 32), (16, 8, 3, 3)), 0,
    ),
    "nine inputs": (lambda *x: torch.stack([y.sin() for y in x]).sum(0), (BIG,) * 9, 0),
    "nine inputs, added": (lambda *x: sum(x), (BIG,) * 9, 0),
    "running, costly": (lambda x: x.exp().cumsum(1).exp() + x.sin(), (BIG,), 0),
    "running twice": (lambda x: x.cumsum(1).cumsum(1), (BIG,), 0),
    "running down": (lambda x: x.cumsum(0) * 2, (BIG,), 0),
    "running extremes": (lambda x: x.cummax(1), (BIG,), 0),
    "running sums of exponentials": (lambda x: x.logcumsumexp(1), (BIG,), 0),
    "halves": (lambda x: (x * 2).exp() + x.t().contiguous().t(), ((*BIG, HALF),), 0),
    "halves, rows": (lambda x: x.softmax(-1), ((*BIG, HALF),), 0),
    "halves, windows": (lambda x: F.max_pool2d(x, 3, 2), ((4, 16, 33, 33, HALF),), 0),
    "rows of eight": (lambda x: x.view(-1, 8).softmax(-1), (BIG,), 0),
    "columns of eight": (lambda x: x.sum(0), ((8, 65536),), 0),
    "positions down": (lambda x: x.argmax(0), (BIG,), 0),
    "a long vector": (lambda x: (x.sum(), x.amax(), x.argmin()), ((1 << 22,),), 0),
    "other reductions": (lambda x: ((x > 0).any(1), x.prod(1), (x < 9).all(0)), (BIG,), 0),
    "integers": (lambda n: ((n // 3 + n % 5) << 1).sum(1), ((*BIG, I64),), 0),
    "bytes": (lambda n: n.amax(1).float() + n.sum(1), ((*BIG, torch.uint8),), 0),
    "doubles": (lambda x: F.layer_norm(x.double(), (1024,)), (BIG,), 0),
    "flipped": (lambda x: x.flip(1) + x.roll(3, 1), (BIG,), 0),
    "angles of the last loop": (lambda x: x * torch.arange(1024).cos(), (BIG,), 0),
    "few angles": (lambda x: x.sin() * x.cos(), (SMALL,), 0),
    "nearest": (lambda x: F.interpolate(x * 2, scale_factor=2).exp(), ((2, 8, 16, 16),), 0),
    "triangle": (lambda x: x.tril().exp(), ((512, 512),), 0),
    "written somewhere": (
        lambda x, t, y: x.scatter(1, t, y), ((64, 128), (64, 128, I64), (64, 128)), 0,
    ),
    "counted": (lambda t: F.one_hot(t, 50).sum(0), ((1000, I64),), 0),
    "rows chosen": (lambda x, t: x[t, :9] + 1, (BIG, (4, I64)), 0),
    "divided by what may be zero": (lambda n, m: n // m, ((64, I64), (64, I64)), 0),
    "smooth loss, backward": (
        gradients(lambda x, t: F.smooth_l1_loss(x, t).view(1)), ((1,), BIG, BIG), 0,
    ),
    "empty": (lambda x: (x * 2, x.sum(0)), ((0, 5),), 0),
    "one": (lambda x: (x.sum(1), x.sum(0), x * 2), ((1, 1),), 0),
    "few rows": (lambda x: x.view(-1, 3).softmax(-1), ((300, 3),), 0),
    "many results": (lambda *x: [y.exp() * n for n, y in enumerate(x)], (SMALL,) * 20, 0),
    "a mean of a mean": (lambda x: (x - x.mean()).pow(2).mean(), (BIG,), 0),
    "random": (lambda x: F.dropout(x, 0.3, True) * 2, (BIG,), 0),
    **PRODUCTS,
    **MORE,
}  # fmt: skip


def fake(mode: FakeTensorMode, sizes: list[int | str], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without memory; a size such as ``s40`` may change, and is 40 now."""
    dynamic = [DimDynamic.DUCK if isinstance(n, str) else DimDynamic.STATIC for n in sizes]
    shape = [int(n[1:]) if isinstance(n, str) else n for n in sizes]
    if DimDynamic.DUCK not in dynamic:
        with mode:
            return torch.empty(shape, dtype=dtype)
    context = StatelessSymbolicContext(dynamic_sizes=dynamic)
    return mode.from_tensor(torch.empty(shape, dtype=dtype), symbolic_context=context)


@cache
def traced(name: str) -> fx.GraphModule:
    function, shapes, _ = CASES[name]

    def flat(*given: torch.Tensor) -> list[Any]:
        made = function(*given)
        return list(made) if isinstance(made, (tuple, list)) else [made]

    mode = FakeTensorMode(shape_env=ShapeEnv())
    inputs = []
    for shape in shapes:
        *sizes, dtype = shape if isinstance(shape[-1], torch.dtype) else (*shape, torch.float32)
        inputs.append(fake(mode, sizes, dtype))
    with mode:
        return make_fx(functionalize(flat), decomposition_table=decomposition_table())(*inputs)


@cache
def trace(name: str) -> str:
    """Return a digest of a program's graph."""
    graph = traced(name).graph
    values = [node.meta.get("val") for node in graph.nodes]
    of = [(v.shape, v.stride(), v.dtype) for v in values if isinstance(v, torch.Tensor)]
    return hashlib.sha256(f"{graph} {of}".encode()).hexdigest()[:8]


def compare_program(name: str, case: str, lines: Iterable[str]) -> None:
    """Compare what is made of a program with its part of a golden file.

    Another torch than the pinned one is excused where it takes operators apart in another way.
    """
    seen = f"traced as {trace(case)}"
    if not IS_PINNED and parts_of(name).get(case, [""])[0] != seen:
        pytest.skip("another torch takes operators apart in another way")
    compare_part(name, case, [seen, *lines])


@cache
def _scheduled(name: str, device: str) -> tuple[Schedule, Recorder]:
    options = Options(target="triton" if device == "cuda" else "cpp")
    with recording(Recorder()) as recorder:
        program = lower_graph(traced(name), recorder=recorder, abilities=options.abilities)
        # fake tensors on a GPU cannot be traced without one
        moved = {n: replace(b, device=torch.device(device)) for n, b in program.buffers.items()}
        program = replace(program, buffers=moved)
        products = products_of(program) if device == "cuda" else ()
        updated = program.inputs[: CASES[name][2]]
        return schedule_program(program, None, products, updated), recorder


@contextmanager
def scheduled(name: str, device: str) -> Iterator[Schedule]:
    """Schedule a program for a device; within the block its values can be gone on with."""
    with using(MACHINE):
        found, recorder = _scheduled(name, device)
        with recording(recorder):
            yield found
