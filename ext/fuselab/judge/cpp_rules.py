"""What the text of a C++ answer may hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from fusec.target_api.c_entry import blank_comments, check_c_entry
from fuselab.judge.rules import BrokenRule

INCLUDES = frozenset(
    "algorithm array cassert cfloat climits cmath cstddef cstdint cstring limits numeric "
    "type_traits utility vector math.h stdint.h string.h stddef.h immintrin.h arm_neon.h "
    "omp.h".split()
)
_WORDS: dict[str, str] = {
    "asm": "write C++",
    "__asm__": "write C++",
    "system": "a kernel starts no programs",
    "popen": "a kernel starts no programs",
    "fork": "a kernel starts no programs",
    "execve": "a kernel starts no programs",
    "dlopen": "a kernel calls no library",
    "dlsym": "a kernel calls no library",
    "syscall": "a kernel talks to no operating system",
    "mmap": "memory is what the arguments are",
    "getenv": "a kernel depends on its arguments alone",
    "fopen": "a kernel reads no files",
    "open": "a kernel reads no files",
    "ifstream": "a kernel reads no files",
    "thread": "work must be done when the kernel returns: use `#pragma omp parallel for`",
    "async": "work must be done when the kernel returns: use `#pragma omp parallel for`",
    "pthread_create": "work must be done when the kernel returns: use `#pragma omp parallel for`",
    "clock_gettime": "the judge measures; a kernel needs no clock",
    "gettimeofday": "the judge measures; a kernel needs no clock",
    "chrono": "the judge measures; a kernel needs no clock",
    "signal": "a kernel that goes wrong ends",
    "atexit": "a kernel ends when it returns",
    "constructor": "nothing runs before the kernel is called",
    "destructor": "nothing runs after the kernel has returned",
}


_ALLOCATES = dict.fromkeys(
    "new malloc calloc realloc alloca vector unique_ptr make_unique".split(),
    "nothing may grow with the sizes here: arrays of a constant size are enough",
)


def broken_cpp_rule(
    text: str,
    entry: str,
    declaration: str,
    forbids: Mapping[str, str] = MappingProxyType({}),
    *,
    small: bool = False,
) -> BrokenRule | None:
    """Return the first rule that a C++ text does not keep; None if it keeps them all.

    Args:
        text: The answer.
        entry: Its function.
        declaration: How that has to be declared.
        forbids: Words besides the usual ones, with the reason.
        small: Whether memory may not grow with the sizes.
    """
    if not text.strip():
        return BrokenRule(f"there is no answer yet: write `{declaration}`")
    bare = blank_comments(text)
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", line)
        if match and match[1] not in INCLUDES:
            known = ", ".join(sorted(INCLUDES))
            return BrokenRule(f"a kernel may not include `{match[1]}`; there are {known}", number)
        if re.match(
            r"\s*#\s*(include(?!\s*[<\"])|define|import|pragma\s+(?!omp|GCC|unroll))", line
        ):
            return BrokenRule("no macros, and no pragmas but `omp`, `GCC` and `unroll`", number)
    for number, line in enumerate(bare.splitlines(), start=1):
        for word in re.findall(r"\b[A-Za-z_]\w*\b", line):
            why = _WORDS.get(word)
            if why:
                return BrokenRule(f"`{word}` is not for kernels: {why}", number)
            why = forbids.get(word) or (_ALLOCATES.get(word) if small else None)
            if why:
                return BrokenRule(f"`{word}` is not for this kernel: {why}", number)
        if small:
            sized = re.search(
                r"\b(?:float|double|char|int\w*)\s+\w+\s*((?:\[[^\]]*\])+)\s*[;={]", line
            )
            given = set(re.findall(r"int64_t (\w+)", declaration))
            if sized and given & set(re.findall(r"\w+", sized[1])):
                return BrokenRule(
                    "an array here has a constant size: take the row in blocks", number
                )
        if re.search(r"\bstatic\b(?!\s+(?:inline|const|constexpr|_))", line) and "(" not in line:
            return BrokenRule(
                "a kernel keeps nothing from one call to the next: no `static`", number
            )
    if len(re.findall(r"\bextern\b", bare)) > 1:
        return BrokenRule(f"`{entry}` alone is `extern`: others may be `static inline` functions")
    wrong = check_c_entry(text, entry, declaration + " {}")
    return BrokenRule(wrong.reason, wrong.line) if wrong else None


__all__ = ["INCLUDES", "broken_cpp_rule"]
