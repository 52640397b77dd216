"""The recipes: each can be followed to the letter, touches few files, and does what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.paths import ROOT, TESTS
from support.recipe import NotToTheLetter, copy_tree, edits, follow, patched

FOLDER = ROOT / "docs/recipes"
# How many files each touches, tests apart.
TOUCHED = {
    "add-a-pass": 2,
    "add-a-scalar-operation": 2,
    "add-a-tab": 2,
    "add-a-target": 3,
    "add-a-tunable": 2,
    "add-an-export-form": 2,
    "add-an-operator": 1,
}
PAGES = sorted(FOLDER.glob("add-*.md"))


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree in which every recipe was followed, one after the other."""
    folder = tmp_path_factory.mktemp("tree")
    copy_tree(ROOT, folder)
    for page in PAGES:
        touched = follow(page.read_text(), folder)
        assert len(touched) == TOUCHED[page.stem], touched
    return folder


@pytest.mark.timeout(600)
def test_the_recipes_do_what_they_say(kitchen: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [
                *(str(kitchen / p) for p in ("compiler", "ext")),
                str(TESTS),
                *filter(None, [os.environ.get("PYTHONPATH")]),
            ]
        ),
        "FUSEC_STRICT": "1",
        "FUSEC_VERIFY": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "support.pages", *map(str, PAGES)],
        env=environment,
        cwd=kitchen,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""  # nothing that is printed differs from the pages


def test_what_the_recipes_write_is_in_the_project_s_style(kitchen: Path) -> None:
    pytest.importorskip("ruff")
    shutil.copy(ROOT / "pyproject.toml", kitchen)
    touched = {block.title for page in PAGES for block in edits(page.read_text())}
    assert len(touched) > 4
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, *sorted(touched)]
        done = subprocess.run(ruff, cwd=kitchen, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_overview_has_recipes_that_are_there() -> None:
    listed = re.findall(r"\((add-[\w-]+)\.md\)", (FOLDER / "index.md").read_text())
    assert set(listed) <= {page.stem for page in PAGES} <= set(TOUCHED)
    assert len(listed) > 4


# --- following ------------------------------------------------------------------------------------


def test_a_change_is_made_where_its_lines_stand() -> None:
    assert patched("a\nb\nc\n", " a\n-b\n+d\n c", "x") == "a\nd\nc\n"
    assert patched("a\n\nc\n", " a\n \n+b\n c", "x") == "a\n\nb\nc\n"


@pytest.mark.parametrize(
    ("diff", "message"),
    [(" z\n+b", "nowhere"), (" a\n+b", "2 times"), ("a\n+b", "begins with none")],
)
def test_what_cannot_be_followed_is_an_error(diff: str, message: str) -> None:
    with pytest.raises(NotToTheLetter, match=message):
        patched("a\na\n", diff, "x.py")


def test_a_new_file_is_new(tmp_path: Path) -> None:
    recipe = '```python title="a/b.py"\nx = 1\n```\n'
    assert follow(recipe, tmp_path) == ["a/b.py"]
    assert (tmp_path / "a/b.py").read_text() == "x = 1\n"
    with pytest.raises(NotToTheLetter, match="no new file"):
        follow(recipe, tmp_path)
    with pytest.raises(NotToTheLetter, match="there is no c"):
        follow('```diff title="c.py"\n a\n```\n', tmp_path)
