"""Exported files, run where fusec cannot be imported."""

from __future__ import annotations

import os

import torch

from fusec.ir.index import Expr, Symbol
from fusec.kernel import Kernel
from fusec.kernel_source import Argument, KernelSource, Signature
from support import handwritten_kernels as vk
from support import nursery

BLOCKED = """\
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("fusec", "fuselab"):
            raise ImportError(name + " is not there")
sys.meta_path.insert(0, Blocker())
sys.path.insert(0, {folder!r})
"""


def python(code, folder, *arguments):
    """Run code where there is no fuselab, in a process of its own."""
    return nursery.run(
        BLOCKED.format(folder=str(folder)) + code,
        arguments,
        folder=folder,
        environment={k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FUSEC"))},
        modules="torch torch._dynamo torch.testing._internal.optests",
    )


def symbolic(target="cpp", text=None):
    n = Expr.of(Symbol("n", "size"))
    one = (Expr.of(1),)
    source = vk.kernel(target=target).generated
    signature = Signature(
        (
            Argument("x", torch.float32, (n,), one, "in"),
            Argument("out", torch.float32, (n,), one, "out"),
        ),
        ("n",),
        ("index out of range",),
    )
    return Kernel(
        KernelSource("scale", target, source.entry, text or source.text, signature), None, vk.Host()
    )
