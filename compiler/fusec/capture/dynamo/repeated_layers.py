"""Layers that a model repeats, compiled once: each call of one goes to the one compiled form.

Captured as a whole, a model of thirty equal layers takes TorchDynamo and AOTAutograd ten times as
long as one of two. What a layer reads is its parameters, which compiled code takes as inputs, so
the code of one serves all that are built alike. Known as regional compilation: PyTorch's recipe of
that name, and ``compile_repeated_blocks`` of diffusers.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

import torch
from torch import nn

# So few are captured about as fast as a whole.
LEAST = 2
# What TorchDynamo calls a layer where it captures what is around it.
LAYER = "a layer that is compiled once"
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
Forward = Callable[..., Any]
Made = TypeVar("Made", bound=Forward)


def repeated_layers(model: nn.Module) -> list[list[nn.Module]]:
    """Return the layers of a model that are built alike, each kind as a list; the outermost ones.

    They are members of one ``ModuleList``, ``ModuleDict`` or ``Sequential`` that have parts of
    their own and are of one class, with parameters, buffers and parts of the same names, shapes,
    dtypes, devices and modes.
    """
    found: list[list[nn.Module]] = []
    if isinstance(model, _CONTAINERS):
        kinds: dict[Hashable, list[nn.Module]] = {}
        for member in model.children():
            if any(True for _ in member.children()):
                kinds.setdefault(_kind(member), []).append(member)
        found += [kind for kind in kinds.values() if len(kind) >= LEAST]
    taken = {id(layer) for kind in found for layer in kind}
    for member in model.children():
        if id(member) not in taken:
            found += repeated_layers(member)
    return found


def _kind(layer: nn.Module) -> Hashable:
    modules = tuple((name, type(each), each.training) for name, each in layer.named_modules())
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    return modules, tuple(
        (name, each.shape, each.stride(), each.dtype, each.device, each.requires_grad)
        for name, each in tensors
    )


class RepeatedLayers(Generic[Made]):
    """The repeated layers of a model, which run compiled within ``with``, and in eager outside.

    A model that is used elsewhere is as it was: a layer has another ``forward`` only meanwhile.

    Args:
        model: Whose layers.
        make: Compiles a function; called once for each class of layers.

    Attributes:
        compiled: What it returned.
    """

    def __init__(self, model: nn.Module, make: Callable[[Forward], Made]) -> None:
        made: dict[type, Made] = {}
        self._forwards: dict[nn.Module, Forward] = {}
        for layer in _each(repeated_layers(model)):
            if "forward" in vars(layer):  # somebody has put another one in its place
                continue
            kind = type(layer)
            if kind not in made:
                made[kind] = make(kind.forward)
            call = functools.partial(_call, made[kind], layer)
            # What is around it is captured without it.
            self._forwards[layer] = torch.compiler.disable(call, reason=LAYER)
        self.compiled = tuple(made.values())
        self._lock = threading.Lock()
        self._depth = 0

    def notes(self) -> tuple[str, ...]:
        """Return how many layers there are of each class, in words."""
        counts = Counter(type(layer).__name__ for layer in self._forwards)
        return tuple(f"{count} x {name}" for name, count in counts.items())

    def __enter__(self) -> None:
        """Have the layers run compiled."""
        with self._lock:
            self._depth += 1
            for layer, forward in self._forwards.items():
                vars(layer).setdefault("forward", forward)  # somebody's own stays

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Have them run as they were written again, unless another thread is still within."""
        with self._lock:
            self._depth -= 1
            if not self._depth:
                for layer, forward in self._forwards.items():
                    if vars(layer).get("forward") is forward:
                        del layer.forward


def _call(compiled: Forward, layer: nn.Module, *args: Any, **kwargs: Any) -> Any:
    # What keeps saved tensors elsewhere may run a layer again in backward, where it is as it was
    # written, and hold what each saves against the other (``torch.utils.checkpoint``).
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return type(layer).forward(layer, *args, **kwargs)
    return compiled(layer, *args, **kwargs)


def _each(kinds: list[list[nn.Module]]) -> Iterator[nn.Module]:
    for kind in kinds:
        yield from kind


__all__ = ["LAYER", "LEAST", "RepeatedLayers", "repeated_layers"]
