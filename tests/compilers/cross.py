"""Kernels built for other machines by zig, and run where an emulator is found."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from fusec.call import native
from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.helper_block import with_helpers
from fusec.kernel_source import KernelSource
from fusec.toolchain.compiler import bundled_compiler
from fusec.toolchain.families import FAMILIES
from support.cpp_bodies import Bench

ZIG = FAMILIES["zig"]
ENTRY = Path(native.__file__).parents[2] / "toolchain/openmp"


@dataclass(frozen=True)
class Target:
    """A machine that is built for.

    Attributes:
        name: What it is called.
        triple: What zig calls it.
        runs: The triple of a program that stands alone, and the emulators that may run it; empty
            where none does.
    """

    name: str
    triple: str
    runs: str = ""
    emulators: tuple[str, ...] = ()

    @property
    def emulator(self) -> str | None:
        """The emulator that is there: what ``QEMU`` names, or one on PATH."""
        names = (os.environ.get("QEMU", ""), *self.emulators) if self.emulators else ()
        return next((found for name in names if name and (found := shutil.which(name))), None)


TARGETS = (
    Target("x86_64 Linux", "x86_64-linux-gnu"),
    Target(
        "aarch64 Linux",
        "aarch64-linux-gnu",
        "aarch64-linux-musl",
        ("qemu-aarch64-static", "qemu-aarch64"),
    ),
    Target("x86_64 Windows", "x86_64-windows-gnu"),
    Target("x86_64 macOS", "x86_64-macos"),
    Target("aarch64 macOS", "aarch64-macos"),
)


def compile_for(target: Target, text: str, folder: Path, *extra: str, openmp: bool = True) -> Path:
    """Compile a kernel's text to an object for a target, with OpenMP as on that machine."""
    source, made = folder / "kernel.cpp", folder / "kernel.o"
    source.write_text(ZIG.text(with_helpers(text, "kernel.cpp")), encoding="utf-8")
    flags = [flag for flag in ZIG.flags if flag != "-shared"]
    flags += ["-fopenmp"] if openmp else ["-fopenmp-simd"]
    run(folder, "cc", "-target", target.triple, *flags, *extra, "-c", source.name, "-o", made.name)
    return made


def run(folder: Path, *command: str) -> None:
    """Run zig in a folder; what it says is the error."""
    environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    done = subprocess.run(
        [bundled_compiler(), *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr[-3000:])


# What Python.h is told of Windows, where it is no file that a build on Linux leaves behind.
WINDOWS = """\
#include <io.h>
#define MS_WINDOWS
#define MS_WIN32
#define MS_WIN64
#define NT_THREADS
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_STAT_H 1
#define SIZEOF_SHORT 2
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_TIME_T 8
#define SIZEOF_WCHAR_T 2
#define SIZEOF_PID_T 4
#define ALIGNOF_MAX_ALIGN_T 8
#define HAVE_PY_SSIZE_T 1
typedef __int64 Py_ssize_t;
#define PY_SSIZE_T_MAX 0x7fffffffffffffffLL
"""


def compile_native(target: Target, folder: Path) -> None:
    """Compile the native part of a call for a target, against the headers of this Python."""
    here = Path(native.__file__).parent
    include = Path(sysconfig.get_path("include"))
    if "windows" in target.triple:
        include = Path(shutil.copytree(include, folder / "include"))
        (include / "pyconfig.h").write_text(WINDOWS)
    command = ("c++", "-target", target.triple, "-std=c++17", "-O2", "-w", f"-I{include}")
    for sources in (native._CALLS, native._DEVICE):
        text = "\n".join((here / name).read_text() for name in sources)
        (folder / "native.cpp").write_text(text)
        run(folder, *command, "-c", "native.cpp", "-o", "native.o")


DRIVER = """\
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
extern "C" int ENTRY(PARAMETERS);
int main(int count, char** given)
{
    FILE* file = fopen(given[1], "r+b");
    if (!file) return 90;
    int64_t sizes[64];
    char* at[64];
    for (int i = 0; i < BUFFERS; ++i) {
        if (fread(&sizes[i], 8, 1, file) != 1) return 91;
        at[i] = (char*)aligned_alloc(64, (sizes[i] + 127) / 64 * 64);
        if (fread(at[i], 1, sizes[i], file) != (size_t)sizes[i]) return 92;
    }
    int code = ENTRY(ARGUMENTS);
    rewind(file);
    for (int i = 0; i < BUFFERS; ++i) {
        fwrite(&sizes[i], 8, 1, file);
        fwrite(at[i], 1, sizes[i], file);
    }
    return fclose(file) ? 93 : code;
}
"""


class Emulated:
    """A kernel of a bench as a program for another machine: what ``Built`` is for this one."""

    def __init__(self, bench: Bench, source: KernelSource, target: Target, folder: Path) -> None:
        self.bench, self.source, self.folder, self.target = bench, source, folder, target
        self.order = argument_buffers(bench.body)
        sizes = [bench.sizes[s] for s in body_sizes(bench.body, bench.buffers)]
        parameters = ["void*"] * len(self.order) + ["int64_t"] * (len(sizes) + 1)
        arguments = [f"at[{i}]" for i in range(len(self.order))]
        arguments += [str(size) for size in (*sizes, 1)]
        text = DRIVER.replace("ENTRY", source.entry).replace("BUFFERS", str(len(self.order)))
        text = text.replace("PARAMETERS", ", ".join(parameters))
        (folder / "driver.cpp").write_text(text.replace("ARGUMENTS", ", ".join(arguments)))
        alone = Target(target.name, target.runs)
        compile_for(alone, source.text, folder, openmp=False)
        command = ("cc", "-target", target.runs, "-O1", "-static", "-x", "c++", "driver.cpp")
        run(folder, *command, "-x", "none", "kernel.o", "-o", "program")

    def __call__(self, tensors: Mapping[str, torch.Tensor], threads: int = 1) -> int:
        """Run on tensors' bytes, which change as the kernel changes them."""
        blocks = [(tensors[name].data_ptr(), extent(tensors[name])) for name in self.order]
        data = b"".join(
            size.to_bytes(8, "little") + ctypes.string_at(at, size) for at, size in blocks
        )
        file = self.folder / "data"
        file.write_bytes(data)
        assert self.target.emulator is not None
        command = [self.target.emulator, str(self.folder / "program"), str(file)]
        code = subprocess.run(command, timeout=300, check=False).returncode
        data, place = file.read_bytes(), 0
        for at, size in blocks:
            place += 8
            ctypes.memmove(at, data[place : place + size], size)
            place += size
        return code


def extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()
