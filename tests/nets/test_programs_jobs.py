"""Programs that run in many processes: what a child that dies or hangs costs, and going on."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from programs import jobs, state
from programs.__main__ import main, parse
from programs.examine import examine

# A child that answers for each seed: one is wrong, one ends it, one hangs.
CHILD = """
import json, os, sys, time
for seed in json.loads(sys.stdin.readline()):
    if seed == 3:
        os._exit(7)
    if seed == 5:
        time.sleep(60)
    wrong = {"problems": ["output 0: differs"]} if seed == 6 else {}
    print(json.dumps({"seed": seed, **wrong}), flush=True)
"""


def options(folder: Path, *more: str) -> Namespace:
    return parse(["--jobs", "2", "--report", str(folder / "fuzz.jsonl"), *more])


def problems(rows: dict[int, jobs.Row]) -> dict[int, str]:
    return {seed: row["problems"][0] for seed, row in rows.items() if "problems" in row}


@pytest.fixture
def child(tmp_path: Path) -> list[str]:
    path = tmp_path / "child.py"
    path.write_text(CHILD)
    return [sys.executable, str(path)]


def test_a_child_that_dies_or_hangs_costs_one_seed(
    tmp_path: Path, child: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "TIME_LIMIT", 2.0)
    rows = jobs.Jobs(options(tmp_path), range(10), child).go()
    assert sorted(rows) == list(range(10))
    assert problems(rows) == {
        3: "crash: 7",
        5: "hangs: more than 2 s",
        6: "output 0: differs",
    }


def test_what_ends_the_process_in_eager_is_no_difference(tmp_path: Path) -> None:
    """A child that ends for seed 3 in any case, and for seed 4 but in eager alone."""
    path = tmp_path / "child.py"
    path.write_text(
        CHILD.replace("seed == 3", 'seed == 3 or seed == 4 and "--eager" not in sys.argv')
    )
    given, command = options(tmp_path, "--state"), [sys.executable, str(path)]
    rows = jobs.Jobs(given, (1, 3, 4), command).go()
    assert problems(rows) == {4: "crash: 7"}
    assert rows[3]["eager_ends"] == "crash: 7"
    assert jobs.alone(3, given, command) == {"seed": 3, "eager_ends": "crash: 7"}
    assert problems({4: jobs.alone(4, given, command)}) == {4: "crash: 7"}


def test_a_run_goes_on_where_it_was(tmp_path: Path, child: list[str]) -> None:
    given = options(tmp_path)
    jobs.Jobs(given, range(2), child).go()
    with given.report.open("a") as file:
        file.write('{"net": "forward", "se')  # cut off
    (tmp_path / "child.py").write_text("import sys; sys.exit(1)")
    assert not problems(jobs.Jobs(given, range(2), child).go())
    # another net's rows are not this one's
    assert problems(jobs.Jobs(options(tmp_path, "--train"), [0], child).go()) == {0: "crash: 1"}
    assert 0 in jobs.read(given.report, "train")


def test_a_run_ends_in_time(tmp_path: Path, child: list[str]) -> None:
    rows = jobs.Jobs(options(tmp_path, "--seconds", "0.001"), range(400), child).go()
    assert len(rows) < 400
    assert not problems(rows)


def test_what_differs_is_run_alone(
    tmp_path: Path, child: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "ALONE_LIMIT", 2.0)
    given = options(tmp_path)
    rows = {seed: jobs.alone(seed, given, child) for seed in (1, 3, 5, 6)}
    assert rows[1] == {"seed": 1}
    assert problems(rows) == {3: "crash: 7", 5: "hangs: more than 2 s", 6: "output 0: differs"}


@pytest.mark.parametrize("wrong", [{}, {"problems": ["x: differs"], "repro": "a file"}])
def test_what_only_other_programs_bring_about_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: jobs.Row
) -> None:
    monkeypatch.setattr(state, "problems", lambda *_, **__: ["output 0: differs"])
    monkeypatch.setattr(jobs, "alone", lambda seed, _: {"seed": seed, **wrong})
    row = examine(0, options(tmp_path, "--state")).row()
    row.pop("seconds", None)
    assert row == {"seed": 0, **(wrong or {"after_others": ("output 0: differs",)})}


def test_nets_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEC_POISON", raising=False)
    assert jobs.net_of(options(tmp_path)) == "forward"
    assert jobs.net_of(options(tmp_path, "--state", "--device", "cuda")) == "state device cuda"
    monkeypatch.setenv("FUSEC_POISON", "1")
    assert jobs.net_of(options(tmp_path, "--train", "--halves")) == "train halves poison"


def test_real_children(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "fuzz.jsonl"
    assert main(["--seeds", "0:2", "--length", "3", "--jobs", "1", "--report", str(report)]) == 0
    assert "0 of 2 programs differ" in capsys.readouterr().out
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    assert [row["seed"] for row in rows] == [0, 1]
    assert {row["net"] for row in rows} == {"length 3"}


def test_a_crash_says_where_it_was() -> None:
    code = "import faulthandler, os; faulthandler.enable(); os.abort()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert jobs._where(done.stderr) == ['File "<string>", line 1 in <module>']
    assert not jobs._where("a warning")


def test_a_crash_within_eager_is_eagers(tmp_path: Path) -> None:
    """Also where the program is another behind others, so that it cannot be made again alone."""
    stack = '  File "state.py", line {n} in {name}\n'
    frames = [("run", 1)] * 9 + [("run_in_eager", 2), ("problems", 3)]
    text = "".join(stack.format(name=name, n=n) for name, n in frames)
    where = jobs._where(f"Fatal Python error: Segmentation fault\n\n{text}")
    given, command = options(tmp_path, "--state"), [sys.executable, "-c", "raise SystemExit(7)"]
    row = jobs._ended(3, -11, given, command, where)
    assert row == {"seed": 3, "eager_ends": "crash: -11, behind other programs"}
    mine = jobs._where(f"Fatal Python error: Segmentation fault\n\n{text.replace('_in_eager', '')}")
    alive = [sys.executable, "-c", "print('{}')"]
    assert "problems" in jobs._ended(3, -11, given, alive, mine)
