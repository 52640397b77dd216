"""Fuselab: write, see, edit and tune fused kernels in a notebook.

``%load_ext fuselab``, then ``%%fuse`` (``%%fuse?`` explains).  Without magics::

    fused = fuselab.fuse(function_or_module)
    fused(x)
    fused.result          # what %%fuse shows
    fuselab.edit("name", text)
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fusec.kernel import Kernel
    from fuselab.display.outcomes import EditOutcome, TuningOutcome
    from fuselab.edit_record import Edit
    from fuselab.magics.hints import Hints
    from fuselab.session.fused_cell import FusedCell
    from fuselab.session.session import Session
    from fuselab.session.warm_up import BetweenCells

    cells: Mapping[str, FusedCell]
    kernels: Mapping[str, Kernel]

_lock = threading.Lock()
_session: Session | None = None
_between_cells: BetweenCells | None = None
_hints: Hints | None = None


def current_session() -> Session:
    """Return this process's session, which ``%load_ext fuselab`` ties to the notebook."""
    global _session
    with _lock:
        if _session is None:
            from fuselab.session.session import Session

            _session = Session(sys.modules["__main__"].__dict__)
            atexit.register(_session.close)
        return _session


def last() -> FusedCell | None:
    """Return the result of the cell that ran last."""
    return current_session().last


def edits(name: str) -> tuple[Edit, ...]:
    """Return every text tried for a kernel, kept or refused, the oldest first."""
    from fuselab.display.outcomes import Edits

    return Edits.of(name, current_session().edits(name))


def edit(name: str, text: str, *, strict: bool = False) -> EditOutcome:
    """Check a text for a kernel and put it in use if it passes; what ``%%kernel`` does.

    Args:
        name: The kernel's; ``CELL.KERNEL`` where several cells have one.
        text: The whole kernel file.
        strict: Raise ``EditRefused`` where it does not pass.
    """
    from fuselab.display.outcomes import EditRefused

    outcome = current_session().edit(name, text, offset=0)
    if strict and not outcome.ok:
        raise EditRefused(outcome)
    return outcome


def revert(name: str) -> Kernel:
    """Put a kernel's generated text back in use; what ``%fuse_revert`` does."""
    return current_session().revert(name)


def tune(name: str, seconds: float = 10.0) -> TuningOutcome:
    """Search a kernel's tunables for so many seconds and put the best in use."""
    return current_session().tune(name, seconds)


def fuse(thing: Any = None, /, **options: Any) -> Any:
    """Fuse a function, a module or a module class; also a decorator, with or without options.

    Args:
        thing: What to fuse.
        **options: As ``fusec.compile``: target, dynamic, name, gpu ...

    Returns:
        Something to call in its place, whose ``result`` is what ``%%fuse`` shows.
    """
    from fuselab.session.fuse_function import fuse as fuse_one

    if thing is None:
        return lambda given: fuse_one(current_session(), given, **options)
    return fuse_one(current_session(), thing, **options)


def __getattr__(name: str) -> Any:
    """Look up ``cells`` and ``kernels``, which change as cells run."""
    if name in {"cells", "kernels"}:
        return getattr(current_session(), name)
    raise AttributeError(f"module 'fuselab' has no attribute {name!r}")


def other_magics() -> tuple[type, ...]:
    """Return the classes of magics beside ``FuseMagics``, which needs a session."""
    from fuselab.magics.cache import CacheMagics
    from fuselab.magics.kernels import KernelMagics
    from fuselab.magics.lab import LabMagics
    from fuselab.magics.package import PackageMagics
    from fuselab.magics.predict import PredictMagics
    from fuselab.magics.reports import ReportMagics

    return (KernelMagics, ReportMagics, PredictMagics, LabMagics, CacheMagics, PackageMagics)


def load_ipython_extension(shell: Any) -> None:
    """Register the magics (``%load_ext fuselab``)."""
    global _session, _between_cells, _hints
    if find_spec("torch") is None:
        from fusec import NO_TORCH

        raise ModuleNotFoundError(NO_TORCH, name="torch")
    from fusec import warm
    from fuselab.magics import completion as complete
    from fuselab.magics.fuse import FuseMagics
    from fuselab.magics.hints import Hints
    from fuselab.session.progress import getting_ready
    from fuselab.session.session import Session
    from fuselab.session.warm_up import BetweenCells, display_steps

    magics = shell.magics_manager.registry.get("FuseMagics")
    if magics is not None:
        return
    with _lock:
        _session = Session(shell.user_ns)
    magics = FuseMagics(shell, _session, parent=shell)
    shell.register_magics(magics)
    for kind in other_magics():
        shell.register_magics(kind)
    if magics not in shell.configurables:  # IPython's own base class puts it there, too
        shell.configurables.append(magics)
    complete.register(shell)
    _hints = Hints(shell)
    # The panel and the user's own calls keep edits too: remember them for the next session.
    shell.events.register("post_run_cell", magics.remember)
    atexit.register(_session.close)
    if "fuselab" not in shell.user_ns:  # messages name what is in it
        shell.push({"fuselab": sys.modules[__name__]}, interactive=False)
    warm.start_helpers()
    steps = (*warm.steps(), *display_steps())
    _between_cells = BetweenCells(shell.events, steps, functools.partial(getting_ready, shell))
    _between_cells.begin()


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again (``%unload_ext fuselab``)."""
    global _session, _between_cells, _hints
    magics = shell.magics_manager.registry.pop("FuseMagics", None)
    if magics is None:
        return
    magics.session.sync()
    magics.late.end()
    if _between_cells is not None:
        _between_cells.end()
        _between_cells = None
    if _hints is not None:
        _hints.remove()
        _hints = None
    shell.events.unregister("post_run_cell", magics.remember)
    others = [shell.magics_manager.registry.pop(kind.__name__, None) for kind in other_magics()]
    gone = [each for each in (magics, *others) if each is not None]
    for kind, names in ((k, n) for each in gone for k, n in each.magics.items()):
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
    # A second one would take what %config sets, and keep it from the one that is loaded next.
    shell.configurables[:] = [each for each in shell.configurables if each not in gone]
    shell.drop_by_id({"fuselab": sys.modules[__name__]})
    atexit.unregister(magics.session.close)
    _session = None
