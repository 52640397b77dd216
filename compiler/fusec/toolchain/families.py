"""What differs between families of C++ compilers: g++, clang, Apple's clang, and zig's clang.

A kernel's text is the same for all of them.  ``ziglang`` is clang in a wheel from PyPI, for every
system, with headers and libraries of its own: it builds kernels where no compiler is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# None of the floating-point flags changes a result. The first two say that nobody reads errno
# or the exception flags, which is what lets a compiler turn a condition into a select; the
# third keeps it from fusing a product and a sum that eager rounds twice.
COMMON = (
    "-std=c++17",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-shared",
)
# Not ``-fno-thread-jumps``, which keeps g++ from joining conditions that follow each other: g++ 12
# then takes the condition of one vector's rows for those of the next, where it guards a load beside
# bytes. Selects are written so that there is nothing to join (targets/cpp/text/selects.py).
_GCC = (
    # What the emitter calls a vector loop has passed its own judgement.
    "-fvect-cost-model=unlimited",
    # It moves casts of a select's constants into its branches, which then stay branches.
    "-fno-tree-pre",
    # What a template or an inline variable holds would be one thing for all libraries of a
    # process: an edit would compute with the table of an earlier one.
    "-fno-gnu-unique",
)
# Where straight-line code is made into vectors, as the last turns of a loop are, g++ 12 leaves out
# a rounding to float and back: ``(double)((float)x)`` is ``x`` there. Texts that have both types.
_ROUNDS = "-fno-tree-slp-vectorize"
_DOUBLE, _FLOAT = re.compile(r"\bdouble\b"), re.compile(r"\bfloat\b")
# It says of a loop that it would have liked to make vectors of, which is no news to a user.
_CLANG = ("-Wno-pass-failed", "-Wno-unknown-pragmas")
_PRAGMA = re.compile(r"^([ \t]*)#pragma GCC (ivdep|unroll [^\n]*)$", re.MULTILINE)
# A reduction to an extreme, of which a directive may have several.
_EXTREME = re.compile(r"\breduction\((max|min) :")
_NUMBERS = (
    "float, double, signed char, short, int, long, long long, bool, "
    "unsigned char, unsigned short, unsigned, unsigned long, unsigned long long"
)
_EXTREMES = "".join(
    f"#pragma omp declare reduction(fx_{name} : {_NUMBERS} : "
    f"omp_out = omp_out > omp_in ? {greater} : {less}) initializer(omp_priv = omp_orig)\n"
    # both by one comparison: clang 14 takes a < for the begin of a template's arguments
    for name, greater, less in (("max", "omp_out", "omp_in"), ("min", "omp_in", "omp_out"))
)


def flags_of_text(text: str) -> tuple[str, ...]:
    """Return the flags with which g++ builds a text right, beside those that all texts have."""
    return (_ROUNDS,) if _DOUBLE.search(text) and _FLOAT.search(text) else ()


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        name: ``gcc``, ``clang``, ``apple`` or ``zig``.
        flags: What kernels are compiled with, but for the machine.
        openmp: What turns OpenMP on.
        plain: The driver's command for what needs nothing of the C++ library; empty where the
            driver has no commands.
        full: The same for all else.
        calls: Whose OpenMP runtime its code calls: ``gomp`` or ``kmp``.
        library: Whose C++ library it brings: ``libstdc++`` or ``libc++``.
    """

    name: str
    flags: tuple[str, ...]
    openmp: tuple[str, ...]
    calls: str
    library: str = ""
    plain: tuple[str, ...] = ()
    full: tuple[str, ...] = ()

    def translate(self, flag: str) -> tuple[str, ...]:
        """Return a flag of g++'s as this family takes it."""
        if self.name == "zig":
            if flag.startswith("-march="):
                # zig's own names of processors have no hyphens
                return (f"-mcpu={flag.partition('=')[2].replace('-', '_')}",)
            if flag == "-Wl,--warn-unresolved-symbols":
                return ("-Wl,--allow-shlib-undefined", "-Wl,-z,undefs")
        return (flag,)

    def flags_of(self, text: str) -> tuple[str, ...]:
        """Return the flags that one text wants, beside those that all have."""
        return flags_of_text(text) if self.name == "gcc" else ()

    def text(self, text: str) -> str:
        """Return a kernel's text with the directives that this family knows, line for line.

        ``GCC ivdep`` says that turns of a loop do not depend on each other, and ``GCC unroll``
        above it how many vectors a turn takes. The extremes of clang's own reductions begin at the
        largest finite number, so that one over infinities alone would not be infinite: they are
        reductions of ours, which begin at what has been found before.
        """
        if self.name == "gcc":
            return text
        text = _PRAGMA.sub(_directive, text)
        text, count = _EXTREME.subn(r"reduction(fx_\1 :", text)
        return f"{_EXTREMES}#line 1\n{text}" if count else text


def _directive(match: re.Match[str]) -> str:
    indent, what = match.groups()
    if what == "ivdep":
        return f"{indent}#pragma clang loop vectorize(assume_safety)"
    return f"{indent}#pragma clang loop interleave_count({what.partition(' ')[2]})"


FAMILIES = {
    each.name: each
    for each in (
        Family("gcc", (*COMMON, *_GCC), ("-fopenmp",), "gomp", "libstdc++"),
        Family("clang", (*COMMON, *_CLANG), ("-fopenmp",), "kmp"),
        Family("apple", (*COMMON, *_CLANG), ("-Xclang", "-fopenmp"), "kmp", "libc++"),
        Family(
            "zig",
            (*COMMON, *_CLANG, "-fno-sanitize=undefined"),
            ("-fopenmp",),
            "kmp",
            "libc++",
            # Without the C++ library, which zig would build from its source first.
            ("cc",),
            ("c++",),
        ),
    )
}


def family_of(executable: str, version: str) -> Family:
    """Return the family of a compiler.

    Args:
        executable: Its path.
        version: The first line of what it says of its version.
    """
    if is_zig(executable):
        return FAMILIES["zig"]
    if "clang" in version:
        return FAMILIES["apple" if version.startswith("Apple") else "clang"]
    return FAMILIES["gcc"]


def is_zig(executable: str) -> bool:
    """Whether a compiler is zig's, which is one program with commands."""
    return Path(executable).stem == "zig"


__all__ = ["COMMON", "FAMILIES", "Family", "family_of", "is_zig"]
