"""TorchDynamo's remarks that say nothing to a user are left out while fusec compiles.

An optimizer marks its step for the profiler, and TorchDynamo warns that it ignores the mark: in a
notebook a red box, about code that nobody wrote, below every training cell.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

_LOGGER = "torch._dynamo.variables.ctx_manager"
_REMARK = "Profiler record function"


def _says_something(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_REMARK)


@contextlib.contextmanager
def no_profiler_remarks() -> Iterator[None]:
    """Within it nothing is logged about marks for the profiler; all else is, as ever."""
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(_says_something)  # a second time is none
    try:
        yield
    finally:
        logger.removeFilter(_says_something)


__all__ = ["no_profiler_remarks"]
