"""The draft: all that stands in the way in one run, with lines, reasons and mends."""

from __future__ import annotations

import json
import logging
import warnings
from traceback import FrameSummary

import pytest
import torch
from torch import nn
from torch._dynamo.output_graph import GraphCompileReason

import fusec
from fusec.capture.dynamo import graph_breaks
from fusec.inspect.draft import Draft, Kind, Obstacle, draft
from fusec.report import SourceLine
from support.releases import OLD


class Hard(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.count.add_(1)
        y = self.linear(x)
        print("in between")
        if y.sum() > 0:
            y = y + 1
        chosen = y[y > 0]
        y = torch.linalg.qr(y.view(4, 8))[0]
        return y * float(y.mean()), chosen


@pytest.fixture(scope="module")
def hard() -> Draft:
    torch._dynamo.reset()
    module = Hard()
    found = fusec.explain(module, torch.randn(4, 8), draft=True)
    assert module.count == 0  # tensors are put back
    return found


def lines(found, kind):
    return [each.where.text for each in found.of(kind) if each.where is not None]


def test_it_does_not_stop_at_the_first_break(hard):
    assert lines(hard, Kind.MESSAGE) == ['print("in between")']
    data = lines(hard, Kind.DATA)
    assert "if y.sum() > 0:" in data
    assert "chosen = y[y > 0]" in data
    assert "return y * float(y.mean()), chosen" in data
    assert all(each.mend for kind in (Kind.MESSAGE, Kind.DATA) for each in hard.of(kind))


LOGGER = logging.getLogger(__name__)


def logs(text):
    LOGGER.info(text)


@pytest.mark.parametrize(("line", "count"), [(7, 1), (8, 2)])
def test_a_caller_of_a_break_is_none_itself(line, count, monkeypatch):
    """TorchDynamo may leave a frame, too, in which something is called that broke off."""

    def entry(reason, *lines):
        frames = [FrameSummary(f"{n}.py", n, "f", line=f"line {n}") for n in lines]
        return GraphCompileReason(reason, frames)

    inner, outer = entry("logging.Logger method", 7, 9), entry("step_unsupported", line)
    monkeypatch.setattr(graph_breaks.dynamo_utils, "graph_break_reasons", [inner, outer])
    found = graph_breaks.breaks_since(0)
    assert found[0].of_messages
    assert len(found) == count


class Tells(torch.nn.Module):
    def __init__(self, say):
        super().__init__()
        self.say = say

    def forward(self, x):
        y = x.sin()
        self.say("in between")
        return y + 1


@pytest.mark.parametrize("say", [print, warnings.warn, logs])
def test_export_passes_over_messages(say):
    torch._dynamo.reset()
    module, x = Tells(say), torch.ones(3)
    found = fusec.explain(module, x, draft=True)
    assert len(found.of(Kind.MESSAGE)) == 1
    assert found.graphs == 2
    assert found.export == (
        "messages are left out: torch.export passes over them, and makes one graph",
    )
    exported = torch.export.export(module, (x,), strict=True)
    torch.testing.assert_close(exported.module()(x), x.sin() + 1)


def test_side_effects_are_named(hard):
    names = {each.what.split(":")[0] for each in hard.of(Kind.EFFECT)}
    assert {"self.calls", "count"} <= names
    assert "self.calls += 1" in lines(hard, Kind.EFFECT)


def test_what_changes_between_two_breaks_is_named():
    """There is no graph between them, so that no backend is asked."""

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.seen, self.log = nn.Linear(8, 8), 0, []

        def forward(self, x):
            h = self.inner(x)
            torch._dynamo.graph_break()
            self.seen += 1
            self.log.append("x")
            torch._dynamo.graph_break()
            return h * 2

    module = Counted()
    found = fusec.explain(module, torch.randn(4, 8), draft=True)
    texts = [(e.what, e.where.text, e.count) for e in found.of(Kind.EFFECT)]
    assert texts == [
        ("self.seen: it is set", "self.seen += 1", 1),
        ("self.log: its elements are changed", 'self.log.append("x")', 1),
    ]


def test_elements_that_change_have_a_line():
    seen: list[torch.Tensor] = []

    def keeps(x):
        y = x.sin()
        seen.append(y)
        return y + 1

    found = fusec.explain(keeps, torch.randn(4), draft=True)
    assert lines(found, Kind.EFFECT) == ["seen.append(y)"]


def test_what_is_set_at_two_lines_is_said_once():
    found = tuple(
        Obstacle(Kind.EFFECT, "self.calls: it is set", "", SourceLine("model.py", line))
        for line in (3, 7)
    )
    text = str(Draft("twice", 2, 0, found))
    assert "  self.calls: it is set\n" in text, text  # not "of , "
    assert "side effects are lost: self.calls\n" in text + "\n", text


def test_sizes_of_an_optimizers_tensors_are_no_arguments():
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters())

    def step(x):
        model(x).square().mean().backward()
        optimizer.step()

    found = fusec.explain(step, torch.randn(4, 8), draft=True)
    assert not [each for each in found.of(Kind.FIXED) if "param_groups" in each.what]


def test_operators_without_a_kernel_have_a_line(hard):
    assert any("qr" in each.what for each in hard.of(Kind.OPERATOR))
    assert any("qr" in line for line in lines(hard, Kind.OPERATOR))


def test_what_export_needs(hard):
    assert any("messages are left out" in line for line in hard.export)
    assert any("self.calls" in line for line in hard.export)


def test_text_html_and_json(hard):
    text = str(hard)
    assert "Hard, draft" in text
    assert "to mend it: choose with torch.where" in text
    forms = hard._repr_mimebundle_()
    assert "<li>print runs in Python" in forms["text/html"]
    assert json.loads(json.dumps(hard.data()))["found"]


def test_nothing_in_the_way():
    found = fusec.explain(lambda x: x.softmax(-1), torch.ones(3, 4), draft=True)
    assert "nothing to mend" in str(found)
    assert found.export == ("nothing stands in the way of one graph",)
    assert (found.graphs, found.kernels) == (1, 1)
    assert any("3 x 4" in each.what for each in found.of(Kind.GUARD))


def test_a_size_that_the_code_fixes():
    def fixed(x, y):
        return x.reshape(3, -1) + y if x.size(0) == 3 else x

    found = fusec.explain(fixed, torch.ones(3, 4), torch.ones(3, 4), draft=True)
    fixed_sizes = {each.what.split(",")[0]: each for each in found.of(Kind.FIXED)}
    asked = fixed_sizes["x has 3 in dimension 0"]
    assert "asks whether it is 3" in asked.what
    assert asked.where is not None
    assert "if x.size(0) == 3" in asked.where.text
    assert not any("dimension 1" in each for each in fixed_sizes)


class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))

    def forward(self, pixels):
        return self.body(pixels).sum()


def test_lines_of_a_module(tmp_path):
    found = fusec.explain(Image(), pixels=torch.ones(2, 3, 8, 8), draft=True)
    (fixed,) = found.of(Kind.FIXED)
    assert fixed.what.startswith("pixels has 3 in dimension 1")
    assert fixed.where.text == "return self.body(pixels).sum()"  # not torch's own line
    effects = found.of(Kind.EFFECT)
    assert {each.what.split(":")[0] for each in effects} == {
        "body.1.running_mean",
        "body.1.running_var",
        "body.1.num_batches_tracked",
    }
    assert all("self.body" in each.where.text for each in effects)
    assert found.export[0] == "what is exported updates the same tensors in place"
    text = str(found)
    assert f"guards ({len(found.of(Kind.GUARD))})" in text
    assert "padding_mode == 'zeros', of body.0, body.2" in text
    assert text.count("to mend them: a module's buffer may stay so") == 1


def test_a_training_step():
    module = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    before = [each.detach().clone() for each in module.parameters()]
    found = fusec.explain(step, torch.ones(2, 3), draft=True)
    assert not found.of(Kind.BREAK)
    assert found.of(Kind.EXPECTED)
    assert found.kernels > 2
    assert len(before) == 2


def test_what_cannot_be_captured_is_a_finding():
    def wrong(x):
        return x.no_such_method() + x

    found = fusec.explain(wrong, torch.ones(2), draft=True)
    (error,) = found.of(Kind.ERROR)
    assert "no_such_method" in error.what
    assert OLD or "no_such_method" in error.where.text


def test_a_global_that_is_set():
    """A function's is lost in an export; a cell gives its results so."""

    def setting(x):
        global _set_here
        _set_here = x.sin()
        return x.cos()

    compiled = fusec.compile(setting)
    compiled(torch.randn(3))
    effects = draft("it", [compiled]).of(Kind.EFFECT)
    assert [each.what for each in effects] == ["_set_here: this global is set"]
    assert not draft("it", [compiled], of_cell=True).of(Kind.EFFECT)
