"""A process that compiles Triton kernels into Triton's own cache; ``triton_pool`` starts it.

It is run as a file and imports Triton alone, so that it is ready after half a second and takes
80 MB. Kernel files import torch, for the function that starts the kernels, which nothing calls
here: they are given something that is torch once it is asked for anything. A request is a line
of JSON on standard input:

    {"cache": folder or null, "path": kernel file, "target": [backend, architecture, warp size],
     "starts": [{"function": name, "signature": {...}, "constants": [[place, value], ...],
                 "attributes": [[place, attributes], ...], "options": {...}}, ...],
     "needs": {name: [kernel file, function], ...}}  (what the file names without defining it)

and the answer a line: ``done``, or what Triton said. Nobody relies on it: what is not in the cache
is compiled where it is needed, with the same complaint.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import sys
import types
from typing import Any

IDLE = 300.0  # seconds without a request, after which the process ends


class Postponed(types.ModuleType):
    """Stands for a module that takes long to import, until somebody wants something of it."""

    def __getattr__(self, name: str) -> Any:
        """Import the module; whoever has this one gets everything from there."""
        if name.startswith("__") and name != "__path__":  # by whoever looks at modules
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def compile_starts(request: dict[str, Any]) -> None:
    """Compile what a kernel file starts."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget

    from fusec.targets.triton.toolchain.sources import source_class

    if request["cache"]:
        knobs.cache.dir = request["cache"]
    module = _load(request["path"])
    for name, (path, function) in request.get("needs", {}).items():
        module.__dict__[name] = _load(path).__dict__[function]
    for start in request["starts"]:
        function = module.__dict__[start["function"]]
        source = source_class(function)(
            fn=function,
            signature=start["signature"],
            constexprs={(place,): value for place, value in start["constants"]},
            attrs={(place,): attributes for place, attributes in start["attributes"]},
        )
        target = GPUTarget(*request["target"])
        compiled = triton.compile(source, target=target, options=start["options"])
        if target.backend == "cuda":
            _build_launcher(compiled)


def _load(path: str) -> types.ModuleType:
    with open(path, encoding="utf-8") as file:
        code = compile(file.read(), path, "exec")
    module = types.ModuleType("fusec_kernel")
    module.__file__ = path
    exec(code, module.__dict__)
    return module


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

    sys.modules.setdefault("torch", Postponed("torch"))
    with contextlib.suppress(Exception):  # Triton's own, and kept by it: a hash of all its files
        from triton.runtime.cache import triton_key

        triton_key()
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
