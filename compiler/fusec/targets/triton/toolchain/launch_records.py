"""What a kernel file's ``launch`` does, as plain values, so that it can be done without Python.

A ``launch`` computes a grid and starts kernels. Where it is seen from its text that it does nothing
else, and that it depends on nothing but sizes, one run of it says what every later run with the
same sizes does.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.target_api.launches import KernelStart, LaunchRecord, Temporary

_INTEGERS = {"i32": 4, "u32": 4, "i64": 8, "u64": 8}
_NUMBERS = (bool, int, float, str)
_MODULES = ("triton", "triton.language", "torch")
_FUNCTIONS = ("cdiv", "next_power_of_2", "empty")
_KERNELS = ("JITFunction", "Launcher")
_BUILTINS = ("min", "max", "len", "int")
_THREADS_A_WARP = 32
# Kernels take two pointers to scratch memory after their own parameters; we launch those that
# need none.
_NO_SCRATCH = ((None, 0), (None, 0))


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch that happened.

    Attributes:
        kernel: What Triton compiled.
        names: The kernel's parameters, in order.
        grid: How many programs.
        args: What it was launched with: tensors and integers, without the constants.
    """

    kernel: Any
    names: tuple[str, ...]
    grid: tuple[int, ...]
    args: tuple[Any, ...]


_records = threading.local()


@contextlib.contextmanager
def recording() -> Iterator[list[RecordedLaunch | None]]:
    """Yield a list of the launches that this thread makes; None for one that is not understood."""
    before = getattr(_records, "list", None)
    _records.list = []
    try:
        yield _records.list
    finally:
        _records.list = before


def is_recording() -> bool:
    """Whether somebody in this thread wants to know of launches."""
    return getattr(_records, "list", None) is not None


def note(launch: RecordedLaunch | None) -> None:
    """Tell whoever records in this thread of a launch; None for one that is not understood."""
    found = getattr(_records, "list", None)
    if found is not None:
        found.append(launch)


def record_of(
    launches: Sequence[RecordedLaunch | None], given: Sequence[Any]
) -> LaunchRecord | None:
    """Return launches as plain values; None if they cannot be repeated by the driver alone.

    Args:
        launches: What ``recording`` yielded.
        given: The tensors that ``launch`` was called with.
    """
    positions = {id(tensor): i for i, tensor in enumerate(given)}
    temporaries: list[Temporary] = []
    starts = []
    for launch in launches:
        if launch is None or not _is_plain(launch.kernel):
            return None
        types_of = _types(launch.kernel)
        parameters: list[tuple[int | None, int]] = []
        for name, value in zip(launch.names, launch.args, strict=False):
            kind = types_of.get(name, "")
            if kind == "constexpr":
                continue
            if isinstance(value, torch.Tensor) and kind.startswith("*"):
                if id(value) not in positions:
                    positions[id(value)] = len(given) + len(temporaries)
                    temporaries.append(Temporary(tuple(value.shape), value.stride(), value.dtype))
                parameters.append((positions[id(value)], 0))
            elif type(value) is int and kind in _INTEGERS:
                parameters.append((None, value))
            else:
                return None
        rest = launch.names[len(launch.args) :]
        if any(types_of.get(name) != "constexpr" for name in rest):
            return None
        x, y, z = (*launch.grid, 1, 1)[:3]
        metadata = launch.kernel.metadata
        starts.append(
            KernelStart(
                int(launch.kernel.function),
                (int(x), int(y), int(z)),
                _THREADS_A_WARP * metadata.num_warps,
                metadata.shared,
                (*parameters, *_NO_SCRATCH),
            )
        )
    kernels = tuple(launch.kernel for launch in launches if launch is not None)
    return LaunchRecord(tuple(starts), tuple(temporaries), kernels)


def _is_plain(kernel: Any) -> bool:
    """Whether a launch of a kernel needs nothing but grid, block and parameters."""
    metadata = kernel.metadata
    wanted = {
        "num_ctas": 1,
        "launch_cooperative_grid": False,
        "launch_pdl": False,
        "global_scratch_size": 0,
        "profile_scratch_size": 0,
    }
    return all(getattr(metadata, name, value) in (value, None) for name, value in wanted.items())


def _types(kernel: Any) -> Mapping[str, str]:
    signature = kernel.src.signature
    return {str(name): str(kind) for name, kind in signature.items()}


# -- text -----------------------------------------------------------------------------------


def only_launches(entry: Callable[..., object]) -> bool:
    """Whether a function of a kernel file does nothing but compute numbers and start kernels.

    Its text decides: assignments, conditions, assertions and ``kernel[grid](...)`` over its
    arguments, numbers of the file, ``min``, ``max``, ``triton.cdiv``, ``triton.next_power_of_2``
    and ``torch.empty``; and whether a tensor begins at 16 bytes, which plans are told apart by.
    """
    if not isinstance(entry, types.FunctionType) or entry.__closure__:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(entry)))
    except (OSError, SyntaxError, TypeError):
        return False
    if len(tree.body) != 1 or not isinstance(tree.body[0], ast.FunctionDef):
        return False
    function = tree.body[0]
    if function.decorator_list or function.args.vararg or function.args.kwarg:
        return False
    known = {a.arg for a in (*function.args.posonlyargs, *function.args.args)}
    return _Text(entry.__globals__, known).statements(function.body)


class _Text:
    def __init__(self, space: Mapping[str, Any], known: set[str]) -> None:
        self.space = space
        self.known = known

    def statements(self, body: Sequence[ast.stmt]) -> bool:
        return all(self.statement(each) for each in body)

    def statement(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) or self.start(node.value)
        if isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if len(names) != len(node.targets) or not self.value(node.value):
                return False
            self.known |= set(names)
            return True
        if isinstance(node, ast.If):
            branches = self.statements(node.body) and self.statements(node.orelse)
            return self.value(node.test) and branches
        if isinstance(node, ast.Assert):
            return self.value(node.test) and (node.msg is None or self.value(node.msg))
        return False

    def start(self, node: ast.expr) -> bool:
        """Whether this is ``kernel[grid](...)``."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Subscript):
            return False
        kernel = node.func.value
        if not isinstance(kernel, ast.Name) or kernel.id in self.known:
            return False
        found = self.space.get(kernel.id)
        return (
            type(found).__name__ in _KERNELS
            and self.value(node.func.slice)
            and self.arguments(node)
        )

    def arguments(self, node: ast.Call) -> bool:
        named = all(each.arg is not None and self.value(each.value) for each in node.keywords)
        return named and all(self.value(each) for each in node.args)

    def value(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id in self.known or type(self.space.get(node.id)) in _NUMBERS
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if self.module(node.value):
                found = getattr(self.space[node.value.id], node.attr, None)
                return type(found).__name__ == "dtype"
            return node.value.id in self.known and node.attr in ("device", "dtype")
        if isinstance(node, ast.Call):
            return self.function(node.func) and self.arguments(node)
        if isinstance(node, ast.Compare) and self.alignment(node):
            return True
        if isinstance(node, (ast.Tuple, ast.List)):
            return all(self.value(each) for each in node.elts)
        if isinstance(node, (ast.BinOp, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.IfExp)):
            return all(
                self.value(each)
                for each in ast.iter_child_nodes(node)
                if isinstance(each, ast.expr)
            )
        return False

    def alignment(self, node: ast.Compare) -> bool:
        """Whether this is ``argument.data_ptr() % 16 == 0``."""
        match node:
            case ast.Compare(
                left=ast.BinOp(
                    left=ast.Call(
                        func=ast.Attribute(value=ast.Name(id=name), attr="data_ptr"),
                        args=[],
                        keywords=[],
                    ),
                    op=ast.Mod(),
                    right=ast.Constant(value=16),
                ),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=0)],
            ):
                return name in self.known
        return False

    def function(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in _BUILTINS and node.id not in {*self.known, *self.space}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self.module(node.value) and node.attr in _FUNCTIONS
        return False

    def module(self, node: ast.Name) -> bool:
        found = self.space.get(node.id)
        return node.id not in self.known and getattr(found, "__name__", "") in _MODULES


__all__ = [
    "RecordedLaunch",
    "is_recording",
    "note",
    "only_launches",
    "record_of",
    "recording",
]
