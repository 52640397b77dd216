"""What a state program may use: contexts, tensors and modules that a text makes again, and notes.

A repro carries this text with it, so it needs torch alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

# Where tensors are made, and by which part of themselves what is drawn is changed.
DEVICE, NUDGE = "cpu", 0.0
# What a run left behind: what it is, and the value.
notes: list[tuple[str, object]] = []


# -- values ---------------------------------------------------------------------------------


def drawn(shape: list[int], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the same random numbers each time."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
    if NUDGE:
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        return (value.double() * (1 + NUDGE * noise)).to(dtype).to(DEVICE)
    return value.to(dtype).to(DEVICE)


def tensor(
    shape: list[int],
    seed: int,
    dtype: torch.dtype = torch.float32,
    grad: bool = False,
    inference: bool = False,
    turned: bool = False,
    negated: bool = False,
) -> torch.Tensor:
    """Return an input: a leaf, or an inference tensor; in rows or in columns."""
    with torch.inference_mode(inference):
        value = drawn(shape, seed, dtype)
        if turned and value.dim() > 1:
            value = value.mT.contiguous().mT
        if negated:
            value = torch.complex(torch.zeros_like(value), -value).conj().imag
        return value.requires_grad_() if grad and not inference else value


def module(made: nn.Module, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a module with the same random parameters each time."""
    made = made.to(dtype).to(DEVICE)
    with torch.no_grad():
        for place, parameter in enumerate(made.parameters()):
            spread = max(parameter.shape[-1] if parameter.dim() else 1, 1) ** 0.5
            parameter.copy_(drawn(list(parameter.shape), seed + place, dtype) / spread)
    return made


class Doubled(nn.Module):
    """A parametrization: what stands for a parameter."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.tanh()


def parametrized(made: nn.Linear) -> nn.Linear:
    """Return a module whose weight is computed from a parameter."""
    nn.utils.parametrize.register_parametrization(made, "weight", Doubled())
    return made


class Twice(nn.Module):
    """The same parameter in two places, and a buffer that is updated."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.seen.add_(1)
        return self.inner(torch.tanh(self.inner(x)))


# -- contexts -------------------------------------------------------------------------------


@contextlib.contextmanager
def restored(put: Callable[[Any], Any], before: object, value: object) -> Iterator[None]:
    put(value)
    try:
        yield
    finally:
        put(before)


def default_dtype(dtype: torch.dtype) -> Any:
    return restored(torch.set_default_dtype, torch.get_default_dtype(), dtype)


def deterministic(on: bool = True) -> Any:
    before = torch.are_deterministic_algorithms_enabled()
    return restored(torch.use_deterministic_algorithms, before, on)


def threads(count: int) -> Any:
    return restored(torch.set_num_threads, torch.get_num_threads(), count)


def matmul_precision(name: str) -> Any:
    before = torch.get_float32_matmul_precision()
    return restored(torch.set_float32_matmul_precision, before, name)


def flush_denormal() -> Any:
    return restored(torch.set_flush_denormal, False, True)


def anomaly() -> Any:
    return torch.autograd.set_detect_anomaly(True, check_nan=False)


def stream() -> Any:
    """Another stream, which waits for all that came before, and is waited for."""
    if DEVICE == "cpu":
        return contextlib.nullcontext()
    return _other_stream()


@contextlib.contextmanager
def _other_stream() -> Iterator[None]:
    made = torch.cuda.Stream()
    made.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(made):
        yield
    torch.cuda.current_stream().wait_stream(made)


class Functions(TorchFunctionMode):
    """Sees all functions of torch, and changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Sees all operators, and changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def saved(way: str) -> Any:
    """Hooks on saved tensors, which return them otherwise than they were."""

    def unpack(value: torch.Tensor) -> torch.Tensor:
        if way == "turned" and value.dim() > 1:
            return value.mT.contiguous().mT
        if way == "gaps" and value.dim():
            return torch.stack([value, value], -1)[..., 0]
        return value.clone()

    return torch.autograd.graph.saved_tensors_hooks(lambda value: value, unpack)


# -- what is done with results --------------------------------------------------------------


def flat(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for each in value for t in flat(each)] if isinstance(value, (tuple, list)) else []


def weights_of(value: torch.Tensor) -> torch.Tensor:
    made = torch.linspace(0.5, 1.5, value.numel(), dtype=torch.float64, device=value.device)
    return made.reshape(value.shape).to(value.dtype)


def total(*values: object) -> torch.Tensor:
    """Return one number that depends on all elements."""
    floats = [t for t in flat(values) if t.is_floating_point()]
    kind = torch.get_default_dtype()
    return torch.stack([(t * weights_of(t)).sum().to(kind) for t in floats]).sum()


def backward(*values: object, keep: bool = False) -> None:
    """Ask for gradients of all results that have any."""
    ends = [t for t in flat(values) if t.requires_grad]
    if ends:
        torch.autograd.backward(ends, [weights_of(t) for t in ends], retain_graph=keep)


def gradients(values: object, *of: torch.Tensor, keep: bool = False) -> tuple[Any, ...]:
    """Return the gradients of those that have any."""
    ends = [t for t in flat(values) if t.requires_grad]
    of = tuple(t for t in of if t.requires_grad)
    if not ends or not of:
        return ()
    weights = [weights_of(t) for t in ends]
    return torch.autograd.grad(ends, of, weights, retain_graph=keep, allow_unused=True)


def state() -> tuple[object, ...]:
    """Return the state of torch, as far as a call could leave it changed."""
    rng = torch.get_rng_state()
    return (
        *((kind, torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")),
        *(torch.get_autocast_dtype(kind) for kind in ("cpu", "cuda")),
        ("cache", torch.is_autocast_cache_enabled()),
        ("gradients", torch.is_grad_enabled()),
        ("inference", torch.is_inference_mode_enabled()),
        torch.get_default_dtype(),
        torch.get_default_device(),
        ("deterministic", torch.are_deterministic_algorithms_enabled()),
        ("threads", torch.get_num_threads()),
        torch.get_float32_matmul_precision(),
        ("anomaly", torch.is_anomaly_enabled()),
        ("level", forward_ad._current_level),
        ("modes", torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        ("transform", torch._C._functorch.peek_interpreter_stack() is not None),
        ("hooks", torch._C._autograd._top_saved_tensors_default_hooks(True) is not None),
        ("warnings", torch.is_warn_always_enabled()),
        ("included", torch._C._dispatch_tls_local_include_set().raw_repr()),
        ("excluded", torch._C._dispatch_tls_local_exclude_set().raw_repr()),
        ("random", hash(rng.numpy().tobytes())),
        *(_state_of_gpu() if DEVICE != "cpu" else ()),
    )


def _state_of_gpu() -> tuple[object, ...]:
    stream = torch.cuda.current_stream() == torch.cuda.default_stream()
    rng = torch.cuda.get_rng_state()
    return (("default stream", stream), ("random on the GPU", hash(rng.numpy().tobytes())))


def note(what: str, value: object) -> None:
    notes.append((what, value))


def note_tensors(what: str, values: object) -> None:
    """Note tensors by their places, and None where there is no gradient."""
    parts = values if isinstance(values, tuple) else (values,)
    found = [each for part in parts for each in ([None] if part is None else flat(part))]
    for place, each in enumerate(found):
        note(f"{what} {place}", each)


def note_module(what: str, owner: nn.Module) -> None:
    for name, parameter in owner.named_parameters():
        note(f"{what}.{name}", parameter.detach().clone())
        if parameter.grad is not None:
            note(f"{what}.{name}.grad", parameter.grad.clone())
    for name, value in owner.named_buffers():
        note(f"{what}.{name}", value.clone())


__all__ = ["checkpoint", "notes"]
