"""A target that is added is there in magics, in their completion, and in the panel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from traitlets import TraitError

from fuselab.display.pages.stages import stage_views
from fuselab.magics.completion import completions
from fuselab.panel import Workbench
from fuselab.session.session import Session
from support.shell import run
from support.toy_target import Toy, toy

__all__ = ["toy"]  # a fixture


def test_magics_and_panel_know_an_added_target(toy: Toy, shell: Any) -> None:
    magics = shell.magics_manager.registry["FuseMagics"]
    assert completions(shell, "%%fuse --target t", "t") == ["triton", "toy"]
    magics.target = "toy"
    with pytest.raises(TraitError):
        magics.target = "nothing"
    session = Session(shell.user_ns)
    magics.session = session
    shell.user_ns["x"] = torch.randn(16, 32)
    run(shell, "%%fuse -q --name one\ny = torch.tanh(x)")
    cell = session.cells["one"]
    panel = Workbench(cell)
    try:
        assert panel.wait(30)
        assert "a toy" in panel.kernels.summary.value
        assert any("a toy" in stage.title for stage in stage_views(cell))
    finally:
        panel.close()
