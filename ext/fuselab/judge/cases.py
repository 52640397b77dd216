"""The inputs that an answer is tried on: other sizes, fresh values, adversarial ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fusec.verify.comparison.compare import compare_outputs
from fusec.verify.comparison.words import describe as describe_error
from fusec.verify.isolation.layout import Case
from fusec.verify.trials.inputs import Kind, fresh_inputs, secret_seed
from fuselab.judge.task import TensorTask

_WORDS: dict[Kind, str] = {
    "similar": "on other values",
    "adversarial": "on zeros of both signs, denormals and large values",
    "nonfinite": "on NaN and infinities",
}


@dataclass(frozen=True)
class Asked:
    """Inputs, and what eager makes of them.

    Attributes:
        task: What is asked.
        inputs: The inputs.
        eager: The reference's results.
        label: What is special about the inputs, for messages.
        size: The size that they were made for.
    """

    task: TensorTask
    inputs: tuple[torch.Tensor, ...]
    eager: tuple[torch.Tensor, ...]
    label: str
    size: int

    @functools.cached_property
    def exact(self) -> tuple[torch.Tensor, ...] | None:
        """The reference's results in float64, worked out when asked for; None if it has none."""
        try:
            wide = [t.double() if t.is_floating_point() else t for t in self.inputs]
            return tuple(self.task.results(*wide))
        except (RuntimeError, TypeError):
            return None

    @property
    def case(self) -> Case:
        """The case, as the process that runs it needs it: outputs are shapes only."""
        outputs = tuple(torch.empty_like(each).contiguous() for each in self.eager)
        return Case((*self.inputs, *outputs), (), self.label)

    def wrong(self, outputs: tuple[torch.Tensor, ...]) -> str:
        """Return in words what differs; empty if nothing does."""
        # What is eager's to the bit needs no float64.
        if all(map(_identical, outputs, self.eager)):
            return ""
        names = ["the result"] if len(outputs) == 1 else [f"result {n}" for n in range(9)]
        found = compare_outputs(names[: len(outputs)], outputs, self.eager, self.exact)
        wrong = [
            n for n, each in enumerate(found) if not each.ok and not self._accurate(n, outputs[n])
        ]
        if not wrong:
            return ""
        position, bad = wrong[0], found[wrong[0]]
        said = describe_error(bad, self.eager[position].dtype).replace("`", "")
        if math.isnan(bad.against_eager) and outputs[position].shape == self.eager[position].shape:
            mine, theirs = outputs[position][bad.worst], self.eager[position][bad.worst]
            if mine.numel() == theirs.numel() == 1:
                said += f": it is {mine.item():.3g}, eager's is {theirs.item():.3g}"
        return said

    def wrong_in(self, places: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> str:
        """Return in words what differs in some elements; empty if nothing does.

        Args:
            places: Of each result, which elements.
            values: Of each result, what was found there, as float64.
        """
        few = [t.reshape(-1)[at] for t, at in zip(self.eager, places, strict=True)]
        found = [each.to(t.dtype) for t, each in zip(few, values, strict=True)]
        if all(map(_identical, found, few)):
            return ""
        wide = self.exact
        exact = wide and tuple(t.reshape(-1)[at] for t, at in zip(wide, places, strict=True))
        part = Asked(self.task, self.inputs, tuple(few), self.label, self.size)
        part.__dict__["exact"] = exact  # as `cached_property` keeps it
        return part.wrong(tuple(found))

    def _accurate(self, position: int, output: torch.Tensor) -> bool:
        """Whether a result is as near to float64 as the task asks for."""
        slack = self.task.slack
        if not slack or self.exact is None:
            return False
        exact = self.exact[position]
        if output.shape != exact.shape or output.dtype != self.eager[position].dtype:
            return False
        finite = exact[exact.isfinite()]
        most = float(finite.abs().max()) if finite.numel() else 0.0
        return torch.allclose(output.double(), exact, rtol=0.0, atol=slack * most, equal_nan=True)


def asked(task: TensorTask, inputs: tuple[torch.Tensor, ...], label: str, size: int) -> Asked:
    """Ask the reference."""
    eager = tuple(each.contiguous() for each in task.results(*inputs))
    return Asked(task, inputs, eager, label, size)


def _identical(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and torch.equal(one, other)


def made(task: TensorTask, size: int) -> tuple[torch.Tensor, ...]:
    """Return inputs of a size, from a seed that nobody can foresee."""
    generator = torch.Generator().manual_seed(secret_seed())
    return tuple(each.contiguous() for each in task.inputs(generator, size))


def all_asked(task: TensorTask) -> Iterator[Asked]:
    """Yield everything that an answer is tried on, the largest last."""
    for size in task.sizes:
        first = made(task, size)
        yield asked(task, first, f"at size {size}", size)
        kinds = task.kinds if size == max(task.sizes) else task.kinds[:1]
        for kind in kinds:
            label = f"{_WORDS[kind]}, at size {size}"
            yield asked(task, tuple(fresh_inputs(first, kind=kind)), label, size)
    size = task.timed_size
    yield asked(task, made(task, size), f"at size {size}, the one that is timed", size)


__all__ = ["Asked", "all_asked", "asked", "made"]
