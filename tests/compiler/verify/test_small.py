"""Edits for a GPU that is not there: checked at small sizes, and in some of their programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.compiled import checking
from fusec.targets.triton.toolchain.interpreted.sampling import draw
from fusec.verify.trials.sized_text import at_sizes

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to run it on")


def kernel_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> fusec.Kernel:
    compiled = fusec.compile(function, target="triton", keep_inputs=True)
    compiled(*inputs)
    (kernel,) = compiled.kernels.values()
    return kernel


@pytest.fixture(scope="module")
def gelu() -> fusec.Kernel:
    return kernel_of(lambda x, w: F.gelu(x) * w, torch.randn(512, 768), torch.randn(768))


@pytest.fixture(scope="module")
def total() -> fusec.Kernel:
    """Two kernels, one after the other: no part of their programs says anything."""
    return kernel_of(lambda x: x.sum(), torch.randn(1024, 1024))


def edited(kernel: fusec.Kernel, old: str, new: str) -> str:
    text = kernel.generated.text
    assert old in text
    return text.replace(old, new)


@pytest.mark.triton
def test_it_says_at_which_sizes(gelu, monkeypatch):
    threads = []

    def sampled(*given):
        threads.append(torch.get_num_threads())
        return in_part(*given)

    in_part = checking.sampled
    monkeypatch.setattr(checking, "sampled", sampled)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        verdict = gelu.check(edited(gelu, "x * 0.5", "0.5 * x"))
        # Two of this process and the worker's on two processors: it took twice as long.
        assert threads == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert verdict.ok
    assert "at 7 x 768 of 512 x 768 and in 8 of its 512 programs" in verdict.reason
    assert verdict.timing is verdict.graph is None


@pytest.mark.triton
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * 0.5", "x * 0.5001"),
        ("row_inside = row < 512", "row_inside = row < 511"),
        ("tl.load(w_ptr + col, col_inside)", "tl.load(w_ptr + col + 1, col_inside)"),
        *(
            pytest.param(old, new, marks=pytest.mark.slow)
            for old, new in (
                ("col_inside = col < 768", "col_inside = col < 1024"),
                ("col_inside = col < 768", "col_inside = col < 760"),
                ("row_inside = row < 512", "row_inside = row < 300"),
                ("tl.store(mul_ptr + row * 768", "tl.store(mul_ptr + row * 767"),
                ("triton.cdiv(512, YBLOCK) * triton", "triton.cdiv(500, YBLOCK) * triton"),
                ("w, row_inside & col_inside)", "w, row_inside & col_inside & (col > 0))"),
            )
        ),
    ],
)
def test_what_is_wrong_is_refused(gelu, old, new):
    verdict = gelu.check(edited(gelu, old, new))
    assert not verdict.ok
    assert verdict.stage in ("wrong", "bounds", "crash")


@pytest.mark.slow
def test_other_tunables(gelu):
    verdict = gelu.check(gelu.with_tunables({"YBLOCK": 16, "XBLOCK": 64}))
    assert verdict.ok
    assert "of 512 x 768" in verdict.reason


@pytest.mark.slow
def test_two_kernels(total):
    assert total.check(edited(total, "running_sum + x", "x + running_sum")).ok
    (size,) = {word for word in ("1048576",) if word in total.generated.text}
    for old, new in [("running_sum + x", "running_sum + x + x"), (size, "1048000")]:
        assert not total.check(edited(total, old, new)).ok


@pytest.mark.slow
def test_sizes_that_are_symbols():
    compiled = fusec.compile(
        lambda x: x.softmax(-1), target="triton", dynamic=True, keep_inputs=True
    )
    compiled(torch.randn(300, 400))
    (kernel,) = compiled.kernels.values()
    verdict = kernel.check(edited(kernel, "@triton.jit", "# mine\n@triton.jit"))
    assert verdict.ok
    assert "of 300 x 400" in verdict.reason


@pytest.mark.slow
def test_the_result_of_a_large_cell_is_right():
    x = torch.randn(512, 768)
    compiled = fusec.compile(lambda x: torch.tanh(x) * 2 + 1, target="triton", keep_inputs=True)
    compiled(x)
    (kernel,) = compiled.kernels.values()
    assert kernel.keep(edited(kernel, "@triton.jit", "# mine\n@triton.jit")).ok
    torch.testing.assert_close(compiled(x), torch.tanh(x) * 2 + 1)


GENERATED = "B = 4  # tunable: 2 4\nif row < 512:\n    f(row * 768, [4, 512])\n"
SMALL = "B = 2  # tunable: 2 4\nif row < 19:\n    f(row * 768, [4, 19],)\n"


def test_sizes_in_a_text():
    assert at_sizes(GENERATED, SMALL, GENERATED) == GENERATED.replace("512", "19")
    own = GENERATED.replace("if row < 512:", "if 512 > row:  # 512")
    assert at_sizes(GENERATED, SMALL, own) == own.replace("if 512", "if 19").replace(
        ", 512]", ", 19]"
    )
    # a size where there was another number: nobody knows
    assert at_sizes(GENERATED, SMALL, GENERATED.replace("< 512", "< 500")) is None
    assert at_sizes(GENERATED, SMALL.replace("[4, 19]", "[4, 512]"), own) is None
    assert at_sizes(GENERATED, SMALL.replace("row", "col"), GENERATED) is None


def test_some_programs():
    assert draw(5, 8, 0) == [0, 1, 2, 3, 4]
    some = draw(1000, 8, 1)
    assert len(set(some)) == 8
    assert (some[0], some[-1]) == (0, 999)
    assert draw(1000, 8, 2) != some
