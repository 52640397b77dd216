"""A loop over rows that begin anywhere: what the text calls its parts."""

from __future__ import annotations

from dataclasses import dataclass

from fusec.targets.triton.plan.unaligned_rows import OddRow


@dataclass(frozen=True)
class OddLoop:
    """What the text calls the parts of an odd row.

    Attributes:
        row: The row.
        aligned: The address of the first group.
        shift: How many elements of it come before the row.
        place: The position in the groups that a lane has.
        reach: Where the last group ends.
        mask: Which lanes are in the row.
    """

    row: OddRow
    aligned: str
    shift: str
    place: str
    reach: str
    mask: str

    def load(self, other: str, policy: str) -> str:
        """Return the text of a load of the row's elements.

        Args:
            other: What is yielded beside the row.
            policy: How long the cache should keep them; may be empty.
        """
        evict = f', eviction_policy="{policy}"' if policy else ""
        groups = f"tl.load({self.aligned} + {self.place}, {self.place} < {self.reach}{evict})"
        return f"tl.where({self.mask}, {groups}, {other})"


__all__ = ["OddLoop"]
