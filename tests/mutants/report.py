"""What a run of the mutants found."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CAUGHT = ("caught", "timeout", "crash")
REASONS = Path(__file__).with_name("equivalent.toml")
Row = Mapping[str, Any]
Identity = tuple[str, str, str, str, int]


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the latest result of each mutant, by key."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text().splitlines())
    return {row["key"]: row for row in rows}


def reasons(path: Path = REASONS) -> dict[Identity, str]:
    """Return why mutants compute the same, by ``identity``."""
    if not path.exists():
        return {}
    found = tomllib.loads(path.read_text()).get("mutant", [])
    return {identity(row): row["reason"] for row in found}


def identity(row: Row) -> Identity:
    """Return what a mutant is known by, whatever line it is on.

    The number tells places of a function apart that read the same; the first is 0.
    """
    number = row.get("number", 0)
    return row["file"], row["where"], row["original"], row["mutated"], number


def judged(row: Row, known: Mapping[Identity, str]) -> str:
    """Return a mutant's verdict, with ``equivalent`` for survivors that have a reason."""
    survives = row["verdict"] not in CAUGHT
    return "equivalent" if survives and identity(row) in known else row["verdict"]


def totals(rows: Sequence[Row], known: Mapping[Identity, str]) -> str:
    """Return the score as Markdown, and what survived without a reason."""
    strata = list(dict.fromkeys(row["stratum"] for row in rows))
    lines = ["| part | mutants | caught | equivalent | survived | not covered | score |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for name in [*sorted(strata), "all"]:
        part = [row for row in rows if name in (row["stratum"], "all")]
        counts = Counter(judged(row, known) for row in part)
        caught = sum(counts[verdict] for verdict in CAUGHT)
        asked = len(part) - counts["equivalent"]
        score = f"{100 * caught / asked:.1f} %" if asked else "-"
        cells = [name, len(part), caught, counts["equivalent"], counts["survived"]]
        cells += [counts["not covered"], score]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    for row in rows:
        verdict = judged(row, known)
        if verdict in ("survived", "not covered"):
            lines += ["", f"{verdict}: {row['file']}:{row['line']} {row['where']} ({row['key']})"]
            lines += [f"    - {row['original']}", f"    + {row['mutated']}"]
    return "\n".join(lines)


__all__ = ["CAUGHT", "identity", "judged", "read", "reasons", "totals"]
