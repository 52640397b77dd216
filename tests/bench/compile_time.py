"""How long compiling takes, beside TorchInductor: ``make bench-compile``.

Every figure is of a fresh process that has imported torch, and nothing else of the compiler's:
cold with empty caches, warm over the caches that the cold process before it has filled.  Both
compilers are measured in turns, so that a machine whose speed varies is as unkind to either;
figures are medians over the rounds, ratios medians of the rounds' ratios.  Bytecode of all modules
is there, as it is where pip has installed them.

``python tests/bench/compile_time.py [--only cell at-once shown edit written forward training]
[--rounds 3] [--no-peer] [--no-warm]``
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHILD = HERE / "compile_scenes.py"
MARK = "compile-time "
LIMIT = 600.0
# What `import torch` takes on the machine that the bounds are stated for.
TORCH_THERE = 0.8
SCENES = ("cell", "at-once", "shown", "edit", "written", "forward", "training")
Times = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of the table: what of a scene's figures it shows, and the bound on it.

    Attributes:
        scene: The scene.
        text: What a reader calls it.
        names: The figures to add up; of several that start with a name, the median.
        cold: Bound in seconds with empty caches, or as a share of the peer's time.
        warm: Likewise over filled ones.
        relative: Whether the bounds are shares of the peer's time.
    """

    scene: str
    text: str
    names: tuple[str, ...]
    cold: float | None = None
    warm: float | None = None
    relative: bool = False


ROWS = (
    Row("cell", "first cell: its value", ("first",), 2.5, 1.0),
    Row("cell", "further new cell: its value", ("further",), 0.4, 0.05),
    Row("at-once", "%load_ext and first cell with no pause", ("load_ext", "first"), 2.5, 1.0),
    Row("shown", "first cell: checked, timed, drawn", ("first",), 2.5, 1.0),
    Row("shown", "further new cell: checked, timed, drawn", ("further",), 0.4, 0.05),
    Row("edit", "edit: checked, in use, timed, drawn", ("edit",), 0.5, 0.5),
    Row("written", "GPT-2 in plain PyTorch, forward", ("first",), 0.15, relative=True),
    Row("forward", "GPT-2 of transformers, forward", ("first",), 0.15, relative=True),
    Row("training", "GPT-2 of transformers, training step", ("first",), 0.15, relative=True),
)


@dataclass
class Runs:
    """The figures of one scene: by compiler and by cold or warm, a round each."""

    found: dict[tuple[str, str], list[Times]] = field(default_factory=dict)

    def add(self, compiler: str, state: str, times: Times) -> None:
        self.found.setdefault((compiler, state), []).append(times)

    def values(self, compiler: str, state: str, names: tuple[str, ...]) -> list[float]:
        """Return the sum of the named figures, a round each; empty where there are none."""
        rounds = []
        for times in self.found.get((compiler, state), []):
            parts = [[v for k, v in times.items() if k.startswith(name)] for name in names]
            if all(parts):
                rounds.append(sum(statistics.median(part) for part in parts))
        return rounds


def write_bytecode() -> None:
    """Give the packages what pip gives them when it installs them, torch among them."""
    for package in ("compiler/fusec", "ext/fuselab"):
        compileall.compile_dir(ROOT / package, quiet=1)


def measure(scene: str, compiler: str, cache: Path) -> Times:
    """Run one scene in a fresh process over the given caches."""
    folders = {
        "FUSEC_CACHE_DIR": cache / "fusec",
        "TORCHINDUCTOR_CACHE_DIR": cache / "inductor",
        "TRITON_CACHE_DIR": cache / "triton",
        "MPLCONFIGDIR": cache.parent / "matplotlib",
        "IPYTHONDIR": cache.parent / "ipython",
    }
    done = subprocess.run(
        [sys.executable, str(CHILD), scene, compiler],
        cwd=ROOT,
        env={**os.environ, **{name: str(path) for name, path in folders.items()}},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            times: Times = json.loads(line.removeprefix(MARK))
            return times
    raise SystemExit(f"{scene} {compiler} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def measure_scene(scene: str, rounds: int, *, peer: bool, warm: bool) -> Runs:
    """Measure one scene, the compilers in turns, each cold and then warm."""
    runs = Runs()
    alone = scene in ("at-once", "shown", "edit")
    compilers = ["fusec", *(["inductor"] if peer and not alone else [])]
    states = ["cold", *(["warm"] if warm else [])]
    with tempfile.TemporaryDirectory(prefix="compile-time-") as root:
        for number in range(rounds):
            for state in states:
                for compiler in compilers:
                    cache = Path(root, f"{compiler}-{number}")
                    cache.mkdir(mode=0o700, exist_ok=True)
                    runs.add(compiler, state, measure(scene, compiler, cache))
    return runs


def bound_text(row: Row, state: str) -> str:
    """Return the bound of a row as the table shows it."""
    bound = row.cold if state == "cold" else row.warm
    if bound is None:
        return ""
    return f"{bound:.0%} of the peer's" if row.relative else f"{bound:g} s"


def lines_of(scene: str, runs: Runs, peers: Runs | None) -> list[str]:
    """Return a scene's lines: seconds, the peer's, the ratio, the bound."""
    lines = []
    for row in (row for row in ROWS if row.scene == scene):
        for state in ("cold", "warm"):
            ours = runs.values("fusec", state, row.names)
            if not ours:
                continue
            other = (peers or runs).values("inductor", state, row.names)
            ratio = ""
            if len(other) == len(ours):
                share = statistics.median(a / b for a, b in zip(ours, other, strict=True))
                ratio = f"{share:.0%}"
            text = f"{row.text}, {state}"
            spread = f"{min(ours):.2f}-{max(ours):.2f}" if len(ours) > 1 else ""
            peer = f"{statistics.median(other):8.2f}" if other else f"{'':8}"
            lines.append(
                f"{text:48} {statistics.median(ours):8.3f} {spread:>10} {peer} {ratio:>6}"
                f"  {bound_text(row, state)}"
            )
    return lines


def stage_lines(scene: str, runs: Runs) -> list[str]:
    """Return where the time went, a line for cold and one for warm."""
    lines = []
    for state in ("cold", "warm"):
        rounds = runs.found.get(("fusec", state), [])
        for name in ("stages first", "stages further"):
            tables = [times[name] for times in rounds if name in times]
            if not tables:
                continue
            stages = {k: statistics.median(t.get(k, 0.0) for t in tables) for k in tables[0]}
            if "import" in rounds[0]:
                stages = {"import": statistics.median(t["import"] for t in rounds), **stages}
            what = name.removeprefix("stages ")
            text = ", ".join(f"{k} {v:.2f}" for k, v in stages.items())
            lines.append(f"  {scene} {what}, {state}: {sum(stages.values()):.2f} s: {text}")
    return lines


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SCENES, default=SCENES, metavar="SCENE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peer", action="store_true", help="leave TorchInductor out")
    parser.add_argument("--no-warm", action="store_true", help="cold figures only")
    options = parser.parse_args()
    write_bytecode()
    table: list[str] = []
    stages: list[str] = []
    torch_seconds: list[float] = []
    cells: Runs | None = None
    for scene in options.only:
        runs = measure_scene(
            scene, options.rounds, peer=not options.no_peer, warm=not options.no_warm
        )
        cells = runs if scene == "cell" else cells
        # what is shown has no like in the peer: its figure is that of the value
        table += lines_of(scene, runs, cells if scene in ("at-once", "shown") else None)
        stages += stage_lines(scene, runs)
        torch_seconds += [t["torch"] for times in runs.found.values() for t in times]
        print(f"{scene} measured", file=sys.stderr, flush=True)
    here = statistics.median(torch_seconds)
    print(f"{'seconds':48} {'fusec':>8} {'':>10} {'inductor':>8} {'ratio':>6}  bound")
    print("\n".join(table))
    print("where the time goes, as fusec reports it:")
    print("\n".join(stages))
    print(
        f"`import torch` takes {here:.2f} s here and {TORCH_THERE} s where the bounds are stated: "
        f"this machine is {here / TORCH_THERE:.1f} times slower; {options.rounds} rounds, medians."
    )


if __name__ == "__main__":
    main()
