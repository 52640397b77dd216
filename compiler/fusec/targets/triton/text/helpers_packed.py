"""Triton functions that take numbers of few bits apart: bytes, and words of several numbers."""

from __future__ import annotations

PACKED: dict[str, str] = {
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
    "small_halves_of_nibbles": '''
@triton.jit
def small_halves_of_nibbles(words, less: tl.constexpr, flip: tl.constexpr):
    """Return the same times 2**-24, which the bits of a half without an exponent count."""
    words = words_of_threads(words)
    swapped: tl.constexpr = flip & 4 != 0
    small: tl.constexpr = less * 0.000000059604644775390625
    a = two_of(words & 0x000F000F, tl.float16, swapped) - small
    b = two_of(words & 0x00F000F0, tl.float16, swapped) * 0.0625 - small
    words = words >> 8
    c = two_of(words & 0x000F000F, tl.float16, swapped) - small
    d = two_of(words & 0x00F000F0, tl.float16, swapped) * 0.0625 - small
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
}

USES = {
    "halves_of_nibbles": ("words_of_threads", "two_of", "columns_of"),
    "small_halves_of_nibbles": ("words_of_threads", "two_of", "columns_of"),
    "bfloats_of_nibbles": ("words_of_threads", "two_of", "columns_of"),
    "halves_of_bytes": ("words_of_threads", "two_of"),
    "halves_of_signed_bytes": ("words_of_threads", "two_of", "halves_of_bytes"),
    "nibbles_as_halves": ("two_of", "beside", "four_of", "numbers_of"),
    "nibbles_as_bfloats": ("two_of", "beside", "four_of", "numbers_of"),
    "bytes_as_halves": ("two_of", "beside", "numbers_of"),
    "signed_bytes_as_halves": ("two_of", "beside", "numbers_of", "bytes_as_halves"),
}

__all__ = ["PACKED", "USES"]
