"""Calls that eager refuses for the types of their tensors, and tracing does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.graph.refusals.operand_types import refuses_operands
from support.captured import call_of

f16, f32, f64 = torch.float16, torch.float32, torch.float64
i8, i32, i64, u8 = torch.int8, torch.int32, torch.int64, torch.uint8


def ones(*shape: int, dtype: torch.dtype = f32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def places(*values: int, dtype: torch.dtype = i64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


Case = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]
REFUSED: dict[str, Case] = {
    "index_copy, too few dimensions": (
        lambda x, i, y: x.index_copy(0, i, y),
        (ones(4, 3), places(0, 2), ones(2)),
    ),
    "index_copy, another slice": (
        lambda x, i, y: x.index_copy(0, i, y),
        (ones(4, 3), places(0, 2), ones(2, 4)),
    ),
    "index_copy, too many rows": (
        lambda x, i, y: x.clone().index_copy_(0, i, y),
        (ones(4, 3), places(0, 2), ones(3, 3)),
    ),
    "index_copy, places of 32 bits": (
        lambda x, i, y: x.index_copy(0, i, y),
        (ones(4, 3), places(0, 2, dtype=i32), ones(2, 3)),
    ),
    "index_add, another type": (
        lambda x, i, y: x.index_add(0, i, y),
        (ones(4, 3), places(0, 2), ones(2, 3, dtype=f64)),
    ),
    "index_add, a number": (
        lambda x, i, y: x.index_add(0, i, y),
        (ones(4, 3), places(0, 2), ones()),
    ),
    "index_reduce, fractions as places": (
        lambda x, i, y: x.index_reduce(0, i, y, "amax"),
        (ones(4, 3), ones(2), ones(2, 3)),
    ),
    "index_fill, fractions as places": (
        lambda x, i: x.index_fill(0, i, 2.5),
        (ones(4, 3), ones(2)),
    ),
    "index_select, fractions as places": (
        lambda x, i: x.index_select(0, i) + 1,
        (ones(4, 3), ones(1)),
    ),
    "index_select, one number twice": (
        lambda x, i: x.index_select(0, i) + 1,
        (ones(), places(0, 0)),
    ),
    "bucketize, no rows of limits": (
        lambda x, y: torch.bucketize(x, y) + 1,
        (ones(4), ones(0, 3)),
    ),
    "masked_scatter, one too few": (
        lambda x, mask, y: x.masked_scatter(mask, y) * 2,
        (ones(4), ones(4, dtype=torch.bool), ones(1)),
    ),
    "huber_loss, bytes": (
        lambda x, y: F.huber_loss(x, y).backward(),
        (ones(4).requires_grad_(), ones(4, dtype=u8)),
    ),
    "put, too few": (
        lambda x, i, y: x.put(i, y),
        (ones(4, 3), places(0, 2, 5), ones(2)),
    ),
    "put, another type": (
        lambda x, i, y: x.put(i, y),
        (ones(4, 3), places(0, 2), ones(2, dtype=f16)),
    ),
    "index_put, another type": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True),
        (ones(4), places(0, 2), ones(2, dtype=i64)),
    ),
    "index_put, a mask of another size": (
        lambda x, i, y: x.index_put((i,), y),
        (ones(1), ones(2, dtype=torch.bool), ones(1)),
    ),
    "embedding, bytes as places": (
        lambda table, i: F.embedding(i, table),
        (ones(4, 3), places(0, 2, dtype=u8)),
    ),
    "fold, bytes, whose sizes small tensors do not have": (
        lambda x: F.fold(x, (3, 3), 2),
        (ones(1, 8, 4, dtype=u8),),
    ),
    "cross_entropy, flags as classes": (
        lambda x, t: F.cross_entropy(x, t) * 2,
        (ones(4, 3), ones(4, dtype=torch.bool)),
    ),
    "binary_cross_entropy, mixed": (
        lambda x, t: F.binary_cross_entropy(x, t) * 2,
        (ones(4, 3), ones(4, 3, dtype=f64)),
    ),
    "layer_norm, mixed": (
        lambda x, w: F.layer_norm(x, (8,), w),
        (ones(4, 8), ones(8, dtype=f16)),
    ),
    "smooth_l1_loss of bytes": (
        lambda x, t: F.smooth_l1_loss(x, t) * 2,
        (ones(4, 9, dtype=i8), ones(4, 9, dtype=i8)),
    ),
    "grid_sample of bytes": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        (ones(1, 2, 7, 7, dtype=u8), ones(1, 5, 5, 2)),
    ),
    "div_ of integers": (
        lambda x, y: x.clone().div_(y),
        (ones(9, dtype=i64), ones(9, dtype=i64)),
    ),
    "addcmul_ of another kind": (
        lambda x, y, z: x.clone().addcmul_(y, z),
        (ones(9, dtype=i32), ones(9, dtype=i8), ones(9, dtype=f64)),
    ),
    "zeta of halves": (
        lambda x, y: torch.special.zeta(x, y) * 2,
        (ones(9, dtype=torch.bfloat16), ones(9, dtype=i32)),
    ),
}
# Neighbors that eager takes: they must stay compiled.
TAKEN: dict[str, Case] = {
    "index_copy": (
        lambda x, i, y: x.index_copy(0, i, y) + 1,
        (ones(4, 3), places(0, 2), ones(2, 3)),
    ),
    "index_add": (
        lambda x, i, y: x.index_add(1, i, y) + 1,
        (ones(4, 3, dtype=f16), places(0, 2, dtype=i32), ones(4, 2, dtype=f16)),
    ),
    "index_put": (
        lambda x, i, y: x.index_put((i,), y, accumulate=True) + 1,
        (ones(4, 3), places(0, 2), ones(3)),
    ),
    "embedding": (lambda t, i: F.embedding(i, t) * 2, (ones(4, 3), places(0, 2, dtype=i32))),
    "cross_entropy": (lambda x, t: F.cross_entropy(x, t) * 2, (ones(4, 3), places(0, 2, 1, 1))),
    "layer_norm of halves": (
        lambda x, w: F.layer_norm(x, (8,), w),
        (ones(4, 8, dtype=torch.bfloat16), ones(8)),
    ),
    "integers": (
        lambda x, y: x // (y + 1) * 3 + (x & y) - x.sum(),
        (ones(9, dtype=i64), torch.zeros(9, dtype=i64)),
    ),
    "bools": (lambda x, y: torch.where(x, y, -y), (ones(9, dtype=torch.bool), ones(9))),
    "softmax of halves": (lambda x: x.softmax(-1) * 2, (ones(4, 9, dtype=f16),)),
    "mixed": (lambda x, y: x * y + x, (ones(9, dtype=f16), ones(9, dtype=i8))),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str, dynamic: bool) -> None:
    function, given = REFUSED[name]
    with pytest.raises(Exception) as expected:  # noqa: PT011
        function(*given)
    assert isinstance(expected.value, (RuntimeError, IndexError, NotImplementedError))
    # While it traces, TorchDynamo raises a RuntimeError of its own, which has eager's message.
    with pytest.raises((type(expected.value), RuntimeError)):
        fusec.compile(function, dynamic=dynamic)(*given)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_compiled(name: str) -> None:
    function, given = TAKEN[name]
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(*given), function(*given))
    (graph,) = compiled.graphs
    assert not graph.fallback
    assert graph.kernels


@pytest.mark.parametrize(
    ("refused", "converted", "target", "given"),
    [
        (True, False, F.layer_norm, (ones(4, 8), (8,), ones(8, dtype=f16))),
        (False, False, F.layer_norm, (ones(4, 8, dtype=f16), (8,), ones(8))),
        (False, False, F.group_norm, (ones(4, 8), 2, ones(8), ones(8))),
        (True, False, F.binary_cross_entropy, (ones(4), ones(4, dtype=f64))),
        (True, False, F.nll_loss, (ones(4, 3), ones(4, dtype=torch.bool))),
        (False, False, F.cross_entropy, (ones(4, 3), ones(4, 3))),
        (True, False, "index_copy_", (ones(4), 0, places(1, dtype=i32), ones(1))),
        (True, True, "index_add", (ones(4), 0, places(1), ones(1, dtype=f64))),
        (True, True, F.embedding, (places(1, dtype=u8), ones(4, 3))),
        (False, False, torch.embedding, (ones(4, 3), places(1))),
        (True, True, "put_", (ones(4), places(1, dtype=i32), ones(1))),
        (True, True, "index_select", (ones(4), 0, places(1, dtype=u8))),
        (True, False, F.huber_loss, (ones(4), ones(4, dtype=f64))),
        (False, False, F.mse_loss, (ones(4), ones(4, dtype=f64))),
        (False, False, "index_fill", (ones(4), 0, places(1), 2.0)),
    ],
)
def test_operands_beside_each_other(
    refused: bool, converted: bool, target: Any, given: tuple[Any, ...]
) -> None:
    """What autocast may convert first is not judged where it may be on."""
    node = call_of(target, *given)
    assert refuses_operands(node, converts=False) is refused
    assert refuses_operands(node, converts=True) is converted


@pytest.mark.sample(2)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_loss_has_the_type_of_its_input(reduction: str) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x, y, weight, reduction=reduction)

    x, y = torch.rand(4, 3), torch.rand(4, 3)
    for weight in (torch.rand(4, 3, dtype=f64), torch.ones(3, dtype=i64)):
        compiled = fusec.compile(loss, dynamic=False)
        torch.testing.assert_close(compiled(x, y, weight), loss(x, y, weight))


@pytest.mark.parametrize("kind", [u8, f32, f64])
def test_gradients_of_a_squared_error(kind: torch.dtype) -> None:
    """Torch 2.11 refuses a target of another type, in backward alone; 2.13 does not."""

    def learned(compile_: Callable[..., Any]) -> Any:
        x = torch.full((4, 3), 0.25, requires_grad=True)
        try:
            compile_(lambda x, y: F.mse_loss(x, y) * 2)(x, ones(4, 3, dtype=kind)).backward()
        except RuntimeError as error:
            return str(error)
        return x.grad.tolist()  # type: ignore[union-attr]

    assert learned(fusec.compile) == learned(lambda function: function)


@pytest.mark.parametrize("kinds", [(f64, f16, f16), (f32, f64, f16), (f16, f32, f32)])
def test_a_loss_of_logits_has_the_type_of_its_target(kinds: tuple[torch.dtype, ...]) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(x, y, pos_weight=weight)

    x, y, weight = (torch.rand(4, 3).to(kind) for kind in kinds)
    found, wanted = fusec.compile(loss, dynamic=False)(x, y, weight), loss(x, y, weight)
    assert found.dtype == wanted.dtype
    # eager rounds to each of the types in between
    torch.testing.assert_close(found.to(f16), wanted.to(f16))


def test_under_autocast_types_are_mixed() -> None:
    """A half and a float multiply there, which eager refuses elsewhere."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ y).relu()

    given = ones(4, 8, dtype=torch.bfloat16), ones(8, 4)
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(*given), function(*given))
    assert not compiled.graphs[0].fallback
    with torch.autocast("cpu", torch.bfloat16):
        outside = fusec.compile(lambda x, y: (x @ y).relu())
        torch.testing.assert_close(outside(*given), function(*given))
        assert not outside.graphs[0].fallback
