"""Pictures of the reports of ``make bench-gpu`` and ``make bench-cpu``, a row of dots a workload.

Run from the repository root::

    python tests/bench/draw.py build/bench_gpu.jsonl docs/images/gpu-kernels.svg
    python tests/bench/draw.py build/bench_cpu.jsonl docs/images/cpu-kernels.svg --threads 2

Workloads that wait for a GPU's memory are drawn as shares of the speed of a copy of the same
bytes, all of a CPU's as multiples of eager's speed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from common import Row, geometric_mean

# Colors that stay apart for the color-blind, and shapes for whoever prints in black.
STYLES = {
    "fusec": ("#0072b2", "o", "fusec"),
    "inductor": ("#e69f00", "s", "TorchInductor"),
    "default": ("#e69f00", "s", "TorchInductor"),
    "max-autotune-no-cudagraphs": ("#009e73", "^", "TorchInductor, autotuned"),
    "eager": ("#777777", "|", "eager"),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path, help="its ending says what it becomes")
    parser.add_argument("--threads", type=int, default=2, help="which rows of a CPU's report")
    return parser.parse_args(arguments)


def speeds(rows: Sequence[Row], base: str) -> list[tuple[str, dict[str, float]]]:
    """Return each workload's name with everybody's speed over that of ``base``, fusec's rising."""
    found = []
    for row in rows:
        if row.get(base) and row.get("fusec"):
            shares = {name: row[base] / row[name] for name in STYLES if row.get(name)}
            shares.pop(base, None)
            found.append((row["name"], shares))
    return sorted(found, key=lambda each: each[1]["fusec"])


def draw(found: Sequence[tuple[str, dict[str, float]]], base: str, picture: Path) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams.update({"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "fuselab"})
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8.2, 0.155 * len(found) + 1.1), layout="constrained")
    places = range(len(found))
    for name, (color, marker, label) in STYLES.items():
        points = [(shares[name], y) for y, (_, shares) in enumerate(found) if name in shares]
        if not points:
            continue
        mean = geometric_mean([x for x, _ in points])
        line = {"markeredgecolor": color} if marker == "|" else {}
        axes.plot(
            *zip(*points, strict=True),
            marker,
            color=color,
            markersize=5,
            label=f"{label} ({mean:.2f})",
            zorder=3 if name == "fusec" else 2,
            **line,
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    if base == "eager":
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.set_xlim(left=0)
    axes.set_yticks(places, [name for name, _ in found])
    axes.set_ylim(-0.7, len(found) - 0.3)
    axes.grid(color="#dddddd", linewidth=0.6)
    words = "the copy's speed" if base == "copy" else "eager's speed"
    axes.set_xlabel(f"times {words} (in parentheses the geometric mean); to the right is faster")
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def main(arguments: Sequence[str]) -> int:
    """Draw what the arguments name."""
    options = parse(arguments)
    every = [json.loads(line) for line in options.report.read_text().splitlines()]
    on_cpu = any("threads" in row for row in every)
    rows = [
        row
        for row in every
        if (row["threads"] == options.threads if on_cpu else row["bound"] == "memory")
    ]
    base = "eager" if on_cpu else "copy"
    found = speeds(rows, base)
    if not found:
        print(f"{options.report} has no rows to draw", file=sys.stderr)
        return 1
    draw(found, base, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
