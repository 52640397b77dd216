"""A kernel as an operator of torch: a Python file that registers it, with its schema."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusec.errors import FusecError
from fusec.export.standalone import python_file, shown_sizes
from fusec.kernel import Kernel
from fusec.kernel_source import Signature
from fusec.target_api.registry import find_target

NAMESPACE = "fuselab"

# Names that the file itself uses, or that torch's schemas do not take.
_RESERVED = frozenset(
    "torch os time ctypes functools shutil subprocess tempfile triton tl SOURCE FLAGS CHECKS "
    "ARGUMENTS SIZES SHOWN DEVICE build call sizes_of make_outputs laid_out example_inputs main "
    "given sizes made waiting empty arguments tensor shape strides role self out".split()
)


def write_operator(kernel: Kernel, path: Path, sizes: Mapping[str, int]) -> str:
    """Return a file that registers the kernel with ``torch.library``; see ``forms.Form.write``.

    Raises:
        FusecError: Nothing is given to the kernel: an operator without a tensor has no device.
    """
    signature = kernel.signature
    source = find_target(kernel.target).text_and_header(kernel.source)[0]
    words = operator_words(signature, kernel.name, source, shown_sizes(signature))
    return python_file(kernel, path, sizes, "library.py.j2", words)


def operator_words(
    signature: Signature, name: str, source: str, shown: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """Return what ``library.py.j2`` writes of a kernel's signature.

    Args:
        signature: The kernel's.
        name: The kernel's.
        source: The kernel's text, whose names the operator's function must not take.
        shown: The symbolic sizes that the given tensors show; the others become parameters.

    Raises:
        FusecError: Nothing is given to the kernel: an operator without a tensor has no device.
    """
    given = [a for a in signature.arguments if a.role != "out"]
    written = [a for a in signature.arguments if a.role == "out"]
    if not given:
        raise FusecError(
            f"{name} takes no tensor: torch could not tell where to run it as an operator",
            'export it as a file instead: form="file"',
        )
    taken: set[str] = set()
    tensors = [_parameter(a.name, taken) for a in given]
    hidden = [size for size in signature.sizes if size not in shown]
    numbers = [_parameter(size, taken) for size in hidden]
    typed = [f"{p}: torch.Tensor" for p in tensors] + [f"{p}: int" for p in numbers]
    operator = _parameter(name, set(taken))
    outputs = ", ".join(a.name for a in written)
    arguments = ", ".join([*tensors, *numbers])
    called = f"torch.ops.{NAMESPACE}.{operator}({arguments})"
    return {
        "namespace": NAMESPACE,
        "operator": operator,
        "function": _unused(f"{operator}_op", source),
        "parameters": ", ".join(typed),
        "given": f"({', '.join(tensors)}{',' if len(tensors) == 1 else ''})",
        "named": _named(hidden, numbers),
        "named_sizes": hidden,
        "mutated": tuple(p for p, a in zip(tensors, given, strict=True) if a.role == "inout"),
        "returns": _returns(len(written)),
        "result": ("", "return made[0]", "return tuple(made)")[min(len(written), 2)],
        "written": len(written),
        "call": f"{outputs} = {called}" if written else called,
    }


def _named(sizes: list[str], parameters: list[str]) -> str:
    pairs = [f'"{size}": {parameter}' for size, parameter in zip(sizes, parameters, strict=True)]
    return f"{{{', '.join(pairs)}}}" if pairs else ""


def _returns(count: int) -> str:
    if count < 2:
        return "torch.Tensor" if count else "None"
    return f"tuple[{', '.join(['torch.Tensor'] * count)}]"


def _unused(name: str, source: str) -> str:
    while re.search(rf"\b{name}\b", source):
        name += "_"
    return name


def _parameter(name: str, taken: set[str]) -> str:
    """Return a name that is valid in Python and in torch's schemas, and not taken yet."""
    plain = re.sub(r"\W", "_", name).strip("_") or "x"
    if plain[0].isdigit():
        plain = f"x{plain}"
    if keyword.iskeyword(plain) or plain in _RESERVED:
        plain = f"{plain}_"
    candidate, number = plain, 2
    while candidate in taken:
        candidate, number = f"{plain}_{number}", number + 1
    taken.add(candidate)
    return candidate
