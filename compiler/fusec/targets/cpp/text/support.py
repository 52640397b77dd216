"""The small functions of a kernel file that are not maths: wrapping integers, index division.

``mathlib`` has the maths; ``helper_texts`` returns the text of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from fusec.ir.scalars import SCALARS
from fusec.targets.cpp.mathlib import available, helper_sources
from fusec.targets.cpp.plan import choices

# What writes past the caches, and what a thread does after it.
STREAM, END = "stream", "end_stream"
# One of two numbers without a branch; the maths has it for itself.
CHOOSE = "_choose"
_WRAPPING = {"wrap_add": "+", "wrap_sub": "-", "wrap_mul": "*"}

_OWN = {
    "div_floor": """\
// Division of positions as Python has it: rounds down. The divisor is positive.
{inline} int64_t div_floor(int64_t x, int64_t y)
{{
    return x / y - (x % y < 0);
}}
""",
    "mod_floor": """\
// Remainder of positions as Python has it: never negative. The divisor is positive.
{inline} int64_t mod_floor(int64_t x, int64_t y)
{{
    const int64_t rest = x % y;
    return rest < 0 ? rest + y : rest;
}}
""",
    "log_add_exp": """\
// Takes x into the greatest value so far and the sum of exp(value - greatest); NaN stays NaN.
{inline} void log_add_exp(double x, double& greatest, double& total)
{{
    const double distance = x == greatest ? 0.0 : x - greatest; // of infinities too
    const double weight = fx_exp(distance > 0 ? -distance : distance);
    total = x > greatest ? total * weight + 1.0 : total + weight;
    greatest = x > greatest ? x : greatest;
}}
""",
    "random_bits": """\
// Returns 32 random bits: a word of Philox 4x32-7 (Salmon et al. 2011) of a position in a stream.
{inline} int32_t random_bits(int64_t seed, int64_t position, int64_t stream, int64_t word)
{{
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)((uint64_t)position >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)((uint64_t)seed >> 32);
    #pragma GCC unroll 7
    for (int round = 0; round < 7; ++round) {{
        const uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p2 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(p2 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p2;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }}
    return (int32_t)(word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3);
}}
""",
    "random_word": """\
// Returns 32 random bits: 64 positions share the words of 16 numbers.
{inline} int32_t random_word(int64_t seed, int64_t position, int64_t stream)
{{
    const int64_t number = position >> 6 << 4 | (position & 15);
    return random_bits(seed, number, stream, position >> 4 & 3);
}}
""",
    "prefetch": """\
// Asks the memory for `count` elements from x on, so that they are there when their turn comes.
template <int64_t count, typename T>
{inline} void prefetch(const T* x)
{{
    constexpr int64_t line = 64 / sizeof(T);
    #pragma GCC unroll 16
    for (int64_t k = 0; k < count; k += line) __builtin_prefetch(x + k, 0);
}}
""",
    "prefetch_to_second": """\
// The same for the second-level cache, for elements whose turn is not that soon.
template <int64_t count, typename T>
{inline} void prefetch_to_second(const T* x)
{{
    constexpr int64_t line = 64 / sizeof(T);
    #pragma GCC unroll 16
    for (int64_t k = 0; k < count; k += line) __builtin_prefetch(x + k, 0, 2);
}}
""",
    "prefetch_to_write": """\
// The same for elements that are going to be written.
template <int64_t count, typename T>
{inline} void prefetch_to_write(T* x)
{{
    constexpr int64_t line = 64 / sizeof(T);
    #pragma GCC unroll 16
    for (int64_t k = 0; k < count; k += line) __builtin_prefetch(x + k, 1);
}}
""",
    "interleave": """\
// Has a loop's marks written: with a byte an element, four vectors of float go side by side.
template <typename T>
{inline} void interleave(const T& marks)
{{
    asm volatile("" : : "m"(marks));
}}
""",
    "at_most": """\
{inline} int64_t at_most(int64_t x, int64_t limit)
{{
    return x < limit ? x : limit;
}}
""",
}
_EXTREME = {"nan_max": (">", "greater"), "nan_min": ("<", "lesser")}
_C = {"f32": "float", "f64": "double"}
_SHARED = frozenset(f"{CHOOSE}.{kind}" for kind in _C)
_INLINE = "static inline"
_TEMPLATES = {"stream", "end_stream", "turn_over", "random_group", "random_words", "running_sums"}


def own_name(operation: str, bits: int) -> str:
    """Return the helper for ``operation`` (add, sub, mul) that wraps around at ``bits``."""
    return f"wrap_{operation}.i{bits}"


def function_name(operation: str, bits: int) -> str:
    """Return what that helper is called; a literal may be of either type, so not both alike."""
    return f"wrap_{operation}" + ("" if bits == 64 else str(bits))


# What their functions are called; those of ``mathlib`` have names with ``fx_`` in front.
OWN_NAMES = frozenset(
    [*_OWN, *_EXTREME, "number_max", *(_TEMPLATES - {"turn_over"})]
    + [function_name(name.removeprefix("wrap_"), bits) for name in _WRAPPING for bits in (32, 64)]
    + [f"turn_over_{bits}" for bits in (8, 16, 32, 64)]
)


def _library_call(name: str, kind: str) -> str:
    """Return a function that calls the C library's: what ``mathlib`` has no vector form of."""
    scalar, real = SCALARS[name], _C[kind]
    names = "xyz"[: scalar.arity]
    suffix = "f" if kind == "f32" else ""
    parameters = ", ".join(f"{real} {n}" for n in names)
    return (
        f"// The C library's: one element at a time.\n"
        f"{_INLINE} {real} fx_{name}({parameters})\n{{\n"
        f"    return __builtin_{scalar.c_name}{suffix}({', '.join(names)});\n}}\n"
    )


def _own_text(name: str) -> str:
    stem, _, kind = name.partition(".")
    if kind in _C and stem in SCALARS:
        return _library_call(stem, kind)
    if stem in _WRAPPING:
        bits = int(kind.removeprefix("i"))
        name = function_name(stem.removeprefix("wrap_"), bits)
        signed, unsigned = f"int{bits}_t", f"uint{bits}_t"
        return (
            f"// Wraps around where it overflows, as eager does.\n"
            f"{_INLINE} {signed} {name}({signed} x, {signed} y)\n{{\n"
            f"    return ({signed})(({unsigned})x {_WRAPPING[stem]} ({unsigned})y);\n}}\n"
        )
    if stem in _TEMPLATES:
        text = files("fusec.targets.cpp").joinpath("templates", f"{stem}.h").read_text("utf-8")
        return text.replace("BITS", str(int(kind) * 8)) if kind else text
    if stem in _EXTREME:
        sign, word = _EXTREME[stem]
        real = _C[kind]
        # As two selects, neither with an "or": one compiles to a vector maximum, the other to a
        # blend, and if `b` holds a running result, the test for NaN does not wait for it.
        return (
            f"// The {word} of two numbers; NaN if either is.\n"
            f"{_INLINE} {real} {stem}({real} a, {real} b)\n{{\n"
            f"    const {real} {word} = a {sign} b ? a : b;\n"
            f"    return a != a ? a : {word};\n}}\n"
        )
    if stem == "number_max":
        real = _C[kind]
        return (
            f"// The greater of two numbers: a NaN is left out, and shows in what is summed.\n"
            f"{_INLINE} {real} {stem}({real} value, {real} so_far)\n{{\n"
            f"    return value > so_far ? value : so_far;\n}}\n"
        )
    return _OWN[stem].format(inline=_INLINE)


def helper_name(operation: str, kind: str) -> str | None:
    """Return the maths helper for an operation on a type (``f32``, ``i64``), if there is one."""
    for name in (f"{operation}.{kind}", f"{operation}.int" if kind[0] in "iu" else ""):
        if name in available():
            return name
    scalar = SCALARS.get(operation)
    if scalar is not None and scalar.c_name and kind in _C and scalar.gives is None:
        return f"{operation}.{kind}"
    return None


def helper_texts(names: Iterable[str]) -> str:
    """Return the text of all helpers that a kernel uses, each behind those that it needs."""
    wanted = sorted(set(names))
    known = available() | _SHARED
    fused = choices.has_fma()
    library = helper_sources((name for name in wanted if name in known), fused=fused)
    own = [_own_text(name) for name in wanted if name not in known]
    return "\n".join(text for text in [library, *own] if text)
