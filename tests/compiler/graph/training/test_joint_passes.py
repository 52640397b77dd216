"""Passes over joint graphs, asked of small ones: each condition of what they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import CheckpointPolicy

from fusec.graph.training.log_softmax import open_log_softmax
from fusec.graph.training.narrow_saved import widen_again
from fusec.graph.training.norm_inputs import (
    ROUNDED,
    round_norm_inputs,
    round_what_they_follow_from,
)
from fusec.graph.training.old_values import copy_old_values
from fusec.graph.training.rematerialize import activate_again
from fusec.graph.training.rematerialize_inputless import compute_inputless_again

aten = torch.ops.aten
HALF, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
Tensor = torch.Tensor


def traced(function: Callable[..., object], *given: Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*given)


def count(module: fx.GraphModule, target: Any) -> int:
    return len(list(module.graph.find_nodes(op="call_function", target=target)))


def check(module: fx.GraphModule, function: Callable[..., object], *given: Tensor) -> None:
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*given), function(*given), rtol=1e-3, atol=1e-3)


# -- log-softmax ------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "copies"), [(F32, 0), (F64, 0), (HALF, 2), (BF16, 2)], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_log_softmax_is_taken_apart(dtype: torch.dtype, copies: int, dim: int) -> None:
    def function(x: Tensor) -> Tensor:
        return x.log_softmax(dim)

    x = torch.randn(3, 5).to(dtype)
    module = traced(function, x)
    assert open_log_softmax(module) == 1
    assert count(module, aten._log_softmax.default) == 0
    assert count(module, aten._to_copy.default) == copies
    (result,) = next(iter(module.graph.find_nodes(op="output"))).all_input_nodes
    assert result.meta["val"].dtype == dtype
    module.recompile()
    tolerance = torch.finfo(dtype).eps * 8
    torch.testing.assert_close(module(x), function(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("given", "opened"),
    [
        (torch.randn(3, 5), 1),
        (torch.randn(5, 3).t(), 0),  # eager's result lies row by row
        (torch.randn(3, 0), 0),
        (torch.randn(()), 0),
    ],
)
def test_which_are_taken_apart(given: Tensor, opened: int) -> None:
    module = traced(lambda x: x.log_softmax(0), given)
    before = str(module.graph)
    assert open_log_softmax(module) == opened
    assert (str(module.graph) == before) is not opened


# -- wide tensors -----------------------------------------------------------------------------


def read_later(change: Callable[[Tensor], Tensor]) -> Callable[..., object]:
    def joint(x: Tensor, gradient: Tensor) -> object:
        wide = change(x)
        return wide.sin(), gradient * wide.cos()

    return joint


@pytest.mark.parametrize(
    ("change", "dtype", "changed"),
    [
        (lambda x: x.to(F32), HALF, 1),
        (lambda x: x.to(F64), F32, 1),
        (lambda x: x.to(F32), torch.bool, 1),
        (lambda x: x.to(BF16), HALF, 0),  # as wide
        (lambda x: x.to(F32), torch.int32, 0),
        (lambda x: x.to(HALF), F32, 0),
        (lambda x: x * 2, F32, 0),
        (lambda x: x.to(F32).view(2, 6).t(), HALF, 1),
        (lambda x: x.to(F32).view(2, 6) * 2, HALF, 0),
        (lambda x: x.view(12), F32, 0),
    ],
)
def test_what_is_widened_again(
    change: Callable[[Tensor], Tensor], dtype: torch.dtype, changed: int
) -> None:
    x = torch.randn(12).to(dtype)
    joint = read_later(change)
    given = x, torch.randn(change(x).shape)
    module = traced(joint, *given)
    before = count(module, aten._to_copy.default)
    assert widen_again(module, 1) == changed
    assert count(module, aten._to_copy.default) == before + changed
    check(module, joint, *given)


def test_on_another_device_nothing_is_widened() -> None:
    with FakeTensorMode():
        given = torch.empty(12, dtype=HALF), torch.empty(12, device="meta")
        module = make_fx(read_later(lambda x: x.to("meta", F32)))(*given)
    assert widen_again(module, 1) == 0


def test_a_wide_result_is_kept_for_the_caller() -> None:
    def joint(x: Tensor, gradient: Tensor) -> object:
        wide = x.to(F32)
        return wide, wide.sin(), gradient * wide

    assert widen_again(traced(joint, torch.randn(8).half(), torch.randn(8)), 2) == 0


def test_what_backward_does_not_read_stays() -> None:
    def joint(x: Tensor, gradient: Tensor) -> object:
        return x.to(F32).sin(), gradient * 2

    assert widen_again(traced(joint, torch.randn(8).half(), torch.randn(8)), 1) == 0


# -- activations ------------------------------------------------------------------------------


def steps_before(steps: int, other: Callable[[Tensor], Tensor] | None = None) -> Any:
    """Return what applies so many operations to its first input; backward reads both ends."""

    def joint(x: Tensor, b: Tensor, gradient: Tensor) -> object:
        y = x if other is None else other(x)
        for n in range(steps - 2):
            y = y * (n + 2.0)
        y = F.relu(y + b)
        return y, torch.where(y <= 0, 0.0, gradient) + 2 * x * gradient

    return joint


@pytest.mark.parametrize(("steps", "changed"), [(2, 1), (11, 1), (12, 1), (13, 0), (20, 0)])
def test_how_many_operations_are_done_again(steps: int, changed: int) -> None:
    joint = steps_before(steps)
    given = torch.randn(16, 16), torch.randn(16), torch.randn(16, 16)
    module = traced(joint, *given)
    assert activate_again(module, 1) == changed
    assert count(module, aten.relu.default) == 1 + changed
    check(module, joint, *given)


@pytest.mark.parametrize(
    ("rows", "shape", "changed"),
    [
        (16, (17,), 1),
        (15, (17,), 0),  # not much smaller than the value: a second tensor to read
        (16, (16, 1), 1),
        (16, (16, 17), 0),
    ],
)
def test_what_is_small_beside_the_value(rows: int, shape: tuple[int, ...], changed: int) -> None:
    given = torch.randn(rows, 17), torch.randn(shape), torch.randn(rows, 17)
    module = traced(steps_before(3), *given)
    assert activate_again(module, 1) == changed
    check(module, steps_before(3), *given)


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        (lambda x: -x, 1),
        (lambda x: x.exp(), 0),  # not cheap
        (lambda x: x.clamp(0, 1), 1),
        (lambda x: x.t(), 0),
        (lambda x: x.to(F64).to(F32), 1),
    ],
)
def test_what_is_cheap(other: Callable[[Tensor], Tensor], changed: int) -> None:
    given = torch.randn(16, 16), torch.randn(16), torch.randn(16, 16)
    module = traced(steps_before(3, other), *given)
    assert activate_again(module, 1) == changed
    check(module, steps_before(3, other), *given)


def test_where_a_product_reads_the_source_nothing_is_read_anyway() -> None:
    def joint(x: Tensor, gradient: Tensor) -> object:
        y = F.relu(x * 2)
        return y, torch.where(y <= 0, 0.0, gradient), x.t() @ gradient

    given = torch.randn(16, 16), torch.randn(16, 16)
    assert activate_again(traced(joint, *given), 1) == 0


def test_what_a_product_reads_stays_in_memory() -> None:
    def joint(x: Tensor, gradient: Tensor) -> object:
        y = F.relu(x * 2)
        return y, torch.where(y <= 0, 0.0, gradient) + x, y.t() @ gradient

    given = torch.randn(16, 16), torch.randn(16, 16)
    module = traced(joint, *given)
    assert activate_again(module, 1) == 1
    (product,) = module.graph.find_nodes(op="call_function", target=aten.mm.default)
    (turned, _) = product.args
    relu = next(iter(module.graph.find_nodes(op="call_function", target=aten.relu.default)))
    assert turned.args[0] is relu
    check(module, joint, *given)


# -- inputs of norms --------------------------------------------------------------------------


def marked(module: fx.GraphModule) -> list[str]:
    return [n.name for n in module.graph.nodes if ROUNDED in n.meta]


def norm_of(x: Tensor) -> Tensor:
    return torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)[0]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: norm_of(x.sin()), ["sin"]),
        (lambda x: norm_of(x.sin().view(2, 6)), ["sin"]),
        (lambda x: norm_of(x.sin().clone().view(2, 6).clone()), ["sin"]),
        (lambda x: torch.var_mean(x.sin().to(F32), 1)[0], ["sin"]),
        (lambda x: torch.var_mean(x.to(F32).sin(), 1)[0], []),  # not in half precision
        (lambda x: norm_of(torch.max(x, 1, keepdim=True)[0]), ["getitem", "max_1"]),
        (norm_of, []),  # an input
        (lambda x: x.sin() * 2, []),
        (lambda x: norm_of(x.sin()) + norm_of(x.cos()), ["cos", "sin"]),
        (lambda x: norm_of(y := x.sin()) + norm_of(y), ["sin"]),
    ],
)
def test_inputs_of_norms_are_marked(function: Callable[[Tensor], Tensor], names: list[str]) -> None:
    module = traced(function, torch.randn(3, 4).half())
    assert round_norm_inputs(module) == len(names)
    assert sorted(marked(module)) == names
    assert round_norm_inputs(module) == 0


@pytest.mark.parametrize(("width", "alone"), [(1, True), (2, False)])
def test_groups_of_one_element_are_saved(width: int, alone: bool) -> None:
    module = traced(lambda x: norm_of(x.sin()), torch.randn(3, width).half())
    round_norm_inputs(module)
    (sine,) = module.graph.find_nodes(op="call_function", target=aten.sin.default)
    assert (sine.meta.get("recompute") is CheckpointPolicy.MUST_SAVE) is alone


def test_what_forward_keeps_is_marked_as_well() -> None:
    """What a marked value is computed again from, as far as what is kept and no further."""

    def forward(x: Tensor) -> object:
        first = x.sin()
        kept = first.cos()
        view = kept.view(4, 3)
        return (view.exp() * 2).tanh(), view, x

    def named(module: fx.GraphModule) -> dict[str, fx.Node]:
        return {node.name: node for node in module.graph.nodes}

    for dtype, found in ((HALF, ["cos", "tanh"]), (F32, ["tanh"])):
        module = traced(forward, torch.randn(3, 4).to(dtype))
        named(module)["tanh"].meta[ROUNDED] = True
        # the output itself is kept: nothing waits for it
        assert round_what_they_follow_from(module) == 0
        (output,) = module.graph.find_nodes(op="output")
        output.args = (output.args[0][1:],)
        assert round_what_they_follow_from(module) == len(found) - 1
        assert sorted(marked(module)) == found


def test_a_graph_of_many_paths_is_walked_once() -> None:
    def forward(x: Tensor) -> object:
        for _ in range(60):
            x = x.sin() + x.cos()
        return x.exp()

    module = traced(forward, torch.randn(3).half())
    (output,) = module.graph.find_nodes(op="output")
    next(n for n in module.graph.nodes if n.name == "exp").meta[ROUNDED] = True
    output.args = ((),)
    assert round_what_they_follow_from(module) == 0


# -- what follows from nothing ----------------------------------------------------------------


def halves(saved: Callable[[Tensor], Tensor]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Return forward, which saves its input and something for backward, and backward."""
    x = torch.randn(4)
    forward = traced(lambda x: (x * 2, x.clone(), saved(x)), x)
    (output,) = forward.graph.find_nodes(op="output")
    graph = fx.Graph()
    made = [graph.placeholder(node.name) for node in output.all_input_nodes[1:]]
    graph.output((graph.call_function(aten.mul.Tensor, tuple(made)),))
    return forward, fx.GraphModule({}, graph)


@pytest.mark.parametrize(
    ("saved", "moved"),
    [
        (lambda x: torch.arange(4) * 3 + 1, True),
        (lambda x: torch.ones(2, 2).view(4).exp(), True),
        (lambda x: torch.full((4,), 2.0).to(F64), True),
        (lambda x: x + torch.ones(4), False),
        (lambda x: torch.rand(4), False),
        (lambda x: torch.bernoulli(torch.ones(4) * 0.5), False),
        (lambda x: torch.ones(2, 4).sum(0), False),  # no elementwise work
        (torch.ones_like, False),
    ],
)
def test_what_follows_from_nothing_moves(saved: Callable[[Tensor], Tensor], moved: bool) -> None:
    forward, backward = halves(saved)
    x = torch.randn(4)
    torch.manual_seed(0)
    _, first, second = forward(x)
    names = compute_inputless_again(forward, backward, 1)
    assert len(names) == moved
    placeholders = list(backward.graph.find_nodes(op="placeholder"))
    assert len(placeholders) == 2 - moved
    torch.manual_seed(0)
    results = forward(x)
    assert len(results) == 3 - moved
    torch.testing.assert_close(results[1], first)
    (found,) = backward(*results[1:])
    torch.testing.assert_close(found, first * second)
    for module in (forward, backward):
        module.graph.lint()
        used = [n for n in module.graph.nodes if n.op == "call_function"]
        assert all(n.users for n in used), "nothing is computed for nobody"


def test_a_result_of_forwards_own_stays() -> None:
    forward, backward = halves(lambda x: torch.ones(4))
    assert compute_inputless_again(forward, backward, 3) == ()
    assert len(forward(torch.randn(4))) == 3


def test_what_backward_calls_otherwise_stays() -> None:
    forward, backward = halves(lambda x: torch.ones(4))
    (_, given) = backward.graph.find_nodes(op="placeholder")
    given.name = given.target = "another"
    assert compute_inputless_again(forward, backward, 1) == ()


def test_of_several_one_that_backward_calls_otherwise_is_enough() -> None:
    forward = traced(lambda x: (x * 2, x.clone(), torch.ones(4), torch.zeros(4)), torch.randn(4))
    (output,) = forward.graph.find_nodes(op="output")
    graph = fx.Graph()
    names = [node.name for node in output.args[0][1:]]
    made = [graph.placeholder(name) for name in (*names[:2], "another")]
    graph.output((graph.call_function(aten.mul.Tensor, tuple(made[1:])),))
    assert compute_inputless_again(forward, fx.GraphModule({}, graph), 1) == ()


# -- old values -------------------------------------------------------------------------------


def test_old_values_are_copied_for_backward_alone() -> None:
    """Of what is updated, by whatever view, once each; what is read by strides has no copy."""
    with FakeTensorMode():
        forward, backward = fx.Graph(), fx.Graph()
        value = torch.empty(4, 6)
        names = ("x", "y", "strided", "lost")
        x, y, strided, lost = (forward.placeholder(name) for name in names)
        size = forward.placeholder("size")
        size.meta["val"] = 4
        for node in (x, y, strided, lost):
            node.meta["val"] = value
        view = forward.call_function(aten.t.default, (x,))
        view.meta["val"] = value.t()
        result = forward.call_function(aten.neg.default, (y,))
        result.meta["val"] = value
        given = [x, view, y, None, x, strided, lost, size]
        forward.output((result, x, *given))
        for node in (x, view, y, strided, size):
            made = backward.placeholder(node.name)
            made.meta["val"] = node.meta["val"]
            if node is strided:
                part = backward.call_function(aten.view.default, (made, [24]))
                part.meta["val"] = value.view(24)
                backward.call_function(aten.as_strided.default, (part, [2], [1]))
        backward.output(())
        modules = [fx.GraphModule({}, graph) for graph in (forward, backward)]
        updated = {"x", "strided", "lost", "size"}
        assert copy_old_values(*modules, 2, updated) == 2
    (output,) = modules[0].graph.find_nodes(op="output")
    own, kept = output.args[0][:2], output.args[0][2:]
    assert [n.name for n in own] == [result.name, "x"], "results of its own stay"
    copied = [n is not None and n.target is aten.clone.default for n in kept]
    assert copied == [True, True, False, False, True, False, False, False]
    assert kept[0] is kept[4], "one copy for both"
    assert [kept[0].args[0].name, kept[1].args[0].name] == ["x", view.name]
    assert not copy_old_values(*modules, 2, {"z"})
    tensors = [torch.full((4, 6), float(n)) for n in range(4)]
    _, first, saved, *_ = modules[0](*tensors, 4)
    assert first is tensors[0]
    assert saved is not first, "its code copies as well"
