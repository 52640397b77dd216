"""``fuselab.fuse``: what ``%%fuse`` does, for scripts and for frontends without magics."""

from __future__ import annotations

import inspect
import keyword
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from fuselab.cell.program import compiled_function
from fuselab.errors import FuselabError
from fuselab.session.fused_cell import FusedCell

if TYPE_CHECKING:
    from fuselab.session.session import Session


class FusedModule:
    """A fused ``nn.Module`` instance: call it as the module; other attributes are the module's.

    Attributes:
        module: The module itself; its parameters are shared, not copied.
        fused: The compiled module (``fusec.CompiledFunction``).
        result: What was compiled; timed and checked on its latest inputs when it is shown.
        panel: Returns the live workbench about it.
    """

    def __init__(self, module: torch.nn.Module, fused: Any, cell: FusedCell) -> None:
        self.module = module
        self.fused = fused
        self.result = cell
        self.panel = cell.workbench

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; the first call compiles."""
        with self.result.lock:
            return self.fused(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in {
            "module",
            "fused",
            "result",
            "panel",
        }:  # not there yet: while it is being copied
            raise AttributeError(name)
        return getattr(self.module, name)

    def __repr__(self) -> str:
        return f"Fused{self.module!r}"


def fuse(session: Session, target: Any, /, **options: Any) -> Any:
    """Fuse a function, a module or a module class in a session.

    Raises:
        FuselabError: Something that cannot be fused.
        fusec.errors.BadOption: An option that does not exist or a value that it does not take.
    """
    name = _name(session, target, options)
    cell_functions: list[Any] = []
    cell = FusedCell(
        name,
        _source(target),
        lambda: cell_functions,
        filename=_file(target),
        lock=session.lock,
        pending=(name,),
        live=True,
    )
    if isinstance(target, torch.nn.Module):
        compiled = session.compile(target, **options)
        fused: Any = FusedModule(target, compiled, cell)
    elif isinstance(target, type) and issubclass(target, torch.nn.Module):
        forward = target.forward
        compiled = session.compile(forward, **options)
        target.forward = _with_result(compiled_function(forward, compiled), cell)
        target.result = cell  # type: ignore[attr-defined]
        target.panel = cell.workbench  # type: ignore[attr-defined]
        fused = target
    elif isinstance(target, FunctionType) or inspect.isbuiltin(target) or inspect.ismethod(target):
        compiled = session.compile(target, **options)
        fused = _with_result(compiled_function(target, compiled), cell)
    else:
        raise FuselabError(
            f"{type(target).__name__} cannot be fused",
            "give a function, an nn.Module or a class of modules",
        )
    cell_functions.append(compiled)
    session.cells.pop(name, None)
    session.cells[name] = cell
    return fused


def _with_result(function: FunctionType, cell: FusedCell) -> FunctionType:
    function.result = cell  # type: ignore[attr-defined]
    function.panel = cell.workbench  # type: ignore[attr-defined]
    return function


def _name(session: Session, target: Any, options: dict[str, Any]) -> str:
    name = options.get("name") or getattr(target, "__name__", type(target).__name__)
    usable = str(name).isidentifier() and not keyword.iskeyword(str(name))
    return str(name) if usable else "fused"


def _source(target: Any) -> str:
    shown = type(target) if isinstance(target, torch.nn.Module) else target
    try:
        return inspect.getsource(shown)
    except (OSError, TypeError):
        return ""


def _file(target: Any) -> str:
    code = getattr(target, "__code__", None)
    if code is None and isinstance(target, torch.nn.Module):
        code = getattr(type(target).forward, "__code__", None)
    elif code is None and isinstance(target, type):
        code = getattr(getattr(target, "forward", None), "__code__", None)
    return str(code.co_filename) if code is not None else ""
