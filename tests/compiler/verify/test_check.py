"""The check of an edited kernel, on kernels that are right and wrong in every way we know."""

from __future__ import annotations

import re
import signal
import threading
import time

import psutil
import pytest
import torch

from fusec.systems import this_system
from fusec.toolchain.children import given_children
from fusec.verify.check import check_kernel
from fusec.verify.isolation import endurance, sandbox
from fusec.verify.trials import candidate
from support import handwritten_kernels as vk
from support.waiting import wait_for


@pytest.fixture(scope="module", autouse=True)
def worker():
    sandbox.prestart()
    yield
    sandbox.worker().close()


WRONG = {
    "off by one": (
        "for (int64_t i = 0; i <= n; i++) out[i] = i < n ? x[i] * 2 + 1 : 0;",
        "bounds",
        "writes past the end of `out` (by 1 element)",
    ),
    "far write": (
        "for (int64_t i = 0; i < n; i++) { out[i] = x[i] * 2 + 1; out[n + 4000] = 0; }",
        "bounds",
        "writes past the end of `out` (by 4001 elements)",
    ),
    "very far write": (
        "for (int64_t i = 0; i < n; i++) out[i * 1000000007] = x[i] * 2 + 1;",
        "bounds",
        "memory out of bounds, far from every argument",
    ),
    "write before the start": (
        "for (int64_t i = -1; i < n; i++) out[i] = i < 0 ? 0 : x[i] * 2 + 1;",
        "bounds",
        "writes before the start of `out` (by 1 element)",
    ),
    "read past the end": (
        "for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2 + 1 + 0 * x[i + 1];",
        "bounds",
        "reads past the end of `x` (by 1 element)",
    ),
    "read before the start": (
        "for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2 + 1 + 0 * x[i - 1];",
        "bounds",
        "reads before the start of `x` (by 1 element)",
    ),
    "null": ("*(volatile int*)nullptr = 1;", "bounds", "writes through a null pointer"),
    "stack overflow": (
        "struct R { static int f(volatile int* p) { volatile int a[99]; a[0] = *p;"
        " return f(a) + a[0]; } }; volatile int q = 1; out[0] = R::f(&q);",
        "bounds",
        "overflows the stack",
    ),
    "endless loop": ("volatile int on = 1; while (on) {}", "timeout", "an endless loop?"),
    "endless loop in a thread": (
        "volatile int on = 1;\n#pragma omp parallel num_threads(threads)\nwhile (on) {}",
        "timeout",
        "an endless loop?",
    ),
    "abort": ("abort();", "crash", "aborted"),
    "exit": ("_Exit(0);", "crash", "ended its own process"),
    "division": (
        "volatile int zero = 0; volatile int one = 1; out[0] = one % zero;",
        "crash",
        "divides an integer by zero",
    ),
    "trap": ("__builtin_trap();", "crash", "reached a trap"),
    "unaligned": (
        # Off by one element: no x86 processor moves 16 bytes there by its aligned instructions,
        # and every compiler takes those for a vector type.
        "typedef float v __attribute__((vector_size(16)));\n"
        "for (int64_t i = 1; i + 4 <= n; i += 4) *(v*)(out + i) = *(const v*)(x + i);",
        "crash",
        "aligned",
    ),
    "check fails": ("return 1;", "wrong", "refuses inputs that are right: index out of range"),
    "unknown code": ("return 77;", "wrong", "returned 77"),
    "changes its input": (
        "for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2 + 1;\nconst_cast<float*>(x)[3] = 5;",
        "wrong",
        "changes its input `x` (element 3",
    ),
    "unwritten": (
        "for (int64_t i = 0; i < n - 1; i++) out[i] = x[i] * 2 + 1;",
        "wrong",
        "leaves part of `out` unwritten (first at [999])",
    ),
    "uninitialized": (
        "for (int64_t i = 0; i < n; i++) out[i] += x[i] * 2 + 1;",
        "wrong",
        "reads memory that nothing wrote",
    ),
    "race": (
        "volatile int64_t next = 0;\n#pragma omp parallel for num_threads(threads)\n"
        "for (int64_t i = 0; i < n; i++) { next = i; if (i % 100 == 0) usleep(100);"
        " out[i] = x[next] * 2 + 1; }",
        "wrong",
        "",
    ),
    "wrong result": (
        "for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2 + (i == 7 ? 1.5f : 1);",
        "wrong",
        "`out` differs from eager by 0.5 at [7]",
    ),
    "lower precision": (
        "for (int64_t i = 0; i < n; i++) out[i] = (float)(_Float16)(x[i] * 2 + 1);",
        "wrong",
        "`out` differs from eager by",
    ),
    "fits one input": (
        "static const float first = x[0];\n"
        "for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2 + 1 + (x[i] > 10 ? 1 : 0);",
        "wrong",
        "with zeros of both signs",
    ),
    "NaN": (
        "for (int64_t i = 0; i < n; i++) out[i] = std::isnan(x[i]) ? 0 : x[i] * 2 + 1;",
        "wrong",
        "on inputs with NaN and infinities",
    ),
}


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", WRONG)
def test_refuses(name):
    body, stage, reason = WRONG[name]
    # What reads the library first would refuse some of them: see ``test_binary``.
    verdict = vk.check(vk.cpp(body), timed=False, timeout=1.0, trust=True)
    assert (verdict.ok, verdict.stage) == (False, stage), verdict
    said = [reason]
    if this_system().name != "linux":  # whether it read or wrote, nobody says there of a fault
        said.append(re.sub(r"^(?:reads|writes)\b", "reads or writes", reason))
    assert any(words in verdict.reason for words in said), verdict.reason
    # Whatever happened, the next check works.
    assert vk.check(vk.cpp(), timed=False, kinds=()).ok


def test_accepts_the_generated_kernel():
    verdict = vk.check(vk.cpp())
    assert (verdict.ok, verdict.stage) == (True, "passed"), verdict
    assert verdict.max_error <= verdict.outputs[0].allowed
    assert verdict.outputs[0].against_float64 is not None
    assert verdict.timing is not None
    assert verdict.generated is not None
    assert "interleaved" in verdict.timing.method
    assert verdict.seconds > 0


def test_accepts_a_better_edit():
    body = "#pragma omp simd\nfor (int64_t i = 0; i < n; i++) out[i] = __builtin_fmaf(x[i], 2, 1);"
    assert vk.check(vk.cpp(body), timed=False).ok


def test_sums_in_another_order_are_no_race():
    body = (
        "double total = 0;\n#pragma omp parallel for num_threads(threads) reduction(+:total)\n"
        "for (int64_t i = 0; i < n; i++) total += x[i];\n"
        "for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2 + 1 + (float)(0 * total);"
    )
    assert vk.check(vk.cpp(body), timed=False, kinds=()).ok


def test_empty():
    verdict = vk.check("  \n")
    assert (verdict.ok, verdict.stage) == (False, "empty")


def test_compile_error_names_the_line():
    text = vk.cpp("    int a = 1;\n    out[0] = undeclared;")
    verdict = vk.check(text)
    assert (verdict.ok, verdict.stage) == (False, "compile")
    assert verdict.line == text.splitlines().index("    out[0] = undeclared;") + 1
    assert "undeclared" in verdict.reason
    assert verdict.details


def test_too_good_to_be_true():
    # It is right as long as somebody compares: then its result is not there yet, or is the same.
    body = (
        "static int calls = 0;\nif (++calls < 20 || out[0] != x[0] * 2 + 1)\n"
        "    for (int64_t i = 0; i < n; i++) out[i] = x[i] * 2 + 1;"
    )
    verdict = vk.check(vk.cpp(body), n=1_000_000, kinds=(), trust=True)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert "cannot have done the work" in verdict.reason


def test_what_does_nothing_after_some_calls():
    body = "static int calls = 0;\nif (++calls < 20)\n" + vk.RIGHT
    verdict = vk.check(vk.cpp(body), n=64, kinds=(), trust=True)
    assert (verdict.ok, verdict.stage) == (False, "wrong")
    assert "calls" in verdict.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("const float* x, float* out", "float* out"), "parameter 2"),
        (("float* out", "double* out"), "parameter 2 of `scale` is `double* out`"),
        (("int64_t n, int64_t threads", "int64_t n, int64_t threads, int64_t more"), "takes 5"),
        (("int scale", "void scale"), "returns void"),
        (('extern "C" int', "static int"), "is not declared as"),
        (("scale", "other"), "is missing"),
    ],
)
def test_signature(change, reason):
    verdict = vk.check(vk.cpp().replace(*change))
    assert (verdict.ok, verdict.stage) == (False, "signature")
    assert reason in verdict.reason


@pytest.mark.parametrize(
    "change",
    [
        ("const float* x, float* out", "const float* __restrict__ input,\n    float *out /* it */"),
        ("float* out", "float* __restrict out"),
        ('extern "C" int scale', '// was: extern "C" int scale()\nextern "C" int scale'),
    ],
)
def test_signature_allows(change):
    text = vk.cpp().replace(*change)
    if "input" in text:
        text = text.replace("x[i]", "input[i]")
    assert vk.check(text, timed=False, kinds=()).ok


@pytest.mark.parametrize("n", [0, 1, 7, 1023, 4096])
def test_sizes(n):
    verdict = vk.check(vk.cpp(), n=n, timed=False)
    assert verdict.ok, verdict


def test_prints_do_not_disturb(capfd):
    body = 'puts("hello");\n' + vk.RIGHT
    assert vk.check(vk.cpp(body), timed=False, kinds=()).ok
    assert "hello" not in capfd.readouterr().out


LATER = "static int calls = 0; if (++calls > 200) for (volatile int on = 1; on;) {}\n"


@pytest.mark.linux("for how long a process has had processors")
@pytest.mark.parametrize("body", ["for (volatile int on = 1; on;) {}\n", LATER])
def test_a_loop_ends_by_the_processors_that_it_uses(body, monkeypatch):
    # While others have them all it may take long by the clock, and may not end by it.
    monkeypatch.setattr(candidate, "_TIMEOUT", 1000.0)
    verdict = vk.check(vk.cpp(body + vk.RIGHT), timed=True, kinds=("similar",), trust=True)
    assert (verdict.stage, verdict.seconds < 500) == ("timeout", True), verdict


@pytest.mark.posix("a process of its own for edits")
def test_many_slow_calls_say_that_they_come_back(monkeypatch):
    # This process is no clean one: others' threads come and go.
    monkeypatch.setattr(endurance.state, "changes", lambda before, **now: "")
    alive: list[int] = []
    asked = {"threads": torch.get_num_threads(), "timing": None}
    found = endurance.endure(
        asked, lambda: time.sleep(0.06), None, None, 1, alive=lambda: alive.append(1)
    )
    assert "problem" not in found
    assert len(alive) >= found["calls"] // 4


def test_no_processes_left():
    vk.check(vk.cpp("volatile int on = 1; while (on) {}"), timed=False, timeout=0.3)
    vk.check(vk.cpp("abort();"), timed=False)
    children = psutil.Process().children()
    workers = [p for p in children if "fusec.verify.isolation.worker" in " ".join(p.cmdline())]
    assert [p.pid for p in workers] == [sandbox.worker().pid]
    # It has at most the child that waits for the next request, and none that computes.
    wait_for(lambda: len(workers[0].children(recursive=True)) <= 1)
    waiting = workers[0].children(recursive=True)
    assert all(p.cpu_times().user < 0.3 and p.status() != "zombie" for p in waiting)
    sandbox.worker().close()
    assert not any(p.is_running() for p in [*workers, *waiting])


# --- Triton, in the interpreter ----------------------------------------------------------------


@pytest.mark.triton
def test_triton_right():
    verdict = vk.check(vk.TRITON, target="triton", timeout=30.0)
    assert verdict.ok, verdict


@pytest.mark.triton
def test_triton_functions_that_call_others():
    # The interpreter reads their source long after the file was executed.
    helper = (
        "@triton.jit\ndef twice(value):\n    return value * 2.0\n\n\n@triton.jit\ndef add(a, b):\n"
    )
    helper += "    return a + b\n\n\n"
    text = vk.TRITON.replace("@triton.jit\n", helper + "@triton.jit\n", 1)
    text = text.replace("value * 2.0 + 1.0", "twice(value) + 1.0 + 0.0 * tl.reduce(i * 0, 0, add)")
    verdict = vk.check(text, target="triton", timeout=60.0, kinds=("similar",))
    assert verdict.ok, verdict


TRITON_WRONG = {
    "no mask": (
        ("tl.store(out + i, value * 2.0 + 1.0, mask=mask)", "tl.store(out + i, value * 2.0 + 1.0)"),
        "bounds",
        "writes past the end of `out`",
    ),
    "no mask on the load": (
        ("tl.load(x + i, mask=mask)", "tl.load(x + i)"),
        "bounds",
        "reads past the end of `x`",
    ),
    "wrong result": (("2.0 + 1.0", "2.0 + 1.5"), "wrong", "`out` differs from eager by 0.5"),
    "syntax": (("mask = i < n", "mask = i <"), "compile", "SyntaxError"),
    "unknown name": (("value * 2.0", "valeu * 2.0"), "compile", "valeu"),
    "too few programs": (("triton.cdiv(n, BLOCK)", "n // BLOCK"), "wrong", "unwritten"),
    "parameters": (("def launch(x, out, n)", "def launch(out, x, n)"), "signature", "must keep"),
    "import": (("import torch", "import os"), "unsafe", "imports os"),
    "no launch": (("def launch", "def start"), "signature", "launch(...) is missing"),
    "not jit": (("@triton.jit\n", ""), "signature", "@triton.jit"),
    "endless": (
        ("    mask = i < n", "    while n > 0:\n        n = n\n    mask = i < n"),
        "timeout",
        "",
    ),
}


@pytest.mark.triton
@pytest.mark.parametrize("name", TRITON_WRONG)
def test_triton_refuses(name):
    change, stage, reason = TRITON_WRONG[name]
    text = vk.TRITON.replace(*change)
    assert text != vk.TRITON
    verdict = vk.check(text, target="triton", timeout=2.0 if name == "endless" else 60.0)
    assert (verdict.ok, verdict.stage) == (False, stage), verdict
    assert reason in verdict.reason
    if stage == "compile":
        assert text.splitlines()[verdict.line - 1] != vk.TRITON.splitlines()[verdict.line - 1]


@pytest.mark.timing
def test_a_check_is_fast(monkeypatch):
    building = []

    def timed_build(text):
        started = time.perf_counter()
        try:
            return build(text)
        finally:
            building.append(time.perf_counter() - started)

    build = vk.build_library
    monkeypatch.setattr(vk, "build_library", timed_build)
    vk.check(vk.cpp())
    times = []
    for attempt in range(5):
        text = vk.cpp(vk.RIGHT + f"\n    // edit {attempt} {time.time()}")
        building.clear()
        started = time.perf_counter()
        assert vk.check(text).ok
        times.append(time.perf_counter() - started - sum(building))
    # What the compiler takes is not this test's matter; the rest includes 0.1 s of timing and
    # takes 0.12 s on a machine with nothing else to do.
    assert min(times) < 0.8, times


def test_updated_argument():
    from fusec.kernel import Kernel
    from fusec.kernel_source import Argument, KernelSource, Signature
    from fusec.verify.check import Case, check_kernel

    text = (
        "#include <cstdint>\n"
        'extern "C" int add(float* total, const float* x, int64_t threads) {\n'
        "    for (int i = 0; i < 6; i++) total[(i / 3) * 5 + i % 3] += x[i];\n    return 0;\n}\n"
    )
    wanted = Signature(
        (
            Argument("total", torch.float32, (), (), "inout"),
            Argument("x", torch.float32, (), (), "in"),
        )
    )
    source = KernelSource("add", "cpp", "add", text, wanted)
    # A view with gaps, which are not the kernel's to touch.
    total = torch.randn(2, 5)[:, :3]
    given = Case((total, torch.randn(2, 3)))
    before = total.clone()

    def run(text):
        return check_kernel(
            Kernel(source, None, vk.Host()),
            text,
            cases=[given],
            build=vk.build_library,
            interpret=lambda t, s, p: [(t[0] + t[1]) if p is None else t[0].to(p) + t[1].to(p)],
            generated=vk.prepare(text, "add"),
        )

    verdict = run(text)
    assert verdict.ok, verdict
    assert "restored" in verdict.timing.method
    assert torch.equal(total, before)
    verdict = run(text.replace("return 0", "total[3] = 1; return 0"))
    assert verdict.stage == "bounds"
    assert "between the elements of `total`" in verdict.reason


@pytest.mark.parametrize("character", ["\ud800", "\0"])
def test_what_is_no_text(character):
    verdict = vk.check(vk.cpp() + f"// one\n// {character}\n")
    assert (verdict.ok, verdict.stage) == (False, "compile")
    assert verdict.reason == f"U+{ord(character):04X} is not allowed in a kernel"
    assert verdict.line == vk.cpp().count("\n") + 2


def test_line_ends_of_windows():
    assert vk.check(vk.cpp().replace("\n", "\r\n"), timed=False, kinds=()).ok


def test_an_interrupt_waits_for_no_compiler(tmp_path):
    compiling = threading.Event()
    ended = []

    def build(text):
        process = given_children().start(["sleep", "600"], str(tmp_path))
        compiling.set()
        ended.append(process.wait())

    def interpret(tensors, sizes, precision):
        compiling.wait()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_kernel(
            vk.kernel(), vk.cpp(), cases=[vk.case()], build=build, interpret=interpret, timed=False
        )
    assert ended == [-signal.SIGKILL]
