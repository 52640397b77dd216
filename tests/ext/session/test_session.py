"""What a notebook has fused, and what of it survives: edits, re-runs, restarts."""

import threading
import warnings

import pytest
import torch

from fusec.cache import CacheStore
from fusec.kernel_source import Argument
from fuselab.edit_record import Edit
from fuselab.errors import UnknownName
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.history import EditHistory, notebook_scope
from fuselab.session.session import MOST_PROGRAMS, Session
from support.cell_fake import FakeCompiler
from support.panel_fake import CPP

EDITED = CPP.replace("T(0.5)", "T(0.50)")


def notebook(tmp_path, **more):
    """A fresh kernel process on the same notebook: a new namespace, the same store."""
    space = {"torch": torch, "x": torch.arange(4.0), "__name__": "notebook_of_a_test"} | more
    return Session(space, compiler=FakeCompiler(), store=CacheStore(tmp_path / "store"))


def run(session, body, *, number=1, cell_id=None, **options):
    cell, program = session.prepare(body, CellOptions(**options), Frontend(number, cell_id))
    return cell, session.run(cell, program)


class TestCells:
    def test_unchanged_cell_keeps_its_program(self, tmp_path):
        session = notebook(tmp_path)
        first, _ = run(session, "y = x * 2\n")
        again, _ = run(session, "y = x * 2\n", number=5)
        assert again is first
        assert len(session._compiler.functions) == 1

    def test_other_options_are_another_program(self, tmp_path):
        session = notebook(tmp_path)
        first, _ = run(session, "y = x * 2\n")
        other, _ = run(session, "y = x * 2\n", target="triton")
        assert other is not first
        assert other.name == "cell_1_2"

    def test_last_is_the_one_that_ran_last(self, tmp_path):
        session = notebook(tmp_path)
        first, _ = run(session, "y = x * 2\n", number=1)
        second, _ = run(session, "y = x * 3\n", number=2)
        assert session.last is second
        run(session, "y = x * 2\n", number=3)
        assert session.last is first
        assert session.cell() is first
        assert session.cell("cell_2") is second
        with pytest.raises(UnknownName, match=r"no cell named 'cell_3' \(did you mean cell_"):
            session.cell("cell_3")

    def test_changed_cell_lets_go_of_the_old_one(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n", cell_id="a")
        second, _ = run(session, "y = x * 3\n", number=2, cell_id="a")
        assert list(session.cells.values()) == [second]

    def test_changed_cell_of_the_same_name_lets_go_too(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n", name="mine")
        second, _ = run(session, "y = x * 3\n", name="mine")
        assert list(session.cells.values()) == [second]
        assert len(session._programs) == 1

    def test_number_of_programs_is_bounded(self, tmp_path):
        session = notebook(tmp_path)
        for i in range(MOST_PROGRAMS + 3):
            session.prepare(f"y = x * {i}\n", CellOptions(), Frontend(i))
        assert len(session.cells) == MOST_PROGRAMS

    def test_names_land_although_it_raises(self, tmp_path):
        session = notebook(tmp_path)
        with pytest.raises(ZeroDivisionError):
            run(session, "y = x * 2\nprint()\nz = y / 1\nw = 1 / 0\n")
        assert torch.equal(session.namespace["z"], torch.arange(4.0) * 2)
        assert session.last.name == "cell_1"

    def test_reset_notebook(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        with warnings.catch_warnings(action="ignore"):
            session.namespace.clear()
            session.namespace.update(torch=torch, x=torch.arange(4.0))
            run(session, "y = x * 2\n")
        assert torch.equal(session.namespace["y"], torch.arange(4.0) * 2)


class TestKernels:
    def test_found_by_name_and_by_cell(self, tmp_path):
        session = notebook(tmp_path)
        a, _ = run(session, "y = x * 2\n", number=1)
        b, _ = run(session, "y = x * 3\n", number=2)
        assert session.kernels["gelu_norm"] is b.kernels["gelu_norm"]
        assert session.kernels["cell_1.gelu_norm"] is a.kernels["gelu_norm"]
        assert list(session.kernels) == ["gelu_norm"]
        assert "nope" not in session.kernels
        with pytest.raises(UnknownName, match="gelu_norm"):
            session.kernels["nope"]

    def test_two_of_a_name_in_one_cell(self, tmp_path):
        session = notebook(tmp_path)
        cell, _ = run(session, "y = x * 2\ndef g(v):\n    return v\nz = y + 1\n")
        assert list(cell.kernels) == ["gelu_norm", "gelu_norm_2"]
        outcome = session.edit("gelu_norm_2", EDITED)
        assert outcome.kept
        assert not cell.kernels["gelu_norm"].edited


class TestEdits:
    def test_survives_a_re_run_and_a_change_of_the_cell(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        assert session.edit("gelu_norm", EDITED).kept
        run(session, "y = x * 2\n")
        assert session.kernels["gelu_norm"].source == EDITED
        cell, _ = run(session, "y = x * 2 # a comment\n", number=2)
        assert cell.kernels["gelu_norm"].source == EDITED
        assert "was checked again and is in use" in cell.notes[0]

    def test_survives_a_restart(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.edit("gelu_norm", EDITED)
        restarted = notebook(tmp_path)
        cell, _ = run(restarted, "y = x * 2\n", number=7)
        assert cell.kernels["gelu_norm"].source == EDITED
        assert "check" in restarted._compiler.host.calls
        (edit,) = restarted.edits("gelu_norm")
        assert (edit.state, edit.text) == ("kept", EDITED)

    def test_another_notebook_does_not_see_it(self, tmp_path, monkeypatch):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.edit("gelu_norm", EDITED)
        monkeypatch.setenv("JPY_SESSION_NAME", "/somewhere/else.ipynb")
        other = notebook(tmp_path)
        cell, _ = run(other, "y = x * 2\n")
        assert not cell.kernels["gelu_norm"].edited

    def test_no_longer_fits(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.edit("gelu_norm", EDITED)
        restarted = notebook(tmp_path)
        restarted._compiler.arguments = (Argument("x", torch.float32, (), (), "in"),)
        cell, _ = run(restarted, "y = x * 2\n")
        assert not cell.kernels["gelu_norm"].edited
        assert "no longer fits" in cell.notes[0]
        assert "fuselab.edits('gelu_norm')[-1].text" in cell.notes[0]
        assert restarted.edits("gelu_norm")[-1].text == EDITED

    def test_no_longer_passes(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        # Kept by a session whose checker took it: the next one does not.
        kernel = session.kernels["gelu_norm"]
        kernel.use(EDITED + "// WRONG\n")
        session.sync()
        restarted = notebook(tmp_path)
        cell, _ = run(restarted, "y = x * 2\n")
        assert not cell.kernels["gelu_norm"].edited
        assert "does not pass any more: out[17, 3] is 0.31 away" in cell.notes[0]

    def test_reverted_stays_reverted(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.edit("gelu_norm", EDITED)
        session.revert("gelu_norm")
        assert not session.kernels["gelu_norm"].edited
        restarted = notebook(tmp_path)
        cell, _ = run(restarted, "y = x * 2\n")
        assert not cell.kernels["gelu_norm"].edited
        assert [e.state for e in restarted.edits("gelu_norm")] == ["kept", "reverted"]

    def test_kept_in_the_panel_or_by_hand(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.kernels["gelu_norm"].keep(EDITED)
        session.sync()
        session.sync()
        assert [e.state for e in session.edits("gelu_norm")] == ["kept"]
        session.kernels["gelu_norm"].revert()
        session.sync()
        assert [e.state for e in session.edits("gelu_norm")] == ["kept", "reverted"]

    def test_tuned_is_not_an_edit(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.tune("gelu_norm", 5.0)
        assert session.kernels["gelu_norm"].edited
        session.sync()
        assert session.edits("gelu_norm") == ()

    def test_refused_text_is_kept_in_the_history(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.edit("gelu_norm", EDITED)
        session.edit("gelu_norm", CPP + "// WRONG\n")
        assert [e.state for e in session.edits("gelu_norm")] == ["kept", "refused"]
        restarted = notebook(tmp_path)
        cell, _ = run(restarted, "y = x * 2\n")
        assert cell.kernels["gelu_norm"].source == EDITED
        assert restarted.edits("gelu_norm")[-1].text == CPP + "// WRONG\n"

    def test_final_newline_is_no_edit(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        session.edit("gelu_norm", CPP.rstrip("\n"))
        assert not session.kernels["gelu_norm"].edited

    def test_two_processes_on_one_notebook(self, tmp_path):
        one = EditHistory("scope", CacheStore(tmp_path / "store"))
        two = EditHistory("scope", CacheStore(tmp_path / "store"))
        for history in (one, two):
            history.of("k", "cpp")
        for i, history in enumerate((one, two, one)):
            history.add(Edit("k", "cpp", "kept", f"text {i}", "", "s", "g", float(i)))
        fresh = EditHistory("scope", CacheStore(tmp_path / "store"))
        assert sorted(e.text for e in fresh.of("k")) == ["text 0", "text 1", "text 2"]


def test_scope_is_the_notebook_where_the_frontend_says(monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert notebook_scope({"__vsc_ipynb_file__": "/a.ipynb"}) == "/a.ipynb"
    assert notebook_scope({}).startswith("/")
    monkeypatch.setenv("JPY_SESSION_NAME", "b.ipynb")
    assert notebook_scope({}) == "b.ipynb"


class TestTuning:
    def test_runs_on_a_thread_of_its_own(self, tmp_path):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")
        threads = set()
        outcome = session.tune("gelu_norm", 5.0, lambda _: threads.add(threading.current_thread()))
        assert threads == {threading.main_thread()}
        assert any(n.startswith("fuselab-tune") for n in session._compiler.host.threads)
        assert session.kernels["gelu_norm"].tuning is outcome.run

    def test_error_reaches_the_caller(self, tmp_path, monkeypatch):
        session = notebook(tmp_path)
        run(session, "y = x * 2\n")

        def broken(*_, **__):
            raise RuntimeError("no compiler")

        monkeypatch.setattr(session._compiler.host, "tune", broken)
        with pytest.raises(RuntimeError, match="no compiler"):
            session.tune("gelu_norm", 1.0)


class TestFunctions:
    """`fuselab.fuse`: the same power without magics."""

    def test_function(self, tmp_path, monkeypatch):
        import fuselab

        monkeypatch.setattr(fuselab, "_session", notebook(tmp_path))

        @fuselab.fuse(target="cpp")
        def double(v):
            """Twice v."""
            return v * 2

        assert double.__doc__ == "Twice v."
        assert torch.equal(double(torch.ones(3)), torch.full((3,), 2.0))
        assert fuselab.cells["double"] is double.result
        assert "eager 9.84 ms" in double.result.text()
        assert double.result.source.lstrip().startswith("@fuselab.fuse")
        assert fuselab.kernels["gelu_norm"] is double.result.kernels["gelu_norm"]

    def test_module_and_class(self, tmp_path, monkeypatch):
        import fuselab

        monkeypatch.setattr(fuselab, "_session", notebook(tmp_path))
        linear = torch.nn.Linear(4, 4)
        fused = fuselab.fuse(linear)
        x = torch.randn(2, 4)
        assert torch.equal(fused(x), linear(x))
        assert fused.weight is linear.weight
        assert fused.result.kernels

        @fuselab.fuse
        class Double(torch.nn.Module):
            def forward(self, v):
                return v * 2

        assert torch.equal(Double()(x), x * 2)
        assert Double.result.kernels

    def test_anything_else(self, tmp_path, monkeypatch):
        import fuselab
        from fuselab.errors import FuselabError

        monkeypatch.setattr(fuselab, "_session", notebook(tmp_path))
        with pytest.raises(FuselabError, match=r"int cannot be fused \(give a function"):
            fuselab.fuse(3)
