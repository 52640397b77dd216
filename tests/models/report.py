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
    """Return all cases as a Markdown table, with totals below.

    Where a GPU was used, what its kernels took is behind the time of the call.
    """
    backends = _backends(cases)
    warm = any(one.get("warm") for found in cases.values() for one in found.values())
    heads = ["case", "graphs, breaks, kernels, externs, in eager", "error, eager's"]
    heads += [f"first call s: {', '.join(backends)}"]
    heads += [f"in a second process: {', '.join(backends)}"] * warm
    heads += ["eager ms", *backends, "verdicts"]
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for case, found in cases.items():
        own = found.get("fusec", {})
        timed = next((one for one in found.values() if one.get("milliseconds")), {})
        counts = own.get("counts") or {}
        cells = [
            case,
            ", ".join(str(counts.get(name, "-")) for name in COUNTS),
            f"{own.get('error', math.nan):.1e}, {own.get('eager_error', math.nan):.1e}",
            ", ".join(_number(found.get(name, {}).get("first")) for name in backends),
            *[", ".join(_number(found.get(name, {}).get("warm")) for name in backends)] * warm,
            _number(timed.get("eager")) + _busy(timed.get("eager_busy")),
            *[_time(one) + _busy(one.get("busy")) for one in map(found.get, backends) if one],
            ", ".join(f"{name} {one.get('verdict')}" for name, one in found.items()),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, "", *totals(cases), ""])


def totals(cases: Mapping[str, Found]) -> list[str]:
    """Return the sums over all cases, a line a backend, and what failed."""
    backends = _backends(cases)
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
    for own, peer in (("fusec", "inductor"), ("fusec-graphs", "inductor-graphs")):
        both = [
            (found[own], found[peer])
            for found in cases.values()
            if all(found.get(name, {}).get("milliseconds") for name in (own, peer))
        ]
        if both:
            speed = [theirs["milliseconds"] / ours["milliseconds"] for ours, theirs in both]
            first = [theirs["first"] / ours["first"] for ours, theirs in both]
            text = f"- {own} over {peer}: speed {_mean(speed)}, first call {_mean(first)}"
            busy = [(o["busy"], p["busy"]) for o, p in both if o.get("busy") and p.get("busy")]
            if busy:
                text += f", what the GPU does {_mean(theirs / ours for ours, theirs in busy)}"
            warm = [(o["warm"], p) for o, p in both if o.get("warm")]
            if warm:
                shares = [seconds / theirs["first"] for seconds, theirs in warm]
                text += f"; a second process's first call takes {_mean(shares)[:-1]} of {peer}'s"
                text += f" first (at most {max(shares):.2f})"
                of_both = [(seconds, p["warm"]) for seconds, p in warm if p.get("warm")]
                if of_both:
                    mean = _mean(ours / theirs for ours, theirs in of_both)
                    text += f" and {mean[:-1]} of that of {peer}'s second process"
            lines.append(text)
    for case, found in cases.items():
        for name, one in found.items():
            if one["verdict"] != "ok":
                lines.append(f"- {case}, {name}: {one['verdict']}: {one.get('detail', '')[:300]}")
    return lines


def _backends(cases: Mapping[str, Found]) -> list[str]:
    return list(dict.fromkeys(name for found in cases.values() for name in found))


def _busy(milliseconds: float | None) -> str:
    return f", GPU {_number(milliseconds)}" if milliseconds else ""


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
