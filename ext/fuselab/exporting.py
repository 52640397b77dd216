"""Where an exported kernel goes when nobody says where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fusec.export.forms import find_form

if TYPE_CHECKING:
    from fusec.kernel import Kernel


def export(kernel: Kernel, name: str, form: str, folder: Path) -> Path:
    """Write a kernel into a folder, under a name that is not taken.

    Args:
        kernel: Whose text in use is written.
        name: What the user calls it; the file is called that, with the form's ending.
        form: As ``Kernel.export``.
        folder: Where.

    Returns:
        The path written.

    Raises:
        FusecError: As ``Kernel.export``.
    """
    chosen = find_form(form)
    stem = name.rpartition(".")[2] + chosen.ending
    path = free_path(folder, stem, chosen.suffixes_for(kernel)[0])
    return kernel.export(path, form=form)


def free_path(folder: Path, stem: str, suffix: str) -> Path:
    """Return a file name that is not taken: an export overwrites nothing."""
    path, number = folder / f"{stem}{suffix}", 2
    while path.exists():
        # A module's name has no dash in it.
        gap = "_" if suffix == ".py" else "-"
        path, number = folder / f"{stem}{gap}{number}{suffix}", number + 1
    return path
