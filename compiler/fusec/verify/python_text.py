"""What a kernel that is a file of Python must not have, read from its text before anything runs it.

The functions that Triton compiles can do nothing but compute; the code around them is ordinary
Python, in the process of the notebook, which even runs it to see what it starts.  It has to start
kernels, and to take memory for them.  What it may import, its target says.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fusec.verify.words import Finding

_INSTEAD = "; leave it out, or say --trust if it has to be there"
# Of torch. What else there is would do other work than the kernel's, or change torch for everybody.
_TORCH = frozenset(
    """
    Tensor dtype empty empty_like empty_strided zeros zeros_like full ones device Size cuda finfo
    iinfo float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool
    complex64 complex128 float8_e4m3fn float8_e5m2 half float double long int short
    """.split()
)
_CUDA = frozenset(
    "Stream Event current_stream current_device default_stream stream device synchronize "
    "get_device_properties get_device_capability".split()
)
_CALLS = {
    "exec": "it runs code that nobody has read",
    "eval": "it runs code that nobody has read",
    "compile": "it runs code that nobody has read",
    "__import__": "it loads other code",
    "open": "it uses files",
    "input": "it waits for somebody",
    "breakpoint": "it waits for somebody",
    "exit": "it ends the process",
    "quit": "it ends the process",
    "setattr": "it changes what others use",
    "delattr": "it changes what others use",
    "globals": "it reaches what is not the kernel's",
    "vars": "it reaches what is not the kernel's",
}
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MAKERS = ("list", "dict", "set", "defaultdict", "OrderedDict", "bytearray")


def problem(text: str, may_import: Collection[str]) -> Finding | None:
    """Return the first thing in a text that acts on the process that runs it, with its line.

    Args:
        text: The whole kernel file; what is no Python is no matter of this function's.
        may_import: The packages that it has a use for. The check sees nothing of others.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = sorted([*_imports(tree, may_import), *_within(tree), *_kept(tree), *_loops(tree)])
    if not found:
        return None
    line, reason = found[0]
    return Finding("unsafe", reason + _INSTEAD, line)


def _imports(tree: ast.Module, may_import: Collection[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [("." * node.level) + (node.module or "")]
        for module in modules:
            if module.partition(".")[0] not in may_import:
                assert isinstance(node, (ast.Import, ast.ImportFrom))
                may = ", ".join(may_import)
                yield node.lineno, f"imports {module}, where a kernel file may import {may}"


def _within(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            for name in node.names:
                yield from _attribute(node, f"torch.{name.name}")
        elif isinstance(node, ast.Global):
            names = ", ".join(node.names)
            yield node.lineno, f"keeps `{names}` from call to call"
        elif isinstance(node, ast.Name) and node.id in _CALLS:
            yield node.lineno, f"names {node.id}: {_CALLS[node.id]}"
        elif isinstance(node, ast.Attribute):
            if node.attr.startswith("__"):
                yield node.lineno, f"names {node.attr}: it reaches what is not the kernel's"
            yield from _attribute(node, ast.unparse(node))
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            yield from _changed(node)


def _attribute(node: ast.stmt | ast.expr, name: str) -> Iterator[tuple[int, str]]:
    parts = [part.partition("(")[0] for part in name.split(".")]
    if parts[0] != "torch" or len(parts) < 2:
        return
    fine = parts[1] in _TORCH
    if parts[1] == "cuda" and len(parts) > 2:
        fine = parts[2] in _CUDA
    if not fine:
        yield node.lineno, f"calls {name}: it is none of what a kernel may ask of torch"


def _changed(
    node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete,
) -> Iterator[tuple[int, str]]:
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
    for target in targets:
        if isinstance(target, ast.Attribute):
            yield node.lineno, f"changes {ast.unparse(target)}, which outlives a call"


def _kept(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what lives as long as the file and can be changed by a call."""
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            if _is_container(node.value):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield node.lineno, f"keeps `{ast.unparse(target)}` from call to call"
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.arguments):
                    for default in (*inner.defaults, *inner.kw_defaults):
                        if _is_container(default):
                            yield node.lineno, f"keeps a default of `{node.name}` from call to call"


def _loops(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the host's loops that may have no end; a kernel's run where they can be ended."""
    kernels = {
        inner
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        if any("jit" in ast.unparse(each) for each in node.decorator_list)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and node not in kernels:
            yield node.lineno, "has a `while` outside of its kernels, which may never end"


def _is_container(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in _MAKERS
    return isinstance(value, _CONTAINERS)


__all__ = ["problem"]
