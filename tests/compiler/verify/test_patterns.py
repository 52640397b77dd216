"""Inputs that lie in a pattern, and numbers that stand in a built kernel alone."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.verify.static.binary import library_facts
from fusec.verify.trials.inputs import fresh_inputs
from fusec.verify.trials.named_numbers import computed
from fusec.verify.trials.patterns import LABELS, PATTERNS
from support import handwritten_kernels as vk

SHAPES = [(8, 8), (6, 10), (7,), (3, 4, 5), (1, 1), ()]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_lies_as_the_original(pattern, dtype):
    for shape in SHAPES:
        large = torch.randn(shape, dtype=torch.float64).to(dtype)
        if large.dim() > 1:
            large = large.transpose(0, 1)  # neither its rows nor its elements are next to another
        given = [large, torch.randn(shape[-1:] or (1,)).to(dtype)]
        for made, like in zip(fresh_inputs(given, kind=pattern, seed=1), given, strict=True):
            assert (made.dtype, made.shape, made.stride()) == (dtype, like.shape, like.stride())


def pattern(kind, *others):
    x, *rest = fresh_inputs([torch.randn(8, 8), *others], kind=kind, seed=2)
    return (x, *rest) if rest else x


def test_what_lies_where():
    alike = pattern("equal rows")
    assert bool((alike == alike[0]).all())
    assert bool((pattern("sorted").flatten().diff() >= 0).all())
    assert int(pattern("half nan").isnan().sum()) == 32
    assert pattern("nan rows").isnan().sum(1).tolist() == [1] * 8
    assert torch.equal(pattern("one hot"), torch.eye(8))
    assert int((pattern("masked") == float("-inf")).sum()) == 28
    padded = pattern("padded")
    assert (padded != 0).nonzero().amax(0).tolist() == [3, 3]
    assert int((padded != 0).sum()) == 16
    x, weight, bias = pattern("shared", torch.randn(8), torch.randn(8))
    assert torch.equal(x[0], weight)
    assert torch.equal(weight, bias)
    x, weight, bias = pattern("nan bias", torch.ones(8), torch.zeros(8))
    assert (x.isnan().any(), weight.isnan().any(), bias.isnan().all()) == (False, False, True)


def test_what_has_no_negative_values_gets_none():
    (variance,) = fresh_inputs([torch.rand(8, 8) + 0.1], kind="alternating")
    assert bool((variance >= 0).all())


def test_a_number_that_only_the_library_has():
    text = vk.cpp(
        f"{vk.RIGHT}\n    if (x[0] == 2469.0f / 2 || x[1] == sizeof(char[777])) out[0] = 1;"
    )
    numbers = library_facts(str(vk.build_library(text))).numbers
    assert {1234.5, 777.0} <= set(numbers)
    assert computed(16.0) == [8.0, 4.0]


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        # Six in a row: of numbers far from zero, which are few, two are alike now and then.
        (
            " && ".join(f"x[{n}] == x[{64 + n}]" for n in range(6)) + " && x[0] != x[1]",
            LABELS["equal rows"],
        ),
        ("x[0] == 2470.0f / 4", "617.5, a number of the edit's"),
        ("x[70] == 4321.5f && x[0] != x[70]", "4321.5, a number of the edit's"),
    ],
)
def test_wrong_where_a_pattern_or_a_computed_number_is(condition, said):
    call = fusec.compile(lambda x: x * 2 + 1, keep_inputs=True)
    call(torch.randn(64, 64))
    (kernel,) = call.graphs[0].kernels
    (name, out) = (argument.name for argument in kernel.signature.arguments)
    head, end, rest = kernel.source.rpartition("    return 0;")
    wrong = f"    if ({condition.replace('x[', f'{name}[')}) {out}[7] = 3;\n"
    verdict = kernel.check(head + wrong + end + rest, timed=False)
    assert (verdict.ok, verdict.stage) == (False, "wrong"), verdict
    assert said in verdict.reason
