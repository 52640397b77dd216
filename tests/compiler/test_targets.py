"""Targets: found by their folders, asked for by name; one that is added is there everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import fusec
import fuselab
from fusec.abilities import Abilities
from fusec.errors import BadOption
from fusec.options import Options
from fusec.target_api.base import LibraryTarget, PythonTarget
from fusec.target_api.registry import (
    AUTO,
    NAMES,
    add_target,
    all_targets,
    chosen_target,
    default_target,
    find_target,
)
from fusec.targets.cpp.target import Cpp
from support.toy_target import Toy, toy

__all__ = ["toy"]  # a fixture

ROOT = Path(fusec.__file__).parent


def test_folders_are_targets() -> None:
    folders = {path.parent.name for path in (ROOT / "targets").glob("*/target.py")}
    assert {target.name for target in all_targets()} == folders
    assert list(NAMES) == [AUTO, *(target.name for target in all_targets())]
    assert [NAMES[0], len(NAMES), *NAMES[1:]] == [AUTO, 1 + len(folders), *NAMES[1:]]
    for target in all_targets():
        assert isinstance(target, LibraryTarget) != isinstance(target, PythonTarget)


def test_what_targets_can_do() -> None:
    """What lowering asks of them; Triton's atomic operations lack products and such extremes."""
    every = Abilities(products=True, many_programs=True, atomics=True, attention=True, float8=True)
    assert {target.name: target.abilities for target in all_targets()} == {
        "cpp": Abilities(), "plain": Abilities(), "triton": every,
    }  # fmt: skip
    x, index = torch.arange(1.0, 7.0), torch.tensor([0, 0, 5, 2, 2, 2])

    def function(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(0, index, x, "prod")

    compiled = fusec.compile(function, target="triton")
    assert torch.equal(compiled(x, index), function(x, index))
    assert compiled.graphs[0].externs


def test_nobody_else_compares_names() -> None:
    named = "|".join(NAMES)
    # what colors a text knows C++ as a language, as editors do; a cell has plain parts
    compared = rf"""target *[=!]= *["']({named})["']|(?<!language )[=!]= *["']cpp["']"""
    # a package that is called alike may be looked for
    pattern = re.compile(compared + r"""|(?<!_version\()(?<!import_module\()["']triton["']""")
    sources = [*ROOT.rglob("*.py"), *Path(fuselab.__file__).parent.rglob("*.py")]
    # Labs about Triton, and what judges their answers, are about that one target.
    outside = [p for p in sources if not {"targets", "labs", "judge"} & {q.name for q in p.parents}]
    assert len(outside) > 200
    found = [
        f"{path.name}: {line.strip()}"
        for path in outside
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]
    assert found == []


def test_a_kernel_is_written_for_the_device_that_its_tensors_are_on() -> None:
    assert default_target("cpu").name == "cpp"
    assert default_target("cuda").name == "triton"
    chosen = [chosen_target(wanted, "cuda").name for wanted in ("auto", "cpp", "triton")]
    assert chosen == ["triton", "triton", "triton"]
    chosen = [chosen_target(wanted, "cpu").name for wanted in ("auto", "cpp", "triton")]
    assert chosen == ["cpp", "cpp", "triton"]
    assert default_target("meta").name == "cpp"  # where no kernels are, nothing is written


def test_abilities_are_what_options_leave() -> None:
    assert Options().abilities("cuda").products
    assert not Options(matmul="extern").abilities("cuda").products
    assert not Options(target="cpp").abilities("cuda").products
    assert not Options().abilities("cpu").products
    assert Options(target="triton").abilities("cpu").products


def test_one_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadOption, match=r"target 'toy' is not known.*auto, cpp"):
        Options(target="toy")
    with pytest.raises(KeyError):
        find_target("toy")
    with pytest.raises(ValueError, match="there is a target cpp already"):
        add_target(Cpp())


def test_an_added_target_compiles(toy: Toy, tmp_path: Path) -> None:
    x = torch.randn(20, 30)
    compiled = fusec.compile(lambda x: x.softmax(-1), target="toy", keep_inputs=True)
    torch.testing.assert_close(compiled(x), x.softmax(-1))
    (kernel,) = compiled.kernels.values()
    assert (kernel.target, kernel.source.partition("\n")[0]) == ("toy", "// A toy.")
    assert "softmax" in kernel.artifact("asm")
    assert kernel.keep(kernel.source.replace("A toy", "An edited toy")).ok
    assert kernel.keep(kernel.source.replace("return 0;", "return 0")).stage == "compile"
    assert kernel.export(tmp_path / "kernel").name == "kernel.toy"
    assert kernel.export(tmp_path / "kernel.py").read_text().startswith('"""softmax')
