"""The scalar maths of generated C++ kernels, as text that a kernel file carries with it.

A generated kernel stands alone, so it cannot include a header of ours.  Instead it holds the few
functions it uses, at its end (``fusec/helper_block.py``).  ``helper_sources`` returns the text of
the helpers asked for and of all that those need, each behind those that it needs.

The functions are written for a compiler's vectorizer: one scalar in, one scalar out, no branch,
no table, no call, so that a ``#pragma omp simd`` loop over them becomes vector code of whatever
width the machine has.  They need no ``-ffast-math``; they do need ``-fno-math-errno`` and
``-fno-trapping-math`` (a condition becomes a select), and they say ``fma`` where they mean it,
so ``-ffp-contract=off`` leaves their results alone.  The few that a vectorizer cannot take
(``digamma``...) are calls of the C library; ``Helper.vectorizes`` tells them apart.

In a kernel every function is called ``fx_NAME``, overloaded by type: ``fx_exp(x)``.  The name of
a helper is NAME, or NAME and a type (``exp.f32``, ``exp.f64``) for only that overload, which
keeps a kernel short and quick to build.  Types are ``f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 bool
bf16 f16``; the half types are storage: ``fx_bf16`` and ``fx_f16`` are structs of 16 bits, with
``fx_to_float`` out of them and ``fx_to_bf16``, ``fx_to_f16`` into them.

Results, unless a helper's text says otherwise: float32 within 2 units in the last place of the
exact value, float64 within 3; NaN for NaN; infinities, signed zeros, subnormal arguments and
results, overflow as in C99; and the same bits on every machine and with every compiler, but for
the calls of the C library.  ``tests/bench/mathlib_accuracy.py`` measures it over every float32,
``tests/bench/mathlib_fit.py`` computes the polynomials.

Where a processor has no ``fma``, which would be such a call for every element, float32 is
multiplied and added in float64 (``helper_sources(..., fused=False)``): the product is exact, and
what is left to round twice is one result in 2^29.  That costs three times what rounding the product
does, so steps of a polynomial round it, and so does all of a helper that says ``rounded``, with the
accuracy that it then has, but for the variables that it calls ``exact``.  In float64 steps of
polynomials round the product, and what has float32 for its result rounds all; the rest calls
the C library's.

In a helper, conditions are joined with ``&`` and ``|``: ``&&`` is a branch, which g++ does not
always turn back into a select.

The texts are in the ``.h`` files beside this one.  A helper starts at a line ``//@ name: NAME``;
further ``//@`` lines give what it ``needs`` (names, by spaces), its measured ``accuracy``, the
``method``, what holds without ``fma`` (``rounded``, ``exact``, ``chains``), and ``vector: no`` for
one that does not vectorize.  A name that starts with ``_`` is not for kernels to use.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from importlib.resources import files

FAMILIES = (
    "base",
    "exp",
    "log",
    "hyperbolic",
    "erf",
    "trig",
    "power",
    "gamma",
    "special",
    "half",
    "integer",
)
MARK = "//@ "
_FUSED, _FUSED_DOUBLE = "__builtin_fmaf(", "__builtin_fma("
# What stands for them, by its name in a text.
_WITHOUT_FMA = {"fx_fma(": "_fma.f32", "fx_multiply_add(": "_multiply_add.f64"}
# A product and a sum that are all of a statement; what is assigned, or returned, comes first.
_FACTOR = r"[^,() ]+(?: \* [^,() ]+)*"
_STATEMENT = re.compile(
    r"(?P<left>(?:(?P<name>\w+) =|return) )"
    rf"__builtin_fmaf\((?P<a>{_FACTOR}), (?P<b>{_FACTOR}), (?P<c>[^,()]+)\);"
)
# A step of a polynomial: the rounding of its product is multiplied away by the steps after it.
_POLYNOMIAL = re.compile(
    r"    (?P<type>float|double) (?P<name>\w) = (?P<first>-?0x[^;]+);\n"
    r"(?P<steps>(?:    (?P=name) = (?P=name) \* (?P<argument>\w) \+ [^;()]+;\n)"
    r"(?:    (?P=name) = (?P=name) \* (?P=argument) \+ [^;()]+;\n)*)"
)
_HORNER = re.compile(r"\b([cepqrs]) = __builtin_fmaf?\(\1, (\w+), (-?0x[^()]+)\);")


@dataclass(frozen=True)
class Helper:
    """One helper as its file states it.

    Attributes:
        name: ``NAME.TYPE``, or ``NAME`` where there is only one.
        needs: Helpers that its text uses.
        accuracy: The largest error measured, in words.
        method: How it computes, in words.
        vectorizes: Whether a loop over it becomes vector code.
        rounded: The largest error where there is no fma and products are rounded, in words; empty
            if they must not be.
        exact: Variables whose products are exact even so.
        chains: Polynomials of bounded arguments, whose even and odd powers may then be apart.
        text: C++.
        family: The file that it is in, without the suffix.
    """

    name: str
    needs: tuple[str, ...]
    accuracy: str
    method: str
    vectorizes: bool
    rounded: str
    exact: tuple[str, ...]
    chains: tuple[str, ...]
    text: str
    family: str

    @property
    def public(self) -> bool:
        """Whether kernels may ask for it."""
        return not self.name.startswith("_")


def helper_sources(names: Iterable[str], *, fused: bool = True) -> str:
    """Return the text of helpers and of all that they need.

    The order depends on the set of names only: what is needed comes first.

    Args:
        names: ``exp.f32`` for one overload, ``exp`` for all of them.
        fused: Whether the processor multiplies and adds float32 in one instruction.

    Raises:
        KeyError: There is no such helper; see ``available``.
    """
    ordered: dict[str, Helper] = {}

    def add(name: str) -> None:
        for helper in expand(name):
            if helper.name not in ordered:
                for need in helper.needs:
                    add(need)
                ordered[helper.name] = helper

    for name in sorted(set(names)):
        add(name)
    if ordered:
        add("_inline")
        # Every function uses the macro.
        ordered = {"_inline": ordered.pop("_inline"), **ordered}
    helpers = list(ordered.values())
    if not fused:
        helpers = [without_fma(helper) for helper in helpers]
        used = [
            library()[name]
            for call, name in _WITHOUT_FMA.items()
            if any(call in helper.text for helper in helpers)
        ]
        helpers[1:1] = used  # behind the macro
    return "\n".join(map(definition, helpers))


def without_fma(helper: Helper) -> Helper:
    """Return a helper for processors that do not multiply and add at once."""
    text = _HORNER.sub(r"\1 = \1 * \2 + \3;", helper.text)
    if helper.rounded:
        text = _STATEMENT.sub(
            lambda step: (
                step[0]
                if step["name"] in helper.exact
                else step.expand(r"\g<left>\g<a> * \g<b> + \g<c>;")
            ),
            text,
        )
        text = _in_two_chains(text, helper.chains)
    if helper.name.endswith((".f32", "_short.f64")):  # a double's rounding is not seen in floats
        text = text.replace(_FUSED_DOUBLE, "fx_multiply_add(")
    text = text.replace(_FUSED, "fx_fma(")
    accuracy = helper.rounded if helper.accuracy and helper.rounded else helper.accuracy
    return replace(helper, text=text, accuracy=accuracy)


def _in_two_chains(text: str, names: Collection[str]) -> str:
    """Return a text in which the even and the odd powers of polynomials go side by side.

    Each step of one chain waits for the one before, and multiplying and adding takes twice as long
    as both at once.  The last two steps stay: they decide the error.  GELU takes 0.9 of the time.

    Args:
        text: C++.
        names: Of the polynomials.
    """

    def chains(found: re.Match[str]) -> str:
        kind, name, argument = found["type"], found["name"], found["argument"]
        constants = [found["first"], *re.findall(r"\+ ([^;]+);", found["steps"])]
        split, kept = constants[:-2], constants[-2:]
        if name not in names:
            return found[0]
        lines = [f"{kind} {name}_2 = {argument} * {argument};"]
        for start in (0, 1):
            chain = f"{name}_{'even' if (len(split) - start) % 2 else 'odd'}"
            first, *rest = split[start::2]
            lines.append(f"{kind} {chain} = {first};")
            lines += [f"{chain} = {chain} * {name}_2 + {constant};" for constant in rest]
        lines.append(f"{kind} {name} = {name}_odd * {argument} + {name}_even;")
        lines += [f"{name} = {name} * {argument} + {constant};" for constant in kept]
        return "".join(f"    {line}\n" for line in lines)

    return _POLYNOMIAL.sub(chains, text)


@functools.cache
def available() -> frozenset[str]:
    """Return every name that ``helper_sources`` takes: the overloads and the names of all."""
    public = [helper.name for helper in library().values() if helper.public]
    return frozenset(public) | frozenset(name.partition(".")[0] for name in public)


def expand(name: str) -> tuple[Helper, ...]:
    """Return the helper of a name, or all overloads of a name without a type.

    Raises:
        KeyError: There is no such helper.
    """
    helpers = library()
    if name in helpers:
        return (helpers[name],)
    overloads = tuple(h for h in helpers.values() if h.name.startswith(f"{name}."))
    if not overloads:
        raise KeyError(f"no C++ helper {name!r}")
    return overloads


def definition(helper: Helper) -> str:
    """Return a helper's text with what a reader wants to know above it."""
    notes = [note for note in (helper.method, helper.accuracy) if note]
    title = f"// {helper.name}: {'; '.join(notes)}\n" if notes else ""
    return title + helper.text


@functools.cache
def library() -> dict[str, Helper]:
    """Read every helper, by name, in the order of the files."""
    helpers: dict[str, Helper] = {}
    for family in FAMILIES:
        source = files(__name__).joinpath(f"{family}.h").read_text(encoding="utf-8")
        for helper in parse(source, family):
            if helper.name in helpers:
                raise ValueError(f"{family}.h: {helper.name} is there twice")
            helpers[helper.name] = helper
    return helpers


def parse(source: str, family: str) -> list[Helper]:
    """Split a file into its helpers; what precedes the first one is for readers of the file."""
    blocks: list[tuple[dict[str, str], list[str]]] = []
    for line in source.splitlines():
        if line.startswith(f"{MARK}name:"):
            blocks.append(({}, []))
        if not blocks:
            continue
        fields, text = blocks[-1]
        if line.startswith(MARK):
            name, _, value = line.removeprefix(MARK).partition(":")
            fields[name.strip()] = value.strip()
        else:
            text.append(line)
    return [
        Helper(
            name=fields.pop("name"),
            needs=tuple(fields.pop("needs", "").split()),
            accuracy=fields.pop("accuracy", ""),
            method=fields.pop("method", ""),
            vectorizes=fields.pop("vector", "yes") == "yes",
            rounded=fields.pop("rounded", ""),
            exact=tuple(fields.pop("exact", "").split()),
            chains=tuple(fields.pop("chains", "").split()),
            text="\n".join(text).strip("\n") + "\n",
            family=family,
        )
        for fields, text in blocks
    ]
