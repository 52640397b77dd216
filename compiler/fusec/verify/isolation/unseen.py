"""What runs may be right with, by luck: threads that share a variable, a step past a local array.

Of a small kernel one thread is through before the next one begins, and what lies behind an array
on the stack is often nothing.  Whoever writes either is told in the line; the sanitizers see it,
and only where an edit has threads or arrays of its own they are asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fusec.errors import FusecError
from fusec.kernel_source import Signature
from fusec.toolchain import sanitizers
from fusec.verify.isolation.layout import Case
from fusec.verify.isolation.sanitize import heard_of, watched_case
from fusec.verify.static.cpp_text import without_comments
from fusec.verify.words import Finding

# More is watched for long, and its threads meet by themselves.
_MOST_BYTES = 256 << 10
_PARALLEL = re.compile(r"#\s*pragma\s+omp\s+(?:parallel|teams|target|task)|_Pragma")
_ARRAY = re.compile(r"[\w>]\s+\w+\s*(?:\[[^\][]*\])+\s*(?:=|;|,|\{)|\balloca\s*\(|std::array")
_RACE = re.compile(r"WARNING: ThreadSanitizer: data race")
_PLACE = re.compile(r"#\d+ .*kernel\.cpp:(\d+)")


def seen_by_watching(
    text: str,
    generated: str,
    entry: str,
    signature: Signature,
    cases: Sequence[Case],
    *,
    threads: int,
    seconds: float,
) -> Finding | None:
    """Return what is wrong with an edit that its results need not show, if anything.

    Args:
        text: The whole kernel file.
        generated: The compiler's.
        entry: The function to call.
        signature: Names and roles of the tensors.
        cases: What to call it on; all of them for races, the first one otherwise.
        threads: The most threads.
        seconds: How long its runs may take.
    """
    code, known = without_comments(text), without_comments(generated)
    if cases[0].nbytes > _MOST_BYTES or code.split() == known.split():
        return None
    wanted = []
    if _PARALLEL.search(code):
        wanted += [(sanitizers.THREAD, case) for case in cases]
    if _has_arrays(code, known, entry):
        wanted.append((sanitizers.ADDRESS, cases[0]))
    for name, case in wanted:
        try:
            watched, data = watched_case(signature, case)
            heard = sanitizers.run_watched(
                text,
                entry,
                watched,
                data,
                case.sizes,
                threads=threads,
                seconds=seconds,
                wanted=(name,),
            )
        except (FusecError, OSError):
            continue  # this compiler has it not, or the edit asks for what is not there
        found = _race(heard) if name == sanitizers.THREAD else _step(heard)
        if found is not None:
            return found
    return None


def _has_arrays(code: str, known: str, entry: str) -> bool:
    """Whether a text has arrays but those of helpers that the compiler's has as well."""
    start = known.find(entry)
    end = known.find("\n}", start)
    helpers = {line.strip() for line in (known[:start] + known[end:]).splitlines()}
    lines = (line.strip() for line in code.splitlines())
    return any(_ARRAY.search(line) for line in lines if line not in helpers)


def _race(heard: sanitizers.Heard) -> Finding | None:
    race = _RACE.search(heard.output)
    if race is None:
        return None
    places = [int(number) for number in _PLACE.findall(heard.output, race.end())]
    line = places[0] if places else None
    others = [place for place in places[1:2] if place != line]
    where = f" and in line {others[0]}" if others else ""
    said = f"its threads race: two of them use the same memory here{where}, and one writes it"
    advice = "declare it where each thread has its own, or use a reduction, an atomic or a barrier"
    return Finding("wrong", f"{said}; {advice}", line, heard.output)


def _step(heard: sanitizers.Heard) -> Finding | None:
    """Return a step outside of an array; what else there may be is the other runs' business."""
    found = heard_of(heard)
    return found if found is not None and found.stage == "bounds" else None


__all__ = ["seen_by_watching"]
