"""``make peer`` on a small file of tests: what passes, what fails, what ends the process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from peer.__main__ import main
from peer.graphs import NOTES, beside_eager

TESTS = """
import ctypes, torch, unittest.mock
from fusec.capture.backend import Backend
from torch._dynamo.testing import CompileCounter
from torch._inductor import metrics
from torch._inductor.utils import run_and_get_code
from torch._dynamo.utils import counters
from torch.testing import FileCheck
from torch._inductor.compile_fx import compile_fx, a_name_of_another_version
from torch.a_module_of_another_version import something
from torch.testing._internal.common_utils import TestCase

class Tests(TestCase):
    def check(self, backend):
        x = torch.arange(6.0)
        fn = torch.compile(lambda x: x * 2 + 1, backend=backend)
        torch.testing.assert_close(fn(x), x * 2 + 1)

    def test_compile_fx(self):
        self.check(lambda graph, inputs: compile_fx(graph, inputs))

    def test_named(self):
        with unittest.mock.patch.object(Backend, "_compile", autospec=True) as compiled:
            compiled.side_effect = lambda self, call: call.module.forward
            self.check("eager")
        self.assertTrue(compiled.called)

    def test_wrong(self):
        self.assertEqual(1, 2)

    def test_counted(self):
        counter = CompileCounter()
        self.check(counter)
        self.assertEqual(counter.frame_count, 1)

    def test_kernels_of_the_peer(self):
        metrics.reset()
        self.assertEqual(metrics.generated_kernel_count, 7)
        self.assertGreater(metrics.generated_kernel_count, 7)
        assert metrics.generated_cpp_vec_kernel_count == 3

    def test_texts_of_the_peer(self):
        double = torch.compile(lambda x: x * 2, backend="inductor")
        result, (code,) = run_and_get_code(double, torch.ones(3))
        torch.testing.assert_close(result, torch.full((3,), 2.0))
        self.assertIn("a kernel", code)
        FileCheck().check("a kernel").check_not("another").run(code)
        self.assertEqual(code.count("kernel"), 3)
        self.assertEqual(counters["inductor"]["a_pass"], 1)

    def test_backends_by_tags(self):
        self.assertIn("inductor", torch._dynamo.list_backends(exclude_tags=["debug"]))

    def test_of_another_version(self):
        a_name_of_another_version()

    def test_crash(self):
        ctypes.string_at(0)

class Written(TestCase):
    def test_graph(self):
        self.assertExpectedInline("a graph", "as the peer prints it")
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--graphs"]], ids=["", "graphs"])
def test_what_became_of_each(tmp_path: Path, more: list[str]) -> None:
    file = tmp_path / "test_of_somebody.py"
    file.write_text(TESTS)
    report = tmp_path / "report.jsonl"
    assert main([str(file), "--report", str(report), "--jobs", "1", *more]) == 0
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    found = {row["test"].split(".test_")[1]: row["verdict"] for row in rows}
    assert found == {
        "backends_by_tags": "passed",
        "compile_fx": "passed",
        "counted": "passed",
        "crash": "crash",
        "graph": "passed",
        "kernels_of_the_peer": "passed",
        "named": "passed",
        "of_another_version": "skipped",
        "texts_of_the_peer": "passed",
        "wrong": "failed",
    }


@pytest.fixture
def notes() -> Iterator[list[str]]:
    NOTES.clear()
    yield NOTES
    NOTES.clear()


def graph(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = x.relu() + y
    y.add_(1)
    return z, x.sin()


WRONG: dict[str, Callable[..., Any]] = {
    "a result": lambda x, y: (x.relu() + y, y.add_(1) * 0 + x.sin() * 1.01),
    "no update": lambda x, y: (x.relu() + y, x.sin()),
    "a gradient": lambda x, y: (x.detach().relu() + y, y.add_(1) * 0 + x.sin()),
    "no result": lambda x, y: (x.relu() + y, y.add_(1))[:1],
    "raises": lambda x, y: x.no_such_thing,
}


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-2, 2, 12).view(3, 4).t().requires_grad_(), torch.rand(4, 3)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_graph(wrong: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="beside eager"):
        beside_eager(fx.symbolic_trace(graph), wrong)(*inputs())


def test_a_right_graph(notes: list[str]) -> None:
    compiled = beside_eager(fx.symbolic_trace(graph), graph)
    for _ in range(3):
        x, y = inputs()
        before = y.clone()
        z, _ = compiled(x, y)
        torch.testing.assert_close(z, x.relu() + before)
        torch.testing.assert_close(y, before + 1)  # once: the others are of copies
    assert not notes


def test_a_graph_that_is_wrong_at_the_edges(notes: list[str]) -> None:
    compiled = beside_eager(
        fx.symbolic_trace(graph), lambda x, y: graph(x.nan_to_num(0.0, 1.0, -1.0), y)
    )
    compiled(torch.randn(20, 30), torch.rand(20, 30))
    assert notes
    assert all(note.startswith("at the edges") for note in notes)


def test_inputs_that_share_memory(notes: list[str]) -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return y + 1

    given = torch.ones(4)
    beside_eager(fx.symbolic_trace(update), update)(given[1:], given)
    with pytest.raises(AssertionError, match="result 0"):
        beside_eager(fx.symbolic_trace(update), lambda x, y: (y + 1, x.mul_(2))[0])(
            given[1:], given
        )
