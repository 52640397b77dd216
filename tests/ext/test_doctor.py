"""``python -m fuselab doctor`` says what a machine lacks, also where nothing is there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuselab import doctor
from fuselab.__main__ import main
from support.paths import ROOT


def by_part(findings: list[doctor.DoctorFinding]) -> dict[str, doctor.DoctorFinding]:
    return {each.part: each for each in reversed(findings)}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "compiler"), str(ROOT / "ext")]
    return subprocess.run(
        [sys.executable, *arguments, "-m", "fuselab", "doctor", "--json"],
        env={"PYTHONPATH": os.pathsep.join(paths), **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_machine_that_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("Fused cells run here.\n")
    for part in ("torch", "compiler", "OpenMP", "processor", "GPU", "Jupyter", "cache"):
        assert part in said
    assert main(["doctor", "--json"]) == 0
    assert {each["state"] for each in json.loads(capsys.readouterr().out)} <= {"ok", "without"}


def test_without_packages(tmp_path: Path) -> None:
    """Python alone: neither torch nor Jupyter."""
    done = run("-S", PATH="/nowhere", HOME=str(tmp_path))
    assert done.returncode == 1, done.stderr
    found = {each["part"]: each for each in json.loads(done.stdout)}
    assert found["torch"]["state"] == "lack"
    assert "pip install" in found["torch"]["mend"]
    assert found["compiler"]["state"] == "without"
    assert found["notebook"]["mend"] == "pip install fuselab"


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "")
    monkeypatch.setattr("fusec.toolchain.compiler.bundled_compiler", lambda: "")
    found = by_part(doctor.examine())
    assert found["compiler"].state == "lack"
    assert "fuselab[compiler]" in found["compiler"].mend
    assert "OpenMP" not in found
    assert found["native part"].state == "without"
    assert "without a compiler" in found["native part"].found


def test_without_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["numpy>=1.26", "lief>=1.0", "anywidget>=0.9", "mcp>=1; extra == 'judge'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    monkeypatch.setattr(doctor, "_version", lambda name: "2.0" if name == "numpy" else "")
    (found,) = doctor._packages()
    assert (found.state, found.found) == ("lack", "not installed: lief")
    assert found.mend == "pip install fuselab"


def test_a_python_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_OLDEST", (99, 1))
    (found,) = doctor._python()
    assert (found.state, "too old" in found.found) == ("lack", True)
    assert "Python 99.1 or later" in found.mend
    # Python 3.10 has no other way to be silent: what looks at a machine has to run there.
    source = (ROOT / "ext" / "fuselab" / "doctor.py").read_text(encoding="utf-8")
    assert "catch_warnings(action" not in source


def test_torch_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = by_part(doctor.examine())
    assert "it does not import" in found["torch"].found
    assert "force-reinstall 'torch" in found["torch"].mend
    # Of what needs torch nothing is said but that.
    assert [each.part for each in found.values() if each.state == "lack"] == ["torch"]


def test_triton_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(doctor, "_version", lambda name: "9.9")
    (found,) = doctor._triton()
    assert (found.part, found.state) == ("Triton", "lack")
    assert "9.9, which does not import" in found.found
    assert "force-reinstall" in found.mend


def test_a_cache_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "file"))
    found = by_part(doctor.examine())["cache"]
    assert found.state == "lack"
    assert "FUSEC_CACHE_DIR" in found.mend


def test_what_is_found_is_not_said_beside_it(tmp_path: Path) -> None:
    """A cache that cannot be used is warned of wherever it is used; here it stands in the list."""
    (tmp_path / "file").write_text("")
    done = run(FUSEC_CACHE_DIR=str(tmp_path / "file"))
    assert {each["part"]: each["state"] for each in json.loads(done.stdout)}["cache"] == "lack"
    assert not done.stderr


def test_what_fails_to_be_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks() -> None:
        raise RuntimeError("the driver is gone\nand more")

    monkeypatch.setattr(doctor, "_PARTS", (("GPU", breaks),))
    (found,) = doctor.examine()
    assert found == doctor.DoctorFinding("GPU", "lack", "RuntimeError: the driver is gone")
    assert "1 thing is missing" in doctor.report([found])


@pytest.mark.parametrize(
    ("version", "fits"),
    [("2.10.0", False), ("2.11.0+cpu", True), ("2.15.1", True), ("2.16.0a0", False)],
)
def test_versions(version: str, fits: bool) -> None:
    assert doctor._is_within(version, ">=2.11,<2.16") is fits
