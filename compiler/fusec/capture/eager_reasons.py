"""Why a captured graph runs in eager: every reason, in the order in which they are looked for.

Some are seen in the graph as it was captured, one in what AOTAutograd says of it, and some by the
way in which that fails.  What a stage of our own cannot compile is another matter: there a part
alone runs in eager.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from fusec.capture.gradients.inner_gradients import misses_gradients
from fusec.capture.gradients.replayed_views import repeats_views
from fusec.capture.gradients.result_modes import (
    drops_leaves,
    lets_gradients_through,
    loses_hooks,
    mixes_modes,
    result_modes,
)
from fusec.capture.gradients.second_gradients import (
    asks_for_second_gradients,
    keeps_gradients,
)
from fusec.capture.gradients.unrecorded_updates import updates_unrecorded
from fusec.capture.gradients.unregistered import lacks_gradient_rules
from fusec.capture.inputs.graph_inputs import has_gaps, needs_eager
from fusec.capture.number_restarts import LOSES_UPDATES, Restart, loses_updates
from fusec.capture.untraceable import in_short, is_untraceable
from fusec.graph.facts.unused_draws import unused_draw
from fusec.graph.refusals.calls import left_to_eager, refused_call
from fusec.graph.refusals.grown import grown_in_tracing

_STRICT = "FUSEC_STRICT"
_MISPLACED = (
    "it returns a view of symbolic size of an input that it updates and that has gaps, "
    "which AOTAutograd would lay over other elements"
)
_BASE = (
    "it returns an input that shares memory with another one and is updated, "
    "for which AOTAutograd would return what both are views of"
)

_LEAVES = "it updates an input that shares memory with another one, and gradients flow to one alone"
# Of torch 2.11 and before.
_NO_HISTORY = "AOTAutograd would ask for the gradient of a view without a history"


def strict() -> bool:
    """Whether a failure inside the compiler is raised instead of running in eager (tests)."""
    return os.environ.get(_STRICT, "") not in ("", "0")


@dataclass(frozen=True)
class GraphCall:
    """A graph and what it is called with, as TorchDynamo hands it over.

    Attributes:
        module: The graph.
        inputs: Its example inputs.
        records: Whether autograd is on where it is called, which is guarded.
        eager_random: Whether its random numbers are to be eager's.
    """

    module: fx.GraphModule
    inputs: Sequence[Any]
    records: bool
    eager_random: bool = False


# What is seen before anything is compiled: how it is said, and what finds the reason or "".
_BEFORE: tuple[tuple[str, Callable[[GraphCall], str]], ...] = (
    ("it runs in eager", lambda graph: needs_eager(graph.module, graph.inputs)),
    ("it runs in eager", lambda graph: mixes_modes(graph.module, graph.records)),
    ("it runs in eager", lambda graph: loses_hooks(graph.module, graph.records)),
    ("it runs in eager", lambda graph: misses_gradients(graph.module)),
    ("it runs in eager", lambda graph: asks_for_second_gradients() if graph.records else ""),
    ("it runs in eager", lambda graph: keeps_gradients(graph.module)),
    ("it runs in eager", lambda graph: drops_leaves(graph.module)),
    ("it runs in eager", lambda graph: repeats_views(graph.module)),
    ("it runs in eager", lambda graph: lets_gradients_through(graph.module)),
    ("it runs in eager", lambda graph: lacks_gradient_rules(graph.module, graph.records)),
    (
        "it runs in eager",
        lambda graph: updates_unrecorded(graph.module, graph.inputs, graph.records),
    ),
    ("it runs in eager", lambda graph: left_to_eager(graph.module)),
    (
        "it runs in eager",
        lambda graph: unused_draw(graph.module) if graph.eager_random else "",
    ),
    ("it runs in eager, which may refuse it", lambda graph: refused_call(graph.module)),
    (
        "it runs in eager, which may refuse it",
        lambda graph: grown_in_tracing(graph.module, graph.inputs),
    ),
)


def reason_before(graph: GraphCall) -> str:
    """Return why a graph is not compiled at all, or an empty string."""
    found = ((said, ask(graph)) for said, ask in _BEFORE)
    return next((f"{said}: {reason}" for said, reason in found if reason), "")


def reason_after(
    graph: GraphCall, views_of_updated: Sequence[int], returns_a_base: bool = False
) -> str:
    """Return why what AOTAutograd made of a graph is not used, or an empty string.

    Args:
        graph: As it was captured.
        views_of_updated: The inputs of which it returns views and that it updates.
        returns_a_base: Whether a result is taken for what several inputs are views of.
    """
    if returns_a_base:
        return f"it runs in eager: {_BASE}"
    misplaced = any(has_gaps(graph.inputs[i]) for i in views_of_updated)
    return f"it runs in eager: {_MISPLACED}" if misplaced else ""


_DATA = "a tensor's .data is assigned: update the tensor itself, under torch.no_grad()"


def reason_of_failure(graph: GraphCall, error: BaseException) -> str:
    """Return why a graph runs in eager of which tracing failed; an empty string: it is raised."""
    if isinstance(error, Restart) and loses_updates(graph.module):
        return f"it runs in eager: {LOSES_UPDATES}"
    if "any_leaf=" in str(error):
        return f"it runs in eager: {_LEAVES}"
    lacks_history = "does not require grad and does not have a grad_fn" in str(error)
    if lacks_history and graph.records and result_modes(graph.module, True).unrecorded:
        return f"it runs in eager: {_NO_HISTORY}"
    if is_untraceable(error) and not strict():
        if "set_ on a graph input" in str(error):
            return f"it runs in eager: {_DATA}"
        return f"it runs in eager: AOTAutograd refuses it: {in_short(error)}"
    return ""  # also how AOTAutograd asks TorchDynamo to capture once more


__all__ = ["GraphCall", "reason_after", "reason_before", "reason_of_failure", "strict"]
