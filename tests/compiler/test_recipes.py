"""The recipes of the documentation, followed to the letter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fusec
from fusec import targets
from fusec.target_api import registry

DOCS = Path(fusec.__file__).parents[2] / "docs" / "recipes"
BLOCK = re.compile(r'^```python title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
FOLDER = "compiler/fusec/targets/"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A place where folders are targets, in this process."""
    targets.__path__.append(str(tmp_path))
    registry._built_in.cache_clear()
    yield tmp_path
    targets.__path__.remove(str(tmp_path))
    registry._built_in.cache_clear()


def test_add_a_target(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = dict(BLOCK.findall((DOCS / "add-a-target.md").read_text()))
    use = blocks.pop("try it")
    for name, text in blocks.items():
        assert name.startswith(FOLDER)
        path = folder / name.removeprefix(FOLDER)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    registry._built_in.cache_clear()
    exec(compile(use, "<recipe>", "exec"), {})
    assert "i0 * 40 + i1" in capsys.readouterr().out
    assert "sums" in registry.NAMES
