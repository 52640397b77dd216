"""Build C++ texts: kernels, and what calls them.

``build`` turns a kernel's text into a shared object through the store on disk: the same text,
for the same compiler, flags and machine, is compiled once.  ``fusec.build.queue`` does it side by
side.
"""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fusec.cache import CacheStore, default_store, scratch
from fusec.errors import (
    BuildTimeout,
    CannotBuild,
    CompileError,
    CompilerNotFound,
    Diagnostic,
    FusecError,
)
from fusec.freezing import refuse_if_frozen
from fusec.helper_block import with_helpers
from fusec.systems import this_system
from fusec.toolchain.children import Children, given_children
from fusec.toolchain.compiler import PLAIN_HEADERS, Compiler, find_compiler, machine
from fusec.toolchain.listen import listen

__all__ = ["Compiler", "build", "find_compiler"]

SOURCE = "kernel.cpp"
LIBRARY = this_system().library
TIME_LIMIT = 60.0
# Seconds of a processor's for what somebody typed: templates and macros may have no end, either.
EDIT_PROCESSOR_LIMIT = 20
# zig builds its C++ library first, once a machine, and begins again where it was ended.
ZIG_TIME_LIMIT = 400.0
BUILT = "fusec_cpp_library"  # a file beside it that says so
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]+)", re.MULTILINE)
DIAGNOSTIC = re.compile(
    rf"^{re.escape(SOURCE)}:(\d+):(?:(\d+):)? (?:fatal )?(error|warning|note): (.*)$",
    re.MULTILINE,
)


def build(
    text: str,
    *,
    extra_flags: Sequence[str] = (),
    kind: str = "library",
    time_limit: float = TIME_LIMIT,
    processor_limit: int = 0,
    store: CacheStore | None = None,
    children: Children | None = None,
) -> Path:
    """Build a kernel's text and return the path of its shared object.

    Args:
        text: The whole C++ file.
        extra_flags: Flags after the usual ones.
        kind: The namespace in the store: texts that a user edited have one of their own.
        time_limit: Seconds for the compiler.
        processor_limit: Seconds of a processor's for each of its processes; 0 for no limit.
        store: Where to look and to keep; the process's default store if None.
        children: Has the compiler while it runs, so that somebody else ends it at an interrupt.
            Who builds many texts so tells the store of it at the end.

    Raises:
        CompileError: The text does not compile.
        BuildTimeout: The compiler takes too long.
        CompilerNotFound: There is none.
    """
    store, compiler = store or default_store(), find_compiler()
    extra_flags = (*extra_flags, *compiler.facts.flags_of(text))
    key = build_key(compiler, text, extra_flags)
    entry = store.get(kind, key)
    if entry is not None:
        return entry.path(LIBRARY)
    running = children or given_children() or Children()

    def job() -> Path | FusecError:
        return build_missing(
            compiler,
            text,
            key,
            store=store,
            children=running,
            extra_flags=extra_flags,
            kind=kind,
            time_limit=time_limit,
            processor_limit=processor_limit,
        )

    if running is not children and running is not given_children():
        built = _interruptible(job, running, store)
    else:
        built = job()
        if children is None:
            store.give_notice()
    if isinstance(built, FusecError):
        raise built
    return built


def _interruptible(
    job: Callable[[], Path | FusecError], children: Children, store: CacheStore
) -> Path | FusecError:
    """Do a job in a thread.

    An interrupt, which only the main thread gets, then never falls between the start of a compiler
    and its entry in the list of children.
    """
    pool = ThreadPoolExecutor(1, "fusec-build")
    try:
        built = pool.submit(job).result()
    finally:
        children.stop()
        pool.shutdown(cancel_futures=True)
    store.give_notice()
    return built


def build_missing(
    compiler: Compiler,
    text: str,
    key: Mapping[str, Any],
    *,
    store: CacheStore,
    children: Children,
    extra_flags: Sequence[str] = (),
    kind: str = "library",
    time_limit: float = TIME_LIMIT,
    processor_limit: int = 0,
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
        processor_limit: Seconds of a processor's for each of its processes; 0 for no limit.
    """
    with store.lock(kind, key, timeout=time_limit, stopped=lambda: children.stopped):
        entry = store.get(kind, key)
        if entry is None:
            try:
                library = compile_text(
                    compiler, text, extra_flags, time_limit, children, processor_limit
                )
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
        "text": hashlib.sha256(compiler.facts.text(text).encode()).hexdigest(),
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
    processor_limit: int = 0,
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
        return _compile(compiler, text, extra_flags, time_limit, children, processor_limit)
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
    processor_limit: int = 0,
) -> bytes:
    text = with_helpers(text, SOURCE)
    plain = all(name in PLAIN_HEADERS for name in INCLUDE.findall(text))
    with scratch() as folder:
        Path(folder, SOURCE).write_text(compiler.facts.text(text), encoding="utf-8")
        # Names relative to the folder: neither the messages nor the library hold its path.
        command = compiler.command(SOURCE, LIBRARY, *extra_flags, plain=plain)
        environment = compiler.environment(folder)
        kept = environment.get("ZIG_GLOBAL_CACHE_DIR")
        first = Path(kept, BUILT) if kept and not plain else None
        if first is not None and not first.exists():
            time_limit, processor_limit = max(time_limit, ZIG_TIME_LIMIT), 0
        process = children.start(command, folder, environment, processor_limit)
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
        if first is not None:
            first.touch()
        return library.read_bytes()


def parse_diagnostics(output: str) -> tuple[Diagnostic, ...]:
    """Return what a compiler says about the kernel file's own lines."""
    return tuple(
        Diagnostic(int(line), int(column or 0), severity, message)
        for line, column, severity, message in DIAGNOSTIC.findall(output)
    )
