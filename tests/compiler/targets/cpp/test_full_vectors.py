"""Short rows whose last vector is a whole one, of which a part counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.machine import current_machine
from fusec.targets.cpp.plan import choices

Function = Callable[[torch.Tensor], torch.Tensor]
ROWS: dict[str, Function] = {
    "softmax": lambda x: x.softmax(-1),
    "log softmax": lambda x: x.log_softmax(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "largest": lambda x: x.amax(-1),
    "smallest": lambda x: x.exp().amin(-1),
    "product": lambda x: (x.sign() + 0.5).prod(-1),
    "of its columns": lambda x: (x * torch.arange(float(x.shape[-1])).sin()).sum(-1),
    "each with its neighbor": lambda x: (x[..., 1:] * x[..., :-1]).sum(-1),
    "turned round": lambda x: (x.flip(-1) * x).sum(-1),
}


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


@pytest.mark.sample(5)
@pytest.mark.parametrize("length", [33, 49, 77, 100, 130, 255])
@pytest.mark.parametrize("name", ROWS)
def test_as_in_eager(name: str, length: int) -> None:
    function = ROWS[name]
    x = torch.randn(9, length)
    compiled = fusec.compile(function)
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    for value, row in ((float("nan"), 1), (float("inf"), 2), (float("-inf"), 3)):
        x[row, -1] = value
        x[row + 3, 0] = value
    x[7] = float("-inf")
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5, equal_nan=True)


def test_nothing_beyond_a_row_is_read_or_written() -> None:
    """The check calls it where memory ends after the last row, and begins before the first one."""
    compiled = fusec.compile(lambda x: x.softmax(-1), keep_inputs=True)
    compiled(torch.randn(7, 77))
    (kernel,) = compiled.kernels.values()
    if choices.full_turns(77):
        assert "r0 < 80" in kernel.source
    verdict = kernel.check(f"{kernel.source}// the same\n", timed=False)
    assert verdict.ok, verdict.reason


def test_how_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = {}
    for isa in ("avx512", "avx2", "sse2", ""):
        machine = current_machine().with_isa(isa)
        monkeypatch.setattr(choices, "current_machine", lambda machine=machine: machine)
        lengths = (None, 1, 8, 9, 16, 17, 24, 49, 77, 255, 256, 257)
        turns[isa] = [choices.full_turns(length) for length in lengths]
    assert turns == {
        "avx512": [0, 0, 0, 0, 0, 32, 32, 64, 80, 256, 0, 0],
        "avx2": [0, 0, 0, 16, 0, 24, 0, 56, 80, 256, 0, 0],
        "sse2": [0] * 12,
        "": [0] * 12,
    }


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.argmax(-1),  # a position
        lambda x: x[..., ::2].sum(-1),  # no neighbors in memory
        lambda x: x.double().sum(-1),
        lambda x: (x > 0).any(-1),
        lambda x: F.pad(x, (3, 0)).sum(-1),  # reads by conditions of its own
    ],
)
def test_what_keeps_its_own_turns(function: Function) -> None:
    compiled = fusec.compile(function)
    x = torch.randn(9, 154)
    torch.testing.assert_close(compiled(x), function(x))
    (kernel,) = compiled.kernels.values()
    assert "full_vectors" not in kernel.generated.plan
