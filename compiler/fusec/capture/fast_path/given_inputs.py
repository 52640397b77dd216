"""Which inputs a node of autograd was given that are results of others, without keeping them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch


def note_given(ctx: Any, inputs: Sequence[Any]) -> None:
    """Note in a node's context which of its inputs are no leaves; autograd knows those itself."""
    given = [
        weakref.ref(each) for each in inputs if isinstance(each, torch.Tensor) and not each.is_leaf
    ]
    if given:
        ctx.fusec_given = given


def given_inputs(ctx: Any) -> list[torch.Tensor]:
    """Return what ``note_given`` noted, as far as somebody still holds it."""
    found = [each() for each in getattr(ctx, "fusec_given", ())]
    return [each for each in found if each is not None]


__all__ = ["given_inputs", "note_given"]
