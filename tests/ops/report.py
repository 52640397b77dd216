"""The report of the suite: JSON lines, and totals in Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ops.judge import BAD
from ops.unit import LIBRARIES
from support.children import json_lines

Unit = Mapping[str, Any]
_RIGHT = ("ok", "float64", "rounding", "captured")
# How a sample ran, best first.
WAYS = ("generated", "extern", "broken off", "refused", "wrong", "crashed")


def read(path: Path) -> dict[str, Unit]:
    """Return the units of a report by key; a line that was cut off is left out."""
    return {unit["key"]: unit for unit in json_lines(path) if "database" in unit}


def append(path: Path, unit: Unit) -> None:
    """Add one unit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(unit) + "\n")


def way(sample: Mapping[str, Any]) -> str:
    """Return how a sample ran: one of ``WAYS``."""
    verdict = sample["verdict"]
    if verdict in ("wrong", "computes", "mistranslated"):
        return "wrong"
    if verdict in ("crash", "timeout", "error"):
        return "crashed"
    if verdict in ("raises", "raises another", "not captured", "no samples", "eager"):
        return "refused"
    if sample.get("breaks") or verdict == "not compiled":
        return "broken off"
    return "extern" if sample["externs"] else "generated"


def totals(found: Iterable[Unit]) -> str:
    """Return what all units come to, as Markdown."""
    everything = list(found)
    groups = dict.fromkeys((unit["database"], unit["backend"]) for unit in everything)
    lines = []
    for database, backend in groups:
        mine = [u for u in everything if (u["database"], u["backend"]) == (database, backend)]
        if any(unit["samples"] for unit in mine):
            lines += _section(database, backend, mine)
    return "\n".join([*lines, *beside(everything)])


def beside(found: Iterable[Unit]) -> list[str]:
    """Return how each sample ran here and with TorchInductor, by both and by operator.

    Only samples that both were given are counted; an operator's way is that of its worst sample.
    """
    mine: dict[str, dict[tuple[object, ...], str]] = {"fusec": {}, "inductor": {}}
    for unit in found:
        for number, sample in enumerate(unit["samples"]):
            place = (unit["database"], unit["op"], unit["dtype"], unit["direction"], number)
            mine[unit["backend"]][place] = way(sample)
    both = [place for place in mine["fusec"] if place in mine["inductor"]]
    if not both:
        return []
    ops: dict[str, list[tuple[int, int]]] = {}
    for place in both:
        ours, theirs = (WAYS.index(mine[each][place]) for each in ("fusec", "inductor"))
        ops.setdefault(str(place[1]), []).append((ours, theirs))
    worst = {name: tuple(map(max, zip(*ways, strict=True))) for name, ways in ops.items()}
    lines = [f"**Beside TorchInductor**: {len(ops)} operators, {len(both)} samples", ""]
    lines += _crossed("samples", Counter(pair for ways in ops.values() for pair in ways))
    lines += _crossed("operators", Counter(worst.values()))
    lines += ["| operator | samples | here | TorchInductor |", "|---|--:|---|---|"]
    for name, (ours, theirs) in sorted(worst.items(), key=lambda each: (each[1], each[0])):
        lines.append(f"| {name} | {len(ops[name])} | {WAYS[ours]} | {WAYS[theirs]} |")
    return [*lines, ""]


def _crossed(what: str, counts: Counter[tuple[int, ...]]) -> list[str]:
    """Return a table: a row for each way here, a column for each with TorchInductor."""
    seen = [n for n in range(len(WAYS)) if any(n in pair for pair in counts)]
    head = " | ".join(WAYS[n] for n in seen)
    lines = [f"| {what}: here, and with TorchInductor | {head} | all |"]
    lines.append("|---" + "|--:" * (len(seen) + 1) + "|")
    for ours in seen:
        row = [counts[ours, theirs] for theirs in seen]
        cells = [str(count or "") for count in row]
        lines.append(f"| {WAYS[ours]} | {' | '.join(cells)} | {sum(row)} |")
    columns = [sum(counts[ours, theirs] for ours in seen) for theirs in seen]
    lines.append(f"| all | {' | '.join(map(str, columns))} | {sum(columns)} |")
    return [*lines, ""]


def _section(database: str, backend: str, mine: list[Unit]) -> list[str]:
    verdicts = Counter(s["verdict"] for unit in mine for s in unit["samples"])
    ops = len({unit["op"] for unit in mine})
    counted = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common())
    name = backend if database == "operators" else f"{database}, {backend}"
    lines = [f"**{name}**: {ops} operators, {verdicts.total()} samples: {counted}", ""]
    lines += _table(mine, verdicts)
    if backend == "fusec" and database == "operators":
        lines += [*fused(mine), ""]
    elif database not in ("operators", "errors"):
        lines += [_ways(mine), "", *_each(mine), ""]
    for unit in mine:
        for number, sample in enumerate(unit["samples"]):
            if sample["verdict"] in BAD:
                place = sample.get("variant") or number
                where = f"{unit['op']} {unit['dtype']} {unit['direction']} {place}"
                lines.append(f"- {where}: {sample['verdict']}: {sample['detail'][:200]}")
    return [*lines, ""]


def _table(mine: list[Unit], verdicts: Counter[str]) -> list[str]:
    lines = ["| dtype | direction | samples | " + " | ".join(verdicts) + " |"]
    lines.append("|---" * (3 + len(verdicts)) + "|")
    groups: dict[tuple[str, str], Counter[str]] = {}
    for unit in mine:
        group = groups.setdefault((unit["dtype"], unit["direction"]), Counter())
        group.update(s["verdict"] for s in unit["samples"])
    for (dtype, direction), group in groups.items():
        if group:
            cells = [dtype, direction, str(group.total()), *(str(group[v]) for v in verdicts)]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _each(mine: list[Unit]) -> list[str]:
    """Return a row for each name: how its samples ran, and what its worst one says."""
    lines = [f"| name | {' | '.join(WAYS)} | |", "|---" * (2 + len(WAYS)) + "|"]
    for name in dict.fromkeys(unit["op"] for unit in mine):
        samples = [s for unit in mine if unit["op"] == name for s in unit["samples"]]
        counts = Counter(map(way, samples))
        worst = max(samples, key=lambda s: WAYS.index(way(s)), default={})
        said = [*worst.get("breaks", ()), worst.get("detail", ""), *worst.get("externs", ())]
        note = next((text for text in said if text), "").replace("|", "/")[:100]
        cells = [name, *(str(counts[each] or "") for each in WAYS), note]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def fused(found: Iterable[Unit]) -> list[str]:
    """Return what share of the samples ran in generated kernels alone, and the other reasons."""
    lines = []
    units = list(found)
    inner = [u for u in units if not any(word in u["op"] for word in LIBRARIES)]
    for name, chosen in (
        ("all operators", units),
        ("without linear algebra, FFT, sparse and sort", inner),
    ):
        ran = [s for u in chosen for s in u["samples"] if s["verdict"] in _RIGHT]
        whole = sum(not s["externs"] for s in ran)
        share = f"{100 * whole / len(ran):.1f} %" if ran else "-"
        lines.append(f"- {name}: {whole} of {len(ran)} samples have no extern call ({share})")
    lines.append(_ways(units))
    reasons = Counter(
        reason for u in inner for s in u["samples"] for reason in dict.fromkeys(s["externs"])
    )
    lines += [f"  - {count} x {reason}" for reason, count in reasons.most_common(40)]
    return lines


def _ways(found: Iterable[Unit]) -> str:
    ways = Counter(way(s) for u in found for s in u["samples"])
    return "- " + ", ".join(f"{ways[each]} {each}" for each in WAYS)


__all__ = ["BAD", "WAYS", "append", "beside", "fused", "read", "totals", "way"]
