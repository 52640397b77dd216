"""Somebody presses Stop, which is an interrupt of the main thread."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

import fusec
from faults.user import Seen, activation, inputs

MOMENTS = 30
# What a user takes for "at once".
AT_ONCE = 1.0


def _interrupted(
    work: Callable[[], Any], after: float
) -> tuple[float | None, BaseException | None]:
    """Interrupt some work; return how long it took to come back, and what it raised.

    None where it was done before.
    """
    sent: list[float] = []
    done = threading.Event()

    def press() -> None:
        if not done.wait(after):
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    raised: BaseException | None = None
    back = 0.0
    try:
        presser.start()
        try:
            work()
        except BaseException as error:
            raised = error
        back = time.monotonic()
        done.set()
        presser.join()
        time.sleep(0.01)  # an interrupt that was on its way arrives here
    except KeyboardInterrupt:
        done.set()
        presser.join()
    if not sent:
        return None, raised
    return max(0.0, (back or time.monotonic()) - sent[0]), raised


def _judge(seen: Seen, times: list[float], missed: int) -> None:
    late = [took for took in times if took > AT_ONCE]
    seen.figures.append(
        f"{len(times)} interrupts ({missed} too late): back after "
        f"{sorted(times)[len(times) // 2]:.2f} s, at most {max(times):.2f} s"
    )
    seen.must(not late, f"{len(late)} of {len(times)} took more than {AT_ONCE:g} s")


def _variant(number: int) -> Callable[..., torch.Tensor]:
    """Return a function that nobody has compiled yet."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * (1.0 + number / 64) - w, -1) + torch.tanh(x + number)

    # TorchDynamo counts what it compiles for each code object.
    function.__code__ = function.__code__.replace(co_name=f"function_{number}")
    return function


def interrupts(seen: Seen) -> None:
    """Compilations, each with a cache that has nothing, are interrupted; the next cell is right."""
    cache = Path(os.environ["FUSEC_CACHE_DIR"])
    seen.fuse(activation, *inputs())  # the imports and the search for a compiler, once
    began = time.monotonic()
    seen.fuse(_variant(MOMENTS), *inputs(), calls=1)
    whole = time.monotonic() - began
    draw, times, missed = random.Random(torch.initial_seed()), [], 0
    for number in range(MOMENTS):
        function = _variant(number)
        compiled = fusec.compile(function)
        took, raised = _interrupted(
            functools.partial(compiled, *inputs()), draw.uniform(0.0, whole)
        )
        if took is None:
            missed += 1
        else:
            times.append(took)
        expected = raised is None or isinstance(raised, KeyboardInterrupt)
        seen.must(expected, f"the interrupt became {type(raised).__name__}: {raised}")
        seen.same(compiled(*inputs()), function(*inputs()))
        seen.said += compiled.fallbacks
        if number % 10 == 9:
            for kind in cache.iterdir():
                shutil.rmtree(kind, ignore_errors=True)
    _judge(seen, times, missed)
    _nothing_left(seen)


def interrupted_start(seen: Seen) -> None:
    """The first cell of a process is interrupted, which imports most of torch's compiler."""
    after = random.Random(torch.initial_seed()).uniform(0.0, 4.0)
    compiled = fusec.compile(activation)
    took, raised = _interrupted(functools.partial(compiled, *inputs()), after)
    expected = raised is None or isinstance(raised, KeyboardInterrupt)
    seen.must(expected, f"the interrupt became {type(raised).__name__}: {raised}")
    if took is None:
        seen.figures.append("not interrupted")
    else:
        _judge(seen, [took], 0)
    seen.same(compiled(*inputs()), activation(*inputs()))
    seen.said += compiled.fallbacks
    seen.fuse(_variant(0), *inputs())


def interrupted_checks(seen: Seen) -> None:
    """Checks of edits are interrupted; the text in use stays, and the next check is right."""
    compiled = seen.fuse(activation, *inputs())
    (kernel,) = compiled.kernels.values()
    text = kernel.source
    kernel.check(text + "// first\n")  # starts the checking process
    began = time.monotonic()
    kernel.check(text + "// second\n")
    whole = time.monotonic() - began
    draw, times, missed = random.Random(torch.initial_seed()), [], 0
    for number in range(MOMENTS):
        edited = f"{text}// {number}\n"
        took, raised = _interrupted(
            functools.partial(kernel.check, edited), draw.uniform(0.0, whole)
        )
        if took is None:
            missed += 1
        else:
            times.append(took)
        expected = raised is None or isinstance(raised, KeyboardInterrupt)
        seen.must(expected, f"the interrupt became {type(raised).__name__}: {raised}")
        seen.must(kernel.source == text, "the text in use is another")
        seen.same(compiled(*inputs()), activation(*inputs()))
    verdict = kernel.check(text + "// last\n")
    seen.must(verdict.ok, f"a right edit was refused: {verdict.reason}")
    _judge(seen, times, missed)


def stop_a_build(seen: Seen) -> None:
    """Stop is pressed while a compiler hangs."""
    took, raised = _interrupted(lambda: fusec.compile(activation)(*inputs()), 20.0)
    seen.must(isinstance(raised, KeyboardInterrupt), f"it ended with {raised!r}")
    seen.must(took is not None and took <= AT_ONCE, f"it took {took} s to come back")
    seen.figures.append(f"back after {took:.2f} s" if took is not None else "not interrupted")
    _nothing_left(seen)


def _nothing_left(seen: Seen) -> None:
    """No compiler still runs; the checking process and the native part's compiler may."""
    time.sleep(0.5)
    found = [
        " ".join(command)[:80]
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
        and "kernel.cpp" in (command := process.cmdline())
        and command[0] != "/bin/sh"  # which holds a compiler
    ]
    # The native part, built in the background, is a kernel.cpp as well: one at a time.
    seen.must(len(found) <= 5, f"still running: {found}")


__all__ = ["interrupted_checks", "interrupted_start", "interrupts", "stop_a_build"]
