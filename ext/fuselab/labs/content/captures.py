"""Six ways to capture a function, six functions, and what comes of each pair: for lab 2.

``attempt(way, program)`` really does it; ``TABLE`` is what came of it, which a test holds equal.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

SCALE = {"by": 2.0}


def chain(x: torch.Tensor) -> torch.Tensor:
    """Nothing but operators."""
    return torch.relu(x * 2 + 1)


def branch(x: torch.Tensor) -> torch.Tensor:
    """Which way it goes depends on the values."""
    if x.sum() > 0:
        return x * 2
    return x - 5


def loop(x: torch.Tensor) -> torch.Tensor:
    """How often it goes round depends on the size."""
    total = torch.zeros([])
    for n in range(x.shape[0]):
        total = total + x[n] * n
    return total


def number(x: torch.Tensor) -> torch.Tensor:
    """A value becomes a Python number, and goes back."""
    return x * x.max().item()


def outside(x: torch.Tensor) -> torch.Tensor:
    """Something outside of the function counts, and changes."""
    return x * SCALE["by"]


def kind(x: torch.Tensor) -> torch.Tensor:
    """What it does depends on what it is given."""
    if isinstance(x, torch.Tensor):
        return x + 1
    return x - 1  # type: ignore[unreachable]


@dataclass(frozen=True)
class Program:
    """A function, what it is captured with, and what it is called with afterwards.

    Attributes:
        function: The function.
        first: The input that it is captured with.
        then: The input of a later call.
        change: What happens before that; None for nothing.
    """

    function: Callable[[torch.Tensor], torch.Tensor]
    first: torch.Tensor
    then: torch.Tensor
    change: Callable[[], None] | None = None


_FIRST, _THEN = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-4.0, 1.0, -2.0])
PROGRAMS = {
    "chain": Program(chain, _FIRST, _THEN),
    "branch": Program(branch, _FIRST, _THEN),
    "loop": Program(loop, _FIRST, torch.arange(5.0)),
    "number": Program(number, _FIRST, _THEN),
    "outside": Program(outside, _FIRST, _THEN, lambda: SCALE.update(by=3.0)),
    "kind": Program(kind, _FIRST, _THEN),
}
WAYS = {
    "jit.trace": "runs it once, and writes down the operators that ran",
    "jit.script": "compiles its text, in a language that is a part of Python",
    "fx.symbolic_trace": "runs it on stand-ins that note what is done to them",
    "lazy tensors": "run it anew at each call; operators wait until a value is needed",
    "export": "TorchDynamo, and the whole function must become one graph",
    "TorchDynamo": "follows its bytecode, guards what it relied on, breaks where it must",
}
TABLE = {
    "chain": "right right right right right right",
    "branch": "wrong right refused right refused right",
    "loop": "wrong right refused right refused right",
    "number": "wrong right right right right right",
    "outside": "wrong refused wrong right wrong right",
    "kind": "right right wrong right right right",
}


def outcome(way: str, program: str) -> str:
    """Return what comes of capturing a program in a way: ``right``, ``wrong`` or ``refused``."""
    return TABLE[program].split()[list(WAYS).index(way)]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("torch")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


@contextlib.contextmanager
def _no_standard_error() -> Iterator[None]:
    """Keep away what torch's own C++ says on the standard error as it registers lazy tensors."""
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def _lazy(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import torch._lazy.ts_backend

    with contextlib.suppress(RuntimeError), _no_standard_error():  # it was registered before
        torch._lazy.ts_backend.init()
    return lambda x: function(x.to("lazy")).cpu()


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def capture(way: str, function: Callable[[Any], Any], example: torch.Tensor) -> Callable[..., Any]:
    """Return what a way of capturing makes of a function.

    Args:
        way: One of ``WAYS``.
        function: The function.
        example: What it is captured with.

    Raises:
        Exception: The way refuses the function, each with an error of its own.
    """
    found: Any
    if way == "jit.trace":
        found = torch.jit.trace(function, (example,), check_trace=False)
    elif way == "jit.script":
        found = torch.jit.script(function)
    elif way == "fx.symbolic_trace":
        found = torch.fx.symbolic_trace(function)
    elif way == "lazy tensors":
        found = _lazy(function)
    elif way == "export":
        found = torch.export.export(_Module(function), (example,)).module()
    else:
        torch._dynamo.reset()
        found = torch.compile(function, backend="eager")
        found(example)
    return found  # type: ignore[no-any-return]


def attempt(way: str, program: str) -> str:
    """Capture a program in a way, call it again with something else; return what came of it.

    ``right``: as the function itself. ``wrong``: something else, and no error. ``refused``: an
    error at one of the two. ``missing``: this PyTorch does not have it.
    """
    given = PROGRAMS[program]
    SCALE.update(by=2.0)
    try:
        with _quiet():
            try:
                captured = capture(way, given.function, given.first.clone())
            except (ImportError, AttributeError, NotImplementedError):
                if way == "lazy tensors":
                    return "missing"
                raise
            if given.change is not None:
                given.change()
            found = captured(given.then.clone())
    except Exception:
        return "refused"
    else:
        wanted = given.function(given.then.clone())
        same = found.shape == wanted.shape and torch.allclose(found, wanted)
        return "right" if same else "wrong"
    finally:
        SCALE.update(by=2.0)


def listing(program: str) -> str:
    """Return a program's text, as a student would write it."""
    text = inspect.getsource(PROGRAMS[program].function)
    return re.sub(r"  # type: \S+", "", text)


def graph(way: str, function: Callable[[Any], Any], example: torch.Tensor) -> str:
    """Return what a way has captured, as text."""
    with _quiet():
        if way == "lazy tensors":
            _lazy(function)
            import torch._C._lazy as lazy

            text = str(lazy._get_tensors_text([function(example.to("lazy"))])).strip()
            return re.sub(r", NodeType=\w+|, device=CPU0", "", text)
        if way == "TorchDynamo":
            seen: list[str] = []

            def backend(module: torch.fx.GraphModule, _: Any) -> Any:
                seen.append(module.code.strip())
                return module.forward

            torch._dynamo.reset()
            torch.compile(function, backend=backend)(example)
            return "\n\n".join(seen)
        captured: Any = capture(way, function, example)
        return str(captured.code).strip()


__all__ = ["PROGRAMS", "TABLE", "WAYS", "attempt", "capture", "graph", "listing", "outcome"]
