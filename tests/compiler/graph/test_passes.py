"""The table of passes over graphs: its order, what is kept of a run, passes left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.compiled.graph import NoInputs
from fusec.errors import BadOption
from fusec.graph.pipeline import PASSES, GraphForm, RequiredPass, format_passes
from fusec.inspect.pass_gain import NotCompiled, pass_gain, passes_that_changed
from programs.check import BASELINE, call
from programs.generate import write
from support.compare import difference

OPTIONAL = [each.name for each in PASSES if not each.required]


class Small(nn.Module):
    """Something for most passes to find."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, padding=1)
        self.second, self.last = nn.Conv2d(8, 16, 1), nn.Linear(16, 7)
        self.words = nn.Embedding(11, 16)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.norm(self.first(x)))
        y = self.second(F.relu(self.depthwise(y)) + y).mean((2, 3))
        y = y + self.words(words) + self.words(words + 1)
        return F.log_softmax(self.last(y), -1)


def trained(without: tuple[str, ...] = ()) -> tuple[Any, list[torch.Tensor]]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    module = Small()
    compiled = fusec.compile(module, keep_inputs=True, without=without)
    loss = F.nll_loss(compiled(torch.randn(4, 3, 10, 10), torch.arange(4)), torch.arange(4))
    loss.backward()
    return compiled, [loss.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


def test_every_pass_stands_after_those_that_it_needs() -> None:
    seen: set[str] = set()
    for each in PASSES:
        assert each.name.isidentifier()
        assert each.name not in seen
        assert set(each.after) <= seen, each.name
        assert each.why
        assert each.forms
        seen.add(each.name)


def test_what_each_did_is_kept_and_shown() -> None:
    compiled, _ = trained()
    (graph,) = compiled.graphs
    runs = graph.passes
    assert {run.form for run in runs} == {form.value for form in GraphForm} - {"inference"}
    parts = [run for run in runs if run.form == "part"]
    assert len(parts) == 2 * len({run.name for run in parts}), "forward and backward"
    assert all(run.seconds >= 0 and run.changes >= 0 for run in runs)
    changed = {run.name for run in runs if run.changes}
    assert {"cse", "rematerialize_activations", "log_softmax"} <= changed
    (stage,) = (stage for stage in graph.stages if stage.name == "passes")
    assert "backward computes activations again from what is saved anyway" in stage.text
    assert "found nothing to change: byte_interpolation" in stage.text
    assert "passes that changed the graph:" in str(compiled.explain())


def test_a_table_of_nothing() -> None:
    assert format_passes(()) == ""
    assert format_passes((), ("cse",)) == "left out: cse"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", OPTIONAL)
def test_a_model_without_a_pass(name: str) -> None:
    _, expected = trained()
    compiled, found = trained((name,))
    (graph,) = compiled.graphs
    assert name not in {run.name for run in graph.passes}
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("train", [False, True])
def test_random_programs_without_a_pass(name: str, train: bool) -> None:
    from programs.check import compared

    for seed in range(7000, 7004):
        program = write(seed, train=train, halves=seed % 2 == 0)
        torch._dynamo.reset()
        compiled = fusec.compile(program.function(), without=(name,))
        before = program.fresh()
        try:
            eager = call(program.function(), program.fresh())
        except RuntimeError:
            continue
        problems = compared(program, before, eager, call(compiled, program.fresh()))
        if problems:  # what AOTAutograd does by itself is not a pass of ours
            torch._dynamo.reset()
            theirs = call(torch.compile(program.function(), backend=BASELINE), program.fresh())
            problems = [p for p in problems if p not in compared(program, before, eager, theirs)]
        assert not problems, f"{program}\n{problems}"


def test_what_is_refused() -> None:
    with pytest.raises(BadOption, match="channels_last"):
        fusec.compile(F.gelu, without=("channels",))
    with pytest.raises(RequiredPass, match="no element need equal its own maximum"):
        fusec.compile(F.gelu, without=("compare_once",))
    compiled = torch.compile(F.gelu, backend="fusec", options={"without": "cse"})
    x = torch.randn(8)
    assert not difference(compiled(x), F.gelu(x))


@pytest.mark.parametrize("train", [False, True])
def test_what_a_pass_is_worth(train: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.gelu(x * 2) + torch.sin(x * 2), -1)

    x = torch.randn(64, 48, requires_grad=train)
    compiled = fusec.compile(function, keep_inputs=True)
    result = compiled(x)
    if train:
        result.sum().backward()
    (graph,) = compiled.graphs
    assert "cse" in passes_that_changed(graph)
    kernels = [kernel.name for kernel in graph.kernels]
    found = pass_gain(graph, "cse", seconds=0.02)
    assert found.same
    assert len(found.errors) == (2 if train else 1)
    assert found.now.median > 0
    assert found.then.median > 0
    assert found.kernels[0] == len(kernels)
    assert [kernel.name for kernel in graph.kernels] == kernels, "what is in use stays"
    with pytest.raises(RequiredPass):
        pass_gain(graph, "compare_once")


def test_nothing_to_be_worth_anything() -> None:
    compiled = fusec.compile(lambda x: x + 1)
    compiled(torch.randn(3))
    with pytest.raises(NoInputs):
        pass_gain(compiled.graphs[0], "cse")
    compiled.graphs[0].fallback = "for a test"
    with pytest.raises(NotCompiled, match="for a test"):
        pass_gain(compiled.graphs[0], "cse")
