"""The databases of torch that the suite runs, each a module of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from ops.judge import Sample

# Name -> the module that has it; nothing is imported before it is asked for.
DATABASES = {
    "operators": "ops.unit",
    "errors": "ops.errors",
    "modules": "ops.modules",
    "optimizers": "ops.optimizers",
    "higher-order": "ops.higher_order",
    "module-tests": "ops.module_tests",
    "functional-tests": "ops.functional_tests",
    "functions": "ops.functions",
    "autocast": "ops.autocast",
    "transforms": "ops.transforms",
}


@dataclass(frozen=True)
class Asked:
    """What a run is to do.

    Attributes:
        directions: Of ``forward``, ``backward``, ``corner`` and ``strided``.
        dtypes: Names: ``float32``.
        samples: Samples a unit, at most.
        dynamic: Whether every size is symbolic.
    """

    directions: frozenset[str]
    dtypes: frozenset[str]
    samples: int
    dynamic: bool = False


@dataclass(frozen=True)
class Unit:
    """What is run, and reported, as one.

    Attributes:
        dtype: Name: ``float32``.
        direction: ``forward``, ``backward``, ``train`` ...
        run: Runs its samples through a backend.
    """

    dtype: str
    direction: str
    run: Callable[[str], list[Sample]]


class Database(Protocol):
    """What a database's module has."""

    def names(self) -> list[str]:
        """Return the names of what is in it."""

    def asked_units(self, name: str, asked: Asked) -> Iterator[Unit]:
        """Yield what there is to run of one of them."""


def database(name: str) -> Database:
    """Return a database by its name."""
    return import_module(DATABASES[name])  # type: ignore[return-value]


def short(dtype: object) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


__all__ = ["DATABASES", "Asked", "Database", "Unit", "database", "short"]
