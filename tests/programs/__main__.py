"""``make fuzz``: random programs through fusec, beside eager and float64.

A program that differs is printed with its seed, which makes it again; of a state program there is
a file under ``build/repros`` as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from programs.nodes import StateProgram


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or one seed")
    parser.add_argument("--every", type=int, default=1, help="only every so many of them")
    parser.add_argument("--target", default="auto", choices=("auto", "cpp", "triton"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--train", action="store_true", help="with gradients")
    parser.add_argument("--halves", action="store_true", help="inputs of half precision")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes")
    parser.add_argument("--state", action="store_true", help="in random states of torch")
    parser.add_argument("--length", type=int, default=0, help="statements; by default 3 to 14")
    parser.add_argument(
        "--validate", action="store_true", help="say which translation is wrong: lowering, ..."
    )
    parser.add_argument("--show", action="store_true", help="print the programs, and run none")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs; returns 1 if any differs."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    os.environ["FUSEC_STRICT"] = "1"
    torch.set_num_threads(min(2, torch.get_num_threads()))
    from programs.check import problems
    from programs.generate import write
    from support.validate import Validation, validated

    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1, options.every)
    if options.state:
        return state_programs(seeds, options)
    started, wrong, whole = time.monotonic(), 0, Validation()
    for seed in seeds:
        program = write(seed, train=options.train, halves=options.halves, length=options.length)
        if options.show:
            print(f"# {seed}\n{program}")
            continue
        try:
            with validated(options.validate, whole) as mistranslated:
                found = problems(
                    program,
                    target=options.target,
                    dynamic=True if options.dynamic else None,
                    device=options.device,
                )
            found += mistranslated
        except Exception:
            found = [traceback.format_exc(limit=-6)]
        if found:
            wrong += 1
            print(f"# {seed}\n{program}" + "\n".join(found) + "\n", flush=True)
    took = time.monotonic() - started
    print(f"{wrong} of {len(seeds)} programs differ; {took:.0f} s")
    if options.validate:
        print(whole)
    return int(wrong > 0)


def state_programs(seeds: range, options: argparse.Namespace) -> int:
    """Run functions in random states; what differs is shrunk and written to a file."""
    from fusec.call import native
    from programs.contexts import write
    from programs.shrink import repro, shrunk
    from programs.state import problems

    torch._dynamo.config.recompile_limit = 64  # each call is in a state of its own
    native.types(wait=True)
    chosen = {"target": options.target, "dynamic": True if options.dynamic else None}
    started, wrong = time.monotonic(), 0
    for count, seed in enumerate(seeds):
        program = write(seed, length=options.length)
        if options.show:
            print(f"# {seed}\n{program}")
            continue

        def check(each: StateProgram) -> list[str]:
            try:
                return problems(each, device=options.device, **chosen)
            except Exception:
                return [traceback.format_exc(limit=-6)]

        if check(program):
            wrong += 1
            smaller, found = shrunk(program, check)
            path = repro(smaller, found)
            print(f"# {seed}: {path}\n{smaller}" + "\n".join(found) + "\n", flush=True)
        if count % 500 == 499:
            print(f"{count + 1} programs, {time.monotonic() - started:.0f} s", flush=True)
    took = time.monotonic() - started
    print(f"{wrong} of {len(seeds)} state programs differ; {took:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
