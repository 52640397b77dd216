"""What the passes make of whole graphs, as text: which find something, and what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.graph import pipeline
from support.decisions import compare_part, parts_of
from support.whole_graphs import CASES, told_of
from support.whole_programs import IS_PINNED

LAID_OUT_BY_CUDNN = (
    "each channel by itself",
    "channels inward on a gpu",
    "residual on a gpu",
    "separable, training",
)
# Passes over graphs that others still take apart, node by node.
STALE = frozenset(
    "cse dead_code log_softmax norm_inputs compare_once rematerialize_activations "
    "rematerialize_upcasts depthwise_gradients".split()
)


@pytest.fixture(autouse=True)
def _code_is_that_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass has changed is printed, and run where nobody compiles it, as it is now."""

    def watched(each: pipeline.Pass) -> pipeline.Pass:
        def run(subject: pipeline.Subject) -> int:
            changes = each.run(subject)
            if changes and each.name not in STALE:
                module = subject.module
                assert module.code == module.graph.python_code("self").src, each.name
            return changes

        return replace(each, run=run)

    monkeypatch.setattr(pipeline, "PASSES", tuple(map(watched, pipeline.PASSES)))


@pytest.mark.parametrize("name", CASES)
def test_what_passes_make_of_it(name: str) -> None:
    found = list(told_of(name))
    if name in LAID_OUT_BY_CUDNN and torch.version.cuda:
        pytest.skip("a torch with cuDNN asks it how results lie")
    if not IS_PINNED and parts_of("graphs").get(name, [""])[0] != found[0]:
        pytest.skip("another torch takes operators apart in another way")
    compare_part("graphs", name, found)
