"""``make faults``: do everything in the tables, and print what became of it."""

from __future__ import annotations

import argparse
import sys

from faults.careless_edits import SLIPS
from faults.edits import FAULTS
from faults.report import Outcome, table
from faults.run_edits import Notebook, run_edits
from faults.run_fuzz import run_fuzz
from faults.run_gpu import run_gpu
from faults.run_house import run_house


def main() -> int:
    """Run what is asked for; 0 where everything was survived as it should be."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument(
        "tables",
        nargs="*",
        choices=("edits", "careless", "house", "gpu", "fuzz", []),
        help="which; edits, careless and house if none; fuzz makes random edits",
    )
    parser.add_argument(
        "--trust", action="store_true", help="of gpu: by what the checking process sees alone"
    )
    parser.add_argument(
        "--target", choices=("cpp", "plain"), default="cpp", help="of edits: who wrote the kernel"
    )
    parser.add_argument("--only", default="", help="faults with this in their names")
    parser.add_argument("--times", type=int, default=1, help="how often each is done")
    parser.add_argument("--flips", type=int, default=1000, help="how many bits of a cache to flip")
    parser.add_argument("--markdown", action="store_true", help="print a table for the docs")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once, a core each")
    parser.add_argument("--seeds", default="0:200", help="of fuzz: FIRST:LAST, or one seed")
    parser.add_argument("--seconds", type=float, default=0.0, help="of fuzz: begin no more then")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    if "edits" in options.tables or not options.tables:
        outcomes += run_edits(
            options.only,
            options.times,
            [fault for fault in FAULTS if options.target == "cpp" or not fault.by_openmp],
            start=lambda: Notebook(("faults.notebook", options.target)),
            says=options.target == "cpp",  # without OpenMP other things are wrong with some first
            jobs=options.jobs,
        )
    if "careless" in options.tables or not options.tables:
        outcomes += run_edits(
            options.only,
            options.times,
            SLIPS,
            start=lambda: Notebook(("faults.careless_notebook",)),
            jobs=options.jobs,
        )
    if "house" in options.tables or not options.tables:
        outcomes += run_house(options.only, options.times, options.flips, jobs=options.jobs)
    if "gpu" in options.tables:
        outcomes += run_gpu(options.only, options.times, trust=options.trust, jobs=options.jobs)
    if "fuzz" in options.tables:
        first, _, last = options.seeds.partition(":")
        seeds = range(int(first), int(last) if last else int(first) + 1)
        outcomes += run_fuzz([*seeds] * options.times, options.jobs, options.seconds)
    print(table(outcomes, markdown=options.markdown))
    return int(any(not outcome.good for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
