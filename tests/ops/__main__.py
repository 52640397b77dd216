"""``make ops``: torch's own databases through fusec, and TorchInductor on request.

Operators (and modules, optimizers ...) run in child processes, some at a time, each with a time
limit. The report is a file of JSON lines, one an operator, dtype and direction; a run that was
stopped goes on where it was. What is wrong is written as a small program beside it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from fusec.target_api.registry import AUTO, NAMES
from ops import report
from ops.children import Run, serve
from ops.databases import DATABASES, database

DTYPES = (
    "float32 float64 bfloat16 float16 float8_e4m3fn float8_e5m2 complex64 complex128 complex32 "
    "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
).split()
FLAGS = ("forward", "backward", "corner", "strided", "dynamic", "inductor", "validate")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of a run."""
    parser = argparse.ArgumentParser(prog="make ops", description=__doc__)
    parser.add_argument("ops", nargs="*", help="names; by default a sample of the database")
    parser.add_argument("--all", action="store_true", help="every operator")
    parser.add_argument(
        "--databases",
        nargs="+",
        choices=[*DATABASES, "all"],
        default=["operators"],
        help="operators, their errors (what eager refuses), modules, optimizers, higher-order; "
        "torch's older lists of modules and functionals, functions that users write, what "
        "autocast casts, operators within torch.func's transforms",
    )
    parser.add_argument("--count", type=int, default=60, help="operators of the sample")
    parser.add_argument("--seed", type=int, default=0, help="chooses the sample")
    parser.add_argument("--samples", type=int, default=2, help="samples an operator and dtype")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--forward", action="store_true", help="only forward")
    parser.add_argument("--backward", action="store_true", help="only backward")
    parser.add_argument("--corner", action="store_true", help="odd shapes, layouts, values too")
    parser.add_argument("--strided", action="store_true", help="inputs that are not contiguous")
    parser.add_argument("--target", default=AUTO, choices=NAMES, help="what kernels are written in")
    parser.add_argument("--dynamic", action="store_true", help="every size is symbolic")
    parser.add_argument("--validate", action="store_true", help="say which translation is wrong")
    parser.add_argument("--inductor", action="store_true", help="TorchInductor as well")
    parser.add_argument("--jobs", type=int, default=2, help="operators at once")
    parser.add_argument("--timeout", type=float, default=300, help="seconds an operator")
    parser.add_argument("--report", type=Path, default=Path("build/ops.jsonl"))
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.flags = FLAGS
    options.kind = " ".join(flag for flag in FLAGS if getattr(options, flag)) or "all"
    options.kind += f" {options.target}" if options.target != AUTO else ""
    options.repros = options.report.parent / "repros"
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; returns 1 if fusec was wrong or failed anywhere."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    if options.child:
        serve(options)
        return 0
    wanted = list(DATABASES) if "all" in options.databases else options.databases
    known = {name: database(name).names() for name in wanted}
    unknown = set(options.ops).difference(*known.values())
    if unknown:
        print(f"no such operator: {', '.join(sorted(unknown))}")
        return 2
    chosen = []
    for name, all_names in known.items():
        picked = [each for each in all_names if each in options.ops] if options.ops else all_names
        if not options.ops and not options.all:
            count = min(options.count, len(all_names))
            picked = sorted(random.Random(options.seed).sample(all_names, count))
        chosen += [(name, each) for each in picked]
    if options.again:
        options.report.unlink(missing_ok=True)
    done = report.read(options.report)
    Run(options, chosen, done).go()
    text = report.totals(done.values())
    options.report.with_suffix(".md").write_text(text)
    print(f"\n{text}")
    return int(any(s["verdict"] in report.BAD for u in done.values() for s in u["samples"]))


if __name__ == "__main__":
    sys.exit(main())
