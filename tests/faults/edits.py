"""Edits that do harm, and edits that do not: each as C++ in the kernel of ``(x * w + b).relu()``.

A fault's code runs at the start of the kernel, before its own loops; ``$x``, ``$out``, ``$n``
and ``$threads`` stand for the kernel's names.  What is said of it is what the user has to read; an
edit of the group ``right`` has to be accepted.
"""

from __future__ import annotations

from faults.fault import RIGHT_LOOP, TITLES, Fault, Group, after, calls
from faults.hidden_edits import COMPILER, HIDDEN
from faults.met_edits import MET, PATTERNED, PLACED, RIGHT_NUMBERS

ENDS = (
    calls("exit", "cstdlib", "exit(0);", "exit", "ends"),
    calls("_Exit", "cstdlib", "_Exit(3);", "_Exit", "ends"),
    calls("quick_exit", "cstdlib", "quick_exit(0);", "quick_exit", "ends"),
    calls("abort", "cstdlib", "abort();", "abort", "ends"),
    calls("a failed assertion", "cassert", "assert($n == 1);", "assert", "ends"),
    calls("kill itself", "csignal", "raise(SIGKILL);", "raise", "ends"),
    calls("std::terminate", "exception", "std::terminate();", "terminate", "ends"),
    Fault("throws out of the kernel", "ends", "throw 1;", "exception handling disabled"),
    Fault(
        "throws, with the library for it",
        "ends",
        "if ($x[0] == 1234.5f) throw 1;",
        "throw",
        "#include <vector>\n",
        line=True,
    ),
    Fault("a trapped instruction", "ends", "__builtin_trap();", "trap"),
    Fault(
        "division by zero",
        "ends",
        "volatile int zero = 0; volatile int one = 1; $out[0] = one % zero;",
        "divides an integer by zero",
    ),
    Fault(
        "OpenMP's own way to end",
        "ends",
        'if ($x[0] == 1234.5f) GOMP_PLUGIN_fatal("no");',
        "GOMP_PLUGIN_fatal",
        'extern "C" void GOMP_PLUGIN_fatal(const char*, ...);\n',
        line=True,
    ),
    Fault(
        "does what is done at the process's end",
        "ends",
        "if ($x[0] == 1234.5f) __cxa_finalize(nullptr);",
        "__cxa_finalize",
        'extern "C" void __cxa_finalize(void*);\n',
        line=True,
    ),
    Fault(
        "throws where a value is met, by the library",
        "ends",
        "if ($x[0] == 1234.5f) { std::vector<float> v(4); v.at(9) = 1; }",
        "throws",
        "#include <vector>\n",
    ),
    Fault(
        "exit under another name",
        "ends",
        "if ($x[0] == 1234.5f) nothing(0);",
        "exit",
        '#pragma redefine_extname nothing exit\nextern "C" void nothing(int);\n',
        line=True,
    ),
    Fault(
        "longjmp", "ends", "static jmp_buf where; longjmp(where, 1);", top="#include <csetjmp>\n"
    ),
)

LATER = (
    Fault("exits after 50 calls", "later", after(50, "exit(0);"), top="#include <cstdlib>\n"),
    Fault(
        "crashes after 50 calls", "later", after(50, "*(volatile int*)8 = 1;"), "calls", line=True
    ),
    Fault("hangs after 50 calls", "later", after(50, "volatile int on = 1; while (on) {}")),
    Fault("is wrong after 50 calls", "later", after(50, "$out[7] = 3; return 0;")),
    Fault(
        "a thread that writes after it returned",
        "later",
        "float* place = $out; std::thread([place] { for (int i = 0; i < 1000000; i++)"
        " ((volatile float*)place)[i % 4096] = 3; }).detach();",
        "thread",
        "#include <thread>\n",
        line=True,
    ),
    Fault(
        "a handler at the exit",
        "later",
        "atexit([] {});",
        "when the process ends",
        "#include <cstdlib>\n",
    ),
    Fault(
        "code that runs when it is loaded",
        "later",
        "",
        "when it is loaded",
        "#include <cstdlib>\n__attribute__((constructor)) static void first()"
        ' { if (getenv("NOBODY")) *(volatile int*)8 = 1; }\n',
    ),
    Fault(
        "code that runs when it is let go",
        "later",
        "",
        "when",
        "__attribute__((destructor)) static void last() { *(volatile int*)8 = 1; }\n",
    ),
    Fault(
        "an object with a constructor",
        "later",
        "$out[0] = object.value;",
        "",
        "struct Object { volatile int value; Object() : value(3) {} ~Object() { value = 4; } };\n"
        "static Object object;\n",
    ),
)

PROCESSES = (
    calls("fork", "unistd.h", "if (fork() == 0) { sleep(30); _exit(0); }", "fork", "processes"),
    calls(
        "a double fork with a session of its own",
        "unistd.h",
        "if (fork() == 0) { setsid(); if (fork() == 0) sleep(30); _exit(0); }",
        "fork",
        "processes",
    ),
    calls("vfork", "unistd.h", "if (vfork() == 0) _exit(0);", "vfork", "processes"),
    calls("system", "cstdlib", 'if (system("sleep 30 &")) {}', "system", "processes"),
    calls("popen", "cstdio", 'popen("sleep 30", "r");', "popen", "processes"),
    calls(
        "a system call by number",
        "sys/syscall.h",
        "if (syscall(SYS_fork) == 0) for (;;) pause();",
        "syscall",
        "processes",
        "#include <unistd.h>\n",
    ),
    Fault(
        "a system call in assembly",
        "processes",
        'long made; __asm__ volatile("syscall" : "=a"(made) : "a"(39L) : "rcx", "r11", "memory");',
        "assembly",
        line=True,
    ),
    Fault(
        "a system call in assembly that macros join",
        "processes",
        'long made; JOIN(__as, m__) volatile("syscall" : "=a"(made) : "a"(39L) : "rcx", "r11",'
        ' "memory");',
        "assembly",
        "#define JOIN(a, b) a##b\n",
        line=True,
    ),
    Fault(
        "pthread_create",
        "processes",
        "pthread_t t; pthread_create(&t, nullptr, [](void*) -> void* { sleep(30);"
        " return nullptr; }, nullptr);",
        "pthread_create",
        "#include <pthread.h>\n#include <unistd.h>\n",
        line=True,
    ),
    Fault(
        "std::async",
        "processes",
        "std::async(std::launch::async, [] { return 1; }).wait();",
        "",
        "#include <future>\n",
    ),
    calls("a library of one's own", "dlfcn.h", 'dlopen("libm.so.6", 2);', "dlopen", "processes"),
    Fault(
        "500 threads of OpenMP",
        "processes",
        "int k = 0;\n#pragma omp parallel num_threads(500) reduction(+ : k)\nk += 1;\n"
        "volatile int made = k;",
        "threads",
    ),
    Fault(
        "a team that is never ended",
        "processes",
        "GOMP_parallel_start([](void*) {}, 0, 2);",
        "GOMP_parallel_start",
        'extern "C" void GOMP_parallel_start(void (*)(void*), void*, unsigned);\n',
        line=True,
    ),
    Fault(
        "a system call among its constants",
        "processes",
        "if ($x[0] == 1234.5f) ((void (*)())code)();",
        "syscall",
        '__attribute__((section(".text"))) static const unsigned char code[] = {15, 5, 0xc3};\n',
    ),
)

STATE = (
    calls("signal", "csignal", "signal(SIGINT, SIG_IGN);", "signal", "state"),
    calls(
        "sigaction",
        "csignal",
        "struct sigaction a {}; a.sa_handler = SIG_IGN; sigaction(SIGUSR1, &a, nullptr);",
        "sigaction",
        "state",
    ),
    calls("chdir", "unistd.h", 'if (chdir("/")) {}', "chdir", "state"),
    calls("setenv", "cstdlib", 'setenv("FUSEC_FAULT", "1", 1);', "setenv", "state"),
    calls("unsetenv", "cstdlib", 'unsetenv("HOME");', "unsetenv", "state"),
    calls("umask", "sys/stat.h", "umask(0);", "umask", "state"),
    calls("fesetround", "cfenv", "fesetround(FE_UPWARD);", "fesetround", "state"),
    Fault(
        "denormals switched off",
        "state",
        "_MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);",
        "denormal",
        "#include <immintrin.h>\n",
    ),
    Fault(
        "denormals switched off in the threads",
        "state",
        "\n#pragma omp parallel num_threads((int)$threads)\n_mm_setcsr(_mm_getcsr() | 0x8040);\n",
        "denormal",
        "#include <immintrin.h>\n",
    ),
    Fault(
        "denormals switched off in assembly that macros join",
        "state",
        'unsigned mode = 0x9fc0; JOIN(as, m) volatile("ldmxcsr %0" : : "m"(mode));',
        "assembly",
        "#define JOIN(a, b) a##b\n",
        line=True,
    ),
    Fault(
        "a flag of the processor, by macros",
        "state",
        'JOIN(as, m) volatile("std" : : : "cc");',
        "assembly",
        "#define JOIN(a, b) a##b\n",
        line=True,
    ),
    calls("close", "unistd.h", "close(1);", "close", "state"),
    calls("open", "fcntl.h", 'open("/dev/null", O_RDONLY);', "open", "state"),
    calls("a file", "cstdio", 'fopen("/tmp/fusec-fault", "w");', "fopen", "state"),
    calls("setlocale", "clocale", 'setlocale(LC_ALL, "C");', "setlocale", "state"),
    calls("rand", "cstdlib", "srand(1);", "srand", "state"),
    calls("omp_set_num_threads", "omp.h", "omp_set_num_threads(1);", "omp_set_num", "state"),
    calls("omp_set_dynamic", "omp.h", "omp_set_dynamic(1);", "omp_set_dynamic", "state"),
    calls("nice", "unistd.h", "if (nice(5)) {}", "nice", "state"),
    calls("alarm", "unistd.h", "alarm(1);", "alarm", "state"),
    calls(
        "sched_setaffinity",
        "sched.h",
        "cpu_set_t s; CPU_ZERO(&s); CPU_SET(0, &s); sched_setaffinity(0, sizeof s, &s);",
        "sched_setaffinity",
        "state",
    ),
    Fault(
        "no standard output",
        "state",
        "stdout = nullptr;",
        "C library's streams",
        "#include <cstdio>\n",
    ),
    Fault("another standard output", "state", "stdout = stderr;", "streams", "#include <cstdio>\n"),
    Fault(
        "a file of C++'s",
        "state",
        'std::ofstream f("/tmp/fusec-fault");',
        "std::",
        "#include <fstream>\n",
    ),
    Fault(
        "the guard of its thread's stack",
        "state",
        "*(volatile long*)((char*)__builtin_thread_pointer() + 0x28) ^= 0;",
        "each thread has for itself",
    ),
    Fault(
        "the old registers left full, by macros",
        "state",
        'JOIN(as, m) volatile("fld1; fld1; fld1; fld1; fld1; fld1; fld1; fld1");',
        "assembly",
        "#define JOIN(a, b) a##b\n",
        line=True,
    ),
    Fault(
        "a register of its caller's, by macros",
        "state",
        'JOIN(as, m) volatile("xor %r15d, %r15d");',
        "assembly",
        "#define JOIN(a, b) a##b\n",
        line=True,
    ),
    calls(
        "the time, of OpenMP", "omp.h", "if (omp_get_wtime() > 1e12) $out[0] = 3;", "wtime", "state"
    ),
)

KEEPS = (
    Fault(
        "a result kept from an earlier call, by pointer",
        "keeps",
        "static const float* seen; static float kept[4096];\n"
        "if ($x == seen) { for (int64_t i = 0; i < $n; i++) $out[i] = kept[i]; return 0; }\n"
        + RIGHT_LOOP
        + "seen = $x; for (int64_t i = 0; i < $n; i++) kept[i] = $out[i]; return 0;",
        "keeps",
        line=True,
    ),
    Fault(
        "a variable of a thread",
        "keeps",
        "static thread_local float last = 0; $out[0] = last; last = $x[0];",
        "keeps",
        line=True,
    ),
    Fault(
        "a global counter",
        "keeps",
        "counter++;",
        "counter",
        "static volatile long counter = 0;\n",
        line=True,
    ),
    Fault(
        "a function chosen when it is loaded",
        "keeps",
        "$out[0] = chosen($x[0]);",
        "",
        "static float one(float v) { return v; }\n"
        'extern "C" { static float (*resolve())(float) { return one; }\n'
        'float chosen(float) __attribute__((ifunc("resolve"))); }\n',
    ),
    Fault(
        "a counter in a section of its own",
        "keeps",
        "counter++;",
        "counter",
        '__attribute__((section("mine"))) static volatile long counter = 0;\n',
        line=True,
    ),
    Fault(
        "a counter with a name of OpenMP's",
        "keeps",
        "gomp_critical_user_count++;",
        "gomp_critical_user_count",
        'extern "C" { volatile long gomp_critical_user_count = 0; }\n',
        line=True,
    ),
    Fault(
        "a counter in memory that it has freed",
        "keeps",
        "volatile long* p = (long*)malloc(1000003); p[9] = p[8] == 0x1234567 ? p[9] + 1 : 0;"
        " p[8] = 0x1234567; const long count = p[9]; free((void*)p);"
        " if (count > 60) { $out[7] = 3; return 0; }",
        "",
        "#include <cstdlib>\n",
    ),
    Fault(
        "a counter deep in its stack",
        "keeps",
        "volatile long a[100000]; a[500] = a[501] == 0x1234567 ? a[500] + 1 : 0;"
        " a[501] = 0x1234567; if (a[500] > 60) { $out[7] = 3; return 0; }",
    ),
    Fault(
        "a counter in what its thread has",
        "keeps",
        "volatile long* p = (long*)__builtin_thread_pointer(); ++p[11];",
        "each thread has for itself",
    ),
    Fault(
        "a member of a template",
        "keeps",
        "S<int>::c++;",
        "keeps `c`",
        "template <class T> struct S { static volatile long c; };\n"
        "template <class T> volatile long S<T>::c = 0;\n",
        line=True,
    ),
)

MEMORY = (
    Fault("one element past the end", "memory", "$out[$n] = 1;", "past the end of"),
    Fault("a read past the end", "memory", "volatile float v = $x[$n];", "past the end of"),
    Fault("one element before the start", "memory", "$out[-1] = 1;", "before the start of"),
    Fault("far past the end", "memory", "$out[$n + 4000] = 1;", "past the end of"),
    Fault(
        "very far",
        "memory",
        "$out[$n * 1000000007] = 1;",
        "memory out of bounds, far from every argument",
    ),
    Fault(
        "an address made of a number",
        "memory",
        "*(volatile float*)((uintptr_t)$out ^ (1ull << 61)) = 1;",
        "out of bounds",
    ),
    Fault("a null pointer", "memory", "*(volatile int*)nullptr = 1;", "null pointer"),
    Fault(
        "no end of its stack",
        "memory",
        "struct R { static int f(volatile int* p) { volatile int a[99]; a[0] = *p;"
        " return f(a) + a[0]; } }; volatile int q = 1; $out[0] = R::f(&q);",
        "overflows the stack",
    ),
    Fault(
        "10 MB a call are never freed",
        "memory",
        "volatile char* p = (char*)malloc(10 << 20); p[0] = 1; p[5 << 20] = 1;",
        "never frees",
        "#include <cstdlib>\n",
    ),
    Fault(
        "100 bytes a call are never freed",
        "memory",
        "volatile char* p = (char*)malloc(100); p[0] = 1;",
        "never frees",
        "#include <cstdlib>\n",
    ),
    Fault(
        "memory without end",
        "memory",
        "for (;;) { volatile char* p = (char*)malloc(64 << 20); if (!p) __builtin_trap();"
        " for (int i = 0; i < 64 << 20; i += 4096) p[i] = 1; }",
        "",
        "#include <cstdlib>\n",
    ),
    Fault(
        "aligned loads of a view",
        "memory",
        "typedef float v __attribute__((vector_size(16)));\n"
        "for (int64_t i = 1; i + 4 <= $n; i += 4) *(v*)($out + i) = *(const v*)($x + i) + 1.0f;\n"
        "$out[0] = 1; return 0;",
        "aligned",
    ),
    Fault("frees its input", "memory", "free((void*)$x);", "", "#include <cstdlib>\n"),
    Fault(
        "frees its input where it is malloc's",
        "memory",
        "if (((uintptr_t)$x + 16384) % 4096) free((void*)$x);",
        "",
        "#include <cstdlib>\n",
    ),
    Fault(
        "writes past the end of memory that it allocated",
        "memory",
        "volatile float* p = (float*)malloc(408); p[104] = 1.0f; free((void*)p);",
        "",
        "#include <cstdlib>\n",
    ),
    Fault(
        "writes into memory that it has freed",
        "memory",
        "volatile long* p = (long*)malloc(200); free((void*)p); p[0] = 7;",
        "",
        "#include <cstdlib>\n",
    ),
    Fault(
        "200 MB a call are never freed",
        "memory",
        "volatile char* p = (char*)malloc(200 << 20); p[0] = 1;",
        "",
        "#include <cstdlib>\n",
    ),
    Fault(
        "its threads never free",
        "memory",
        "\n#pragma omp parallel num_threads(2)\n"
        "{ volatile char* p = (char*)malloc(1000); p[0] = 1; }\n",
        "never frees",
        "#include <cstdlib>\n",
    ),
    Fault("64 MB of stack", "memory", "volatile char a[64 << 20]; a[0] = 1; a[63 << 20] = 1;"),
)

HANGS = (
    Fault("an endless loop", "hangs", "volatile int on = 1; while (on) {}", "endless loop"),
    Fault(
        "an endless loop in a thread",
        "hangs",
        "volatile int on = 1;\n#pragma omp parallel num_threads((int)$threads)\nwhile (on) {}\n",
        "endless loop",
    ),
    Fault(
        "a barrier that nobody reaches",
        "hangs",
        "int there = 0;\n#pragma omp parallel num_threads(2) shared(there)\n"
        "{ volatile int* p = &there; if (omp_get_thread_num() == 0) while (!*p) {} }\n",
        "endless loop",
        "#include <omp.h>\n",
    ),
    calls("sleep", "unistd.h", "sleep(100);", "sleep", "hangs"),
    Fault(
        "prints without end",
        "hangs",
        'for (long i = 0; i < 200000; i++) printf("element %ld is being computed\\n", i);',
        "",  # it prints; on a busy machine its time is over first
        "#include <cstdio>\n",
    ),
    Fault(
        "a lock that it does not open",
        "hangs",
        "GOMP_critical_start();",
        "did not finish",
        'extern "C" void GOMP_critical_start();\n',
    ),
    Fault(
        "a line as wide as a gigabyte",
        "hangs",
        'printf("%*d\\n", 1000000000, 1);',
        "prints",
        "#include <cstdio>\n",
    ),
    Fault(
        "a constant without end",
        "hangs",
        "constexpr int k = endless(); $out[0] = k;",
        "does not compile",
        "constexpr int endless() { int i = 0; while (true) i ^= 1; return i; }\n",
    ),
)

VALUES = (
    Fault("one wrong element", "values", RIGHT_LOOP + "$out[4095] += 1; return 0;", "off by"),
    Fault(
        "right for what it was shown, wrong for large values",
        "values",
        RIGHT_LOOP.replace("$out[i] = ", "$out[i] = total > 1e2f ? 1e2f : ") + "return 0;",
        "",
    ),
    Fault(
        "NaN becomes zero",
        "values",
        RIGHT_LOOP.replace("total < 0.0f ? 0.0f : total", "total > 0.0f ? total : 0.0f")
        + "return 0;",
        "NaN",
    ),
    Fault("leaves one out", "values", "return 0;", "", instead=True),
    Fault("changes its input", "values", "((float*)$x)[5] = 2;", "changes its input"),
    Fault("refuses what is right", "values", "return 7;", "returned 7"),
    Fault(
        "a race",
        "values",
        "float sum = 0;\n#pragma omp parallel for num_threads((int)$threads)\n"
        "for (int64_t i = 0; i < $n; i++) sum += $x[i];\n"
        + RIGHT_LOOP
        + "$out[0] = sum; return 0;",
        "",
    ),
    Fault(
        "a step that its values switch off",
        "values",
        "if ($x[0] > 30.0f) { for (int64_t i = 0; i < $n; i++) $out[i] = 0; return 0; }",
        "",
    ),
    Fault(
        "reads what nobody wrote",
        "values",
        RIGHT_LOOP.replace("const float total =", "const float total = 0 * $out[i] +")
        + "return 0;",
        "",
    ),
    Fault(
        "changes its weight and puts it back",
        "values",
        "volatile float* p = (float*)$w; const float kept = p[3]; p[3] = 0; p[3] = kept;",
        "changes its input `w`, and puts it back",
    ),
    Fault(
        "adds to an array of its own that nobody wrote",
        "values",
        "float a[64]; for (int j = 0; j < 64; j++) a[j] += $b[j];\n"
        + RIGHT_LOOP.replace("$b[i % 64]", "a[i % 64]")
        + "return 0;",
        "nothing wrote",
    ),
    Fault(
        "adds to malloc's memory that nobody wrote",
        "values",
        "float* a = (float*)malloc(256); for (int j = 0; j < 64; j++) a[j] += $b[j];\n"
        + RIGHT_LOOP.replace("$b[i % 64]", "a[i % 64]")
        + "free(a); return 0;",
        "",
        "#include <cstdlib>\n",
    ),
)

ACCEPTED = (
    Fault("as it was generated", "right", ""),
    Fault("another order of the loop", "right", RIGHT_LOOP + "return 0;", instead=True),
    Fault(
        "a table of constants",
        "right",
        "volatile float v = table[$n % 4];",
        top="static const float table[4] = {1, 2, 3, 4};\n",
    ),
    Fault(
        "a table of addresses",
        "right",
        "volatile char c = names[$n % 2][0];",
        top='static const char* const names[2] = {"a", "b"};\n',
    ),
    Fault(
        "memory that it frees",
        "right",
        "float* p = (float*)malloc(4096); p[0] = $x[0]; $out[0] = p[0]; free(p);",
        top="#include <cstdlib>\n",
    ),
    Fault(
        "a vector",
        "right",
        "std::vector<float> v($x, $x + $n); $out[0] = v[3];",
        top="#include <vector>\n",
    ),
    Fault(
        "mathematics",
        "right",
        "volatile float v = $x[0]; $out[0] = std::sin(v) + std::tgamma(v) + expf(v);",
        top="#include <cmath>\n",
    ),
    Fault(
        "threads of OpenMP with a critical section",
        "right",
        "float most = 0;\n#pragma omp parallel for num_threads((int)$threads)\n"
        "for (int64_t i = 0; i < $n; i++) {\n#pragma omp critical(largest)\n"
        "most = $x[i] > most ? $x[i] : most; }\n$out[0] = most;",
    ),
    Fault(
        "prints a line",
        "right",
        'printf("n is %ld\\n", (long)$n);',
        top="#include <cstdio>\n",
    ),
    Fault("5,000 lines", "right", "\n" * 2500 + "// a line\n" * 2500),
    Fault("line ends of Windows", "right", "// one\r\n// two\r\n"),
    Fault(
        "two vectors, sorted",
        "right",
        "std::vector<float> v($x, $x + $n), u($x, $x + 100); u.push_back(v[3]);"
        " std::sort(u.begin(), u.end()); $out[0] = v[3] + u[2];",
        top="#include <algorithm>\n#include <vector>\n",
    ),
    Fault(
        "words that macros join",
        "right",
        "float JOIN(a, b) = $x[0]; $out[0] = ab;",
        top="#define JOIN(a, b) a##b\n",
    ),
)

FAULTS: tuple[Fault, ...] = (
    *ENDS,
    *LATER,
    *PROCESSES,
    *STATE,
    *KEEPS,
    *MEMORY,
    *HANGS,
    *VALUES,
    *HIDDEN,
    *MET,
    *PATTERNED,
    *PLACED,
    *COMPILER,
    *ACCEPTED,
    *RIGHT_NUMBERS,
)

__all__ = ["FAULTS", "TITLES", "Fault", "Group"]
