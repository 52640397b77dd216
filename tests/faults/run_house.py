"""The table of troubles, done in processes that stand for users' scripts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from faults.flips import flip_store
from faults.house import TITLES, TROUBLES, Trouble
from faults.makeready import Place
from faults.report import Outcome

FLIPS = "a bit flipped, one at a time, in all files"


def run_house(
    only: str = "",
    times: int = 1,
    flips: int = 1000,
    troubles: Sequence[Trouble] = TROUBLES,
    *,
    jobs: int = 1,
) -> list[Outcome]:
    """Do every trouble whose name, or whose subject, has ``only`` in it, ``times`` times.

    Args:
        only: What to do.
        times: How often.
        flips: How many bits of the cache to flip.
        troubles: The table.
        jobs: How many are done at once.
    """
    chosen = [each for each in troubles if only in each.name or only == each.where]
    with ThreadPoolExecutor(jobs) as pool:
        flipped = (
            pool.submit(lambda: _tell(run_flips(flips)))
            if flips and (only in FLIPS or only == "cache") and troubles is TROUBLES
            else None
        )
        outcomes = list(pool.map(lambda trouble: _tell(_repeat(trouble, times)), chosen))
    return outcomes + ([flipped.result()] if flipped else [])


def run_flips(count: int, seed: int = 0) -> Outcome:
    """Flip bits of a cache that a user filled, one at a time."""
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as root:
        place = Place(Path(root, "place"))
        place.fill()
        found = flip_store(place.cache, count, seed)
    survived = count - len(found.wrong)
    saw = (
        f"nothing: {found.missed} made an entry a miss, {found.harmless} changed nothing that is "
        f"read; {found.files} files, {found.bytes} bytes, seed {seed}"
    )
    return Outcome(
        TITLES["cache"], FLIPS, count, survived, "; ".join(found.wrong[:3]) or saw, not found.wrong
    )


def _tell(outcome: Outcome) -> Outcome:
    print(f"  {'ok ' if outcome.good else 'BAD'} {outcome.name}: {outcome.saw}", file=sys.stderr)
    return outcome


def _repeat(trouble: Trouble, times: int) -> Outcome:
    survived, good = 0, True
    saw: dict[str, None] = {}
    for seed in range(times):
        lives, said, as_it_should = attempt(trouble, seed)
        survived += lives
        good &= as_it_should
        # What is not as it should be is what a reader has to see first.
        saw = {said: None, **saw} if not as_it_should else {**saw, said: None}
    shown = next(iter(saw)) + (f" (known: {trouble.known})" if trouble.known else "")
    return Outcome(TITLES[trouble.where], trouble.name, times, survived, shown, good)


def attempt(trouble: Trouble, seed: int) -> tuple[bool, str, bool]:
    """Let a trouble happen once.

    Returns:
        Whether the user went on with right results, what they saw, and whether that is as it
        should be.
    """
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        place = Place(root / "place", seed)
        trouble.prepare(place)
        began = time.monotonic()
        users = [place.start(trouble.act) for _ in range(trouble.users)]
        ended = [_end(user, trouble.limit) for user in users]
        seconds = time.monotonic() - began
    finally:
        shutil.rmtree(root, ignore_errors=True)
    failures = [each for each in ended if isinstance(each, str)]
    if failures:
        return False, f"THE PROCESS {failures[0]}", False
    wrong = sum(each["wrong"] for each in ended)
    said = list(dict.fromkeys(line for each in ended for line in each["said"]))
    figures = [line for each in ended for line in each["figures"]]
    if wrong:
        return False, f"{wrong} RESULTS WRONG; {'; '.join(said)}", False
    as_it_should = all(fits(trouble.says, each["said"]) for each in ended)
    shown = [_short(line, root) for line in said] or ["nothing"]
    return True, "; ".join([*shown, *figures]) + f" ({seconds:.0f} s)", as_it_should


def fits(says: str, said: Sequence[str]) -> bool:
    """Whether all that was said is what has to be said, and something where it has to be."""
    if not says or not said:
        return not says and not said
    return all(re.search(says, line) for line in said)


def _short(line: str, root: Path) -> str:
    line = " ".join(line.replace(str(root), "…").split())
    return line if len(line) <= 160 else f"{line[:150]} … ({len(line)} characters)"


def _end(user: subprocess.Popen[str], limit: float) -> Any:
    """Return what a user's process says, or how it ended."""
    try:
        output, errors = user.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return f"did not end in {limit:g} s"
    finally:
        # What it may have left in its session goes with it.
        try:
            os.killpg(user.pid, signal.SIGKILL)
        except OSError:
            user.kill()
        user.wait()
    line = output.strip().rpartition("\n")[2]
    try:
        return json.loads(line)
    except ValueError:
        last = " ".join(errors.strip().splitlines()[-2:])[-300:]
        return f"ended with status {user.returncode}: {last}"


__all__ = ["attempt", "fits", "run_flips", "run_house"]
