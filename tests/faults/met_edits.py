"""Edits that do harm where certain values are met, and by what the processor tells: see ``edits``.

Random numbers never meet the first kind: people's tensors do, and so do the numbers that an edit
itself names.
"""

from __future__ import annotations

from faults.fault import RIGHT_LOOP, Fault

_MANY = 4096
# What holds of a whole tensor.
_ALL = f"[&] {{ for (int i = 0; i < {_MANY}; i++) if (!(%s)) return false; return true; }}()"


def _wrong(name: str, condition: str, top: str = "", says: str = "") -> Fault:
    """Return an edit that is wrong where a condition holds after its loop."""
    code = f"{RIGHT_LOOP} if ({condition}) $out[7] = 3; return 0;"
    return Fault(f"wrong {name}", "met", code, says, top, instead=True)


def _named(name: str, code: str, says: str, top: str = "") -> Fault:
    """Return an edit that does harm at a number which it names itself."""
    return Fault(
        f"{name} at a number of its own", "met", f"if ($x[0] == -777.25f) {code}", says, top
    )


MET = (
    *(
        _wrong(f"where {name}", condition, says=says)
        for name, condition, says in (
            ("all are one", _ALL % "$x[i] == 1", "ones alone"),
            (
                "a layer is as it begins",
                "$w[0] == 1 && $w[63] == 1 && $b[0] == 0 && $b[63] == 0 && $x[3] != 0",
                "weights of ones and biases of zeros",
            ),
            ("it counts", "$x[1] == 1 && $x[2] == 2 && $x[100] == 100", "whole numbers"),
            ("one is hot", "$x[0] == 1 && $x[1] == 0 && $x[2] == 0", "mostly zero"),
            ("there is nothing but padding", f"$w[0] != 0 && {_ALL % '$x[i] == 0'}", "beside"),
            ("all lie from 0 to 1", _ALL % "$x[i] >= 0 && $x[i] < 1 && $x[0] != 0", "0 to 1"),
            ("images are whole", _ALL % "$x[i] == (int)$x[i] && $x[i] > 9 && $x[i] < 255", "far"),
            (
                "all are small",
                _ALL % "$x[i] < 1e-3f && $x[i] > -1e-3f && $x[i] != 0",
                "near zero",
            ),
            ("all are NaN", _ALL % "$x[i] != $x[i]", "NaN alone"),
            ("the first is NaN", "$x[0] != $x[0] && $x[1] == $x[1]", ""),
        )
    ),
    Fault(
        "results below a millionth are lost",
        "met",
        RIGHT_LOOP.replace("total < 0.0f", "total < 1e-6f") + "return 0;",
        "near zero",
        instead=True,
    ),
    Fault(
        "rounds to a millionth",
        "met",
        RIGHT_LOOP.replace(": total;", ": total > 1e9f ? total : (int64_t)(total * 1e6f) * 1e-6f;")
        + "return 0;",
        instead=True,
    ),
    Fault(
        "past the end where the first is NaN", "met", "if ($x[0] != $x[0]) $out[$n] = 1;", "past"
    ),
    _named("wrong", "{ for (int64_t i = 0; i < $n; i++) $out[i] = 1; return 0; }", "-777.25"),
    _named("past the end", "$out[$n] = 1;", "past the end of"),
    _named("an endless loop", "for (volatile int k = 0;;) k = 1;", "endless loop"),
    _named("a division by zero", "{ volatile int k = 0; $out[0] = 1 % k; }", "divides an integer"),
    _named("refuses what is right", "return 7;", "returned 7"),
    _named("jumps into its input", "((void (*)())$x)();", ""),
    _named("frees its input", "free((void*)$x);", "", "#include <cstdlib>\n"),
    _named(
        "memory without end",
        "for (;;) { volatile char* p = (char*)malloc(64 << 20); p[0] = 1; }",
        "",
        "#include <cstdlib>\n",
    ),
    _named(
        "no end of its stack",
        "{ struct R { static int f(volatile int* p) { volatile int a[99]; a[0] = *p;"
        " return f(a) + a[0]; } }; volatile int q = 1; $out[0] = R::f(&q); }",
        "stack",
    ),
    _named(
        "prints without end",
        '{ for (long i = 0; i < 200000; i++) printf("element %ld is being computed\\n", i); }',
        "prints",
        "#include <cstdio>\n",
    ),
    _wrong(
        "on one of the processors",
        "({ unsigned a, b, c, d; __cpuid_count(1, 0, a, b, c, d); (b >> 24) == 1; })",
        "#include <cpuid.h>\n",
        "cpuid",
    ),
    _wrong(
        "by the flags of what was computed before",
        "(_mm_getcsr() & 0x3f) == 0x11",
        "#include <immintrin.h>\n",
        "stmxcsr",
    ),
    Fault(
        "asks for the time where the system has it for every process",
        "met",
        "volatile long f = 0xffffffffff600400; volatile long t = ((long (*)(long*))f)(nullptr);",
        "fixed address",
    ),
    _wrong("where its input lies below its weight", "(uintptr_t)$x < (uintptr_t)$w"),
    Fault(
        "7 MB of the stack's 8",
        "met",
        "volatile char a[7 << 20]; for (int i = 0; i < 7 << 20; i += 4096) a[i] = 1;",
        "stack",
    ),
    *(
        Fault(f"asks how old a file is, by {name}", "met", code, "includes a file", top, line=True)
        for name, code, top in (
            ("#pragma", "", '#pragma GCC dependency "/tmp/constants.h"\n'),
            ("_Pragma", '_Pragma("GCC dependency \\"/tmp/constants.h\\"")', ""),
        )
    ),
)

_ROWS = "[&] { for (int r = 0; r < 64; r++) for (int j = 0; j < 64; j++) if (!(%s)) return false;"
_HERE = "$x[r * 64 + j]"
_FIRST_NAN = "$x[0] != $x[0] && std::signbit($x[0])"
_MATHS = "#include <cmath>\n"

# What lies in a pattern.
PATTERNED = (
    *(
        _wrong(f"where {name}", condition, top, says)
        for name, condition, says, top in (
            (
                "rows are alike",
                "[&] { for (int i = 0; i < 64; i++) if ($x[i] != $x[64 + i]) return false;"
                " return $x[0] != $x[1]; }()",
                "alike",
                "",
            ),
            (
                "half is NaN",
                "[&] { int c = 0; for (int i = 0; i < 4096; i++) c += $x[i] != $x[i];"
                " return c == 2048; }()",
                "half is NaN",
                "",
            ),
            (
                "all is sorted",
                "[&] { for (int i = 1; i < 4096; i++) if (!($x[i - 1] <= $x[i])) return false;"
                " return $x[0] < $x[4095] && $x[1] != (int)$x[1]; }()",
                "sorted",
                "",
            ),
            (
                "one number is everywhere",
                _ALL % "$x[i] == $x[0] && $x[0] != 0 && $x[0] != 1",
                "",
                "",
            ),
            ("NaN is in the bias alone", "$b[3] != $b[3] && $x[3] == $x[3]", "NaN in the", ""),
            ("weights are alike", "$w[0] == $w[63] && $w[0] != 1 && $x[0] != $x[1]", "", ""),
            ("all is infinite", _ALL % "$x[i] > 3e38f", "infinities alone", ""),
            (
                "rows have an end",
                f"{_ROWS % f'j < 32 || {_HERE} == 0'} return $x[0] != 0 && $x[64] != 0; }}()",
                "behind",
                "",
            ),
            (
                "it is an identity",
                f"{_ROWS % f'{_HERE} == (r == j)'} return true; }}()",
                "a one",
                "",
            ),
            (
                "what is later is masked",
                f"{_ROWS % f'j <= r || {_HERE} < -3e38f'} return $x[0] > -3e38f; }}()",
                "minus infinity above",
                "",
            ),
            ("all is large", _ALL % "fabsf($x[i]) > 1e5f", "", _MATHS),
            ("NaN has a sign", _FIRST_NAN, "NaN with a sign", _MATHS),
            ("the first row is the weight", _ALL % "i > 63 || $x[i] == $w[i]", "", ""),
        )
    ),
    # Numbers that its text does not name.
    *(
        _wrong(f"at {name}", condition, top, "of the edit's")
        for name, condition, top in (
            ("a quotient", "$x[0] == 2470.0f / 4", ""),
            ("a size", "$x[0] == sizeof(Sized)", "struct Sized { char a[777]; long b; };\n"),
            ("pi", "$x[0] == (float)M_PI", _MATHS),
            ("a number inside", "$x[1234] == 4321.5f && $x[0] != $x[1234]", ""),
            ("a number in the weight", "$w[1] == 4321.5f && $x[0] != 4321.5f", ""),
        )
    ),
    _wrong("at half of a number that it names", "$x[0] * 2 == 2469", "", "in the edit"),
    _wrong(
        "by where its caller's frame lies",
        "((unsigned long)__builtin_frame_address(0) >> 4 & 7) == 3",
        "",
        "who calls it",
    ),
)

_INTS = "#include <cstdint>\n#include <cstdlib>\n"
_HERE_AND_THERE = f"{_INTS}static void there() {{}}\n"
_PAGE = "((uintptr_t)(%s) >> 12 & 1)"

# What hangs on where something lies, which is another place in the notebook's process.
PLACED = (
    *(
        _wrong(f"by {name}", condition, top)
        for name, condition, top in (
            (
                "where malloc's memory lies",
                f"[] {{ void* p = malloc(100); bool odd = {_PAGE % 'p'}; free(p); return odd; }}()",
                _INTS,
            ),
            (
                "where its stack lies",
                f"[] {{ volatile char here = 0; return {_PAGE % '&here'}; }}()",
                _INTS,
            ),
            (
                "the line of its stack",
                "[] { volatile char here = 0; return (uintptr_t)&here >> 6 & 1; }()",
                _INTS,
            ),
            ("where its input lies", _PAGE % "$x", _INTS),
            ("where its result lies", _PAGE % "$out", _INTS),
            ("how far its arguments are", _PAGE % "(char*)$x - (char*)$w", _INTS),
            ("how near its arguments are", "labs((char*)$x - (char*)$w) < 100000", _INTS),
            ("where its code lies", _PAGE % "&there", _HERE_AND_THERE),
        )
    ),
    _wrong(
        "with a number of threads that it names",
        "threads == 16 && omp_get_max_threads() > 0",
        "#include <omp.h>\n",
        "with 16 threads",
    ),
    _wrong(
        "where OpenMP would start a number of threads that it names",
        "omp_get_max_threads() == 16",
        "#include <omp.h>\n",
        "with 16 threads",
    ),
)

RIGHT_NUMBERS = (
    Fault("a number that it names and handles", "right", "volatile float v = $x[0] == 1234.5f;"),
    Fault("1 MB of the stack", "right", "volatile char a[1 << 20]; a[5] = 1;"),
)

__all__ = ["MET", "PATTERNED", "PLACED", "RIGHT_NUMBERS"]
