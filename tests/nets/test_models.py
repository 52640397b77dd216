"""Whole models, small: a few of the suite that ``make models`` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import report, zoo
from models.case import Case, run_case

# A convolution network, embeddings, and scatters, in a few seconds each.
FAST = ("convnext", "dlrm", "gnn")


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")


@pytest.mark.sample(1)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAST)
def test_training_step_equals_eager(name: str, precision: str) -> None:
    found = run_case(name, "train", precision, backends=("fusec",), timed=False)["fusec"]
    assert found["verdict"] == "ok", found
    assert found["counts"]["in eager"] == found["counts"]["breaks"] == 0
    assert found["counts"]["kernels"] > 0


@pytest.mark.slow
def test_selective_scan_forward() -> None:
    found = run_case("mamba", "forward", "float32", backends=("fusec",), timed=False)["fusec"]
    assert found["verdict"] == "ok", found


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("dlrm", "train", "float32", "small", "cpu")
    found = {name: value.clone() for name, value in case.eager.items()}
    assert case._judge(found).verdict == "ok"
    name = next(name for name in found if name.startswith("grad of top"))
    found[name].view(-1)[0] += 1e-2 * found[name].abs().max()
    assert case._judge(found).verdict == "wrong"
    assert case._judge(found).detail == name


def test_models_are_built_from_the_seed_alone() -> None:
    first, again = zoo.build("gnn"), zoo.build("gnn")
    assert all(
        a.equal(b)
        for a, b in zip(first.module.parameters(), again.module.parameters(), strict=True)
    )
    assert zoo.build("gnn", seed=1).inputs[0].ne(first.inputs[0]).any()


def test_report_totals_and_failures(tmp_path: Path) -> None:
    fine = {"verdict": "ok", "milliseconds": 1.0, "eager": 2.0, "first": 1.0, "counts": {}}
    fine |= {"error": 1e-7, "eager_error": 1e-7, "memory": None, "detail": ""}
    slow = fine | {"milliseconds": 2.0, "first": 10.0}
    cases = {
        "a train float32": {"fusec": fine, "inductor": slow},
        "b train float32": {"fusec": {"verdict": "error", "detail": "KeyError: x"}},
    }
    report.write(tmp_path / "models.json", cases)
    assert report.read(tmp_path / "models.json") == cases
    text = report.table(cases)
    assert "fusec: 1 ok, 1 error; 2.00x of eager's speed" in text
    assert "fusec over inductor: speed 2.00x, first call 10.00x" in text
    assert "b train float32, fusec: error: KeyError: x" in text
    assert "second process" not in text
    warm = {"a train float32": {"fusec": fine | {"warm": 0.5}, "inductor": slow | {"warm": 2.0}}}
    text = report.table(warm)
    assert "| 0.5, 2 |" in text
    assert "takes 0.05 of inductor's first (at most 0.05) and 0.25 of that of" in text
