"""Every heuristic of the C++ emitter: named, in one place, each with its reason."""

from __future__ import annotations

# Longer than this, a value gets a line of its own: two operators and their operands.
INLINE_WIDTH = 40

# Elements that a float sum adds up before it goes into a double: over 16 lanes that is 256
# additions each, so the rounding error stays near that of eager's cascade, and the conversion
# is paid once in 4096.
SUM_CHUNK = 4096

# Waking a team of threads takes a few microseconds; below this many elements (a float32 read
# and written each: 256 KiB, about 10 us for one thread) it does not pay.
GRAIN = 32768
# The same for a body with an exponential or the like, which takes several times as long.
GRAIN_EXPENSIVE = 8192


def grain(operations: int) -> int:
    """Return how many elements make a team of threads worth while.

    Args:
        operations: Cost of one element, in additions.
    """
    return GRAIN_EXPENSIVE if operations >= 20 else GRAIN
