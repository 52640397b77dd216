"""The magics in a real IPython shell, over a pretended compiler; results, errors, options."""

import re
import threading

import pytest
import torch
from IPython.core.error import UsageError

import fuselab
from fusec.cache import CacheStore
from fuselab.display.outcomes import EditRefused
from fuselab.errors import CellSyntaxError
from fuselab.magics import kernels
from fuselab.session.saving import MIME
from fuselab.session.session import Session
from support.panel_fake import CPP
from support.processes import run_python
from support.shell import run


def peer_of(call, problem=""):
    """Another compiler that is done at once."""

    def init(self, graph, compiler):
        done = threading.Event()
        done.set()
        vars(self).update(graph=graph, compiler=compiler, call=call, _problem=problem, _done=done)

    return init


class TestFuse:
    def test_names_land_and_the_value_is_the_cells_own(self, shell):
        value = run(shell, "%%fuse\ny = x * 2\nz = y + 1\nz.sum()")
        assert value == torch.tensor(16.0)
        assert torch.equal(shell.user_ns["z"], torch.arange(4.0) * 2 + 1)
        assert shell.user_ns["_"] == torch.tensor(16.0)
        (cell,) = shell.shown
        assert cell is fuselab.last() is fuselab.cells[cell.name]
        assert re.fullmatch(r"cell_\d+", cell.name)
        # a number follows where another shell of this process has had a cell of this prompt
        assert re.fullmatch(rf"<fuse cell {cell.name[5:]}(\.\d+)?>", cell.filename)

    def test_semicolon_suppresses_the_value(self, shell):
        assert run(shell, "%%fuse\ny = x * 2\ny;") is None
        assert run(shell, "%%fuse\ny = x * 3\ny; # comment") is None

    def test_quiet_shows_nothing_and_measures_nothing(self, shell):
        run(shell, "%%fuse -q\ny = x * 2")
        assert shell.shown == []
        assert fuselab.last().graphs[0].measured == 0

    def test_measured_once_and_again_only_after_a_change(self, shell):
        run(shell, "%%fuse --name a\ny = x * 2")
        run(shell, "%%fuse --name a\ny = x * 2")
        graph = fuselab.cells["a"].graphs[0]
        assert (graph.measured, graph.verified) == (1, 1)
        assert len(shell.compiler.functions) == 1
        fuselab.kernels["a"].keep(CPP.replace("GRAIN = 4", "GRAIN = 8"))
        run(shell, "%%fuse --name a\ny = x * 2")
        assert (graph.measured, graph.verified) == (2, 2)

    def test_no_check(self, shell):
        run(shell, "%%fuse --no-check --name a\ny = x * 2")
        assert fuselab.cells["a"].verdict is None
        assert fuselab.cells["a"].graphs[0].verified == 0

    def test_options_reach_the_compiler(self, shell):
        run(
            shell,
            "%%fuse -t triton -n mine --dynamic --gpu gfx942 --matmul template "
            "--memory-budget 4MiB\ny = x * 2",
        )
        assert shell.compiler.functions[0].options == {
            "target": "triton",
            "name": "mine",
            "dynamic": True,
            "matmul": "template",
            "eager_random": False,
            "cuda_graphs": False,
            "memory_budget": "4MiB",
            "gpu": "gfx942",
            "apart": (),
            "loops": (),
            "without": (),
            "together": (),
        }

    def test_defaults_are_configured(self, shell):
        registry = shell.magics_manager.registry["FuseMagics"]
        registry.target = "triton"
        run(shell, "%%fuse\ny = x * 2")
        assert shell.compiler.functions[0].options["target"] == "triton"
        with pytest.raises(Exception, match="auto"):
            registry.target = "gpu"

    def test_nested_magic_runs(self, shell):
        run(shell, "%%fuse -q\ny = x * 2\n%time z = y\nw = z + 1")
        assert torch.equal(shell.user_ns["w"], torch.arange(4.0) * 2 + 1)

    def test_dollar_and_braces_are_left_alone(self, shell):
        run(shell, "%%fuse -q\ny = {'a': x}['a']\nz = f'{y.shape[0]}' + '$x'")
        assert shell.user_ns["z"] == "4$x"

    def test_only_constants_is_no_error(self, shell):
        run(shell, "%%fuse\nn = 3")
        assert shell.user_ns["n"] == 3
        assert fuselab.last().kernels == {}

    def test_empty_cell(self, shell):
        assert run(shell, "%%fuse\n\n") is None
        assert run(shell, "%%fuse\n# nothing\n") is None

    def test_definitions(self, shell):
        run(shell, "%%fuse --name defs\ndef f(v):\n    return v * 2 + 1")
        assert "compiled at the first call: f" in shell.shown[0].text()
        assert torch.equal(run(shell, "f(x)"), torch.arange(4.0) * 2 + 1)
        assert list(fuselab.cells["defs"].kernels) == ["defs_f"]
        run(shell, "%fuse_report defs")
        assert "gelu_norm" in shell.shown[-1].text() or "defs" in shell.shown[-1].text()
        assert shell.shown[-1].graphs[0].measured == 1

    def test_out(self, shell):
        run(shell, "%%fuse -q --out z\ny = x * 2\nz = y + 1")
        assert "y" not in shell.user_ns
        assert "z" in shell.user_ns

    def test_compare(self, shell, monkeypatch):
        monkeypatch.setattr("fuselab.session.peers.Peer.__init__", peer_of(lambda *inputs: None))
        run(shell, "%%fuse --compare inductor\ny = x * 2")
        assert "  TorchInductor: 7.77 ms" in shell.shown[0].text()
        assert "TorchInductor: 7.77 ms" in shell.shown[0].html()
        assert shell.session.last.eager.median == 9.84e-3, "of the same run"

    def test_compare_with_a_compiler_that_fails(self, shell, monkeypatch):
        monkeypatch.setattr(
            "fuselab.session.peers.Peer.__init__", peer_of(None, "OSError: no room")
        )
        run(shell, "%%fuse --compare inductor\ny = x * 2")
        assert "TorchInductor failed: OSError: no room" in shell.shown[0].text()

    def test_save(self, shell, tmp_path):
        run(shell, f"%%fuse --name kept --save {tmp_path}/out\ny = x * 2")
        folder = tmp_path / "out" / "kept"
        found = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
        assert found == [
            "cell.py", "fusion.txt", "graph_0/01-capture.txt", "graph_0/02-emit.txt",
            "graph_0/repro.py", "kernels/kept.cpp",
            "report.html", "report.json", "report.txt", "speed.png",
        ]  # fmt: skip
        assert (folder / "cell.py").read_text() == "y = x * 2"[:0] + "y = x * 2\n"

    def test_edit_puts_the_kernel_into_the_next_cell(self, shell):
        run(shell, "%%fuse --edit --name mine\ny = x * 2")
        assert shell.rl_next_input == f"%%kernel mine\n{CPP}"
        shell.rl_next_input = None

    def test_panel_is_made_on_request(self, shell):
        run(shell, "%%fuse --panel\ny = x * 2")
        assert type(shell.shown[-1]).__name__ == "BelowResult"
        run(shell, "%%fuse --panel -q\ny = x * 2")
        assert type(shell.shown[-1]).__name__ == "Workbench"


class TestTune:
    def test_waits_and_shows_every_configuration(self, shell, capsys):
        run(shell, "%%fuse --tune 5 --name mine\ny = x * 2")
        cell, outcome = shell.shown
        assert outcome.run.stopped == "finished"
        assert len(outcome.run.trials) == 30
        out = capsys.readouterr().out
        # a busy machine takes longer than the first trial let expect
        assert re.search(r"mine \[1 of 30, (less than 1|about \d+)\ss left\]", out)
        assert "mine [30 of 30, settling on the best]" in out
        assert "best so far" in out
        assert "failed: does not fit in registers" in out
        assert "(tuned)" in cell.text()
        assert "in use: GRAIN=8 UNROLL=4 STREAM=1" in outcome.note()

    def test_interrupt_keeps_the_best_so_far(self, shell, monkeypatch):
        shell.compiler.host.pause = 0.08
        calls = []

        def interrupt(run):
            calls.append(run)
            if len(calls) == 2:
                raise KeyboardInterrupt

        run(shell, "%%fuse -q --name mine\ny = x * 2")
        outcome = shell.session.tune("mine", 60.0, interrupt)
        assert outcome.run.stopped == "stopped"
        assert 0 < len(outcome.run.trials) < 30
        assert outcome.run.best is not None


class TestBadInput:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("--target gpu", r"invalid choice: 'gpu', did you mean triton\? \(allowed: .*triton"),
            (
                "--target cuda",
                r"--target: invalid choice: 'cuda', did you mean triton\?",
            ),
            ("--target c++", r"invalid choice: 'c\+\+', did you mean cpp\?"),
            ("--target rust", r"invalid choice: 'rust' \(allowed: 'auto'"),
            (
                "--targt cpp",
                r"there is no option --targt; did you mean --target\? \(allowed",
            ),
            (
                "--target",
                r"%%fuse: -t/--target: expected one argument \(allowed: auto, cpp",
            ),
            ("--tune fast", r"%%fuse: --tune: 'fast' is not a number of seconds above 0"),
            ("--tune -3", r"%%fuse: .*-3"),
            ("--name 3x", r"'3x' is not a Python identifier"),
            ("--name 'a", r"no closing quotation"),
            ("--compare jax", r"--compare: invalid choice: 'jax' \(allowed: '?inductor"),
            ("--out nope", r"--out names nope, which the cell does not assign \(it assigns y\)"),
            ("--out y z", r"%%fuse: several of --out are joined by commas: --out y,z$"),
            ("--name a --out y, z w -q", r"joined by commas: --out y,z,w$"),
            ("--without cse fold", r"joined by commas: --without cse,fold$"),
            ("--name a b", r"%%fuse: 'b' is a word too many \(%%fuse\? shows what it takes\)"),
            ("-h", r"%%fuse\? shows the options: .*--target"),
            ("--edit nope", r"has no kernel named 'nope'"),
        ],
    )
    def test_one_line_that_says_what_is_allowed(self, shell, line, message):
        with pytest.raises(UsageError, match=message) as caught:
            run(shell, f"%%fuse {line}\ny = x * 2")
        assert "\n" not in str(caught.value)

    def test_syntax_error_shows_the_cells_line_alone(self, shell, capsys):
        with pytest.raises(CellSyntaxError) as caught:
            run(shell, "%%fuse\ny = x * 2\nz = (y +\n")
        assert caught.value.lineno == 3
        capsys.readouterr()
        shell.run_cell("%%fuse\ny = x * 2\nz = (y +\n")
        shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert shown.splitlines() == [
            "line 3", "    z = (y +", "        ^", "SyntaxError: '(' was never closed",
        ]  # fmt: skip

    def test_a_cells_name_finds_its_kernels(self, shell):
        run(shell, "%%fuse -q --name one\ny = x * 2")
        run(shell, "%%fuse -q --name two\ny = x * 2\nprint()\nz = y + 1")
        session = shell.magics_manager.registry["FuseMagics"].session
        cells = session.cells
        cells["lone"] = cells.pop("one")  # a cell whose kernels are called otherwise
        cells["pair"] = cells.pop("two")
        assert session.find("lone")[1].name == "one"
        with pytest.raises(
            UsageError,
            match=r"several kernels \(name one: pair\.two, pair\.two_1\)",
        ):
            run(shell, "%%kernel pair\nint")

    def test_missing_name(self, shell):
        with pytest.raises(NameError, match="name 'nope' is not defined"):
            run(shell, "%%fuse\ny = x * 2\nz = y + nope")
        assert torch.equal(shell.user_ns["y"], torch.arange(4.0) * 2)
        assert "z" not in shell.user_ns

    def test_traceback_is_the_cells_own(self, shell, capsys):
        shell.run_cell("%%fuse\ny = x * 2\nprint('a')\nz = 1 / 0")
        shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert "ZeroDivisionError" in shown
        assert "4 z = 1 / 0" in shown
        assert "_dynamo" not in shown
        assert "magics.py" not in shown
        assert "program.py" not in shown

    def test_traceback_has_no_host_program(self, shell, capsys):
        shell.user_ns["nothing"] = torch.zeros(0, 5)
        shell.run_cell("%%fuse\nmost = nothing.max(0)")
        shown = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert "2 most = nothing.max(0)" in shown
        assert "host program" not in shown
        assert "_ops.py" not in shown

    def test_device_that_is_not_there(self, shell):
        if torch.version.cuda:
            pytest.skip("there may be one: such a torch captures the cell as one graph")
        with pytest.raises((AssertionError, RuntimeError), match=r"(?i)cuda"):
            run(shell, "%%fuse\ny = x * 2\nz = y.to('cuda') + 1")
        assert torch.equal(shell.user_ns["y"], torch.arange(4.0) * 2)

    def test_string_for_a_tensor(self, shell):
        with pytest.raises(TypeError, match="must be Tensor, not str"):
            run(shell, "%%fuse\ny = x * 2\nz = torch.exp('a')")
        assert "y" in shell.user_ns

    def test_save_where_nothing_can_be_written(self, shell):
        with pytest.raises(UsageError, match="--save cannot write to '/proc/nope'"):
            run(shell, "%%fuse --save /proc/nope\ny = x * 2")
        assert "y" in shell.user_ns

    def test_failure_to_measure_is_a_note(self, shell, monkeypatch):
        def broken(self, seconds=0.3):
            raise RuntimeError("no clock\nlong story")

        monkeypatch.setattr("support.cell_fake.FakeGraph.measure", broken)
        run(shell, "%%fuse\ny = x * 2")
        assert "graph 0 could not be timed: RuntimeError: no clock" in shell.shown[0].text()
        assert "long story" not in shell.shown[0].text()

    def test_unwritable_cache(self, shell, tmp_path):
        place = tmp_path / "file"
        place.write_text("")
        with pytest.warns(RuntimeWarning, match="nothing is kept when this process ends"):
            store = CacheStore(place)
        session = Session(shell.user_ns, compiler=shell.compiler, store=store)
        shell.magics_manager.registry["FuseMagics"].session = session
        run(shell, "%%fuse --name mine\ny = x * 2")
        run(shell, "%%kernel mine\n" + CPP.replace("GRAIN = 4", "GRAIN = 9"))
        assert session.kernels["mine"].edited
        assert len(session.edits("mine")) == 1


class TestLine:
    def test_expression(self, shell):
        assert run(shell, "%fuse x.mul(2).sum()") == torch.tensor(12.0)
        assert fuselab.last().filename.startswith("<fuse line")

    def test_options_before_the_expression(self, shell):
        assert run(shell, "%fuse -q --target cpp -n mine -x.sum()") == torch.tensor(-6.0)
        assert shell.compiler.functions[0].options["name"] == "mine"

    def test_value_can_be_assigned(self, shell):
        run(shell, "q = %fuse -q x * 2")
        assert torch.equal(shell.user_ns["q"], torch.arange(4.0) * 2)

    def test_tune_takes_a_number_only(self, shell):
        assert run(shell, "%fuse -q --tune 1 x.sum()") == torch.tensor(6.0)
        assert run(shell, "%fuse -q --tune x.sum() + 1") == torch.tensor(7.0)

    def test_nothing(self, shell):
        with pytest.raises(UsageError, match="takes an expression"):
            run(shell, "%fuse")
        with pytest.raises(UsageError, match="there is no option --quit"):
            run(shell, "%fuse --quit x")

    def test_what_takes_no_options_says_so(self, shell):
        with pytest.raises(UsageError, match=r"no options: leave out --all \(%fuse_help\? "):
            run(shell, "%fuse_help --all")


class TestKernel:
    @pytest.fixture(autouse=True)
    def fused(self, shell):
        run(shell, "%%fuse --name mine\ny = x * 2")
        shell.shown.clear()

    def test_right_edit_is_kept(self, shell):
        text = CPP.replace("GRAIN = 4", "GRAIN = 9")
        run(shell, f"%%kernel mine\n{text}")
        (outcome,) = shell.shown
        assert outcome.kept
        assert fuselab.kernels["mine"].source == text
        data = outcome._repr_mimebundle_()
        assert "mine: Kept" in data["text/plain"]
        assert "error against eager 2.4e-07" in data["text/plain"]
        assert "eager's own 1.2e-07" in data["text/plain"]
        assert data["text/html"].count("1.2e-07") == 1  # the table says it, and nothing else
        assert "image/png" in data
        assert fuselab.edits("mine")[-1].state == "kept"

    def test_wrong_edit_is_refused_with_its_error(self, shell):
        run(shell, f"%%kernel mine\n{CPP}// WRONG\n")
        (outcome,) = shell.shown
        assert not outcome.kept
        assert not fuselab.kernels["mine"].edited
        text = outcome._repr_mimebundle_()["text/plain"]
        assert "Refused: wrong result – out[17, 3] is 0.31 away from eager" in text
        assert "error against eager 3.1e-01 (allowed 1.3e-05)" in text
        assert fuselab.edits("mine")[-1].text == CPP + "// WRONG\n"

    def test_compile_error_is_at_the_cells_line(self, shell):
        text = CPP.replace("  return 0;", '  static_assert(false, "x");\n  return 0;')
        number = text[: text.index("static_assert")].count("\n") + 1
        run(shell, f"%%kernel mine\n{text}")
        (outcome,) = shell.shown
        assert outcome.cell_line == number + 1
        data = outcome._repr_mimebundle_()
        assert f"does not compile – line {number + 1}: static assertion" in data["text/plain"]
        assert f"→ {number + 1}\n" in data["text/html"]  # the gutter's number everywhere
        assert f"→ {number}\n" not in data["text/html"]
        assert "static_assert(false" in data["text/plain"]
        assert "<b>not bold</b>" not in data["text/html"]
        assert "&lt;b&gt;not bold" in data["text/html"]

    def test_empty_edit(self, shell):
        run(shell, "%%kernel mine\n   \n")
        assert shell.rl_next_input == f"%%kernel mine\n{CPP}"  # to begin with
        shell.rl_next_input = None
        assert "nothing to check – the edit is empty" in repr(fuselab.edit("mine", "  \n"))
        assert "check" not in shell.compiler.host.calls

    def test_strict_raises(self, shell):
        with pytest.raises(EditRefused, match=r"wrong result.*0\.31"):
            run(shell, f"%%kernel --strict mine\n{CPP}// WRONG\n")
        assert fuselab.edits("mine")[-1].state == "refused"

    def test_function_api(self, shell):
        outcome = fuselab.edit("mine", CPP.replace("0.5", "0.50"))
        assert outcome.kept
        broken = CPP.replace("return 0;", "static_assert(false);")
        assert (
            fuselab.edit("mine", broken).cell_line
            == broken[: broken.index("static_")].count("\n") + 1
        )
        with pytest.raises(EditRefused, match="does not compile"):
            fuselab.edit("mine", broken, strict=True)
        assert not fuselab.revert("mine").edited
        assert fuselab.tune("mine", 2.0).run.best is not None

    def test_check_only(self, shell):
        run(shell, "%%kernel --check-only mine\n" + CPP.replace("GRAIN = 4", "GRAIN = 9"))
        assert "mine: Passed" in repr(shell.shown[0])
        assert not fuselab.kernels["mine"].edited

    def test_unknown_name(self, shell):
        with pytest.raises(UsageError, match=r"'mime' \(did you mean mine\?"):
            run(shell, f"%%kernel mime\n{CPP}")
        with pytest.raises(UsageError, match="takes a kernel's name"):
            run(shell, f"%%kernel\n{CPP}")

    def test_checker_that_fails_raises_and_changes_nothing(self, shell):
        with pytest.raises(RuntimeError, match="worker process"):
            run(shell, f"%%kernel mine\n{CPP}// RAISE\n")
        assert not fuselab.kernels["mine"].edited
        assert fuselab.edits("mine")[-1].text == CPP + "// RAISE\n"

    def test_list_and_revert(self, shell):
        run(shell, "%%kernel mine\n" + CPP.replace("GRAIN = 4", "GRAIN = 9"))
        assert "tuned" in repr(run(shell, "%fuse_kernels"))
        run(shell, "%%kernel mine\n" + CPP.replace("0.5", "0.50"))
        assert "edited" in repr(run(shell, "%fuse_kernels mine"))
        run(shell, "%fuse_revert mine")
        assert "generated" in repr(run(shell, "%fuse_kernels"))
        with pytest.raises(UsageError, match="there is: mine"):
            run(shell, "%fuse_revert nothing_like_it")
        with pytest.raises(UsageError, match="no cell named 'other'"):
            run(shell, "%fuse_report other")


def test_many_kernels_are_folded_the_latest_first(shell, monkeypatch):
    monkeypatch.setattr(kernels, "MOST_ROWS", 1)
    run(shell, "%%fuse -q --name mine\ny = x * 2")
    run(shell, "%%fuse -q --name later\nz = x * 3")
    few, every = run(shell, "%fuse_kernels"), run(shell, "%fuse_kernels --all")
    assert [row[1] for row in few.rows] == ["later"]
    assert repr(few).endswith(
        "1 more, of mine: %fuse_kernels --all lists them, %fuse_kernels mine those of one cell"
    )
    assert "1 more, of mine" in few._repr_mimebundle_()["text/html"]
    assert [row[1] for row in every.rows] == ["later", "mine"]
    assert "more" not in repr(run(shell, "%fuse_kernels mine"))


def test_help_lists_every_magic(shell):
    found = dict(run(shell, "%fuse_help").rows)
    assert {"%%fuse", "%%kernel", "%fuse_report", "%fuse_kernels", "%fuse_help"} <= set(found)
    assert "%fuse" not in found  # %%fuse, said once
    assert found["%fuse_revert"] == "Put a kernel's generated text back in use"
    assert all(found.values())


def test_help_explains_the_options(shell, capsys):
    shell.run_line_magic("pinfo", "%%fuse")
    text = capsys.readouterr().out
    for option in ("--target", "--name", "--tune", "--edit", "--dynamic", "--compare", "--save"):
        assert option in text
    assert "%%kernel" in text


def test_bundle(shell):
    run(shell, "%%fuse --name mine\ny = x * 2\nprint('a')\nz = y + 1")
    data = fuselab.last()._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", "image/png", MIME}
    assert data[MIME]["name"] == "mine"
    assert data[MIME]["error_of"] == "out"
    assert data[MIME]["breaks"] == ["print() runs in Python (line 3: print(y))"]


def test_unload_takes_everything_away(shell):
    fuselab.unload_ipython_extension(shell)
    assert "fuse" not in shell.magics_manager.magics["cell"]
    assert "fuse_kernels" not in shell.magics_manager.magics["line"]
    assert "fuselab" not in shell.user_ns
    fuselab.load_ipython_extension(shell)
    assert "fuse" in shell.magics_manager.magics["cell"]
    assert shell.user_ns["fuselab"] is fuselab  # messages say fuselab.edits(...)


def test_a_name_of_the_users_stays(shell):
    fuselab.unload_ipython_extension(shell)
    shell.user_ns["fuselab"] = mine = object()
    fuselab.load_ipython_extension(shell)
    fuselab.unload_ipython_extension(shell)
    assert shell.user_ns.pop("fuselab") is mine
    fuselab.load_ipython_extension(shell)


def test_import_is_light():
    code = "import sys, fuselab; print([m for m in ('torch', 'IPython', 'ipywidgets', 'matplotlib')"
    code += " if m in sys.modules])"
    assert run_python(code).strip() == "[]"
