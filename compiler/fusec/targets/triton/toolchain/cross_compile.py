"""Triton kernels compiled for a GPU that need not be there, down to machine code.

The file's own ``launch`` is called with stand-ins to learn what every kernel is started with.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from fusec.errors import FusecError
from fusec.kernel_source import Signature
from fusec.targets.triton.toolchain.interpret import compiling
from fusec.targets.triton.toolchain.load import compile_error, is_triton_error, load
from fusec.targets.triton.toolchain.starts import RecordedStart, gpu_target, launched, source_of

KINDS = {
    "cuda": ("ttir", "ttgir", "llir", "ptx", "sass"),
    "hip": ("ttir", "ttgir", "llir", "amdgcn"),
}
_lock = threading.RLock()


def check(text: str, signature: Signature, entry: str = "launch") -> None:
    """Put every kernel that ``launch`` starts through Triton's front end.

    Raises:
        CompileError: Triton refuses one.
    """
    namespace, path = load(text)
    if not any(hasattr(f, "params") for f in namespace.values()):
        return  # the process interprets everything
    check_starts(namespace, path, launched(namespace, path, signature, entry))


def check_starts(namespace: dict[str, Any], path: str, starts: Sequence[RecordedStart]) -> None:
    """Put what a loaded file starts through Triton's front end.

    Raises:
        CompileError: Triton refuses a kernel.
    """
    with compiling():
        for start in starts:
            try:
                make_ttir(start)
            except Exception as error:
                if is_triton_error(error):
                    raise compile_error(error, namespace, path) from error
                raise


def make_ttir(start: RecordedStart, gpu: str = "sm_90") -> Any:
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
    with compiling(), triton_cache():
        starts = launched(namespace, path, signature, entry)
        for start in starts:
            compiled = compile_start(start, target, namespace, path)
            for kind in wanted:
                form = sass(compiled.asm["cubin"]) if kind == "sass" else compiled.asm[kind]
                mark = "//" if kind not in ("llir", "amdgcn") else ";"
                head = f"{mark} {start.function.__name__}\n" if len(starts) > 1 else ""
                found[kind].append(head + str(form))
    return {kind: "\n".join(forms) for kind, forms in found.items()}


def compile_start(start: RecordedStart, target: Any, namespace: dict[str, Any], path: str) -> Any:
    """Compile one kernel start for a GPU; return Triton's compiled kernel."""
    import triton

    source, options = source_of(start)
    try:
        return triton.compile(source, target=target, options=options)
    except Exception as error:
        if is_triton_error(error) or isinstance(error, RuntimeError):
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
def triton_cache() -> Iterator[None]:
    """Let Triton keep what it compiles beside what fusec keeps, if nobody said otherwise."""
    if "TRITON_CACHE_DIR" in os.environ or "FUSEC_CACHE_DIR" not in os.environ:
        yield
        return
    from triton import knobs

    with _lock, knobs.cache.scope():
        knobs.cache.dir = os.path.join(os.environ["FUSEC_CACHE_DIR"], "triton-cache")
        yield


__all__ = ["KINDS", "artifacts", "check", "check_starts", "compile_start", "make_ttir", "sass"]
