"""The report of the model suite: a JSON file, a line a case, a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Found = Mapping[str, Mapping[str, Any]]
COUNTS = ("graphs", "breaks", "kernels", "externs", "in eager")


def read(path: Path) -> dict[str, Any]:
    """Return what a report holds; nothing if there is none."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write(path: Path, results: Mapping[str, Any]) -> None:
    """Write a report, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(results, indent=1))
    temporary.replace(path)


def line(case: str, found: Found) -> str:
    """Return one case in a line."""
    return f"{case}: " + "; ".join(f"{name} {_words(one)}" for name, one in found.items())


def table(cases: Mapping[str, Found]) -> str:
    """Return all cases as a Markdown table, with totals below."""
    rows = [
        "| case | graphs, breaks, kernels, externs, in eager | error, eager's | "
        "first call s: fusec, inductor | eager ms | fusec | inductor | verdicts |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case, found in cases.items():
        own, peer = found.get("fusec", {}), found.get("inductor", {})
        counts = own.get("counts") or {}
        cells = [
            case,
            ", ".join(str(counts.get(name, "-")) for name in COUNTS),
            f"{own.get('error', math.nan):.1e}, {own.get('eager_error', math.nan):.1e}",
            f"{_number(own.get('first'))}, {_number(peer.get('first'))}",
            _number(own.get("eager") or peer.get("eager")),
            _time(own),
            _time(peer),
            ", ".join(f"{name} {one.get('verdict')}" for name, one in found.items()),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, "", *totals(cases), ""])


def totals(cases: Mapping[str, Found]) -> list[str]:
    """Return the sums over all cases, a line a backend, and what failed."""
    backends = list(dict.fromkeys(name for found in cases.values() for name in found))
    lines = []
    for name in backends:
        ran = [found[name] for found in cases.values() if name in found]
        verdicts = [one["verdict"] for one in ran]
        counted = ", ".join(f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts))
        speed = [r["eager"] / r["milliseconds"] for r in ran if r.get("milliseconds")]
        text = f"- {name}: {counted}; {_mean(speed)} of eager's speed in geometric mean"
        memory = [one["memory"] for one in ran if one.get("memory")]
        if memory:
            text += f"; peak memory {_mean(memory)} of eager's, at most {max(memory):.2f}"
        lines.append(text)
    both = [f for f in cases.values() if all(f.get(n, {}).get("milliseconds") for n in backends)]
    if {"fusec", "inductor"} <= set(backends) and both:
        speed = [f["inductor"]["milliseconds"] / f["fusec"]["milliseconds"] for f in both]
        first = [f["inductor"]["first"] / f["fusec"]["first"] for f in both]
        lines.append(f"- fusec over inductor: speed {_mean(speed)}, first call {_mean(first)}")
    for case, found in cases.items():
        for name, one in found.items():
            if one["verdict"] != "ok":
                lines.append(f"- {case}, {name}: {one['verdict']}: {one.get('detail', '')[:300]}")
    return lines


def _words(one: Mapping[str, Any]) -> str:
    if one["verdict"] != "ok":
        return f"{one['verdict']} ({one.get('detail', '')[:120]})"
    return f"ok {_time(one)} after {_number(one.get('first'))} s"


def _time(one: Mapping[str, Any]) -> str:
    if not one.get("milliseconds"):
        return "-"
    return f"{_number(one['milliseconds'])} ({one['eager'] / one['milliseconds']:.2f}x)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _mean(values: Iterable[float]) -> str:
    logs = [math.log(value) for value in values]
    return f"{math.exp(sum(logs) / len(logs)):.2f}x" if logs else "-"
