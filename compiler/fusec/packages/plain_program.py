"""What a plain program is: buffers, and steps that are kernels or operators.

What is bundled (products, convolutions, attention on the CPU) is both: a package's own library has
it, and where torch is, torch's operator runs.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import torch

from fusec.packages import bundled
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target


@dataclass(frozen=True)
class PackagedKernel:
    """A kernel's text as it is in use.

    Attributes:
        name: Its name where it was first met.
        entry: The function to call.
        text: The file.
        state: ``generated``, ``tuned`` or ``edited``.
        target: Its target's name.
        checks: What its status numbers mean.
        digest: Of text and entry.
    """

    name: str
    entry: str
    text: str
    state: str
    target: str
    checks: tuple[str, ...]
    digest: str

    @property
    def symbol(self) -> str:
        """The function's name in a package's library."""
        return f"k_{self.digest[:20]}"

    @property
    def member(self) -> str:
        """The member that holds the text."""
        suffix = ".cpp" if isinstance(find_target(self.target), LibraryTarget) else ".py"
        return f"kernels/{_plain_letters(self.name) or 'kernel'}-{self.digest[:20]}{suffix}"


def _plain_letters(name: str) -> str:
    """Return a name in letters that a file may have on every system: ``schärfe`` is scharfe."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"\W", "_", plain.lower(), flags=re.ASCII).strip("_")[:60]


@dataclass(frozen=True)
class KernelStep:
    """A kernel's launch: buffers and sizes, in the order of its parameters."""

    kernel: PackagedKernel
    name: str
    buffers: tuple[int, ...]
    written: tuple[int, ...]
    sizes: tuple[str, ...]


@dataclass(frozen=True)
class OperatorStep:
    """A call of ATen, and the same by a function of the package's, where it is bundled.

    Attributes:
        json: What the loader reads.
        buffers: That it reads.
        outputs: That it makes.
        own: The call of the bundled function; None where there is none.
        reason: Why there is none.
    """

    json: dict[str, Any]
    buffers: tuple[int, ...]
    outputs: tuple[int, ...]
    own: bundled.OwnCall | None
    reason: str


PlainStep = KernelStep | OperatorStep


@dataclass
class PlainProgram:
    """What ``plain_program`` returns; lists are as the loader's JSON has them."""

    name: str
    buffers: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[dict[str, Any]] = field(default_factory=list)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    steps: list[PlainStep] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    updates: list[dict[str, int]] = field(default_factory=list)
    needs_torch: list[str] = field(default_factory=list)
    guards: list[dict[str, Any]] = field(default_factory=list)
    fixed: list[str] = field(default_factory=list)


class Weights:
    """The tensors that programs share: each memory once."""

    def __init__(self) -> None:
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self._known: dict[tuple[Any, ...], int] = {}
        self._names: set[str] = set()

    def number(self, tensor: torch.Tensor, name: str) -> int:
        """Return a weight's number, giving it one if it has none yet."""
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        if key not in self._known:
            label, count = name, 2
            while label in self._names:
                label, count = f"{name}_{count}", count + 1
            self._names.add(label)
            self._known[key] = len(self.tensors)
            self.tensors.append((label, tensor.detach()))
        return self._known[key]


__all__ = ["KernelStep", "OperatorStep", "PackagedKernel", "PlainProgram", "PlainStep", "Weights"]
