"""Passes over convolutions, asked of traced ones: each condition, and what is there after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.graph.choices import TURNED_SHARE
from fusec.graph.convolutions.channels_last import (
    _is_channels_last,
    _Turning,
    turn_channels_inward,
)
from fusec.graph.convolutions.depthwise import divide_gradients
from fusec.graph.convolutions.one_pixel import multiply_single_pixels

aten = torch.ops.aten
Tensor = torch.Tensor
LAST = torch.channels_last
BF16 = torch.bfloat16


def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype).contiguous(memory_format=LAST)


def forward(x: Tensor, w: Tensor, b: Tensor | None = None, **given: Any) -> Tensor:
    """Return a convolution, which need not be called by all its arguments."""
    args = {"stride": [1, 1], "padding": [0, 0], "transposed": False, "groups": 1} | given
    return aten.convolution.default(
        *(x, w, b, args["stride"], args["padding"], [1, 1], args["transposed"], [0, 0]),
        args["groups"],
    )


def plain(x: Tensor, w: Tensor) -> Tensor:
    return forward(x, w)


def biased(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return forward(x, w, b)


def backward(wanted: Sequence[bool], groups: int = 1, **given: Any) -> Any:
    """Return what computes those of the gradients that are wanted."""
    args = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]} | given

    def function(gradient: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        results = aten.convolution_backward.default(
            *(gradient, x, w, [w.shape[0]], args["stride"], args["padding"]),
            *(args["dilation"], False, [0, 0], groups, list(wanted)),
        )
        return tuple(result for result, given in zip(results, wanted, strict=True) if given)

    return function


def traced(function: Any, *given: Tensor, device: str = "cpu") -> fx.GraphModule:
    with FakeTensorMode():
        fake = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in given
        ]
        module = make_fx(function)(*fake)
    module.graph.eliminate_dead_code()  # results that nobody picks
    return module


def targets(module: fx.GraphModule) -> list[str]:
    found = [n for n in module.graph.nodes if n.op == "call_function"]
    return [str(n.target).split(".")[1] if "." in str(n.target) else "getitem" for n in found]


def same(module: fx.GraphModule, function: Any, *given: Tensor) -> None:
    module.graph.lint()
    torch.testing.assert_close(module(*given), function(*given), rtol=1e-4, atol=1e-4)


# -- windows of one pixel ---------------------------------------------------------------------


@pytest.fixture
def products_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.convolutions.one_pixel.multiply_pixels", lambda *_: True)


X, W, B = image(2, 6, 4, 5), torch.randn(3, 6, 1, 1), torch.randn(3)


@pytest.mark.parametrize("bias", [None, B])
def test_single_pixels_are_a_product(products_pay: None, bias: Tensor | None) -> None:
    given = (X, W) if bias is None else (X, W, bias)
    function = plain if bias is None else biased
    module = traced(function, *given)
    assert multiply_single_pixels(module) == 1
    assert ("mm" if bias is None else "addmm") in targets(module)
    assert "convolution" not in targets(module)
    same(module, function, *given)


@pytest.mark.parametrize(
    ("x", "w", "given"),
    [
        (image(2, 6, 4, 5), torch.randn(3, 6, 3, 1), {}),
        (image(2, 6, 4, 5), torch.randn(3, 6, 1, 2), {}),
        (X, W, {"stride": [1, 2]}),
        (X, W, {"stride": [2, 1]}),
        (X, W, {"padding": [1, 0]}),
        (X, W, {"padding": [0, 1]}),
        (X, torch.randn(6, 3, 1, 1), {"transposed": True}),
        (X, torch.randn(4, 3, 1, 1), {"groups": 2}),
        (X.contiguous(), W, {}),
        (X[..., 1:], W, {}),
        (image(0, 6, 4, 5), W, {}),
    ],
)
def test_other_convolutions_are_none(products_pay: None, x: Tensor, w: Tensor, given: Any) -> None:
    module = traced(lambda x, w: forward(x, w, **given), x, w)
    before = str(module.graph)
    assert multiply_single_pixels(module) == 0
    assert str(module.graph) == before


def test_neither_on_a_gpu_nor_of_lines_nor_of_unknown_sizes(products_pay: None) -> None:
    assert multiply_single_pixels(traced(plain, X, W, device="cuda")) == 0
    module = traced(
        lambda x, w: aten.convolution.default(x, w, None, [1], [0], [1], False, [0], 1),
        *(torch.randn(2, 6, 5), torch.randn(3, 6, 1)),
    )
    assert multiply_single_pixels(module) == 0
    module = traced(plain, X, W)
    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes):
        x, _ = module.graph.find_nodes(op="placeholder")
        x.meta["val"] = torch.empty(shapes.create_unbacked_symint(), 6, 4, 5)
    assert multiply_single_pixels(module) == 0


def test_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.convolutions.one_pixel.multiply_pixels", lambda *_: False)
    assert multiply_single_pixels(traced(plain, X, W)) == 0


ABOVE = image(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("wanted", "products", "sums"),
    [
        ((True, True, True), 2, 1),
        ((True, False, False), 1, 0),
        ((False, True, False), 1, 0),
        ((False, False, True), 0, 1),
        ((True, True, False), 2, 0),
    ],
)
def test_gradients_that_are_wanted(
    products_pay: None, wanted: Sequence[bool], products: int, sums: int
) -> None:
    """And no others: what nobody reads would be computed all the same."""
    function = backward(wanted)
    module = traced(function, ABOVE, X, W)
    assert multiply_single_pixels(module) == 1
    found = targets(module)
    assert (found.count("mm"), found.count("sum")) == (products, sums)
    assert not {"convolution_backward", "getitem"} & set(found)
    same(module, function, ABOVE, X, W)


def test_a_gradient_that_lies_otherwise(products_pay: None) -> None:
    module = traced(backward((True, True, True)), ABOVE.contiguous(), X, W)
    assert multiply_single_pixels(module) == 0


# -- each channel by itself -------------------------------------------------------------------

EACH = image(2, 8, 6, 6, dtype=BF16), image(2, 8, 6, 6, dtype=BF16), torch.randn(8, 1, 3, 3)
EACH = (*EACH[:2], EACH[2].to(BF16))
CASES: list[tuple[str, bool, Sequence[bool], dict[str, Any]]] = [
    ("plain", True, (True, True, False), {}),
    ("the bias's", True, (True, False, True), {}),
    ("all", True, (True, True, True), {}),
    ("the image's alone", False, (True, False, False), {}),
    ("not the image's", False, (False, True, True), {}),
    ("strides", True, (True, True, False), {"stride": [2, 2]}),
    ("holes", False, (True, True, False), {"dilation": [2, 2], "padding": [2, 2]}),
    ("holes across", False, (True, True, False), {"dilation": [1, 2], "padding": [1, 2]}),
]


@pytest.mark.parametrize(("divided", "wanted", "given"), [case[1:] for case in CASES])
def test_gradients_of_each_channel(divided: bool, wanted: Sequence[bool], given: Any) -> None:
    steps = given.get("stride", [1, 1])
    above = image(2, 8, -(-6 // steps[0]), -(-6 // steps[1]), dtype=BF16)
    function = backward(wanted, 8, **{"padding": [1, 1], **given})
    module = traced(function, above, *EACH[1:])
    assert divide_gradients(module, interpreted=True) == divided
    assert targets(module).count("convolution_backward") == 1 + divided
    assert divide_gradients(traced(function, above, *EACH[1:])) == 0  # on a processor
    gpu = traced(function, above, *EACH[1:], device="cuda")
    assert divide_gradients(gpu) == divided
    for got, plain in zip(module(above, *EACH[1:]), function(above, *EACH[1:]), strict=True):
        torch.testing.assert_close(got, plain, rtol=2e-2, atol=5e-2)
    if divided:
        first, second = module.graph.find_nodes(
            op="call_function", target=aten.convolution_backward.default
        )
        assert first.args[-1] == [True, False, False]
        assert second.args[-1] == [False, *wanted[1:]]
        assert second.meta["val"][0] is None


@pytest.mark.parametrize(
    ("x", "w", "groups"),
    [
        (image(2, 8, 6, 6, dtype=BF16), torch.randn(16, 1, 3, 3), 8),  # two of a channel
        (image(2, 8, 6, 6, dtype=BF16), torch.randn(8, 2, 3, 3), 4),
        (torch.randn(2, 8, 6, 6).to(BF16), torch.randn(8, 1, 3, 3), 8),
        (image(2, 8, 6, 6), torch.randn(8, 1, 3, 3), 8),  # float32
    ],
)
def test_other_gradients_stay_one(x: Tensor, w: Tensor, groups: int) -> None:
    w = w.to(x.dtype)
    above = image(2, w.shape[0], 6, 6, dtype=x.dtype)
    module = traced(backward((True, True, False), groups, padding=[1, 1]), above, x, w)
    assert divide_gradients(module, interpreted=True) == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_unknown_sizes_they_stay_one(place: int) -> None:
    """Of one tensor of the three: the others say nothing of that."""
    module = traced(backward((True, True, False), 8, padding=[1, 1]), *EACH)
    node = list(module.graph.find_nodes(op="placeholder"))[place]
    value = node.meta["val"]
    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes):
        shape = [*value.shape]
        shape[-1 if place == 2 else 0] = shapes.create_unbacked_symint()
        node.meta["val"] = torch.empty_strided(shape, value.stride(), dtype=value.dtype)
    assert divide_gradients(module, interpreted=True) == 0


# -- channels innermost -----------------------------------------------------------------------


@pytest.fixture
def layouts_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fusec.graph.convolutions.channels_last.innermost_channels_pay", lambda *_: True
    )


def two(x: Tensor, w: Tensor) -> Tensor:
    return forward(forward(x, w).relu(), w)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_turned_is_counted(layouts_pay: None, device: str) -> None:
    """Images once, weights never: on a GPU they are turned where their type is converted."""
    given = torch.randn(2, 6, 5, 4), torch.randn(6, 6, 1, 1)
    module = traced(two, *given, device=device)
    turning = _Turning(module.graph)
    turning.run()
    # turned on the way in, and on the way out, where the result lies as it was traced
    assert turning.turned == 2 * given[0].numel()
    assert turning.multiplied == 4 * given[0].numel()
    assert turning.pays() is (4 * TURNED_SHARE >= 2)


def test_weights_are_not_counted(layouts_pay: None) -> None:
    given = torch.randn(2, 6, 5, 4), torch.randn(6, 6, 3, 3)
    turning = _Turning(traced(plain, *given, device="cuda").graph)
    turning.run()
    (result,) = turning.graph.find_nodes(op="call_function", target=aten.convolution.default)
    # A torch that is built for GPUs knows that cuDNN's result lies as the image does.
    back = result.meta["val"].numel() if _is_channels_last(result.meta["val"]) else 0
    assert turning.turned == given[0].numel() + back


def test_what_lies_so_already_is_not_turned(layouts_pay: None) -> None:
    given = image(2, 6, 5, 4), torch.randn(6, 6, 1, 1)
    module = traced(two, *given)
    turning = _Turning(module.graph)
    turning.run()
    assert turning.turned == 0
    assert turn_channels_inward(module) == 2
    same(module, two, *given)


@pytest.mark.parametrize("share", [0.4999, 0.5])
def test_whether_it_pays(layouts_pay: None, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.convolutions.channels_last.TURNED_SHARE", share)
    given = torch.randn(2, 6, 5, 4), torch.randn(6, 6, 1, 1)
    module = traced(two, *given)
    before = str(module.graph)
    assert turn_channels_inward(module) == (2 if share == 0.5 else 0)
    assert (str(module.graph) != before) is (share == 0.5)
    same(module, two, *given)
    assert module(*given).stride() == two(*given).stride()


@pytest.mark.parametrize("which", ["transposed", "1-D", "symbolic", "no convolution"])
def test_which_are_not_turned(layouts_pay: None, which: str) -> None:
    given = [torch.randn(2, 6, 5, 4), torch.randn(6, 6, 1, 1)]
    function: Any = plain
    if which == "transposed":
        function = lambda x, w: forward(x, w, transposed=True)  # noqa: E731
    if which == "1-D":
        given = [torch.randn(2, 6, 5), torch.randn(6, 6, 1)]
        function = lambda x, w: aten.convolution.default(  # noqa: E731
            x, w, None, [1], [0], [1], False, [0], 1
        )
    if which == "no convolution":
        function = lambda x, w: x + w[0, 0]  # noqa: E731
    module = traced(function, *given)
    if which == "symbolic":
        shapes = ShapeEnv()
        with FakeTensorMode(shape_env=shapes):
            node = next(iter(module.graph.find_nodes(op="placeholder")))
            node.meta["val"] = torch.empty(shapes.create_unbacked_symint(), 6, 5, 4)
    assert turn_channels_inward(module) == 0


def test_gradients_follow(layouts_pay: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.convolutions.channels_last.TURNED_SHARE", 9.0)
    function = backward((True, True, False))
    given = torch.randn(2, 3, 5, 4), torch.randn(2, 6, 5, 4), torch.randn(3, 6, 1, 1)
    module = traced(function, *given)
    turning = _Turning(module.graph)
    turning.run()
    assert turning.multiplied == given[0].numel() + given[1].numel()
    assert turn_channels_inward(module) == 1
    assert targets(module).count("clone") >= 2
    same(module, function, *given)
