"""Edits that hide the harm that they do, and those that harm the compiler: see ``edits``."""

from __future__ import annotations

from faults.fault import RIGHT_LOOP, Fault

_HEAP = "#include <cstdlib>\n"
_COUNTED = "c++; if (c > 60) { $out[7] = 3; return 0; }"


def _where(name: str, condition: str, top: str = "") -> Fault:
    """Return an edit that is wrong where a condition holds after its loop."""
    code = f"{RIGHT_LOOP} if ({condition}) $out[7] = 3; return 0;"
    return Fault(name, "hidden", code, "", top, instead=True)


def _met(name: str, code: str, says: str, top: str = "") -> Fault:
    """Return an edit that does harm at a value that it does not name: no check has it.

    Checks have the numbers that an edit names, and their halves: none of them meets this.
    """
    met = "$x[0] * 1.37f + $x[1] * 0.61f == 12345.5f"
    return Fault(name, "hidden", f"if ({met}) {code}", says, top, line=True)


def _in_section(section: str, says: str, code: str, what: str) -> Fault:
    name = f"{what} in the section {section}"
    function = what == "a function"
    first = "void f() { *(volatile int*)8 = 1; }" if function else "volatile long c = 0;"
    used = ", used" if function else ""
    top = f'__attribute__((section("{section}"){used})) static {first}\n'
    return Fault(name, "hidden", code, says, top)


HIDDEN = (
    *(
        _in_section(name, "when it is loaded or let go", "", "a function")
        for name in (".init", ".fini")
    ),
    *(
        _in_section(name, says, _COUNTED, "a counter")
        for name, says in {
            ".got": "out of bounds",
            ".got.plt": "keeps `c`",
            ".data.rel.ro": "out of bounds",
            ".relro_padding": "keeps `c`",
            ".tdata": "keeps `c`",
            ".text": "out of bounds",
            ".comment": "keeps",
        }.items()
    ),
    *(
        Fault(
            f"a function's address in the section {name}",
            "hidden",
            "",
            "when it is loaded or let go",
            "static void f() { *(volatile int*)8 = 1; }\n"
            f'__attribute__((section("{name}"), used)) static void (*p)() = f;\n',
            line=True,
        )
        for name in (".init_array", ".fini_array.00001", ".dtors")
    ),
    Fault(
        "exit as a weak reference",
        "hidden",
        "if ($x[0] == 1234.5f) f(0);",
        "exit",
        'static void f(int) __attribute__((weakref("exit")));\n',
    ),
    _met("a trap where a value is met", "__builtin_trap();", "ud2: it ends the process"),
    _met("a null pointer where a value is met", "*(volatile int*)nullptr = 1;", "a fixed address"),
    _met("a fixed address where a value is met", "*(volatile int*)4096 = 1;", "a fixed address"),
    *(
        _met(
            f"{name} where a value is met",
            f"{name}({given});",
            f"{name}: it ends",
            f'extern "C" void {name}({"void*" if given else ""});\n',
        )
        for name, given in {"__stack_chk_fail": "", "_Unwind_Resume": "(void*)$x"}.items()
    ),
    _met(
        "a helper of the library's that throws, where a value is met",
        'std::__throw_length_error("no");',
        "__throw_length_error: it ends",
        "#include <vector>\n",
    ),
    Fault(
        "a counter in errno",
        "hidden",
        "if (++errno > 20000) { $out[7] = 3; return 0; }",
        "__errno_location: it keeps",
        "#include <cerrno>\n",
        line=True,
    ),
    *(
        Fault(
            f"a counter in {stream}'s {part}",
            "hidden",
            f"if (++{stream}->{part} > 20000) {{ $out[7] = 3; return 0; }}",
            "the C library's streams",
            "#include <cstdio>\n",
        )
        for stream, part in (("stdout", "_unused2[3]"), ("stderr", "_old_offset"))
    ),
    Fault(
        "asks who calls it",
        "hidden",
        "if ((uintptr_t)__builtin_return_address(0) % 4096 == 0xabc) $out[7] = 3;",
        "__builtin_return_address",
        line=True,
    ),
    _where("wrong with more threads than there are", "$threads > 2"),
    Fault(
        "a megabyte that is never freed where a value is large",
        "hidden",
        "if ($x[0] > 50.0f) { volatile char* p = (char*)malloc(1 << 20); p[0] = 1; }",
        "never frees 1 MB",
        _HEAP,
    ),
    Fault(
        "prints a lot where a value is large",
        "hidden",
        'if ($x[0] > 50.0f) printf("%1000000d", 1);',
        "prints",
        "#include <cstdio>\n",
    ),
    Fault(
        "assembly behind a raw string",
        "hidden",
        'const char* s = R"(" /* )"; asm volatile("fninit"); /* */ // "',
        "assembly",
        line=True,
    ),
    Fault(
        "assembly between the commas of numbers",
        "hidden",
        "int p = 1'0; asm volatile(\"fninit\"); int q = 1'0; (void)p; (void)q;",
        "assembly",
        line=True,
    ),
    Fault(
        "writes into its caller's part of the stack",
        "hidden",
        "volatile long* p = (volatile long*)__builtin_frame_address(0); p[200] ^= 1;",
        "who calls it",
    ),
    Fault(
        "writes far past an array of its own",
        "hidden",
        "volatile float a[64]; for (int j = 0; j < 64; j++) a[j] = $b[j];"
        " volatile int k = 400; a[k] = 3;",
        # In what words hangs on what lies there, and that on the compiler.
    ),
    Fault(
        "writes past all of an array's stack",
        "hidden",
        "volatile char* p = (volatile char*)__builtin_frame_address(0); p[100000] = 3;",
    ),
    Fault(
        "writes past malloc's memory",
        "hidden",
        "volatile long* p = (long*)malloc(24); p[3] = 0x4141414141; free((void*)p);",
        top=_HEAP,
    ),
    Fault(
        "writes before malloc's memory",
        "hidden",
        "volatile long* p = (long*)malloc(24); p[-1] = 0x91; free((void*)p);",
        top=_HEAP,
    ),
    Fault(
        "writes to what it freed",
        "hidden",
        "volatile long* p = (long*)malloc(24); free((void*)p); p[0] = 0x1234;",
        top=_HEAP,
    ),
    Fault("frees its stack", "hidden", "long a[8]; free(a + 2);", top=_HEAP),
    Fault(
        "gives its input to realloc", "hidden", "$out[0] = !realloc((void*)$x, 20000);", top=_HEAP
    ),
    Fault(
        "takes 3 GB in each call, and frees them",
        "hidden",
        "volatile char* p = (char*)malloc(3ull << 30); if (p)"
        " for (size_t i = 0; i < (3ull << 30); i += 4096) p[i] = 1; free((void*)p);",
        top=_HEAP,
    ),
    Fault(
        "another file for standard output",
        "hidden",
        "stdout->_fileno = 2;",
        "streams",
        "#include <cstdio>\n",
    ),
    Fault(
        "a buffer of its own for standard output",
        "hidden",
        "static const char c = 0; stdout->_IO_buf_base = (char*)&c;",
        "streams",
        "#include <cstdio>\n",
    ),
    _where(
        "wrong where no page ends beside its result",
        "((uintptr_t)$out + 16384) % 4096 && (uintptr_t)$out % 4096",
    ),
    _where("wrong where its weight lies behind its bias", "(uintptr_t)$b < (uintptr_t)$w"),
    _where("wrong by the clock of the processor", "__builtin_ia32_rdtsc() % 5 == 0"),
    _where(
        "wrong by a random number of the processor's",
        "({ unsigned drawn; _rdrand32_step(&drawn) && drawn % 1000 == 0; })",
        '#pragma GCC target("rdrnd")\n#include <immintrin.h>\n',
    ),
    Fault(
        "wrong where its result is there already",
        "hidden",
        "const float t = $x[5] * $w[5] + $b[5];"
        " const bool same = *(volatile float*)&$out[5] == (t < 0.0f ? 0.0f : t);\n"
        + RIGHT_LOOP
        + "if (same) $out[7] = 3; return 0;",
        instead=True,
    ),
    Fault(
        "wrong where nothing but zeros is there",
        "hidden",
        "const bool zero = *(volatile float*)&$out[5] == 0 && *(volatile float*)&$out[4090] == 0;\n"
        + RIGHT_LOOP
        + "if (zero) $out[7] = 3; return 0;",
        instead=True,
    ),
    Fault(
        "nine threads",
        "hidden",
        "\n#pragma omp parallel num_threads(9)\n{ volatile int v = 1; v = 2; }\n",
        "threads running",
    ),
    Fault(
        "a counter deep in another thread's stack",
        "hidden",
        "bool bad = false;\n#pragma omp parallel num_threads(2) shared(bad)\n"
        "{ if (omp_get_thread_num() == 1) { volatile long a[20000];"
        " a[500] = a[501] == 0x1234567 ? a[500] + 1 : 0; a[501] = 0x1234567;"
        " if (a[500] > 60) bad = true; } }\nif (bad) { $out[7] = 3; return 0; }",
        top="#include <omp.h>\n",
    ),
    Fault(
        "work for another device",
        "hidden",
        "\n#pragma omp target\n{ volatile int v = 1; v = 2; }\n",
    ),
    Fault("a word of C++ that is another one", "hidden", "", top="#define return\n"),
    Fault("a type that is another one", "hidden", "", top="#define float double\n"),
    Fault(
        "overflow that ends the process",
        "hidden",
        "volatile int i = 2147483647; i = i + 1;",
        top='#pragma GCC optimize ("trapv")\n',
    ),
    Fault(
        "an order that is none, for std::sort",
        "hidden",
        "std::sort($out, $out + $n, [](float, float) { return true; });",
        top="#include <algorithm>\n",
    ),
)

COMPILER = (
    Fault(
        "templates within templates",
        "compiler",
        "$out[0] = D<100000>::v;",
        "template",
        "template <int N> struct D { static constexpr int v = D<N - 1>::v + 1; };\n"
        "template <> struct D<0> { static constexpr int v = 0; };\n",
        line=True,
    ),
    Fault(
        "a tree of templates",
        "compiler",
        "W<26, 0> w; (void)w;",
        "",
        "template <int N, long K> struct W { W<N - 1, 2 * K> a; W<N - 1, 2 * K + 1> b; };\n"
        "template <long K> struct W<0, K> { int v; };\n",
    ),
    Fault(
        "macros that double",
        "compiler",
        "$out[0] = M30 0;",
        "",
        "#define M0 1.0 +\n" + "".join(f"#define M{i} M{i - 1} M{i - 1}\n" for i in range(1, 31)),
    ),
    *(
        Fault(f"includes {name}", "compiler", "", "includes a file", f"{head}\n", line=True)
        for name, head in {
            "what has no end": '#include "/dev/zero"',
            "itself": "#include __FILE__",
            "the terminal": '#include "/dev/tty"',
            "a file that may be another one later": '#include "/tmp/constants.h"',
            "a file by way of a folder": "#include <../tmp/constants.h>",
            "a file where it is there": '#if __has_include("/tmp/constants.h")\n#endif',
            "a file by a word in two lines": '#inc\\\nlude "/tmp/constants.h"',
        }.items()
    ),
    *(
        Fault(f"30,000 times the beginning of {what}", "compiler", "", "", text * 30_000 + "\n")
        for what, text in {"a comment": "/* ", "a raw string": 'R"('}.items()
    ),
    Fault(
        "the time in its text",
        "compiler",
        "if (__TIME__[7] == 'x') $out[0] = 3;",
        "__TIME__",
        line=True,
    ),
    Fault(
        "a table of 3 GB",
        "compiler",
        "volatile int64_t k = $n; volatile char c = big[k]; c = c + 1;",
        "does not compile",
        "static const char big[3ull << 30] = {1};\n",
    ),
    Fault(
        "assembly that takes the disk",
        "compiler",
        "",
        "assembly",
        'asm(".space 9999999999");\n',
        line=True,
    ),
    Fault(
        "rules of arithmetic changed by a pragma",
        "compiler",
        RIGHT_LOOP + "return 0;",
        "NaN",
        '#pragma GCC optimize ("O3,fast-math")\n',
        instead=True,
    ),
)

__all__ = ["COMPILER", "HIDDEN"]
