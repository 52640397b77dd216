"""Calls of a candidate where all that has an address lies elsewhere, and with other threads.

No kernel's results hang on where its tensors, its code, its stack or the C library's memory lie.
An edit that asks for that is right in the process that checks it and wrong in the notebook's, or
the next day.  So it is called in many places drawn at random, and what differs in a bit from the
call before is handed to whoever knows the right results.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fusec.errors import LoadError
from fusec.systems import this_system
from fusec.target_api.library_worker import LibraryCandidate
from fusec.target_api.worker import WorkerKernel
from fusec.verify.guard import PAGE, Area, round_up

# How many there are at most and at least, and how long those beyond the least may take.
_MOST, _LEAST, _LEAST_OF_SMALL = 64, 4, 32
_SMALL = 1 << 20
_SECONDS = 0.02  # of this process, so that a busy machine has as many
# Results that differ, each of which has to be looked at.
SHOWN = 4
# As torch aligns what it allocates; a place is any multiple of it.
_ALIGNED = 64
# Where a process may have memory.
_LOWEST, _HIGHEST = 1 << 32, 1 << 46
# Of the C library's memory, that lies before what is asked for; once in a while this is more.
_BEFORE = 96 << 10
# Sizes of which what was freed last is handed out next.
_FREED = range(24, 1048, 16)
_STACK = 8 << 20
# How often the code is loaded anew, and between how many calls.
_LOADS, _BETWEEN = 8, 4
_CODE_PAGES = 96

ELSEWHERE = "where its memory, its stack or its code lie elsewhere"

Make = Callable[[Sequence[Area]], Sequence[Any]]


class Relocated:
    """One candidate, with its operands and code in other places.

    Args:
        candidate: What is called.
        operands: Its tensors (``child.TensorSpec``).
        sources: The addresses of their bytes.
        results: The areas in which the results of the call before are.
        given: Makes arguments of areas.
        sizes: Its symbolic sizes.
    """

    def __init__(
        self,
        candidate: WorkerKernel,
        operands: Sequence[Any],
        sources: Sequence[int],
        results: Sequence[Area],
        given: Make,
        sizes: Sequence[int],
    ) -> None:
        self.candidate = self._loaded = candidate
        self.operands, self.sources, self.results = operands, sources, results
        self.given, self.sizes = given, sizes
        self._random = random.SystemRandom()
        self._kept: list[int] = []  # of the C library's memory: what comes next lies behind it
        self._libc = ctypes.CDLL(None)
        self._libc.malloc.restype = ctypes.c_void_p
        self._libc.free.argtypes = [ctypes.c_void_p]

    def differing(
        self, threads: int, teams: Sequence[int], alive: Callable[[], object]
    ) -> Iterator[tuple[str, Sequence[Area]]]:
        """Call it in many places; yield which results differ from those before, and in what.

        Args:
            threads: How many it is called with.
            teams: Other numbers of threads, each once.
            alive: Told before every call.
        """
        deadline = time.process_time() + _SECONDS
        small = sum(operand.nbytes for operand in self.operands) <= _SMALL
        least = _LEAST_OF_SMALL if small else _LEAST
        for number in range(_MOST):
            if number >= least and time.process_time() > deadline:
                break
            alive()
            if number % _BETWEEN == _BETWEEN - 1 and number < _LOADS * _BETWEEN:
                self._load_again()
            way = (self._here, self._on_a_stack, self._on_a_thread)[number % 3]
            yield from self._call(threads, way, ELSEWHERE)
        usual = torch.get_num_threads()
        for team in teams:
            alive()
            if _can_start(team):
                torch.set_num_threads(team)  # OpenMP says so to whoever asks
                yield from self._call(team, self._here, f"with {team} threads")
        torch.set_num_threads(usual)

    def _call(
        self, threads: int, way: Callable[[Sequence[Area], int], object], label: str
    ) -> Iterator[tuple[str, Sequence[Area]]]:
        with self._areas() as areas:
            for operand, area, source in zip(self.operands, areas, self.sources, strict=True):
                if operand.role == "out":
                    area.fill(0)
                else:
                    area.copy_from(source)
            # What it has freed in the call before would be its own again.
            before = (*_FREED, self._random.randrange(1, _BEFORE))
            self._kept += map(self._libc.malloc, before)
            way(areas, threads)
            if not all(
                operand.role == "in" or area.equals(before.start)
                for operand, area, before in zip(self.operands, areas, self.results, strict=True)
            ):
                yield label, areas

    # -- on which stack -----------------------------------------------------------------------

    def _here(self, areas: Sequence[Area], threads: int) -> None:
        self._loaded(self.given(areas), self.sizes, threads)

    def _on_a_thread(self, areas: Sequence[Area], threads: int) -> None:
        """Call on a new thread, which has a stack and a part of the C library's memory."""

        def call() -> None:
            self._kept.append(self._libc.malloc(self._random.randrange(1, _BEFORE)))
            self._here(areas, threads)

        usual = threading.stack_size(_STACK + PAGE * self._random.randrange(1, 64))
        try:
            thread = threading.Thread(target=call, daemon=True)
            thread.start()
        except RuntimeError:  # there are too many
            self._here(areas, threads)
            return
        finally:
            threading.stack_size(usual)
        thread.join()

    def _on_a_stack(self, areas: Sequence[Area], threads: int) -> None:
        candidate = self._loaded
        if not isinstance(candidate, LibraryCandidate):
            self._here(areas, threads)
            return
        with self._pages(_STACK) as base:
            size = _STACK - 16 * self._random.randrange(512)
            if not candidate.call_on(self.given(areas), self.sizes, threads, (base, size)):
                self._on_a_thread(areas, threads)

    # -- where the code lies ------------------------------------------------------------------

    def _load_again(self) -> None:
        if not isinstance(self.candidate, LibraryCandidate):
            return
        with contextlib.suppress(OSError, MemoryError, LoadError):
            # Without these pages it would lie right below the one before.
            this_system().reserve(PAGE * self._random.randrange(1, _CODE_PAGES))
            self._loaded = self.candidate.again()

    # -- where the operands lie ---------------------------------------------------------------

    @contextlib.contextmanager
    def _areas(self) -> Iterator[list[Area]]:
        """Yield an area an operand: side by side, anywhere, or of the C library's memory."""
        own = [at for at, operand in enumerate(self.operands) if operand.same_as < 0]
        self._random.shuffle(own)
        with contextlib.ExitStack() as stack:
            lay = self._random.choice((self._beside, self._anywhere, self._of_malloc))
            starts = lay(stack, [self.operands[at].nbytes for at in own])
            made: dict[int, Area] = {}
            for at, start in zip(own, starts, strict=True):
                size = self.operands[at].nbytes
                made[at] = Area(self.operands[at].name, start, size, start, size)
            yield [
                made[at if operand.same_as < 0 else operand.same_as]
                for at, operand in enumerate(self.operands)
            ]

    def _beside(self, stack: contextlib.ExitStack, sizes: Sequence[int]) -> list[int]:
        places, end = [], 0
        for size in sizes:
            places.append(end + self._offset())
            end = places[-1] + -(-size // _ALIGNED) * _ALIGNED
        base = stack.enter_context(self._pages(end))
        return [base + place for place in places]

    def _anywhere(self, stack: contextlib.ExitStack, sizes: Sequence[int]) -> list[int]:
        starts = []
        for size in sizes:
            offset = self._offset()
            starts.append(stack.enter_context(self._pages(offset + size)) + offset)
        return starts

    def _of_malloc(self, stack: contextlib.ExitStack, sizes: Sequence[int]) -> list[int]:
        starts = []
        for size in sizes:
            self._kept.append(self._libc.malloc(self._random.randrange(1, _BEFORE)))
            pointer = ctypes.c_void_p()
            wanted = ctypes.c_size_t(size or 1)
            if self._libc.posix_memalign(ctypes.byref(pointer), ctypes.c_size_t(_ALIGNED), wanted):
                raise MemoryError("no memory")
            stack.callback(self._libc.free, pointer)
            starts.append(int(pointer.value or 0))
        return starts

    def _offset(self) -> int:
        return _ALIGNED * self._random.randrange(2 * PAGE // _ALIGNED)

    @contextlib.contextmanager
    def _pages(self, size: int) -> Iterator[int]:
        """Yield the address of memory that lies anywhere."""
        hint = self._random.randrange(_LOWEST // PAGE, _HIGHEST // PAGE) * PAGE
        size = round_up(max(size, 1))
        base = this_system().reserve(size, hint)
        try:
            this_system().open_pages(base, size)
            yield base
        finally:
            this_system().release(base, size)


def _can_start(threads: int) -> bool:
    """Whether so many threads can be there at once: OpenMP ends the process where they cannot."""
    gate = threading.Event()
    started = []
    try:
        for _ in range(threads):
            thread = threading.Thread(target=gate.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        gate.set()
        for thread in started:
            thread.join()
    return True


__all__ = ["ELSEWHERE", "SHOWN", "Relocated"]
