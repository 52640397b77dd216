"""What the passes make of whole graphs, as text: which find something, and what is left."""

from __future__ import annotations

import pytest
import torch

from support.decisions import compare_part, parts_of
from support.whole_graphs import CASES, told_of
from support.whole_programs import IS_PINNED

LAID_OUT_BY_CUDNN = (
    "each channel by itself",
    "channels inward on a gpu",
    "residual on a gpu",
    "separable, training",
)


@pytest.mark.parametrize("name", CASES)
def test_what_passes_make_of_it(name: str) -> None:
    found = list(told_of(name))
    if name in LAID_OUT_BY_CUDNN and torch.version.cuda:
        pytest.skip("a torch with cuDNN asks it how results lie")
    if not IS_PINNED and parts_of("graphs").get(name, [""])[0] != found[0]:
        pytest.skip("another torch takes operators apart in another way")
    compare_part("graphs", name, found)
