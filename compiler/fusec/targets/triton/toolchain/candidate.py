"""A Triton file in the process that is thrown away: see ``verify.child`` and ``device_worker``."""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
from collections.abc import Mapping, Sequence
from typing import Any

from fusec.target_api.base import Placed


class TritonCandidate:
    """A file's ``launch``, compiled by Triton for a GPU."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.namespace = load_file(request["text"], request["file"])
        self.entry = request["entry"]
        self.checks: Sequence[str] = request["checks"]

    def __call__(self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int) -> int:
        """Start it once."""
        tensors = [argument.tensor() for argument in arguments]
        self.namespace[self.entry](*tensors, *sizes)
        return 0

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return the line of the file that Triton refuses to compile, and why."""
        from fusec.targets.triton.toolchain.load import compile_error

        with contextlib.suppress(Exception):
            found = compile_error(error, self.namespace, self.namespace["__file__"])
            for diagnostic in found.diagnostics:
                return {"line": diagnostic.line, "message": diagnostic.message}
        return {}


class Interpreted(TritonCandidate):
    """The same in the interpreter that all else here uses: Triton's own is wrong in places."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__(request)
        from fusec.targets.triton.toolchain.interpret import interpret_functions

        interpret_functions(self.namespace)
        self.sample: Sequence[int] | None = request.get("sample")

    def __call__(self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int) -> int:
        """Run once; return the number of a check that failed."""
        from fusec.targets.triton.toolchain.interpret import failed_check, interpreting
        from fusec.targets.triton.toolchain.sampling import some_programs

        try:
            with interpreting(), some_programs(*self.sample or (0, 0)):
                super().__call__(arguments, sizes, threads)
        except Exception as error:
            message = failed_check(error) or ""
            for number, check in enumerate(self.checks, start=1):
                if check in message:
                    return number
            raise
        return 0

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return nothing: the traceback says where it failed."""
        return {}


def load_file(text: str, name: str) -> dict[str, Any]:
    """Execute a Triton kernel file and return its namespace.

    Triton reads a kernel's source back through its file.  There is none: the text is put where
    Python looks for it first, and with no time of change, so that nothing checks for the file.
    """
    path = os.path.join(os.sep, "fusec", hashlib.sha256(text.encode()).hexdigest()[:16], name)
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    namespace: dict[str, Any] = {"__name__": "fusec_candidate", "__file__": path}
    exec(compile(text, path, "exec"), namespace)
    return namespace


def prepare(request: Mapping[str, Any]) -> TritonCandidate:
    """Execute the file that a request holds."""
    return (Interpreted if request["device"] == "cpu" else TritonCandidate)(request)


__all__ = ["load_file", "prepare"]
