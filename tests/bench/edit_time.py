"""What the check of an edit takes: ``python tests/bench/edit_time.py [--checks 5] [--rounds 3]``.

``kernel.check`` of GELU and layer norm, 512 x 768 in float32, in fresh processes.  Seconds by the
clock count on an idle machine alone; seconds of processors, of the notebook's process, its worker,
the candidates and the compilers together, on a busy one, too.  ``--tree`` measures another one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
SCENE = """
import json, sys, time
import torch, fusec
import torch.nn.functional as F
from fusec.call import native
x, w, b = torch.randn(512, 768), torch.ones(768), torch.zeros(768)
call = fusec.compile(lambda x: F.layer_norm(F.gelu(x), (768,), w, b), keep_inputs=True)
call(x)
(kernel,) = call.kernels.values()
native.types(wait=True)
seconds = []
for number in range(1 + int(sys.argv[1])):
    started = time.perf_counter()
    verdict = kernel.check(f"{kernel.source}\\n// {number} {time.time()}\\n")
    seconds.append(time.perf_counter() - started)
    assert verdict.ok, verdict
print(json.dumps(seconds))
"""


def run(tree: Path, folder: str, checks: int) -> tuple[list[float], float]:
    """Check an edit once, and then some times more.

    Returns:
        Seconds by the clock of each check, and those of processors of all that ran.
    """
    paths = [str(tree / part) for part in ("compiler", "ext")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "FUSEC_CACHE_DIR": folder}
    before = used()
    command = [sys.executable, "-c", SCENE, str(checks)]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    while True:  # the worker, which is left when its notebook has ended
        try:
            os.wait()
        except ChildProcessError:
            break
    return json.loads(done.stdout), used() - before


def used() -> float:
    """Return the seconds of processors of all children that have ended, and of theirs."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def main() -> None:
    """Measure each tree in turn, and print the median and the range of both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checks", type=int, default=5, help="after the first one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tree", type=Path, action="append", default=[], help="measured, too")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    trees = [ROOT, *options.tree]
    clock: dict[Path, list[float]] = {tree: [] for tree in trees}
    processors: dict[Path, list[float]] = {tree: [] for tree in trees}
    with tempfile.TemporaryDirectory() as folder:
        for tree in trees:
            run(tree, f"{folder}/{trees.index(tree)}", 0)  # its cache has what is made once
        for _ in range(options.rounds):
            for tree in trees:
                cache = f"{folder}/{trees.index(tree)}"
                _, without = run(tree, cache, 0)
                seconds, all_of_it = run(tree, cache, options.checks)
                clock[tree] += seconds[1:]
                processors[tree].append((all_of_it - without) / options.checks)
    for tree in trees:
        print(
            f"{tree}: {shown(clock[tree])} s by the clock, {shown(processors[tree])} of processors"
        )
    print(f"load {os.getloadavg()[0]:.1f}")


def shown(seconds: list[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
