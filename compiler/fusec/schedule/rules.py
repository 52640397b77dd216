"""What somebody wants of the fusion in words: ``gelu:layer_norm``, as the operators are called.

Names that lowering gives to steps mean nothing to a person, and change with the code; the names of
the operators are what the drawing of a graph shows. ``add`` means every computation of that name,
``add#2`` the second one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from fusec.errors import FusecError
from fusec.ir.program import Compute, Extern, Program, Step
from fusec.rule_text import loop_rule, name_parts
from fusec.schedule.overrides import LoopOverride, Overrides


class UnknownComputation(FusecError):
    """A rule names computations that no graph has, or that cannot be told apart from each other."""

    def __init__(self, rule: str, known: Iterable[str]) -> None:
        names = ", ".join(dict.fromkeys(known))
        super().__init__(f"no graph computes both of {rule!r}", f"there is: {names or 'nothing'}")


def step_label(step: Step) -> str:
    """Return what people call a step: its operator."""
    if isinstance(step, Compute):
        return step.label or step.name
    return str(step.target).removesuffix(".default")


def numbered(labels: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return, by key, the labels with a number where there are several of one.

    Args:
        labels: Key and label of each, in order.
    """
    counts = Counter(label for _, label in labels)
    seen: Counter[str] = Counter()
    names = {}
    for key, label in labels:
        seen[label] += 1
        names[key] = f"{label} #{seen[label]}" if counts[label] > 1 else label
    return names


def known_names(program: Program) -> dict[str, tuple[str, ...]]:
    """Return the steps that a rule may name, by label, in the order in which they run."""
    from fusec.schedule.plan import drop_dead

    found: dict[str, list[str]] = {}
    for step in drop_dead(program).steps:
        if isinstance(step, Extern) and step.is_plumbing:
            continue
        labels = {step_label(step)}
        if isinstance(step, Extern) and step.body is not None and step.label:
            labels.add(step.label)  # what it is called as a kernel
        for label in labels:
            found.setdefault(label, []).append(step.name)
    return {label: tuple(names) for label, names in found.items()}


def overrides_of(
    program: Program, apart: Iterable[str], together: Iterable[str], loops: Iterable[str] = ()
) -> Overrides:
    """Return the rules about the steps of a program as overrides; others say nothing."""
    names = known_names(program)
    wanted = []
    for rule in loops:
        name, strategy, settings = loop_rule(rule)
        wanted += [LoopOverride(step, strategy, settings) for step in steps_named(names, name)]
    return Overrides(_pairs(names, apart), _pairs(names, together), tuple(wanted))


def applies(program: Program, rule: str) -> bool:
    """Whether a program has the computations that a rule is about."""
    names = known_names(program)
    if " " in rule:  # about the loops of one
        return bool(steps_named(names, loop_rule(rule)[0]))
    return bool(_pairs(names, [rule]))


def _pairs(names: Mapping[str, tuple[str, ...]], rules: Iterable[str]) -> frozenset[frozenset[str]]:
    found = set()
    for rule in rules:
        firsts, seconds = (steps_named(names, name) for name in rule.split(":"))
        found |= {each for each in map(frozenset, product(firsts, seconds)) if len(each) == 2}
    return frozenset(found)


def steps_named(names: Mapping[str, tuple[str, ...]], name: str) -> tuple[str, ...]:
    """Return the steps of ``known_names`` that a name of a rule is about."""
    label, number = name_parts(name)
    steps = names.get(label, ())
    return steps[number - 1 : number] if number else steps


def with_rule(
    apart: tuple[str, ...], together: tuple[str, ...], rule: str, *, joined: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return rules for apart and together with one more, which wins over what it contradicts."""
    first, second = rule.split(":")
    same = {rule, f"{second}:{first}"}
    apart, together = (tuple(r for r in rules if r not in same) for rules in (apart, together))
    return (apart, (*together, rule)) if joined else ((*apart, rule), together)
