"""What tests on a GPU share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def exact_convolutions() -> Iterator[None]:
    """Have the library convolve in float32, not in TF32.

    By the context manager alone: torch's own test tools, which other files import, forbid to set
    the flags of a library in any other way.
    """
    cudnn = torch.backends.cudnn
    with cudnn.flags(cudnn.enabled, cudnn.benchmark, deterministic=False, allow_tf32=False):
        yield
