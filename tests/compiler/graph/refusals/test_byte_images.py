"""Interpolations that stay whole, in graphs made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from fusec.graph.refusals.byte_images import keep_interpolations_of_bytes
from support.captured import Captured

U8, I16, F32, HALF = torch.uint8, torch.int16, torch.float32, torch.float16
BYTES = torch.float8_e5m2


def image(dtype: torch.dtype, *shape: int, device: str = "cpu") -> torch.Tensor:
    size = shape or (1, 2, 4, 6)
    return torch.arange(math.prod(size), device=device).mul(3).remainder(251).to(dtype).view(size)


def module_of(x: torch.Tensor, function: Any, *args: Any, **kwargs: Any) -> fx.GraphModule:
    c = Captured()
    graph, given = c.graph, c.input(x)
    if kwargs.pop("named", False):
        node = graph.call_function(function, args, {"input": given, **kwargs})
    else:
        node = graph.call_function(function, (given, *args), kwargs)
    node.meta["said"] = 7
    graph.call_function(F.relu, (given,))
    return c.module(node)


def whole(module: fx.GraphModule) -> list[fx.Node]:
    target = torch.ops.fusec.interpolate_bytes.default
    return list(module.graph.find_nodes(op="call_function", target=target))


KEPT: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (F.interpolate, (), {"size": (3, 5), "mode": "bilinear"}),
    (F.interpolate, (5,), {"mode": "bilinear", "align_corners": True}),
    (F.interpolate, (), {"scale_factor": 1.5, "mode": "bilinear"}),
    (F.interpolate, (), {"scale_factor": (1.5, 2.0), "mode": "bicubic"}),
    (F.interpolate, (), {"scale_factor": 2, "mode": "bilinear", "named": True}),
    (F.interpolate, ((3, 5), None, "bilinear", False, None, True), {}),
    (F.upsample, (), {"size": 5, "mode": "bilinear"}),
    (F.upsample_bilinear, (7,), {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), KEPT)
def test_what_is_kept_for_aten(function: Any, args: Any, kwargs: Any) -> None:
    module = module_of(image(U8), function, *args, **kwargs)
    text = module.code
    changed = keep_interpolations_of_bytes(module)
    assert module.code == text
    (node,) = whole(changed)
    assert node.meta["said"] == 7
    assert not any(n.target is function for n in changed.graph.nodes)
    assert torch.equal(changed(image(U8))[0], module(image(U8))[0])


@pytest.mark.parametrize(
    ("x", "function", "kwargs", "kept"),
    [
        (image(U8), F.interpolate, {"size": 5}, False),  # the nearest are no sums
        (image(U8), F.interpolate, {"size": 5, "mode": "nearest"}, False),
        (image(U8), F.interpolate, {"size": 5, "mode": "nearest-exact"}, False),
        (image(U8), F.upsample_nearest, {"size": 5}, False),
        (image(U8), F.upsample_bilinear, {"size": 5}, True),
        (image(I16), F.interpolate, {"size": 5}, True),  # which ATen refuses
        (image(I16, device="meta"), F.interpolate, {"size": 5}, False),
        (image(U8, device="meta"), F.interpolate, {"size": 5, "mode": "bilinear"}, True),
        (image(F32), F.interpolate, {"size": 5, "mode": "bilinear"}, False),
        (image(HALF), F.interpolate, {"size": 5}, False),
        (image(F32).to(BYTES), F.interpolate, {"size": 5}, True),
        (image(U8), F.relu, {}, False),
    ],
)
def test_which(x: torch.Tensor, function: Any, kwargs: Any, kept: bool) -> None:
    module = module_of(x, function, **kwargs)
    changed = keep_interpolations_of_bytes(module)
    assert len(whole(changed)) == kept
    assert (changed is module) is not kept


def test_of_no_image_nothing_is_said() -> None:
    c = Captured()
    node = c.graph.call_function(F.interpolate, (c.input(3), 5))
    module = c.module(node)
    assert keep_interpolations_of_bytes(module) is module


def test_one_of_two() -> None:
    c = Captured()
    first, second = c.input(image(U8)), c.input(image(F32))
    calls = [
        c.graph.call_function(F.interpolate, (x,), {"size": 5, "mode": "bilinear"})
        for x in (first, second)
    ]
    changed = keep_interpolations_of_bytes(c.module(*calls))
    assert len(whole(changed)) == 1
    assert len(list(changed.graph.find_nodes(op="call_function", target=F.interpolate))) == 1
