"""Whether the compiler found puts the whole C++ library into what it builds, as some are set up."""

from __future__ import annotations

import functools

from fusec.verify.static import binary
from support import handwritten_kernels as vk

PUT_IN = "the compiler has put the whole C++ library into it"


@functools.cache
def is_put_in() -> bool:
    """Whether so much of it is there that nobody can tell what is a kernel's own."""
    text = "#include <vector>\n" + vk.cpp("std::vector<float> v(x, x + n);\n" + vk.RIGHT)
    found = binary.problem(binary.library_facts(str(vk.build_library(text))), text)
    return found is not None and found.reason.startswith(PUT_IN)
