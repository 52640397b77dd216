"""What a state program's function may say: statements that the state of torch changes.

They are smooth: half precision rounds at other places when it is compiled, and a comparison would
make another element of that.  A line that begins with ``!`` assigns nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from programs.statements import Scope

HALVES = ("torch.float16", "torch.bfloat16")

# Headers of blocks inside of a function.
BLOCKS = (
    'torch.autocast("cpu", torch.float16)',
    'torch.autocast("cpu", torch.bfloat16)',
    'torch.autocast("cpu", torch.bfloat16)',
    'torch.autocast("cpu", enabled=False)',
    'torch.autocast("cpu", torch.float16, cache_enabled=False)',
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.set_grad_enabled(False)",
    "torch.set_grad_enabled(True)",
    "torch.inference_mode()",
    "torch.inference_mode(False)",
    'torch.no_grad(); torch.autocast("cpu", torch.bfloat16)',
    "stream()",
)

# What takes and returns rows of n numbers.
MODULES = (
    "nn.Linear({n}, {n})",
    "nn.Linear({n}, {n}, bias=False)",
    "nn.LayerNorm({n})",
    "nn.Sequential(nn.Linear({n}, 4), nn.GELU(), nn.Linear(4, {n}))",
    "nn.utils.parametrizations.weight_norm(nn.Linear({n}, {n}))",
    "parametrized(nn.Linear({n}, {n}))",
    "nn.BatchNorm1d({n})",
    "Twice({n})",
)


def smooth(s: Scope) -> str:
    """A smooth function of each element."""
    x = s.float()
    return s.rng.choice(
        [
            f"torch.tanh({x})",
            f"torch.sigmoid({x})",
            f"F.gelu({x})",
            f"F.silu({x})",
            f"torch.sin({x})",
            f"torch.exp(-{x} * {x})",
            f"torch.sqrt({x} * {x} + 1)",
            f"1 / ({x} * {x} + 1)",
            f"F.softplus({x})",
            f"{x} * {x} * 0.25",
            f"-{x}",
        ]
    )


def arithmetic(s: Scope) -> str:
    """Two tensors, or a tensor and a number."""
    x = s.float()
    y = s.rng.choice([s.partner(x), s.partner(x), s.number()])
    return s.rng.choice(
        [
            f"{x} + {y}",
            f"{x} - {y}",
            f"{x} * {y}",
            f"torch.add({x}, {y}, alpha=0.5)",
            f"{x} / ({x} * {x} + 1)",
            f"torch.lerp({x}, {x} * {y}, 0.25)",
            f"torch.addcmul({x}, {x}, {x}, value=0.1)",
        ]
    )


def product(s: Scope) -> str:
    """What autocast takes in half precision."""
    x = s.pick(lambda t: t.is_floating_point() and t.dim() == 2)
    last = s.values[x].shape[-1]
    y = s.pick(lambda t: t.is_floating_point() and t.dim() == 2 and t.shape[-1] == last)
    return s.rng.choice(
        [
            f"{x} @ {y}.mT / {last}",
            f"F.linear({x}, {y}) / {last}",
            f"torch.mm({x}, {y}.t()) / {last}",
            f"torch.addmm({x}.sum(), {x}, {y}.t(), alpha=0.1)",
            f"torch.bmm({x}[None], {y}.t()[None])[0] / {last}",
            f"torch.einsum('ij,kj->ik', {x}, {y}) / {last}",
            f"F.scaled_dot_product_attention({x}[None], {y}[None], {y}[None])[0]",
        ]
    )


def reduction(s: Scope) -> str:
    """Fewer elements, or as many of whole rows; some that autocast takes in float32."""
    x = s.float()
    dim, keep = s.dim(x), s.rng.choice(["", ", keepdim=True"])
    return s.rng.choice(
        [
            f"{x}.sum({dim}{keep}) * 0.5",
            f"{x}.mean({dim}{keep})",
            f"{x}.mean()",
            f"torch.softmax({x}, {dim})",
            f"torch.log_softmax({x}, {dim})",
            f"torch.logsumexp({x}, {dim}{keep})",
            f"({x} * 0.1).cumsum({dim})",
            f"F.mse_loss({x}, {x} * 0.5)",
            f"F.smooth_l1_loss({x}, {x} * 0.5)",
            f"F.layer_norm({x}, ({s.values[x].shape[-1]},), eps=0.1)",
            f"F.normalize({x} + 2, dim={dim})",
        ]
    )


def view(s: Scope) -> str:
    """The same elements, or some of them."""
    x = s.pick(lambda t: t.dim() > 0)
    dim = s.dim(x)
    size = s.values[x].shape[dim]
    return s.rng.choice(
        [
            f"{x}.transpose({dim}, 0)",
            f"{x}.reshape(-1)",
            f"{x}.unsqueeze({dim})",
            f"{x}.narrow({dim}, 0, {max(size // 2, 1)})",
            f"{x}[..., ::2]",
            f"{x}.contiguous()",
            f"{x}.clone()",
            f"torch.cat([{x}, {x} * 2], {dim})",
            f"{x}.detach()",
            f"{x}.expand_as({x})",
        ]
    )


def conversion(s: Scope) -> str:
    """Another dtype, by name or by the state."""
    x = s.float()
    return s.rng.choice(
        [
            f"{x}.to({s.rng.choice(HALVES)})",
            f"{x}.to(torch.float32)",
            f"{x}.to(torch.float64)",
            f"{x}.to(torch.get_default_dtype())",
            f"{x} * torch.is_grad_enabled()",
            f'{x} + torch.is_autocast_enabled("cpu")',
            f"{x} * (1 + torch.is_inference_mode_enabled())",
        ]
    )


def factory(s: Scope) -> str:
    """A tensor whose dtype is the default one."""
    x = s.pick(lambda t: t.dim() > 0)
    last = s.values[x].shape[-1]
    return s.rng.choice(
        [
            f"{x} + torch.ones({last})",
            f"{x} * torch.full((), 0.5)",
            f"{x} + torch.tensor(0.25)",
            f"torch.arange({last}) / 4",
            f"{x} * torch.linspace(0, 1, {last})",
            f"{x} + torch.zeros_like({x}, requires_grad=True)",
            f"torch.full({list(s.values[x].shape)}, 0.75)",
        ]
    )


def called(s: Scope) -> str:
    """A module."""
    x = s.float()
    name = s.rng.choice(["m0", "m0", "m1"])
    return s.rng.choice([f"{name}({x})"] * 4 + [f"{name}.weight * 0.5", f"{name}({x}).sum()"])


def update(s: Scope) -> str:
    """A tensor changed in place."""
    x = s.float()
    y = s.rng.choice([s.partner(x), s.number()])
    return "!" + s.rng.choice(
        [
            f"{x}.add_({y})",
            f"{x}.mul_(0.5)",
            f"{x}.tanh_()",
            f"{x}.copy_({x} * 0.5)",
            f"{x}[..., :1] = 0.5",
            f"{x}.detach().mul_(0.5)",
            f"{x}.requires_grad_()",
        ]
    )


def transform(s: Scope) -> str:
    """Function transforms."""
    x = s.pick(lambda t: t.is_floating_point() and t.dim() > 0)
    return s.rng.choice(
        [
            f"torch.func.grad(lambda t: total(t.sin()))({x})",
            f"torch.func.vmap(lambda t: t * t.mean())({x})",
            f"torch.func.jvp(torch.sin, ({x},), ({x},))[1]",
            f"torch.func.vjp(torch.tanh, {x})[1]({x})[0]",
            f"torch.func.vmap(torch.func.grad(lambda t: total(t * t)))({x})",
        ]
    )


def checkpointed(s: Scope) -> str:
    """What backward computes again, in the state that it was computed in."""
    x = s.float()
    inner = s.rng.choice(
        ["torch.tanh(t) * t", "(t @ t.mT).sin()", "m0(t)", "F.gelu(m0(t))", "torch.softmax(t, -1)"]
    )
    return f"checkpoint(lambda t: {inner}, {x}, use_reentrant=False)"


def gradient(s: Scope) -> str:
    """Gradients within the function."""
    x = s.float()
    leaves = [n for n, v in s.values.items() if v.requires_grad and v.is_floating_point()]
    y = s.rng.choice(leaves)
    return s.rng.choice(
        [
            f"torch.autograd.grad(total({x}), {y}, retain_graph=True)[0]",
            f"torch.autograd.grad(total({x}), {y}, retain_graph=True, create_graph=True)[0]",
            f"!total({x}).backward(retain_graph=True)",
            f"!backward({x}, keep=True)",
            f"{y}.grad * 0.5",
        ]
    )


def hook(s: Scope) -> str:
    """A hook on a tensor."""
    x = s.float()
    return "!" + s.rng.choice(
        [
            f"{x}.register_hook(lambda g: g * 0.5)",
            f"{x}.retain_grad()",
        ]
    )


STATEMENTS: tuple[Callable[[Scope], str], ...] = (
    *(smooth,) * 3,
    *(arithmetic,) * 3,
    *(product,) * 3,
    *(reduction,) * 2,
    view,
    conversion,
    factory,
    *(called,) * 3,
    *(update,) * 2,
    transform,
    checkpointed,
    gradient,
    hook,
)


__all__ = ["BLOCKS", "MODULES", "STATEMENTS"]
