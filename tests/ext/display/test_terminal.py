"""Text in a terminal: lines are broken between words, at its width, and nowhere else."""

from __future__ import annotations

import os
import sys

import pytest

from fusec.inspect import terminal
from fusec.inspect.predict import Prediction
from fusec.inspect.terminal import fitted
from fusec.report import GraphBreak, Guard, SourceLine
from fuselab.display.guesses import Guessed, GuessRow
from fuselab.display.outcomes import Edits, Table
from fuselab.display.pages.page import Page
from fuselab.edit_record import Edit
from fuselab.judge.verdict import AnswerVerdict
from fuselab.labs.progress import Said

WIDE = (
    "gelu: 1 kernel; eager 3.92 ms, fused 1.64 ms (2.4× faster); checked, error 2.4e-06 (1.7e-05)"
)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 60 columns."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(terminal.shutil, "get_terminal_size", lambda: os.terminal_size((60, 24)))


def test_a_sentence_goes_on_below_its_first_word() -> None:
    lines = fitted(f"{WIDE}\n  note    {WIDE}\n  short", 60).split("\n")
    assert max(map(len, lines)) <= 60
    assert [line[:2] for line in lines[:2]] == ["ge", "  "]
    assert lines[3].startswith(" " * 10 + "faster")
    assert lines[-1] == "  short"
    assert " ".join(" ".join(lines[:2]).split()) == WIDE


def test_a_row_goes_on_below_its_last_column() -> None:
    row = "  k  cpp     1.46 ms  sum over 1024 for each of 2048, of what is a row, lines 2-3"
    first, second = fitted(row, 60).split("\n")
    assert len(first) <= 60
    assert len(second) - len(second.lstrip()) == row.index("sum")


def test_a_narrow_last_column_is_no_tower() -> None:
    row = "  a_kernel_with_a_long_name  cpp  1.46 ms  16 MiB  sum over 1024 for each, lines 2-3"
    first, second = fitted(row, 60).split("\n")
    assert len(first) <= 60
    assert len(second) - len(second.lstrip()) == 6


def test_what_goes_elsewhere_is_left_alone() -> None:
    assert terminal.terminal_width() is None  # the tests' own output is a file
    assert fitted(WIDE, None) == WIDE
    assert Page(WIDE)._repr_mimebundle_()["text/plain"] == WIDE


def test_a_word_is_never_broken() -> None:
    assert fitted("x" * 90, 60) == "x" * 90


@pytest.mark.usefixtures("narrow")
def test_all_that_is_shown_fits() -> None:
    edit = Edit("k", "cpp", "refused", "text", WIDE, "", "", 0.0)
    for shown in (Page(WIDE), Table(("what", "why"), [("a", WIDE)])):
        text = shown._repr_mimebundle_()["text/plain"]
        assert max(map(len, text.split("\n"))) <= 60, text
    verdict = AnswerVerdict("softmax", False, "right", WIDE, next_step=WIDE)
    where = SourceLine("<cell>", 3, "y = F.gelu(x)")
    broken = GraphBreak(WIDE, WIDE, where)
    foreseen = Prediction("gelu", (), (WIDE,), (broken,), (Guard(WIDE, "", where),))
    beside = Guessed(foreseen, (GuessRow("kernels", 1, 2), GuessRow("reads", 1, 2)))
    for shown in (verdict, Said(WIDE), foreseen, beside):
        text = shown._repr_mimebundle_()["text/plain"]
        assert max(map(len, text.split("\n"))) <= 60, text
    from IPython.core.formatters import DisplayFormatter

    formats, _ = DisplayFormatter().format(Edits.of("k", [edit]))
    assert max(map(len, formats["text/plain"].split("\n"))) <= 60
    assert "refused" in formats["text/html"]


def test_edits_are_a_table() -> None:
    edits = [
        Edit("k", "cpp", state, "text", "why not", "", "", 0.0) for state in ("kept", "refused")
    ]
    shown = repr(Edits.of("k", edits)).splitlines()
    assert shown[0].split() == ["tried", "became", "because"]
    assert shown[1].startswith("[0] ")
    assert "kept" in shown[1]
    assert shown[2].endswith("why not")
    assert "fuselab.edits('k')[-1].text" in shown[3]
    assert Edits.of("k", edits)[-1].state == "refused"
    assert repr(Edits.of("kk", ())) == "no text was tried for a kernel named 'kk'"
