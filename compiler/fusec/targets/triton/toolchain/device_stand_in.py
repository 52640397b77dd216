"""What a kernel file may ask of its GPU, answered where there is none: while its Python is tried.

That happens in a process whose memory is limited, in which CUDA cannot start; and what is tried
there has no business with a device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

import torch


class _Event:
    """An event that has happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0

    def synchronize(self) -> None:
        pass


class _Stream:
    """A stream with nothing on it."""

    cuda_stream = 0
    priority = 0

    def __init__(self, device: Any = None, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        pass


@contextlib.contextmanager
def device_stand_in(properties: Mapping[str, Any]) -> Iterator[None]:
    """Answer what a file may ask of ``torch.cuda`` (see ``permitted``) without a device.

    Args:
        properties: Of the GPU that it is meant for, by the names that torch gives them.
    """
    current = _Stream()
    there = SimpleNamespace(**properties)
    answers: dict[str, Any] = {
        "Stream": _Stream,
        "Event": _Event,
        "stream": contextlib.nullcontext,
        "device": contextlib.nullcontext,
        "current_stream": lambda device=None: current,
        "default_stream": lambda device=None: current,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: there,
        "get_device_capability": lambda device=None: (there.major, there.minor),
    }
    with mock.patch.multiple(torch.cuda, **answers):
        yield


__all__ = ["device_stand_in"]
