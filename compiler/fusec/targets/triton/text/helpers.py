"""Small ``@triton.jit`` functions that a generated file may need, written into it on demand.

Each exists because Triton's own operator means something else than torch's: integer division
truncates, ``maximum`` drops NaN, a shift by the whole width is undefined, and so on.
"""

from __future__ import annotations

# name -> text; a text may use helpers that come before it
HELPERS: dict[str, str] = {
    "maximum": '''
@triton.jit
def maximum(a, b):
    """Return the larger; NaN wins, as in torch."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "minimum": '''
@triton.jit
def minimum(a, b):
    """Return the smaller; NaN wins, as in torch."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
''',
    "to_float8": '''
@triton.jit
def to_float8(x):
    """Return x as float8e4nv; what is too large is NaN, where Triton's own cast saturates."""
    return tl.where(tl.abs(x) > 464.0, float("nan"), x).to(tl.float8e4nv)
''',
    "random_bits": '''
@triton.jit
def random_bits(seed, position, stream, word: tl.constexpr):
    """Return 32 random bits: a word of Philox 4x32-7 of a position in a stream."""
    c0, c1 = position.to(tl.uint32), (position >> 32).to(tl.uint32)
    c2, c3 = (position * 0 + stream).to(tl.uint32), c1 * 0
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high2, low2 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    bits = c0 if word == 0 else c1 if word == 1 else c2 if word == 2 else c3
    return bits.to(tl.int32, bitcast=True)
''',
    "random_word": '''
@triton.jit
def random_word(seed, position, stream):
    """Return 32 random bits: 64 positions share the words of 16 numbers of Philox 4x32-7."""
    number = (position >> 6 << 4) | (position & 15)
    c0, c1 = number.to(tl.uint32), (number >> 32).to(tl.uint32)
    c2, c3 = (number * 0 + stream).to(tl.uint32), c1 * 0
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(7):
        high0, low0 = tl.umulhi(c0, 0xD2511F53), c0 * 0xD2511F53
        high2, low2 = tl.umulhi(c2, 0xCD9E8D57), c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9, k1 + 0xBB67AE85
    bits = tl.where((position & 16) == 0, c0, c1)
    bits = tl.where((position & 32) == 0, bits, tl.where((position & 16) == 0, c2, c3))
    return bits.to(tl.int32, bitcast=True)
''',
    "multiply": '''
@triton.jit
def multiply(a, b):
    """Combine two factors of a product."""
    return a * b
''',
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
    "one_plus_erf": '''
@triton.jit
def one_plus_erf(z):
    """Return 1 + erf(z), to 18 bits: enough for a result in half precision."""
    # erfc(|z|) = exp(-z * z) * p(t), a polynomial fitted for the smallest relative error
    t = libdevice.fast_dividef(1.0, 1.0 + 0.44 * tl.abs(z))
    p = (((-0.146112190 * t + 0.350670787) * t + 0.0407116802) * t + 0.263596037) * t
    p = ((p + 0.242567286) * t + 0.248561213) * t
    tail = p * libdevice.fast_expf(-z * z)
    return tl.where(z > 0.0, 2.0 - tail, tail)
''',
    "one_plus_tanh": '''
@triton.jit
def one_plus_tanh(z):
    """Return 1 + tanh(z), to 22 bits: enough for a result in half precision."""
    return 2.0 / (1.0 + libdevice.fast_expf(-2.0 * z))
''',
    "tanh_by_exp2": '''
@triton.jit
def tanh_by_exp2(x):
    """Return the tanh of x / (2 * log2(e)), to 22 bits of the largest value that it has."""
    return 1.0 - libdevice.fast_dividef(2.0, tl.exp2(x) + 1.0)
''',
    "nearest_int": '''
@triton.jit
def nearest_int(x):
    """Return the integer nearest to x, ties to even, for -2**22 <= x <= 2**22; 0 for NaN."""
    # at 1.5 * 2**23 a float32's last bit is worth 1: the addition rounds
    moved = tl.where(x == x, x, 0.0) + 12582912.0
    return moved.to(tl.int32, bitcast=True) - 0x4B400000
''',
    "divided": '''
@triton.jit
def divided(x, y):
    """Return x / y as IEEE divides, for many x to each y: with one reciprocal for all of them.

    Below 1e-31 a quotient may be off by one unit in the last place.
    """
    # y becomes positive, and neither its reciprocal nor what is left over too large or too small
    scale = tl.where(tl.abs(y) < 2.0**-100, 2.0**60, 1.0)
    scale = tl.where(tl.abs(y) > 2.0**100, 2.0**-60, scale)
    negative = y.to(tl.int32, bitcast=True) < 0
    scale = tl.where(negative, scale * -1.0, scale)
    x, y = x * scale, y * scale
    inverse = tl.div_rn(1.0, y)
    quotient = x * inverse
    over = tl.fma(quotient, tl.where(y == float("inf"), 1.0, y), x * -1.0)
    better = tl.fma(over, inverse * -1.0, quotient)
    return tl.where(tl.abs(quotient) < float("inf"), better, quotient)
''',
    "sigmoid": '''
@triton.jit
def sigmoid(x):
    """Return 1 / (1 + exp(-x)), off by four units in the last place by CUDA's bounds."""
    # from exp(-|x|), so that the quick quotient is right: its divisor lies between 1 and 2
    small = libdevice.exp(tl.abs(x) * -1.0)
    inverse = libdevice.fast_dividef(1.0, 1.0 + small)
    return tl.where(x < 0.0, small * inverse, inverse)
''',
    "sigmoid64": '''
@triton.jit
def sigmoid64(x):
    """Return 1 / (1 + exp(-x)) in float64."""
    return 1.0 / (1.0 + libdevice.exp(-x))
''',
    "sign": '''
@triton.jit
def sign(x):
    """Return -1, 0 or 1; 0 for NaN, as torch does."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
''',
    "signbit32": '''
@triton.jit
def signbit32(x):
    """Return whether the sign bit is set: true for -0.0."""
    return x.to(tl.int32, bitcast=True) < 0
''',
    "signbit64": '''
@triton.jit
def signbit64(x):
    """Return whether the sign bit is set: true for -0.0."""
    return x.to(tl.int64, bitcast=True) < 0
''',
    "floor_div": '''
@triton.jit
def floor_div(a, b):
    """Return a // b rounded down; Triton's own integer division truncates."""
    quotient = a // b
    return tl.where((quotient * b != a) & ((a < 0) != (b < 0)), quotient - 1, quotient)
''',
    "floor_mod": '''
@triton.jit
def floor_mod(a, b):
    """Return a % b with the sign of b, as Python does; Triton's has the sign of a."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "float_mod": '''
@triton.jit
def float_mod(a, b):
    """Return the remainder with the sign of b, as torch.remainder."""
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
''',
    "shift_left": '''
@triton.jit
def shift_left(a, b, BITS: tl.constexpr):
    """Return a << b; 0 for a shift outside the type's width, as torch."""
    fits = (b >= 0) & (b < BITS)
    return tl.where(fits, a << tl.where(fits, b, 0), 0)
''',
    "shift_right": '''
@triton.jit
def shift_right(a, b, BITS: tl.constexpr):
    """Return a >> b; only the sign is left of a shift outside the type's width, as torch."""
    fits = (b >= 0) & (b < BITS)
    return tl.where(fits, a >> tl.where(fits, b, 0), tl.where(a < 0, -1, 0).to(a.dtype))
''',
    "int_pow": '''
@triton.jit
def int_pow(base, exponent, BITS: tl.constexpr):
    """Return base ** exponent for integers; for a negative exponent 1 / base, truncated."""
    power = exponent
    square = base
    result = base - base + 1
    for _ in range(BITS):
        result = tl.where((power & 1) != 0, result * square, result)
        square = square * square
        power = power >> 1
    odd = (exponent & 1) != 0
    inverse = tl.where(base == 1, 1, tl.where(base == -1, tl.where(odd, -1, 1), 0))
    return tl.where(exponent < 0, inverse.to(base.dtype), result)
''',
    "half_of_byte": '''
@triton.jit
def half_of_byte(x, less: tl.constexpr):
    """Return a byte less a number as float16: in its bits beside 1024, which is taken away."""
    return (x.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - (1024.0 + less)
''',
    "half_of_signed_byte": '''
@triton.jit
def half_of_signed_byte(x, less: tl.constexpr):
    """Return a signed byte likewise: plus 128, which is taken away as well."""
    shifted = (x.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.int16)
    return (shifted | 0x6400).to(tl.float16, bitcast=True) - (1152.0 + less)
''',
    "float_of_byte": '''
@triton.jit
def float_of_byte(x, less: tl.constexpr):
    """Return a byte less a number as float32: in its bits beside 2**23, which is taken away."""
    return (x.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + less)
''',
    "float_of_signed_byte": '''
@triton.jit
def float_of_signed_byte(x, less: tl.constexpr):
    """Return a signed byte likewise: plus 128, which is taken away as well."""
    shifted = (x.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.int32)
    return (shifted | 0x4B000000).to(tl.float32, bitcast=True) - (8388736.0 + less)
''',
    "words_at": '''
@triton.jit
def words_at(x_ptr, place, inside, aligned: tl.constexpr, policy: tl.constexpr):
    """Return words of four bytes, the lowest first."""
    if aligned:
        words_ptr = x_ptr.to(tl.pointer_type(tl.int32), bitcast=True)
        return tl.load(words_ptr + place, inside, eviction_policy=policy)
    word = tl.load(x_ptr + place * 4, inside).to(tl.uint8, bitcast=True).to(tl.int32)
    for i in tl.static_range(1, 4):
        byte = tl.load(x_ptr + place * 4 + i, inside).to(tl.uint8, bitcast=True)
        word |= byte.to(tl.int32) << (8 * i)
    return word
''',
    "two_of": '''
@triton.jit
def two_of(word, dtype: tl.constexpr, swapped: tl.constexpr):
    """Return the lower and the upper half of words, as numbers beside each other."""
    low = word.to(tl.int16).to(dtype, bitcast=True)
    high = (word >> 16).to(tl.int16).to(dtype, bitcast=True)
    return tl.join(high, low) if swapped else tl.join(low, high)
''',
    "words_of_threads": '''
@triton.jit
def words_of_threads(words):
    """Return words as tensor cores take them: of a column, neighbors stay with a thread of four."""
    words = words.T
    words = tl.reshape(words, (words.shape[0], 4, words.shape[1] // 4))
    return tl.permute(words, (0, 2, 1))
''',
    "halves_of_nibbles": '''
@triton.jit
def halves_of_nibbles(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the eight numbers of each word less a number, down a column in the words' order.

    Two at a time, sixteen bits apart, come beside 1024; in higher bits they count sixteenfold.
    """
    words = words_of_threads(words)
    swapped: tl.constexpr = flip & 4 != 0
    a = two_of((words & 0x000F000F) | 0x64006400, tl.float16, swapped) - (1024.0 + less)
    b = two_of((words & 0x00F000F0) | 0x64006400, tl.float16, swapped) * 0.0625 - (64.0 + less)
    words = words >> 8
    c = two_of((words & 0x000F000F) | 0x64006400, tl.float16, swapped) - (1024.0 + less)
    d = two_of((words & 0x00F000F0) | 0x64006400, tl.float16, swapped) * 0.0625 - (64.0 + less)
    return columns_of(a, b, c, d, flip)
''',
    "bfloats_of_nibbles": '''
@triton.jit
def bfloats_of_nibbles(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the same as bfloat16, beside 128."""
    words = words_of_threads(words)
    swapped: tl.constexpr = flip & 4 != 0
    a = two_of((words & 0x000F000F) | 0x43004300, tl.bfloat16, swapped)
    b = two_of(((words >> 4) & 0x000F000F) | 0x43004300, tl.bfloat16, swapped)
    c = two_of(((words >> 8) & 0x000F000F) | 0x43004300, tl.bfloat16, swapped)
    d = two_of(((words >> 12) & 0x000F000F) | 0x43004300, tl.bfloat16, swapped)
    # which the interpreter has no constants of
    return columns_of(a, b, c, d, flip) - tl.full([], 128.0 + less, tl.float32).to(tl.bfloat16)
''',
    "columns_of": '''
@triton.jit
def columns_of(a, b, c, d, flip: tl.constexpr):
    """Return pairs of numbers down their columns; a bit of ``flip`` exchanges neighbors."""
    first = tl.join(b, a) if flip & 1 else tl.join(a, b)
    second = tl.join(d, c) if flip & 1 else tl.join(c, d)
    both = tl.join(second, first) if flip & 2 else tl.join(first, second)
    both = tl.permute(both, (0, 1, 5, 4, 2, 3))
    return tl.reshape(both, (a.shape[0], 32 * a.shape[1])).T
''',
    "halves_of_bytes": '''
@triton.jit
def halves_of_bytes(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the four bytes of each word less a number, down a column in the words' order."""
    words = words_of_threads(words)
    swapped: tl.constexpr = flip & 2 != 0
    a = two_of((words & 0x00FF00FF) | 0x64006400, tl.float16, swapped)
    b = two_of(((words >> 8) & 0x00FF00FF) | 0x64006400, tl.float16, swapped)
    both = tl.join(b, a) if flip & 1 else tl.join(a, b)
    both = tl.reshape(tl.permute(both, (0, 1, 4, 2, 3)), (a.shape[0], 16 * a.shape[1]))
    return (both - (1024.0 + less)).T
''',
    "halves_of_signed_bytes": '''
@triton.jit
def halves_of_signed_bytes(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the same of signed bytes: plus 128 they are not, and it is taken away as well."""
    return halves_of_bytes(words ^ -0x7F7F7F80, 128.0 + less, flip)
''',
    "beside": '''
@triton.jit
def beside(words, mask: tl.constexpr, bits: tl.constexpr):
    """Return some bits of words beside others, by one instruction.

    That takes a register for ``bits``, so they are made what the compiler does not know; there is
    one program along the last axis, of number 0.
    """
    return (words & mask) | (bits + tl.program_id(2))
''',
    "along": '''
@triton.jit
def along(place: tl.constexpr, size: tl.constexpr):
    """Return the numbers below a size along one of seven dimensions."""
    numbers = tl.arange(0, size)
    for other in tl.static_range(7):
        if other != place:
            numbers = tl.expand_dims(numbers, other)
    return numbers
''',
    "numbers_of": '''
@triton.jit
def numbers_of(pairs):
    """Return the numbers of each word as its last dimension."""
    shape: tl.constexpr = pairs.shape
    count: tl.constexpr = 4 if len(shape) == 9 else 8
    return tl.reshape(pairs, (shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], count))
''',
    "nibbles_as_halves": '''
@triton.jit
def nibbles_as_halves(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the eight numbers of each word less a number, by the place where they stand in it.

    Two at a time, sixteen bits apart, come beside 1024; in higher bits they count sixteenfold.
    Of a place's bits the last is that of the half of the word, so that both share a register.
    """
    swapped: tl.constexpr = flip & 4 != 0
    high = words >> 8
    a = two_of(beside(words, 0x000F000F, 0x64006400), tl.float16, swapped) - (1024.0 + less)
    c = two_of(beside(high, 0x000F000F, 0x64006400), tl.float16, swapped) - (1024.0 + less)
    b = two_of(beside(words, 0x00F000F0, 0x64006400), tl.float16, swapped) * 0.0625 - (64.0 + less)
    d = two_of(beside(high, 0x00F000F0, 0x64006400), tl.float16, swapped) * 0.0625 - (64.0 + less)
    return numbers_of(four_of(a, b, c, d, flip))
''',
    "nibbles_as_bfloats": '''
@triton.jit
def nibbles_as_bfloats(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the same as bfloat16, beside 128."""
    swapped: tl.constexpr = flip & 4 != 0
    a = two_of(beside(words, 0x000F000F, 0x43004300), tl.bfloat16, swapped)
    b = two_of(beside(words >> 4, 0x000F000F, 0x43004300), tl.bfloat16, swapped)
    c = two_of(beside(words >> 8, 0x000F000F, 0x43004300), tl.bfloat16, swapped)
    d = two_of(beside(words >> 12, 0x000F000F, 0x43004300), tl.bfloat16, swapped)
    # which the interpreter has no constants of
    less_and_more = tl.full([], 128.0 + less, tl.float32).to(tl.bfloat16)
    return numbers_of(four_of(a, b, c, d, flip)) - less_and_more
''',
    "four_of": '''
@triton.jit
def four_of(a, b, c, d, flip: tl.constexpr):
    """Return four numbers beside each other; a bit of ``flip`` exchanges neighbors."""
    first = tl.join(b, a) if flip & 1 else tl.join(a, b)
    second = tl.join(d, c) if flip & 1 else tl.join(c, d)
    return tl.join(second, first) if flip & 2 else tl.join(first, second)
''',
    "bytes_as_halves": '''
@triton.jit
def bytes_as_halves(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the four bytes of each word less a number, by the place where they stand in it."""
    swapped: tl.constexpr = flip & 2 != 0
    a = two_of(beside(words, 0x00FF00FF, 0x64006400), tl.float16, swapped)
    b = two_of(beside(words >> 8, 0x00FF00FF, 0x64006400), tl.float16, swapped)
    both = tl.join(b, a) if flip & 1 else tl.join(a, b)
    return numbers_of(both) - (1024.0 + less)
''',
    "signed_bytes_as_halves": '''
@triton.jit
def signed_bytes_as_halves(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the same of signed bytes: plus 128 they are not, and it is taken away as well."""
    return bytes_as_halves(words ^ -0x7F7F7F80, 128.0 + less, flip)
''',
    "digamma": '''
@triton.jit
def digamma(x):
    """Return the logarithmic derivative of the gamma function, as torch does."""
    whole = x == tl.floor(x)
    mirrored = x < 0.5
    # psi(x) = psi(1 - x) - pi / tan(pi x), whose period is 1
    y = tl.where(mirrored, 1.0 - x, x)
    fraction = x - libdevice.nearbyint(x)
    angle = libdevice.tan(fraction * 3.141592653589793)
    total = tl.where(mirrored, -3.141592653589793 / angle, 0.0)
    for _ in tl.static_range(10):
        small = y < 10.0
        total = tl.where(small, total - 1.0 / y, total)
        y = tl.where(small, y + 1.0, y)
    z = 1.0 / (y * y)
    tail = 1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))
    tail = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * tail)))
    result = total + libdevice.log(y) - 0.5 / y - tail
    # a pole: infinite at 0 (of the other sign), undefined at the negative integers
    at_zero = tl.where(1.0 / x > 0, -float("inf"), float("inf"))
    result = tl.where(whole & (x < 0.0), float("nan"), result)
    return tl.where(x == 0.0, at_zero, result)
''',
}

# What a helper calls itself.
USES = {
    "moments_inside": ("moments",),
    "online_sum": ("maximum",),
    "online_sum_columns": ("maximum",),
    "online_sum_grouped": ("maximum",),
    "log_add_exp": ("maximum", "minimum"),
    "halves_of_nibbles": ("words_of_threads", "two_of", "columns_of"),
    "bfloats_of_nibbles": ("words_of_threads", "two_of", "columns_of"),
    "halves_of_bytes": ("words_of_threads", "two_of"),
    "halves_of_signed_bytes": ("words_of_threads", "two_of", "halves_of_bytes"),
    "nibbles_as_halves": ("two_of", "beside", "four_of", "numbers_of"),
    "nibbles_as_bfloats": ("two_of", "beside", "four_of", "numbers_of"),
    "bytes_as_halves": ("two_of", "beside", "numbers_of"),
    "signed_bytes_as_halves": ("two_of", "beside", "numbers_of", "bytes_as_halves"),
}
