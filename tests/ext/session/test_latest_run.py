"""A cell that runs again for other inputs: every figure of a view is of the run that was last."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from fusec.timing.pace import Pace
from fuselab.display import words
from fuselab.display.pages.fusion import parts_of
from fuselab.display.pages.subjects import limits_of, timings_of
from fuselab.panel import workbench
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fuse_function import fuse
from fuselab.session.fused_cell import FusedCell
from fuselab.session.session import Session
from support.html import Checker

SIZE = r"[\d.]+ (?:B|[KMG]iB)"


@pytest.fixture
def session() -> Session:
    torch._dynamo.reset()
    return Session({"torch": torch, "__name__": "notebook_of_latest_runs"})


def ran(session: Session, body: str, x: torch.Tensor, **options: Any) -> FusedCell:
    session.namespace["x"] = x
    cell, program = session.prepare(body, CellOptions(name="c", **options), Frontend())
    session.run(cell, program)
    cell.update(seconds=0.02)
    return cell


def visible(page: str) -> str:
    checker = Checker()
    checker.feed(page)
    return " ".join("".join(checker.text).split())


def one_size(cell: FusedCell, moved: int) -> None:
    """See that what the cell's only kernel moves is said with one size, in every form."""
    for view in (cell.text(), visible(cell.html())):
        flat = " ".join(view.split())
        known = set(re.findall(rf"fused moves\W* ({SIZE})", flat))
        known |= set(re.findall(rf"a copy of its ({SIZE})", flat))
        known |= set(re.findall(rf"cpp +[\d.]+ .?s +({SIZE})", flat))
        known |= set(re.findall(rf"100% of the time, ({SIZE})", flat))
        assert known == {words.size(moved)}, flat
        assert len(set(re.findall(r"eager [\d.]+ .?s", flat))) == 1


BODY = "y = torch.tanh(x) * 2 + 1\n"


def test_other_sizes_of_one_kernel_are_timed_and_checked_again(session: Session) -> None:
    cell = ran(session, BODY, torch.randn(640), dynamic=True)
    before = cell.fused
    one_size(cell, 640 * 8)
    cell = ran(session, BODY, torch.randn(3000), dynamic=True)
    assert len(cell.graphs) == 1
    assert cell.fused is not before
    one_size(cell, 3000 * 8)
    assert cell.verdict is not None
    assert [output.shape for output in cell.verdict.outputs] == [(3000,)]
    again = cell.fused
    cell = ran(session, BODY, torch.randn(3000), dynamic=True)
    assert cell.fused is again, "nothing has changed but values"


def test_what_was_compiled_for_other_inputs_does_not_count(session: Session) -> None:
    ran(session, BODY, torch.randn(640))
    cell = ran(session, BODY, torch.randn(3000))
    cell = ran(session, BODY, torch.randn(90, 50, dtype=torch.float64))
    assert len(cell.graphs) == 3
    assert len(cell.latest_graphs) == 1
    one_size(cell, 90 * 50 * 16)
    assert cell.text().startswith("c: 1 kernel; ")
    note = "2 kernels of earlier inputs did not run this time: %fuse_kernels lists all"
    assert note in cell.summary().notes
    assert "sum over" not in cell.text()
    # One of the earlier two is called again: it is the one, and it is timed anew.
    cell = ran(session, BODY, torch.randn(640))
    assert cell.latest_graphs in [cell.graphs[:1], cell.graphs[1:2]]
    one_size(cell, 640 * 8)


def test_inputs_that_lie_differently(session: Session) -> None:
    ran(session, BODY, torch.randn(40, 30))
    cell = ran(session, BODY, torch.randn(30, 40).t())
    assert len(cell.latest_graphs) == 1
    one_size(cell, 40 * 30 * 8)


def test_lines_that_ran_twice_say_so(session: Session) -> None:
    body = "for s in (x, x[:50].double()):\n    print(end='')\n    y = (s * 2).tanh() + s\n"
    session.namespace["x"] = torch.randn(2000)
    cell = ran(session, body, torch.randn(2000))
    cell = ran(session, body, torch.randn(2000))
    assert len(cell.latest_graphs) == 2
    assert "sum over 2 graphs" in cell.text()
    said = "lines that ran for several kinds of inputs count once for each in every figure"
    assert said in cell.summary().notes


def test_a_run_that_breaks_says_so(session: Session) -> None:
    body = BODY + "del gone\nz = y.sin()\n"
    session.namespace["gone"] = 1
    cell = ran(session, body, torch.randn(640))
    with pytest.raises(NameError):
        ran(session, body, torch.randn(3000))
    cell.update(seconds=0.02)
    said = " ".join(cell.summary().notes)
    assert "its latest run ended by an error: run the cell again" in said
    assert "ran as plain Python" not in said
    assert ("figures are of what ran before" in said) == bool(cell.graphs)
    assert bool(cell.fused) == bool(cell.graphs), "no times without what they are of"


def test_functions_show_the_calls_since_they_were_shown_last(session: Session) -> None:
    def scaled(t: torch.Tensor) -> torch.Tensor:
        return (t * 3).sigmoid() + t

    fused = fuse(session, scaled)
    cell: FusedCell = fused.result
    for x in (torch.randn(1000), torch.randn(5000), torch.randn(700).double()):
        fused(x)
        one_size(cell, 2 * x.nbytes)
    one_size(cell, 2 * x.nbytes)  # shown again, without a call between
    assert len(cell.graphs) == 3


def test_the_first_line_is_the_one_that_ran_last(session: Session) -> None:
    def first(header: str) -> str:
        session.namespace["x"] = torch.randn(640)
        cell, program = session.prepare(BODY, CellOptions(name="c"), Frontend(), header)
        session.run(cell, program)
        cell.update(seconds=0.02)
        return str(cell.summary().lines[0].text)

    assert first("%%fuse --name c --edit") == "%%fuse --name c --edit"
    graphs = session.cell("c").graphs
    assert first("%%fuse -n c") == "%%fuse -n c"
    assert session.cell("c").graphs == graphs, "nothing is compiled again"


def test_python_alone_has_nothing_to_mend(session: Session) -> None:
    cell = ran(session, "a = 3\nprint('hi')\n", torch.randn(3))
    said = " ".join(cell.text().split())
    assert "nothing here computes with tensors: the cell ran as plain Python" in said
    assert "to mend it" not in said
    assert "graph break" not in said


def test_a_loop_that_breaks_is_no_python_alone(session: Session) -> None:
    loop = "for t in range(3):\n    h = h.tanh()\n    if h.max() > 5:\n        break\n"
    body = f"h = x\n{loop}y = h + 1\n"
    cell = ran(session, body, torch.randn(40))
    said = " ".join(cell.text().split())
    assert "a loop breaks the graph" in said
    assert "ran as plain Python" not in said


def test_a_seed_is_nothing_to_mend(session: Session) -> None:
    cell = ran(session, "torch.manual_seed(3)\ny = torch.rand(9) + x\n", torch.randn(9))
    (seed,) = cell.breaks
    assert seed.expected
    assert seed.reason == "manual_seed sets the random numbers, in Python"


def test_the_panel_counts_the_kernels_that_the_result_counts(session: Session) -> None:
    # Two kernels of one kind of input, then one of another; the names of the first stay known.
    body = "y = torch.tanh(x) * 2\nz = y.sum(0) if x.dtype == torch.float64 else x.cumsum(0)\n"
    ran(session, body, torch.randn(64, 30))
    cell = ran(session, body, torch.randn(64, 30, dtype=torch.float64))
    idle = set(cell.kernels) - set(cell.latest_kernels)
    assert idle
    panel = workbench(cell)
    panel._repr_mimebundle_()
    try:
        count = words.count(len(cell.latest_kernels), "kernel")
        assert cell.text().startswith(f"c: {count}")
        assert f"{count}, {len(idle)} more of earlier inputs" in panel.head.value
        listed = {name: label for label, name in panel.kernels.choice.options}
        assert list(listed) == [*cell.latest_kernels, *(n for n in cell.kernels if n in idle)]
        assert {name for name, label in listed.items() if "of earlier inputs" in label} == idle
        assert panel.bench.selected in cell.latest_kernels
        shares = [label for name, label in listed.items() if name not in idle and "%" in label]
        assert len(shares) == (len(cell.latest_kernels) if len(cell.latest_kernels) > 1 else 0)
        names = [name for name, *_ in parts_of(cell)]
        assert "of earlier inputs" not in names[0]
        assert "of earlier inputs" in names[-1]
        # One that somebody looks at stays, until another run leaves it; one with a draft stays.
        panel.kernels.choice.value = old = min(idle)
        panel.bench.look()
        assert panel.bench.selected == old
        ran(session, body, torch.randn(64, 30))
        panel.bench.look()
        assert panel.bench.selected == old
        ran(session, body, torch.randn(64, 30, dtype=torch.float64))
        panel.bench.look()
        assert panel.bench.selected in cell.latest_kernels
        ran(session, body, torch.randn(64, 30))
        panel.bench.look()
        panel.kernels.choice.value = old
        panel.bench.set_draft(old, "// a draft")
        ran(session, body, torch.randn(64, 30, dtype=torch.float64))
        panel.bench.look()
        assert panel.bench.selected == old
    finally:
        panel.close()


def test_a_cell_that_trains_takes_one_step_a_run(session: Session) -> None:
    body = "opt.zero_grad()\nloss = model(x).square().mean()\nloss.backward()\nopt.step()\n"
    x = torch.randn(5, 8)
    weights = []
    for fused in (False, True):
        torch.manual_seed(0)
        session.namespace["model"] = model = torch.nn.Linear(8, 4)
        session.namespace["opt"] = torch.optim.AdamW(model.parameters(), 0.1)
        for _ in range(2):
            if fused:
                ran(session, body, x)  # which times and checks it, too
            else:
                exec(body, session.namespace | {"x": x})
        weights.append(model.weight.detach().clone())
    torch.testing.assert_close(*weights)


@pytest.mark.parametrize("body", ["y = torch.tanh(x)", "y = torch.tanh(x @ x)"])
def test_pages_take_what_the_result_has_measured(
    session: Session, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times and limits measured once more would differ from those of the card above."""
    # A limit that is beaten, as on a machine that does other things, is measured again.
    monkeypatch.setattr("fuselab.session.measured_cell.noise.pace", lambda *_: Pace.SAME)
    monkeypatch.setattr("fuselab.session.measured_cell.beaten", lambda *_: False)
    cell = ran(session, body, torch.randn(64, 64))
    before = cell.traffic, cell.limit, dict(cell.kernel_times)
    assert before[0] is not None
    limit = words.duration(before[0].limit)
    assert limit in limits_of(cell).text
    timings_of(cell)
    assert (cell.traffic, cell.limit, cell.kernel_times) == before
    assert len(cell.extern_times) == body.count("@")
    ran(session, body, torch.randn(32, 32))  # another call has others
    limits_of(cell)
    assert cell.traffic is not before[0]


def test_what_looks_at_a_cell_draws_no_numbers_of_the_notebooks(session: Session) -> None:
    """Timing drew a seed a call: what a notebook drew next hung on how often that was."""
    torch.manual_seed(0)
    cell, program = session.prepare(
        "y = torch.nn.functional.dropout(x, 0.5)", CellOptions(name="c"), Frontend()
    )
    session.namespace["x"] = torch.ones(8, 64)
    session.run(cell, program)
    state = torch.get_rng_state()
    (kernel,) = cell.kernels.values()
    edit = kernel.source + "\n// a comment\n"
    looks: dict[str, Callable[[], object]] = {
        "update": lambda: cell.update(seconds=0.02),
        "edit": lambda: session.edit(kernel.name, edit),
        "tune": lambda: session.tune(kernel.name, 0.2),
        "times": lambda: timings_of(cell),
    }
    for what, look in looks.items():
        look()
        assert torch.equal(torch.get_rng_state(), state), what


def test_a_page_about_times_draws_no_numbers_of_the_notebooks(session: Session) -> None:
    """It times what nobody has timed yet, which was not put back."""
    cell, program = session.prepare(
        "y = torch.nn.functional.dropout(x, 0.5)", CellOptions(name="c"), Frontend()
    )
    session.namespace["x"] = torch.ones(8, 64)
    session.run(cell, program)
    state = torch.get_rng_state()
    timings_of(cell)
    assert cell.fused is not None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_limit_that_was_beaten_is_measured_again(session: Session) -> None:
    """It was timed while the machine was busy; asked for again, it must not stay unknown."""
    cell, program = session.prepare("y = x * 2 + 1", CellOptions(name="c"), Frontend())
    session.namespace["x"] = torch.ones(64, 64)
    session.run(cell, program)
    cell.update(seconds=0.02)
    cell.limit = None
    with patch.object(type(cell), "measure_limit", return_value=1e-6) as measured:
        assert cell.know_limit() == 1e-6
        cell.limit = 2e-6
        assert cell.know_limit() == 2e-6
    assert measured.call_count == 1
