"""What becomes of a compiled graph's outputs once its kernels have run.

AOTAutograd makes a graph functional: what it updates in place is returned, to be copied back, and
what is a view of an input is to be made anew from that input. This is the same as positions, for
the native program to do, or for Python where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.call.updates import copy_all

# What is put on outputs: which output, under which name, which dimensions have varying sizes.
Marks = tuple[tuple[int, str, frozenset[int]], ...]
# Outputs that are made from inputs: which output, which input, what makes it; None for the input.
Views = tuple[tuple[int, int, Callable[[torch.Tensor], torch.Tensor] | None], ...]


@dataclass(frozen=True)
class Epilogue:
    """Steps in the order in which they are done.

    Attributes:
        updates: The inputs that the first outputs are copied into; these are not returned.
        views: Outputs, counted from the first that is returned, that are inputs or views of them.
        marks: For TorchDynamo, where outputs become inputs of another graph.
    """

    updates: tuple[int, ...] = ()
    views: Views = ()
    marks: Marks = ()

    @property
    def changes_outputs(self) -> bool:
        """Whether what the caller gets is not just what the graph returns."""
        return bool(self.updates or self.views)

    def replaced(self) -> set[int]:
        """Return the graph's outputs that nobody reads: views are made from the inputs."""
        return {len(self.updates) + position for position, _, _ in self.views}

    def finish(self, inputs: Sequence[Any], outputs: list[Any]) -> list[Any]:
        """Do it, but for the marks: return what the caller of the graph gets.

        Args:
            inputs: The graph's.
            outputs: Likewise.
        """
        if not (self.updates or self.views):  # as in most calls
            return outputs
        copy_all((inputs[i], output) for i, output in zip(self.updates, outputs, strict=False))
        results = outputs[len(self.updates) :]
        for position, source, make in self.views:
            results[position] = inputs[source] if make is None else make(inputs[source])
        return results


def put_marks(marks: Marks, results: Sequence[Any]) -> None:
    """Say on results which of their sizes vary, as AOTAutograd does."""
    for position, name, dims in marks:
        known = getattr(results[position], name, ())
        setattr(results[position], name, {*known, *dims})


__all__ = ["Epilogue", "Marks", "Views", "put_marks"]
