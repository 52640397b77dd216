"""``make fuzz``: random programs through fusec, beside eager and float64.

A program that differs is printed with its seed, which makes it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence

import torch


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


if __name__ == "__main__":
    sys.exit(main())
