"""The models of the suite, by name: random weights from configurations, nothing downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

SIZES = ("small", "real")


@dataclass(frozen=True)
class Model:
    """A module with a batch of inputs.

    Attributes:
        module: With random weights; its ``forward`` returns one tensor or a tuple of them.
        inputs: Positional arguments of ``forward``.
        kwargs: Named arguments of ``forward``.
    """

    module: nn.Module
    inputs: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


Build = Callable[[str], Model]
_BUILDERS: dict[str, Build] = {}


def model(name: str) -> Callable[[Build], Build]:
    """Add a builder, which takes ``small`` or ``real`` and returns a ``Model``."""

    def add(build: Build) -> Build:
        _BUILDERS[name] = build
        return build

    return add


def names() -> tuple[str, ...]:
    """Return the names of all models, in the order of the files."""
    _load()
    return tuple(_BUILDERS)


def build(name: str, size: str = "small", seed: int = 0) -> Model:
    """Build a model with weights and inputs that depend on the seed alone."""
    _load()
    torch.manual_seed(seed)
    return _BUILDERS[name](size)


def _load() -> None:
    from models import language, science, vision  # noqa: F401  # they register themselves


__all__ = ["SIZES", "Model", "build", "model", "names"]
