"""How fast this processor multiplies matrices of half precision, measured once a machine.

Instructions alone do not say it.  Without any oneDNN converts both operands again for every block
of a product: bfloat16 runs at a third of float32's speed on AVX-512, float16 at a tenth.  A Xeon
that has them (AVX-512's, but no AMX) multiplies bfloat16 at half of float32's speed all the same.
So both are timed, a tenth of a second once; the store keeps what was found, so that the same
program computes the same the next time.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from dataclasses import asdict

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fusec.cache import default_store
from fusec.machine import HalfSpeed, current_machine, processor

KIND, FILE, SCHEMA = "speeds", "speed.json", 1
# Rows, what is summed over, and columns: of a linear layer with 128 tokens.
_SIZES = (128, 768, 768)
_CONVERTED = 8 << 20  # elements: more than the caches hold
_ROUNDS = 7


def half_speed(dtype: torch.dtype) -> HalfSpeed:
    """Return what products of ``dtype`` cost on the machine with the current threads."""
    told = dict(current_machine().half_speed).get(str(dtype).removeprefix("torch."))
    if told is not None:
        return told
    return _half_speed(dtype, torch.get_num_threads())


@functools.cache
def _half_speed(dtype: torch.dtype, threads: int) -> HalfSpeed:
    key = {
        "schema": SCHEMA,
        "dtype": str(dtype),
        "processor": processor(),
        "threads": threads,
        "torch": torch.__version__,
    }
    store = default_store()
    entry = store.get(KIND, key)
    if entry is not None:
        return HalfSpeed(**json.loads(entry.read_text(FILE)))
    found = measured(dtype)
    store.put(KIND, key, {FILE: json.dumps(asdict(found)).encode()})
    return found


def measured(dtype: torch.dtype) -> HalfSpeed:
    """Measure; see ``HalfSpeed``. The least of several times, both kinds of products in turns."""
    # A graph of fake tensors is being compiled, perhaps under autocast.
    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
        rows, inner, columns = _SIZES
        left = torch.linspace(-1, 1, rows * inner).reshape(rows, inner)
        right = torch.linspace(-1, 1, columns * inner).reshape(columns, inner)
        result = torch.empty(rows, columns)
        half_left, half_right, half_result = (t.to(dtype) for t in (left, right, result))
        narrow = torch.zeros(_CONVERTED, dtype=dtype)
        wide = torch.zeros(_CONVERTED)
        least = _least(
            lambda: torch.mm(half_left, half_right.t(), out=half_result),
            lambda: torch.mm(left, right.t(), out=result),
            lambda: wide.copy_(narrow),
        )
    work = rows * inner * columns
    half, single, conversion = (seconds * 1e9 for seconds in least)
    return HalfSpeed(half / work, single / work, conversion / _CONVERTED)


def _least(*calls: Callable[[], object]) -> list[float]:
    """Return the least time of each call, in seconds; the first ones are not counted."""
    least = [float("inf")] * len(calls)
    for number in range(_ROUNDS + 1):
        for position, call in enumerate(calls):
            start = time.perf_counter()
            call()
            if number:
                least[position] = min(least[position], time.perf_counter() - start)
    return least


__all__ = ["HalfSpeed", "half_speed", "measured"]
