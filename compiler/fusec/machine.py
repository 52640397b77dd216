"""Which processor this is."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


@functools.cache
def processor() -> str:
    """Return the processor's name."""
    for line in _described().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@functools.cache
def is_amd() -> bool:
    """Whether it is AMD's, for which MKL is not made; False where nobody says."""
    return "AuthenticAMD" in _described()


def _described() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


__all__ = ["is_amd", "processor"]
