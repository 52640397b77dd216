"""``%%predict``: what a cell will be, beside a guess; the notebook stays as it is."""

from __future__ import annotations

import re

import pytest
import torch
from IPython.core.error import UsageError

from fuselab.display.guesses import Guessed, read_size
from fuselab.magics.completion import completions
from support.shell import run


def test_a_cell_is_predicted_and_does_not_run(shell):
    shell.user_ns.update(x=torch.randn(8, 16))
    said = run(shell, "%%predict\ny = torch.softmax(x * 2, -1)\nz = y.sum()")
    assert len(said.kernels) == 2
    assert said.kernels[0].operators == ("mul", "softmax")
    assert said.kernels[0].lines[0].text == "y = torch.softmax(x * 2, -1)"
    assert said.kernels[0].lines[0].line == 2
    assert "y" not in shell.user_ns
    assert "z" not in shell.user_ns


def test_a_guess_stands_beside_it(shell):
    shell.user_ns.update(x=torch.randn(1000, 1000))
    found = run(shell, "%%predict --kernels 2 --reads 4MB --writes 4MiB\ny = x.relu() + 1")
    assert isinstance(found, Guessed)
    assert [row.right for row in found.rows] == [False, True, True]
    assert found.score == 2 / 3
    assert re.search(r"^kernels +2 +1 +not so$", str(found), re.MULTILINE)
    assert "4 MB (3.81 MiB)" in str(found)
    assert "<td>not so</td>" in found._repr_mimebundle_()["text/html"]


def test_what_comes_first_runs_and_is_put_back(shell):
    shell.user_ns.update(x=torch.ones(4))
    said = run(shell, "%%predict\nx.mul_(2)\nimport math\nw = x * math.pi")
    assert len(said.kernels) == 2
    assert torch.equal(shell.user_ns["x"], torch.ones(4))
    assert "math" not in shell.user_ns


def test_an_expression_on_a_line(shell):
    assert len(run(shell, "%predict x.sin().sum()").kernels) == 1


def test_definitions_are_predicted_when_they_are_called(shell):
    said = run(shell, "%%predict\ndef f(x):\n    return x + 1\nf(x)")
    assert len(said.kernels) == 1
    assert "f" not in shell.user_ns


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("%%predict --kernels two\nx + 1", "'two' is not a whole number"),
        ("%%predict --reads 4furlongs\nx + 1", "is not a size such as 8MB"),
        ("%%predict --kernel 2 --guess 3\nx + 1", "no option --guess"),
        ("%predict", "takes an expression"),
    ],
)
def test_mistakes(shell, cell, message):
    with pytest.raises(UsageError, match=message):
        run(shell, cell)


def test_sizes():
    assert read_size("8MB") == 8_000_000
    assert read_size("1.5 KiB") == 1536
    with pytest.raises(ValueError, match="not a size"):
        read_size("-1")


def test_completion(shell):
    assert completions(shell, "%%predict --ker", "--ker") == ["--kernels"]
