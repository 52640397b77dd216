"""torch's lists of what autocast does on a CPU: what is cast down, what up, what to the widest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import torch
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists
from torch.utils._pytree import tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Case
from ops.ways import case_of_call, run_again, unit_of, written

# What autocast casts to; a unit's dtype.
DTYPES = (torch.bfloat16, torch.float16)
Call = tuple[Callable[..., Any], dict[torch.dtype, Any], dict[str, Any]]


def names() -> list[str]:
    """Return the names of the calls, each after that of its list."""
    return list(_calls())


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of a call."""
    for direction in ("forward", "backward"):
        for dtype in DTYPES if direction in asked.directions else ():
            if short(dtype) in asked.dtypes:
                yield unit_of(_cases, name, direction, dtype, asked)


@lru_cache(maxsize=1)
def _calls() -> dict[str, Call]:
    """Return each function, its arguments by what autocast casts to, and its keywords."""
    torch.manual_seed(0)
    lists = vars(AutocastCPUTestLists("cpu"))
    found: dict[str, Call] = {}
    for title, listed in lists.items():
        places = (torch.Tensor,) if title.startswith("methods") else (torch._C._nn, torch)
        places = places[::-1] if title.startswith("torch") else places
        for name, args, *others in listed:
            function = next((getattr(p, name) for p in places if hasattr(p, name)), None)
            if function is None:
                continue  # `Tensor.__div__`: torch's own test leaves it out as well
            half = others[0] if others and isinstance(others[0], tuple) else args
            keywords = others[0] if others and isinstance(others[0], dict) else {}
            by_type = {torch.bfloat16: args, torch.float16: half}
            found[f"{title}.{name}"] = (function, by_type, keywords)
    return found


def _cases(name: str, direction: str, dtype: torch.dtype, dynamic: bool) -> Iterator[Case]:
    backward = direction == "backward"
    function, by_type, keywords = _calls()[name]

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        wanted = backward and value.is_floating_point()
        # What autocast casts up is given in what it casts down to.
        if dtype == torch.float16 and value.dtype == torch.bfloat16:
            value = value.to(dtype)
        return value.detach().clone().requires_grad_(wanted)

    first, *others = by_type[dtype]
    values = tree_map(made, (first, tuple(others), keywords))

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return function(*args, **kwargs)

    program = written(__name__, name, direction, dtype, dynamic)
    yield case_of_call(call, values, backward, program)


again = partial(run_again, _cases)

__all__ = ["again", "asked_units", "names"]
