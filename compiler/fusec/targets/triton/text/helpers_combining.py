"""Triton functions that combine values: in reductions, in scans and from one block to the next."""

from __future__ import annotations

COMBINING: dict[str, str] = {
    "first_largest": '''
@triton.jit
def first_largest(a, i, b, j):
    """Return the larger and its position: NaN wins, then the earlier of equals."""
    better = (a > b) | ((a != a) & (b == b))
    equal = (a == b) | ((a != a) & (b != b))
    keep = better | (equal & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)
''',
    "first_smallest": '''
@triton.jit
def first_smallest(a, i, b, j):
    """Return the smaller and its position: NaN wins, then the earlier of equals."""
    better = (a < b) | ((a != a) & (b == b))
    equal = (a == b) | ((a != a) & (b != b))
    keep = better | (equal & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)
''',
    "take_largest": '''
@triton.jit
def take_largest(largest, at, x, position):
    """Take x into running maxima and where they were found first; NaN wins, and stays."""
    better = ((x > largest) | (x != x)) & (largest == largest)
    return tl.where(better, x, largest), tl.where(better, position, at)
''',
    "take_smallest": '''
@triton.jit
def take_smallest(smallest, at, x, position):
    """Take x into running minima and where they were found first; NaN wins, and stays."""
    better = ((x < smallest) | (x != x)) & (smallest == smallest)
    return tl.where(better, x, smallest), tl.where(better, position, at)
''',
    "log_add_exp": '''
@triton.jit
def log_add_exp(a, b):
    """Return log(exp(a) + exp(b)), added around the larger; NaN wins."""
    larger = maximum(a, b)
    total = larger + libdevice.log1p(libdevice.exp(minimum(a, b) - larger))
    return tl.where((a == b) & (a - b != 0.0), a, total)  # both are the same infinity
''',
    "later_largest": '''
@triton.jit
def later_largest(a, b):
    """Return the larger; NaN wins, then the later of equals."""
    return tl.where((b >= a) | (b != b), b, a)
''',
    "later_smallest": '''
@triton.jit
def later_smallest(a, b):
    """Return the smaller; NaN wins, then the later of equals."""
    return tl.where((b <= a) | (b != b), b, a)
''',
    "later_largest_at": '''
@triton.jit
def later_largest_at(a, i, b, j):
    """Return the larger and its position; NaN wins, then the later of equals."""
    later = (b >= a) | (b != b)
    return tl.where(later, b, a), tl.where(later, j, i)
''',
    "later_smallest_at": '''
@triton.jit
def later_smallest_at(a, i, b, j):
    """Return the smaller and its position; NaN wins, then the later of equals."""
    later = (b <= a) | (b != b)
    return tl.where(later, b, a), tl.where(later, j, i)
''',
    "online_sum": '''
@triton.jit
def online_sum(largest, total, x):
    """Take x into a running maximum and the sum of exp(x - maximum) that goes with it."""
    new = maximum(largest, x)
    shift = tl.where(new == -float("inf"), 0.0, new)
    here = libdevice.fast_expf(x - shift)
    return new, total * libdevice.fast_expf(largest - shift) + here
''',
    "online_sum_grouped": '''
@triton.jit
def online_sum_grouped(largest, total, x, GROUP: tl.constexpr):
    """Take x into a running maximum and the sum of exp(x - maximum) that goes with it.

    GROUP neighbors, which one thread holds, share a running value: the sum is rescaled once for
    all of them, and the loop needs no exchange between threads.
    """
    x = tl.reshape(x, [x.shape[0] // GROUP, GROUP])
    new = maximum(largest, tl.reduce(x, 1, maximum))
    shift = tl.where(new == -float("inf"), 0.0, new)
    here = tl.sum(libdevice.fast_expf(x - shift[:, None]), 1)
    return new, total * libdevice.fast_expf(largest - shift) + here
''',
    "online_sum_columns": '''
@triton.jit
def online_sum_columns(largest, total, x, GROUP: tl.constexpr):
    """Take x into a running maximum and the sum of exp(x - maximum) that goes with it.

    GROUP rows, of which one thread holds its columns' elements, share a running value: the sum is
    rescaled once for all of them, and the loop needs no exchange between threads.
    """
    x = tl.reshape(x, [GROUP, x.shape[0] // GROUP, x.shape[1]])
    new = maximum(largest, tl.reduce(x, 0, maximum))
    shift = tl.where(new == -float("inf"), 0.0, new)
    here = tl.sum(libdevice.fast_expf(x - shift[None, :, :]), 0)
    return new, total * libdevice.fast_expf(largest - shift) + here
''',
    "rescale": '''
@triton.jit
def rescale(largest, final):
    """Return exp(largest - final); 0 where the final maximum says that there was nothing."""
    return libdevice.fast_expf(largest - tl.where(final == -float("inf"), 0.0, final))
''',
    "moments": '''
@triton.jit
def moments(total, squares, x, before):
    """Take x into running sums and the squared distances from the mean that go with them.

    ``before`` is how many elements each lane has taken so far.
    """
    mean = total * (1.0 / tl.maximum(before, 1))
    distance = x - mean
    return total + x, squares + distance * (distance * (before / (before + 1.0)))
''',
    "moments_inside": '''
@triton.jit
def moments_inside(total, squares, x, before, inside):
    """Take x, which is 0 outside, into running sums and squared distances from the mean."""
    new, more = moments(total, squares, x, before)
    return new, tl.where(inside, more, squares)
''',
    "moments_columns": '''
@triton.jit
def moments_columns(total, squares, x, steps, GROUP: tl.constexpr):
    """Take x into running sums and the squared distances from the mean that go with them.

    GROUP rows, of which one thread holds its columns' elements, share a running value. ``steps``
    is how many steps each has taken so far.
    """
    x = tl.reshape(x, [GROUP, x.shape[0] // GROUP, x.shape[1]])
    here = tl.sum(x, 0)
    mean = here * (1.0 / GROUP)
    distance = x - mean[None, :, :]
    apart = mean - total * (1.0 / tl.maximum(steps * GROUP, 1))
    weight = GROUP * (steps / (steps + 1.0))
    return total + here, squares + tl.sum(distance * distance, 0) + apart * apart * weight
''',
    "moments_columns_inside": '''
@triton.jit
def moments_columns_inside(total, squares, x, steps, rows, GROUP: tl.constexpr):
    """Take x, which is 0 outside, into running sums and squared distances from the mean.

    GROUP rows share a running value, as in ``moments_columns``; the first ``rows`` are inside.
    """
    EACH: tl.constexpr = x.shape[0] // GROUP
    x = tl.reshape(x, [GROUP, EACH, x.shape[1]])
    lane = tl.arange(0, EACH)[:, None]
    count = tl.minimum(tl.maximum((rows - lane + EACH - 1) // EACH, 0), GROUP)
    before = steps * GROUP
    here = tl.sum(x, 0)
    mean = here * (1.0 / tl.maximum(count, 1))
    inside = tl.arange(0, GROUP)[:, None, None] * EACH + lane[None, :, :] < rows
    distance = tl.where(inside, x - mean[None, :, :], 0.0)
    apart = mean - total * (1.0 / tl.maximum(before, 1))
    weight = before * (count / tl.maximum(before + count, 1.0))
    return total + here, squares + tl.sum(distance * distance, 0) + apart * apart * weight
''',
    "around": '''
@triton.jit
def around(mean, total, squares, count):
    """Return the squared distances from the common mean, of lanes with a mean of their own."""
    distance = total / tl.maximum(count, 1) - mean
    return squares + count * distance * distance
''',
}

USES = {
    "moments_inside": ("moments",),
    "online_sum": ("maximum",),
    "online_sum_columns": ("maximum",),
    "online_sum_grouped": ("maximum",),
    "log_add_exp": ("maximum", "minimum"),
}

__all__ = ["COMBINING", "USES"]
