"""Build Triton kernels: load their text, run it, cross-compile it, disassemble it.

A kernel file is executed from a real file on disk, because Triton reads a function's source back
from there.  On CUDA tensors it runs as it is; on CPU tensors it runs in Triton's interpreter
(``triton_interpret``), which changes nothing for real Triton in the same process.
``artifacts`` needs no GPU: it calls the file's own ``launch`` with stand-ins to learn what every
kernel is started with, and compiles for any GPU that Triton knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import linecache
import os
import re
import subprocess
import tempfile
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.errors import CompileError, Diagnostic, FusecError
from fusec.kernel import Runnable, Signature
from fusec.runtime import triton_pool
from fusec.runtime.triton_interpret import (
    compiling,
    failed_check,
    interpret_functions,
    interpreting,
    line_of,
)
from fusec.runtime.triton_launch import with_launchers

KINDS = {
    "cuda": ("ttir", "ttgir", "llir", "ptx", "sass"),
    "hip": ("ttir", "ttgir", "llir", "amdgcn"),
}
ALL_KINDS = ("ttir", "ttgir", "llir", "ptx", "sass", "amdgcn")
SAMPLE_SIZE = 1000  # what a symbolic size is while compiling for a GPU that is not there
FILE = "kernel.py"


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
        """
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
            device = tensors[0].device
            if device.index not in (None, torch.cuda.current_device()):
                with torch.cuda.device(device):
                    self._launch(*tensors, *sizes)
            else:
                self._launch(*tensors, *sizes)
        except Exception as error:
            if _is_triton_error(error):
                raise compile_error(error, self.namespace, self.path) from error
            raise

    def _interpret(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        try:
            with interpreting():
                self._launch(*tensors, *sizes)
        except Exception as error:
            message = failed_check(error)
            if message is not None and any(check in message for check in self.signature.checks):
                raise IndexError(message) from error
            line = line_of(error, self.path)
            if line is None or not _is_triton_error(error):
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
    cpu = not any(a.device == "cuda" for a in signature.arguments) or not torch.cuda.is_available()
    namespace, path = load(text)
    if not callable(namespace.get(entry)):
        line = text.count("\n") + 1
        raise CompileError([Diagnostic(line, 0, "error", f"there is no function {entry}")], "")
    if cpu:
        check(text, signature, entry)
        interpret_functions(namespace)
    return TritonRunnable(namespace, path, signature, entry, cpu)


def load(text: str) -> tuple[dict[str, Any], str]:
    """Execute a kernel file; return its globals and the path of the file.

    Raises:
        CompileError: It is no Python, or fails while its functions are defined.
    """
    import triton  # noqa: F401  (slow the first time: not part of anybody's kernel)

    path = str(_keep(text))
    try:
        code = compile(text, path, "exec")
    except SyntaxError as error:
        diagnostic = Diagnostic(error.lineno or 1, error.offset or 0, "error", error.msg)
        raise CompileError([diagnostic], str(error)) from error
    linecache.checkcache(path)
    linecache.getlines(path)
    module = types.ModuleType(f"fusec_kernel_{Path(path).parent.name[:16]}")
    module.__file__ = path
    try:
        exec(code, module.__dict__)
    except Exception as error:
        line = line_of(error, path) or 1
        words = f"{type(error).__name__}: {error}"
        raise CompileError([Diagnostic(line, 0, "error", words)], words) from error
    return module.__dict__, path


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


# -- errors -------------------------------------------------------------------------------


def _is_triton_error(error: BaseException) -> bool:
    return any(c.__module__.startswith("triton.") for c in type(error).__mro__)


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


# -- without a GPU --------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """One kernel start that ``launch`` made."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Recorder:
    """Stands for a kernel while ``launch`` runs, and notes what it is started with."""

    def __init__(self, function: Any, starts: list[Start]) -> None:
        self.function = function
        self.starts = starts

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def start(*args: Any, **kwargs: Any) -> None:
            self.starts.append(Start(self.function, args, kwargs))

        return start

    def __getattr__(self, name: str) -> Any:
        return getattr(self.function, name)


def record_starts(
    namespace: dict[str, Any], signature: Signature, entry: str, size: int = SAMPLE_SIZE
) -> list[Start]:
    """Return what ``launch`` starts for tensors of the signature; symbolic sizes are ``size``."""
    from triton.runtime.jit import JITFunction

    starts: list[Start] = []
    functions = {n: f for n, f in namespace.items() if isinstance(f, JITFunction)}

    def number(expr: Any) -> int:
        return int(expr.evaluate(lambda s: size))

    with unset_fake_temporarily():  # while a graph is compiled, tensors have no address
        tensors = [
            torch.empty_strided(
                [number(e) for e in a.shape],
                [number(e) for e in a.strides],
                dtype=a.dtype,
                device="meta",
            )
            for a in signature.arguments
        ]
    namespace.update({n: _Recorder(f, starts) for n, f in functions.items()})
    try:
        namespace[entry](*tensors, *[size] * len(signature.sizes))
    finally:
        namespace.update(functions)
    return starts


def starts_of(runnable: TritonRunnable, tensors: Sequence[torch.Tensor]) -> list[Start]:
    """Return what a loaded file's ``launch`` would start for these tensors; nothing is started."""
    from triton.runtime.jit import JITFunction

    starts: list[Start] = []
    namespace = runnable.namespace
    functions = {n: f for n, f in namespace.items() if isinstance(f, JITFunction)}
    namespace.update({n: _Recorder(f, starts) for n, f in functions.items()})
    try:
        namespace[runnable.starter](*tensors)
    finally:
        namespace.update(functions)
    return starts


def gpu_target(gpu: str) -> Any:
    """Return Triton's description of a GPU: ``sm_90``, ``gfx942``...

    Raises:
        FusecError: It is neither.
    """
    from triton.backends.compiler import GPUTarget

    nvidia = re.fullmatch(r"sm_?(\d+)[af]?", gpu)
    if nvidia:
        return GPUTarget("cuda", int(nvidia[1]), 32)
    if re.fullmatch(r"gfx[0-9a-f]+", gpu):
        return GPUTarget("hip", gpu, 64 if gpu.startswith("gfx9") else 32)
    raise FusecError(f"{gpu} is no GPU that Triton knows", "for example sm_80, sm_90, gfx942")


def source_of(start: Start) -> tuple[Any, dict[str, Any]]:
    """Return Triton's source object for a kernel start, and the compile options."""
    from triton.compiler import ASTSource
    from triton.runtime.jit import mangle_type

    function = start.function
    names = [p.name for p in function.params]
    given = dict(zip(names, start.args, strict=False))
    given.update({k: v for k, v in start.kwargs.items() if k in names})
    options = {k: v for k, v in start.kwargs.items() if k not in names}
    types_of: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, parameter in enumerate(function.params):
        value = given.get(parameter.name, parameter.default)
        if parameter.is_constexpr or value is None:
            types_of[parameter.name] = "constexpr"
            constants[(place,)] = value
        else:
            types_of[parameter.name] = mangle_type(value)
            if hasattr(value, "data_ptr"):  # torch aligns its own allocations
                attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=types_of, constexprs=constants, attrs=attributes)
    return source, options


def check(text: str, signature: Signature, entry: str = "launch") -> None:
    """Put every kernel that ``launch`` starts through Triton's front end.

    Raises:
        CompileError: Triton refuses one.
    """
    namespace, path = load(text)
    if not any(hasattr(f, "params") for f in namespace.values()):
        return  # the process interprets everything
    with compiling():
        for start in launched(namespace, path, signature, entry):
            try:
                make_ttir(start)
            except Exception as error:
                if _is_triton_error(error):
                    raise compile_error(error, namespace, path) from error
                raise


def launched(namespace: dict[str, Any], path: str, signature: Signature, entry: str) -> list[Start]:
    """Return ``record_starts``, a failure in the file's own lines being a compile error."""
    try:
        return record_starts(namespace, signature, entry)
    except Exception as error:
        line = line_of(error, path)
        if line is None:
            raise
        words = f"{type(error).__name__}: {error}"
        raise CompileError([Diagnostic(line, 0, "error", words)], words) from error


def make_ttir(start: Start, gpu: str = "sm_90") -> Any:
    """Return Triton's first IR of a kernel start, before any pass has run."""
    from triton._C.libtriton import ir
    from triton.compiler import make_backend

    target = gpu_target(gpu)
    backend = make_backend(target)
    source, options = source_of(start)
    parsed = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
    return source.make_ir(target, parsed, functions, modules, context)


def artifacts(
    text: str,
    signature: Signature,
    gpu: str = "sm_90",
    kinds: Sequence[str] | None = None,
    entry: str = "launch",
) -> dict[str, str]:
    """Compile a kernel file for a GPU that need not be there; return readable forms.

    Args:
        text: The kernel file.
        signature: What it takes.
        gpu: ``sm_80``, ``sm_90``, ``sm_100``, ``gfx942``...
        kinds: Which forms; all that exist for the GPU if None. Where the file has several
            kernels, each form holds them one after the other.
        entry: The function that starts the kernels.

    Raises:
        CompileError: The text does not compile.
        FusecError: A form that does not exist for this GPU.
    """
    target = gpu_target(gpu)
    there = KINDS[target.backend]
    wanted = tuple(kinds) if kinds is not None else there
    for kind in wanted:
        if kind not in there:
            raise FusecError(f"there is no {kind} for {gpu}", f"there is {', '.join(there)}")
    namespace, path = load(text)
    found: dict[str, list[str]] = {kind: [] for kind in wanted}
    with compiling(), _triton_cache():
        starts = launched(namespace, path, signature, entry)
        for start in starts:
            compiled = compile_start(start, target, namespace, path)
            for kind in wanted:
                form = sass(compiled.asm["cubin"]) if kind == "sass" else compiled.asm[kind]
                mark = "//" if kind not in ("llir", "amdgcn") else ";"
                head = f"{mark} {start.function.__name__}\n" if len(starts) > 1 else ""
                found[kind].append(head + str(form))
    return {kind: "\n".join(forms) for kind, forms in found.items()}


def compile_start(start: Start, target: Any, namespace: dict[str, Any], path: str) -> Any:
    """Compile one kernel start for a GPU; return Triton's compiled kernel."""
    import triton

    source, options = source_of(start)
    try:
        return triton.compile(source, target=target, options=options)
    except Exception as error:
        if _is_triton_error(error) or isinstance(error, RuntimeError):
            raise compile_error(error, namespace, path) from error
        raise


def sass(cubin: bytes) -> str:
    """Return the machine code of a cubin, disassembled by the tool that Triton ships."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [knobs.nvidia.cuobjdump.path, "-sass", file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise FusecError(f"cuobjdump: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


@contextlib.contextmanager
def _triton_cache() -> Iterator[None]:
    """Let Triton keep what it compiles beside what fusec keeps, if nobody said otherwise."""
    if "TRITON_CACHE_DIR" in os.environ or "FUSEC_CACHE_DIR" not in os.environ:
        yield
        return
    from triton import knobs

    with _lock, knobs.cache.scope():
        knobs.cache.dir = os.path.join(os.environ["FUSEC_CACHE_DIR"], "triton-cache")
        yield


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
