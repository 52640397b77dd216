"""The line tools as a frontend reaches them: completion, help, configuration, one test each."""

from __future__ import annotations

import re
from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter

import fuselab
from fusec.target_api.registry import NAMES
from support.shell import run

MAGICS = (
    "%%fuse",
    "%fuse",
    "%%kernel",
    "%fuse_kernels",
    "%fuse_revert",
    "%fuse_export",
    "%fuse_report",
    "%fuse_compare",
)


@pytest.fixture
def named(shell: Any) -> Any:
    """A shell with two fused cells of a kernel each; %config is undone."""
    run(shell, "%%fuse -q --name first\ny = x * 2")
    run(shell, "%%fuse -q --name second\nz = x + 2")
    yield shell
    for each in (shell, *shell.configurables):  # IPython hands what is set to all of them
        each.config.pop("FuseMagics", None)


def completed(shell: Any, code: str, rest: str = "") -> set[str]:
    """Return what a frontend is offered at the end of ``code``, in front of ``rest``."""
    with provisionalcompleter():
        found = list(shell.Completer.completions(code + rest, len(code)))
    return {each.text for each in found}


def words_after(shell: Any, code: str, rest: str = "") -> set[str]:
    """Return the last word of what a line becomes with each completion."""
    with provisionalcompleter():
        found = list(shell.Completer.completions(code + rest, len(code)))
    return {(code[: each.start] + each.text).rsplit(" ", 1)[-1] for each in found}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("%%fuse --tar", {"--target"}),
        ("%%fuse --target ", {"auto", "cpp", "triton"}),
        ("%%fuse --matmul te", {"template"}),
        ("%%fuse --compare ", {"inductor"}),
        ("%%fuse --edit sec", {"second"}),
        ("%fuse --dyn", {"--dynamic"}),
        ("%%kernel fir", {"first"}),
        ("%%kernel first --str", {"--strict"}),
        ("%fuse_kernels sec", {"second"}),
        ("%fuse_revert fir", {"first"}),
        ("%fuse_export sec", {"second"}),
        ("%fuse_export second --form ", {"file", "library"}),
        ("%fuse_report fir", {"first"}),
        ("%fuse_report first --show gu", {"guards"}),
        ("%fuse_report --pan", {"--panel"}),
        ("%fuse_compare first sec", {"second"}),
        ("%fuse_rep", {"%fuse_report"}),
        ("%%fus", {"%%fuse"}),
        ("%config FuseMagics.tune", {"FuseMagics.tune_seconds"}),
    ],
)
def test_completion(named: Any, line: str, wanted: set[str]) -> None:
    assert wanted <= words_after(named, line), completed(named, line)


def test_completion_in_the_first_line_of_a_cell(named: Any) -> None:
    assert "--target" in words_after(named, "%%fuse --tar", "\ny = x * 2\nz = y + 1\n")
    assert "second" in words_after(named, "%%kernel sec", "\nint main() {}\n")


def test_completion_leaves_the_cells_own_text_alone(named: Any) -> None:
    assert "--target" not in completed(named, "%%fuse\ny = --tar")
    named.user_ns["tarantula"] = 1
    assert "tarantula" in words_after(named, "%%fuse\ny = taran")


@pytest.mark.parametrize("magic", MAGICS)
def test_help(named: Any, magic: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(named, f"{magic}?")
    named_text = capsys.readouterr().out
    assert re.search(rf"{re.escape(magic)}\s", named_text), named_text
    assert magic.lstrip("%") in named_text
    method = named.find_magic(magic.lstrip("%"), "cell" if magic.startswith("%%") else "line")
    for action in method.parser._actions:
        if action.option_strings:
            assert action.option_strings[-1] in named_text
        assert (action.help or "").split(" ")[0].replace("%%", "%") in named_text
    run(named, f"{magic}??")
    assert "def " in capsys.readouterr().out, "two question marks show the source"


def test_a_reloaded_extension_is_configured(named: Any) -> None:
    fuselab.unload_ipython_extension(named)
    fuselab.load_ipython_extension(named)
    magics = named.magics_manager.registry["FuseMagics"]
    assert [c for c in named.configurables if type(c).__name__ == "FuseMagics"] == [magics]
    run(named, "%config FuseMagics.target = 'cpp'")
    assert magics.target == "cpp"


def test_config_shows_and_sets(
    named: Any, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run(named, "%config FuseMagics")
    text = capsys.readouterr().out
    for name in ("target", "gpu", "tune_seconds", "measure_seconds", "check"):
        assert f"FuseMagics.{name}=" in text
    assert f"Choices: any of {list(NAMES)}" in text
    magics = named.magics_manager.registry["FuseMagics"]
    run(named, "%config FuseMagics.target = 'cpp'")
    run(named, "%config FuseMagics.check = False")
    assert (magics.target, magics.check) == ("cpp", False)
    run(named, "%%fuse --name third\nw = x - 2")
    assert named.compiler.functions[-1].options["target"] == "cpp"
    assert named.session.cells["third"].verdict is None
    run(named, "%config FuseMagics.target = 'cuda'")
    assert f"any of {list(NAMES)}, not the str 'cuda'" in caplog.text
    assert magics.target == "cpp"
