"""What Triton compiles a function from: Gluon, its language with layouts, has its own class."""

from __future__ import annotations

import sys
from typing import Any


def is_gluon(function: Any) -> bool:
    """Whether a kernel is written in Gluon."""
    gluon = sys.modules.get("triton.experimental.gluon._runtime")
    return gluon is not None and isinstance(function, gluon.GluonJITFunction)


def source_class(function: Any) -> type:
    """Return the class of Triton's sources for a function."""
    if is_gluon(function):
        found: type = sys.modules["triton.experimental.gluon._runtime"].GluonASTSource
        return found
    from triton import compiler

    plain: type = compiler.ASTSource
    return plain


__all__ = ["is_gluon", "source_class"]
