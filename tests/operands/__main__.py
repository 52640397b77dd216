"""Calls of torch's with operands of random types, sizes and layouts, beside eager.

What differs is printed with its call and seed, which make it again:
``python -m operands --seeds 7 --only "torch.dot"``.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import fusec  # noqa: F401  (registers the backend)
from operands.draw import drawn
from operands.examine import examine
from operands.tables import CALLS, TABLES


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make operands", description=__doc__)
    parser.add_argument("--seeds", default="0:1", help="FIRST:END, or one seed")
    parser.add_argument("--tables", default=",".join(TABLES), help="by default all")
    parser.add_argument("--only", default="", help="calls that have this in them")
    parser.add_argument("--seconds", type=float, default=0, help="end after so long")
    parser.add_argument("--report", type=Path, default=None, help="a line a case that differs")
    parser.add_argument("--at", action="store_true", help="say what runs, in case it crashes")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases; returns 1 if any is wrong."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.getLogger("torch").setLevel(logging.CRITICAL)  # what it refuses is no news
    first, _, end = options.seeds.partition(":")
    started = time.monotonic()
    counts: Counter[str] = Counter()
    rows = []
    for seed in range(int(first), int(end) if end else int(first) + 1):
        for call in CALLS:
            if call.table not in options.tables.split(",") or options.only not in call.text:
                continue
            if options.seconds and time.monotonic() - started > options.seconds:
                print(f"no time left at seed {seed}, {call.text}")
                break
            case = drawn(call, seed)
            if options.at:
                print(f"AT {case}", file=sys.stderr, flush=True)
            verdict, words = examine(case)
            counts[verdict] += 1
            if words:
                print(f"{verdict}: {words}", flush=True)
                rows.append({"call": call.text, "seed": seed, "verdict": verdict, "words": words})
    if options.report:
        options.report.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"{counts.total()} calls: {said}; {time.monotonic() - started:.0f} s")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
