"""Which torch is installed, for what is another there, and is torch's own."""

from __future__ import annotations

import torch

RELEASE = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
# TorchDynamo tells compiled functions of one code apart, keeps the stack of what it fails in, and
# has guards of a module's parameters that can be read.
OLD = RELEASE < (2, 12)

__all__ = ["OLD", "RELEASE"]
