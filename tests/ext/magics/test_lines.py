"""The line magics that show one subject, compare, and complete names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError

import fuselab
from fusec.target_api.registry import NAMES
from fuselab.magics.completion import completions
from fuselab.session.session import Session
from support.shell import run


@pytest.fixture
def real(shell: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A shell over the real compiler, with two cells."""
    session = Session(shell.user_ns)
    shell.magics_manager.registry["FuseMagics"].session = session
    monkeypatch.setattr(fuselab, "_session", session)
    shell.user_ns["x"] = torch.randn(16, 32)
    run(shell, "%%fuse -q --name one\ny = torch.tanh(x)\nz = y.sum(0)")
    run(shell, "%%fuse -q --name two\ny = torch.tanh(x) * 2\nz = y.sum(0)")
    return shell


MODULES = {
    "b = nn.Linear(32, 4)": "pass",
    "b = Two()": "class Two(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.in_ = nn.Linear(32, 4)\n    def forward(self, x):\n        return self.in_(x)",
}


@pytest.mark.parametrize("line", MODULES)
def test_a_module_made_in_a_cell_is_one_break_at_its_line(real: Any, line: str) -> None:
    real.user_ns["nn"] = torch.nn
    run(real, f"%%fuse -q --name made\n{MODULES[line]}\n{line}\ny = b(x).tanh()")
    (found,) = fuselab.cells["made"].breaks
    assert found.where is not None
    assert (found.where.text, found.reason) == (line, "parameters are made here, in Python")
    assert found.hint.startswith("make modules and parameters in a cell of their own")


def test_an_assertion_is_the_users_own(real: Any) -> None:
    real.user_ns["x"] = torch.ones(16, 32)
    body = (
        "try:\n    y = x / 2\n    assert y.sum() > 1e9, 'small'\n"
        "except AssertionError:\n    y = x * 3"
    )
    run(real, f"%%fuse -q --name caught\n{body}")
    assert torch.equal(real.user_ns["y"], torch.full((16, 32), 3.0))
    with pytest.raises(AssertionError, match="small"):
        run(real, "%%fuse -q --name raised\ny = x / 2\nassert y.sum() > 1e9, 'small'")
    assert torch.equal(real.user_ns["y"], torch.full((16, 32), 0.5))


def test_what_cannot_be_resumed_after_is_one_break(real: Any) -> None:
    real.user_ns["rnn"] = torch.nn.GRU(32, 4)
    run(real, "%%fuse -q --name gru\ny, h = rnn(x)")
    (found,) = fuselab.cells["gru"].breaks
    assert found.reason.startswith("nn.RNN, nn.GRU and nn.LSTM run in Python")


def test_every_subject_has_a_page(real: Any) -> None:
    facts = {
        "fusion": "computations in",
        "stages": "loop IR, before fusion",
        "guards": "x is a float32 tensor of 16 x 32",
        "numerics": "against float64",
        "limits": "a copy of its 4.12 KiB",
        "counters": "of each kernel alone",
    }
    for subject, fact in facts.items():
        run(real, f"%fuse_report one --show {subject}")
        page = real.shown[-1]
        assert fact in repr(page), subject
        assert set(page._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_a_stage_is_printed(real: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run(real, "%fuse_report one --stage 'before fusion'")
    assert "tanh(" in capsys.readouterr().out
    run(real, "%fuse_report one --stage asm")
    assert "one" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"no stage has 'nothing'.*there is:\s+cell source"):
        run(real, "%fuse_report one --stage nothing")


def test_a_stage_that_there_is_not_is_one_line(real: Any) -> None:
    with pytest.raises(UsageError, match="no stage has 'ptx'"):
        run(real, "%fuse_report one --stage ptx")


def test_cells_are_compared_on_the_clock(real: Any) -> None:
    page = run(real, "%fuse_compare one two")
    assert "interleaved" in page.text
    assert "fused, timed together" in page.text
    assert "kernels" in page.text


def test_kernels_are_compared_by_text(real: Any) -> None:
    first, second = (next(iter(fuselab.cells[name].kernels)) for name in ("one", "two"))
    page = run(real, f"%fuse_compare one.{first} two.{second}")
    assert f"one.{first}" in page.text
    assert "+++" in page.text


def test_comparing_what_there_is_not(real: Any) -> None:
    with pytest.raises(UsageError, match="cells: one, two"):
        run(real, "%fuse_compare one three")
    with pytest.raises(UsageError, match="fuse_compare"):
        run(real, "%fuse_compare one")


def test_fusions_are_asked_for_in_the_cell(real: Any) -> None:
    plain = len(fuselab.cells["one"].kernels)
    run(real, "%%fuse --name three --apart tanh:sum\ny = torch.tanh(x)\nz = y.sum(0)")
    cell = fuselab.cells["three"]
    assert len(cell.kernels) == plain + 1
    run(real, "%fuse_report three --show fusion")
    assert "In use: tanh and sum apart" in repr(real.shown[-1])
    run(real, "%%fuse --name four --together tanh:softmax\ny = torch.tanh(x)\nz = y.sum(0)")
    said = real.shown[-1].text()
    assert "--together: no graph computes both of 'tanh:softmax' (there is: tanh, sum)" in said
    with pytest.raises(UsageError, match="pairs of computations"):
        run(real, "%%fuse --apart tanh\ny = x * 2")


def test_passes_are_left_out_in_the_cell(real: Any) -> None:
    run(real, "%%fuse --name five --without cse\ny = torch.tanh(x * 2) + torch.sin(x * 2)")
    (graph,) = fuselab.cells["five"].graphs
    assert "cse" not in {each.name for each in graph.passes}
    (stage,) = (each for each in graph.stages if each.name == "passes")
    assert "left out: cse" in stage.text
    run(real, "%fuse_report five --show stages")
    assert "passes over the graph" in repr(real.shown[-1])
    with pytest.raises(UsageError, match=r"without 'csee' is not known \(allowed: .*cse"):
        run(real, "%%fuse --without csee\ny = x * 2")
    with pytest.raises(UsageError, match="no element need equal its own maximum"):
        run(real, "%%fuse --without compare_once\ny = x * 2")


def test_loops_run_as_the_cell_asks(real: Any) -> None:
    source = "y = torch.softmax(x * 2, -1)"
    run(real, f'%%fuse --name six --target cpp --loops "softmax: keep_rows=0" \n{source}')
    (graph,) = fuselab.cells["six"].graphs
    (stage,) = (each for each in graph.stages if each.name == "emit")
    assert "keep_rows: left out (as asked for)" in stage.text
    assert "kind: " in stage.text
    with pytest.raises(UsageError, match="softmax' is not known"):
        run(real, f"%%fuse --loops softmax\n{source}")


def test_a_schedule_from_the_panel_survives_the_next_run(real: Any) -> None:
    source = "%%fuse -q --name one\ny = torch.tanh(x)\nz = y.sum(0)"
    cell = fuselab.cells["one"]
    before = len(cell.kernels)
    cell.reschedule(apart=["tanh:sum"])
    run(real, source)
    assert fuselab.cells["one"] is cell
    assert len(cell.kernels) == before + 1
    assert torch.allclose(real.user_ns["z"], torch.tanh(real.user_ns["x"]).sum(0), atol=1e-5)
    cell.reschedule()
    run(real, source)
    assert len(cell.kernels) == before


def test_kernels_are_exported(real: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = next(iter(fuselab.cells["one"].kernels))
    run(real, f"%fuse_export one.{name}")
    assert (tmp_path / f"{name}.cpp").is_file()
    run(real, f"%fuse_export one.{name} --form library")
    assert f"{name}_op.py" in repr(real.shown[-1])
    assert "torch.library.custom_op" in (tmp_path / f"{name}_op.py").read_text()
    run(real, f"%fuse_export one.{name} mine.py")
    assert (tmp_path / "mine.py").is_file()
    for wrong, said in (
        ("nobody", "nobody"),
        (f"one.{name} a.txt", "end the name in"),
        (f"one.{name} --form other", "allowed: 'file', 'library'"),
        (f"one.{name} no/such/folder.py", "cannot write"),
    ):
        with pytest.raises(UsageError, match=said):
            run(real, f"%fuse_export {wrong}")


def test_completion_knows_options_choices_and_names(shell: Any) -> None:
    run(shell, "%%fuse -q --name mine\ny = x * 2")

    def found(line: str) -> list[str]:
        return completions(shell, line, line.rsplit(" ", maxsplit=1)[-1])

    assert found("%%fuse --tar") == ["--target"]
    assert found("%%fuse --target t") == ["triton"]
    assert found("%%kernel mi") == ["mine"]
    assert "mine" in found("%fuse_revert ")
    assert "mine" in found("%fuse_export ")
    assert found("%fuse_export mine --form l") == ["library"]
    assert "mine" in found("%fuse_report ")
    assert found("%fuse_report mine --show fus") == ["fusion"]
    assert found("%%fuse --edit m") == ["mine"]
    assert found("x = 5") == []
    assert found("%timeit x") == []
    _, matches = shell.complete("--tar", "%%fuse --tar", len("%%fuse --tar"))
    assert matches == ["--target"]


def test_completion_offers_options_and_values_alone(shell: Any) -> None:
    def offered(text: str, at: int | None = None) -> list[str]:
        with provisionalcompleter():
            found = shell.Completer.completions(text, len(text) if at is None else at)
            return [each.text for each in found]

    began = time.thread_time()  # of the processor: the machine may be busy
    options = offered("%%fuse --")
    assert time.thread_time() - began < 0.5
    assert options[0] == "--target"
    assert all(option.startswith("--") for option in options)
    assert not [option for option in options if option.startswith(("--abs", "--Abs"))]
    assert offered("%%fuse --target ") == list(NAMES)
    assert "--target" not in offered("%%fuse --target cpp --")
    body = "%%fuse --out \ny = x * 2\nzz: int = y + 1\nif zz == 3: pass\n"
    assert offered(body, len("%%fuse --out ")) == ["y", "zz"]
    assert "torch" in offered("import tor")  # elsewhere nothing has changed


def test_completion_is_quiet_without_the_extension(shell: Any) -> None:
    fuselab.unload_ipython_extension(shell)
    _, matches = shell.complete("--tar", "%%fuse --tar", len("%%fuse --tar"))
    assert "--target" not in matches
    fuselab.load_ipython_extension(shell)
