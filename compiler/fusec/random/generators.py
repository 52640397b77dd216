"""The states of torch's own generators: of the processor, and of the GPUs that are in use."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch


class Generators:
    """What all of torch's generators would draw next, at one moment.

    A graph on a GPU draws its seed from that GPU's generator: whoever wants the same numbers twice
    has to put that one back as well.
    """

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        used = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        self._gpus = [generator.get_state() for generator in used]

    def restore(self) -> None:
        """Let them draw the same again."""
        torch.set_rng_state(self._cpu)
        for generator, state in zip(torch.cuda.default_generators, self._gpus, strict=False):
            generator.set_state(state)

    def __eq__(self, other: object) -> bool:
        """Whether both would draw the same."""
        if not isinstance(other, Generators):
            return NotImplemented
        pairs = zip([self._cpu, *self._gpus], [other._cpu, *other._gpus], strict=False)
        return len(self._gpus) == len(other._gpus) and all(torch.equal(a, b) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Leave torch's generators as they were: what is measured and checked draws numbers, too.

    In another thread than the main one nothing is put back: a notebook that draws meanwhile would
    be given the same numbers twice.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = Generators()
    try:
        yield
    finally:
        before.restore()


__all__ = ["Generators", "generators_kept"]
