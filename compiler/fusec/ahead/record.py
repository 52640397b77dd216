"""Collect the signatures of real runs: ``with fusec.record() as signatures:``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from fusec.ahead.signatures import CallSignature, NotWritable, save_signatures


class Recording:
    """Signatures of calls, each once, in order of the first call.

    Attributes:
        skipped: Why some calls could not be written down.
    """

    def __init__(self) -> None:
        self._found: dict[CallSignature, int] = {}
        self._lock = threading.Lock()
        self.skipped: list[str] = []

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a call."""
        try:
            signature = CallSignature.of(*args, **kwargs)
        except NotWritable as error:
            with self._lock:
                if error.message not in self.skipped:
                    self.skipped.append(error.message)
            return
        with self._lock:
            self._found[signature] = self._found.get(signature, 0) + 1

    def __iter__(self) -> Iterator[CallSignature]:
        return iter(list(self._found))

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, position: int) -> CallSignature:
        return list(self._found)[position]

    def counts(self) -> dict[CallSignature, int]:
        """Return how often each was called."""
        with self._lock:
            return dict(self._found)

    def save(self) -> str:
        """Return them as text; ``load_signatures`` reads it."""
        return save_signatures(self)

    def __str__(self) -> str:
        lines = [f"{count} x {signature}" for signature, count in self.counts().items()]
        return "\n".join([*lines, *(f"not recorded: {why}" for why in self.skipped)])


_active: list[tuple[Recording, object]] = []
_lock = threading.Lock()


@contextlib.contextmanager
def recording(function: object = None) -> Iterator[Recording]:
    """Collect the signatures of the calls of compiled functions, in all threads.

    Args:
        function: The compiled function whose calls are wanted; None for all.
    """
    made = Recording()
    entry = (made, function)
    with _lock:
        _active.append(entry)
    try:
        yield made
    finally:
        with _lock:
            _active.remove(entry)


def is_recording() -> bool:
    """Whether anybody records."""
    return bool(_active)


def note_call(function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Tell whoever records of a call."""
    for made, wanted in tuple(_active):
        if wanted is None or wanted is function:
            made.note(args, kwargs)


__all__ = ["Recording", "is_recording", "note_call", "recording"]
