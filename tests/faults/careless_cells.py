"""The cells of careless edits: what is computed, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def _adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    return p.sub_(1e-3 * m / (v.sqrt() + 1e-8))


def _four_bits(w: torch.Tensor) -> torch.Tensor:
    return torch.stack([(w & 15).float() - 8, (w >> 4).float() - 8], 1)


def _loss(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, t, ignore_index=-100)


def _normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def cells() -> dict[str, Made]:
    """Return them by name; those whose names begin with "any" are for every size."""
    draw = torch.Generator().manual_seed(0)

    def data(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    def whole(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=draw)

    labels = whole(13, 30)
    labels[::4] = -100
    mask = data(20, 37) < -0.5
    b = data(5)
    return {
        "least": (lambda x: x.argmin(0), (data(40, 50),)),
        "pool": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (data(2, 3, 17, 19),)),
        "loss": (_loss, (data(30, 13), labels)),
        "rows": (lambda w, i: F.embedding(i, w) * 2.0, (data(50, 24), whole(50, 7, 9))),
        "picked": (lambda x, i: x[i] * 2, (data(24, 60), whole(24, 9))),
        "batch": (
            lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True, 0.1, 1e-5),
            (data(6, 5, 7, 7), data(5), b, data(5), data(5).abs() + 0.1),
        ),
        "added": (
            lambda x, i, s: x.index_add(0, i, s),
            (data(20, 12), whole(20, 31), data(31, 12)),
        ),
        "summed": (lambda x: x.cumsum(0), (data(37, 21),)),
        "largest so far": (lambda x: torch.cummax(x, 1), (data(37, 21),)),
        "variance": (lambda x: x.var(-1), (data(24, 45),)),
        "normed": (_normed, (data(24, 48), data(48))),
        "groups": (lambda x, w, b: F.group_norm(x, 3, w, b), (data(4, 6, 5, 5), data(6), data(6))),
        "blended": (lambda x, y: x.mul_(0.9).add_(y, alpha=0.1), (data(40, 33), data(40, 33))),
        "adam": (_adam, (data(300), data(300), data(300), data(300).abs())),
        "dropped": (lambda x: F.dropout(x, 0.3, True) * 2, (data(40, 33),)),
        "bias": (lambda x, b: (x + b).relu(), (data(17, 29), data(29))),
        "four bits": (_four_bits, (whole(256, 32, 40).to(torch.uint8),)),
        "masked": (
            lambda x, m: torch.softmax(x.masked_fill(m, -float("inf")), -1),
            (data(20, 37), mask),
        ),
        "divided": (lambda a, b: a // b, (whole(100, 20, 30) - 50, whole(8, 30) + 1)),
        "halves": (lambda x: x.sum(-1), (data(24, 300).half(),)),
        "huber": (F.huber_loss, (data(33, 21), data(33, 21))),
        "two": (lambda x: (x.sum(1), x.amax(1)), (data(33, 21),)),
        "counts": (
            lambda i: torch.zeros(11, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i)),
            (whole(11, 200),),
        ),
        "some": (lambda x: ((x > 1).any(1), (x > -3).all(1)), (data(20, 33),)),
        "likely": (
            lambda x, t: F.nll_loss(F.log_softmax(x, 1), t, reduction="none"),
            (data(30, 13), whole(13, 30)),
        ),
        "triangle": (lambda x: torch.tril(x, 1).exp(), (data(23, 23),)),
        "any columns": (lambda x: x.sum(0), (data(33, 70),)),
        "any places": (
            lambda x, i, s: x.index_add(0, i, s),
            (data(200, 12), torch.arange(8) * 3, data(8, 12)),
        ),
        "any": (lambda x: x * 2 + 1, (data(33, 20),)),
    }
