"""Hand-written kernels of the declared ABI, right and wrong, for the tests of verify and tune."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fusec.export.forms import export_kernel
from fusec.ir.index import Expr
from fusec.kernel import Kernel
from fusec.kernel_source import Argument, KernelSource, Runnable, Signature
from fusec.toolchain.build import build
from fusec.toolchain.loading import load
from fusec.verify.check import Case, check_kernel

CPP = """\
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

constexpr int64_t GRAIN = 64;  // tunable: 16 64 256 (elements a thread takes at a time)

extern "C" int scale(const float* x, float* out, int64_t n, int64_t threads) {
BODY
    return 0;
}
"""

RIGHT = """\
    #pragma omp parallel for num_threads(threads) schedule(static, GRAIN)
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2.0f + 1.0f;"""

TRITON = """\
import torch
import triton
import triton.language as tl

BLOCK = 128  # tunable: 64 128 256 (elements a program handles)


@triton.jit
def scale_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value = tl.load(x + i, mask=mask)
    tl.store(out + i, value * 2.0 + 1.0, mask=mask)


def launch(x, out, n):
    scale_kernel[(triton.cdiv(n, BLOCK),)](x, out, n, BLOCK=BLOCK)
"""


def cpp(body: str = RIGHT) -> str:
    """Return a whole C++ kernel file with `body` in its function."""
    return CPP.replace("BODY", body)


def signature(n: int = 1000, **kinds: Any) -> Signature:
    """Return the signature of `scale`."""
    size = (Expr.of(n),)
    one = (Expr.of(1),)
    return Signature(
        (
            Argument("x", torch.float32, size, one, "in"),
            Argument("out", torch.float32, size, one, "out"),
        ),
        ("n",),
        ("index out of range",),
    )


class Host:
    """Stands in for the compiled graph."""

    def __init__(self) -> None:
        self.built: list[str] = []

    def build(self, kernel: Kernel, text: str) -> Runnable:
        self.built.append(text)
        return prepare(text, kernel.generated.entry)

    def check(self, kernel: Kernel, text: str, **options: Any) -> Any:
        raise NotImplementedError

    def tune(self, kernel: Kernel, **options: Any) -> Any:
        raise NotImplementedError

    def export(self, kernel: Kernel, path: Path, **options: Any) -> Path:
        return export_kernel(kernel, path, **options)


def prepare(text: str, entry: str = "scale") -> Runnable:
    """Build a C++ text and return a callable."""
    function = load(build_library(text), entry)

    def run(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        import ctypes

        pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
        numbers = [ctypes.c_int64(s) for s in (*sizes, torch.get_num_threads())]
        assert function(*pointers, *numbers) == 0

    return run


def kernel(text: str | None = None, target: str = "cpp", n: int = 1000) -> Kernel:
    """Return the kernel `scale` with `text` as its generated source."""
    entry = "scale" if target == "cpp" else "launch"
    source = KernelSource(
        name="scale",
        target=target,  # type: ignore[arg-type]
        entry=entry,
        text=text or (cpp() if target == "cpp" else TRITON),
        signature=signature(n),
        read_bytes=4 * n,
        written_bytes=4 * n,
        summary=f"pointwise over {n}",
    )
    return Kernel(source, None, Host())  # type: ignore[arg-type]


def interpret(
    tensors: Sequence[torch.Tensor], sizes: Sequence[int], precision: torch.dtype | None
) -> list[torch.Tensor]:
    """Compute what `scale` means."""
    x = tensors[0].to(precision) if precision else tensors[0]
    return [x * 2.0 + 1.0]


def case(n: int = 1000) -> Case:
    """Return inputs for `scale`."""
    return Case((torch.randn(n), torch.empty(n)), (n,))


def check(text: str, *, n: int = 1000, target: str = "cpp", **options: Any) -> Any:
    """Check `text` in place of the right kernel."""
    subject = kernel(target=target, n=n)
    is_cpp = target == "cpp"
    options.setdefault("generated", prepare(cpp()) if is_cpp else None)
    return check_kernel(
        subject,
        text,
        cases=[case(n)],
        build=build_library if is_cpp else lambda text: None,
        interpret=interpret,
        **options,
    )


def build_library(text: str) -> Path:
    """Build a C++ text as an edit."""
    return build(text, kind="edit")
