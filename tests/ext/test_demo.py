"""The demo, on small notebooks that display a result as a fused cell does."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from fuselab import demo
from support.waiting import wait_for

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
RESULT = {
    "name": "gelu norm",
    "kernels": [
        {"name": "gelu_norm_0", "target": "cpp", "head": ["// cell line 2", "void k() {"]},
        {"name": "gelu_norm_1", "target": "cpp", "head": []},
    ],
    "eager_ms": 4.2,
    "fused_ms": 1.05,
    "max_error": 1.2e-7,
    "error_of": "y",
    "breaks": ["line 3: print"],
}


def fused_cell(result: dict[str, Any] | None = None, plots: int = 1) -> Any:
    """Display what a `%%fuse` cell displays, without the extension."""
    image = base64.b64encode(PNG).decode()
    lines = ["from IPython.display import display"]
    for _ in range(plots):
        data = {"text/plain": "in plain text", demo.RESULT: result or RESULT, "image/png": image}
        lines.append(f"display({data!r}, raw=True)")
    return new_code_cell("\n".join(lines))


def failing_on_purpose(source: str) -> Any:
    return new_code_cell(source, metadata={"tags": ["raises-exception"]})


def run_demo(folder: Path, cells: list[Any], *options: str) -> int:
    path = folder / "small.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return demo.main(["--notebook", str(path), "--output", str(folder / "out"), *options])


def outputs(path: Path) -> list[Any]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.outputs for cell in cells if cell.cell_type == "code"]


def test_reports_the_fused_cell_and_leaves_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [
        new_markdown_cell("# A notebook"),
        new_code_cell("import sys; sys.executable"),
        fused_cell(),
        failing_on_purpose("raise ValueError('the edit is wrong by 3e-2')"),
    ]
    assert run_demo(tmp_path, cells) == 0
    printed = capsys.readouterr().out
    for line in (
        "kernel gelu_norm_0 (cpp)",
        "  | // cell line 2",
        "kernel gelu_norm_1 (cpp)",
        "eager 4.2 ms, fused 1.05 ms (4.00x as fast)",
        "largest error against eager 1.20e-07, at y",
        "graph break: line 3: print",
        "raised, as the notebook expects: ValueError: the edit is wrong by 3e-2",
    ):
        assert f"\n    {line}\n" in printed
    assert ["gelu", "norm", "4.2", "1.05", "1.20e-07"] in [
        line.split() for line in printed.splitlines()
    ]
    assert "in plain text" not in printed

    out = tmp_path / "out"
    assert (out / "gelu_norm.png").read_bytes() == PNG
    executable, fused, error = outputs(out / "small.ipynb")
    assert executable[0].data["text/plain"] == repr(sys.executable)
    assert fused[0].data[demo.RESULT] == RESULT
    assert error[0].ename == "ValueError"
    page = (out / "small.html").read_text()
    assert "A notebook" in page
    assert "<script src=" not in page, "the page would fetch a script"


def test_a_failing_cell_ends_the_run_and_what_ran_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [
        fused_cell(),
        new_code_cell("def half(x):\n    return x / 0\nhalf(1)"),
        new_code_cell("'never run'"),
    ]
    assert run_demo(tmp_path, cells) == 1
    printed = capsys.readouterr()
    assert "cell 2 of 3 (def half(x):) failed with ZeroDivisionError" in printed.err
    assert "return x / 0" in printed.err
    assert "\x1b" not in printed.err
    assert "Stopped after" in printed.out
    out = tmp_path / "out"
    first, second, third = outputs(out / "small.ipynb")
    assert first[0].data[demo.RESULT] == RESULT
    assert second[0].ename == "ZeroDivisionError"
    assert third == []
    assert (out / "gelu_norm.png").exists()
    assert "ZeroDivisionError" in (out / "small.html").read_text()


def test_an_error_that_does_not_come_is_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [failing_on_purpose("1 + 1"), new_code_cell("'the rest still runs'")]
    assert run_demo(tmp_path, cells) == 1
    assert "cell 1 of 2 (1 + 1) should have raised an error" in capsys.readouterr().err
    assert len(outputs(tmp_path / "out/small.ipynb")[1]) == 1


def test_a_kernel_that_dies_is_named_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [fused_cell(), new_code_cell("import os; os._exit(3)")]
    assert run_demo(tmp_path, cells) == 1
    assert "The Jupyter kernel died in cell 2 of 2 (import os;" in capsys.readouterr().err
    assert (tmp_path / "out/gelu_norm.png").exists()


def test_a_cell_that_does_not_end_is_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [new_code_cell("import time\nwhile True: time.sleep(0.01)")]
    started = time.monotonic()
    assert run_demo(tmp_path, cells, "--timeout", "1") == 1
    assert time.monotonic() - started < 60
    assert "did not end within 1 s" in capsys.readouterr().err


def test_ctrl_c_stops_the_kernel_and_keeps_what_ran(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    endless = f"""\
import os, pathlib, time
pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
time.sleep(100)"""
    path = tmp_path / "small.ipynb"
    nbformat.write(new_notebook(cells=[fused_cell(), new_code_cell(endless)]), path)
    out = tmp_path / "out"
    # A shell starts a background job with Ctrl-C ignored, and these tests may be part of one.
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from fuselab.demo import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, "--notebook", path, "--output", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: pid_file.exists() and bool(pid_file.read_text()))
    process.send_signal(signal.SIGINT)
    printed, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted in cell 2 of 2" in complaint
    assert "Traceback" not in complaint
    assert "gelu norm" in printed
    assert (out / "gelu_norm.png").exists()
    wait_for(lambda: not alive(int(pid_file.read_text())))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_second_run_replaces_the_first_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run_demo(tmp_path, [fused_cell(plots=2)]) == 0
    (out / "mine.png").write_bytes(PNG)
    assert (out / "gelu_norm-2.png").exists()
    assert run_demo(tmp_path, [fused_cell({**RESULT, "name": "softmax"})]) == 0
    assert {path.name for path in out.glob("*.png")} == {"mine.png", "softmax.png"}


def test_text_is_shown_where_there_is_no_data() -> None:
    cell = new_code_cell("%%fuse\ny = x + 1")
    cell.outputs = [
        nbformat.v4.new_output("display_data", {"text/plain": "fused 1 kernel\neager 2 ms"})
    ]
    assert demo.report(cell, demo.results(cell)) == ["fused 1 kernel", "eager 2 ms"]
    assert demo.cell_name(cell, 4) == "cell-05"


def test_a_partial_result_is_described_as_far_as_it_goes() -> None:
    assert demo.describe({"name": "x", "kernels": [], "eager_ms": None, "fused_ms": 2.0}) == []
    assert demo.describe({"kernels": [{"name": "k"}]}) == ["kernel k"]
    assert demo.describe({"eager_ms": 2, "fused_ms": 0.0004}) == [
        "eager 2 ms, fused 0.0004 ms (5000.00x as fast)"
    ]


@pytest.mark.parametrize("name", ["../../etc/x", "a/b", "..", "", "café ☕"])
def test_a_result_cannot_name_a_file_outside_the_folder(name: str) -> None:
    cell = new_code_cell("")
    cell.outputs = [nbformat.v4.new_output("display_data", {demo.RESULT: {"name": name}})]
    path = Path("out", f"{demo.cell_name(cell, 0)}.png")
    assert path.parent == Path("out")
    assert not path.name.startswith(".")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no notebook at"),
        ("hello", "is not a notebook"),
        ("[1]", "is not a notebook"),
        ("{}", "is not a notebook"),
        ("\xff\xfe", "is not a notebook"),
    ],
)
def test_a_bad_notebook_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    path = tmp_path / "bad.ipynb"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    assert demo.main(["--notebook", str(path), "--output", str(tmp_path / "out")]) == 2
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert str(path) in complaint
    assert says in complaint


def test_the_source_notebook_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "small.ipynb"
    nbformat.write(new_notebook(cells=[]), path)
    with pytest.raises(SystemExit):
        demo.main(["--notebook", str(path), "--output", str(tmp_path)])
