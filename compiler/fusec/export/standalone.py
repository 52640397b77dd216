"""Write a kernel as a file that runs without fuselab.

A C++ kernel becomes a ``.cpp`` that says how to build it, or a ``.py`` that builds and calls
it; a Triton kernel becomes a ``.py``.  The Python files need torch (and Triton, or a C++ compiler),
and show themselves when run as programs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from fusec.errors import FusecError
from fusec.ir.index import Expr
from fusec.ir.index_text import expr_text
from fusec.kernel import Kernel
from fusec.kernel_source import Signature
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target
from fusec.toolchain.families import flags_of_text

PYTHON = ".py"

# What a symbolic size is in the file's own example, unless the caller says.
_EXAMPLE_SIZE = 256


def write_file(kernel: Kernel, path: Path, sizes: Mapping[str, int]) -> str:
    """Return a file with the kernel and how to call it; see ``forms.Form.write``.

    The suffix chooses its language: Python, or the kernel's own.
    """
    target = find_target(kernel.target)
    if path.suffix != PYTHON:
        assert isinstance(target, LibraryTarget)
        return _library_file(kernel, target, path)
    return python_file(kernel, path, sizes, "standalone.py.j2")


def _flags(kernel: Kernel, target: LibraryTarget) -> list[str]:
    return [*target.export_flags, *flags_of_text(kernel.source)]


def _library_file(kernel: Kernel, target: LibraryTarget, path: Path) -> str:
    library = f"{path.stem}.so"
    lines = [
        _title(kernel),
        _origin(kernel),
        "",
        "Build it:",
        f"    g++ {' '.join(_flags(kernel, target))} {path.name} -o {library}",
        "Call it from Python:",
        "    import ctypes, torch",
        f'    entry = ctypes.CDLL("./{library}").{kernel.generated.entry}',
        f"    entry({', '.join(_call_arguments(kernel))})",
        "It returns 0, or the number of the check that failed.",
    ]
    if kernel.signature.checks:
        checks = enumerate(kernel.signature.checks, start=1)
        lines += [f"    {number}: {words}" for number, words in checks]
    header = "\n".join(f"// {line}".rstrip() for line in lines)
    return f"{header}\n\n{find_target(kernel.target).whole_text(kernel.source).rstrip()}\n"


def _call_arguments(kernel: Kernel) -> list[str]:
    signature = kernel.signature
    pointers = [f"ctypes.c_void_p({a.name}.data_ptr())" for a in signature.arguments]
    numbers = [f"ctypes.c_int64({name})" for name in (*signature.sizes, "threads")]
    return [*pointers, *numbers]


def python_file(
    kernel: Kernel,
    path: Path,
    sizes: Mapping[str, int],
    layout: str,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return a Python file that holds a kernel, builds it and calls it.

    Args:
        kernel: The kernel.
        path: Where the file will be.
        sizes: Values of the symbolic sizes for its example.
        layout: The template of what stands round the kernel.
        more: What that template writes beside what all of them do.
    """
    signature = kernel.signature
    shown = shown_sizes(signature)
    target = find_target(kernel.target)
    source, header = target.text_and_header(kernel.source)
    library = isinstance(target, LibraryTarget)
    names = {role: [a.name for a in signature.arguments if a.role == role] for role in _ROLES}
    read = [a.name for a in signature.arguments if a.role != "out"]
    written = [a.name for a in signature.arguments if a.role != "in"]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader("fusec.export"), jinja2.PackageLoader(target.export.package)]
        ),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    template = environment.get_template(target.export.template)
    text = template.render(
        **more,
        layout=layout,
        title=_docstring(_title(kernel)),
        origin=_docstring(_origin(kernel)),
        needs=target.export.needs,
        module=path.stem if path.stem.isidentifier() else "that_file",
        name=kernel.name,
        entry=kernel.generated.entry,
        inputs=", ".join(read),
        outputs=", ".join(written),
        inout=", ".join(names["inout"]),
        arguments=[
            {
                "name": a.name,
                "dtype": str(a.dtype).removeprefix("torch."),
                "shape": _tuple(a.shape, signature.sizes),
                "strides": _tuple(a.strides, signature.sizes),
                "role": a.role,
            }
            for a in signature.arguments
        ],
        sizes={name: int(sizes.get(name, _EXAMPLE_SIZE)) for name in signature.sizes},
        shown=shown,
        checks=list(signature.checks),
        flags=_flags(kernel, target) if isinstance(target, LibraryTarget) else [],
        device=target.export.device,
        source=_literal(source) if library else _without_future(source).strip(),
        header=_literal(header) if header else "",
        repeats=21,
    )
    # A mistake here would only show at the user's.
    ast.parse(text)
    return text


_ROLES = ("in", "out", "inout")


def _tuple(values: Sequence[Expr], sizes: Sequence[str]) -> str:
    """Return a tuple over the sizes ``s`` as Python source."""
    known = set(sizes)

    def name(symbol: Any) -> str:
        if symbol.name not in known:
            raise FusecError(
                f"the kernel's shapes use {symbol.name}, which is not one of its own sizes"
            )
        return f's["{symbol.name}"]'

    parts = [expr_text(value, name) for value in values]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def shown_sizes(signature: Signature) -> dict[str, tuple[int, int]]:
    """Return where each symbolic size can be read off the given tensors."""
    found: dict[str, tuple[int, int]] = {}
    given = [a for a in signature.arguments if a.role != "out"]
    for number, argument in enumerate(given):
        for dim, size in enumerate(argument.shape):
            text = expr_text(size, lambda symbol: symbol.name)
            if text in signature.sizes:
                found.setdefault(text, (number, dim))
    return found


def _title(kernel: Kernel) -> str:
    summary = kernel.generated.summary
    return f"{kernel.name}: {summary}." if summary else f"{kernel.name}."


def _origin(kernel: Kernel) -> str:
    how = "Edited" if kernel.edited else "Generated"
    return f"{how} with Fuselab, exported as a file of its own."


def _docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")


def _literal(text: str) -> str:
    """Return ``text`` as a Python literal that people can read."""
    if "'''" not in text and "\\" not in text:
        return f"'''\\\n{text.rstrip()}\n'''"
    if "'''" not in text:
        return f"r'''\n{text.rstrip()}\n'''"
    return repr(text)


def _without_future(text: str) -> str:
    # It would have to stand first in the file, and the file's own text stands there.
    return re.sub(r"^from __future__ import .*\n", "", text, flags=re.MULTILINE)
