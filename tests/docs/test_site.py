"""The site: it has every page, its page of the magics is theirs, and reading it fetches nothing."""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from fusec.kernel import Kernel
from fuselab import other_magics
from fuselab.magics.fuse import FuseMagics
from support.paths import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in listed(child)]  # type: ignore[attr-defined]


def test_every_page_is_in_the_menu(hooks: ModuleType) -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    config = hooks.on_config(yaml.safe_load((ROOT / "mkdocs.yml").read_text()))
    assert set(listed(config["nav"])) == pages
    assert len(pages) > 12


def test_the_magics_page_has_every_option_of_every_magic(hooks: ModuleType) -> None:
    text = hooks.on_page_markdown((DOCS / "reference/magics.md").read_text())
    assert "<!-- the" not in text
    for magics in (FuseMagics, *other_magics()):
        for kind, names in magics.magics.items():
            for name, method in names.items():
                assert f"`{'%%' if kind == 'cell' else '%'}{name}`" in text
                parser = getattr(getattr(magics, method), "parser", None)
                for action in parser._actions if parser else ():
                    assert not action.option_strings or f"`{action.option_strings[-1]}`" in text
    assert "%%%%" not in text
    for name in FuseMagics.class_own_traits(config=True):
        assert f"`FuseMagics.{name}`" in text


def test_another_page_is_left_alone(hooks: ModuleType) -> None:
    assert hooks.on_page_markdown("# A page\n") == "# A page\n"


def test_a_file_of_the_root_links_from_within(hooks: ModuleType) -> None:
    text = hooks.on_page_markdown((DOCS / "contributing.md").read_text())
    assert "[docs/testing.md](testing.md)" in text
    assert "](docs/" not in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason="`make docs` installs what builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 12
    fetched = re.compile(
        r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\"> ]*)"
    )
    assert fetched.search('<script src="https://example.org/x.js">')
    for page in pages:
        assert fetched.findall(page.read_text()) == [], page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text()), style
    reference = (tmp_path / "reference/kernels.html").read_text()
    first = inspect.getdoc(Kernel.revert)
    assert first
    assert first.partition("\n")[0] in reference
    assert not [page for page in pages if "::</p>" in page.read_text()]
