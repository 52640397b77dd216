"""A package's library for each kind of processor: kernels, programs and threads in one object.

It needs the C library and nothing else: no torch, no OpenMP, no C++ library. The objects of kernels
are kept in the store, as each text is compiled for each processor once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from fusec.cache import default_store, scratch
from fusec.errors import BadOption, CompileError, FusecError
from fusec.helper_block import with_helpers
from fusec.machine import features
from fusec.packages.errors import CannotPackage
from fusec.packages.plain_program import PackagedKernel
from fusec.packages.runtime.binding import SYMBOL, mark
from fusec.packages.runtime.processor import LEVELS, SYSTEM, machine
from fusec.systems import this_system
from fusec.toolchain.compiler import Compiler, find_compiler
from fusec.toolchain.families import FAMILIES

_NATIVE = Path(__file__).with_name("native")
_SECONDS = 300.0
# How a shared object must come out: it asks for nothing that is not there, and shows its own alone.
_COMPILE = ("-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-stack-protector", "-w")
_LINK = (
    "-shared",
    "-Wl,--gc-sections",
    "-Wl,--no-undefined",
    "-Wl,-z,now",
    "-Wl,-z,relro",
    "-Wl,--build-id=none",
)
NAMES = tuple(LEVELS)


@dataclass(frozen=True)
class Binary:
    """A library of a package.

    Attributes:
        name: Its kind of processor: ``x86-64-v4``, ``aarch64``.
        data: The shared object.
        needs: What the processor must be able to do, in numpy's words.
    """

    name: str
    data: bytes
    needs: tuple[str, ...]

    @property
    def machine(self) -> str:
        """The processor's family."""
        return "x86_64" if self.name.startswith("x86-64") else self.name

    @property
    def member(self) -> str:
        """The member that holds it."""
        return f"binaries/{self.name}.so"

    def json(self) -> dict[str, object]:
        """Return what the manifest says of it."""
        return {
            "name": self.name,
            "member": self.member,
            "machine": self.machine,
            "system": SYSTEM,
            "features": list(self.needs),
        }


def default_names() -> tuple[str, ...]:
    """Return what is built if nobody asks for more: for this processor's family, best first."""
    family = machine()
    if family != "x86_64":
        return (family,) if family in LEVELS else ()
    known = features()
    found = [n for n, least in (("x86-64-v4", "avx512bw"), ("x86-64-v3", "avx2")) if least in known]
    return (*found, "x86-64")


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of processors that are asked for, best first.

    Raises:
        BadOption: One is not known.
    """
    for name in names:
        if name not in NAMES:
            raise BadOption("binary", name, NAMES)
    return tuple(name for name in NAMES if name in names)


def build_binaries(
    kernels: Sequence[PackagedKernel],
    host: str,
    names: Sequence[str],
    rest: bytes,
) -> list[Binary]:
    """Build a package's library for each kind of processor.

    Args:
        kernels: Their texts.
        host: The C++ of the programs.
        names: The kinds.
        rest: Stands for everything else in the package, for which each library says that it was
            made; from ``binding.rest_of``.

    Raises:
        CannotPackage: There is no compiler for one of them.
        CompileError: A text does not compile for one.
    """
    if this_system().name != "linux":
        raise CannotPackage("binaries of packages are built on Linux so far")
    jobs: list[tuple[str, str, str, tuple[str, ...]]] = []
    for name in names:
        jobs += [(name, k.name, _whole(k.text), (f"-D{k.entry}={k.symbol}",)) for k in kernels]
        jobs.append((name, "programs", _with_files(host), ()))
        jobs.append((name, "mark", _marked(name, rest), ()))
        jobs.append((name, "threads", (_NATIVE / "threads.cpp").read_text(), ("-O2",)))
        if _compiler(name)[0].facts.calls == "kmp":  # clang's calls of OpenMP, answered by g++'s
            answers = files("fusec.toolchain").joinpath("openmp/entry.cpp").read_text()
            jobs.append((name, "OpenMP", answers, ("-O2", "-ffunction-sections")))
    workers = min(len(jobs), os.cpu_count() or 1)
    with ThreadPoolExecutor(workers, "fusec-package") as pool:
        objects = list(pool.map(lambda job: _object(*job), jobs))
    found = []
    for name in names:
        own = [data for job, data in zip(jobs, objects, strict=True) if job[0] == name]
        found.append(Binary(name, _link(name, own), LEVELS[name]))
    return found


def _marked(name: str, rest: bytes) -> str:
    said = mark(rest, Binary(name, b"", LEVELS[name]).json()).decode("ascii")
    shown = '__attribute__((visibility("default"), used))'
    return f'extern "C" {{ extern {shown} const char {SYMBOL}[] = "{said}"; }}\n'


def header() -> str:
    """Return what C programs include."""
    return (_NATIVE / "fuse.h").read_text()


def _operators() -> str:
    return (_NATIVE / "operators.cpp").read_text()


def _with_files(host: str) -> str:
    found = host.replace('#include "operators.cpp"', _operators())
    return found.replace('#include "fuse.h"', header())


def _whole(text: str) -> str:
    return with_helpers(text, "kernel.cpp")


@cache
def _compiler(name: str) -> tuple[Compiler, tuple[str, ...]]:
    """Return a compiler for a kind of processor, and what it is told to compile for it."""
    family = "x86_64" if name.startswith("x86-64") else name
    here = find_compiler()
    if family == machine():
        march = (f"-march={name}",) if family == "x86_64" else ()
        return here, march
    cross = shutil.which(f"{family}-linux-gnu-g++")
    if cross:
        return Compiler(cross, _version(cross), (), family="gcc"), (
            (f"-march={name}",) if family == "x86_64" else ()
        )
    raise CannotPackage(
        f"there is no compiler for {name} here",
        f"install {family}-linux-gnu-g++, or leave {name} out of binaries=",
    )


def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def _flags(compiler: Compiler, march: Sequence[str]) -> list[str]:
    family = FAMILIES[compiler.family]
    flags = [flag for flag in (*family.flags, *family.openmp) if flag != "-shared"]
    found: list[str] = []
    for flag in (*flags, *_COMPILE, *march):
        found += family.translate(flag)
    return found


def _object(name: str, label: str, text: str, extra: tuple[str, ...]) -> bytes:
    """Return the object of a text for a kind of processor."""
    compiler, march = _compiler(name)
    text = compiler.facts.text(text)
    flags = [*_flags(compiler, march), *extra]
    key = {
        "text": hashlib.sha256(text.encode()).hexdigest(),
        "compiler": compiler.path,
        "version": compiler.version,
        "flags": flags,
    }
    store = default_store()
    entry = store.get("package-object", key)
    if entry is not None:
        return entry.read_bytes("kernel.o")
    with scratch() as folder:
        Path(folder, "kernel.cpp").write_text(text, encoding="utf-8")
        command = [
            compiler.path,
            *compiler.facts.full,
            *flags,
            "-c",
            "kernel.cpp",
            "-o",
            "kernel.o",
        ]
        _run(command, folder, compiler, f"{label} for {name}")
        data = Path(folder, "kernel.o").read_bytes()
    store.put("package-object", key, {"kernel.o": data})
    return data


def _link(name: str, objects: Sequence[bytes]) -> bytes:
    compiler, _ = _compiler(name)
    with scratch() as folder:
        names = [f"{i}.o" for i in range(len(objects))]
        for each, data in zip(names, objects, strict=True):
            Path(folder, each).write_bytes(data)
        # zig's other driver would build its C++ library first, which nothing here needs
        driver = compiler.facts.plain if compiler.family == "zig" else compiler.facts.full
        command = [compiler.path, *driver, *names, *_LINK]
        command += ["-o", "package.so"]
        if compiler.family != "zig":
            command += ["-static-libgcc", "-static-libstdc++"]
        command += ["-lm", "-lpthread", "-s"]
        _run(command, folder, compiler, f"the library for {name}")
        return Path(folder, "package.so").read_bytes()


def _run(command: Sequence[str], folder: str, compiler: Compiler, what: str) -> None:
    environment = {**os.environ, "LC_ALL": "C", **compiler.environment(folder)}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FusecError(f"{what}: the compiler did not finish in {_SECONDS:g} s") from None
    if done.returncode:
        said = done.stderr or done.stdout
        lines = [line for line in said.splitlines() if "error" in line or "undefined" in line]
        raise CompileError((), said, f"{what}: {(lines or ['it says nothing'])[0][:200]}")


__all__ = ["NAMES", "Binary", "build_binaries", "check_names", "default_names", "header"]
