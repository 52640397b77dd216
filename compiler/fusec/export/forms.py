"""The forms in which a kernel leaves as a file, in one table.

``Kernel.export(form=...)``, ``%fuse_export --form`` and the panel's buttons are made from it. A
form that is added is a function that writes a text, in a file of this folder, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fusec.errors import BadOption, FusecError

if TYPE_CHECKING:
    from fusec.kernel import Kernel

Writer = Callable[["Kernel", Path, Mapping[str, int]], str]


@dataclass(frozen=True)
class Form:
    """One entry of the table.

    Attributes:
        name: What options call it.
        what: What it is, with its article: ``an operator of torch``.
        about: What it is good for, in a sentence without its end.
        label: On the panel's button.
        write: Returns the text of a kernel's file at a path, with these values of the symbolic
            sizes for its example. What is slow to import it imports itself.
        suffixes: What names of such files may end in, the usual one first.
        own: Whether it may be a file of the kernel's own language as well, which is then usual.
        ending: What stands behind the kernel's name in a file's.
        then: What to do with the file, where that is not plain; ``{stem}`` is its name.
    """

    name: str
    what: str
    about: str
    label: str
    write: Writer
    suffixes: tuple[str, ...] = (".py",)
    own: bool = False
    ending: str = ""
    then: str = ""

    def suffixes_for(self, kernel: Kernel) -> tuple[str, ...]:
        """Return what the name of a kernel's file may end in, the usual one first."""
        from fusec.target_api.registry import find_target

        own = find_target(kernel.target).suffixes if self.own else ()
        return tuple(dict.fromkeys((*own, *self.suffixes)))


def _file(kernel: Kernel, path: Path, sizes: Mapping[str, int]) -> str:
    from fusec.export.standalone import write_file

    return write_file(kernel, path, sizes)


def _operator(kernel: Kernel, path: Path, sizes: Mapping[str, int]) -> str:
    from fusec.export.operator import write_operator

    return write_operator(kernel, path, sizes)


FORMS: tuple[Form, ...] = (
    Form(
        "file",
        "a file of its own",
        "the kernel and how to call it, which runs without Fuselab",
        "Export",
        _file,
        own=True,
    ),
    Form(
        "library",
        "a torch.library operator",
        "an operator registered with torch.library, for any torch.compile",
        "Export as op",
        _operator,
        ending="_op",
        then="import {stem} registers the operator",
    ),
)


def form_names() -> tuple[str, ...]:
    """Return the names of all forms."""
    return tuple(form.name for form in FORMS)


def find_form(name: str) -> Form:
    """Return a form by its name.

    Raises:
        BadOption: There is none.
    """
    for form in FORMS:
        if form.name == name:
            return form
    raise BadOption("form", name, form_names())


def export_kernel(
    kernel: Kernel,
    path: Path,
    *,
    form: str = "file",
    sizes: Mapping[str, int] | None = None,
) -> Path:
    """Write the text in use as a file of its own.

    Args:
        kernel: The kernel.
        path: Where; one of the form's suffixes, the usual one where there is none.
        form: One of ``form_names()``.
        sizes: Values of the symbolic sizes for the file's example.

    Returns:
        The path written.

    Raises:
        BadOption: There is no such form.
        FusecError: The suffix does not go with the kernel, or the file cannot be written.
    """
    chosen = find_form(form)
    path = Path(path)
    allowed = chosen.suffixes_for(kernel)
    if not path.suffix:
        path = path.with_name(path.name + allowed[0])
    if path.suffix not in allowed:
        raise FusecError(
            f"cannot export a {kernel.target} kernel as {path.name} ({chosen.what})",
            f"end the name in {' or '.join(allowed)}",
        )
    content = chosen.write(kernel, path, sizes or {})
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise FusecError(f"cannot write {path}: {error.strerror or error}") from None
    return path


__all__ = ["FORMS", "Form", "export_kernel", "find_form", "form_names"]
