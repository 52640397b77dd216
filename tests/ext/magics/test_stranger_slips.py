"""Slips of strangers at the keyboard: a line that says what is wrong, and what there is."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from IPython.core.error import UsageError

import fusec
from fuselab.display import words
from fuselab.errors import UnknownName
from support.panel_fake import timing
from support.shell import run


def refused(shell: Any, cell: str) -> str:
    with pytest.raises(UsageError) as error:
        run(shell, cell)
    return str(error.value)


def test_a_keyword_is_no_name_of_a_cell(shell: Any) -> None:
    said = refused(shell, "%%fuse --name class\ny = x + 1")
    assert "'class' is a keyword of Python; class_ is not" in said


def test_a_misspelled_cell_is_told_from_a_misspelled_kernel() -> None:
    error = UnknownName("kernel", "setp", ["step_layer_norm", "step_gelu"], "", cells=["step"])
    assert "did you mean the cell step? %fuse_kernels step lists its kernels" in str(error)


def test_the_stages_there_are_stand_a_line_each(shell: Any) -> None:
    run(shell, "%%fuse --name known\ny = x + 1")
    said = refused(shell, "%fuse_report known --stage nonsense")
    assert "\n  cell source\n" in said
    assert "FX graph, as captured" in said.split("\n  ")


def test_a_peer_is_no_kernel(shell: Any) -> None:
    run(shell, "%%fuse --name known\ny = x + 1")
    assert "%%fuse --compare inductor" in refused(shell, "%fuse_compare known TorchInductor")


def test_a_peer_is_compared(shell: Any) -> None:
    run(shell, "%%fuse --name known\ny = x + 1")
    summary = shell.session.cells["known"].summary()
    beside = replace(summary, others={"inductor": timing(20.0)}, fused=timing(10.0))
    known = f"TorchInductor: {words.spread(timing(20.0))}"
    assert beside.peers == [f"{known}; fused 2.0× faster than TorchInductor"]
    assert replace(beside, early=True).peers == [known]  # it was timed without what makes it quick


def test_torch_does_not_warn_of_what_the_report_says() -> None:
    def waits(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        time.sleep(0)
        return y + 1

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        compiled = fusec.compile(waits)
        compiled(torch.ones(4))
    assert [str(each.message) for each in heard if "know how to trace" in str(each.message)] == []
    assert "time.sleep" in str(compiled.breaks[0].reason)
