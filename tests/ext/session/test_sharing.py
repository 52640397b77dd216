"""A shared result: the page loads nothing, and the file runs in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.session import Session
from fuselab.session.sharing import share


def test_page_and_file(tmp_path: Path) -> None:
    torch._dynamo.reset()
    session = Session({"F": F, "x": torch.rand(64, 96)})
    cell, program = session.prepare("y = F.gelu(x) * 2\n", CellOptions(name="given"), Frontend())
    session.run(cell, program)
    cell.update(seconds=0.05)
    page, file = share(cell, tmp_path / "away")
    assert [page.name, file.name] == ["given.html", "given.py"]
    text = page.read_text()
    for fact in ("checked", "#pragma omp", "eager moves", "data:image/png", ":has(.l2:hover) .l2"):
        assert fact in text
    assert "Guards" in text
    # Nothing is asked of anybody: no address but those of data.
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", text)
    assert not re.search(r"https?://", text)
    # Without our code on its path.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-I", str(file)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_sharing_from_the_panel_replaces_nothing(tmp_path: Path) -> None:
    torch._dynamo.reset()
    session = Session({"F": F, "x": torch.rand(64, 96)})
    cell, program = session.prepare("y = F.gelu(x) * 3\n", CellOptions(name="mine"), Frontend())
    session.run(cell, program)
    cell.update(seconds=0.05, checked=False)
    (tmp_path / "mine.html").write_text("of somebody else")
    with contextlib.chdir(tmp_path):
        panel = cell.workbench()
        panel.kernels.show()
        panel.kernels.share.click()
        assert panel.wait(30)
        assert "Written to mine-2.html and mine.py" in panel.kernels.verdict.value
        panel.close()
    assert (tmp_path / "mine.html").read_text() == "of somebody else"
    assert "eager moves" in (tmp_path / "mine-2.html").read_text()
