"""Some of `make faults`, in a notebook's place: what does harm is refused, what is right is not."""

from __future__ import annotations

import pytest

from faults.edits import FAULTS
from faults.run_edits import run_edits

QUICK = (
    "crashes after 50 calls",
    "a thread that writes after it returned",
    "a double fork with a session of its own",
    "denormals switched off in the threads",
    "a result kept from an earlier call, by pointer",
    "very far",
    "100 bytes a call are never freed",
    "prints without end",
    "threads of OpenMP with a critical section",
)


def test_a_sample_of_the_table():
    chosen = [fault for fault in FAULTS if fault.name in QUICK]
    assert len(chosen) == len(QUICK)
    outcomes = run_edits(faults=chosen)
    assert [(each.name, each.saw) for each in outcomes if not each.good] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_the_table():
    known = {"a step that its values switch off"}  # nobody can try all values
    bad = [(each.name, each.saw) for each in run_edits() if not each.good]
    assert {name for name, _ in bad} <= known, bad
