"""A process that ends in the middle of an edited kernel leaves a note, and the text is refused."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import signal
import sys

import psutil
import pytest

from fusec.cache import default_store
from fusec.verify import probation
from support import handwritten_kernels as vk
from support import nursery
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
print(kernel.check(text, timed=False, trust=True).reason, flush=True)
kernel.use(text)
for _ in range(int(sys.argv[2])):
    call(x)
"""


def session(*arguments):
    return nursery.run(
        SESSION, arguments, folder=TESTS, environment=os.environ, modules=nursery.COMPILER
    )


def left():
    """Return the notes of processes that are gone."""
    folder = default_store().folder / probation.FOLDER
    return [path for path in folder.iterdir() if path.suffix != f".{os.getpid()}"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("route", ["native", "python"])
def test_a_crash_leaves_a_note(route):
    others = set(left()) if (default_store().folder / probation.FOLDER).exists() else set()
    first = session(route, "5000")
    assert first.returncode == -signal.SIGSEGV, first.stderr
    assert "keeps `calls`" in first.stdout
    second = session(route, "5")
    assert second.returncode == 0, second.stderr
    # The native form may come while Python's counts: a call between the two is neither's.
    count = "3001" if route == "native" else "300[01]"
    refused, trusted = second.stdout.splitlines()[:2]
    assert re.search(rf"ended in the middle of its call {count};", refused)
    # Who trusts it is believed; an ordinary end leaves nothing.
    assert "middle" not in trusted
    assert set(left()) <= others


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


@pytest.mark.posix("a mapping that keeps no file open")
def test_journals_keep_no_descriptors(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    probation.journal("kernel", "first")  # what is opened once
    before = psutil.Process().num_fds()
    kept = [probation.journal("kernel", f"text {number}") for number in range(40)]
    assert psutil.Process().num_fds() == before
    ctypes.c_int64.from_address(kept[7].address).value = 5
    assert int.from_bytes(kept[7].path.read_bytes()[:8], sys.byteorder) == 5
    assert kept[7].calls == (5, 0)


def test_notes_that_are_damaged_do_no_harm(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    kept = probation.journal("kernel", "damaged at random")
    assert kept is not None
    content = bytearray(kept.path.read_bytes())
    note = kept.path.with_suffix(".999999999")
    owner = json.dumps(probation._owner()).encode()
    length = len(content.rstrip(b"\0"))
    draw = random.Random(0)
    owners = [b'["x", 1]', b"[1.5, 2]", b"[1]", b"[true, null]", b'{"1": 2}', b"[-1, 1e400]"]
    for number in range(300):
        other = owners[number] if number < len(owners) else b"[999999999, 1]"
        damaged = bytearray(content.replace(owner, other))
        damaged[0] = 7  # calls that began, and did not end
        damaged[draw.randrange(64, length)] ^= (1 << draw.randrange(8)) * (number >= len(owners))
        note.write_bytes(damaged[: draw.choice([len(damaged), length, 64, 3])])
        probation.crash("damaged at random")
        probation.forgive("damaged at random")
