"""What a user can see of a tensor besides its values, and a table of functions that show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

T = torch.Tensor
Function = Callable[[T], Any]


def seen(results: Sequence[Any], inputs: Sequence[T]) -> list[dict[str, object]]:
    """Return the attributes of results; which storages they share is told by numbers.

    Args:
        results: Tensors, or anything else, of which the type is told.
        inputs: What they were computed from, which they may share memory with.
    """
    storages: dict[int, int] = {}
    for tensor in (*inputs, *results):
        if isinstance(tensor, T):
            storages.setdefault(tensor.untyped_storage()._cdata, len(storages))
    return [
        attributes(value, storages, [i for i, each in enumerate(inputs) if each is value])
        for value in (*results, *inputs)
    ]


def attributes(value: Any, storages: dict[int, int], same: list[int]) -> dict[str, object]:
    """Return the attributes of one result.

    Args:
        value: The result.
        storages: A number for each storage.
        same: The inputs that it is.
    """
    if not isinstance(value, T):
        return {"type": type(value), "value": value}
    return {
        "type": type(value),
        "shape": tuple(value.shape),
        "dtype": value.dtype,
        "device": value.device,
        "strides": value.stride(),
        "offset": value.storage_offset(),
        "storage bytes": value.untyped_storage().nbytes(),
        "storage": storages[value.untyped_storage()._cdata],
        "is input": same,
        "is contiguous": value.is_contiguous(),
        "channels last": value.dim() == 4
        and value.is_contiguous(memory_format=torch.channels_last),
        "requires_grad": value.requires_grad,
        "is leaf": value.is_leaf,
        "has grad_fn": value.grad_fn is not None,
        "is view": value._is_view(),
        # A graph copies back once what it updates, however often.
        "updated": None if value.is_inference() else value._version > 0,
        "conj": value.is_conj(),
        "neg": value.is_neg(),
        "inference": value.is_inference(),
    }


def _written(x: T) -> T:
    y = x.clone()
    y[0].mul_(2)
    y.add_(1)
    return y


def _in_gaps(x: T) -> T:
    return torch.empty_strided(x.size(), tuple(2 * s for s in x.stride())).copy_(x)


def _two_views(x: T) -> tuple[T, T, T]:
    y = x * 3
    return y, y[0], y.transpose(0, 1)


def _part_written(x: T) -> tuple[T, T]:
    y = x + 1
    return y[0].zero_(), y


def _item_set(x: T) -> T:
    y = x * 2
    y[..., 0] = 5.0
    return y


# Of a tensor of four dimensions, the last two of equal size.
FUNCTIONS: dict[str, dict[str, Function]] = {
    "pointwise": {
        "add": lambda x: x + 1,
        "mul_row": lambda x: x * torch.ones(x.shape[-1]),
        "mixed": lambda x: x + x.transpose(2, 3),
        "mixed_with_rows": lambda x: (
            x + torch.ones(x.shape).transpose(1, 2).contiguous().transpose(1, 2)
        ),
        "broadcast": lambda x: x[:1] + x[:, :1],
        "compare": lambda x: x > 0,
        "where": lambda x: torch.where(x > 0, x, 0.0),
        "cast": lambda x: x.double(),
        "to_half": lambda x: x.to(torch.float16) * 2,
        "gelu": F.gelu,
        "number": lambda x: x.sum() * 2,
        "scalar_first": lambda x: 2 - x,
        "clamp": lambda x: x.clamp(min=0),
        "softmax": lambda x: torch.softmax(x, -1),
        "softmax_1": lambda x: torch.softmax(x, 1),
        "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
        "cumsum": lambda x: x.cumsum(1),
        "flip": lambda x: x.flip(-1),
        "roll": lambda x: x.roll(1, -1),
        "pad": lambda x: F.pad(x, (1, 1)),
        "tril": lambda x: x.tril(),
        "dropout_off": lambda x: F.dropout(x, 0.5, training=False),
    },
    "views": {
        "input": lambda x: x,
        "detach": lambda x: x.detach(),
        "view_as": lambda x: x.view_as(x),
        "transpose": lambda x: x.transpose(1, 2),
        "permute": lambda x: x.permute(0, 2, 3, 1),
        "slice": lambda x: x[:, 1:],
        "step": lambda x: x[..., ::2],
        "select": lambda x: x[:, 0],
        "unsqueeze": lambda x: x.unsqueeze(1),
        "squeeze": lambda x: x[:, :1].squeeze(1),
        "expand": lambda x: x[:, :1].expand(-1, 3, -1, -1),
        "diagonal": lambda x: x.diagonal(0, 2, 3),
        "unfold": lambda x: x.unfold(3, 1, 1),
        "chunk": lambda x: x.chunk(2, 3),
        "unbind": lambda x: x.unbind(1),
        "as_strided": lambda x: x.as_strided((2,), (1,)) if x.numel() > 1 else x,
        "twice": lambda x: (x[0:], x[0:]),
        "real_view": lambda x: torch.view_as_real(torch.complex(x, x)),
    },
    "views of results": {
        "transpose": lambda x: (x + 1).transpose(1, 2),
        "slice": lambda x: (x * 2)[:, 1:],
        "both": _two_views,
        "expand": lambda x: x.sum(1, keepdim=True).expand(-1, 3, -1, -1),
        "flatten": lambda x: x.flatten(1),
        "reshape": lambda x: x.reshape(-1),
        "reshape_result": lambda x: (x + 1).reshape(-1),
        "contiguous": lambda x: x.contiguous(),
        "ravel_same": lambda x: x.contiguous().view(-1),
        "chunk": lambda x: (x - 1).chunk(2, 3),
        "detach": lambda x: (x * 5).detach(),
        "stack": lambda x: torch.stack([x, x]).unbind(0),
        "conj": lambda x: torch.complex(x, x).conj(),
        "imag": lambda x: torch.complex(x, x).imag,
        "to_same": lambda x: x.to(torch.float32),
        "mT": lambda x: (x + 1).mT.contiguous(),
    },
    "layouts": {
        "clone": lambda x: x.clone(),
        "clone_contiguous": lambda x: x.clone(memory_format=torch.contiguous_format),
        "channels_last": lambda x: (x + 1).contiguous(memory_format=torch.channels_last),
        "to_channels_last": lambda x: x.to(memory_format=torch.channels_last),
        "pool": lambda x: F.avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1),
        "cat": lambda x: torch.cat([x, x], 1),
        "cat_channels_last": lambda x: torch.cat(
            [x.contiguous(memory_format=torch.channels_last)] * 2, 1
        ),
        "stack": lambda x: torch.stack([x, x], 1),
        "interpolate": lambda x: F.interpolate(
            x.contiguous(memory_format=torch.channels_last), scale_factor=1.0
        ),
        "conv": lambda x: F.conv2d(x, torch.ones(2, x.shape[1], 1, 1)),
        "conv_last": lambda x: F.conv2d(
            x.contiguous(memory_format=torch.channels_last), torch.ones(2, x.shape[1], 1, 1)
        ),
        "matmul": lambda x: x @ x.mT,
        "matmul_mT": lambda x: (x @ x).mT,
        "einsum": lambda x: torch.einsum("bcij,bcjk->bik", x, x),
        "linear": lambda x: F.linear(x, torch.ones(3, x.shape[-1])),
        "gather": lambda x: x.gather(3, torch.zeros(x.shape, dtype=torch.int64)),
        "index": lambda x: x[:, torch.tensor([0, 0])],
        "index_select": lambda x: x.index_select(3, torch.tensor([0, 0])),
        "sort": lambda x: tuple(x.sort(1)),
        "repeat": lambda x: x.repeat(2, 1, 1, 1),
    },
    "reductions": {
        "sum": lambda x: x.sum(),
        "sum_1": lambda x: x.sum(1),
        "keep": lambda x: x.sum(1, keepdim=True),
        "keep_last": lambda x: x.mean(-1, keepdim=True),
        "keep_two": lambda x: x.sum((0, 2), keepdim=True),
        "amax": lambda x: torch.cat([x, torch.ones(1, *x.shape[1:])]).amax(0),
        "var_mean": lambda x: torch.var_mean(x, -1, keepdim=True),
        "max": lambda x: tuple(torch.cat([x, torch.ones(1, *x.shape[1:])]).max(0, keepdim=True)),
        "norm": lambda x: x.norm(dim=1, keepdim=True),
        "any": lambda x: (x > 0).any(2),
        "prod": lambda x: x.prod(3),
        "logsumexp": lambda x: torch.cat([x, torch.ones(1, *x.shape[1:])]).logsumexp(0),
    },
    "factories": {
        "zeros_like": torch.zeros_like,
        "ones_like": lambda x: torch.ones_like(x, dtype=torch.int32),
        "full_like": lambda x: torch.full_like(x, 3.0, memory_format=torch.contiguous_format),
        "rand_like": torch.rand_like,
        "like_last": lambda x: torch.zeros_like(x, memory_format=torch.channels_last),
        "empty_like": torch.empty_like,
        "empty_strided": lambda x: torch.empty_strided(x.size(), x.stride()),
        "new_empty_strided": lambda x: x.new_empty_strided(x.size(), x.stride()),
        "new_zeros": lambda x: x.new_zeros(x.shape),
        "zeros": lambda x: torch.zeros(x.shape),
        "ones_view": lambda x: torch.ones(3, 4).t(),
        "arange": lambda x: torch.arange(4)[1:],
        "in_gaps": _in_gaps,
        "gaps_twice": lambda x: _in_gaps(x) + 1,
        "slice_of_gaps": lambda x: _in_gaps(x)[:, 1:],
        "empty_permuted": lambda x: torch.empty_permuted(x.shape, (1, 0, 3, 2)),
        "eye": lambda x: torch.eye(3),
        "tensor": lambda x: torch.tensor([1.0, 2.0]),
        "expanded": lambda x: torch.ones(1).expand(4),
    },
    "updates of results": {
        "written": _written,
        "inplace": lambda x: x.clone().add_(1),
        "inplace_view": _part_written,
        "copy": lambda x: torch.zeros(x.shape).copy_(x),
        "out": lambda x: torch.add(x.detach(), 1, out=torch.empty(0)),
        "fill": lambda x: torch.empty_strided(x.size(), x.stride()).fill_(2),
        "relu_": lambda x: F.relu(x * 1, inplace=True),
        "transpose_": lambda x: (x + 1).transpose_(0, 1),
        "unsqueeze_": lambda x: (x + 1).unsqueeze_(0),
        "index_put_": lambda x: x.clone().index_put_((torch.tensor([0]),), torch.tensor(1.0)),
        "set_item": _item_set,
        "resize_": lambda x: torch.empty(0).resize_(3, 4),
    },
}

# Of a tensor that they update; it does not need a gradient.
UPDATES: dict[str, Function] = {
    "add_": lambda x: x.add_(1),
    "twice": lambda x: (x.mul_(2), x.add_(1)),
    "part": lambda x: (x[:, :1].zero_(), x),
    "part_only": lambda x: x[:, :1].add_(1),
    "and result": lambda x: (x.add_(1) * 2, x),
    "copy_": lambda x: x.copy_(x.flip(0)),
    "view of it": lambda x: x.add_(1).transpose(1, 2),
    "nothing": lambda x: (x.sub_(1), None)[1],
    "detached": lambda x: x.detach().add_(1),
}


def base() -> T:
    return torch.linspace(-2, 2, 2 * 4 * 6 * 6).reshape(2, 4, 6, 6)


LAYOUTS: dict[str, Callable[[], T]] = {
    "contiguous": base,
    "transposed": lambda: base().transpose(2, 3),
    "channels last": lambda: base().contiguous(memory_format=torch.channels_last),
    "gaps": lambda: torch.linspace(-2, 2, 2 * 4 * 6 * 9).reshape(2, 4, 6, 9)[..., :6],
    "offset": lambda: torch.linspace(-2, 2, 2 * 5 * 6 * 6).reshape(2, 5, 6, 6)[:, 1:],
    "expanded": lambda: base()[:, :1].expand(-1, 4, -1, -1),
    "one": lambda: base()[:, :1],
    "one last": lambda: base()[..., :1, :1].contiguous(memory_format=torch.channels_last),
    "none": lambda: base()[:0],
}
