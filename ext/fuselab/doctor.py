"""What fused cells need of a machine: what is there, and how to mend what is not.

Each part is looked at by itself, and whatever goes wrong while looking is what was found: this
runs on machines where nothing else does, without torch too.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

_NOTEBOOK = ("ipython", "ipywidgets", "anywidget")
_OLDEST = (3, 11)
_LEAST_DISK = 1 << 30
_NAME_WIDTH = 12
_SIGNS = {"ok": "ok", "without": "-", "lack": "LACKS"}
_KERNEL = """\
#include <stdint.h>
extern "C" int doctor(int64_t* out, int64_t n, int64_t threads)
{
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < n; i++) out[i] = i * i;
    return 0;
}
"""


@dataclass(frozen=True)
class DoctorFinding:
    """One thing that was looked at.

    Attributes:
        part: What was looked at.
        state: ``ok``; ``without``, where something is not there that not everybody needs; or
            ``lack``: fused cells do not run as they should.
        found: What was found.
        mend: What to do about it; empty where there is nothing to be done.
    """

    part: str
    state: Literal["ok", "without", "lack"]
    found: str
    mend: str = ""


def examine() -> list[DoctorFinding]:
    """Look at everything, in the order in which one would mend it."""
    findings: list[DoctorFinding] = []
    for part, look in _PARTS:
        try:
            with warnings.catch_warnings():  # Python 3.10, too, has to understand it
                warnings.simplefilter("ignore")  # what they say is found, too
                findings += look()
        except Exception as error:
            said = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            first = said.strip().partition("\n")[0]
            findings.append(DoctorFinding(part, "lack", first, getattr(error, "hint", "")))
    return findings


def report(findings: list[DoctorFinding], *, as_json: bool = False) -> str:
    """Return the findings as text, or as JSON."""
    if as_json:
        return json.dumps([asdict(each) for each in findings], indent=1)
    lines = []
    for each in findings:
        lines.append(f"{_SIGNS[each.state]:6}{each.part:{_NAME_WIDTH}} {each.found}")
        if each.mend:
            lines.append(f"{'':6}{'':{_NAME_WIDTH}} -> {each.mend}")
    lacks = sum(each.state == "lack" for each in findings)
    lines.append("")
    lines.append(
        "Fused cells run here."
        if not lacks
        else "1 thing is missing (LACKS): do what the arrow under it says."
        if lacks == 1
        else f"{lacks} things are missing (LACKS): do what the arrow under each says."
    )
    return "\n".join(lines)


# -- the parts ----------------------------------------------------------------------------------


def _python() -> Iterator[DoctorFinding]:
    version = platform.python_version()
    said = f"{version}, {platform.python_implementation()} on {platform.platform()}"
    if sys.version_info < _OLDEST:
        least = ".".join(map(str, _OLDEST))
        mend = f"make an environment with Python {least} or later: python{least} -m venv env"
        yield DoctorFinding("Python", "lack", f"{version}, which is too old", mend)
    else:
        yield DoctorFinding("Python", "ok", said)


def _torch() -> Iterator[DoctorFinding]:
    supported = _supported("torch")
    if not _version("torch"):
        yield DoctorFinding("torch", "lack", "not installed", f"pip install 'torch{supported}'")
        return
    try:
        import torch

        from fusec.report import counted
    except Exception as error:  # what is half installed fails in every way
        mend = f"pip install --force-reinstall 'torch{supported}'"
        yield DoctorFinding("torch", "lack", f"it does not import: {error}", mend)
        return
    threads = counted(torch.get_num_threads(), "thread")
    version = str(torch.__version__)
    if not _is_within(version, supported):
        mend = f"pip install 'torch{supported}'"
        yield DoctorFinding("torch", "lack", f"{version}, which is not supported", mend)
    else:
        yield DoctorFinding("torch", "ok", f"{version}, {threads}")


def _triton() -> Iterator[DoctorFinding]:
    version = _version("triton")
    if version:
        try:
            importlib.import_module("triton")
        except Exception as error:  # what is half installed fails in every way
            mend = f"pip install --force-reinstall --no-deps triton=={version}"
            yield DoctorFinding(
                "Triton", "lack", f"{version}, which does not import: {error}", mend
            )
        else:
            yield DoctorFinding("Triton", "ok", version)
    elif platform.system() == "Linux":
        mend = "pip install triton, if kernels are to be made for a GPU"
        yield DoctorFinding("Triton", "without", "not installed", mend)
    else:
        said = f"there is none for {platform.system()}: kernels are made for the CPU"
        yield DoctorFinding("Triton", "without", said)


def _compiler() -> Iterator[DoctorFinding]:
    if not _has_torch():
        yield DoctorFinding("compiler", "without", "not checked: torch comes first")
        return
    from fusec.toolchain.compiler import executables, find_compiler, first_line

    chosen, path = os.environ.get("CXX", ""), os.environ.get("PATH", os.defpath)
    found = find_compiler()
    yield DoctorFinding("compiler", "ok", f"{found.version} ({found.path})")
    seen = {Path(found.path).resolve()}
    for other in executables(chosen, path):
        if Path(other).resolve() in seen:
            continue
        seen.add(Path(other).resolve())
        yield DoctorFinding("compiler", "without", f"also there: {first_line(other)} ({other})")


def _openmp() -> Iterator[DoctorFinding]:
    if not _has_torch():
        return
    import ctypes

    from fusec.errors import FusecError
    from fusec.toolchain.build import build, find_compiler
    from fusec.toolchain.loading import load

    try:
        found = find_compiler()
    except FusecError:
        return  # that has been said
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    run = load(build(_KERNEL), "doctor", argtypes=[pointer, number, number])
    out = (ctypes.c_int64 * 1000)()
    if run(out, 1000, 2) or list(out) != [i * i for i in range(1000)]:
        mend = "set CXX to another compiler"
        yield DoctorFinding("OpenMP", "lack", "a small kernel computes something else", mend)
        return
    whose = f"torch's own: {found.runtime}" if found.runtime else "the compiler's own"
    yield DoctorFinding("OpenMP", "ok", whose + (", called by clang" if found.entry else ""))


def _native() -> Iterator[DoctorFinding]:
    if not _has_torch():
        return
    from fusec.build.python_headers import python_flags
    from fusec.errors import FusecError
    from fusec.toolchain.compiler import find_compiler

    try:
        find_compiler()
    except FusecError:
        said = "not built without a compiler: calls cost more than they need"
        yield DoctorFinding("native part", "without", said)
        return
    try:
        python_flags()
    except (FileNotFoundError, NotImplementedError) as error:
        said = f"calls cost more than they need: {error}"
        yield DoctorFinding("native part", "without", said)
    else:
        yield DoctorFinding("native part", "ok", "can be built: Python.h is there")


def _processor() -> Iterator[DoctorFinding]:
    if not _has_torch():
        yield DoctorFinding("processor", "ok", platform.processor() or platform.machine())
        return
    from fusec.machine import this_machine

    found = this_machine()
    cache = f"{found.last_cache >> 20} MiB of cache"
    yield DoctorFinding(
        "processor", "ok", f"{found.processor}, {found.isa}, {found.cores} cores, {cache}"
    )


def _gpu() -> Iterator[DoctorFinding]:
    if not _has_torch():
        return
    import torch

    if not torch.cuda.is_available():
        yield DoctorFinding("GPU", "without", "none that torch sees: kernels are made for the CPU")
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        memory = f"{facts.total_memory >> 30} GiB"
        kind = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        yield DoctorFinding("GPU", "ok", f"{facts.name}, {memory}, {kind}")


def _packages() -> Iterator[DoctorFinding]:
    """Say which of what this package asks for is missing, as after an install without it."""
    try:
        wanted = importlib.metadata.requires("fuselab") or []
    except importlib.metadata.PackageNotFoundError:
        return  # it runs where it lies
    names = [re.split(r"[^\w.-]", each)[0] for each in wanted if "extra ==" not in each]
    missing = [name for name in names if name not in _NOTEBOOK and not _version(name)]
    if missing:
        said = f"not installed: {', '.join(missing)}"
        yield DoctorFinding("packages", "lack", said, "pip install fuselab")


def _jupyter() -> Iterator[DoctorFinding]:
    needed = {name: _version(name) for name in _NOTEBOOK}
    missing = [name for name, version in needed.items() if not version]
    if missing:
        yield DoctorFinding(
            "notebook", "lack", f"not installed: {', '.join(missing)}", "pip install fuselab"
        )
    else:
        yield DoctorFinding("notebook", "ok", ", ".join(f"{n} {v}" for n, v in needed.items()))
    shown = {name: _version(name) for name in ("jupyterlab", "notebook", "ipykernel")}
    here = [f"{name} {version}" for name, version in shown.items() if version]
    if shown["ipykernel"]:
        yield DoctorFinding("Jupyter", "ok", ", ".join(here))
    else:
        mend = "pip install 'fuselab[lab]', if this Python is to open notebooks"
        yield DoctorFinding("Jupyter", "without", "no ipykernel here", mend)


def _cache() -> Iterator[DoctorFinding]:
    if not _has_torch():
        return
    from fusec.cache import default_folder, default_store, prepare_folder

    problem = prepare_folder(default_folder())
    if problem:
        mend = "set FUSEC_CACHE_DIR to a folder of your own; until then nothing is kept"
        yield DoctorFinding("cache", "lack", problem, mend)
        return
    info = default_store().info()
    entries = sum(info.entries.values())
    said = f"{info.folder}, {entries} entries, {info.size >> 20} of at most {info.limit >> 20} MiB"
    free = shutil.disk_usage(info.folder).free
    if free < _LEAST_DISK:
        mend = "make room, or set FUSEC_CACHE_DIR to a folder on another disk"
        yield DoctorFinding("cache", "lack", f"{said}; {free >> 20} MiB are free on its disk", mend)
    else:
        yield DoctorFinding("cache", "ok", said)


def _permissions() -> Iterator[DoctorFinding]:
    try:
        with tempfile.TemporaryDirectory(prefix="fuselab-") as folder:
            Path(folder, "written").write_bytes(b"written")
    except OSError as error:
        mend = "set TMPDIR to a folder that can be written"
        yield DoctorFinding("permissions", "lack", f"no temporary folder: {error}", mend)
        return
    if not _has_torch():
        yield DoctorFinding("permissions", "ok", f"{tempfile.gettempdir()} can be written")
        return
    from fusec.systems import this_system

    system = this_system()
    if not system.isolates:
        said = "an edit of a kernel is refused: it has no process of its own here yet"
        yield DoctorFinding("permissions", "without", said)
        return
    address = system.reserve(2 * system.page)
    system.open_pages(address, system.page)
    system.release(address, 2 * system.page)
    for end in system.message_pair():
        end.close()
    said = f"{tempfile.gettempdir()} can be written; edits run in a process of their own first"
    yield DoctorFinding("permissions", "ok", said)


_PARTS: tuple[tuple[str, Callable[[], Iterator[DoctorFinding]]], ...] = (
    ("Python", _python),
    ("torch", _torch),
    ("Triton", _triton),
    ("compiler", _compiler),
    ("OpenMP", _openmp),
    ("native part", _native),
    ("processor", _processor),
    ("GPU", _gpu),
    ("packages", _packages),
    ("Jupyter", _jupyter),
    ("cache", _cache),
    ("permissions", _permissions),
)


def _has_torch() -> bool:
    """Whether torch is there and can be imported; ``_torch`` says why not."""
    with contextlib.suppress(Exception):
        importlib.import_module("torch")
        return True
    return False


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _supported(name: str) -> str:
    """Return the versions of a package that this one asks for, as pip writes them."""
    try:
        wanted = importlib.metadata.requires("fuselab") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    for each in wanted:
        found = re.match(r"^([A-Za-z0-9_.-]+)\s*([<>=!~][^;\[]*)?", each)
        if found is not None and found.group(1) == name:
            return (found.group(2) or "").strip().replace(" ", "")
    return ""


def _is_within(version: str, supported: str) -> bool:
    """Whether a version is one that ``>=2.11,<2.16`` allows."""
    here = _numbers(version)
    for bound in filter(None, supported.split(",")):
        sign, number = re.match(r"([<>=!~]+)(.*)", bound).groups()  # type: ignore[union-attr]
        if sign == ">=" and here < _numbers(number):
            return False
        if sign == "<" and here >= _numbers(number):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", version.partition("+")[0])[:2])


__all__ = ["DoctorFinding", "examine", "report"]
