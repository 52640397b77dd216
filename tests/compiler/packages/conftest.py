from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fusec
from fusec.packages.binaries import default_names


@pytest.fixture(scope="session")
def sound(tmp_path_factory) -> Path:
    """A small package with weights, of two specializations, one of them with dynamic sizes."""
    folder = tmp_path_factory.mktemp("sound")
    torch.manual_seed(1)
    weight = torch.randn(9)

    def scaled(x, times: int = 2):
        return torch.softmax(x * weight, -1) * times

    calls = [(torch.randn(4, 9),), (torch.randn(4, 9), 3)]
    path = folder / "sound.fuse"
    fusec.package(scaled, calls, path, dynamic={"x": 0}, binaries=default_names()[-1:])
    return path
