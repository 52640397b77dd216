"""A process that compiles Triton kernels into Triton's own cache; ``triton_pool`` starts it.

It is run as a file and imports Triton alone, so that it is ready after a fifth of a second and
takes 80 MB. A request is a line of JSON on standard input:

    {"cache": folder or null, "path": kernel file, "target": [backend, architecture, warp size],
     "starts": [{"function": name, "signature": {...}, "constants": [[place, value], ...],
                 "attributes": [[place, attributes], ...], "options": {...}}, ...]}

and the answer a line: ``done``, or what Triton said. Nobody relies on it: what is not in the cache
is compiled where it is needed, with the same complaint.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import types
from typing import Any

IDLE = 300.0  # seconds without a request, after which the process ends


def compile_starts(request: dict[str, Any]) -> None:
    """Compile what a kernel file starts."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if request["cache"]:
        knobs.cache.dir = request["cache"]
    path = request["path"]
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), path, "exec")
    module = types.ModuleType("fusec_kernel")
    module.__file__ = path
    exec(code, module.__dict__)
    for start in request["starts"]:
        source = ASTSource(
            fn=module.__dict__[start["function"]],
            signature=start["signature"],
            constexprs={(place,): value for place, value in start["constants"]},
            attrs={(place,): attributes for place, attributes in start["attributes"]},
        )
        target = GPUTarget(*request["target"])
        compiled = triton.compile(source, target=target, options=start["options"])
        if target.backend == "cuda":
            _build_launcher(compiled)


def _build_launcher(compiled: Any) -> None:
    """Have the C compiler build what Triton starts a kernel with, one for each signature."""
    with contextlib.suppress(Exception):  # there may be no driver to link with
        from triton.backends.nvidia.driver import CudaLauncher

        CudaLauncher(compiled.src, compiled.metadata)


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Triton prints is no answer
    import triton.compiler
    import triton.language  # noqa: F401

    while select.select([sys.stdin], [], [], IDLE)[0]:
        line = sys.stdin.readline()
        if not line:
            return
        try:
            compile_starts(json.loads(line))
            answer = "done"
        except Exception as error:  # whoever needs the kernel will say it
            answer = " ".join(f"{type(error).__name__}: {error}".split())
        print(answer, file=answers, flush=True)


if __name__ == "__main__":
    main()
