"""Find a C++ compiler that can build kernels, and the flags to build them with.

OpenMP.  A kernel has to run on the OpenMP runtime that torch runs on: a second one would bring
a second team of threads and would not follow ``torch.set_num_threads``.  Wheels of torch bring
their own ``libgomp``, at times under a name of its own (``libgomp-a34b3233.so.1``).  So that
very file is what a kernel is linked with, in place of the compiler's own: the kernel then asks
the loader for the library by the name under which torch has already loaded it.  Where torch
brings none, it uses the system's, and so does the compiler.

clang emits calls that only LLVM's runtime (``libomp``) answers, so with clang a kernel has
threads of its own beside torch's; how many is what the caller passes as ``threads``.  Where
clang has no ``libomp`` either, it is not usable and the search goes on.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from fusec.cache import default_store
from fusec.errors import CompilerNotFound
from fusec.machine import features, this_machine
from fusec.systems import this_system

SEARCHED = ("g++", "clang++", "c++")
# None of the floating-point flags changes a result. The first two say that nobody reads errno
# or the exception flags, which is what lets a compiler turn a condition into a select; the
# third keeps it from fusing a product and a sum that eager rounds twice.
BASE_FLAGS = (
    "-std=c++17",
    "-O3",
    # What the emitter calls a vector loop has passed its own judgement.
    "-fvect-cost-model=unlimited",
    # It moves casts of a select's constants into its branches, which then stay branches.
    "-fno-tree-pre",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
)
# A kernel that includes nothing else needs nothing of the C++ library, and linking without it
# saves a fifth of a small build.
PLAIN_HEADERS = frozenset({"stdint.h", "stddef.h", "omp.h"})
PROBE_SECONDS = 30.0
PROBE_TEXT = """\
#include <stdint.h>
extern "C" int64_t probe(const int64_t* x, int64_t n)
{
    int64_t sum = 0;
#pragma omp parallel for simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}
"""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that was tried and works.

    Attributes:
        path: The executable.
        version: The first line of ``--version``.
        flags: What kernels are compiled with.
        runtime: The OpenMP runtime that torch brings, to link with, if it brings one.
    """

    path: str
    version: str
    flags: tuple[str, ...]
    runtime: str = ""

    def command(self, source: str, output: str, *extra: str, plain: bool = False) -> list[str]:
        """Return the command that builds one file into a shared object.

        Args:
            source: The file to compile.
            output: The shared object to write.
            extra: Flags after the usual ones, so that they win.
            plain: Whether the file needs nothing of the C++ library.
        """
        command = [self.path, *self.flags, *extra, "-x", "c++", source, "-x", "none", "-o", output]
        # A function that exists nowhere is an error now, not when the kernel is loaded.
        command += this_system().link_flags()
        command += [self.runtime] if self.runtime else []
        if self.runtime and this_system().name == "linux":
            # Named one by one, so that the compiler's own libgomp is not among them.
            # what includes nothing of the library cannot throw; a lambda alone would ask for it
            command += ["-nodefaultlibs", "-fno-exceptions" if plain else "-lstdc++"]
            command += ["-lm", "-lc", "-lgcc_s", "-lgcc"]
        return command


def find_compiler() -> Compiler:
    """Return the C++ compiler to use: the one ``CXX`` names, else the first found on PATH.

    Raises:
        CompilerNotFound: There is none, or none can build a small OpenMP kernel.
    """
    from fusec.memory import poison

    march = this_machine().flags
    found = _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", os.defpath), march)
    return replace(found, flags=(*found.flags, poison.FLAG)) if poison.is_on() else found


@functools.lru_cache(maxsize=8)
def _find_compiler(chosen: str, path: str, march: tuple[str, ...]) -> Compiler:
    problems = []
    for name in (chosen,) if chosen else SEARCHED:
        executable = shutil.which(name, path=path)
        if executable is not None:
            compiler = probe(executable, march)
            if compiler is not None:
                return compiler
            problems.append(executable)
    if problems:
        raise CompilerNotFound(
            f"{', '.join(problems)} cannot build an OpenMP kernel",
            "install g++, or set CXX to a C++ compiler with OpenMP",
        )
    if chosen:
        raise CompilerNotFound(
            f"CXX is {chosen!r}, which is not an executable on PATH",
            "set CXX to a C++ compiler, or unset it to search for one",
        )
    raise CompilerNotFound(
        f"no C++ compiler is on PATH (looked for {', '.join(SEARCHED)})",
        "install one (Debian: apt install g++; Fedora: dnf install gcc-c++), or set CXX to one",
    )


def probe(executable: str, march: tuple[str, ...] = ()) -> Compiler | None:
    """Try a compiler with flags from the best to the plainest; None if it cannot build at all.

    What worked is remembered in the store, so that a later process does not try again.
    """
    status = Path(executable).stat()
    runtime = str(openmp_library() or "")
    version = first_line(executable)
    choices = flag_choices("clang" in version, march)
    key = {
        "version": version,
        "executable": str(Path(executable).resolve()),
        "size": status.st_size,
        "changed": status.st_mtime_ns,
        "machine": machine(),
        "runtime": runtime,
        "choices": [list(flags) for flags in choices],
    }
    store = default_store()
    entry = store.get("compiler", key)
    if entry is not None:
        found = json.loads(entry.read_bytes("compiler.json"))
        return Compiler(executable, version, tuple(found["flags"]), found["runtime"])
    # torch's runtime first; the compiler's own (LLVM's, for clang) where that does not link.
    for library in dict.fromkeys((runtime, "")):
        for flags in choices:
            compiler = Compiler(executable, version, flags, library)
            if builds(compiler):
                record = {"flags": list(flags), "runtime": library}
                store.put("compiler", key, {"compiler.json": json.dumps(record).encode()})
                return compiler
    return None


def flag_choices(clang: bool, march: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the sets of flags to try, best first: not every compiler knows ``native``.

    Args:
        clang: Whether it is clang.
        march: What says which processor it is, where that is not ``native``.
    """
    # Where two conditions follow each other, as in a clamp, g++ would make one out of them
    # that takes longer as vector code: a tenth of a logarithm.
    openmp = (*BASE_FLAGS, "-fopenmp", *([] if clang else ["-fno-thread-jumps"]))
    if march:
        return [(*openmp, *march)]
    choices = [(*openmp, "-march=native"), (*openmp, "-mcpu=native"), openmp]
    if "avx512f" in features():
        choices.insert(0, (*openmp, "-march=native", "-mprefer-vector-width=512"))
    return choices


def builds(compiler: Compiler) -> bool:
    """Say whether a compiler turns a small OpenMP kernel into a shared object."""
    with tempfile.TemporaryDirectory(prefix="fusec-") as folder:
        Path(folder, "probe.cpp").write_text(PROBE_TEXT)
        command = compiler.command("probe.cpp", "probe.so", plain=True)
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, timeout=PROBE_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and Path(folder, "probe.so").exists()


def first_line(executable: str) -> str:
    """Return the first line of what a compiler says of its version; empty if it says nothing."""
    try:
        done = subprocess.run(
            [executable, "--version"],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].strip()


@functools.cache
def openmp_library() -> Path | None:
    """Return the OpenMP runtime that torch brings with it, if it brings one."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    for folder in (package / "lib", package.parent / "torch.libs"):
        for pattern in this_system().openmp_patterns:
            for library in sorted(folder.glob(pattern)):
                return library
    return None


@functools.cache
def machine() -> str:
    """Return a hash of what ``native`` means here, so that a shared cache never mixes machines."""
    identity = [platform.system(), platform.machine(), *sorted(features())]
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()
