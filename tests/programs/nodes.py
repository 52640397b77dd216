"""A state program as a tree of statements and ``with`` blocks, and as text."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F

from programs import prelude

FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True)
class Node:
    """A statement, or a ``with`` block.

    Attributes:
        text: Its line; a block's without the colon.
        body: What stands in the block.
    """

    text: str
    body: tuple[Node, ...] = ()

    def lines(self, indent: int = 1) -> Iterator[str]:
        """Yield its lines."""
        yield "    " * indent + self.text + (":" if self.body else "")
        for each in self.body:
            yield from each.lines(indent + 1)


@dataclass(frozen=True)
class StateProgram:
    """A random function and its calls.

    Attributes:
        seed: Makes the same one again.
        modules: Assignments of what the function and the calls use.
        parameters: Names of the function's parameters.
        body: The function's statements.
        results: The names that it returns.
        calls: The statements of each call.
        inference: Whether blocks in inference mode are that, or else under ``no_grad``.
    """

    seed: int
    modules: tuple[Node, ...]
    parameters: tuple[str, ...]
    body: tuple[Node, ...]
    results: tuple[str, ...]
    calls: tuple[tuple[Node, ...], ...]
    inference: bool = True

    @property
    def source(self) -> str:
        """The program as text, without what ``prelude.py`` has."""
        lines = [line for node in self.modules for line in node.lines(0)]
        lines += ["", f"def f({', '.join(self.parameters)}):"]
        lines += [line for node in self.body for line in node.lines()]
        lines += [f"    return ({''.join(f'{name}, ' for name in self.results)})"]
        for number, call in enumerate(self.calls):
            lines += ["", f"def call_{number}(f):"]
            lines += [line for node in call for line in node.lines()] or ["    pass"]
        names = "".join(f"call_{number}, " for number in range(len(self.calls)))
        return "\n".join([*lines, "", f"CALLS = ({names})", ""])

    def text(self, *, exact: bool = False, device: str = "cpu", inference: bool = True) -> str:
        """Return the source for a device; with all floating-point types wide if it is exact.

        Without ``inference``, blocks in inference mode are under ``no_grad`` instead.
        """
        text = self.source
        if exact:
            text = re.sub(rf"torch\.(?:{'|'.join(FLOATS)})\b", "torch.float64", text)
            autocast = r"torch\.autocast\([^()]*float64[^()]*\)"
            text = re.sub(autocast, "contextlib.nullcontext()", text)
        if not (inference and self.inference):
            text = text.replace("torch.inference_mode(False)", "torch.enable_grad()")
            text = text.replace("torch.inference_mode()", "torch.no_grad()")
        return text.replace('"cpu"', f'"{device}"') if device != "cpu" else text

    def __str__(self) -> str:
        return self.source


def space_of(
    program: StateProgram, *, exact: bool = False, device: str = "cpu", inference: bool = True
) -> dict[str, Any]:
    """Return a program's names, ready to be called; lines can be looked up as a cell's can."""
    text = program.text(exact=exact, device=device, inference=inference)
    name = f"<state program {program.seed}{' exact' * exact}{' no_grad' * (not inference)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = names()
    exec(compile(text, name, "exec"), space)
    return space


def names() -> dict[str, Any]:
    """Return what is there before a program begins."""
    return {**vars(prelude), "F": F, "__name__": "state_program"}


__all__ = ["Node", "StateProgram", "names", "space_of"]
