"""Knobs: the space of configurations that a kernel's tunables span."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from fusec.tunables import Tunable

Config = tuple[tuple[str, int], ...]


class Knobs:
    """The choices of every tunable, and how to move between them.

    Attributes:
        names: The tunables, in the order of their lines.
        choices: The values of each, ascending; the current one is among them.
        start: The configuration that the text has now.
    """

    def __init__(self, tunables: Sequence[Tunable]) -> None:
        self.names = tuple(t.name for t in tunables)
        self.choices = tuple(tuple(sorted({*t.choices, t.value})) for t in tunables)
        self.start: Config = tuple((t.name, t.value) for t in tunables)

    def __len__(self) -> int:
        """Return how many configurations there are."""
        return prod(len(values) for values in self.choices)

    def all(self) -> Iterator[Config]:
        """Yield every configuration."""
        for values in product(*self.choices):
            yield tuple(zip(self.names, values, strict=True))

    def neighbors(self, config: Config) -> list[Config]:
        """Return the configurations one step of one knob away."""
        found = []
        for place, (_, value) in enumerate(config):
            values = self.choices[place]
            at = values.index(value)
            found += [
                self._with(config, place, values[step])
                for step in (at + 1, at - 1)
                if 0 <= step < len(values)
            ]
        return found

    def lines(self, config: Config) -> list[Config]:
        """Return the configurations that differ in one knob, by any number of steps."""
        return [
            self._with(config, place, other)
            for place, (_, value) in enumerate(config)
            for other in self.choices[place]
            if other != value
        ]

    def random(self, source: random.Random) -> Config:
        """Return any configuration."""
        return tuple(
            (name, source.choice(values))
            for name, values in zip(self.names, self.choices, strict=True)
        )

    def _with(self, config: Config, place: int, value: int) -> Config:
        return (*config[:place], (self.names[place], value), *config[place + 1 :])
