"""The measurement of tuning on a GPU, made small: in Triton's interpreter, with made-up seconds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import fusec

sys.path.insert(0, str(Path(__file__).parent))

import gpu_tuning
from gpu_workloads import tiny_size

from fusec.timing import measure


@pytest.mark.slow
def test_it_compares_tuning_with_a_thorough_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made, interleave, compile_ = gpu_tuning.make_inputs, measure.interleave, fusec.compile

    def on_cpu(calls: Any, **options: Any) -> Any:
        return interleave(calls, seconds=0.01)

    def simulated(function: Any, **options: Any) -> Any:
        return compile_(function, target="triton", **options)

    monkeypatch.setattr(gpu_tuning, "make_inputs", lambda w, device: made(w, "cpu", tiny_size))
    monkeypatch.setattr(measure, "interleave", on_cpu)
    monkeypatch.setattr(fusec, "compile", simulated)
    report = tmp_path / "report.jsonl"
    words = ["silu 8192x8192", "--budget", "0.5", "--thorough", "0.5", "--report", str(report)]
    gpu_tuning.main([*words, "--least", "0"])
    said = capsys.readouterr().out
    assert "1 kernels: tuning reaches" in said, said
    (row,) = [json.loads(text) for text in report.read_text().splitlines()]
    assert 0 < row["share"] <= 1
    assert row["runs"]["tuned"]["tried"] >= 1
    assert set(row["settings"]) == {"start", "tuned", "best"}
    gpu_tuning.main([*words, "--least", "1e9"])
    assert "tuning reaches" not in capsys.readouterr().out
