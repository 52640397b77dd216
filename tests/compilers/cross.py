"""Kernels built for other machines by zig, and run where an emulator is found."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from fusec.cache import default_store
from fusec.call import native
from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.errors import FusecError
from fusec.helper_block import with_helpers
from fusec.kernel_source import KernelSource
from fusec.machine import MachineFacts, this_machine, using
from fusec.toolchain.compiler import bundled_compiler
from fusec.toolchain.families import FAMILIES
from support.cpp_bodies import Bench, check
from support.cpp_golden import CASES, TERMS, bench_of, emit, filled

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
        "aarch64-linux-none",
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
    kept = default_store().folder / ".zig"  # where kernels' builds have what they share, too
    environment = {
        **os.environ,
        "ZIG_LOCAL_CACHE_DIR": str(folder / "zig"),
        "ZIG_GLOBAL_CACHE_DIR": str(kept),
    }
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


NATIVE = {"calls": native._CALLS, "devices": native._DEVICE}


def compile_native(target: Target, part: str, folder: Path) -> None:
    """Compile the native part of a call for a target, against the headers of this Python.

    Args:
        target: The machine.
        part: Which of the two halves of ``NATIVE``.
        folder: Where it is done.
    """
    here = Path(native.__file__).parent
    include = Path(sysconfig.get_path("include"))
    if "windows" in target.triple:
        include = Path(shutil.copytree(include, folder / "include"))
        (include / "pyconfig.h").write_text(WINDOWS)
    command = ("c++", "-target", target.triple, "-std=c++17", "-O2", "-w", f"-I{include}")
    text = "\n".join((here / name).read_text() for name in NATIVE[part])
    (folder / "native.cpp").write_text(text)
    run(folder, *command, "-c", "native.cpp", "-o", "native.o")


# A program that stands alone on Linux' system calls: a C library for another machine would be built
# first, which takes longer than all golden kernels do. What comes in by its standard input, the
# buffers with their sizes, goes out in the same form after the call.
DRIVER = """\
#include <stdint.h>
static int64_t system(int64_t number, int64_t a, int64_t b, int64_t c)
{
    register int64_t x8 asm("x8") = number, x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c;
    asm volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
static void end(int64_t code)
{
    for (;;) system(94, code, 0, 0);
}
// Reads (63) or writes (64) all of it.
static void move(int64_t number, void* block, int64_t count)
{
    for (int64_t done = 0; done < count;) {
        int64_t now = system(number, number == 64, (int64_t)block + done, count - done);
        if (now <= 0) end(91);
        done += now;
    }
}
// What a compiler asks of every C library.
extern "C" [[gnu::optnone]] void* memset(void* to, int byte, unsigned long count)
{
    for (unsigned long i = 0; i < count; ++i) ((char*)to)[i] = (char)byte;
    return to;
}
extern "C" [[gnu::optnone]] void* memcpy(void* to, const void* from, unsigned long count)
{
    for (unsigned long i = 0; i < count; ++i) ((char*)to)[i] = ((const char*)from)[i];
    return to;
}
extern "C" int ENTRY(PARAMETERS);
alignas(64) static char room[ROOM];
extern "C" void _start()
{
    int64_t sizes[BUFFERS];
    char* at[BUFFERS];
    char* next = room;
    for (int i = 0; i < BUFFERS; ++i) {
        move(63, &sizes[i], 8);
        at[i] = next;
        next += (sizes[i] + 127) / 64 * 64;
        if (next > room + ROOM) end(92);
        move(63, at[i], sizes[i]);
    }
    int code = ENTRY(ARGUMENTS);
    for (int i = 0; i < BUFFERS; ++i) move(64, at[i], sizes[i]);
    end(code);
}
"""
ROOM = 16 << 20


class Emulated:
    """A kernel of a bench as a program for another machine: what ``Built`` is for this one."""

    def __init__(self, bench: Bench, source: KernelSource, target: Target, folder: Path) -> None:
        self.bench, self.source, self.folder, self.target = bench, source, folder, target
        self.order = argument_buffers(bench.body)
        sizes = [bench.sizes[s] for s in body_sizes(bench.body, bench.buffers)]
        parameters = ["void*"] * len(self.order) + ["int64_t"] * (len(sizes) + 1)
        arguments = [f"at[{i}]" for i in range(len(self.order))]
        arguments += [str(size) for size in (*sizes, 1)]
        text = DRIVER.replace("ENTRY", source.entry).replace("ROOM", str(ROOM))
        text = text.replace("PARAMETERS", ", ".join(parameters))
        text = text.replace("ARGUMENTS", ", ".join(arguments))
        (folder / "driver.cpp").write_text(text.replace("BUFFERS", str(len(self.order))))
        alone = replace(target, triple=target.runs)
        compile_for(alone, source.text, folder, openmp=False)
        command = (
            "cc",
            "-target",
            target.runs,
            "-O1",
            "-static",
            "-nostdlib",
            "-fno-stack-protector",
        )
        command += ("-fno-sanitize=undefined", "-x", "c++", "driver.cpp")
        run(folder, *command, "-x", "none", "kernel.o", "-o", "program")

    def __call__(self, tensors: Mapping[str, torch.Tensor], threads: int = 1) -> int:
        """Run on tensors' bytes, which change as the kernel changes them."""
        blocks = [(tensors[name].data_ptr(), extent(tensors[name])) for name in self.order]
        data = b"".join(
            size.to_bytes(8, "little") + ctypes.string_at(at, size) for at, size in blocks
        )
        assert self.target.emulator is not None
        command = [self.target.emulator, str(self.folder / "program")]
        done = subprocess.run(command, input=data, capture_output=True, timeout=300, check=False)
        if done.returncode == 0:
            assert len(done.stdout) == sum(size for _, size in blocks), "it ended too early"
        place = 0
        for at, size in blocks if done.returncode == 0 else ():
            ctypes.memmove(at, done.stdout[place : place + size], size)
            place += size
        return done.returncode


def extent(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to its last."""
    if not tensor.numel():
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


@dataclass
class Cross:
    """What became of the golden kernels and the native part on another machine.

    Attributes:
        built: How many kernels were compiled.
        right: How many of them ran in an emulator and computed what the reference does.
        native: Whether the native part was compiled.
        failed: What went wrong, a line each.
    """

    built: int = 0
    right: int = 0
    native: bool = False
    failed: tuple[str, ...] = ()


def for_target(target: Target, pool: Executor, names: Iterable[str] = CASES) -> Cross:
    """Compile golden kernels and the native part for a target, run what can be run.

    Args:
        target: The machine.
        pool: Where all of it is done.
        names: Which kernels.
    """
    with using(facts_of(target)):  # which no thread of the pool inherits
        sources = {name: emit(CASES[name]()) for name in names}
    native_parts = [pool.submit(_apart, part, target, compile_native, part) for part in NATIVE]
    builds = {n: pool.submit(_apart, n, target, compile_for, s.text) for n, s in sources.items()}
    runs = {}
    if target.emulator is not None:
        runs = {n: pool.submit(_apart, n, target, run_source, n, s) for n, s in sources.items()}
    found = Cross()
    for each in builds.values():
        wrong = each.result()
        found.built += not wrong
        found.failed += tuple(wrong)
    for each in runs.values():
        wrong = each.result()
        found.right += not wrong
        found.failed += tuple(wrong)
    wrong = [line for each in native_parts for line in each.result()]
    found.native = not wrong
    found.failed += tuple(f"the native part: {line}" for line in wrong)
    return found


def _apart(name: str, target: Target, action: Callable[..., object], *given: object) -> list[str]:
    """Do something for a target in a folder of its own; return what went wrong, in a line."""
    with tempfile.TemporaryDirectory() as folder:
        return attempt(name, partial(action, target, *given, Path(folder)))


def run_source(target: Target, name: str, source: KernelSource, folder: Path) -> None:
    """Run a golden kernel in an emulator and compare with the reference interpreter."""
    case = CASES[name]()
    bench = bench_of(case)
    emulated = Emulated(bench, source, target, folder)
    terms = TERMS.get(name, 0.25)
    check(bench, filled(case, bench, 0), built=emulated, threads=(1,), terms=terms, context=name)  # type: ignore[arg-type]


def facts_of(target: Target) -> MachineFacts:
    """Return what a target's least processor is."""
    arm = target.triple.startswith("aarch64")
    isa = "neon" if arm else "avx2"
    return replace(this_machine(), isa=isa, native=False, streams=not arm, amd=False)


def attempt(name: str, action: Callable[[], object]) -> list[str]:
    """Do something; return what went wrong, in a line."""
    try:
        action()
    except (AssertionError, OSError, subprocess.SubprocessError, FusecError) as error:
        lines = [line for line in str(error).splitlines() if "error" in line] or [str(error)]
        return [f"{name}: {lines[0].strip()[:200]}"]
    return []
