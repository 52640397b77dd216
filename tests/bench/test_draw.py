"""The pictures of reports: who is in them, where, and in what words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import draw

Row = dict[str, Any]


def report(folder: Path, rows: list[Row]) -> Path:
    path = folder / "report.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_gpus_rows_are_shares_of_the_copy(tmp_path: Path) -> None:
    memory = {"bound": "memory", "copy": 10.0, "eager": 40.0}
    rows: list[Row] = [
        {"name": "near", **memory, "fusec": 10.0, "default": 20.0},
        {"name": "far", **memory, "fusec": 40.0, "default": 20.0},
        {"name": "product", **memory, "fusec": 1.0, "default": 1.0, "bound": "compute"},
        {"name": "failed", "bound": "memory", "error": "of a kind"},
    ]
    picture = tmp_path / "images" / "made.svg"
    assert draw.main([str(report(tmp_path, rows)), str(picture)]) == 0
    text = picture.read_text()
    assert text.index(">far<") < text.index(">near<")  # the fastest on top
    assert "product" not in text
    assert "failed" not in text
    assert "fusec (0.50)" in text  # of 1 and 1/4
    assert "TorchInductor (0.50)" in text
    assert "eager (0.25)" in text
    assert "the copy&#39;s speed" in text or "the copy's speed" in text


@pytest.mark.parametrize(("threads", "mean"), [(1, "4.00"), (2, "2.00")])
def test_a_cpus_rows_are_multiples_of_eager(tmp_path: Path, threads: int, mean: str) -> None:
    rows = [
        {"name": "sum", "threads": n, "copy": 1.0, "eager": 8.0, "fusec": 2.0 * n, "inductor": 8.0}
        for n in (1, 2)
    ]
    picture = tmp_path / "made.svg"
    made = report(tmp_path, rows)
    assert draw.main([str(made), str(picture), "--threads", str(threads)]) == 0
    text = picture.read_text()
    assert f"fusec ({mean})" in text
    assert "TorchInductor (1.00)" in text
    assert "eager (" not in text
    assert draw.main([str(made), str(picture), "--threads", str(threads)]) == 0
    assert picture.read_text() == text  # nothing of the time or of chance is in it


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "made.svg"
    assert draw.main([str(report(tmp_path, [])), str(picture)]) == 1
    assert "no rows" in capsys.readouterr().err
    assert not picture.exists()
