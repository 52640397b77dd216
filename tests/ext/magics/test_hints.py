"""What is said where a magic was guessed, and where a cell magic has no code below it."""

from __future__ import annotations

import inspect

import pytest
from IPython.core.error import UsageError

import fuselab
from fuselab.magics.hints import hint, keep_empty_body
from support.shell import run

KNOWN = ["%fuse_report", "%fuse_revert", "%%fuse", "%fuse_help"]


@pytest.mark.parametrize(
    ("guessed", "said"),
    [
        ("%fuse_explain", "--show fusion"),
        ("%fuse_reprt", "did you mean %fuse_report?"),
        ("%fuse_xyzzy", "%fuse_help lists"),
        ("%fuse_tune", "--tune 10"),
        ("%kernels", "%%kernel NAME"),
        ("%fuse_history", "fuselab.edits('KERNEL')"),
        ("%fuse_undo", "%fuse_revert KERNEL"),
    ],
)
def test_a_guess_has_a_hint(guessed: str, said: str) -> None:
    assert said in hint(f"Line magic function `{guessed}` not found.", KNOWN)


def test_others_magics_have_none() -> None:
    assert hint("Line magic function `%timeitt` not found.", KNOWN) == ""
    assert hint("%%fuse: there is no code below it", KNOWN) == ""


def test_only_cell_magics_of_ours_without_a_body_are_changed() -> None:
    assert keep_empty_body(["%%kernel soft"]) == ["%%kernel soft\n", "\n"]
    for lines in (
        ["%%fuse?"],
        ["%%fuse"],
        ["%%timeit"],
        ["%%fuse\n", "y = x"],
        ["%fuse_help\n"],
        [],
    ):
        assert keep_empty_body(lines) == lines


@pytest.mark.parametrize(
    "first",
    ["%%fuse --name soft", "%%kernel soft", "%%predict", "%%predict --kernels 1", "%%task t"],
)
def test_a_terminal_waits_for_the_body_below_the_first_line(shell, first: str) -> None:
    assert shell.check_complete(first)[0] == "incomplete"
    assert shell.check_complete(f"{first}\ny = x * 2")[0] == "incomplete"
    with pytest.raises(UsageError, match=r"no code below|no text below|there is no"):
        run(shell, first)  # as a notebook runs it


def test_the_shell_prints_the_hint_after_the_error(shell, capsys) -> None:
    with pytest.raises(UsageError):
        run(shell, "%fuse_explain")
    assert "--show guards" in capsys.readouterr().err


def test_without_code_the_kernel_that_was_named_comes(shell, monkeypatch) -> None:
    run(shell, "%%fuse --name soft\ny = x * 2")
    given = []
    put = lambda text, replace=False: given.append((text, replace))  # noqa: E731
    monkeypatch.setattr(shell, "set_next_input", put)
    source = fuselab.kernels["soft"].source
    run(shell, "%%fuse --edit soft")
    run(shell, "%%kernel soft")
    assert given == [(f"%%kernel soft\n{source}", False), (f"%%kernel soft\n{source}", True)]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%%fuse --tune 10", "%%fuse --tune 10 stands in the first line"),
        ("%%kernel nosuch", "no kernel"),
        ("%%predict", "no code"),
    ],
)
def test_without_code_ours_say_what_is_wanted(shell, cell: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run(shell, cell)


def test_a_guess_at_the_settings_has_a_hint() -> None:
    message = "Invalid config statement: 'Fuselab', should be `Class.trait = value`."
    assert "%config FuseMagics" in hint(message, KNOWN)
    assert hint(message.replace("Fuselab", "Inline"), KNOWN) == ""


def test_help_fits_a_terminal(shell) -> None:
    """A terminal of 80 letters breaks what is longer in the middle of a word."""
    magics = shell.magics_manager.magics
    wide = [
        (name, line)
        for kind in ("line", "cell")
        for name, magic in magics[kind].items()
        if type(getattr(magic, "__self__", None)).__module__.startswith("fuselab.")
        for line in (inspect.getdoc(magic) or "").split("\n")
        if len(line) > 79 and not line.startswith("  -")  # argparse's own column
    ]
    assert wide == []


def test_a_task_without_its_lab_is_found_in_each(shell) -> None:
    with pytest.raises(UsageError) as raised:
        run(shell, "%hint softmax")
    said = str(raised.value)
    assert "did you mean lab01.softmax or lab08.softmax?" in said
    assert "there are" not in said
