"""Views lie as ATen lays them, in dimensions of one element as in others."""

from __future__ import annotations

import random

import pytest
import torch

from fusec.graph.facts.view_strides import view_strides


def split(sizes: list[int], chance: random.Random) -> list[int]:
    """Return a shape of as many elements: dimensions joined, split, and of one element."""
    found: list[int] = []
    for size in sizes:
        if found and chance.random() < 0.3:
            found[-1] *= size
        elif size in (4, 6) and chance.random() < 0.4:
            found += [2, size // 2]
        else:
            found.append(size)
    for _ in range(chance.randrange(3)):
        found.insert(chance.randrange(len(found) + 1), 1)
    return [size for size in found if size != 1 or chance.random() < 0.7]


@pytest.mark.parametrize("none", [False, True], ids=["some elements", "none"])
def test_random_views(none: bool) -> None:
    chance, viewed = random.Random(5), 0
    for _ in range(600):
        shape = [chance.choice((1, 1, 2, 3, 4, 6)) for _ in range(chance.randrange(1, 6))]
        if none:
            shape[chance.randrange(len(shape))] = 0
        order = list(range(len(shape)))
        if chance.random() < 0.5:
            chance.shuffle(order)
        value = torch.empty([shape[dim] for dim in order], device="meta")
        value = value.permute([order.index(dim) for dim in range(len(shape))])
        # of a dimension of one element and of none anything may be said
        strides = [
            chance.choice((stride, 5)) if none or size == 1 else stride
            for size, stride in zip(shape, value.stride(), strict=True)
        ]
        value = torch.empty_strided(shape, strides, device="meta")
        wanted = shape if chance.random() < 0.2 else split(shape, chance)
        try:
            view = value.view(wanted)
        except RuntimeError:
            continue
        viewed += 1
        assert view_strides(value, wanted) == view.stride(), (shape, strides, wanted)
    assert viewed > 150
