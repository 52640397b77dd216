"""Guards on what an optimizer keeps of its parameters, where some of it is not there yet.

TorchDynamo calls ``_init_group`` of an optimizer itself and guards what that looks at of the first
parameter of each group; the others it takes to be alike.  It misses the first parameter of the
first group (its index is 0, which is asked for by ``if``).  After ``opt.state[p].clear()`` or
``opt.state[p]["momentum_buffer"] = None`` the step that begins a momentum was run ever after,
silently, whichever backend was asked.

Tensors that are there are inputs of the graph, which has guards of its own on them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once; a release that works otherwise is left alone."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    original: Any = getattr(OptimizerVariable, "map_sources_and_install_guards", None)
    if original is None:
        return

    @functools.wraps(original)
    def guarded(self: Any, tx: Any) -> None:
        original(self, tx)
        for place, state in _incomplete(self.value):
            _guard(self, tx, place, state)

    OptimizerVariable.map_sources_and_install_guards = guarded  # type: ignore[method-assign]


def _incomplete(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, dict[Any, Any]]]:
    """Yield what is kept of a parameter, if that is less than of others of its group, or no tensor.

    Beside it stands which one it is.
    """
    places = {id(parameter): place for place, parameter in enumerate(optimizer.state)}
    for group in optimizer.param_groups:
        known = [each for each in group["params"] if id(each) in places]
        states = [(places[id(each)], optimizer.state[each]) for each in known]
        most = max((len(state) for _, state in states if isinstance(state, dict)), default=0)
        for place, state in states:
            if isinstance(state, dict) and not (len(state) == most > 0 and _of_tensors(state)):
                yield place, state


def _of_tensors(state: dict[Any, Any]) -> bool:
    return all(isinstance(each, torch.Tensor) for each in state.values())


def _guard(variable: Any, tx: Any, place: int, state: dict[Any, Any]) -> None:
    from torch._dynamo.source import AttrSource, ConstDictKeySource, DictGetItemSource
    from torch._dynamo.variables.base import VariableTracker
    from torch._dynamo.variables.lazy import LazyVariableTracker

    whole = AttrSource(variable.source, "state")
    source = DictGetItemSource(whole, ConstDictKeySource(whole, place))
    LazyVariableTracker.realize_all(VariableTracker.build(tx, state, source))


__all__ = ["install"]
