"""What sanitizers say of an edit, where the compiler has them."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from fusec.toolchain import sanitizers
from fusec.toolchain.compiler import Compiler
from fusec.verify.isolation import device_sanitize, sanitize
from fusec.verify.isolation.process import Worker
from fusec.verify.isolation.sanitize import sanitized
from support import handwritten_kernels as vk

WRONG = {
    # What the red zones beside the arguments do not see, which are far apart.
    "a local array": ("int k[4]; volatile int j = 5; k[j] = 2; out[0] = k[j];", "out of bounds"),
    "an overflow": (
        "volatile int a = 2147483647; a = a + 1; out[0] = a;",
        "signed integer overflow",
    ),
    "a shift": ("volatile int a = 40; out[0] = 1 << a;", "shift exponent 40"),
    "memory that was freed": (
        "float* p = (float*)malloc(40); free(p); out[0] = p[1];",
        "reads memory that was freed",
    ),
    "the end of an argument": ("out[n] = 1;", "writes past the end of `out`"),
    "the start of another": ("out[0] = x[-2];", "reads before the start of `x`"),
    "a leak": (
        "float* p = (float*)malloc(40); p[0] = x[0]; out[0] = p[0];",
        "never frees 80 bytes",
    ),
}


def look(body, **options):
    text = vk.cpp(body + "\n" + vk.RIGHT)
    found, words = sanitized(
        text, "scale", vk.signature(), vk.case(), threads=2, seconds=30, **options
    )
    return text, found, words


@pytest.fixture
def both():
    if len(sanitizers.sanitizers()) < 2:
        pytest.skip("this compiler has no AddressSanitizer")


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", WRONG)
def test_finds(name, both):
    code, reason = WRONG[name]
    text, found, _ = look(code)
    assert found is not None
    assert reason in found.reason
    assert text.splitlines()[found.line - 1].strip() == code


def test_a_check_with_it(both):
    text = vk.cpp("volatile int a = 2147483647; a = a + 1;\n" + vk.RIGHT)
    verdict = vk.check(text, timed=False, sanitize=True)
    assert (verdict.ok, verdict.stage, verdict.line) == (False, "unsafe", 10)
    assert "on the real inputs" not in verdict.reason  # a case without a label
    assert vk.check(text, timed=False).ok  # nobody else sees it
    right = vk.check(vk.cpp(), timed=False, sanitize=True)
    assert right.ok
    assert right.reason.endswith("nothing found by AddressSanitizer and UndefinedBehaviorSanitizer")


def test_a_compiler_without(monkeypatch):
    monkeypatch.setattr(sanitizers, "sanitizers", lambda: ())
    _, found, words = look("")
    assert found is None
    assert words == "not checked by sanitizers: this compiler has none; g++ and clang have them"


def test_a_compiler_with_half_of_it():
    heard = sanitizers.Heard(1, "", (sanitizers.UNDEFINED,), False, {})
    finding = sanitize._finding(heard, sanitizers.UNDEFINED)
    assert finding.reason.startswith("ended with status 1 under UndefinedBehaviorSanitizer")
    late = sanitizers.Heard(-9, "", (sanitizers.UNDEFINED,), True, {})
    assert sanitize._finding(late, sanitizers.UNDEFINED).stage == "timeout"


SAID = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at relu_kernel+0x150 in /fusec/0123456789abcdef/launch.py:22
=========     by thread (0,0,0) in block (3,0,0)
=========     Access to 0x7f0000010000 is out of bounds
========= ERROR SUMMARY: 1 error
"""


def test_what_compute_sanitizer_says():
    found = device_sanitize.finding(SAID, "launch")
    assert found.reason == "writes memory that is not its own (compute-sanitizer)"
    assert found.line == 22
    assert device_sanitize.finding("========= ERROR SUMMARY: 0 errors\n", "launch") is None
    assert device_sanitize.finding(SAID, "other").line is None


def test_what_is_said_at_the_very_end_is_heard(tmp_path):
    tool = tmp_path / "tool"
    tool.write_text('#!/bin/sh\n"$@"\necho "========= ERROR SUMMARY: 0 errors"\n')
    tool.chmod(0o700)
    worker = Worker("fusec.verify.isolation.worker", {"CUDA_VISIBLE_DEVICES": ""}, (str(tool),))
    worker.ask({"do": "import", "modules": []}, (), 60)
    assert worker.end().endswith("ERROR SUMMARY: 0 errors\n")


def test_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(device_sanitize, "_USUAL", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert device_sanitize.find() == ""
    kernel = vk.kernel(target="triton")
    _, words = device_sanitize.sanitized(kernel, vk.TRITON, vk.case(), 1.0)
    assert words.startswith("not looked at by sanitizers: an interpreter")


def test_what_a_busy_machine_could_not_answer_is_asked_again(monkeypatch):
    compiler = Compiler("g++", "a compiler of this test", ())
    monkeypatch.setattr(sanitizers, "_known", {})
    full = [OSError(errno.ENOSPC, "No space left on device")] * 2

    def build(compiler, sources, folder, chosen):
        if full:
            raise full.pop()
        Path(folder, sanitizers.PROGRAM).symlink_to(shutil.which("true"))

    monkeypatch.setattr(sanitizers, "_build", build)
    assert sanitizers._sanitizers(compiler) == ()
    assert sanitizers._sanitizers(compiler) == (sanitizers.ADDRESS, sanitizers.UNDEFINED)
    full += [OSError(errno.ENOSPC, "No space left on device")]
    assert sanitizers._sanitizers(compiler) == (sanitizers.ADDRESS, sanitizers.UNDEFINED)
