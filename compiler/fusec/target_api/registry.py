"""Which targets there are: the folders of ``fusec/targets`` that have a ``target.py``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import overload

from fusec.target_api.base import LibraryTarget, PythonTarget, Target

AUTO = "auto"
_FOLDER = "fusec.targets"
_added: dict[str, Target] = {}


@cache
def _built_in() -> dict[str, Target]:
    found: dict[str, Target] = {}
    # by name: what a target is stands below what targets there are
    for folder in pkgutil.iter_modules(importlib.import_module(_FOLDER).__path__):
        module = f"{_FOLDER}.{folder.name}.target"
        if folder.ispkg and find_spec(module) is not None:
            target = importlib.import_module(module).TARGET
            assert target.name == folder.name
            found[target.name] = target
    return found


def all_targets() -> tuple[Target, ...]:
    """Return every target, those that are taken by themselves first."""
    known = {**_built_in(), **_added}
    return tuple(sorted(known.values(), key=lambda t: (not t.default_for, t.name)))


def find_target(name: str) -> Target:
    """Return a target by its name.

    Raises:
        KeyError: There is none.
    """
    return _added.get(name) or _built_in()[name]


def default_target(device: str) -> Target:
    """Return the target for tensors of a device where nobody asks for one.

    No kernel writes what is on a device that no target is for.

    Args:
        device: The type of torch's device.
    """
    known = all_targets()
    return next((target for target in known if device in target.default_for), known[0])


def chosen_target(wanted: str, device: str) -> Target:
    """Return the target of a kernel.

    Args:
        wanted: The option: a target's name, or ``auto``.
        device: The type of the device of what it writes; a target that cannot compute there makes
            way for the one that does so by default.
    """
    if wanted != AUTO and device in find_target(wanted).devices:
        return find_target(wanted)
    return default_target(device)


def add_target(target: Target) -> None:
    """Let a target that is no folder here be asked for, in this process, from now on."""
    assert isinstance(target, LibraryTarget | PythonTarget)
    if target.name in (AUTO, *_built_in()):
        raise ValueError(f"there is a target {target.name} already")
    _added[target.name] = target


def remove_target(name: str) -> None:
    """Forget a target that was added."""
    _added.pop(name, None)


class _Names(Sequence[str]):
    """What the option ``target`` takes, those that are added later included."""

    def _all(self) -> tuple[str, ...]:
        return (AUTO, *(target.name for target in all_targets()))

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        return self._all()[place]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())


NAMES: Sequence[str] = _Names()


def described() -> str:
    """Return every target with what it is for, in one sentence."""
    return "; ".join(f"{target.name}: {target.about}" for target in all_targets())


__all__ = [
    "AUTO",
    "NAMES",
    "add_target",
    "all_targets",
    "chosen_target",
    "default_target",
    "described",
    "find_target",
    "remove_target",
]
