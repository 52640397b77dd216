"""Triton kernels as something to call.

On CUDA tensors a kernel file runs as it is; on CPU tensors it runs in Triton's interpreter
(``triton_interpret``), which changes nothing for real Triton in the same process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusec.devices import is_gpu
from fusec.errors import CompileError, Diagnostic
from fusec.kernel_source import Runnable, Signature
from fusec.memory.readable import require
from fusec.target_api.launches import GpuUse, LaunchRecord
from fusec.targets.triton.text.file import WARPS
from fusec.targets.triton.toolchain import pool as triton_pool
from fusec.targets.triton.toolchain.cross_compile import check
from fusec.targets.triton.toolchain.interpret import (
    compiling,
    failed_check,
    interpret_functions,
    interpreting,
    line_of,
)
from fusec.targets.triton.toolchain.launch import Launcher, with_launchers
from fusec.targets.triton.toolchain.launch_records import only_launches, record_of, recording
from fusec.targets.triton.toolchain.load import (
    compile_error,
    is_compiler_failure,
    is_triton_error,
    load,
)
from fusec.targets.triton.toolchain.resources import gpu_use
from fusec.targets.triton.toolchain.starts import starts_of

_log = logging.getLogger(__name__)
OTHER_WARPS = (4, 8, 2, 16)  # tried in turn where Triton's compiler fails


class TritonRunnable:
    """A loaded kernel file; call it with tensors and sizes.

    Attributes:
        path: The file that it was loaded from.
        namespace: The module's globals.
        interpreted: Whether it runs in Triton's interpreter.
        starter: The name of the function that starts its kernels.
    """

    def __init__(
        self, namespace: dict[str, Any], path: str, signature: Signature, entry: str, cpu: bool
    ) -> None:
        self.path = path
        self.namespace = namespace
        self.signature = signature
        self.interpreted = cpu
        self.starter = entry
        self._launch: Callable[..., None] = namespace[entry]
        if not cpu:
            self._launch = with_launchers(self._launch)
        self._compiled = False

    def __call__(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Run once.

        Raises:
            CompileError: Triton refuses the text (found at the first launch on a GPU).
            IndexError: A run-time check of the kernel failed (in the interpreter).
            NoMemory: A tensor's memory is not there.
            Unreadable: It is no plain tensor.
        """
        for argument, tensor in zip(self.signature.arguments, tensors, strict=True):
            require(tensor, argument.name)
        if self.interpreted:
            self._interpret(tensors, sizes)
        elif self._compiled:
            self._run(tensors, sizes)
        else:
            triton_pool.wait(self.path)
            with compiling():
                self._run(tensors, sizes)
            self._compiled = True

    @property
    def entry(self) -> Callable[..., None] | None:
        """The file's own function that starts the kernels; None in the interpreter."""
        return None if self.interpreted else self._launch

    def compiled(self) -> tuple[Any, ...]:
        """Return what Triton compiled for the launches so far, function by function.

        Each has ``n_regs``, ``n_spills``, ``metadata`` and ``asm``; there is nothing where the
        kernel runs in the interpreter.
        """
        if self.interpreted:
            return ()
        functions = getattr(self._launch, "__globals__", {}).values()
        launchers = [each for each in functions if isinstance(each, Launcher)]
        return tuple(kernel for launcher in launchers for kernel in launcher.compiled)

    def recorded(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> LaunchRecord | None:
        """Run once; return all that it did, None where that cannot be repeated without Python."""
        with recording() as launches:
            self(tensors, sizes)
        plain = self.entry is not None and only_launches(self.entry)
        return record_of(launches, tensors) if plain else None

    def gpu_use(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> GpuUse | None:
        """Return what it takes of the GPU for such tensors; None where it has not been compiled."""
        compiled = self.compiled()
        if not compiled:
            return None
        starts = starts_of(self.namespace, self.starter, tensors, sizes)
        return gpu_use(starts, compiled)

    @property
    def direct(self) -> Callable[..., None] | None:
        """What host programs call, with tensors and then sizes; None in the interpreter."""
        return None if self.interpreted else self._direct

    def _direct(self, *args: Any) -> None:
        if self._compiled and args[0].get_device() == torch.cuda.current_device():
            self._launch(*args)
        else:
            count = len(self.signature.arguments)
            self(args[:count], args[count:])

    def _run(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        try:
            self._start(tensors, sizes)
        except Exception as error:
            failed = is_compiler_failure(error)
            if failed and not self._compiled and self._runs_with_other_warps(tensors, sizes):
                return
            if failed or is_triton_error(error):
                raise compile_error(error, self.namespace, self.path) from error
            raise

    def _start(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        device = tensors[0].device
        if device.index not in (None, torch.cuda.current_device()):
            with torch.cuda.device(device):
                self._launch(*tensors, *sizes)
        else:
            self._launch(*tensors, *sizes)

    def _runs_with_other_warps(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> bool:
        """Run with other numbers of warps, where Triton's compiler failed with the tunable's own.

        Triton 3.6 takes the wrong turn with the layouts of some kernels of one or two warps whose
        values are rounded to half precision and used further on.
        """
        if not isinstance(self._launch, types.FunctionType):
            return False
        values = self._launch.__globals__
        first = values.get(WARPS)
        started = [n for n in self._launch.__code__.co_names if isinstance(values.get(n), Launcher)]
        updates = any(argument.role == "inout" for argument in self.signature.arguments)
        if first is None or (len(started) > 1 and updates):
            return False  # a kernel that has run already would update twice
        for warps in OTHER_WARPS:
            if warps == first:
                continue
            values[WARPS] = warps
            try:
                self._start(tensors, sizes)
            except Exception as error:
                if not is_compiler_failure(error):
                    values[WARPS] = first
                    raise
            else:
                text = "Triton's compiler fails on %s with NUM_WARPS = %s; it runs with %s"
                _log.warning(text, ", ".join(started) or "a kernel", first, warps)
                return True
        values[WARPS] = first
        return False

    def _interpret(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        try:
            with interpreting():
                self._launch(*tensors, *sizes)
        except Exception as error:
            failure = self.signature.failure(failed_check(error) or "")
            if failure is not None:
                raise failure from error
            line = line_of(error, self.path)
            if line is None or not is_triton_error(error):
                raise
            words = str(error.__cause__ or error)
            raise CompileError([Diagnostic(line, 0, "error", words)], words) from error


def build_triton(text: str, signature: Signature, entry: str = "launch") -> Runnable:
    """Return ``text`` ready to run.

    For CPU tensors the text is also put through Triton's front end, so that what the interpreter
    would let pass is refused where it is written.

    Raises:
        CompileError: The text is no Python, fails when it is executed, lacks ``entry``, or is
            refused by Triton.
    """
    cpu = not any(is_gpu(a.device) for a in signature.arguments) or not torch.cuda.is_available()
    namespace, path = load(text)
    if not callable(namespace.get(entry)):
        line = text.count("\n") + 1
        raise CompileError([Diagnostic(line, 0, "error", f"there is no function {entry}")], "")
    if cpu:
        check(text, signature, entry)
        interpret_functions(namespace)
    return TritonRunnable(namespace, path, signature, entry, cpu)


_lock = threading.Lock()
_prestart: threading.Thread | None = None


def prestart() -> None:
    """Import Triton in the background: the first import takes a noticeable time."""
    global _prestart
    with _lock:
        if _prestart is None:
            _prestart = threading.Thread(target=_import_triton, name="fusec-triton", daemon=True)
            _prestart.start()


def _import_triton() -> None:
    with contextlib.suppress(ImportError):
        import triton.language
        import triton.runtime.interpreter  # noqa: F401


__all__ = ["TritonRunnable", "build_triton", "prestart"]
