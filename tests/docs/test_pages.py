"""The pages under ``docs``: their code runs, and prints what they show."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fuselab
from fusec.call import native
from support.pages import Block, blocks, differences, fresh_shell, rewritten, run_in
from support.paths import ROOT
from support.reading_list import counted_again, readings

TOUR = ROOT / "docs/tour.md"
PAGE = """\
<!-- run
value = 3
-->

```python
print(value)
print(f"took {value}.5 ms")
```

<!-- prints from "3" to "3" -->
```text
3
```

<!-- prints measured -->
```text
3
took 7.25 ms
```
"""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.chdir(tmp_path)  # what a page writes lies there
    native.types(wait=True)  # a page was written with it, and says where a time was taken without
    yield fresh_shell()
    fuselab.unload_ipython_extension(fresh_shell())


def python(code: str) -> str:
    """Run a cell without IPython: for the tests of the walk itself."""
    import contextlib
    import io

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(code, names)
    return output.getvalue()


names: dict[str, Any] = {}


def pinned() -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.removeprefix("torch==") for line in lines if line.startswith("torch=="))


# --- the walk ----------------------------------------------------------------------------------


def test_what_is_printed_is_compared_and_figures_are_not() -> None:
    assert differences(PAGE, python) == []
    (wrong,) = differences(PAGE.replace("-->\n```text\n3\n```", "-->\n```text\n4\n```"), python)
    assert wrong == "line 12: the page has '4', the code prints '3'"
    (short,) = differences(PAGE.replace("took 7.25 ms\n", ""), python)
    assert "the code prints 'took TIME'" in short
    (long,) = differences(PAGE.replace("took 7.25 ms", "took 7.25 ms\nmore"), python)
    assert "the page has 'more'" in long
    assert differences(PAGE.replace("took 7.25 ms", "takes 7.25 ms"), python)


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing printed"):
        differences(PAGE.replace('"3" to "3"', '"3" to "nowhere"'), python)
    with pytest.raises(NameError):
        differences(
            PAGE.replace("value = 3", "other = 3").replace("print(value)", "print(v)"), python
        )


def test_a_page_is_rewritten_but_for_its_figures() -> None:
    page = PAGE.replace("value = 3", "value = 5").replace('"3" to "3"', '"5" to "5"')
    now = rewritten(page, python)
    assert "```text\n5\n```" in now
    assert "```text\n5\ntook 5.5 ms\n```" in now
    assert differences(now, python) == []
    assert rewritten(PAGE, python) == PAGE  # 7.25 stays
    assert "took 3.5 ms" in rewritten(PAGE, python, figures=True)


def test_a_file_s_block_is_no_cell() -> None:
    (block,) = blocks('```python title="compiler/x.py"\nx = 1\n```\n')
    assert block == Block("python", "compiler/x.py", "x = 1", "", 1, 2)
    assert not block.is_code
    (left,) = blocks("<!-- not run: needs a GPU -->\n```python\nx\n```\n")
    assert not left.is_code


# --- names -------------------------------------------------------------------------------------

FILE_NAME = re.compile(r"`([\w/]*\w\.(?:py|cpp|h|j2|md))`")


def prose() -> Iterator[tuple[Path, str]]:
    """Yield what tells of the code by the names of its files."""
    for package in (ROOT / "compiler/fusec", ROOT / "ext/fuselab"):
        for path in package.rglob("*"):
            if path.name == "__init__.py" and "node_modules" not in path.parts:
                yield path, ast.get_docstring(ast.parse(path.read_text())) or ""
            elif path.name == "README.md" and "node_modules" not in path.parts:
                yield path, path.read_text()
    for path in (ROOT / "docs/architecture.md", *(ROOT / "docs/recipes").glob("*.md")):
        yield path, path.read_text()


def test_files_that_are_named_are_there() -> None:
    folders = ("compiler", "ext", "tests", "docs")
    known = [
        f"/{path.relative_to(ROOT).as_posix()}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.*")
        if "node_modules" not in path.parts
    ]
    found, missing = 0, []
    for path, text in prose():
        for name in FILE_NAME.findall(text):
            found += 1
            if not any(each.endswith(f"/{name}") for each in known):
                missing.append(f"{path.relative_to(ROOT)} names {name}")
    assert missing == []
    assert found > 120


def test_the_map_is_a_map() -> None:
    assert len((ROOT / "docs/architecture.md").read_text().splitlines()) <= 120


def test_a_stranger_can_type_the_readme_s_cells_along() -> None:
    """Every name that the notebook's cells use is given in a cell above, none in what is hidden."""
    part = (ROOT / "README.md").read_text().split("\n## In a notebook")[1].split("\n## ")[0]
    known = set(dir(builtins))
    for cell in re.findall(r"(?ms)^```python\n(.*?)^```", part):
        code = "\n".join(line for line in cell.splitlines() if not line.startswith("%"))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.alias):
                known.add((node.asname or node.name).partition(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                known.add(node.id)
        used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
        assert used <= known, sorted(used - known)


# --- the tour ------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", ["docs/tour.md", pytest.param("README.md", marks=pytest.mark.slow)]
)
def test_a_page_shows_what_the_code_prints(shell: Any, name: str) -> None:
    if torch.__version__.split("+")[0] != pinned():
        pytest.skip(f"the pages are of torch {pinned()}; graphs of other releases look otherwise")
    native.prepare()
    native.await_types(240.0)  # what is timed before says so
    found = differences((ROOT / name).read_text(), run_in(shell))
    assert not found, "\n".join([*found, "`make pages` writes it anew"])


def test_the_tour_s_reading_list_is_as_long_as_it_says() -> None:
    text = TOUR.read_text()
    listed = readings(text)
    off = [f"{r.path} {r.names}: {r.lines}, now {r.count(ROOT)}" for r in listed if r.is_off(ROOT)]
    assert not off, "\n".join([*off, "`make pages` counts again"])
    assert len(listed) > 15
    assert 2000 < sum(reading.lines for reading in listed) < 3000


def test_lengths_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(
        "A = (\n    1,\n)\n\n\n@old\ndef f():\n    pass\n\n\n"
        "class C:\n    def g(self):\n        pass\n"
    )
    page = "0 lines in all\n| 1 | `x.py`: `A`, `f`, `C.g` | why | 0 |\n| 2 | `x.py` | all | 7 |\n"
    assert counted_again(page, tmp_path) == (
        "21 lines in all\n| 1 | `x.py`: `A`, `f`, `C.g` | why | 8 |\n| 2 | `x.py` | all | 13 |\n"
    )
    (missing,) = readings("| 1 | `x.py`: `nowhere` | why | 3 |")
    with pytest.raises(KeyError, match="nowhere"):
        missing.count(tmp_path)
