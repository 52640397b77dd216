"""Building and loading C++ kernels: what is reported, what is shared, what is never run twice."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from fusec.cache import MANIFEST, CacheStore
from fusec.errors import (
    BuildTimeout,
    CannotBuild,
    CompileError,
    CompilerNotFound,
    Diagnostic,
    FusecError,
    LoadError,
)
from fusec.toolchain import build as cpp_build
from fusec.toolchain import compiler as cpp_compiler
from fusec.toolchain import listen
from fusec.toolchain.build import build, find_compiler
from fusec.toolchain.children import Children
from fusec.toolchain.loading import load, load_library
from support.waiting import wait_for

KERNEL = """\
#include <stdint.h>
extern "C" int add(const float* a, float* b, int64_t n, int64_t threads)
{
#pragma omp parallel for simd num_threads(threads)
    for (int64_t i = 0; i < n; i++) b[i] = a[i] + %sf;
    return 0;
}
"""


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    return CacheStore(tmp_path / "store")


def constant(value: int) -> str:
    return f'extern "C" int answer() {{ return {value}; }}\n'


def no_compiler_run(*_: object) -> bytes:
    raise AssertionError("the compiler was run")


# --- the compiler ----------------------------------------------------------------------------


def test_find_compiler() -> None:
    compiler = find_compiler()
    assert os.access(compiler.path, os.X_OK)
    assert any(character.isdigit() for character in compiler.version)
    assert "-O3" in compiler.flags
    assert "-ffast-math" not in compiler.flags
    assert "-ffp-contract=off" in compiler.flags


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cpp_compiler, "bundled_compiler", lambda: "")
    with pytest.raises(CompilerNotFound) as raised:
        find_compiler()
    assert raised.value.message == ("no C++ compiler is on PATH (looked for g++, clang++, c++)")
    assert "apt install g++" in raised.value.hint
    assert "CXX" in raised.value.hint
    assert "\n" not in str(raised.value)


def test_cxx_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CompilerNotFound, match="CXX is 'no-such-compiler'"):
        find_compiler()


def test_compiler_that_cannot_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = script(tmp_path / "broken", "echo broken 1.0; exit 1")
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(CompilerNotFound, match="cannot build an OpenMP kernel"):
        find_compiler()


def test_cxx_is_honored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrapper = script(tmp_path / "my-compiler", f'exec {find_compiler().path} "$@"')
    monkeypatch.setenv("CXX", str(wrapper))
    assert find_compiler().path == str(wrapper)
    # A second process finds what worked in the store and runs nothing.
    cpp_compiler._find_compiler.cache_clear()
    monkeypatch.setattr(cpp_compiler, "builds", no_compiler_run)
    assert find_compiler().path == str(wrapper)


def test_without_a_path_compilers_have_one() -> None:
    """Programs are looked for in the usual places then; g++ finds its assembler there, too."""
    print_path = [sys.executable, "-c", "import os; print(os.environ['PATH'])"]
    assert listen.run(print_path, None, {}, 60.0) == (0, f"{os.defpath}\n")


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_flags_fall_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    picky = script(
        tmp_path / "picky",
        f'for a in "$@"; do case $a in -march=native) exit 1;; esac; done\n'
        f'exec {find_compiler().path} "$@"',
    )
    monkeypatch.setenv("CXX", str(picky))
    assert "-march=native" not in find_compiler().flags


def test_a_disk_that_was_full_for_a_moment_takes_no_vectors_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What works at the first look is remembered for good."""
    best, builds, failures = find_compiler(), cpp_compiler.builds, [False]
    wrapper = script(tmp_path / "my-compiler", f'exec {best.path} "$@"')
    monkeypatch.setattr(
        cpp_compiler, "builds", lambda asked: failures.pop() if failures else builds(asked)
    )
    monkeypatch.setenv("CXX", str(wrapper))
    assert find_compiler().flags == best.flags
    assert not failures


# --- building --------------------------------------------------------------------------------


@pytest.mark.timing
def test_a_small_kernel_builds_at_once(
    store: CacheStore, capsys: pytest.CaptureFixture[str]
) -> None:
    find_compiler()
    seconds = []
    for n in range(5):
        text = KERNEL % f"{n}.0"
        started = time.perf_counter()
        build(text, store=store)
        seconds.append(time.perf_counter() - started)
    with capsys.disabled():
        print(f"\na small kernel builds in {min(seconds):.3f} s (best of 5)")
    assert min(seconds) < 1.0


def test_a_stored_kernel_needs_no_compiler(
    store: CacheStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(constant(1), store=store)
    monkeypatch.setattr(cpp_build, "compile_text", no_compiler_run)
    monkeypatch.setattr(subprocess, "Popen", no_compiler_run)
    assert build(constant(1), store=store) == first
    assert build(constant(1), store=CacheStore(store.folder)) == first
    with pytest.raises(AssertionError, match="was run"):
        build(constant(1), store=store, extra_flags=["-DX=1"])
    with pytest.raises(AssertionError, match="was run"):
        build(constant(1), store=store, kind="cpp-edited")


def test_entry_holds_source_and_key(store: CacheStore) -> None:
    path = build(constant(2), store=store, extra_flags=["-DX=1"])
    assert (path.parent / "kernel.cpp").read_text() == constant(2)
    key = store.get("library", cpp_build.build_key(find_compiler(), constant(2), ["-DX=1"]))
    assert key is not None
    assert key.key["flags"][-1] == "-DX=1"
    assert key.key["version"] == find_compiler().version


def test_damaged_library_is_built_again(store: CacheStore) -> None:
    path = build(constant(3), store=store)
    path.write_bytes(path.read_bytes()[:1000])
    path = build(constant(3), store=store)
    assert load(path, "answer")() == 3


def test_compile_error_names_the_line(store: CacheStore) -> None:
    text = "int f(int x)\n{\n    int unused = 1;\n    return x + y;\n}\nint g() { return 1 }\n"
    with pytest.raises(CompileError) as raised:
        build(text, store=store)
    error = raised.value
    assert str(error).startswith("the kernel does not compile: line 4: ")
    assert "y" in str(error)
    assert "\n" not in str(error)
    errors = [d for d in error.diagnostics if d.severity == "error"]
    assert [d.line for d in errors] == [4, 6]
    assert errors[0].column == 16
    assert str(errors[0]).startswith("line 4: error: ")
    assert "kernel.cpp" in error.output
    assert store.info().entries == {}


def test_missing_header_is_a_compile_error(store: CacheStore) -> None:
    with pytest.raises(CompileError, match=r"line 2: .*no_such_header"):
        build('#include <stdint.h>\n#include "no_such_header.h"\n', store=store)


@pytest.mark.linux("a linker that asks for every name")
def test_missing_function_is_a_compile_error(store: CacheStore) -> None:
    text = 'int nowhere(int);\nextern "C" int f() { return nowhere(1); }\n'
    if sys.platform != "linux":
        pytest.skip("linked late on this system")
    with pytest.raises(CompileError, match=r"undefined reference to .nowhere"):
        build(text, store=store)


def test_diagnostics_are_parsed() -> None:
    output = textwrap.dedent("""\
        kernel.cpp: In function 'int f()':
        kernel.cpp:3:10: warning: unused variable 'i' [-Wunused-variable]
        kernel.cpp:7:2: fatal error: stop
        /usr/include/stdint.h:1:1: error: not the kernel's line
        kernel.cpp:9: note: see there
        """)
    assert cpp_build.parse_diagnostics(output) == (
        Diagnostic(3, 10, "warning", "unused variable 'i' [-Wunused-variable]"),
        Diagnostic(7, 2, "error", "stop"),
        Diagnostic(9, 0, "note", "see there"),
    )


def test_error_without_a_line() -> None:
    error = CompileError((), "cc1plus: out of memory allocating 123 bytes\n")
    assert "out of memory" in str(error)
    assert "says nothing" in str(CompileError((), ""))


@pytest.mark.parametrize(
    ("misbehaves", "said"),
    [
        ("kill -SEGV $$", r"ended by signal 11 \(Segmentation fault\)"),
        ("exit 1", "the compiler says nothing"),
        ("exit 0", "the compiler says nothing"),
        ("yes error | tr -d '\\n' | head -c 5000000; exit 1", "errorerror.* \\.\\.\\.$"),
        ("yes 'kernel.cpp:3:1: error: no' | head -c 5000000; exit 1", "line 3: no$"),
    ],
)
def test_compilers_that_misbehave(
    store: CacheStore, tmp_path: Path, misbehaves: str, said: str
) -> None:
    compiler = replace(find_compiler(), path=str(script(tmp_path / "fake", misbehaves)))
    with pytest.raises(CompileError, match=said) as raised:
        cpp_build.compile_text(compiler, constant(1), (), 60.0, Children())
    assert len(str(raised.value)) < 400
    assert len(raised.value.output) <= listen.MOST + 100


def test_a_compiler_that_is_gone(tmp_path: Path) -> None:
    compiler = replace(find_compiler(), path=str(tmp_path / "gone"))
    with pytest.raises(CompilerNotFound, match="cannot be run any more"):
        cpp_build.compile_text(compiler, constant(1), (), 60.0, Children())


def test_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/there/kernel.cpp")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CannotBuild, match=r"No space left on device: /there/kernel\.cpp"):
        cpp_build.compile_text(find_compiler(), constant(1), (), 60.0, Children())


@pytest.mark.posix("that what a compiler has started ends with it")
def test_nobody_waits_twice_for_a_compiler_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hanging = script(tmp_path / "hanging", f"sleep 1000 & echo $! >> {tmp_path / 'started'}; wait")
    monkeypatch.setattr(cpp_compiler, "VERSION_SECONDS", 0.5)
    for _ in range(2):
        with pytest.raises(CompilerNotFound, match=r"hanging does not answer in 0\.5 s"):
            # Not by CXX, which the thread that builds the native part would read as well.
            cpp_compiler._find_compiler(str(hanging), os.environ["PATH"], ())
    (started,) = (tmp_path / "started").read_text().split()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{started}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{started}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{started}").exists(), "what the compiler started still runs"


def test_time_limit(store: CacheStore) -> None:
    started = time.monotonic()
    with pytest.raises(BuildTimeout, match=r"0\.01 s") as raised:
        build(KERNEL % "1.0", store=store, time_limit=0.01)
    assert time.monotonic() - started < 50  # of sixty that a compiler has otherwise
    assert isinstance(raised.value, TimeoutError)
    assert isinstance(raised.value, FusecError)


def test_kernels_with_the_cpp_library_build(store: CacheStore) -> None:
    text = (
        "#include <algorithm>\n#include <vector>\n#include <cmath>\n"
        'extern "C" int answer() { std::vector<int> v{3, 1, 2}; std::sort(v.begin(), v.end());\n'
        "return v[2] + (int)std::lround(0.6); }\n"
    )
    assert load(build(text, store=store), "answer")() == 4


INTERRUPTED = """
import signal
# ignored where the tests run in the background
signal.signal(signal.SIGINT, signal.default_int_handler)
import sys
from pathlib import Path
from fusec.cache import CacheStore
from fusec.build.queue import BuildQueue, BuildRequest
from fusec.target_api.registry import find_target
from fusec.toolchain.build import build
texts = ["// SLOW %d" % n for n in range(int(sys.argv[2]))]
store = CacheStore(Path(sys.argv[1]))
queue = BuildQueue(store)
try:
    if len(texts) == 1:
        build(texts[0], store=store)
    else:
        queue.finish([BuildRequest(text, find_target("cpp")) for text in texts])
except KeyboardInterrupt:
    print("interrupted", flush=True)
finally:
    queue.close()
"""


@pytest.mark.posix("that what a compiler has started ends with it")
@pytest.mark.sample(1)
@pytest.mark.parametrize("count", [1, 3])
def test_interrupt_ends_the_compilers(tmp_path: Path, count: int) -> None:
    started = tmp_path / "started"
    # Looks like the compiler, but takes a minute over a text that says SLOW.
    slow = script(
        tmp_path / "slow",
        f"if grep -q SLOW kernel.cpp 2>/dev/null; then sleep 60 & echo $! >> {started}; wait; fi\n"
        f'exec {find_compiler().path} "$@"',
    )
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path / "store"), str(count)],
        env={**os.environ, "CXX": str(slow), "FUSEC_CACHE_DIR": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: started.exists() and started.read_text().count("\n") >= 1)
        output = interrupted(process)
    finally:
        process.kill()
    assert output == "interrupted\n"
    for child in started.read_text().split():
        wait_for(lambda child=child: not running(int(child)))


def interrupted(process: subprocess.Popen[str]) -> str:
    """Interrupt a process; return what it prints. Once more if that is lost.

    Python drops an interrupt that comes while an object goes away.
    """
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=45)[0]
    raise AssertionError("two interrupts do not end it")


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


# --- loading ---------------------------------------------------------------------------------


def test_load_and_run(store: CacheStore) -> None:
    import torch

    path = build(KERNEL % "2.5", store=store)
    types: Sequence[Any] = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
    add = load(path, "add", argtypes=types)
    x, y = torch.randn(1000), torch.empty(1000)
    assert add(x.data_ptr(), y.data_ptr(), 1000, 2) == 0
    assert torch.equal(y, x + 2.5)


def test_a_library_is_loaded_once(store: CacheStore, tmp_path: Path) -> None:
    path = build(constant(6), store=store)
    assert load_library(path) is load_library(path)
    first, second = load(path, "answer"), load(path, "answer", restype=ctypes.c_int64)
    assert first.restype is ctypes.c_int  # each caller has its own types
    assert second.restype is ctypes.c_int64
    link = tmp_path / "hard-link.so"
    os.link(path, link)
    assert load_library(link) is load_library(path)


def test_libraries_are_told_apart(store: CacheStore) -> None:
    # Each is mapped through a descriptor that is closed again, so their numbers repeat.
    paths = [build(constant(n), store=store) for n in range(10, 18)]
    assert [load(path, "answer")() for path in paths] == list(range(10, 18))


def test_missing_symbol(store: CacheStore) -> None:
    with pytest.raises(LoadError, match="no function 'question'") as raised:
        load(build(constant(7), store=store), "question")
    assert 'extern "C"' in raised.value.hint


def test_changed_after_it_was_stored(store: CacheStore) -> None:
    path = build(constant(8), store=store)
    other = build(constant(9), store=store)
    path.unlink()
    shutil.copy(other, path)
    with pytest.raises(LoadError, match="not what was stored"):
        load(path, "answer")


def test_what_cannot_be_loaded(store: CacheStore, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="cannot open"):
        load(tmp_path / "nothing.so", "answer")
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(LoadError, match="cannot load"):
        load(tmp_path / "text.so", "answer")
    path = build(constant(18), store=store)
    (path.parent / MANIFEST).write_text("{")
    with pytest.raises(LoadError, match="cannot check"):
        load(path, "answer")


ONE_RUNTIME = """
import ctypes, sys
from pathlib import Path
from fusec.cache import CacheStore
from fusec.toolchain.build import build
from fusec.toolchain.loading import load
text = '''
extern "C" int omp_get_max_threads(void);
extern "C" int most() { return omp_get_max_threads(); }
extern "C" int team()
{
    int n = 0;
#pragma omp parallel reduction(+ : n)
    n += 1;
    return n;
}
'''
path = build(text, store=CacheStore(Path(sys.argv[1])))
most, team = load(path, "most"), load(path, "team")
import torch
for threads in (1, 2, 3):
    torch.set_num_threads(threads)
    assert most() == threads, (most(), threads)
    assert team() == threads, (team(), threads)
lines = open("/proc/self/maps").read().splitlines()
print("\\n".join(sorted({line.split()[-1] for line in lines if "libgomp" in line})))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_kernels_run_on_the_openmp_runtime_of_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ONE_RUNTIME, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mapped = done.stdout.split()
    assert len(mapped) == 1, mapped
    own = cpp_compiler.openmp_library()
    assert own is None or Path(mapped[0]).samefile(own)


def test_runtime_under_a_name_of_its_own(
    store: CacheStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel whose libgomp has a hash in its name: the kernel asks for that name, for no other."""
    readelf, gcc = shutil.which("readelf"), find_compiler().path
    if sys.platform != "linux" or readelf is None or find_compiler().family != "gcc":
        pytest.skip("needs g++ and readelf")
    symbols = "".join(
        f'extern "C" void {n}() {{}}\n' for n in ("GOMP_parallel", "omp_get_num_threads")
    )
    symbols += 'extern "C" void omp_get_thread_num() {}\n'
    hashed = tmp_path / "libgomp-a34b3233.so.1.0.0"
    subprocess.run(
        [gcc, "-shared", "-fPIC", "-x", "c++", "-", "-o", hashed, f"-Wl,-soname,{hashed.name}"],
        input=symbols,
        text=True,
        check=True,
    )
    monkeypatch.setattr(cpp_compiler, "openmp_library", lambda: hashed)
    cpp_compiler._find_compiler.cache_clear()
    try:
        for text in (KERNEL % "3.0", "#include <vector>\n" + KERNEL % "3.0"):
            path = build(text, store=store)
            shown = subprocess.run(
                [readelf, "-d", path], capture_output=True, text=True, check=True
            )
            needed = [line for line in shown.stdout.splitlines() if "NEEDED" in line]
            assert [line for line in needed if "gomp" in line] == [
                line for line in needed if hashed.name in line
            ]
            assert any(hashed.name in line for line in needed)
    finally:
        cpp_compiler._find_compiler.cache_clear()


def groups_sessions() -> bool:
    """Whether Linux shares the processors out to sessions."""
    setting = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return setting.exists() and setting.read_text().strip() == "1"


@pytest.mark.linux("groups of processes in /proc")
@pytest.mark.skipif(not groups_sessions(), reason="sessions are no groups here")
def test_what_nobody_waits_for_gives_way() -> None:
    found: dict[int, str] = {}

    def start(priority: int) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), priority)
        children = Children()
        process = children.start(["sleep", "10"], "/tmp")
        try:
            found[priority] = Path(f"/proc/{process.pid}/autogroup").read_text()
        finally:
            children.finish(process)

    for priority in (0, 15):
        thread = threading.Thread(target=start, args=(priority,))
        thread.start()
        thread.join()
    assert found[0].endswith("nice 0\n")
    assert found[15].endswith("nice 15\n")


@pytest.mark.posix("that what a compiler has started ends with it")
@pytest.mark.skipif(os.name != "posix", reason="a shell holds the compiler")
def test_a_compiler_ends_with_the_process_that_started_it(tmp_path):
    """Also where that is killed and can end nobody."""
    code = """
import os, signal
from fusec.toolchain.listen import start
start(["/bin/sh", "-c", "echo $$ > started; sleep 600"], os.getcwd(), os.environ)
while not os.path.exists("started") or not open("started").read().endswith("\\n"):
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    pid = int((tmp_path / "started").read_text())

    def is_over() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    wait_for(is_over)


@pytest.mark.posix("limits of a process")
@pytest.mark.skipif(sys.platform != "linux", reason="macOS limits no address space")
def test_a_compiler_has_limits():
    script = "ulimit -v; ulimit -f; ulimit -t; ulimit -c"
    process = listen.start(["/bin/sh", "-c", script], None, os.environ, processor=7)
    memory, written, seconds, core = listen.listen(process, 60.0).split()
    listen.end(process)
    assert 2 << 20 <= int(memory) <= 4 << 20  # kB
    assert (int(written), int(seconds), int(core)) == ((256 << 20) // 512, 7, 0)


def test_a_signal_that_ends_a_compiler_is_told():
    status, _ = listen.run(["/bin/sh", "-c", "kill -SEGV $$"], None, os.environ, 60.0)
    assert status == -signal.SIGSEGV
