"""Results that are inputs: what a graph need not return, whatever AOTAutograd's records are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from fusec.graph.training import returned_inputs


def dropped(
    monkeypatch: pytest.MonkeyPatch, updated: Any, kinds: Any, count: int = 4
) -> tuple[int, list[bool], int]:
    """Return what is said, which results are left, and how many calls."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    values = [graph.call_function(torch.add, (x, n)) for n in range(count)]
    graph.output(tuple(values))
    module = fx.GraphModule({}, graph)
    infos = [SimpleNamespace(output_type=SimpleNamespace(name=kind)) for kind in kinds]
    record = SimpleNamespace(mutated_inp_runtime_indices=updated, output_info=infos)
    context = SimpleNamespace(fw_metadata=record)
    monkeypatch.setattr(torch._guards.TracingContext, "try_get", lambda: context)
    said = returned_inputs.drop_returned_inputs(module)
    (output,) = module.graph.find_nodes(op="output")
    left = [each is not None for each in output.args[0]]
    return said, left, len(module.graph.find_nodes(op="call_function", target=torch.add))


def test_inputs_among_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dropped(monkeypatch, [0], ["non_alias", "is_input", "is_input"])
    assert found == (2, [True, True, False, False], 2)
    assert dropped(monkeypatch, [], ["is_input"] + ["non_alias"] * 3)[:2] == (
        1,
        [False, True, True, True],
    )
    assert dropped(monkeypatch, [], ["alias_of_input"] * 4) == (0, [True] * 4, 4)


@pytest.mark.parametrize(
    ("updated", "kinds"),
    [([0], ["is_input"] * 4), ([0], ["is_input"] * 2), (None, ["is_input"] * 4), ([], None)],
)
def test_records_that_say_something_else_are_left(
    updated: Any, kinds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dropped(monkeypatch, updated, kinds or [], 4) == (0, [True] * 4, 4)


def test_without_a_record_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._guards.TracingContext, "try_get", lambda: None)
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    assert returned_inputs.drop_returned_inputs(fx.GraphModule({}, graph)) == 0
