"""Other fusions than the compiler's own, as somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class ReschedulableCell(Protocol):
    """What is asked of a cell (``fuselab.session.fused_cell.FusedCell``)."""

    rules: dict[str, tuple[str, ...]]

    @property
    def lock(self) -> AbstractContextManager[Any, Any]:
        """Held while it runs."""

    @property
    def graphs(self) -> Sequence[Any]:
        """Its compiled graphs."""

    @property
    def functions(self) -> Sequence[Any]:
        """Its compiled functions."""


def reschedule(cell: ReschedulableCell, apart: Sequence[str], together: Sequence[str]) -> list[str]:
    """Use other fusions from now on: see ``FusedCell.reschedule``."""
    from fusec.inspect.reschedule import check_rules
    from fusec.rule_text import read_rules

    wanted = {"apart": read_rules("apart", apart), "together": read_rules("together", together)}
    with cell.lock:
        check_rules(cell.graphs, (*wanted["apart"], *wanted["together"]))
        before, lost = dict(cell.rules), []
        done: list[Any] = []
        try:
            for function in cell.functions:
                done.append(function)
                lost += function.reschedule(**wanted, strict=False).lost
        except BaseException:
            for function in done[:-1]:  # the last one is as it was
                function.reschedule(**before, strict=False)
            raise
        cell.rules.update(wanted)
        return lost


def rule_notes(cell: ReschedulableCell) -> Iterator[str]:
    """Say which of the fusions that are asked for are about nothing here."""
    from fusec.inspect.reschedule import check_rules
    from fusec.schedule.rules import UnknownComputation

    known = [graph for graph in cell.graphs if getattr(graph, "parts", ())]
    for option, rules in cell.rules.items():
        for rule in rules if known else ():
            try:
                check_rules(known, [rule])
            except UnknownComputation as error:
                yield f"--{option}: {error}"
