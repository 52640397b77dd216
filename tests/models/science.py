"""Models of other kinds: a state-space scan, a diffusion transformer, embeddings, a graph."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from models.zoo import Model, model


class SelectiveScan(nn.Module):
    """A Mamba-style block: gated, causal convolution, a recurrence with data-dependent decay.

    The recurrence ``h[t] = exp(a[t]) h[t - 1] + b[t]`` goes through prefix sums of ``a`` within
    chunks, as implementations without a fused kernel do.
    """

    def __init__(self, width: int, states: int, chunk: int) -> None:
        super().__init__()
        self.states, self.chunk = states, chunk
        self.norm = nn.RMSNorm(width)
        self.into = nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)
        self.steps = nn.Linear(width, width)
        self.gates = nn.Linear(width, 2 * states)
        # Slow enough for exp(-a) to stay finite over a chunk.
        self.decay = nn.Parameter(torch.log(torch.linspace(0.1, 1, states)))
        self.skip = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, time, width) to the same shape."""
        batch, time, width = x.shape
        u, gate = self.into(self.norm(x)).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :time].transpose(1, 2))
        delta = F.softplus(self.steps(u))
        b, c = self.gates(u).chunk(2, -1)
        log_decay = -delta[..., None] * torch.exp(self.decay)
        update = (delta * u)[..., None] * b[:, :, None, :]
        state = u.new_zeros(batch, width, self.states)
        outputs = []
        for start in range(0, time, self.chunk):
            a = log_decay[:, start : start + self.chunk].cumsum(1)
            # state at t: exp(a_t) (state_0 + sum_s exp(-a_s) update_s)
            inner = (torch.exp(-a) * update[:, start : start + self.chunk]).cumsum(1)
            states = torch.exp(a) * (state[:, None] + inner)
            outputs.append((states * c[:, start : start + self.chunk, None, :]).sum(-1))
            state = states[:, -1]
        y = torch.cat(outputs, 1) + u * self.skip
        return x + self.out(y * F.silu(gate))


@model("mamba")
def mamba(size: str) -> Model:
    """A stack of selective scans."""
    width, states, depth = (32, 4, 2) if size == "small" else (512, 16, 8)
    layers = [SelectiveScan(width, states, 8) for _ in range(depth)]
    batch, time = (2, 32) if size == "small" else (4, 256)
    return Model(nn.Sequential(*layers), (torch.randn(batch, time, width),))


class DiTBlock(nn.Module):
    """Attention and MLP whose norms are shifted, scaled and gated by a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, width), with a condition of (batch, width)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition))[
            :, None
        ].chunk(6, -1)
        y = self.norm1(x) * (1 + scale1) + shift1
        batch, tokens, width = y.shape
        q, k, v = self.qkv(y).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width)
        x = x + gate1 * self.out(y)
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class DiT(nn.Module):
    """A diffusion transformer over latent patches, with a sinusoidal time embedding."""

    def __init__(self, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, 2)
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.classes = nn.Embedding(10, width)
        self.blocks = nn.ModuleList(DiTBlock(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, 16)
        self.width = width

    def forward(self, x: torch.Tensor, t: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Return the predicted noise and variance of each patch."""
        half = self.width // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = t[:, None] * rates.to(x.dtype)
        condition = self.time(torch.cat([angles.cos(), angles.sin()], -1)) + self.classes(label)
        y = self.patch(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            y = block(y, condition)
        return self.head(y)


@model("dit")
def dit(size: str) -> Model:
    """DiT (real: B/2)."""
    width, heads, depth = (64, 4, 2) if size == "small" else (768, 12, 12)
    batch, side = (2, 8) if size == "small" else (16, 32)
    inputs = (
        torch.randn(batch, 4, side, side),
        torch.randint(0, 1000, (batch,)),
        torch.randint(0, 10, (batch,)),
    )
    return Model(DiT(width, heads, depth), inputs)


class DLRM(nn.Module):
    """Embedding bags of several tables, pairwise interactions, two MLPs."""

    def __init__(self, rows: int, tables: int, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(13, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU()
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Take (batch, 13) features and (tables, batch, bag) rows; return (batch, 1) logits."""
        x = self.bottom(dense)
        vectors = torch.stack([x, *(bag(i) for bag, i in zip(self.bags, ids, strict=True))], 1)
        products = vectors @ vectors.transpose(1, 2)
        pairs = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x, pairs], 1))


@model("dlrm")
def dlrm(size: str) -> Model:
    """A recommendation model."""
    rows, tables, width, batch = (100, 4, 16, 8) if size == "small" else (100_000, 26, 64, 2048)
    inputs = torch.randn(batch, 13), torch.randint(0, rows, (tables, batch, 5))
    return Model(DLRM(rows, tables, width), inputs)


class GraphLayer(nn.Module):
    """Message passing: gather the ends of each edge, an MLP, add up at the targets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU())
        self.update = nn.GRUCell(width, width)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Map (nodes, width) given (2, edges) of node numbers."""
        source, target = edges
        messages = self.message(torch.cat([x[source], x[target]], -1))
        total = torch.zeros_like(x).index_add_(0, target, messages.to(x.dtype))
        count = x.new_zeros(len(x)).index_add_(0, target, x.new_ones(len(target)))
        return self.update(total / count.clamp(min=1)[:, None], x)


class GraphNet(nn.Module):
    """Some layers and a mean over the nodes of each graph by ``scatter_reduce``."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GraphLayer(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        """Return three logits for each of eight graphs."""
        for layer in self.layers:
            x = layer(x, edges)
        pooled = x.new_zeros(8, x.shape[1]).scatter_reduce(
            0, graph[:, None].expand_as(x), x, "mean", include_self=False
        )
        return self.head(pooled)


@model("gnn")
def gnn(size: str) -> Model:
    """A graph network."""
    nodes, edges, width, depth = (50, 200, 16, 2) if size == "small" else (50_000, 400_000, 128, 4)
    inputs = (
        torch.randn(nodes, width),
        torch.randint(0, nodes, (2, edges)),
        torch.randint(0, 8, (nodes,)),
    )
    return Model(GraphNet(width, depth), inputs)
