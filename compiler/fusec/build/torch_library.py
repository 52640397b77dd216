"""What a library needs that is built against torch's own headers and linked with its libraries."""

from __future__ import annotations

from pathlib import Path

import torch

from fusec.systems import this_system
from fusec.toolchain.build import needs_torchs_library


def torch_flags(*libraries: str) -> list[str]:
    """Return compiler flags for C++ that calls torch's.

    Args:
        libraries: Of torch's, to link with: ``c10``.

    Raises:
        NotImplementedError: The compiler has another C++ library than torch was built with.
    """
    needs_torchs_library()
    folder = Path(torch.__file__).parent
    return [
        "-std=c++20",
        "-O2",
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
        f"-I{folder / 'include'}",
        f"-L{folder / 'lib'}",
        *this_system().torch_flags(),
        *(f"-l{name}" for name in libraries),
    ]


__all__ = ["torch_flags"]
