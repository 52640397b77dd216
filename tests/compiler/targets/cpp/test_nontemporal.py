"""Results written past the caches: which ones, and that every element arrives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.targets.cpp.plan import choices
from support.compare import difference

CALL = "stream<LINE>("


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a megabyte counts as larger than the caches."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setattr(choices, "last_cache", lambda: 1 << 20)
    monkeypatch.setattr(choices, "can_stream", lambda: True)
    torch._dynamo.reset()
    torch.manual_seed(0)


def kernel_of(compiled: fusec.CompiledFunction) -> fusec.Kernel:
    (graph,) = compiled.graphs
    (kernel,) = graph.kernels
    return kernel


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


CASES: dict[str, tuple[Callable[..., object], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "one loop": (lambda x: x * 2 + 1, lambda: (torch.randn(512, 384),)),
    "left over": (lambda x: x * 2 + 1, lambda: (torch.randn(262147),)),
    "rows": (lambda x: F.layer_norm(x, (512,)), lambda: (torch.randn(512, 512),)),
    "rows left over": (lambda x: F.layer_norm(x, (528,)), lambda: (torch.randn(512, 528),)),
    "bfloat16": (lambda x: x * 2 + 1, lambda: (torch.randn(1024, 512).bfloat16(),)),
    "float16": (lambda x: x + 1.5, lambda: (torch.randn(1024, 512).half(),)),
    "float64": (lambda x: x * x + 1, lambda: (torch.randn(512, 512).double(),)),
    "bytes": (lambda x: x + 1, lambda: (torch.randint(0, 99, (2048, 512), dtype=torch.uint8),)),
    "two results": (lambda x, y: (x + y, x - y), lambda: tuple(torch.randn(2, 512, 512))),
    "rows of bytes": (quantized, lambda: (torch.randn(1024, 512),)),
    "a scan": (lambda x: x.cumsum(-1), lambda: (torch.randn(512, 512),)),
    "booleans": (lambda x: x > 0, lambda: (torch.randn(1024, 512),)),
    "a name that is taken": (lambda stream: stream + 1, lambda: (torch.randn(512, 512),)),
    "strided input": (lambda x: x * 2, lambda: (torch.randn(512, 1024)[:, ::2],)),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", CASES)
def test_every_element_arrives(name: str) -> None:
    function, make = CASES[name]
    compiled = fusec.compile(function, keep_inputs=True)
    for _ in range(3):
        inputs = make()
        results, expected = compiled(*inputs), function(*inputs)
        together = [r if isinstance(r, tuple) else (r,) for r in (results, expected)]
        assert not difference(*together)
    text = kernel_of(compiled).generated.text
    assert CALL in text
    assert "end_stream();" in text
    assert compiled.graphs[0].verify().ok


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", ["one loop", "rows", "bfloat16", "bytes"])
@pytest.mark.parametrize("offset", [0, 1, 4, 16])
@pytest.mark.parametrize("vectors", ["__AVX512F__", "__AVX__", "__SSE2__", "none"])
def test_memory_that_begins_anywhere(name: str, offset: int, vectors: str) -> None:
    """Results within a larger tensor, each kind of vector; what lies beside stays as it is."""
    function, make = CASES[name]
    compiled = fusec.compile(function)
    inputs = make()
    expected = compiled(*inputs)
    kernel = kernel_of(compiled)
    text = kernel.generated.text
    widths = ["__AVX512F__", "__AVX__"]
    tail = text
    for width in widths if vectors not in widths else widths[: widths.index(vectors)]:
        tail = tail.replace(f"defined({width})", "0")
    if vectors == "none":
        tail = tail.replace("defined(__x86_64__)", "0")
    run = compiled.graphs[0].build(kernel, tail)
    around = torch.full((expected.numel() + 64,), 77).to(expected.dtype)
    result = around[offset : offset + expected.numel()].view(expected.shape)
    outputs = [a for a in kernel.signature.arguments if a.role == "out"]
    memory = [
        result if a is outputs[0] else torch.empty([int(str(s)) for s in a.shape], dtype=a.dtype)
        for a in outputs
    ]
    run([*inputs, *memory], [])
    assert torch.equal(result, expected)
    beside = [*around[:offset], *around[offset + expected.numel() :]]
    assert all(value == 77 for value in beside)


KEPT: dict[str, tuple[Callable[..., object], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "small": (lambda x: x * 2, lambda: (torch.randn(256, 384),)),
    "mostly arithmetic": (lambda x: x.tanh().sigmoid(), lambda: (torch.randn(512, 512),)),
    "read as well": (lambda x: x.mul_(2), lambda: (torch.randn(512, 512),)),
    "a small part": (lambda x: x.sum(-1), lambda: (torch.randn(1024, 512),)),
    "rows begin anywhere": (lambda x: F.layer_norm(x, (513,)), lambda: (torch.randn(512, 513),)),
    "short rows": (lambda x: F.layer_norm(x, (128,)), lambda: (torch.randn(4096, 128),)),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", KEPT)
def test_what_goes_through_the_caches(name: str) -> None:
    function, make = KEPT[name]
    compiled = fusec.compile(function)
    inputs = make()
    expected = function(*[x.clone() for x in inputs])
    assert not difference((compiled(*inputs),), (expected,))
    assert CALL not in kernel_of(compiled).generated.text


def test_unknown_sizes_and_processors_without(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(512, 512)
    dynamic = fusec.compile(lambda x: x * 2, dynamic=True)
    dynamic(x)
    assert CALL not in kernel_of(dynamic).generated.text
    monkeypatch.setattr(choices, "can_stream", lambda: False)
    compiled = fusec.compile(lambda x: x * 2)
    compiled(x)
    assert CALL not in kernel_of(compiled).generated.text
