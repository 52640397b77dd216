"""Products with weights of few bits, for the tests with and without a GPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F

FP8 = torch.float8_e4m3fn


def in_turns(q: torch.Tensor) -> torch.Tensor:
    """The low half of a byte, then the high one."""
    return torch.stack([q & 15, q >> 4], -1).reshape(q.shape[0], -1)


def high_first(q: torch.Tensor) -> torch.Tensor:
    return torch.stack((q >> 4, q & 0xF), dim=2).view(q.shape[0], q.shape[1] * 2)


def halves(q: torch.Tensor) -> torch.Tensor:
    """All low halves, then all high ones."""
    return torch.cat([q & 15, q >> 4], -1)


UNPACKED = {"in turns": in_turns, "high first": high_first, "halves": halves}


def quantize(y: torch.Tensor, to: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    most = 448.0 if to == FP8 else 127.0
    scale = y.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    y = y / scale
    y = y if to == FP8 else y.round()
    return y.clamp(-most, most).to(to), scale


def gated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(a.float()) * b.float()
