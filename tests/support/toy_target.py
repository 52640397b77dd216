"""A target that a test adds: C++ under another name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from fusec.ir.body import Buffer
from fusec.ir.program import Compute
from fusec.kernel_source import KernelSource
from fusec.target_api.registry import add_target, remove_target
from fusec.targets.cpp.target import Cpp


class Toy(Cpp):
    """C++ with another name."""

    name = "toy"
    title = "a toy"
    about = "a target of a test"
    default_for = frozenset()
    suffixes = (".toy",)

    def emit(self, step: Compute, buffers: Mapping[str, Buffer]) -> KernelSource:
        source = super().emit(step, buffers)
        return replace(source, target=self.name, text=f"// A toy.\n{source.text}", origins={})


@pytest.fixture
def toy() -> Iterator[Toy]:
    made = Toy()
    add_target(made)
    yield made
    remove_target(made.name)
