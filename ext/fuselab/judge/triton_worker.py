"""A Triton answer in the process that runs it: interpreted under watch, or started on a GPU.

The answer's function is called with handles that have shapes and strides and no values, so that
the kernels which it starts are all that can compute anything.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusec.devices import is_gpu
from fusec.errors import CompileError
from fusec.target_api.worker import Placed
from fusec.targets.triton.toolchain.candidate import load_file
from fusec.targets.triton.toolchain.starts import RecordedStart
from fusec.targets.triton.toolchain.watched_run import (
    Handle,
    check_start,
    collecting,
    interpret_starts,
    with_tensors,
)
from fuselab.judge.answer_worker import CLOCK, REPORT, write_text

_ROUNDS = 30
_FLUSHED = 1 << 28  # bytes that are written between two calls, so that the cache holds nothing


class FrontEndRefusal(Exception):
    """Triton's front end refuses an answer; a line and what it says, as JSON."""


class NothingStarted(Exception):
    """An answer starts no kernel."""


class TritonAnswer:
    """An answer that has been loaded."""

    thrown_away = True  # with its process: compilers start threads

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.way = request["way"]
        self.names: Sequence[tuple[str, str]] = request["operands"]
        self.interpreted = not is_gpu(request["device"])
        self.namespace = load_file(request["text"], request["file"])
        self.function = self.namespace[request["entry"]]
        self._checked = False

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return nothing more of an error that loading raised."""
        return {}

    def __call__(self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int) -> int:
        """Run once, on a GPU many times where it is to be timed."""
        everything = {
            name: argument.tensor()
            for (name, _), argument in zip(self.names, arguments, strict=True)
        }
        special = (CLOCK, REPORT)
        tensors = {name: tensor for name, tensor in everything.items() if name not in special}
        starts = self._starts(tensors)
        if self.interpreted:
            # An answer may touch the same memory twice: what counts is the order of programs.
            watch = interpret_starts(starts, tensors, strict=True)
            if self.way == "count":
                found = {"kernels": watch.starts, "bytes": watch.read + watch.written}
                write_text(everything[REPORT], {**found, "programs": watch.programs})
            return 0
        run(starts)
        if self.way == "time":
            moved = sum(tensor.nbytes for tensor in tensors.values())
            written = [tensors[n] for n, role in self.names if role == "out" and n in tensors]
            seconds = timed(starts, moved, written)
            everything[CLOCK].copy_(torch.tensor(seconds, dtype=torch.float64))
        return 0

    def _starts(self, tensors: Mapping[str, torch.Tensor]) -> list[RecordedStart]:
        handles = [Handle(tensor, name) for name, tensor in tensors.items()]
        with collecting(self.namespace) as found:
            self.function(*handles)
        if not found:
            raise NothingStarted("it starts no kernel: kernel[(programs,)](...) does")
        starts = list(map(with_tensors, found))
        if not self._checked:
            for start in starts:
                try:
                    check_start(start, self.namespace, self.namespace["__file__"])
                except CompileError as error:
                    first = error.diagnostics[0] if error.diagnostics else None
                    said = [first.line, first.message] if first else [None, error.message]
                    raise FrontEndRefusal(json.dumps(said)) from None
            self._checked = True
        return starts


def run(starts: Sequence[RecordedStart]) -> None:
    """Start kernels on a GPU."""
    for start in starts:
        start.function[start.grid](*start.args, **start.kwargs)


def timed(
    starts: Sequence[RecordedStart], moved: int, written: Sequence[torch.Tensor]
) -> list[float]:
    """Return seconds of the starts, and of a copy of as many bytes, in turns, on a GPU.

    What has to be written is made NaN before each call: nobody finds it done.
    """
    device = starts[0].args[0].device
    flushed = torch.empty(_FLUSHED, dtype=torch.uint8, device=device)
    source = torch.empty(max(moved // 2, 1), dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    own: list[float] = []
    copies: list[float] = []
    ways = ((functools.partial(run, starts), own), (functools.partial(copy.copy_, source), copies))
    for _ in range(_ROUNDS):
        for tensor in written:
            tensor.view(-1).view(torch.uint8).fill_(255)
        for do, times in ways:
            flushed.zero_()
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            do()
            after.record()
            after.synchronize()
            times.append(before.elapsed_time(after) / 1e3)
    return [sorted(times)[len(times) // 2] for times in (own, copies)]


def prepare(request: Mapping[str, Any]) -> TritonAnswer:
    """Load the answer that a request holds."""
    return TritonAnswer(request)


__all__ = ["FrontEndRefusal", "NothingStarted", "TritonAnswer", "prepare"]
