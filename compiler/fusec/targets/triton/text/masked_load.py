"""The text of a load that has a mask, and of what it yields where nothing is read."""

from __future__ import annotations

import torch

from fusec.ir.index import Expr
from fusec.targets.triton.plan.choice import Choice
from fusec.targets.triton.text.expressions import Text, call, triton_type

# A loop of as many steps is no longer written out whole, so that none of its masks is known.
_STEPS = 16


def masked_load(
    address: str,
    mask: str,
    other: Text | None,
    dtype: torch.dtype,
    policy: str = "",
    known: bool = True,
) -> Text:
    """Return the text of a load.

    Args:
        address: Where it reads.
        mask: Where it reads at all; empty for everywhere.
        other: What it yields elsewhere; None where nobody cares.
        dtype: What the elements are.
        policy: How long the cache should keep them; may be empty.
        known: Whether the mask of a lane may be known to be false when the kernel is compiled.
    """
    masks = [Text(mask)] if mask else []
    policies = [Text(f'eviction_policy="{policy}"')] if policy else []
    if other is None:
        return call("tl.load", Text(address), *masks, *policies)
    if mask and known and loses_its_sign(other, dtype):
        load = call("tl.load", Text(address), *masks, *policies)
        outside = f"tl.cast({other.source}, {triton_type(dtype)})"
        return call("tl.where", *masks, load, Text(outside))
    return call("tl.load", Text(address), *masks, Text(f"other={other.source}"), *policies)


def loses_its_sign(other: Text, dtype: torch.dtype) -> bool:
    """Whether ``other=`` may come out positive: ptxas's mistake with negative float16.

    Triton hands it to ptxas in the assembly of each load.  Where a lane's mask is never true, ptxas
    (12.8 and 12.9, from ``-O1`` on, sm_80 to sm_120) puts the number beside that of another lane
    as its absolute value with a sign to be changed afterwards, and forgets to: the maximum of a
    column of 102 was infinity under a block of 128.  bfloat16 and float32 come out right.  What
    ``tl.where`` yields is known to LLVM, which leaves such lanes out.
    """
    return dtype == torch.float16 and other.source.startswith("-")


def knows_masks(choice: Choice, size: Expr) -> bool:
    """Whether some lane of a kernel's row may be known not to be in it as the kernel is compiled.

    Not where the size or the program's number decides, in a long loop, or where steps divide the
    row: ``other=`` is loaded ahead, and costs nothing there (softmax of columns: 1.3 times as
    long with ``tl.where`` on an H100).
    """
    length = size.constant
    if choice.kind == "split" or length is None:
        return False
    if choice.kind != "looped":
        return True
    largest = max((max(k.value, *k.choices) for k in choice.knobs if k.name == "RBLOCK"), default=1)
    return length % largest != 0 and length < _STEPS * largest


__all__ = ["knows_masks", "masked_load"]
