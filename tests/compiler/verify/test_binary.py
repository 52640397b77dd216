"""What a built kernel would do to its process, read from the file before anything loads it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faults.edits import FAULTS
from fusec.target_api.registry import find_target
from fusec.toolchain.build import compile_text
from fusec.toolchain.children import Children
from fusec.toolchain.compiler import find_compiler, shared_library
from fusec.verify.static import allowed, binary, cpp_text
from support import cpp_library
from support import handwritten_kernels as vk
from support.paths import TESTS

GOLDEN = [
    *sorted((TESTS / "golden" / "cpp").glob("*.cpp")),
    *sorted((TESTS / "golden" / "plain").glob("*.cpp")),
]
REFUSED = {
    "it ends the process": ("exit(3);", "calls exit: it ends the process"),
    "it starts a process": ("if (fork() == 0) for (;;) {}", "calls fork: it starts a process"),
    "a thread": (
        "pthread_create(0, 0, 0, 0);",
        "calls pthread_create: it starts or steers threads",
    ),
    "a variable": ("static volatile int seen; seen++;", "keeps `seen` from call to call"),
    "one of a thread": (
        "static thread_local int seen; out[0] = seen++;",
        "keeps `seen` of each thread from call to call",
    ),
    "an object": (
        "struct S { volatile int v; S() { v = 2; } ~S() { v = 0; } }; static S object;"
        " out[0] = object.v;",
        "keeps `object` from call to call",
    ),
}


def facts(text):
    return binary.library_facts(str(vk.build_library(text)))


@pytest.mark.sample(3)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_generated_kernels_ask_for_nothing(path):
    text = path.read_text()
    library = find_target(path.parent.name).compile(text)
    assert binary.problem(binary.library_facts(str(library)), text) is None
    assert cpp_text.source_problem(text, text) is None


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_before_it_is_loaded(name):
    code, reason = REFUSED[name]
    text = "#include <pthread.h>\n" + vk.cpp(code + "\n" + vk.RIGHT)
    found = binary.problem(facts(text), text)
    assert found is not None
    if name == "an object" and cpp_library.is_put_in():  # it is constructed with its help
        assert found.reason.startswith(cpp_library.PUT_IN)
    else:
        assert found.reason.startswith(reason)
        assert text.splitlines()[found.line - 1].startswith(code[:8])
    verdict = vk.check(text, timed=False)
    assert (verdict.stage, verdict.ok, verdict.line) == ("unsafe", False, found.line)
    assert verdict.reason == found.reason


def test_constructors():
    text = vk.cpp().replace("constexpr", "__attribute__((constructor)) void first() {}\nconstexpr")
    found = binary.problem(facts(text), text)
    assert found is not None
    assert "runs `first` when it is loaded" in found.reason
    assert found.line == 7


@pytest.mark.parametrize(
    ("top", "code", "name"),
    [
        ("namespace { thread_local volatile int seen; }", "out[0] = seen++;", "`seen` of each"),
        ("namespace { volatile int seen; }", "seen++;", "`seen` from"),
        ("static void f(int) { static volatile int count; count++; }", "f(2);", "`count` from"),
    ],
    ids=["of a thread", "of nobody", "of a function"],
)
def test_the_name_of_what_is_kept(top, code, name):
    text = top + "\n" + vk.cpp(code + "\n" + vk.RIGHT)
    assert binary.problem(facts(text), text).reason.startswith(f"keeps {name}")


@pytest.mark.linux("a linker's flags")
def test_compilers_that_put_the_cpp_library_into_what_they_build(tmp_path):
    """Some are set up so; where the shared library has a name, it is linked all the same."""
    compiler = find_compiler()
    if compiler.library != "libstdc++" or compiler.family == "zig":
        pytest.skip("the compiler found has another C++ library")
    wrapper = tmp_path / "c++"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler.path} "$@" -static-libstdc++\n')
    wrapper.chmod(0o755)
    text = "#include <vector>\n" + vk.cpp("std::vector<float> v(x, x + n);\n" + vk.RIGHT)
    found = []
    for cxx in (shared_library(str(wrapper), compiler.facts), ""):
        chosen = replace(compiler, path=str(wrapper), cxx=cxx)
        library = tmp_path / "kernel.so"
        library.write_bytes(compile_text(chosen, text, (), 100.0, Children()))
        found.append(binary.problem(binary.library_facts(str(library)), text))
    assert found[0] is None
    if found[1] is not None:  # not every machine has the other one
        assert found[1].reason.startswith(cpp_library.PUT_IN)


def test_a_lock_of_a_critical_section_and_constants_are_no_state():
    body = (
        "static const float table[] = {1, 2, 3};\n"
        "#pragma omp critical(mine)\nout[0] = table[n % 3];"
    )
    text = vk.cpp(body)
    assert binary.problem(facts(text), text) is None


def test_a_table_of_a_template_is_of_its_own_library():
    """g++ would make one of all that a process has loaded: an edit computed with another's."""
    import lief

    table = "template <class T> struct S { static const float k[4]; };\n"
    table += "template <class T> const float S<T>::k[4] = {1, 2, 3, 4};\n"
    code = "for (int64_t i = 0; i < n; ++i) out[i] = S<int>::k[i & 3];\n"
    library = vk.build_library(vk.cpp(code).replace('extern "C" int', f'{table}extern "C" int', 1))
    symbols = lief.parse(str(library)).dynamic_symbols
    assert not [s.name for s in symbols if s.binding == lief.ELF.Symbol.BINDING.GNU_UNIQUE]


def test_what_is_no_library(tmp_path):
    (tmp_path / "kernel.so").write_bytes(b"no library at all")
    with pytest.raises(ValueError, match="library"):
        binary.library_facts(str(tmp_path / "kernel.so"))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ('asm("nop");', "assembly"),
        ('__asm__ volatile ("syscall");', "assembly"),
        ("_mm_setcsr(0x8040);", "_mm_setcsr"),
        ("_MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);", "denormals"),
        ("__cxa_pure_virtual();", "it ends the process"),
        ("out[0] = (long)__builtin_return_address(0);", "it tells who calls it"),
        ("out[0] = __TIME__[7];", "another kernel of the same text"),
    ],
)
def test_what_no_file_shows(code, reason):
    found = cpp_text.source_problem(vk.cpp(f"// asm\n/* asm */ {code}"))
    assert found is not None
    assert reason in found.reason
    assert found.line == 11
    assert cpp_text.source_problem(vk.cpp(f"// {code}\nputs({code!r});")) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('int x;\n#include "/tmp/constants.h"\n', 2),
        ('int x;\n\n  # /* a */ include "constants.h"\n', 3),
        ("#define FILE <cmath>\n#include FILE\n", 2),
        ("%:include </etc/passwd>\n", 1),
        ("#include <../constants.h>\n", 1),
        ('#inc\\\nlude "constants.h"\n', 1),
        ('#if __has_include("constants.h")\n#endif\n', 1),
        ('#embed "constants.h"\n', 1),
        ('#include <cmath>\n#include <sys/types.h>\n#include "helpers.h" // below\n', None),
        ("#if __has_include(<cmath>)\n#endif\n", None),
        ('const char* text = "\\\n#include \\"constants.h\\"";\n', None),
    ],
)
def test_files_beside_a_kernel(text, line):
    found = cpp_text.source_problem(text)
    assert (found and found.line) == line
    assert found is None or found.reason.startswith("includes a file")


@pytest.mark.parametrize("begins", ["/* ", 'R"(', 'R"x(', "'\\\n", "1'", "\n"])
@pytest.mark.timeout(20)
def test_what_has_no_end_is_read_in_time(begins):
    """A text is read in the notebook's own process, where nothing ends a search that takes long."""
    text = begins * 100_000
    assert len(cpp_text.without_comments(text)) == len(text)
    assert cpp_text.source_problem(text) is None


def test_assembly_without_an_instruction():
    assert cpp_text.source_problem('asm volatile("" : : "m"(marks));') is None
    assert cpp_text.source_problem('asm("nop");', '  asm("nop");') is None


@pytest.mark.parametrize("name", ["sinf", "cosl", "_sinf", "GOMP_parallel", "omp_get_thread_num"])
def test_mathematics_and_threads_of_openmp_are_allowed(name):
    assert allowed.is_allowed(name)


@pytest.mark.parametrize("name", ["omp_set_num_threads", "fork", "exit", "GOMP_target", "sleep"])
def test_others_are_not(name):
    assert not allowed.is_allowed(name)
    assert allowed.harm(name)


def test_names_of_faults_differ():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_the_tables_of_a_class_are_what_makes_one() -> None:
    assert allowed.harm("_ZTINSt6thread6_StateE") == "it starts or steers threads"
