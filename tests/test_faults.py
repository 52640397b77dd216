"""Some of `make faults`, in a notebook's place: what does harm is refused, what is right is not."""

from __future__ import annotations

import random

import pytest
import torch

from faults import fuzz_edits, run_fuzz, user
from faults.careless_edits import SLIPS
from faults.edits import FAULTS
from faults.flips import flip_store
from faults.house import TROUBLES
from faults.makeready import Place
from faults.run_edits import Notebook, run_edits
from faults.run_house import fits, run_flips, run_house
from fusec.cache import CacheStore
from fusec.systems import this_system

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
    "a counter in a section of its own",
    "a counter deep in its stack",
    "frees its input where it is malloc's",
    "adds to an array of its own that nobody wrote",
    "changes its weight and puts it back",
    "a function in the section .fini",
    "assembly behind a raw string",
    "writes into its caller's part of the stack",
    "a buffer of its own for standard output",
    "wrong where its result is there already",
    "wrong where nothing but zeros is there",
    "a table of 3 GB",
    "a trap where a value is met",
    "a counter in stdout's _unused2[3]",
    "wrong with more threads than there are",
    "wrong where a layer is as it begins",
    "past the end at a number of its own",
    "wrong by the flags of what was computed before",
    "7 MB of the stack's 8",
    "wrong by where its code lies",
    "wrong with a number of threads that it names",
)

# Which no other system's C library, or report of a fault, tells.
BY_LINUX = (
    "very far",
    "100 bytes a call are never freed",
    "a counter in stdout's _unused2[3]",
    "a buffer of its own for standard output",
)

CARELESS = (
    "no largest value is taken off",
    "threads share a row",
    "an array of its own that is too short",
    "the least integer divided by -1",
    "threads that count by atomics",
)

QUICK_HOUSE = (
    "a disk that is read-only",
    "crashes",
    "prints 20 megabytes, and fails",
    "makes a library of garbage",
)


def test_a_sample_of_the_table():
    chosen = [fault for fault in FAULTS if fault.name in QUICK]
    assert len(chosen) == len(QUICK)
    if this_system().name != "linux":
        chosen = [fault for fault in chosen if fault.name not in BY_LINUX]
    outcomes = run_edits(faults=chosen)
    assert [(each.name, each.saw) for each in outcomes if not each.good] == []


def test_a_sample_of_careless_slips():
    chosen = [slip for slip in SLIPS if slip.name in CARELESS]
    assert len(chosen) == len(CARELESS)
    if this_system().name != "linux":
        pytest.skip("what sees them is Linux's")
    outcomes = run_edits(
        faults=chosen, start=lambda: Notebook(("faults.careless_notebook",)), says=False
    )
    assert [(each.name, each.saw) for each in outcomes if not each.good] == []


def test_bits_of_a_cache(tmp_path):
    store = CacheStore(tmp_path / "store")
    for number in range(6):
        files = {"kernel.so": bytes(range(256)) * (number + 1), "kernel.cpp": b"int x;\n"}
        store.put("cpp", {"n": number, "flags": ["-O3"]}, files)
    found = flip_store(store.folder, 90, seed=0)
    assert found.wrong == []
    assert found.files == 18
    assert found.missed >= 80
    assert store.verify() == ()  # all was put right again


@pytest.mark.parametrize("name", QUICK_HOUSE)
def test_a_sample_of_the_house(name, tmp_path, monkeypatch):
    """In this process, which has torch already."""
    (trouble,) = (each for each in TROUBLES if each.name == name)
    place = Place(tmp_path / "place")
    trouble.prepare(place)
    for variable, value in place.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("FUSEC_STRICT", raising=False)
    torch._dynamo.reset()
    seen = user.observe(trouble.act, seed=0)
    assert seen.wrong == 0
    assert fits(trouble.says, seen.said), seen.said


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_of_the_house():
    known = {trouble.name for trouble in TROUBLES if trouble.known}
    outcomes = [*run_house(flips=0), run_flips(1000)]
    bad = [(each.name, each.saw) for each in outcomes if not each.good]
    assert {name for name, _ in bad} <= known, bad


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_of_the_table():
    known = {"a step that its values switch off"}  # nobody can try all values
    bad = [(each.name, each.saw) for each in run_edits() if not each.good]
    assert {name for name, _ in bad} <= known, bad


class _Answers:
    """Stands for a notebook that has its answers already; `str` is how a process ended."""

    def __init__(self, answers: dict[str, object]) -> None:
        self.answers = answers

    def ask(self, name: str) -> object:
        return self.answers[name]

    def close(self) -> None:
        pass


def test_random_edits_are_counted_and_what_is_bad_is_named(monkeypatch, capsys):
    quiet = {"wrong": 0, "processes": 0, "changed": [], "same": False}
    told = {"edit": ["4 +b"], "numbers": ["inputs 3: off"]}
    answers = {
        "3": {**quiet, "ok": False, "stage": "bounds"},
        "4": {**quiet, "ok": True, "stage": "passed"},
        "5": {**quiet, "ok": True, "stage": "passed", "wrong": 2, **told},
        "6": "ended with status -11",
        "7": {**quiet, "ok": False, "stage": "bounds"},
    }
    monkeypatch.setattr(run_fuzz, "Notebook", lambda *arguments: _Answers(answers))
    (outcome,) = run_fuzz.run_fuzz(range(3, 8))
    assert (outcome.times, outcome.survived, outcome.good) == (5, 3, False)
    assert "2 refused (bounds)" in outcome.saw
    assert "1 accepted and right" in outcome.saw
    assert "seed 5: 2 results wrong" in outcome.saw
    assert "seed 6: THE NOTEBOOK ended with status -11" in outcome.saw
    assert "seed 5: 2 results wrong\n    4 +b\n    inputs 3: off\n" in capsys.readouterr().err


def test_an_edit_that_is_wrong_is_told_with_its_lines_and_its_numbers():
    """On another machine its text may be another: the seed alone would not say what it was."""
    found = fuzz_edits.changed_lines("a\nb\nc\n", "a\n  b2\nc\nd\n")
    assert found == ["2 -b", "2 +b2", "4 +d"]
    x = torch.arange(6.0)
    exact = [x.double().exp()]

    def wrong(x):
        return x.exp() * 1.01

    said = fuzz_edits.what_is_wrong((x,), exact, wrong, torch.exp, torch.exp)
    assert "differs from eager by 1.48 at [5]" in said
    assert not fuzz_edits.what_is_wrong((x,), exact, torch.exp, torch.exp, torch.exp)
    assert not fuzz_edits.what_is_wrong((x,), exact, wrong, torch.exp, wrong)


def test_a_seed_makes_its_edit_again():
    text = 'extern "C" int f(const float* x) {\n    a = x[3] * 2.0f;\n    b = a + 1;\n}\n'
    made = [fuzz_edits.mutated(text, random.Random(seed)) for seed in range(40)]
    assert made == [fuzz_edits.mutated(text, random.Random(seed)) for seed in range(40)]
    assert len(set(made)) > 15
    assert all(each.startswith('extern "C" int f(const float* x) {\n') for each in made)


@pytest.mark.parametrize("name", fuzz_edits.CELLS)
def test_what_random_edits_are_held_against_is_rounded_nowhere(name):
    """A cell that rounds by itself would be its own exact result, and every ulp a wrong one."""
    _, given = fuzz_edits.cell(name)
    found = fuzz_edits.exactly(name, given)
    assert all(each.dtype is torch.float64 for each in found if each.is_floating_point())
    if given[0].is_floating_point():
        assert any(each.is_floating_point() for each in found)
