"""What ``make bench-models`` takes for an error."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from cpu_models import errors_of, judge


def test_errors_are_relative_to_the_largest_value() -> None:
    truth = {"a": torch.tensor([100.0, 1.0], dtype=torch.float64)}
    own = {"a": torch.tensor([100.0, 1.5])}
    found = {"a": torch.tensor([101.0, 1.0])}
    assert errors_of(found, own, truth) == {"a": (0.01, 0.005)}


def test_the_worst_is_the_one_furthest_above_what_is_allowed() -> None:
    truth = {name: torch.ones(3, dtype=torch.float64) for name in "ab"}
    own = {"a": torch.ones(3) + 0.5, "b": torch.ones(3)}
    found = {"a": torch.ones(3) + 0.75, "b": torch.ones(3) + 0.125}
    assert judge(found, own, truth, 0.0) == (0.125, 0.0, "b")


def test_other_integers_and_nan_are_wrong_without_end() -> None:
    truth = {"n": torch.tensor([3]), "x": torch.ones(2, dtype=torch.float64)}
    own = {"n": torch.tensor([3]), "x": torch.ones(2)}
    errors = errors_of({"n": torch.tensor([4]), "x": torch.tensor([1.0, math.nan])}, own, truth)
    assert errors == {"n": (math.inf, 0.0), "x": (math.inf, 0.0)}
    assert errors_of(own, own, truth) == {"n": (0.0, 0.0), "x": (0.0, 0.0)}
