"""``flex_attention`` on a CPU: kernels that have the user's functions in them, beside BLAS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fusec
from fusec.graph.attention_formulas import write_attention_out
from support.attention import MODS

Function = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def attention(name: str, queries: int, keys: int, **options: Any) -> Function:
    score, kept = MODS[name]
    mask = None
    if kept is not None:
        mask = create_block_mask(kept, None, None, queries, keys, device="cpu", BLOCK_SIZE=32)

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score, block_mask=mask, **options)

    return function


def tensors(heads: int, shared: int, queries: int, keys: int, dtype: torch.dtype) -> list[Any]:
    shapes = (2, heads, queries, 16), (2, shared, keys, 16), (2, shared, keys, 16)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def is_right(compiled: Function, function: Function, given: list[Any]) -> None:
    found, eager = compiled(*given), function(*given)
    exact = function(*(t.double() for t in given))
    for ours, theirs, truth in zip(*map(_several, (found, eager, exact)), strict=True):
        assert (ours.dtype, ours.stride()) == (theirs.dtype, theirs.stride())
        error, allowed = ((t.double() - truth).abs().max() for t in (ours, theirs))
        assert error <= 2 * allowed + 1e-6


def _several(value: Any) -> tuple[torch.Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)


def operators(compiled: fusec.CompiledFunction) -> set[str]:
    return {each.name for graph in compiled.graphs for each in graph.externs}


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODS)
def test_masks_and_scores(name: str, dtype: torch.dtype) -> None:
    function, given = attention(name, 50, 50), tensors(4, 4, 50, 50, dtype)
    compiled = fusec.compile(function)
    is_right(compiled, function, given)
    assert not any("flex_attention" in each for each in operators(compiled))
    assert compiled.kernels


def test_the_function_of_scores_is_in_a_kernel_that_is_edited_and_judged() -> None:
    function, given = attention("soft cap", 50, 50), tensors(4, 4, 50, 50, torch.float32)
    compiled = fusec.compile(function, keep_inputs=True)
    compiled(*given)
    (graph,) = compiled.graphs
    (kernel,) = (each for each in compiled.kernels.values() if "tanh" in each.source)
    source = kernel.source
    assert graph.check(kernel, source + "\n// the same\n").ok
    wrong = source.replace("20.0f", "21.0f")
    assert wrong != source
    assert "differs from eager" in graph.check(kernel, wrong).reason


def test_formulas_that_give_other_tensors_than_the_graph_says_are_not_taken() -> None:
    """One that differs is enough, whichever it is, and in whatever."""
    score, mask = (lambda s, b, h, i, j: s + s), (lambda b, h, i, j: i >= j)
    operator = torch.ops.higher_order.flex_attention

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        block_mask = (50, 50, *[None] * 8, 32, 32, mask)
        return list(operator(q, k, v, score, block_mask, 0.25, {}, (), ()))

    module = make_fx(attend, tracing_mode="fake")(*tensors(4, 4, 50, 50, torch.float32))
    (call,) = module.graph.find_nodes(op="call_function", target=operator)
    said = call.meta["val"]
    others = (
        (said[0].double(), said[1], said[2]),
        (said[0], said[1][:1], said[2]),
        (said[0], said[1], said[2].transpose(0, 1).contiguous().transpose(0, 1)),
    )
    for values, changed in (*((each, 0) for each in others), (said, 1)):
        call.meta["val"] = values
        with said[0].fake_mode:  # as AOTAutograd's compilers are called
            assert write_attention_out(module, lambda kind: False) == changed
        assert any(node.target is operator for node in module.graph.nodes) == (not changed)


def test_shared_heads_one_query_and_the_sums_of_rows() -> None:
    function = attention("alibi", 1, 70, enable_gqa=True, return_lse=True, scale=0.3)
    compiled, given = fusec.compile(function), tensors(4, 2, 1, 70, torch.float32)
    is_right(compiled, function, given)
    assert not any("flex_attention" in each for each in operators(compiled))


def test_queries_that_lie_otherwise() -> None:
    function = attention("causal", 50, 50)
    given = [
        t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors(4, 4, 50, 50, torch.float32)
    ]
    is_right(fusec.compile(function), function, given)


def test_lengths_that_change() -> None:
    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - (i - j).abs() * 0.1)

    compiled = fusec.compile(function, dynamic=True)
    for length in (40, 56, 33):
        is_right(compiled, function, tensors(2, 2, length, length, torch.float32))
    assert len(compiled.graphs) == 1
    assert not any("flex_attention" in each for each in operators(compiled))
