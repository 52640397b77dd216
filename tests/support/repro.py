"""Programs that show a difference: what is called, on what, in eager and compiled.

Each is one file that anybody can run who has torch and fusec.  Tensors stand in it as numbers,
or where they are many as the bytes that they are made of; nothing is read from elsewhere.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_FEW = 128  # elements that stand in a program as numbers

_PROGRAM = '''\
"""{title}: eager and compiled, compared."""

import base64  # noqa: F401  (for tensors of many elements)
import zlib  # noqa: F401
from math import inf, nan  # noqa: F401  (values may be such)

import torch
import torch.nn.functional as F  # noqa: F401

import fusec  # noqa: F401  (registers the backend)

{function}

def inputs():
    """Return the arguments, positional and named."""
    args = [
{args}    ]
    kwargs = {{{kwargs}}}
    return args, kwargs


def run(call):
    """Return the results, or the error."""
    args, kwargs = inputs()
    torch.manual_seed(7)
    try:
        outputs = call(*args, **kwargs)
{gradients}    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
    return outputs


def main():
    """Print both."""
    compiled = torch.compile(function, backend="fusec", dynamic={dynamic})
    print("eager:   ", run(function))
    print("compiled:", run(compiled))


if __name__ == "__main__":
    main()
'''

_GRADIENTS = """\
        flat = torch.utils._pytree.tree_leaves
        tensors = [t for t in flat(outputs) if isinstance(t, torch.Tensor)]
        roots = [t for t in tensors if t.requires_grad]
        leaves = [t for t in flat((args, kwargs)) if isinstance(t, torch.Tensor)]
        leaves = [t for t in leaves if t.requires_grad]
        generator = torch.Generator().manual_seed(7)
        given = [torch.rand(t.shape, generator=generator, dtype=torch.float64) for t in roots]
        given = [w.to(t.dtype) for w, t in zip(given, roots)]
        outputs = outputs, torch.autograd.grad(roots, leaves, given, allow_unused=True)
"""

_OF_DATABASE = '''\
"""{title}: eager and compiled, compared."""

import sys

import {module} as suite

# PYTHONPATH must have the folder `tests` of the project: what is run is described there.
sys.exit(suite.again({given}))
'''


class NoProgram(ValueError):
    """Values that have no text."""


def program(
    title: str, function: str, values: Any, *, backward: bool = False, dynamic: bool = False
) -> str:
    """Return a program that calls ``function`` on some values in eager and compiled.

    Args:
        title: What it shows, for its first line.
        function: Text that defines ``function``; see ``operator_text``.
        values: The first argument, the other positional ones, the named ones.
        backward: Whether gradients are asked for too.
        dynamic: Whether every size is symbolic.

    Raises:
        NoProgram: A value has no text.
    """
    first, args, kwargs = values
    return _PROGRAM.format(
        title=title,
        function=function,
        args="".join(f"        {value_text(value)},\n" for value in (first, *args)),
        kwargs=", ".join(f"{name!r}: {value_text(value)}" for name, value in kwargs.items()),
        gradients=_GRADIENTS if backward else "",
        dynamic=dynamic,
    )


def operator_text(op: Any, *, flipped: bool = False) -> str:
    """Return text that defines ``function`` as an operator of torch's database.

    Args:
        op: The database's entry.
        flipped: Whether the last dimension of every tensor is turned round within.
    """
    name = _public_name(op.op, op.name)
    lines = []
    if name is None:
        lines += [
            "from torch.testing._internal.common_methods_invocations import op_db",
            "",
            f"NAME = ({op.name!r}, {op.variant_test_name!r})",
            "OPERATOR = next(o for o in op_db if (o.name, o.variant_test_name) == NAME).op",
            "",
        ]
    lines += ["", "def function(*args, **kwargs):", '    """What is compiled."""']
    if flipped:
        lines += [
            "    def turned(t):",
            "        return t.flip(-1) if isinstance(t, torch.Tensor) and t.ndim else t",
            "",
            "    args, kwargs = torch.utils._pytree.tree_map(turned, (args, kwargs))",
        ]
    return "\n".join([*lines, f"    return {name or 'OPERATOR'}(*args, **kwargs)", ""])


def _public_name(function: Callable[..., Any], name: str) -> str | None:
    for text in (f"torch.{name}", f"torch.Tensor.{name}"):
        found: Any = torch
        for part in text.split(".")[1:]:
            found = getattr(found, part, None)
        if found is function:
            return text
    return None


def value_text(value: Any) -> str:
    """Return an expression that makes a value again.

    Raises:
        NoProgram: There is none.
    """
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        inner = ", ".join(map(value_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {value_text(v)}" for k, v in value.items()) + "}"
    plain = (bool, int, float, complex, str, type(None), slice, type(...))
    if isinstance(value, (*plain, torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    if isinstance(value, torch.Size):
        return f"torch.Size({list(value)})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    raise NoProgram(f"a {type(value).__name__} has no text")


def _tensor_text(value: torch.Tensor) -> str:
    if value.layout != torch.strided or value.device.type != "cpu":
        raise NoProgram(f"a {value.layout} tensor on {value.device} has no text")
    with torch.no_grad():
        given = value.detach().resolve_conj().resolve_neg()
    placed = given.numel() and not given.is_contiguous()
    span = 1 + sum((n - 1) * s for n, s in zip(given.shape, given.stride(), strict=True))
    flat = given.as_strided((span,), (1,)) if placed else given.reshape(-1)
    text = _flat_text(flat)
    if placed:
        text += f".as_strided({tuple(given.shape)}, {given.stride()})"
    elif given.dim() != 1:
        text += f".reshape({tuple(given.shape)})"
    return f"{text}.requires_grad_()" if value.requires_grad else text


def _flat_text(flat: torch.Tensor) -> str:
    if flat.numel() <= _FEW:
        small = flat.dtype.itemsize < 4 and flat.dtype.is_floating_point
        return f"torch.tensor({(flat.float() if small else flat).tolist()}, dtype={flat.dtype})"
    raw = flat.contiguous().view(torch.uint8).numpy().tobytes()
    packed = base64.b64encode(zlib.compress(raw)).decode()
    made = f"bytearray(zlib.decompress(base64.b64decode({packed!r})))"
    return f"torch.frombuffer({made}, dtype={flat.dtype})"


def described_program(title: str, module: str, **given: object) -> str:
    """Return a program that runs a case of the suite again, for what has no text of its own.

    Args:
        title: What it shows.
        module: The module of the suite that has ``again``.
        given: Its arguments.
    """
    text = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return _OF_DATABASE.format(title=title, module=module, given=text)


def write(folder: Path, key: str, text: str) -> Path:
    """Write a program into a folder, named for what it shows; return where it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (re.sub(r"[^\w.-]+", "_", key).strip("_") + ".py")
    path.write_text(text)
    return path


__all__ = ["NoProgram", "described_program", "operator_text", "program", "value_text", "write"]
