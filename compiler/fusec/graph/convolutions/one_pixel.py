"""Convolutions with a window of one pixel, as the matrix products that they are.

With the channels innermost, an image is a matrix of pixels by channels.  BLAS multiplies it by the
weight faster than oneDNN computes the convolution and its gradients, from some number of channels
on; the gradient of the weight is laid out as the weight is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from fusec.graph.choices import multiply_pixels
from fusec.graph.facts.insertion import caller

aten = torch.ops.aten
_FORWARD, _BACKWARD = aten.convolution.default, aten.convolution_backward.default


def multiply_single_pixels(module: fx.GraphModule) -> int:
    """Replace convolutions of single pixels, and their gradients, by products; return how many.

    Args:
        module: Functional, with fake tensors in ``meta["val"]``, its convolutions channels-last
            where that pays (``turn_channels_inward``); changed in place.
    """
    nodes = [n for n in module.graph.nodes if n.target in (_FORWARD, _BACKWARD)]
    chosen = [node for node in nodes if _fits(node)]
    for node in chosen:
        with module.graph.inserting_before(node):
            if node.target == _FORWARD:
                node.replace_all_uses_with(_forward(node))
            else:
                _backward(node)
        module.graph.erase_node(node)
    if chosen:
        module.recompile()
    return len(chosen)


def _fits(node: fx.Node) -> bool:
    given = node.args if node.target == _FORWARD else (*node.args[1:3], None, *node.args[4:])
    x, weight, _, stride, padding, _, transposed, _, groups = given[:9]
    others = [node.args[0]] if node.target == _BACKWARD else []
    values = [n.meta.get("val") for n in (x, weight, *others) if isinstance(n, fx.Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if len(tensors) != 2 + len(others) or transposed or groups != 1:
        return False
    if not all(isinstance(size, int) for value in tensors for size in value.shape):
        return False
    image, matrix = tensors[:2]
    return (
        image.dim() == 4
        and tuple(matrix.shape[2:]) == (1, 1)
        and [*stride] == [1, 1]  # type: ignore[misc]
        and [*padding] == [0, 0]  # type: ignore[misc]
        and image.device.type == "cpu"
        and image.numel() > 0
        and all(_is_matrix(each) for each in (image, *tensors[2:]))
        and multiply_pixels(image, matrix)
    )


def _is_matrix(image: torch.Tensor) -> bool:
    """Whether an image is stored as a matrix of pixels by channels."""
    _, channels, height, width = image.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return image.stride() == strides


def _forward(node: fx.Node) -> fx.Node:
    call = caller(node.graph, node)
    x, weight, bias = node.args[:3]
    pixels, matrix = _pixels(call, x), _matrix(call, weight)
    turned = call(aten.t.default, matrix)
    if bias is None:
        result = call(aten.mm.default, pixels, turned)
    else:
        result = call(aten.addmm.default, bias, pixels, turned)
    return _image(call, result, x)


def _backward(node: fx.Node) -> None:
    call = caller(node.graph, node)
    gradient, x, weight = node.args[:3]
    wanted: Any = node.args[-1]
    pixels, matrix, above = _pixels(call, x), _matrix(call, weight), _pixels(call, gradient)
    results: list[fx.Node | None] = [None, None, None]
    if wanted[0]:
        results[0] = _image(call, call(aten.mm.default, above, matrix), x)
    if wanted[1]:
        turned = call(aten.t.default, above)
        product = call(aten.mm.default, turned, pixels)
        assert isinstance(weight, fx.Node)
        results[1] = call(aten.view.default, product, [*weight.meta["val"].shape])
    if wanted[2]:
        results[2] = call(aten.sum.dim_IntList, gradient, [0, 2, 3])
    for user in list(node.users):
        result = results[user.args[1]]  # type: ignore[index]
        assert result is not None
        user.replace_all_uses_with(result)
        user.graph.erase_node(user)


def _pixels(call: Callable[..., fx.Node], image: Any) -> fx.Node:
    turned = call(aten.permute.default, image, [0, 2, 3, 1])
    count, channels, height, width = image.meta["val"].shape
    return call(aten.view.default, turned, [count * height * width, channels])


def _matrix(call: Callable[..., fx.Node], weight: Any) -> fx.Node:
    return call(aten.squeeze.dims, weight, [2, 3])


def _image(call: Callable[..., fx.Node], pixels: fx.Node, like: Any) -> fx.Node:
    count, _, height, width = like.meta["val"].shape
    shape = [count, height, width, pixels.meta["val"].shape[1]]
    return call(
        aten.permute.default,
        call(aten.view.default, pixels, shape),
        [0, 3, 1, 2],
    )


__all__ = ["multiply_single_pixels"]
