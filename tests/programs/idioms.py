"""Statements of random programs that read a tensor in several places, as formulas of models do."""

from __future__ import annotations

import re

from programs.statements import Scope


def parts(s: Scope) -> str:
    """Several parts of one tensor, each put through something, and together again."""
    x = s.pick(lambda t: t.is_floating_point() and t.dim() > 0 and t.numel() > 0)
    dim = s.dim(x)
    size = s.values[x].shape[dim]
    width = s.rng.choice([1, 1, max(size // 2, 1), s.rng.randint(1, size)])
    starts = s.rng.sample(range(size - width + 1), min(size - width + 1, s.rng.randint(2, 4)))
    along = s.dim(x)
    each = [
        f"torch.softmax(p, {along})",
        f"(p * 0.1).cumsum({along})",
        f"p.sum({along}, keepdim=True)",
        f"p - p.mean({along}, keepdim=True)",
        f"p * 0.5 + p.amax({along}, keepdim=True)",
        f"F.normalize(p, dim={along})",
        "torch.tanh(p)",
        "F.gelu(p) * 2",
    ]
    done = s.rng.choice(each)
    narrow = [f"{x}.narrow({dim}, {start}, {width})" for start in starts]
    cut = ", ".join(narrow)
    mixed = " + ".join(re.sub(r"\bp\b", part, s.rng.choice(each)) for part in narrow)
    split = f"{x}.split({max(width, -(-size // 6))}, {dim})"
    return s.rng.choice(
        [
            f"torch.cat([{done} for p in ({cut},)], {dim})",
            f"torch.cat([{done} for p in {split}], {dim})",
            f"sum({done} for p in ({cut},))",
            mixed,
        ]
    )


def idiom(s: Scope) -> str:
    """What formulas of models look like: several reads of one tensor, laid otherwise each time."""
    x = s.pick(lambda t: t.is_floating_point() and t.dim() > 0 and t.numel() > 0)
    value = s.values[x]
    dim, along = s.dim(x), s.dim(x)
    last, size = value.shape[-1], value.shape[dim]
    y = s.pick(lambda t: t.shape == value.shape and t.is_floating_point())
    even = last - last % 2
    a, b = f"{x}[..., :{even}:2]", f"{x}[..., 1:{even}:2]"
    done = s.rng.choice(
        [
            "torch.softmax(t, -1)",
            "(t * 0.1).cumsum(-1)",
            "t - t.mean()",
            "t.amax(-1, keepdim=True) - t",
            "t / (t.abs().sum() + 1)",
            "torch.tanh(t)",
        ]
    )
    position = f"torch.arange({size}, device={x}.device)"
    third = f"({position} % 3 == 0)"
    columns = [1] * value.dim()
    columns[dim] = size
    options = [
        # Halves and neighbors turned, as positions are.
        f"torch.stack([{a} * 0.6 - {b} * 0.8, {a} * 0.8 + {b} * 0.6], -1).flatten(-2)",
        f"torch.cat([-{x}[..., {last // 2}:], {x}[..., :{last // 2}]], -1) * 0.5 + {x}",
        # Each with each.
        f"({x}.unsqueeze({dim}) - {x}.unsqueeze({dim})).abs().sum({along})",
        f"({x}.unsqueeze(-1) - {y}.unsqueeze(-2)).square().mean(-1)",
        f"({x}.unsqueeze(-1) * {y}.unsqueeze(-2)).softmax(-1).amax(-2)",
        # One after the other, and together again.
        f"torch.stack([{done} for t in {x}.unsqueeze(0).expand(2, *{x}.shape).unbind(0)], {dim})",
        f"torch.stack([{done} for t in {x}.reshape({size}, -1)[:5].unbind(0)], 0)",
        f"torch.cat([{done} for t in ({x}, {y}, {x} * 0.5)], {dim})",
        # Sums over two dimensions of one tensor, each of which the other reads.
        f"torch.softmax(torch.softmax({x}, {dim}), {along})",
        f"{x} - {x}.mean({dim}, keepdim=True) - {x}.mean({along}, keepdim=True) + {x}.mean()",
        f"{x} / ({x}.abs().sum({dim}, keepdim=True) + 1) + {x}.amax({along}, keepdim=True)",
        f"({x} * 0.1).cumsum({dim}).flip({dim}).softmax({along})",
        f"({x} * 0.1).flip({dim}).cumsum({dim}).flip({dim})",
        f"{x}.logcumsumexp({dim}).exp().clamp(max=9)",
        # Neighbors along a dimension.
        f"{x}.diff(dim={dim})",
        f"{x}.diff(dim={dim}, prepend={x}.narrow({dim}, 0, 1) * 2)",
        f"{x} - {x}.roll(1, {dim}) + {x}.roll(-1, {dim})",
        f"{x}.narrow({dim}, 0, {size - 1}) * {x}.narrow({dim}, 1, {size - 1})",
        f"{x}.unfold({dim}, {min(size, 3)}, 1).mean(-1)",
        f"{x}.unfold({dim}, {min(size, 2)}, {s.rng.randint(1, 3)}).softmax(-1).amax(-1)",
        # Masks made of positions.
        f"{x} + {x}.masked_fill({third}.reshape({columns}), 0.25).sum({along}, keepdim=True)",
        f"torch.where(({position} < {size // 2}).reshape({columns}), {x}, {y}.flip({dim}))",
        f"torch.where({x} > {x}.mean({dim}, keepdim=True), {x}, {y} * 0.5)",
        # The largest, and what stands there.
        f"{x}.sort({dim}).values.narrow({dim}, 0, {max(size // 2, 1)})",
        f"{x}.topk({min(size, 2)}, {dim}).values.sum({dim}, keepdim=True) + {x}",
        f"torch.take_along_dim({y}, {x}.argmin({dim}, keepdim=True), {dim}) + {x}",
        f"F.one_hot({x}.argmax({dim}), {size}).to({x}.dtype) * 0.5",
        f"torch.einsum('...i,...j->...ij', {x}, {y}).sum(-1)",
    ]
    if value.dim() >= 2:
        options += [
            f"torch.einsum('...ij,...kj->...ik', {x}, {y}) * 0.1",
            f"{x}.tril() + {x}.transpose(-1, -2).reshape({x}.shape).triu(1)",
            f"{x}[..., 0] * {x}[..., -1] + {x}[..., {last // 2}]",
            f"{x}[..., :1] * {x}[..., -1:] - {x}[..., -1:].amax({along}, keepdim=True)",
        ]
    if value.dim() == 4 and value.numel() < 20_000:
        options += [
            f"F.avg_pool2d({x}, 2, ceil_mode=True) + {x}.mean((2, 3), keepdim=True)",
            f"F.max_pool2d({x}, 2, 1, 1)",
            f"F.interpolate({x}, scale_factor=2)",
            f"F.pixel_unshuffle(F.interpolate({x}, scale_factor=2), 2)",
            f"F.adaptive_avg_pool2d({x}, (1, 2)) * 0.5",
        ]
    return s.rng.choice(options)


__all__ = ["idiom", "parts"]
