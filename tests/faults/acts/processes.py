"""Processes, threads and event loops that a user's program has."""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

import fusec
from faults.user import Seen, activation, inputs, keep_edit, normal

PATIENCE = 60.0
# In a module of its own, which a process that is spawned imports again.
compiled_activation = fusec.compile(activation, keep_inputs=True)


class Rows(Dataset[torch.Tensor]):
    """A data set whose items a compiled function makes."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        x, w = inputs()
        return compiled_activation(x + index, w)


def _loader(seen: Seen, context: str) -> None:
    x, w = inputs()
    seen.same(compiled_activation(x, w), activation(x, w))  # threads of OpenMP, before the fork
    loader = DataLoader(
        Rows(), batch_size=2, num_workers=2, multiprocessing_context=context, timeout=PATIENCE
    )
    for number, batch in enumerate(loader):
        wanted = torch.stack([activation(x + 2 * number + i, w) for i in range(2)])
        seen.same(batch, wanted)
    seen.said += compiled_activation.fallbacks


def loader_fork(seen: Seen) -> None:
    """A DataLoader forks its workers."""
    _loader(seen, "fork")


def loader_spawn(seen: Seen) -> None:
    """A DataLoader spawns its workers."""
    _loader(seen, "spawn")


def _in_fork(seen: Seen, work: Callable[[Seen], None]) -> None:
    context = multiprocessing.get_context("fork")
    answers: Any = context.SimpleQueue()

    def child() -> None:
        torch.set_num_threads(1)  # as a DataLoader does: libgomp's team stays in the parent
        mine = Seen()
        try:
            work(mine)
        except BaseException as error:
            mine.said.append(f"in the fork: {type(error).__name__}: {error}")
        answers.put((mine.wrong, mine.said))

    process = context.Process(target=child)
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        seen.said.append("the fork hangs")
    elif process.exitcode:
        seen.said.append(f"the fork ended with status {process.exitcode}")
    else:
        wrong, said = answers.get()
        seen.wrong += wrong
        seen.said += said


def fork_calls(seen: Seen) -> None:
    """A fork calls what its parent compiled, then the parent goes on."""
    compiled = seen.fuse(activation, *inputs())
    _in_fork(seen, lambda mine: mine.same(compiled(*inputs()), activation(*inputs())))
    seen.same(compiled(*inputs()), activation(*inputs()))


def fork_compiles(seen: Seen) -> None:
    """A fork compiles something else than its parent did."""
    compiled = seen.fuse(activation, *inputs())
    _in_fork(seen, lambda mine: mine.fuse(normal, *inputs()) and None)
    seen.same(compiled(*inputs()), activation(*inputs()))
    seen.fuse(normal, *inputs())


def fork_edits(seen: Seen) -> None:
    """A fork edits a kernel of its parent's, which has another text afterwards."""
    compiled = seen.fuse(activation, *inputs())
    keep_edit(seen, compiled)
    _in_fork(seen, lambda mine: keep_edit(mine, compiled))
    keep_edit(seen, compiled)


def event_loop(seen: Seen) -> None:
    """Tasks of an event loop call compiled functions, in its thread and in others."""

    async def one(number: int) -> None:
        x, w = inputs()
        await asyncio.sleep(0.001 * (number % 5))
        if number % 2:
            result = await asyncio.to_thread(compiled_activation, x + number, w)
        else:
            result = compiled_activation(x + number, w)
        seen.same(result, activation(x + number, w))

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(40)))

    asyncio.run(main())
    seen.said += compiled_activation.fallbacks


def threads(seen: Seen) -> None:
    """Eight threads compile at once, half of them the same function."""

    def variant(number: int) -> Callable[..., torch.Tensor]:
        def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(x * float(number) + w)

        # TorchDynamo counts what it compiles for each code object.
        function.__code__ = function.__code__.replace(co_name=f"function_{number}")
        return function

    def work(function: Callable[..., torch.Tensor]) -> None:
        try:
            seen.fuse(function, *inputs())
        except BaseException as error:
            seen.said.append(f"in a thread: {type(error).__name__}: {error}")

    shared = variant(0)
    started = [
        threading.Thread(target=work, args=(shared if number % 2 else variant(number),))
        for number in range(8)
    ]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(PATIENCE)
    seen.must(not any(thread.is_alive() for thread in started), "a thread hangs")


__all__ = [
    "event_loop",
    "fork_calls",
    "fork_compiles",
    "fork_edits",
    "loader_fork",
    "loader_spawn",
    "threads",
]
