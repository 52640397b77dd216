"""One kernel on several sets of tensors at once: a start instead of many.

A small kernel is over before the next one has started, and an optimizer's step has hundreds.  What
is packed stays as it is: a few lines around it pick the pointers by the program's second number,
and call it, so that an edited kernel is packed like a generated one.  The pointers are parameters
of the packed kernel, not a table in memory, which each call would have to write.
"""

from __future__ import annotations

import linecache
import logging
import math
import re
from collections.abc import Sequence
from typing import Any

import torch

from fusec.target_api.base import PackedKernel
from fusec.targets.triton.toolchain import pool as triton_pool
from fusec.targets.triton.toolchain.interpret import compiling
from fusec.targets.triton.toolchain.load import load
from fusec.targets.triton.toolchain.sources import is_gluon

_log = logging.getLogger(__name__)
_ALIGNED = ["tt.divisibility", 16]
# Programs of the packed kernel are counted along the second direction.
_OTHER_PROGRAMS = re.compile(r"program_id\s*\(\s*(axis\s*=\s*)?[^0\s]|num_programs")
_SIMPLE = (bool, int, float, str, type(None))


# By the kernel's hash, the device and the count; Triton keeps what it compiled as well.
_packed: dict[tuple[str, int, int], PackedKernel | None] = {}


def pack(kernel: Any, count: int) -> PackedKernel | None:
    """Return ``kernel`` for ``count`` sets of tensors, ready to be started; None if it cannot be.

    Args:
        kernel: What Triton compiled for one set.
        count: How many there are; the grid's second size.
    """
    key = (kernel.hash, torch.cuda.current_device(), count)
    if key not in _packed:
        try:
            _packed[key] = _build(kernel, count)
        except Exception as error:  # whatever Triton says of it: the starts stay single
            _log.debug("not packed: %s", error)
            _packed[key] = None
    return _packed[key]


def _build(kernel: Any, count: int) -> PackedKernel | None:
    source = packed_source(kernel.src, count)
    if source is None:
        return None
    options = _options(kernel.metadata)
    needs = {"kernel": kernel.src.fn}
    # What a worker leaves in Triton's cache is found there.
    triton_pool.compile_source(source, options, kernel.metadata.target, needs)
    compiled = compile_packed(source, kernel.metadata)
    start = compiled.run  # has the driver load it
    assert start is not None
    metadata = compiled.metadata
    return PackedKernel(compiled, int(compiled.function), 32 * metadata.num_warps, metadata.shared)


def compile_packed(source: Any, metadata: Any) -> Any:
    """Compile what ``packed_source`` returned, as the original's ``metadata`` say it was."""
    import triton

    with compiling():
        return triton.compile(source, target=metadata.target, options=_options(metadata))


def _options(metadata: Any) -> dict[str, Any]:
    return {name: getattr(metadata, name) for name in ("num_warps", "num_stages", "num_ctas")}


def packed_source(original: Any, count: int) -> Any | None:
    """Return the source of a kernel that runs ``original`` on one of ``count`` sets of tensors.

    Args:
        original: The ``ASTSource`` of the kernel.
        count: How many sets.

    Returns:
        An ``ASTSource``; None if a program of the original asks where it is in more than one
        direction, takes pointers that are not aligned to 16 bytes, or is written in Gluon.
    """
    from triton.compiler import ASTSource

    function = original.fn
    if is_gluon(function):
        return None
    names = list(function.arg_names)
    kinds = [str(original.signature[name]) for name in names]
    constants = {names[place[0]]: value for place, value in original.constants.items()}
    text = "".join(linecache.getlines(function.fn.__code__.co_filename))
    if not text or _OTHER_PROGRAMS.search(text):
        return None
    pointers = [i for i, kind in enumerate(kinds) if kind.startswith("*")]
    if any(_ALIGNED not in original.attrs.get((i,), []) for i in pointers):
        return None
    numbers = [i for i, kind in enumerate(kinds) if kind != "constexpr" and i not in pointers]
    literals = {name: _literal(value) for name, value in constants.items()}
    if None in literals.values():
        return None
    arguments = [str(literals.get(name, "")) for name in names]
    namespace, _ = load(packed_text(pointers, numbers, arguments, count))
    namespace["kernel"] = function
    signature = {f"p{k}_{i}": kinds[i] for k in range(count) for i in pointers}
    signature |= {f"n{i}": kinds[i] for i in numbers}
    attributes = {(i,): [_ALIGNED] for i in range(len(pointers) * count)}
    for place, i in enumerate(numbers, len(attributes)):
        if (i,) in original.attrs:
            attributes[(place,)] = original.attrs[(i,)]
    return ASTSource(namespace["packed"], signature, {}, attributes)


def packed_text(
    pointers: Sequence[int], numbers: Sequence[int], arguments: Sequence[str], count: int
) -> str:
    """Return a file with a function ``packed`` that calls ``kernel``, which it does not define.

    Args:
        pointers: Which of the kernel's arguments are pointers.
        numbers: Which are integers.
        arguments: The text of the others, at their places.
        count: How many sets of pointers there are.
    """
    given = {i: f"q{i}" for i in pointers} | {i: f"n{i}" for i in numbers}
    called = [given.get(i, text) for i, text in enumerate(arguments)]
    parameters = [f"p{k}_{i}" for k in range(count) for i in pointers]
    parameters += [f"n{i}" for i in numbers]
    lines = ["import triton", "import triton.language as tl", "", "", "@triton.jit"]
    lines += [f"def packed({', '.join(parameters)}):", "    which = tl.program_id(1)"]
    lines += _picked(range(count), pointers, 1)
    return "\n".join([*lines, f"    kernel({', '.join(called)})", ""])


def _picked(sets: Sequence[int], pointers: Sequence[int], depth: int) -> list[str]:
    """Return lines that name the pointers of the set whose number is ``which``."""
    indent = "    " * depth
    if len(sets) == 1:
        return [f"{indent}q{i} = p{sets[0]}_{i}" for i in pointers]
    half = len(sets) // 2
    return [
        f"{indent}if which < {sets[half]}:",
        *_picked(sets[:half], pointers, depth + 1),
        f"{indent}else:",
        *_picked(sets[half:], pointers, depth + 1),
    ]


def _literal(value: object) -> str | None:
    """Return how a constant is written; None for one that cannot be."""
    import triton.language as tl

    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tl.dtype):
        return f"tl.{value}"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value) if isinstance(value, _SIMPLE) else None


__all__ = ["compile_packed", "pack", "packed_source", "packed_text"]
