"""``make peer`` on a small file of tests: what passes, what fails, what ends the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.__main__ import main

pytestmark = pytest.mark.slow

TESTS = """
import ctypes, torch, unittest.mock
from fusec.capture.backend import Backend
from torch._dynamo.testing import CompileCounter
from torch._inductor import metrics
from torch._inductor.compile_fx import compile_fx, a_name_of_another_version
from torch.a_module_of_another_version import something
from torch.testing._internal.common_utils import TestCase

class Tests(unittest.TestCase):
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


def test_what_became_of_each(tmp_path: Path) -> None:
    file = tmp_path / "test_of_somebody.py"
    file.write_text(TESTS)
    report = tmp_path / "report.jsonl"
    assert main([str(file), "--report", str(report), "--jobs", "1"]) == 0
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
        "wrong": "failed",
    }
