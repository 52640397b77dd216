"""Build and load C++ kernels.

``build`` turns a kernel's text into a shared object through the store on disk: the same text,
for the same compiler, flags and machine, is compiled once.  ``build_many`` does it side by side.
``load`` maps a shared object, once a process, and returns one of its functions.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusec.cache import MANIFEST, Store, default_store, scratch
from fusec.errors import (
    BuildTimeout,
    CannotBuild,
    CompileError,
    CompilerNotFound,
    Diagnostic,
    FusecError,
    LoadError,
)
from fusec.freezing import refuse_if_frozen
from fusec.helper_block import with_helpers
from fusec.systems import this_system
from fusec.targets.cpp.toolchain.compiler import PLAIN_HEADERS, Compiler, find_compiler, machine
from fusec.targets.cpp.toolchain.listen import listen

__all__ = ["Compiler", "build", "build_many", "find_compiler", "load", "try_build_many"]

SOURCE = "kernel.cpp"
LIBRARY = this_system().library
TIME_LIMIT = 60.0
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)", re.MULTILINE)
DIAGNOSTIC = re.compile(
    rf"^{re.escape(SOURCE)}:(\d+):(?:(\d+):)? (?:fatal )?(error|warning|note): (.*)$",
    re.MULTILINE,
)


@dataclass
class Children:
    """The compilers that a build has running, so that an interrupt can end them all."""

    stopped: bool = False
    running: set[subprocess.Popen[str]] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(
        self, command: Sequence[str], folder: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a compiler in a process group of its own, with its scratch files in ``folder``."""
        with self.lock:
            if self.stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C", "TMPDIR": folder, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                **this_system().apart(),
            )
            self.running.add(process)
        this_system().follow_priority(process.pid)
        return process

    def finish(self, process: subprocess.Popen[str]) -> None:
        """End a compiler if it still runs, with what it started, and forget it."""
        with self.lock:
            self.running.discard(process)
        if process.poll() is None:
            this_system().end_tree(process)
            process.wait()

    def stop(self) -> None:
        """End every compiler and let no further one start."""
        with self.lock:
            self.stopped = True
            for process in self.running:
                this_system().end_tree(process)


def build(
    text: str,
    *,
    extra_flags: Sequence[str] = (),
    kind: str = "cpp",
    time_limit: float = TIME_LIMIT,
    store: Store | None = None,
    children: Children | None = None,
) -> Path:
    """Build a kernel's text and return the path of its shared object.

    Args:
        text: The whole C++ file.
        extra_flags: Flags after the usual ones.
        kind: The namespace in the store: texts that a user edited have one of their own.
        time_limit: Seconds for the compiler.
        store: Where to look and to keep; the process's default store if None.
        children: Has the compiler while it runs, so that somebody else ends it at an interrupt.
            Who builds many texts so tells the store of it at the end.

    Raises:
        CompileError: The text does not compile.
        BuildTimeout: The compiler takes too long.
        CompilerNotFound: There is none.
    """
    if children is None:
        return build_many(
            [text], extra_flags=extra_flags, kind=kind, time_limit=time_limit, store=store
        )[0]
    store, compiler = store or default_store(), find_compiler()
    key = build_key(compiler, text, extra_flags)
    entry = store.get(kind, key)
    if entry is not None:
        return entry.path(LIBRARY)
    built = build_missing(
        compiler,
        text,
        key,
        store=store,
        children=children,
        extra_flags=extra_flags,
        kind=kind,
        time_limit=time_limit,
    )
    if isinstance(built, FusecError):
        raise built
    return built


def build_many(
    texts: Sequence[str],
    *,
    extra_flags: Sequence[str] = (),
    kind: str = "cpp",
    time_limit: float = TIME_LIMIT,
    store: Store | None = None,
) -> list[Path]:
    """Build several kernels side by side; equal texts once. Arguments as for ``build``.

    All are built before the first failure, in the order of ``texts``, is raised, so that the
    good ones are in the store by then.
    """
    results = try_build_many(
        texts, extra_flags=extra_flags, kind=kind, time_limit=time_limit, store=store
    )
    paths = []
    for result in results:
        if isinstance(result, FusecError):
            raise result
        paths.append(result)
    return paths


def try_build_many(
    texts: Sequence[str],
    *,
    extra_flags: Sequence[str] = (),
    kind: str = "cpp",
    time_limit: float = TIME_LIMIT,
    store: Store | None = None,
) -> list[Path | FusecError]:
    """Build several kernels side by side; a path, or what went wrong, for each.

    Raises:
        CompilerNotFound: There is none; what is stored depends on it too.
    """
    store = store or default_store()
    compiler = find_compiler()
    wanted = dict.fromkeys(texts)
    keys = {text: build_key(compiler, text, extra_flags) for text in wanted}
    results: dict[str, Path | FusecError] = {}
    for text in wanted:
        entry = store.get(kind, keys[text])
        if entry is not None:
            results[text] = entry.path(LIBRARY)
    missing = [text for text in wanted if text not in results]
    children = Children()

    def job(text: str) -> Path | FusecError:
        return build_missing(
            compiler,
            text,
            keys[text],
            store=store,
            children=children,
            extra_flags=extra_flags,
            kind=kind,
            time_limit=time_limit,
        )

    if missing:
        # In threads even where there is one: an interrupt, which only the main thread gets, then
        # never falls between the start of a compiler and its entry in the list of children.
        pool = ThreadPoolExecutor(min(len(missing), os.cpu_count() or 1), "fusec-build")
        try:
            results.update(zip(missing, pool.map(job, missing), strict=True))
        finally:
            children.stop()
            pool.shutdown(cancel_futures=True)
        store.give_notice()
    return [results[text] for text in texts]


def build_missing(
    compiler: Compiler,
    text: str,
    key: Mapping[str, Any],
    *,
    store: Store,
    children: Children,
    extra_flags: Sequence[str] = (),
    kind: str = "cpp",
    time_limit: float = TIME_LIMIT,
) -> Path | FusecError:
    """Build one text that was not in the store, unless another process is quicker.

    Args:
        compiler: What to build it with.
        text: The whole C++ file.
        key: What ``build_key`` returned for it.
        store: Where to keep it.
        children: Has the compiler while it runs.
        extra_flags: Flags after the usual ones.
        kind: The namespace in the store.
        time_limit: Seconds for the compiler, and to wait for another process.
    """
    with store.lock(kind, key, timeout=time_limit, stopped=lambda: children.stopped):
        entry = store.get(kind, key)
        if entry is None:
            try:
                library = compile_text(compiler, text, extra_flags, time_limit, children)
            except FusecError as error:
                return error
            files: dict[str, bytes | Path] = {SOURCE: text.encode(), LIBRARY: library}
            try:
                entry = store.put(kind, key, files)
            except OSError as error:
                return CannotBuild(error)
    return entry.path(LIBRARY)


def needs_torchs_library() -> None:
    """Refuse to build what is linked with torch where the compiler has another C++ library.

    Raises:
        NotImplementedError: It has: the two lay out strings and containers in their own ways.
    """
    found = find_compiler().library
    if this_system().torchs_library != found:
        wanted = this_system().torchs_library
        raise NotImplementedError(f"torch is built with {wanted}, this compiler brings {found}")


def build_key(compiler: Compiler, text: str, extra_flags: Sequence[str] = ()) -> dict[str, Any]:
    """Return all that a built kernel depends on."""
    return {
        "text": hashlib.sha256(text.encode()).hexdigest(),
        "compiler": compiler.path,
        "version": compiler.version,
        "flags": [*compiler.flags, *extra_flags],
        "runtime": compiler.runtime,
        "entry": compiler.entry,
        "machine": machine(),
    }


def compile_text(
    compiler: Compiler,
    text: str,
    extra_flags: Sequence[str],
    time_limit: float,
    children: Children,
) -> bytes:
    """Run the compiler and return the shared object.

    Raises:
        CompileError: It refused the text.
        BuildTimeout: It took too long.
        CompilerNotFound: It is no longer there.
        CannotBuild: Its files cannot be written.
        FrozenMiss: Nothing may be compiled.
    """
    refuse_if_frozen("a C++ kernel that the store has not")
    try:
        return _compile(compiler, text, extra_flags, time_limit, children)
    except FusecError:
        raise  # one of them is a TimeoutError, which is an OSError
    except OSError as error:
        if error.filename == compiler.path:
            raise CompilerNotFound(
                f"{compiler.path} cannot be run any more: {error.strerror}",
                "install it again, or set CXX to another compiler",
            ) from None
        raise CannotBuild(error) from None


def _compile(
    compiler: Compiler,
    text: str,
    extra_flags: Sequence[str],
    time_limit: float,
    children: Children,
) -> bytes:
    text = with_helpers(text, SOURCE)
    plain = all(name in PLAIN_HEADERS for name in INCLUDE.findall(text))
    with scratch() as folder:
        Path(folder, SOURCE).write_text(compiler.facts.text(text), encoding="utf-8")
        # Names relative to the folder: neither the messages nor the library hold its path.
        command = compiler.command(SOURCE, LIBRARY, *extra_flags, plain=plain)
        process = children.start(command, folder, compiler.environment(folder))
        try:
            output = listen(process, time_limit)
        except subprocess.TimeoutExpired:
            raise BuildTimeout(time_limit) from None
        finally:
            children.finish(process)
        if children.stopped:
            raise KeyboardInterrupt
        library = Path(folder, LIBRARY)
        if process.returncode < 0:
            number = -process.returncode
            said = signal.strsignal(number) or "unknown"
            output = f"error: the compiler was ended by signal {number} ({said})\n{output}"
        if process.returncode != 0 or not library.exists():
            raise CompileError(parse_diagnostics(output), output)
        return library.read_bytes()


def parse_diagnostics(output: str) -> tuple[Diagnostic, ...]:
    """Return what a compiler says about the kernel file's own lines."""
    return tuple(
        Diagnostic(int(line), int(column or 0), severity, message)
        for line, column, severity, message in DIAGNOSTIC.findall(output)
    )


# --- loading ---------------------------------------------------------------------------------

# Every loaded library by device and inode: a mapping keeps its inode from being used again.
_loaded: dict[tuple[int, int], ctypes.CDLL] = {}
_load_lock = threading.Lock()


def load(
    path: Path,
    symbol: str,
    *,
    argtypes: Sequence[Any] | None = None,
    restype: Any = ctypes.c_int,
) -> Any:
    """Load a shared object, once a process, and return one of its functions.

    Args:
        path: A path that ``build`` returned.
        symbol: The function's name.
        argtypes: ctypes of its parameters, as ctypes wants them; unchecked if None.
        restype: ctype of its result; None for void.

    Raises:
        LoadError: The file is not what was stored, cannot be mapped, or lacks the function.
    """
    # torch first: a kernel takes the OpenMP runtime that is already there.
    import torch  # noqa: F401

    library = load_library(path)
    try:
        # Indexing gives a new function object: its types are this caller's own.
        function = library[symbol]
    except AttributeError:
        raise LoadError(
            f"the kernel has no function {symbol!r}",
            f'declare it as: extern "C" int {symbol}(...)',
        ) from None
    function.restype = restype
    if argtypes is not None:
        function.argtypes = list(argtypes)
    return function


def load_library(path: Path) -> ctypes.CDLL:
    """Map a shared object whose file is this user's and is what the store wrote."""
    try:
        descriptor = os.open(path, this_system().read_flags)
    except OSError as error:
        raise LoadError(f"cannot open {path.name}: {error.strerror}", "build it again") from None
    with os.fdopen(descriptor, "rb") as file, _load_lock:
        status = os.fstat(file.fileno())
        identity = (status.st_dev, status.st_ino)
        if identity in _loaded:
            return _loaded[identity]
        if not stat.S_ISREG(status.st_mode) or not this_system().is_own(status):
            raise LoadError(f"{path.name} is not a regular file of this user")
        recorded = recorded_hash(path)
        if recorded and hashlib.file_digest(file, "sha256").hexdigest() != recorded:
            raise LoadError(f"{path.name} is not what was stored", "build it again")
        try:
            library = this_system().load_library(path, file.fileno())
        except OSError as error:
            raise LoadError(f"cannot load {path.name}: {error}") from None
        _loaded[identity] = library
        return library


def recorded_hash(path: Path) -> str:
    """Return what the manifest beside a stored file says its hash is; empty if there is none."""
    try:
        manifest = json.loads((path.parent / MANIFEST).read_bytes())
        return str(manifest["files"][path.name]["sha256"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"cannot check {path.name}: {error}", "build it again") from None
