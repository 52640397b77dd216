"""Small ``@triton.jit`` functions that a generated file may need, written into it on demand.

Each exists because Triton's own operator means something else than torch's: integer division
truncates, ``maximum`` drops NaN, a shift by the whole width is undefined, and so on.
"""

from __future__ import annotations

from fusec.targets.triton.text import helpers_combining, helpers_packed

# Gluon's language does not say which numbers win beside NaN.
IN_GLUON: dict[str, str] = {
    "maximum": '''
@gluon.jit
def maximum(a, b):
    """Return the larger; NaN wins, as in torch."""
    return tl.where(a != a, a, tl.where(a > b, a, b))
''',
}

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
    **helpers_combining.COMBINING,
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
    **helpers_packed.PACKED,
}

# What a helper calls itself.
USES = helpers_combining.USES | helpers_packed.USES
