"""A part of the operator suite, and the suite itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ops import report, unit
from ops.__main__ import main

OPS = (
    "add",
    "where",
    "clamp",
    "sum",
    "amax",
    "std_mean",
    "cumsum",
    "gather",
    "cat",
    "nn.functional.gelu",
    "nn.functional.layer_norm",
    "nn.functional.cross_entropy",
    "nn.functional.max_pool2d",
)


@pytest.mark.sample(7)
@pytest.mark.parametrize("name", OPS)
def test_operators_equal_eager(name: str) -> None:
    op = unit.find(name)
    for direction, dtype in unit.units(op, forward=True, backward=True):
        if dtype in (torch.float32, torch.int64, torch.float16):
            for sample in unit.run_unit(op, direction, dtype, "fusec", 1):
                assert sample.verdict in ("ok", "float64", "not compiled"), (direction, sample)


def test_what_never_compiles_is_counted_apart() -> None:
    (sample, *_) = unit.run_unit(unit.find("nonzero"), "forward", torch.float32, "fusec", 1)
    assert sample.verdict == "not compiled"


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.capture.backend import Backend

    real = Backend.__call__

    def wrong(self: Backend, *args: object, **kwargs: object) -> object:
        run = real(self, *args, **kwargs)  # type: ignore[arg-type]
        return lambda *inputs: tuple(each * 1.001 for each in run(*inputs))

    monkeypatch.setattr(Backend, "__call__", wrong)
    samples = unit.run_unit(unit.find("exp"), "forward", torch.float32, "fusec", 3)
    assert "wrong" in [sample.verdict for sample in samples]


def test_a_fallback_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    import fusec.pipeline

    def fail(state: object) -> None:
        raise ValueError("made up")

    monkeypatch.setattr(fusec.pipeline, "STAGES", (("lower", fail),))
    (sample,) = unit.run_unit(unit.find("exp"), "forward", torch.float32, "fusec", 1)
    assert sample.verdict == "eager"
    assert "made up" in sample.detail


def test_a_run_is_reported_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.jsonl"
    options = ["sin", "--dtypes", "float32", "--samples", "1", "--report", str(path)]
    assert main(options) == 0
    text = path.with_suffix(".md").read_text()
    assert "1 operators, 2 samples: 2 ok" in text
    assert "all operators: 2 of 2 samples have no extern call (100.0 %)" in text
    path.write_text(path.read_text() + '{"key": "cut o')
    capsys.readouterr()
    assert main(options) == 0
    assert "of 1 operators" not in capsys.readouterr().out, "nothing was left to run"
    assert len([u for u in report.read(path).values() if u["samples"]]) == 2
    assert main(["no such thing"]) == 2
