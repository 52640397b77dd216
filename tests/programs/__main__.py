"""``make fuzz``: random programs through fusec, beside eager and float64.

A program that differs is printed with its seed, which makes it again; of a state program, and of a
training, there is a file under ``build/repros`` as well.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fusec.target_api.registry import AUTO, NAMES
from programs import jobs


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, or one seed")
    parser.add_argument("--every", type=int, default=1, help="only every so many of them")
    parser.add_argument("--target", default=AUTO, choices=NAMES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--train", action="store_true", help="with gradients")
    parser.add_argument("--halves", action="store_true", help="inputs of half precision")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes")
    parser.add_argument("--state", action="store_true", help="in random states of torch")
    parser.add_argument("--training", action="store_true", help="trainings: models, optimizers")
    parser.add_argument("--length", type=int, default=0, help="statements; by default 3 to 14")
    parser.add_argument(
        "--validate", action="store_true", help="say which translation is wrong: lowering, ..."
    )
    parser.add_argument("--show", action="store_true", help="print the programs, and run none")
    parser.add_argument(
        "--jobs", type=int, default=0, help="processes, spread over the GPUs; by default this one"
    )
    parser.add_argument("--seconds", type=float, default=0, help="with --jobs: end after so long")
    parser.add_argument(
        "--report", type=Path, default=Path("build/fuzz.jsonl"), help="with --jobs: a line a seed"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--eager", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the programs; returns 1 if any differs."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.child:
        jobs.serve(options)
        return 0
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1, options.every)
    if options.show:
        from programs.examine import written

        for seed in seeds:
            print(f"# {seed}\n{written(seed, options)}")
        return 0
    started = time.monotonic()
    found = jobs.Jobs(options, seeds).go().values() if options.jobs else _here(seeds, options)
    rows = list(found)
    wrong = sum("problems" in row for row in rows)
    words = next((name for name in ("state", "training") if getattr(options, name)), "")
    words = f"{words} programs".strip()
    print(f"{wrong} of {len(rows)} {words} differ; {time.monotonic() - started:.0f} s")
    if behind := [row["seed"] for row in rows if "after_others" in row]:
        print(f"{len(behind)} differ behind others, and not in a process of their own: {behind}")
    if ended := [row["seed"] for row in rows if "eager_ends" in row]:
        print(f"{len(ended)} end the process in eager: {ended}")
    if options.validate:
        calls, kernels, skipped = (
            sum(row.get(name, 0) for row in rows) for name in ("calls", "kernels", "skipped")
        )
        print(f"{calls} calls and {kernels} kernels validated; {skipped} calls skipped")
    return int(wrong > 0)


def _here(seeds: range, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the programs in this process."""
    from programs.examine import examine, prepare

    prepare(options)
    started = time.monotonic()
    for count, seed in enumerate(seeds, 1):
        found = examine(seed, options)
        if found.problems:
            print(found, flush=True)
        if options.state and count % 500 == 0:
            print(f"{count} programs, {time.monotonic() - started:.0f} s", flush=True)
        yield found.row()


if __name__ == "__main__":
    sys.exit(main())
