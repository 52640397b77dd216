"""Writes state programs: random functions whose statements stand in random contexts.

A program is a function ``f`` and some calls of it, each in a state of torch of its own: the first
under ``no_grad``, say, the second within autocast with its ``backward()`` outside, the third on
inference tensors.  All of it is text, so that a program can be run by itself, and is a tree of
statements and ``with`` blocks, so that it can be shrunk.
"""

from __future__ import annotations

import contextlib
import gc
import random
from dataclasses import replace
from typing import Any

import torch

from programs import prelude
from programs.nodes import Node, StateProgram, names, space_of
from programs.state_calls import write_calls
from programs.state_statements import BLOCKS, MODULES, STATEMENTS
from programs.statements import Scope

MOST = 50.0
REFUSED = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    NotImplementedError,
    AttributeError,
    NameError,
)


class _Writer:
    """Writes a function, running each statement where it stands."""

    def __init__(self, rng: random.Random, space: dict[str, Any], inputs: dict[str, Any]) -> None:
        self.rng = rng
        self.space = space
        self.inputs = tuple(inputs)
        self.values: dict[str, torch.Tensor] = dict(inputs)
        self.count = 0

    def statements(self, wanted: int, depth: int = 0) -> tuple[Node, ...]:
        found: list[Node] = []
        for _ in range(wanted * 8):
            if len(found) >= wanted:
                break
            if depth < 2 and self.rng.random() < 0.3:
                node = self._block(depth)
            else:
                node = self._statement()
            if node is not None:
                found.append(node)
        return tuple(found)

    def _block(self, depth: int) -> Node | None:
        header = self.rng.choice(BLOCKS)
        before = dict(self.values)
        with contextlib.ExitStack() as stack:
            for each in header.split("; "):
                stack.enter_context(eval(each, self.space))
            body = self.statements(self.rng.randint(1, 3), depth + 1)
        if not body:
            self.values = before
            return None
        return Node(f"with {header.replace('; ', ', ')}", body)

    def _statement(self) -> Node | None:
        kind = self.rng.choice(STATEMENTS)
        scope = Scope(self.rng, self.values, self.inputs, mutates=True)
        name = f"v{self.count}"
        try:
            line = kind(scope)
            assigns = not line.startswith("!")
            line = f"{name} = {line}" if assigns else line[1:]
            exec(line, {**self.space, **self.values}, made := {})
        except REFUSED:
            if "torch.func." in line:
                _leave()
            return None
        if not assigns:
            return Node(line) if all(_is_tame(v) for v in self.values.values()) else None
        if not _is_tame(made[name]):
            return None
        self.values[name] = made[name]
        self.count += 1
        return Node(line)


def _is_tame(value: object) -> bool:
    if not isinstance(value, torch.Tensor) or value.numel() > 2000:
        return False
    try:
        value = value.detach()
        return bool(torch.isfinite(value).all()) and bool((value.abs() <= MOST).all())
    except RuntimeError:  # a view that autograd has lost
        return False


def write(seed: int, *, length: int = 0) -> StateProgram:
    """Write the state program of a seed.

    Args:
        seed: Any number.
        length: Statements; by default 1 to 4.
    """
    for attempt in range(50):
        program = _attempt(random.Random(seed * 50 + attempt), seed, length)
        if program is not None:
            return program
    raise RuntimeError(f"no program for seed {seed}")


def _attempt(rng: random.Random, seed: int, length: int) -> StateProgram | None:
    space = names()
    rows, columns = rng.choice([2, 4]), rng.choice([4, 8])
    modules = []
    for name in ("m0", "m1")[: rng.choice([0, 0, 1, 1, 1, 2])]:
        made = rng.choice(MODULES).format(n=columns)
        modules.append(Node(f"{name} = module({made}, {rng.randrange(1000)}, torch.float32)"))
        exec(modules[-1].text, space)
    shapes = {"a": [rows, columns]}
    if rng.random() < 0.7:
        shapes["b"] = rng.choice([[rows, columns], [columns, columns], [columns], [rows, 1]])
    if rng.random() < 0.2:
        shapes["c"] = [columns, rows]
    inputs = {
        n: prelude.tensor(shape, rng.randrange(1000), torch.float32, grad=rng.random() < 0.7)
        for n, shape in shapes.items()
    }
    writer = _Writer(rng, space, inputs)
    try:
        body = writer.statements(length or rng.randint(1, 4))
    except REFUSED:
        return None
    made = [name for name in writer.values if name not in shapes]
    if not made:
        return None
    # the last one comes last: nothing depends on it, so a hook sees all of its gradient
    results = rng.sample(made[:-1], min(len(made) - 1, rng.randint(0, 2)))
    if rng.random() < 0.05:
        results.append(rng.choice(list(shapes)))
    results.append(made[-1])
    owners = tuple(node.text.split(" ", 1)[0] for node in modules)
    extra, calls = write_calls(rng, shapes, owners)
    program = StateProgram(seed, (*modules, *extra), tuple(shapes), body, tuple(results), calls)
    return program if _runs(program) else None


def _runs(program: StateProgram) -> bool:
    """Whether the first call runs in eager."""
    space = space_of(replace(program, calls=program.calls[:1]))
    prelude.notes.clear()
    try:
        space["CALLS"][0](space["f"])
    except Exception:
        _leave()
        return False
    return True


def _leave() -> None:
    """Have what an exception left within a transform leave it now, and not whenever it is found.

    What comes later would be written otherwise than in a process that had run nothing before.
    """
    gc.collect()
    torch._C._set_fwd_grad_enabled(True)


__all__ = ["write"]
