"""Kernel files of Triton as modules, and what is said of those that are none.

A kernel file is executed from a real file on disk, because Triton reads a function's source back
from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import tempfile
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusec.errors import CompileError, Diagnostic
from fusec.targets.triton.toolchain.interpret import line_of

FILE = "kernel.py"


def load(text: str) -> tuple[dict[str, Any], str]:
    """Execute a kernel file; return its globals and the path of the file.

    Raises:
        CompileError: It is no Python, or fails while its functions are defined.
    """
    import triton  # noqa: F401  (slow the first time: not part of anybody's kernel)

    path = str(_keep(text))
    linecache.checkcache(path)
    linecache.getlines(path)
    module = types.ModuleType(f"fusec_kernel_{Path(path).parent.name[:16]}")
    module.__file__ = path
    execute(text, path, module.__dict__)
    return module.__dict__, path


def execute(text: str, path: str, namespace: dict[str, Any]) -> None:
    """Execute a kernel file in a namespace.

    Raises:
        CompileError: It is no Python, or fails while its functions are defined.
    """
    try:
        code = compile(text, path, "exec")
    except SyntaxError as error:
        diagnostic = Diagnostic(error.lineno or 1, error.offset or 0, "error", error.msg)
        raise CompileError([diagnostic], str(error)) from error
    with lines_of(path):
        exec(code, namespace)


@contextlib.contextmanager
def lines_of(path: str) -> Iterator[None]:
    """Make what a file's own lines raise an error of its text."""
    try:
        yield
    except Exception as error:
        line = line_of(error, path)
        if line is None:
            raise
        words = f"{type(error).__name__}: {error}"
        raise CompileError([Diagnostic(line, 0, "error", words)], words) from error


_folder: tempfile.TemporaryDirectory[str] | None = None
_lock = threading.RLock()


def _key(text: str) -> dict[str, str]:
    return {"text": hashlib.sha256(text.encode()).hexdigest()}


def is_kept(text: str) -> bool:
    """Whether a kernel file has been loaded before, by this process or another."""
    with contextlib.suppress(ImportError):
        from fusec.cache import default_store

        return default_store().get("triton", _key(text)) is not None
    return False


def _keep(text: str) -> Path:
    """Write a kernel file where it stays, and return its path."""
    global _folder
    try:
        from fusec.cache import default_store

        store, key = default_store(), _key(text)
        entry = store.get("triton", key) or store.put("triton", key, {FILE: text.encode()})
        return entry.path(FILE)
    except ImportError:  # a machine with torch and Triton alone
        with _lock:
            _folder = _folder or tempfile.TemporaryDirectory(prefix="fusec-")
            folder = Path(_folder.name, hashlib.sha256(text.encode()).hexdigest())
            folder.mkdir(exist_ok=True)
            (folder / FILE).write_text(text)
            return folder / FILE


def is_triton_error(error: BaseException) -> bool:
    """Whether Triton says something of a kernel, rather than torch or the kernel file itself."""
    return any(c.__module__.startswith("triton.") for c in type(error).__mro__)


def is_compiler_failure(error: BaseException) -> bool:
    """Whether a pass of Triton's compiler failed on a kernel that its language allows.

    Triton has no error of its own for it, only these words.
    """
    return isinstance(error, RuntimeError) and "PassManager::run failed" in str(error)


def compile_error(error: BaseException, namespace: dict[str, Any], path: str) -> CompileError:
    """Return Triton's complaint with the line of the file that it is about."""
    from triton.compiler.errors import CompilationError

    functions = [f for f in namespace.values() if hasattr(f, "raw_src") and hasattr(f, "src")]
    found: Diagnostic | None = None
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, CompilationError):
            owner = next((f for f in functions if f.src == cause.src), None)
            if owner is not None and hasattr(cause.node, "lineno"):
                head = next(
                    i for i, text in enumerate(owner.raw_src) if text.lstrip().startswith("def ")
                )
                line = owner.starting_line_number + head + cause.node.lineno - 1
                words = _words(cause, owner.raw_src[head + cause.node.lineno - 1])
                found = Diagnostic(line, cause.node.col_offset + 1, "error", words.strip())
        cause = cause.__cause__
    if found is not None:
        return CompileError([found], str(error))
    return CompileError([], f"{type(error).__name__}: {error}")


def _words(error: Any, line: str) -> str:
    """Return what Triton says of a line of a kernel."""
    inner = error.__cause__
    if isinstance(inner, KeyError):  # the math library's own table, looked up without a check
        return f"no form of this function takes {inner}: {line.strip()}"
    return str(error.error_message or str(inner or error).splitlines()[-1])


__all__ = [
    "FILE",
    "compile_error",
    "execute",
    "is_kept",
    "is_triton_error",
    "lines_of",
    "load",
]
