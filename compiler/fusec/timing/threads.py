"""How many threads torch's own operators have, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let operators and kernels run on the calling thread alone.

    Others are not counted where it is; and OpenMP's threads, which wait by looking again and again,
    take no processor from a worker.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


__all__ = ["one_thread"]
