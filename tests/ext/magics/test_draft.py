"""``%fuse_report --draft``: all that stands in a cell's way, by the real compiler."""

from __future__ import annotations

import pytest

from support.processes import run_python

CELL = "%%fuse --name drafted\\ny = x.sin()\\nprint('in between')\\nz = y.cos() + 1"
SCRIPT = f"""
import torch
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "fuselab")
shell.user_ns["x"] = torch.randn(4, 8)
shell.run_cell("{CELL}")
shell.run_line_magic("fuse_report", "drafted --draft")
"""


@pytest.mark.slow
def test_a_cell_has_its_draft():
    said = run_python(SCRIPT)
    assert "drafted, draft" in said
    assert "for export" in said
    assert "side effects" not in said, "what a cell assigns is its result"
