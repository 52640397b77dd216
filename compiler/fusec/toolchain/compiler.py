"""Find a C++ compiler that can build kernels, and the flags to build them with.

OpenMP.  A kernel has to run on the OpenMP runtime that torch runs on: a second one would bring
a second team of threads and would not follow ``torch.set_num_threads``.  Wheels of torch bring
their own runtime: for Linux ``libgomp``, at times under a name of its own
(``libgomp-a34b3233.so.1``), for macOS LLVM's ``libomp``, for Windows Intel's.  So that very file
is what a kernel is linked with, in place of the compiler's own: the kernel then asks the loader
for the library by the name under which torch has already loaded it.  Where torch brings none, it
uses the system's, and so does the compiler.

g++ calls libgomp's functions, and clang LLVM's.  Where clang meets torch's libgomp,
``openmp/entry.cpp`` goes into the kernel, which answers clang's calls with libgomp's.  Where that
cannot be linked, clang's own runtime is tried: its threads are beside torch's, and how many there
are is what the caller passes as ``threads``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import platform
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from fusec.cache import default_store, scratch
from fusec.errors import CompilerNotFound
from fusec.machine import features, this_machine
from fusec.systems import this_system
from fusec.toolchain.families import FAMILIES, Family, family_of, is_zig
from fusec.toolchain.listen import run

SEARCHED = ("g++", "clang++", "c++")
BUNDLED = "pip install 'fuselab[compiler]'"
# A kernel that includes nothing else needs nothing of the C++ library, and linking without it
# saves a fifth of a small build.
PLAIN_HEADERS = frozenset({"stdint.h", "stddef.h", "omp.h"})
# Seconds for a compiler to say its version, and to build a few lines: it needs a hundredth.
VERSION_SECONDS = 20.0
PROBE_SECONDS = 60.0
# zig builds parts of the C library first, once a machine.
ZIG_SECONDS = 120.0
PROBE_TEXT = """\
#include <stdint.h>
extern "C" int64_t probe(const int64_t* x, int64_t n, int64_t threads)
{
    int64_t sum = 0;
#pragma omp parallel for simd reduction(+ : sum) num_threads(threads)
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return sum;
}
"""
ENTRY = "openmp.o"
_CXX = "libstdc++.so.6"
_OPENMP = Path(__file__).with_name("openmp")


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler that was tried and works, with all that building depends on.

    Attributes:
        path: The executable.
        version: The first line of ``--version``.
        flags: What kernels are compiled with.
        runtime: The OpenMP runtime that torch brings, to link with, if it brings one.
        family: ``gcc``, ``clang``, ``apple`` or ``zig``.
        entry: The object that answers this compiler's calls of OpenMP with the runtime's, where
            that is another's; empty where it needs none.
        cxx: The file of the shared C++ library; empty where the compiler names none.
    """

    path: str
    version: str
    flags: tuple[str, ...]
    runtime: str = ""
    family: str = "gcc"
    entry: str = ""
    cxx: str = ""

    @property
    def facts(self) -> Family:
        """What its family is like."""
        return FAMILIES[self.family]

    @property
    def library(self) -> str:
        """Whose C++ library it builds for: ``libstdc++`` or ``libc++``."""
        return self.facts.library or ("libstdc++" if this_system().name == "linux" else "libc++")

    def command(self, source: str, output: str, *extra: str, plain: bool = False) -> list[str]:
        """Return the command that builds one file into a shared object.

        Args:
            source: The file to compile.
            output: The shared object to write.
            extra: Flags after the usual ones, so that they win; g++'s, which are translated.
            plain: Whether the file needs nothing of the C++ library.
        """
        system, family = this_system(), self.facts
        command = [self.path, *(family.plain if plain else family.full)]
        command += ["-x", "c++", source, "-x", "none", "-o", output]
        # Objects come before the libraries that they need, and flags of libraries after both.
        command += [self.entry] if self.entry else []
        # A function that exists nowhere is an error now, not when the kernel is loaded.
        command += system.link_flags()
        for flag in (*self.flags, *extra):
            command += family.translate(flag)
        # By its file: some compilers (-static-libstdc++) would put all of it into every kernel.
        command += [self.cxx] if self.cxx and not plain else []
        command += [self.runtime, *system.runtime_flags(self.runtime)] if self.runtime else []
        if self.runtime and system.name == "linux" and family.name != "zig":
            # Named one by one, so that the compiler's own libgomp is not among them.
            # what includes nothing of the library cannot throw; a lambda alone would ask for it
            command += ["-nodefaultlibs", "-fno-exceptions" if plain else "-lstdc++"]
            command += ["-lm", "-lc", "-lgcc_s", "-lgcc"]
        elif plain:
            command += ["-fno-exceptions"]
        return command

    def assembly_command(self, source: str, output: str) -> list[str]:
        """Return the command that turns one file into assembly."""
        family = self.facts
        command = [self.path, *family.full]
        for flag in self.flags:
            command += () if flag == "-shared" else family.translate(flag)
        return [*command, "-S", "-fverbose-asm", "-x", "c++", source, "-o", output]

    def object_command(self, source: str, output: str) -> list[str]:
        """Return the command that compiles one file of ours that is linked with every kernel."""
        family = self.facts
        flags = ["-std=c++17", "-O2", *system_flags(), "-fno-exceptions", "-c"]
        return [self.path, *family.plain, *flags, "-x", "c++", source, "-o", output]

    def environment(self, folder: str) -> dict[str, str]:
        """Return what its environment has beside this process's.

        Args:
            folder: Where it may leave what nobody needs afterwards.
        """
        if self.family != "zig":
            return {}
        kept = default_store().folder / ".zig"
        return {"ZIG_LOCAL_CACHE_DIR": folder, "ZIG_GLOBAL_CACHE_DIR": str(kept)}


def system_flags() -> tuple[str, ...]:
    """Return flags of this system."""
    return ("-fPIC",) if this_system().name != "windows" else ()


def find_compiler() -> Compiler:
    """Return the C++ compiler to use: the one ``CXX`` names, else the first found.

    It is looked for on PATH, and then in ``ziglang``, which ``fuselab[compiler]`` brings.

    Raises:
        CompilerNotFound: There is none, or none can build a small OpenMP kernel.
    """
    from fusec.memory import poison

    march = this_machine().flags
    found = _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", os.defpath), march)
    return replace(found, flags=(*found.flags, poison.FLAG)) if poison.is_on() else found


def executables(chosen: str, path: str) -> list[str]:
    """Return the compilers that are there, the one to try first before the others.

    Args:
        chosen: What ``CXX`` says.
        path: Where to look.
    """
    found = (shutil.which(name, path=path) for name in ((chosen,) if chosen else SEARCHED))
    here = [executable for executable in found if executable is not None]
    if not chosen and (bundled := bundled_compiler()):
        here.append(bundled)
    return here


def bundled_compiler() -> str:
    """Return the compiler in the package ``ziglang``; empty where that is not installed."""
    try:
        spec = importlib.util.find_spec("ziglang")
    except (ImportError, ValueError):
        return ""
    if spec is None or spec.origin is None:
        return ""
    for name in ("zig", "zig.exe"):
        executable = Path(spec.origin).with_name(name)
        if os.access(executable, os.X_OK):
            return str(executable)
    return ""


def not_found(chosen: str) -> CompilerNotFound:
    """Return the error for a machine on which there is no compiler.

    Args:
        chosen: What ``CXX`` says.
    """
    if chosen:
        return CompilerNotFound(
            f"CXX is {chosen!r}, which is not an executable on PATH",
            "set CXX to a C++ compiler, or unset it to search for one",
        )
    return CompilerNotFound(
        f"no C++ compiler is on PATH (looked for {', '.join(SEARCHED)})",
        f"{BUNDLED} brings one, or install one "
        "(Debian: apt install g++; Fedora: dnf install gcc-c++), or set CXX to one",
    )


@functools.lru_cache(maxsize=8)
def _find_compiler(chosen: str, path: str, march: tuple[str, ...]) -> Compiler:
    problems = executables(chosen, path)
    silent = []
    for executable in problems:
        try:
            compiler = None if _identity(executable) in _silent else probe(executable, march)
        except TimeoutError as error:
            # Nobody is to wait for it again.
            _silent[_identity(executable)] = str(error)
            compiler = None
        if compiler is not None:
            return compiler
        if said := _silent.get(_identity(executable)):
            silent.append(said)
    if problems:
        raise CompilerNotFound(
            "; ".join(silent) or f"{', '.join(problems)} cannot build an OpenMP kernel",
            f"{BUNDLED} brings a compiler, or install g++, "
            "or set CXX to a C++ compiler with OpenMP",
        )
    raise not_found(chosen)


# Compilers that did not answer in time, with what is said of them.
_silent: dict[tuple[str, int, int], str] = {}


def _identity(executable: str) -> tuple[str, int, int]:
    """Return what is another where a compiler was replaced."""
    try:
        status = Path(executable).stat()
    except OSError:
        return executable, 0, 0
    return executable, status.st_size, status.st_mtime_ns


def probe(executable: str, march: tuple[str, ...] = ()) -> Compiler | None:
    """Try a compiler with flags from the best to the plainest; None if it cannot build at all.

    What worked is remembered in the store, so that a later process does not try again.

    Raises:
        TimeoutError: It does not answer.
    """
    status = Path(executable).stat()
    runtime = str(openmp_library() or "")
    version = _version(executable)
    family = family_of(executable, version)
    choices = flag_choices(family, march)
    key = {
        "version": version,
        "executable": str(Path(executable).resolve()),
        "size": status.st_size,
        "changed": status.st_mtime_ns,
        "machine": machine(),
        "runtime": runtime,
        "choices": [list(flags) for flags in choices],
        "entry": hashlib.sha256((_OPENMP / "entry.cpp").read_bytes()).hexdigest(),
        "cxx": _CXX,
    }
    store = default_store()
    entry = store.get("compiler", key)
    if entry is not None:
        found = json.loads(entry.read_bytes("compiler.json"))
        return Compiler(
            executable,
            version,
            tuple(found["flags"]),
            found["runtime"],
            family.name,
            str(entry.path(ENTRY)) if ENTRY in entry.files else "",
            found["cxx"],
        )
    with scratch() as folder:
        cxx = shared_library(executable, family)
        # torch's runtime first; the compiler's own (LLVM's, for clang) where that does not link.
        for library in dict.fromkeys((runtime, "")):
            made = Compiler(executable, version, (), library, family.name, cxx=cxx)
            if family.calls == "kmp" and "libgomp" in Path(library).name:
                made = replace(made, entry=build_entry(made, folder))
                if not made.entry:
                    continue
            worked = next(
                (n for n, f in enumerate(choices) if builds(replace(made, flags=f))), None
            )
            if worked is not None:
                # What is remembered is so for good: a disk that was full for a moment is no reason
                # to do without the processor's widest vectors.
                again = (n for n in range(worked) if builds(replace(made, flags=choices[n])))
                return _remember(key, replace(made, flags=choices[next(again, worked)]))
    return None


def _remember(key: dict[str, object], compiler: Compiler) -> Compiler:
    """Keep what worked in the store, and return it as it is kept."""
    record = {"flags": compiler.flags, "runtime": compiler.runtime, "cxx": compiler.cxx}
    files: dict[str, bytes | Path] = {"compiler.json": json.dumps(record).encode()}
    if compiler.entry:
        files[ENTRY] = Path(compiler.entry)
    kept = default_store().put("compiler", key, files)
    return replace(compiler, entry=str(kept.path(ENTRY)) if compiler.entry else "")


def shared_library(executable: str, family: Family) -> str:
    """Return the file of the shared C++ library that a compiler links with.

    Returns:
        Empty where it has none of this name, or is no compiler for Linux.

    Raises:
        TimeoutError: It does not answer.
    """
    if this_system().name != "linux" or family.name == "zig":
        return ""
    command = [executable, f"-print-file-name={_CXX}"]
    try:
        status, said = run(command, None, os.environ, VERSION_SECONDS)
    except TimeoutError:
        raise
    except OSError:
        return ""
    path = said.strip()
    return path if status == 0 and Path(path).is_absolute() else ""  # else it is the name alone


def build_entry(compiler: Compiler, folder: str) -> str:
    """Compile what answers clang's calls of OpenMP; return the object, empty if that fails."""
    made = str(Path(folder, ENTRY))
    command = compiler.object_command(str(_OPENMP / "entry.cpp"), made)
    return made if runs(command, compiler, folder) and Path(made).exists() else ""


def flag_choices(family: Family, march: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the sets of flags to try, best first: not every compiler knows ``native``.

    Args:
        family: What the compiler is like.
        march: What says which processor it is, where that is not ``native``.
    """
    openmp = (*family.flags, *system_flags(), *family.openmp)
    if family.calls == "kmp":
        # after the compiler's own headers: it may have come without omp.h
        openmp = (*openmp, "-idirafter", str(_OPENMP))
    if march:
        return [(*openmp, *march)]
    choices = [(*openmp, "-march=native"), (*openmp, "-mcpu=native"), openmp]
    if "avx512f" in features():
        choices.insert(0, (*openmp, "-march=native", "-mprefer-vector-width=512"))
    return choices


def builds(compiler: Compiler) -> bool:
    """Say whether a compiler turns a small OpenMP kernel into a shared object."""
    with scratch() as folder:
        Path(folder, "probe.cpp").write_text(PROBE_TEXT)
        command = compiler.command("probe.cpp", "probe.so", plain=True)
        return runs(command, compiler, folder) and Path(folder, "probe.so").exists()


def runs(command: list[str], compiler: Compiler, folder: str) -> bool:
    """Run a compiler in a folder and say whether it ended well.

    Raises:
        TimeoutError: It does not answer.
    """
    environment = {**os.environ, **compiler.environment(folder)}
    seconds = ZIG_SECONDS if compiler.family == "zig" else PROBE_SECONDS
    try:
        return run(command, folder, environment, seconds)[0] == 0
    except TimeoutError:
        raise
    except OSError:
        return False


def first_line(executable: str) -> str:
    """Return the first line of what a compiler says of its version; empty if it says nothing."""
    try:
        return _version(executable)
    except TimeoutError:
        return ""


def _version(executable: str) -> str:
    """Return the same. Raises TimeoutError where there is no answer."""
    command = [executable, "version"] if is_zig(executable) else [executable, "--version"]
    try:
        _, output = run(command, None, os.environ, VERSION_SECONDS)
    except TimeoutError:
        raise
    except OSError:
        return ""
    line = output.partition("\n")[0].strip()
    return f"zig {line}" if is_zig(executable) and line else line


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
