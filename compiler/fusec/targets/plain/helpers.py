"""The few functions of plain kernels that ``<cmath>`` does not have: texts of ``helpers.h``."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib.resources import files

_MARK, _NEEDS = "//@ name: ", "//@ needs: "


@functools.cache
def _library() -> dict[str, tuple[tuple[str, ...], str]]:
    source = files("fusec.targets.plain").joinpath("helpers.h").read_text(encoding="utf-8")
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for block in source.split(_MARK)[1:]:
        name, _, text = block.partition("\n")
        needs: tuple[str, ...] = ()
        if text.startswith(_NEEDS):
            line, _, text = text.partition("\n")
            needs = tuple(line.removeprefix(_NEEDS).split())
        found[name] = (needs, text.strip("\n"))
    return found


def names() -> frozenset[str]:
    """Return the names of all helpers: no parameter of a kernel is called so."""
    return frozenset(_library())


def helper_texts(wanted: Iterable[str]) -> list[str]:
    """Return the texts of helpers and of those that they call, what is called first."""
    found: dict[str, str] = {}

    def add(name: str) -> None:
        needs, text = _library()[name]
        for need in needs:
            add(need)
        found.setdefault(name, text)

    for name in sorted(wanted):
        add(name)
    return list(found.values())


__all__ = ["helper_texts", "names"]
