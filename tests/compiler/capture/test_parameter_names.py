"""A user's variable may be called what the kernel's own text calls something."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from support.compare import difference

NAMES = (
    "stream end_stream ahead ahead_to_write together lane count LINE BLOCK UNROLL ROWS GRAIN"
    " at_most div_floor mark threads failed int64_t uint8_t NAN INFINITY fx_exp fx_bf16 nan_max"
    " random_words wrap_add wrap_mul32 alignas decltype nullptr xor XBLOCK RBLOCK tl offsets mask"
    " start grid rows libdevice out_ptr num_warps i0 r0 value begin end"
).split()
TOGETHER = 8  # names that one function has
GROUPS = [NAMES[n : n + TOGETHER] for n in range(0, len(NAMES), TOGETHER)]


def function_of(names: list[str]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function of so many matrices: a chain, integers, rows, columns, a transpose."""
    total = " + ".join(f"{name} * {n + 2}" for n, name in enumerate(names))
    text = f"""def function({", ".join(names)}):
    total = {total}
    whole = ({names[0]}.to(torch.int32) + 7) * 3
    return total, whole, torch.softmax(total, -1), {names[-1]}.amax(-1), {names[-1]}.t() + total
"""
    file = f"<names {names[0]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(text, file, "exec"), space)
    return space["function"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
@pytest.mark.parametrize("target", ["auto", "triton"])
def test_names_that_mean_something_else(
    names: list[str], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    size = 300 if target == "auto" else 24
    function = function_of(names)
    inputs = [torch.randn(size, size) for _ in names]
    compiled = fusec.compile(function, target=target)
    assert not difference(compiled(*inputs), function(*inputs))
