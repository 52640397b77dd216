"""An answer in the process that is thrown away: see ``fusec.verify.isolation.child``.

That process is forked from one which has imported torch and computed nothing.  It gets the answer's
text and inputs between untouchable memory, and nothing else; whatever the answer does to it, what
counts are the bytes that it leaves in its outputs, which are looked at elsewhere.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusec.systems import this_system
from fusec.target_api.worker import Placed
from fusec.verify.isolation.child import describe_error

FILE = "answer.py"
CLOCK = "the clock"  # the name of the output that takes the times of calls
POKES = "the pokes"  # the name of the input that says what changes between them
SEEN = "what was seen"  # the name of the output that takes some elements of each call's results
WATCHED = 8  # elements of each result that are looked at, in places that differ from call to call
REPORT = "the report"  # the name of the output that takes JSON
_POISON = float("nan")
_LEAST_CALLS = 4
SHIFTS = 1021  # ways to lay factors on an input: no two calls of a process get the same one
# Before the answer can lay hands on them.
_KEPT_CLOCK = time.perf_counter
_CONTIGUOUS = torch.Tensor.contiguous
# What is looked at again after an answer has run.
_SHARED: tuple[Any, ...] = (torch.Tensor, torch.nn.Module, torch, torch.nn.functional)


class WrongShape(Exception):
    """An answer returns something else than was asked for."""


class LeftBehind(Exception):
    """Something of the answer goes on after it has returned."""


class Meddled(Exception):
    """An answer changes what others use."""


class _Torch:
    """What torch is before an answer is loaded: a method of its own may do the work elsewhere.

    The rules refuse what says so; a method that is called with a class is seen here alone.
    """

    def __init__(self) -> None:
        self._kept = [(space, dict(vars(space))) for space in _SHARED]

    def look(self) -> None:
        """Look at it.

        Raises:
            Meddled: It is not as it was.
        """
        for space, kept in self._kept:
            now = vars(space)
            same = all(now.get(name, self) is value for name, value in kept.items())
            # A module may import a part of its own.
            if not same or (isinstance(space, type) and len(now) != len(kept)):
                raise Meddled(f"it changes `{space.__name__}`, which is somebody else's")


class Answer:
    """A text that has been loaded, as what the guarded runs call.

    Args:
        request: ``text``, ``entry``, ``way`` (``call``, ``time``, ``count`` or ``values``), and for
            a kernel ``library``.
    """

    thrown_away = True  # with its process: it may draw random numbers, compile, start threads

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.way = request["way"]
        self.entry = request["entry"]
        self.names: Sequence[tuple[str, str]] = request["operands"]
        self.calls: Sequence[Any] = request.get("calls", ())
        self.budget = float(request.get("budget", 0.0))  # seconds of calls, where they are timed
        self.library = request["library"]
        if self.library:
            self.function: Any = ctypes.CDLL(self.library)[self.entry]
            self.function.restype = ctypes.c_int
        else:
            self.shared = _Torch()
            # TorchDynamo looks for a function's module by its name.
            module = sys.modules["answer"] = types.ModuleType("answer")
            space = module.__dict__
            space["__builtins__"] = __builtins__
            before = request.get("provides", "")
            if before:
                exec(compile(before, "given.py", "exec"), space)
            exec(compile(request["text"], FILE, "exec"), space)
            after = request.get("after", "")
            if after:
                exec(compile(after, "given.py", "exec"), space)
            self.function = space["run" if after else self.entry]

    def refused(self, error: Exception) -> Mapping[str, Any]:
        """Return nothing more of an error that loading raised."""
        return {}

    def __call__(self, arguments: Sequence[Placed], sizes: Sequence[int], threads: int) -> int:
        """Run once, or as often as it is to be timed; return its status."""
        torch.set_num_threads(threads)
        tensors = {
            name: argument.tensor()
            for (name, _), argument in zip(self.names, arguments, strict=True)
        }
        inputs = [tensors[name] for name, role in self.names if role == "in" and name != POKES]
        special = (CLOCK, REPORT, SEEN)
        outputs = [tensors[n] for n, role in self.names if role == "out" and n not in special]
        if self.way == "values":
            write_text(tensors[REPORT], self._values())
            return 0
        if self.way == "count":
            write_text(tensors[REPORT], self._counted(inputs, outputs))
            return 0
        if self.way == "time":
            notes = (tensors[POKES], tensors[CLOCK], tensors[SEEN])
            return self._timed(inputs, outputs, notes, sizes, threads)
        if self.library:
            return self._kernel([*inputs, *outputs], sizes, threads)()
        with torch.no_grad():
            self.shared.look()
            returned = self.function(*inputs)
            self.shared.look()
            self._into(outputs, returned)
        return 0

    def _kernel(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], threads: int
    ) -> Callable[[], int]:
        """Return the kernel's call, which costs next to nothing beside the kernel."""
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        numbers = [ctypes.c_int64(size) for size in (*sizes, threads)]
        return functools.partial(self.function, *pointers, *numbers)

    def _into(self, outputs: Sequence[torch.Tensor], returned: Any) -> None:
        _copy(outputs, returned)
        if threading.active_count() > 1:
            raise LeftBehind("a thread of it goes on after it has returned")

    def _timed(
        self,
        given: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        notes: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        sizes: Sequence[int],
        threads: int,
    ) -> int:
        """Call it again and again, each time on inputs of which every element is another.

        It ends when the budget is spent, or with the pokes; a call that was made has a time, and a
        kernel's call what its threads worked.  Some elements of each call's results are kept: an
        answer that now and then does nothing is seen.
        """
        pokes, clock, seen = notes
        inputs = [tensor.clone() for tensor in given]
        mine = [torch.empty_like(tensor) for tensor in outputs]
        returned: Any = None
        whole: list[torch.Tensor] = []
        now, spent = _KEPT_CLOCK, 0.0
        kernel = self._kernel([*inputs, *mine], sizes, threads) if self.library else None
        with torch.no_grad():
            clock.zero_()
            factors = factors_for(given, int(pokes[0, 0]))
            for number, (_, shift, *places) in enumerate(pokes.tolist()):
                for tensor, first, each in zip(inputs, given, factors, strict=True):
                    change(tensor, first, each, int(shift))
                watched = [places_in(tensor, places) for tensor in mine]
                for tensor, there in zip(mine, watched, strict=True):
                    _spoil(tensor, there)
                before = this_system().thread_times() if self.library else {}
                began = now()
                if kernel is not None:
                    status = kernel()
                else:
                    returned, status = self.function(*inputs), 0
                    # A view leaves the work to who reads it.
                    whole = [_CONTIGUOUS(tensor) for tensor in _several(returned)]
                seconds = max(now() - began, 1e-9)
                if kernel is None:
                    self.shared.look()
                clock[number, 0] = seconds
                if before:
                    clock[number, 1] = worked(before, this_system().thread_times(), threads)
                spent += seconds
                if status:
                    return status
                found = mine if self.library else whole
                for n, (tensor, there) in enumerate(zip(found, watched, strict=False)):
                    seen[number, n] = tensor.reshape(-1)[there].double()
                if spent > self.budget and number + 1 >= _LEAST_CALLS:
                    break
            self._into(outputs, mine if self.library else returned)
        return 0

    def _counted(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        """Count what the compiler sees of it; that runs as well, to be what is asked for."""
        from fusec.api import predict_and_run

        with torch.no_grad():
            said, value = predict_and_run(self.function, *(tensor.clone() for tensor in inputs))
            _copy(outputs, value)
        return {
            "totals": said.data()["totals"],
            "operators": [name for part in said.parts for name in part.aten]
            + [each.name for each in said.externs],
            "kernels": [" + ".join(each.operators)[:80] for each in said.kernels][:8],
            "calls": [each.name for each in said.externs][:8],
            "breaks": [each.reason[:200] for each in said.breaks][:8],
        }

    def _values(self) -> Any:
        """Return what came of each call as a list; of one that raises, which it is and what."""
        found = []
        for number, call in enumerate(self.calls):
            try:
                value = self.function(*call) if callable(self.function) else self.function
            except Exception as error:
                return {"call": number, **describe_error(error, FILE)}
            found.append(_plain(value))
        return found


def worked(before: Mapping[int, float], after: Mapping[int, float], threads: int) -> float:
    """Return the seconds a call takes where each of its threads has a processor.

    That is what its busiest thread worked, and no less than its share if all had worked alike: who
    starts more threads than were given has them take turns.

    Args:
        before: For how long each thread had run before the call.
        after: And after it.
        threads: How many were given.
    """
    each = [seconds - before.get(thread, 0.0) for thread, seconds in after.items()]
    return max(*each, sum(each) / threads)


def _copy(outputs: Sequence[torch.Tensor], returned: Any) -> None:
    """Put what an answer returned into its outputs; raise ``WrongShape`` where it does not fit."""
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if len(found) != len(outputs):
        raise WrongShape(f"it returns {len(found)} values, not {len(outputs)}")
    for wanted, value in zip(outputs, found, strict=True):
        if type(value) is not torch.Tensor:
            raise WrongShape(f"it returns {_kind(value)}, not a tensor")
        shape, dtype = tuple(wanted.shape), str(wanted.dtype).removeprefix("torch.")
        if value.shape != wanted.shape:
            raise WrongShape(f"it returns shape {tuple(value.shape)}, not {shape}")
        if value.dtype != wanted.dtype:
            mine = str(value.dtype).removeprefix("torch.")
            raise WrongShape(f"it returns {mine}, not {dtype}")
        wanted.copy_(value)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0].lower() in 'aeio' else 'a'} {name}"


def _plain(value: Any) -> Any:
    """Return what JSON can hold; tuples and sets become lists."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(each) for each in value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise WrongShape(f"it returns {_kind(value)}, which is not a number, a text or a list")


def _several(returned: Any) -> list[torch.Tensor]:
    """Return what an answer returned as a list; what is no tensor is found out at the end."""
    found = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    return [each for each in found if type(each) is torch.Tensor and each.numel()]


def factors_for(tensors: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor | None]:
    """Return for each tensor of floats factors near 1, some more than it has elements."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(t.numel() + SHIFTS, generator=generator) * 0.7 + 0.7).to(t.dtype)
        if t.is_floating_point()
        else None
        for t in tensors
    ]


def change(
    tensor: torch.Tensor, first: torch.Tensor, factors: torch.Tensor | None, shift: int
) -> None:
    """Make a contiguous tensor another one times factors, each element by one of its own.

    Who keeps results and computes again what has changed has to compute everything again.

    Args:
        tensor: It gets the products.
        first: Contiguous, of the same shape.
        factors: From ``factors_for``; None leaves it alone.
        shift: Where to begin in them, less than ``SHIFTS``.
    """
    if factors is not None:
        count = tensor.numel()
        torch.mul(first.view(-1), factors[shift : shift + count], out=tensor.view(-1))


def places_in(tensor: torch.Tensor, shares: Sequence[float]) -> torch.Tensor:
    """Return places in a tensor from shares of its length, each less than 1."""
    return torch.tensor([int(share * tensor.numel()) for share in shares if tensor.numel()])


def _spoil(tensor: torch.Tensor, places: torch.Tensor) -> None:
    """Make some elements what no answer leaves there."""
    if tensor.is_floating_point() and tensor.numel():
        flat = tensor.view(-1)
        flat[:: max(1, flat.numel() // 7)] = _POISON
        flat[places] = _POISON


def write_text(area: torch.Tensor, value: Any) -> None:
    """Leave what JSON can hold in a tensor of bytes.

    Raises:
        WrongShape: It is too long.
    """
    data = json.dumps(value).encode()
    if len(data) >= area.numel():
        raise WrongShape("it returns more than fits into an answer")
    area.zero_()
    area[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


def prepare(request: Mapping[str, Any]) -> Callable[..., int]:
    """Load the answer that a request holds."""
    return Answer(request)


__all__ = [
    "CLOCK",
    "FILE",
    "POKES",
    "REPORT",
    "SHIFTS",
    "Answer",
    "LeftBehind",
    "Meddled",
    "WrongShape",
    "change",
    "factors_for",
    "prepare",
    "worked",
    "write_text",
]
