"""The report of the operator suite: JSON lines, and totals in Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ops.unit import LIBRARIES

Unit = Mapping[str, Any]
BAD = ("wrong", "error", "eager", "timeout", "crash", "mistranslated")


def read(path: Path) -> dict[str, Unit]:
    """Return the units of a report by key; a line that was cut off is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            unit = json.loads(line)
        except ValueError:
            continue
        found[unit["key"]] = unit
    return found


def append(path: Path, unit: Unit) -> None:
    """Add one unit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(unit) + "\n")


def totals(found: Iterable[Unit]) -> str:
    """Return what all units come to, as Markdown."""
    everything = list(found)
    lines = []
    for backend in dict.fromkeys(unit["backend"] for unit in everything):
        mine = [unit for unit in everything if unit["backend"] == backend]
        verdicts = Counter(s["verdict"] for unit in mine for s in unit["samples"])
        ops = len({unit["op"] for unit in mine})
        counted = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common())
        lines.append(f"**{backend}**: {ops} operators, {verdicts.total()} samples: {counted}")
        lines += ["", "| dtype | direction | samples | " + " | ".join(verdicts) + " |"]
        lines.append("|---" * (3 + len(verdicts)) + "|")
        groups: dict[tuple[str, str], Counter[str]] = {}
        for unit in mine:
            group = groups.setdefault((unit["dtype"], unit["direction"]), Counter())
            group.update(s["verdict"] for s in unit["samples"])
        for (dtype, direction), group in groups.items():
            cells = [dtype, direction, str(group.total()), *(str(group[v]) for v in verdicts)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
        if backend == "fusec":
            lines += [*fused(mine), ""]
        for unit in mine:
            for number, sample in enumerate(unit["samples"]):
                if sample["verdict"] in BAD:
                    place = sample.get("variant") or number
                    where = f"{unit['op']} {unit['dtype']} {unit['direction']} {place}"
                    lines.append(f"- {where}: {sample['verdict']}: {sample['detail'][:200]}")
        lines.append("")
    return "\n".join(lines)


def fused(found: Iterable[Unit]) -> list[str]:
    """Return what share of the samples ran in generated kernels alone, and the other reasons."""
    lines = []
    units = list(found)
    inner = [u for u in units if not any(word in u["op"] for word in LIBRARIES)]
    for name, chosen in (
        ("all operators", units),
        ("without linear algebra, FFT, sparse and sort", inner),
    ):
        ran = [s for u in chosen for s in u["samples"] if s["verdict"] in ("ok", "float64")]
        whole = sum(not s["externs"] for s in ran)
        share = f"{100 * whole / len(ran):.1f} %" if ran else "-"
        lines.append(f"- {name}: {whole} of {len(ran)} samples have no extern call ({share})")
    reasons = Counter(
        reason for u in inner for s in u["samples"] for reason in dict.fromkeys(s["externs"])
    )
    lines += [f"  - {count} x {reason}" for reason, count in reasons.most_common(40)]
    return lines


__all__ = ["append", "fused", "read", "totals"]
