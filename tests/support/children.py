"""What suites share that run in many processes: their threads, their reports of JSON lines."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def in_threads(count: int, work: Callable[[], None], stop: Callable[[], None]) -> None:
    """Run ``work`` in some threads until all return; at an interrupt let what is running end.

    Args:
        count: How many threads.
        work: What each of them does.
        stop: Called at an interrupt; ``work`` returns soon afterwards.
    """
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stop()
        print("stopping; the same command goes on from here")
        for thread in threads:
            thread.join()


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield a report's lines; one that was cut off is left out, and so is a missing file."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:
            continue
