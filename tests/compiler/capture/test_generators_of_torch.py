"""A generator of torch's own that TorchDynamo comes upon is no graph break of the user's."""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import torch
from torch._dynamo import utils as dynamo_utils

from fusec.capture.dynamo.graph_breaks import break_marker, breaks_since

SAID = (
    "Attempt to trace generator\n"
    "  Explanation: Generators cannot be compiled directly with `torch.compile`.\n"
    "  Hint: Call a generator from inside of a non-generator Python function\n"
)


def test_only_a_users_generator_is_named(monkeypatch) -> None:
    monkeypatch.setattr(dynamo_utils, "graph_break_reasons", [])
    of_torch = traceback.FrameSummary(torch.__file__, 5, "inner", lookup_line=False)
    mine = traceback.FrameSummary("cell.py", 3, "numbers", line="yield x")
    for stack in ([], [of_torch], [mine]):
        assert breaks_since(0) == ()
        entry = SimpleNamespace(reason=SAID, user_stack=stack)
        dynamo_utils.graph_break_reasons.append(entry)
    (found,) = breaks_since(0)
    assert break_marker() == 3
    assert found.reason == "a generator, a function with yield, runs in Python"
    assert found.where is not None
    assert found.where.line == 3
