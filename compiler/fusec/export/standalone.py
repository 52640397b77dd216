"""Write a kernel as a file that runs without fuselab.

A C++ kernel becomes a ``.cpp`` that says how to build it, or a ``.py`` that builds and calls
it; a Triton kernel becomes a ``.py``.  Either becomes a ``.py`` that registers it as an operator
of torch (``operator.py`` here says what that takes).  The Python files need torch (and Triton, or
a C++ compiler), and show themselves when run as programs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jinja2

from fusec.errors import BadOption, FusecError
from fusec.export.operator import operator_words
from fusec.helper_block import with_helpers
from fusec.ir.index import Expr
from fusec.kernel import Kernel, Signature

Form = Literal["file", "library"]
FORMS: tuple[Form, ...] = ("file", "library")

_CPP_SUFFIXES = (".cpp", ".cc", ".cxx")
_PYTHON = ".py"

# The flags of ``targets.cpp.toolchain.compiler``, less what belongs to one machine's torch.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fopenmp",
    "-fPIC",
    "-shared",
)

# What a symbolic size is in the file's own example, unless the caller says.
_EXAMPLE_SIZE = 256


def export_kernel(
    kernel: Kernel,
    path: Path,
    *,
    form: Form = "file",
    sizes: Mapping[str, int] | None = None,
) -> Path:
    """Write the text in use as a file of its own.

    Args:
        kernel: The kernel.
        path: Where; the suffix chooses the kind of file.  Without one, C++ gets ``.cpp`` and
            Triton ``.py``; an operator always gets ``.py``.
        form: ``file`` for the kernel and a function that calls it, ``library`` for an operator of
            torch, with what ``torch.compile`` has to know of it.
        sizes: Values of the symbolic sizes for the file's example.

    Returns:
        The path written.

    Raises:
        BadOption: There is no such form.
        FusecError: The suffix does not go with the kernel, or the file cannot be written.
    """
    if form not in FORMS:
        raise BadOption("form", form, FORMS)
    path = Path(path)
    python_only = kernel.target != "cpp" or form == "library"
    allowed = (_PYTHON,) if python_only else (*_CPP_SUFFIXES, _PYTHON)
    if not path.suffix:
        path = path.with_name(path.name + allowed[0])
    if path.suffix not in allowed:
        what = "an operator" if form == "library" else f"a {kernel.target} kernel"
        raise FusecError(
            f"cannot export {what} as {path.name}", f"end the name in {' or '.join(allowed)}"
        )
    if path.suffix != _PYTHON:
        content = _cpp_file(kernel, path)
    else:
        content = _python_file(kernel, path, form, sizes or {})
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise FusecError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _cpp_file(kernel: Kernel, path: Path) -> str:
    library = f"{path.stem}.so"
    lines = [
        _title(kernel),
        _origin(kernel),
        "",
        "Build it:",
        f"    g++ {' '.join(_FLAGS)} {path.name} -o {library}",
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
    return f"{header}\n\n{with_helpers(kernel.source).rstrip()}\n"


def _call_arguments(kernel: Kernel) -> list[str]:
    signature = kernel.signature
    pointers = [f"ctypes.c_void_p({a.name}.data_ptr())" for a in signature.arguments]
    numbers = [f"ctypes.c_int64({name})" for name in (*signature.sizes, "threads")]
    return [*pointers, *numbers]


def _python_file(kernel: Kernel, path: Path, form: Form, sizes: Mapping[str, int]) -> str:
    signature = kernel.signature
    shown = _shown(signature)
    is_cpp = kernel.target == "cpp"
    source = with_helpers(kernel.source) if is_cpp else kernel.source
    layout = "standalone.py.j2" if form == "file" else "library.py.j2"
    more = operator_words(signature, kernel.name, source, shown) if form == "library" else {}
    names = {role: [a.name for a in signature.arguments if a.role == role] for role in _ROLES}
    read = [a.name for a in signature.arguments if a.role != "out"]
    written = [a.name for a in signature.arguments if a.role != "in"]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fusec.export"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,
    )
    template = environment.get_template("cpp.py.j2" if is_cpp else "triton.py.j2")
    device = '"cpu"' if is_cpp else '"cuda" if torch.cuda.is_available() else "cpu"'
    text = template.render(
        **more,
        layout=layout,
        title=_docstring(_title(kernel)),
        origin=_docstring(_origin(kernel)),
        needs="torch and a C++ compiler" if is_cpp else "torch and Triton",
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
        flags=list(_FLAGS),
        device=device,
        source=_literal(source) if is_cpp else _without_future(source).strip(),
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
            raise FusecError(f"the kernel's shapes use {symbol.name}, which is no size of its own")
        return f's["{symbol.name}"]'

    parts = [value.render(name) for value in values]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _shown(signature: Signature) -> dict[str, tuple[int, int]]:
    """Return where each symbolic size can be read off the given tensors."""
    found: dict[str, tuple[int, int]] = {}
    given = [a for a in signature.arguments if a.role != "out"]
    for number, argument in enumerate(given):
        for dim, size in enumerate(argument.shape):
            text = size.render(lambda symbol: symbol.name)
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
