"""The process that runs Triton candidates on a GPU, a program of its own (``python -m``).

A process that has a CUDA context cannot be forked, and a device error spoils the context for
good.  So this process is started afresh, keeps its context from one request to the next, and
ends after a device error; the parent ends it where a kernel does not come back.  A GPU has no
guard pages: every operand lies between margins filled with the run's poison, which are looked
at afterwards and which make what is read from them show in the result.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import mmap
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from fusec.devices import GPU
from fusec.systems import this_system
from fusec.target_api.worker import Tell, WorkerKernel
from fusec.verify.isolation import device_endurance
from fusec.verify.isolation.child import describe_error, prepare
from fusec.verify.isolation.operands import TensorSpec
from fusec.verify.protocol import Message, poison_byte, receive, send

_MARGIN = 64 << 10
_LARGEST_MARGIN = 16 << 20
_HEARTBEAT = 5.0

# After these the context answers every call with the same error. torch hands on CUDA's errors in
# words alone.
_STICKY = (
    "illegal memory access",
    "misaligned address",
    "unspecified launch failure",
    "illegal instruction",
    "device-side assert",
    "invalid program counter",
)

_kept: list[BaseException] = []


class Padded:
    """One operand on the device, between margins."""

    def __init__(
        self,
        operand: TensorSpec,
        index: int,
        data: memoryview,
        device: str,
        margin: int | None = None,
    ) -> None:
        self.operand = operand
        self.poison = poison_byte(operand.kind, index)
        # A multiple of what allocations are aligned to, so that an operand is as aligned as any.
        size = min(max(_MARGIN, operand.nbytes), _LARGEST_MARGIN) if margin is None else margin
        self.margin = -(-size // 512) * 512
        # A margin of another length in the second run: what is read from afar changes, too.
        self.margin *= 1 + index % 2
        self.raw = torch.full(
            (2 * self.margin + operand.nbytes,), self.poison, dtype=torch.uint8, device=device
        )
        self.own = self.raw[self.margin : self.margin + operand.nbytes]
        self.original: torch.Tensor | None = None
        self.fill(data, operand.offset)

    def fill(self, data: memoryview, offset: int) -> None:
        """Take the values of what is read from the request's data."""
        operand = self.operand
        if operand.role != "out" and operand.nbytes:
            part = data[offset : offset + operand.nbytes]
            host = torch.from_numpy(np.frombuffer(part, dtype=np.uint8).copy())
            self.original = host.to(self.raw.device)
            self.own.copy_(self.original)

    @property
    def updated(self) -> bool:
        """Whether a call reads it and writes it."""
        return self.operand.role == "inout"

    def clear(self) -> None:
        """Overwrite it where a call only writes it."""
        if self.operand.role == "out":
            self.own.fill_(self.poison)

    def restore(self) -> None:
        """Put back what a call has updated."""
        if self.operand.role == "inout" and self.original is not None:
            self.own.copy_(self.original)

    @property
    def address(self) -> int:
        """Where its first element is."""
        return self.own.data_ptr()

    def tensor(self) -> torch.Tensor:
        """Return it as the kernel takes it."""
        operand = self.operand
        dtype: torch.dtype = getattr(torch, operand.dtype)
        if not operand.nbytes:
            return torch.empty_strided(
                operand.shape, operand.strides, dtype=dtype, device=self.raw.device
            )
        return self.own.view(dtype).as_strided(operand.shape, operand.strides)

    def problem(self) -> Message | None:
        """Return what the run did that it may not."""
        name, itemsize = self.operand.name, self.operand.itemsize
        after = self._first(self.raw[self.margin + self.operand.nbytes :] != self.poison)
        if after >= 0:
            return {"problem": "margin", "name": name, "distance": after}
        before = self._first(self.raw[: self.margin].flip(0) != self.poison)
        if before >= 0:
            return {"problem": "margin", "name": name, "distance": -1 - before}
        if self.operand.role == "in":
            if self.original is not None:
                changed = self._first(self.own != self.original)
                if changed >= 0:
                    return {"problem": "input", "name": name, "element": changed // itemsize}
        elif self.operand.has_gaps:
            gaps = torch.from_numpy(self.operand.gaps()).to(self.raw.device)
            wanted = self.original if self.original is not None else self.poison
            changed = self._first((self.own != wanted) & gaps.repeat_interleave(itemsize))
            if changed >= 0:
                return {"problem": "gap", "name": name, "element": changed // itemsize}
        return None

    @staticmethod
    def _first(mask: torch.Tensor) -> int:
        return int(mask.to(torch.uint8).argmax()) if bool(mask.any()) else -1


def run(body: Message, data: memoryview, result_file: int, tell: Tell) -> list[Message]:
    """Run the candidate on all cases, tell of each run, and return the reports."""
    reports: list[Message] = []
    candidate: WorkerKernel | None = None
    try:
        candidate = prepare(body)
        if body["endure"] is not None:
            return [_endured(body, candidate, data, result_file)]
        for case in body["cases"]:
            outcome = _run_case(body, case, candidate, data, result_file, tell)
            if "problem" in outcome:
                return [*reports, {"result": outcome}]
            reports.append({"done": outcome})
    except Exception as error:
        described = describe_error(error, body["file"])
        if candidate is not None:
            described.update(candidate.refused(error))
        if is_sticky(error):
            # Freeing a tensor in a spoilt context ends the process, and the report with it.
            _kept.append(error)
            described = {
                "problem": "device",
                "message": str(error),
                "traceback": described["traceback"],
            }
        return [*reports, {"result": described}]
    return reports


def is_sticky(error: BaseException) -> bool:
    """Whether the device's context is spoilt."""
    return any(words in str(error) for words in _STICKY)


def _run_case(
    body: Message,
    case: Message,
    candidate: WorkerKernel,
    data: memoryview,
    result_file: int,
    tell: Tell,
) -> Message:
    operands = [TensorSpec.read(a) for a in case["arguments"]]
    first: list[Padded] = []
    seconds = 0.0
    same = []
    for index in range(len(body["runs"])):
        padded = _padded(operands, index, data, body["device"], body.get("margin"))
        torch.cuda.synchronize()
        started = time.perf_counter()
        candidate(padded, case["sizes"], 1)
        torch.cuda.synchronize()
        seconds = seconds or time.perf_counter() - started
        tell("run", 0.0)
        for each in padded:
            problem = each.problem()
            if problem is not None:
                return problem
        same.append(
            bool(first)
            and all(
                a.operand.role == "in" or torch.equal(a.own, b.own)
                for a, b in zip(padded, first, strict=True)
            )
        )
        if case["results"] and not same[-1]:
            _write(padded, result_file, case["base"] + index * case["results"])
        first = first or padded
    return {"seconds": seconds, "same": same}


def _padded(
    operands: Sequence[TensorSpec],
    index: int,
    data: memoryview,
    device: str,
    margin: int | None = None,
) -> list[Padded]:
    """Return each operand on the device; once where several are one tensor."""
    made: list[Padded] = []
    for operand in operands:
        same = made[operand.same_as] if operand.same_as >= 0 else None
        made.append(same or Padded(operand, index, data, device, margin))
    return made


def _endured(body: Message, candidate: WorkerKernel, data: memoryview, result_file: int) -> Message:
    """Call the candidate many times on the first case, then on the last."""
    case, last = body["cases"][0], body["cases"][-1]
    asked = body["endure"]
    padded = _padded([TensorSpec.read(a) for a in case["arguments"]], 0, data, body["device"])
    other = prepare({**body, **asked["generated"]}) if asked["generated"] else None
    found = device_endurance.endure(
        asked["timing"],
        lambda: candidate(padded, case["sizes"], 1),
        (lambda: other(padded, case["sizes"], 1)) if other is not None else None,
        padded,
    )
    if "problem" in found:
        return {"result": found}
    # Other values, where the earlier ones were.
    for each, described in zip(padded, last["arguments"], strict=True):
        each.fill(data, described["offset"])
    candidate(padded, case["sizes"], 1)
    torch.cuda.synchronize()
    for each in padded:
        problem = each.problem()
        if problem is not None:
            return {"result": problem}
    if last["results"]:
        _write(padded, result_file, last["base"])
    return {"endured": found}


def _write(padded: Sequence[Padded], result_file: int, base: int) -> None:
    for each in padded:
        if each.operand.result >= 0 and each.operand.nbytes:
            content = memoryview(each.own.cpu().numpy().tobytes())
            done = 0
            while done < len(content):
                done += os.pwrite(result_file, content[done:], base + each.operand.result + done)


def serve(sock: socket.socket) -> None:
    """Answer requests until the other side is gone or the context is spoilt."""
    parent = os.getppid()
    while True:
        ready, _, _ = select.select([sock.fileno()], [], [], _HEARTBEAT)
        if not ready:
            if os.getppid() != parent:
                return
            continue
        request, descriptors = receive(sock)
        if request is None:
            return
        reply = _answer(request, descriptors, functools.partial(_tell, sock))
        send(sock, reply)
        if any(r.get("result", {}).get("problem") == "device" for r in reply["reports"]):
            # Without the clean-up that a spoilt context would only hang in.
            os._exit(1)


def _tell(sock: socket.socket, phase: str, seconds: float) -> None:
    send(sock, {"phase": phase, "seconds": seconds})


def _answer(request: Message, descriptors: tuple[int, ...], tell: Tell) -> Message:
    reports: list[Message] = []
    try:
        if request["do"] == "run":
            start, length = request["body"]
            data_file, result_file = descriptors
            # Unmapped when the last reference goes, which an exception may hold for a while.
            data = mmap.mmap(data_file, start + length, access=mmap.ACCESS_READ)
            body = json.loads(data[start : start + length])
            announce = getattr(importlib.import_module(body["worker"]), "announce", None)
            if announce is not None:
                announce(tell)
            reports = run(body, memoryview(data), result_file, tell)
    finally:
        for descriptor in descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    return {"reports": reports, "timeout": False, "status": 0, "log": "", "seconds": 0.0}


def main(descriptor: int) -> None:
    """Make a context, say so, and serve."""
    this_system().ignore_interrupts()
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    import triton  # noqa: F401

    torch.zeros(1, device=GPU)
    torch.cuda.synchronize()
    send(sock, {"ready": True, "pid": os.getpid()})
    serve(sock)


if __name__ == "__main__":
    main(int(sys.argv[1]))
