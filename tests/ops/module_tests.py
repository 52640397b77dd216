"""torch's older list of module tests: modules, losses and functionals, as ``test_nn`` has them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.testing._internal import common_nn
from torch.utils._pytree import tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Case
from ops.modules import DTYPES, MODES, case_of_module
from ops.ways import run_again, unit_of, written
from support.opinfo import quiet


@dataclass(frozen=True)
class ModuleTest:
    """One of the list.

    Attributes:
        kind: torch's class of it, which makes the inputs.
        given: What that class is given.
    """

    kind: Callable[..., Any]
    given: dict[str, Any]


def names() -> list[str]:
    """Return the names of the tests."""
    return list(_tests())


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of a test."""
    for direction, modes in MODES.items():
        for mode in modes if direction in asked.directions else ():
            for dtype in DTYPES:
                if short(dtype) in asked.dtypes:
                    yield unit_of(_cases, name, mode, dtype, asked)


@lru_cache(maxsize=1)
def _tests() -> dict[str, ModuleTest]:
    """Return the tests by name; where two have one name, the second is given a number."""
    torch.manual_seed(0)  # some make numbers here that they keep
    with quiet():
        modules = [*common_nn.module_tests, *common_nn.get_new_module_tests()]
    found: dict[str, ModuleTest] = {}
    for kind, listed in (
        (common_nn.NewModuleTest, modules),
        (common_nn.CriterionTest, common_nn.criterion_tests),
    ):
        for given in listed:
            made = dict(given)
            if "constructor" not in made:
                made["constructor"] = getattr(torch.nn, made["module_name"])
            name = kind(**made).get_name().removeprefix("test_")
            number = sum(each == name or each.startswith(f"{name} #") for each in found)
            found[f"{name} #{number + 1}" if number else name] = ModuleTest(kind, made)
    return found


def _cases(name: str, mode: str, dtype: torch.dtype, dynamic: bool) -> Iterator[Case]:
    training, backward = mode.startswith("train"), mode.endswith("backward")
    test = _tests()[name]
    torch.manual_seed(zlib.crc32(f"{name} {short(dtype)}".encode()))
    with quiet():
        made = test.kind(**test.given)
        module = made.constructor(*made.constructor_args).to(dtype).train(training)
        inputs = made._get_input()
        values = inputs if isinstance(inputs, tuple | list) else (inputs,)
        if test.kind is common_nn.CriterionTest:
            values = (*values, made._get_target(), *made.extra_args)
    given = tree_map(partial(_as, dtype, backward), (tuple(values), {}))
    program = written(__name__, name, mode, dtype, dynamic)
    yield case_of_module(module, given, backward, program)


def _as(dtype: torch.dtype, backward: bool, value: Any) -> Any:
    """Return an input in a type; with a gradient where torch's own test has one."""
    if not isinstance(value, torch.Tensor):
        return value
    wanted = value.requires_grad and backward
    held = value.detach().clone()
    return (held.to(dtype) if held.is_floating_point() else held).requires_grad_(wanted)


again = partial(run_again, _cases)

__all__ = ["again", "asked_units", "names"]
