"""The states of torch's own generators: of the processor, and of the GPUs that are in use.

torch has one generator for all threads.  What is timed and checked draws numbers, too, and a thread
beside the notebook's cannot put them back: what a cell has drawn meanwhile would be drawn twice.
There the seeds of graphs on the CPU come from a generator of the thread's own.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

import torch

from fusec.devices import CPU


class _OfThread(threading.local):
    """A thread's own generator, while it has one."""

    generator: torch.Generator | None = None


_of_thread = _OfThread()


def own_generator(device: torch.device) -> torch.Generator | None:
    """Return what this thread draws the seeds of graphs on a device from; None: torch's own."""
    return _of_thread.generator if device.type == CPU else None


class Generators:
    """What all generators of this thread would draw next, at one moment.

    A graph on a GPU draws its seed from that GPU's generator: whoever wants the same numbers twice
    has to put that one back as well.

    Args:
        draws: Whether what runs next draws from torch's generators, and not only seeds of graphs
            on the CPU.  If not, a thread that has a generator of its own leaves torch's alone.
    """

    def __init__(self, *, draws: bool = True) -> None:
        self._draws = draws
        own = _of_thread.generator
        self._own = None if own is None else own.get_state()
        touched = draws or own is None
        self._cpu = [torch.get_rng_state()] if touched else []
        used = torch.cuda.default_generators if touched and torch.cuda.is_initialized() else ()
        self._gpus = [generator.get_state() for generator in used]

    def now(self) -> Generators:
        """Return the same of this moment."""
        return Generators(draws=self._draws)

    def restore(self) -> None:
        """Let them draw the same again."""
        if self._own is not None and _of_thread.generator is not None:
            _of_thread.generator.set_state(self._own)
        for state in self._cpu:
            torch.set_rng_state(state)
        if self._gpus:
            for generator, state in zip(torch.cuda.default_generators, self._gpus, strict=False):
                generator.set_state(state)

    @property
    def _states(self) -> list[torch.Tensor]:
        return [*([] if self._own is None else [self._own]), *self._cpu, *self._gpus]

    def __eq__(self, other: object) -> bool:
        """Whether both would draw the same."""
        if not isinstance(other, Generators):
            return NotImplemented
        mine, others = self._states, other._states
        return len(mine) == len(others) and all(map(torch.equal, mine, others))

    __hash__ = None  # type: ignore[assignment]


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Leave torch's generators as they were: what is measured and checked draws numbers, too.

    In another thread than the main one nothing is put back: a notebook that draws meanwhile would
    be given the same numbers twice.  Seeds of graphs on the CPU come from a generator of the
    thread's own there; what operators of eager draw is drawn.
    """
    if threading.current_thread() is threading.main_thread():
        before = Generators()
        try:
            yield
        finally:
            before.restore()
    elif _of_thread.generator is not None:
        yield
    else:
        _of_thread.generator = torch.Generator().manual_seed(secrets.randbits(63))
        try:
            yield
        finally:
            _of_thread.generator = None


def reseed(seed: int, *, draws: bool = True) -> None:
    """Have the same numbers follow as after every other call with this seed.

    Args:
        seed: Any.
        draws: As for ``Generators``.
    """
    own = _of_thread.generator
    if own is not None:
        own.manual_seed(seed)
    if own is None or draws:
        torch.manual_seed(seed)


__all__ = ["Generators", "generators_kept", "own_generator", "reseed"]
