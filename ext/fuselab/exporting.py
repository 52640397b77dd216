"""Where an exported kernel goes when nobody says where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fusec.target_api.registry import find_target

if TYPE_CHECKING:
    from fusec.kernel import Kernel

Form = Literal["file", "library"]


def export(kernel: Kernel, name: str, form: Form, folder: Path) -> Path:
    """Write a kernel into a folder, under a name that is not taken.

    Args:
        kernel: Whose text in use is written.
        name: What the user calls it; the file is called that, an operator's ``NAME_op.py``.
        form: As ``Kernel.export``.
        folder: Where.

    Returns:
        The path written.

    Raises:
        FusecError: As ``Kernel.export``.
    """
    stem = name.rpartition(".")[2]
    if form == "library":
        path = free_path(folder, f"{stem}_op", ".py")
    else:
        path = free_path(folder, stem, find_target(kernel.target).suffixes[0])
    return kernel.export(path, form=form)


def free_path(folder: Path, stem: str, suffix: str) -> Path:
    """Return a file name that is not taken: an export overwrites nothing."""
    path, number = folder / f"{stem}{suffix}", 2
    while path.exists():
        # A module's name has no dash in it.
        gap = "_" if suffix == ".py" else "-"
        path, number = folder / f"{stem}{gap}{number}{suffix}", number + 1
    return path
