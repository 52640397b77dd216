"""Random trainings do what they do in eager; ``make fuzz ARGS=--training`` runs any number."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fusec
from programs import training
from programs.__main__ import parse
from programs.examine import examine
from programs.training import TrainingProgram, compared, problems, repro, write
from support.calls import strict_calls

__all__ = ["strict_calls"]  # a fixture of every test here

# All but the model's optimizer is plain; its step is what is compiled.
PLAIN = next(n for n in range(999) if "update = compiler(update)" in write(n).source)
FORWARD = next(n for n in range(999) if "forward = compiler(forward)" in write(n).source)


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(2000, 2024))
def test_trainings(seed: int) -> None:
    program = write(seed)
    wrong = problems(program)
    assert not wrong, "\n".join([f"{program}", *wrong])


def found_by(program: TrainingProgram, compiler: Callable[..., Any]) -> str:
    return "\n".join(compared(program, program.run(lambda f: f), program.run(compiler)))


def off_by_little(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args) * 1.001


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x) + function(x).detach() - function(x).detach() * 0.9


def takes_random_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        torch.rand(1)
        return function(*args)

    return call


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    def call() -> None:
        function()
        function()

    return call


@pytest.mark.parametrize(
    ("seed", "broken", "words"),
    [
        (FORWARD, off_by_little, "elements differ"),
        (FORWARD, without_gradients, "elements differ"),
        (FORWARD, takes_random_numbers, "random = "),
        (PLAIN, twice, "elements differ"),
    ],
)
def test_what_is_wrong_is_found(seed: int, broken: Callable[..., Any], words: str) -> None:
    program = write(seed)
    assert not found_by(program, lambda f: f)
    assert words in found_by(program, broken)


# A bias before a linear layer and a batch norm: its gradient is 0, and noise in float32, by the
# size of which Adagrad divides.
_NOISY = write(2253).source.replace("step = compiler(step)", "forward = compiler(forward)")
NOISY = TrainingProgram(2253, _NOISY)


def summed_otherwise(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: function(x.flip(0)).flip(0)


def more_for_the_bias(function: Any) -> Callable[..., Any]:
    (model,) = (cell.cell_contents for cell in function.__closure__)

    def call(x: torch.Tensor) -> Any:
        bias = model[0].bias
        return function(x) + (bias - bias.detach()).sum() * 0.01

    return call


def test_steps_of_noise_are_no_difference() -> None:
    assert not found_by(NOISY, summed_otherwise)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (more_for_the_bias, "0.bias.grad = "),
        (without_gradients, "1.0.weight.grad = "),
        (off_by_little, "loss = "),
    ],
)
def test_what_is_wrong_beside_such_noise_is_found(broken: Callable[..., Any], words: str) -> None:
    assert words in found_by(NOISY, broken)


def test_an_error_that_does_not_come_is_found() -> None:
    """And one that comes is none where eager has it as well."""
    source = "def train(compiler):\n    notes = []\n    compiler(fail)()\n    return notes\n"
    failing = TrainingProgram(0, "def fail():\n    raise KeyError(1)\n\n\n" + source)
    assert not found_by(failing, lambda f: f)
    assert "0 notes instead of 1" in found_by(failing, lambda f: lambda: None)


def test_a_seed_makes_the_same_program_again() -> None:
    assert write(7).source == write(7).source
    assert write(7).source != write(8).source


def test_every_event_and_optimizer_is_written() -> None:
    texts = "\n".join(write(seed).source.replace(" " * 12, "") for seed in range(600))
    for event in training.EVENTS:
        assert event.splitlines()[0] in texts
    for name in training.OPTIMIZERS:
        assert name.partition("(")[0] in texts


def test_one_that_differs_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "problems", lambda _: ["step 0: loss = 1 instead of 2"])
    monkeypatch.setattr(training, "repro", lambda program, found: repro(program, found, tmp_path))
    options: Namespace = parse(["--training"])
    row = examine(3, options).row()
    assert row["problems"] == ("step 0: loss = 1 instead of 2",)
    assert Path(row["repro"]).read_text().startswith('"""Training program 3: step 0: loss = 1')


@pytest.mark.slow
def test_a_repro_runs_by_itself(tmp_path: Path) -> None:
    path = repro(write(FORWARD), ["step 0: loss = 1 instead of 2"], tmp_path)
    places = [str(Path(fusec.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    assert "eager" in done.stdout
    assert "fusec" in done.stdout
