"""Runs the program of a seed and says what is wrong with it, in one process or in many."""

from __future__ import annotations

import argparse
import gc
import os
import time
import traceback
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from programs import contexts, generate, jobs, training
from programs.shrink import repro, shrunk

if TYPE_CHECKING:
    from programs.nodes import StateProgram


@dataclass(frozen=True)
class Examined:
    """What came of a seed.

    Attributes:
        seed: It makes the program again.
        problems: How it differs; nothing if all is as in eager.
        text: The program, of those that differ.
        repro: The file that shows it, where there is one.
        seconds: How long it took, the shrinking included.
        calls: Calls of parts that were validated.
        kernels: Kernels among them.
        skipped: Calls that were too large to be.
        after_others: How it differed behind other programs, where it does not in a process of its
            own: they left torch in a state in which eager is another.
        eager_ends: How eager alone ends the process.
    """

    seed: int
    problems: tuple[str, ...] = ()
    text: str = ""
    repro: str = ""
    seconds: float = 0.0
    calls: int = 0
    kernels: int = 0
    skipped: int = 0
    after_others: tuple[str, ...] = ()
    eager_ends: str = ""

    def row(self) -> dict[str, Any]:
        """Return what is not empty, for a line of JSON."""
        found = asdict(self) | {"seconds": round(self.seconds, 3)}
        return {name: value for name, value in found.items() if value or name == "seed"}

    def __str__(self) -> str:
        where = f": {self.repro}" if self.repro else ""
        return f"# {self.seed}{where}\n{self.text}" + "\n".join(self.problems) + "\n"


def prepare(options: argparse.Namespace) -> None:
    """Set this process up for programs."""
    os.environ["FUSEC_STRICT"] = "1"
    torch.set_num_threads(min(2, torch.get_num_threads()))
    if options.state:
        from fusec.call import native

        torch._dynamo.config.recompile_limit = 64  # each call is in a state of its own
        _make_histories_before_hooks()
        native.types(wait=True)
        gc.collect()
        gc.freeze()  # TorchDynamo collects as often as it is reset, torch's own objects too


def _make_histories_before_hooks() -> None:
    """Keep eager from ending the process at a hook on a view of what was updated since.

    ``v = (b * 1)[0]; v.detach().mul_(0.5); v.register_hook(f)`` does on torch 2.11 and 2.13, now
    and then: the view's history is made anew while the hook is put on.
    """
    register_hook = torch.Tensor.register_hook

    def after_history(self: torch.Tensor, hook: Any) -> Any:
        getattr(self, "grad_fn", None)
        return register_hook(self, hook)

    torch.Tensor.register_hook = after_history  # type: ignore[method-assign]


def written(
    seed: int, options: argparse.Namespace
) -> generate.Program | StateProgram | training.TrainingProgram:
    """Return the program of a seed."""
    if options.training:
        return training.write(seed)
    if options.state:
        return contexts.write(seed, length=options.length)
    return generate.write(seed, train=options.train, halves=options.halves, length=options.length)


def examine(seed: int, options: argparse.Namespace) -> Examined:
    """Write a seed's program, run it, and make it small if it differs."""
    started = time.monotonic()
    check = _training if options.training else _state if options.state else _random
    found = check(seed, options)
    return Examined(**{**vars(found), "seconds": time.monotonic() - started})


def _random(seed: int, options: argparse.Namespace) -> Examined:
    from programs.check import problems
    from support.validate import Validation, validated

    program, counted = written(seed, options), Validation()
    try:
        with validated(options.validate, counted) as mistranslated:
            found = problems(program, device=options.device, **_chosen(options))
        found += mistranslated
    except Exception:
        found = [traceback.format_exc(limit=-6)]
    return Examined(
        seed,
        tuple(found),
        str(program) if found else "",
        calls=counted.calls,
        kernels=counted.kernels,
        skipped=len(counted.skipped),
    )


def _training(seed: int, options: argparse.Namespace) -> Examined:
    program = training.write(seed)
    if options.eager:
        program.run(lambda function: function)
        return Examined(seed)
    try:
        found = training.problems(program)
    except Exception:
        found = [traceback.format_exc(limit=-6)]
    if not found:
        return Examined(seed)
    return Examined(seed, tuple(found), str(program), str(training.repro(program, found)))


def _state(seed: int, options: argparse.Namespace) -> Examined:
    from programs.state import problems, restore, run

    def check(each: StateProgram) -> list[str]:
        try:
            return problems(each, device=options.device, **_chosen(options))
        except Exception:
            return [traceback.format_exc(limit=-6)]

    restore()  # garbage of programs before may have left a block since
    program = contexts.write(seed, length=options.length)
    if options.eager:
        run(program, lambda function: function, device=options.device)
        return Examined(seed)
    found = check(program)
    if not found:
        return Examined(seed)
    if not options.alone:
        row = jobs.alone(seed, options)
        return Examined(**row) if len(row) > 1 else Examined(seed, after_others=tuple(found))
    smaller, again = shrunk(program, check)
    if not again:  # it differs in a process that has run no other, and then no more
        return Examined(seed, ("differs the first time only", *found), str(program))
    path = repro(smaller, again)
    return Examined(seed, tuple(again), str(smaller), str(path))


def _chosen(options: argparse.Namespace) -> dict[str, Any]:
    return {"target": options.target, "dynamic": True if options.dynamic else None}


__all__ = ["Examined", "examine", "prepare", "written"]
