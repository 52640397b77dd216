"""A Triton file in the process that is thrown away: see ``verify.child`` and ``device_worker``."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import linecache
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusec.target_api.worker import Placed, Tell

if TYPE_CHECKING:
    import torch

# Seconds that Triton may take over one kernel.
_COMPILING = 60.0
# The most that a program can have, on every GPU so far.
_THREADS = 1024


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
        if any(tensor.requires_grad for tensor in tensors):
            raise RuntimeError("it asks for gradients of a tensor that it was given")
        return 0

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return the line of the file that Triton refuses to compile, and why."""
        from triton.runtime.errors import OutOfResources

        from fusec.targets.triton.toolchain.load import compile_error

        if isinstance(error, OutOfResources):
            return {
                "problem": "resources",
                "what": error.name,
                "wanted": error.required,
                "there": error.limit,
            }
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
        from fusec.targets.triton.toolchain.interpreted.device_rules import device_rules
        from fusec.targets.triton.toolchain.interpreted.sampling import some_programs

        try:
            with interpreting(), some_programs(*self.sample or (0, 0)), device_rules():
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
    namespace = _namespace(text, name)
    exec(compile(text, namespace["__file__"], "exec"), namespace)
    return namespace


def _namespace(text: str, name: str) -> dict[str, Any]:
    path = os.path.join(os.sep, "fusec", hashlib.sha256(text.encode()).hexdigest()[:16], name)
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    return {"__name__": "fusec_candidate", "__file__": path}


def rehearse(
    request: Mapping[str, Any], tensors: Sequence[torch.Tensor], sizes: Sequence[int]
) -> None:
    """Run a file's own Python, and put what it would start through Triton's front end.

    Args:
        request: Its ``text``, its ``file``'s name, its ``entry``; the ``device``'s properties, None
            where there is none.
        tensors: What to start it with; they have no memory.
        sizes: The symbolic sizes.

    Raises:
        CompileError: A line of it fails, or Triton refuses a kernel.
    """
    from fusec.targets.triton.toolchain.cross_compile import check_starts
    from fusec.targets.triton.toolchain.device_stand_in import device_stand_in
    from fusec.targets.triton.toolchain.load import execute, lines_of
    from fusec.targets.triton.toolchain.starts import starts_of

    namespace = _namespace(request["text"], request["file"])
    path, device = namespace["__file__"], request["device"]
    with device_stand_in(device) if device else contextlib.nullcontext():
        execute(request["text"], path, namespace)
        with lines_of(path):
            starts = starts_of(namespace, request["entry"], tensors, sizes)
    check_starts(namespace, path, starts)


def announce(tell: Tell) -> None:
    """Have Triton say when it compiles, and refuse what cannot start before that takes long."""
    from triton import knobs

    def watch(backend: Any, stages: dict[str, Any], *rest: Any) -> None:
        tell("compile", _COMPILING)
        # Machine code of what cannot start takes the longest.
        last = list(stages)[-1]
        for name, stage in stages.items():
            stages[name] = functools.partial(after, name == last, stage)

    def after(last: bool, stage: Any, source: Any, metadata: dict[str, Any]) -> Any:
        made = stage(source, metadata)
        require_resources(metadata, _shared_memory())
        if last:
            tell("run", 0.0)
        return made

    knobs.runtime.add_stages_inspection_hook = watch


def _shared_memory() -> int:
    """Return the bytes of shared memory that a program of the current GPU can have."""
    from triton.compiler.compiler import max_shared_mem
    from triton.runtime import driver

    return int(max_shared_mem(driver.active.get_current_device()))


def require_resources(metadata: Mapping[str, Any], shared: int) -> None:
    """See that a kernel, as far as it is compiled, can start.

    Args:
        metadata: Triton's, as far as it is filled.
        shared: Bytes of shared memory that a program can have.

    Raises:
        OutOfResources: It cannot.
    """
    from triton.runtime.errors import OutOfResources

    wanted = metadata.get("shared") or 0
    if wanted > shared:
        raise OutOfResources(wanted, shared, "shared memory")
    threads = metadata["num_warps"] * metadata["target"].warp_size
    if threads > _THREADS:
        raise OutOfResources(threads, _THREADS, "threads")


def prepare(request: Mapping[str, Any]) -> TritonCandidate:
    """Execute the file that a request holds."""
    return (Interpreted if request["device"] == "cpu" else TritonCandidate)(request)


__all__ = ["announce", "load_file", "prepare", "rehearse", "require_resources"]
