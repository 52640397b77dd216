"""What a stranger's cells met: an index out of range, lines of a module in another cell."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fuselab
from fuselab.display import words
from fuselab.display.source_lines import LineView, source_text


def test_an_index_out_of_range_names_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell: Any = InteractiveShell()
    fuselab.load_ipython_extension(shell)
    try:
        shell.user_ns.update(torch=torch, table=torch.randn(10, 4), at=torch.tensor([1, 12]))
        result = shell.run_cell("%%fuse --name rows -q\nx = table * 2\ny = x[at].sin()")
    finally:
        fuselab.unload_ipython_extension(shell)
    assert isinstance(result.error_in_exec, IndexError)
    shown = capsys.readouterr().out
    assert "index out of range (in kernel rows" in shown
    assert "line 3: y = x[at].sin()" in shown


def test_files_of_other_cells_have_names() -> None:
    assert words.file_title("<ipython-input-7-47230c024a06>") == "cell [7]"
    assert words.file_title("/tmp/ipykernel_12/3456.py") == "another cell"
    assert words.file_title("models/net.py") == "models/net.py"


def test_lines_of_other_files_are_told_apart() -> None:
    def line(file: str, number: int) -> LineView:
        return LineView(file, number, "y = f(x)", time=0.5, bytes=8, share=0.5, at={"k": (1,)})

    rows = source_text([line("", 5), line("<ipython-input-1-abc>", 6), line("m.py", 2)])
    assert [row.strip() for row in rows if row.strip().startswith("in ")] == [
        "in cell [1]:",
        "in m.py:",
    ]
    assert rows.index(next(r for r in rows if "cell [1]" in r)) == 1
