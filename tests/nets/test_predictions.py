"""Predictions beside what is built: operators of torch's database, models, a thousand programs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from models import zoo
from ops import unit
from programs import check, generate
from support.opinfo import quiet
from support.predictions import differences

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

OPERATORS = unit.names()[::6]
MODELS = zoo.names()
BLOCK = 25


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    """The first sample of every sixth operator, forward and backward."""
    op = unit.find(name)
    for direction, dtype in unit.units(op, forward=True, backward=True):
        if dtype is not torch.float32:
            continue
        with quiet():
            torch.manual_seed(unit.seed_of(op, dtype))
            for values, _, _ in unit._inputs(op, direction, dtype, 1):
                backward = direction == "backward"
                try:
                    unit.results(op.op, unit.copy(values), backward)
                except Exception:
                    continue  # eager refuses it
                first, args, kwargs = values

                def call(function: Any, given: list[Any], backward: bool = backward) -> None:
                    unit.results(function, tuple(given), backward)

                def function(first: Any, *args: Any, **kwargs: Any) -> Any:
                    return op.op(first, *args, **kwargs)

                inputs = partial(unit.copy, [first, *args])
                bound = partial(_with, call=call, kwargs=kwargs)
                found = differences(partial(function, **kwargs), inputs, bound)
                assert found == [], (direction, found)


def _with(function: Any, given: list[Any], *, call: Any, kwargs: dict[str, Any]) -> None:
    call(function, [given[0], tuple(given[1:]), {}])


class Named(torch.nn.Module):
    """A model that is called with names, called without."""

    def __init__(self, module: torch.nn.Module, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.module, self.kwargs = module, kwargs

    def forward(self, *args: torch.Tensor) -> Any:
        return self.module(*args, **self.kwargs)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    try:
        model = zoo.build(name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")

    def inputs() -> list[Any]:
        return unit.copy(list(model.inputs))

    def call(function: Any, given: list[Any]) -> None:
        outputs = function(*given)
        tensors = torch.utils._pytree.tree_leaves(outputs)
        ends = [t.sum() for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]
        if ends:
            torch.stack(ends).sum().backward()

    module = Named(model.module, model.kwargs) if model.kwargs else model.module
    with quiet():
        assert differences(module, inputs, call) == []


@pytest.mark.parametrize("number", range(40))
def test_random_programs(number: int) -> None:
    """A thousand programs in all; every other one asks for gradients."""
    wrong = {}
    for seed in range(number * BLOCK, (number + 1) * BLOCK):
        program = generate.write(seed, train=seed % 2 == 1)
        found = differences(program.function(), program.fresh, check.call)
        if found:
            wrong[seed] = "\n".join([str(program), *found])
    assert not wrong, "\n\n".join(wrong.values())
