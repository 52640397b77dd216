"""A process that ends in the middle of an edited kernel leaves a note, and the text is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest

from fusec.cache import default_store
from fusec.verify import probation
from support import handwritten_kernels as vk
from support.paths import TESTS

SESSION = """
import os, sys
import torch
import fusec
from fusec.call import native

def function(x):
    return (x * 2 + 1).relu()

call = fusec.compile(function, keep_inputs=True)
x = torch.randn(64)
native.types(wait=sys.argv[1] == "native")
call(x)
(kernel,) = call.kernels.values()
text = kernel.generated.text.replace(
    "\\n{\\n", "\\n{\\n    static int calls = 0; if (++calls > 3000) *(volatile int*)8 = 1;\\n", 1
)
print(kernel.check(text, timed=False).reason)
print(kernel.check(text, timed=False, trust=sys.argv[2] == "trust").reason, flush=True)
if sys.argv[2] == "trust":
    kernel.use(text)
    for _ in range(int(sys.argv[3])):
        call(x)
"""


def session(*arguments):
    return subprocess.run(
        [sys.executable, "-c", SESSION, *arguments],
        env=os.environ,
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def left():
    """Return the notes of processes that are gone."""
    folder = default_store().folder / probation.FOLDER
    return [path for path in folder.iterdir() if path.suffix != f".{os.getpid()}"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("route", ["native", "python"])
def test_a_crash_leaves_a_note(route):
    first = session(route, "trust", "5000")
    assert first.returncode == -signal.SIGSEGV, first.stderr
    assert "keeps `calls`" in first.stdout
    second = session(route, "check", "0")
    assert second.returncode == 0
    # The native form may come while Python's counts: a call between the two is neither's.
    count = "3001" if route == "native" else "300[01]"
    assert re.search(rf"ended in the middle of its call {count};", second.stdout)
    # Who trusts it is believed; an ordinary end leaves nothing.
    third = session(route, "trust", "5")
    assert third.returncode == 0, third.stderr
    assert "middle" not in third.stdout.splitlines()[1]
    assert not left()


def test_calls_are_counted():
    text = vk.cpp() + "// counted\n"
    found = probation.journal("scale", text)
    assert found is not None
    assert found is probation.journal("scale", text)
    assert found.calls == (0, 0)
    assert probation.crash(text) is None  # this process lives


def test_damaged_notes_are_nothing():
    text = vk.cpp() + "// damaged\n"
    found = probation.journal("scale", text)
    assert found is not None
    other = found.path.with_suffix(".1")
    other.write_bytes(b"nothing that can be read")
    assert probation.crash(text) is None
    assert not other.exists()
