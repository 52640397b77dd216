"""torch's list of calls of ``torch.nn.functional``, which its scripting tests run."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch.testing._internal import jit_metaprogramming_utils as listed
from torch.utils._pytree import tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Case
from ops.ways import case_of_call, run_again, unit_of, written
from support.opinfo import quiet

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Call = tuple[Callable[..., Any], Any, Any]  # the function, its first argument, the others


def names() -> list[str]:
    """Return the names of the calls."""
    return list(_calls())


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of a call."""
    for direction in ("forward", "backward"):
        for dtype in DTYPES if direction in asked.directions else ():
            if short(dtype) in asked.dtypes:
                yield unit_of(_cases, name, direction, dtype, asked)


@lru_cache(maxsize=1)
def _calls() -> dict[str, Call]:
    torch.manual_seed(0)  # the list has numbers of its own
    found: dict[str, Call] = {}
    for name, first, args, *others in listed.get_nn_functional_tests():
        variant = others[0] if others else ""
        function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
        found[f"{name}.{variant}" if variant else name] = (function, first, args)
    return found


def _cases(name: str, direction: str, dtype: torch.dtype, dynamic: bool) -> Iterator[Case]:
    backward = direction == "backward"
    function, first, args = _calls()[name]
    torch.manual_seed(zlib.crc32(name.encode()))

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return value.detach().to(dtype).requires_grad_(value.requires_grad and backward)

    with quiet():
        (own,), _ = listed.create_input((first,))
        others, _ = listed.create_input(args)
    values = tree_map(made, (own, tuple(others), {}))

    program = written(__name__, name, direction, dtype, dynamic)
    yield case_of_call(function, values, backward, program)


again = partial(run_again, _cases)

__all__ = ["again", "asked_units", "names"]
