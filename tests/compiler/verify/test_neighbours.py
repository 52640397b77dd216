"""What a kernel writes past its own part of the C library's memory changes blocks of ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fusec.verify.isolation import neighbours

pytestmark = pytest.mark.linux("the C library's memory as glibc has it")
PAST = "writes past the end of memory that it allocated"
# In a process of its own: what it spoils is the memory of the process.
CALL = """
import ctypes, importlib.util, sys
spec = importlib.util.spec_from_file_location("neighbours", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
size, at, freed = int(sys.argv[2]), sys.argv[3], sys.argv[4] == "freed"
found = module.Neighbours()
found.lay()
block = libc.malloc(size)
ctypes.memset(block, 5, size)
if freed:
    libc.free(block)
if at != "nowhere":
    ctypes.c_ubyte.from_address(block + int(at)).value ^= 0xFF  # another, whatever is there
if not freed:
    libc.free(block)
print(found.problem(), flush=True)
import os
os._exit(0)
"""


def said(size: int, at: int | str, freed: str = "") -> str:
    """Return what is said of a call that takes a block and writes somewhere."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CALL, neighbours.__file__, str(size), str(at), freed],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else f"ended: {done.stderr}"


def is_caught(words: str) -> bool:
    """Whether it is seen, or what the C library keeps there ends the process."""
    return words == PAST or words.startswith("ended")


@pytest.mark.parametrize("size", [24, 408])
def test_what_is_written_past_the_end(size: int) -> None:
    assert said(size, size - 1) == ""
    assert is_caught(said(size, size + 1))  # what the C library keeps of the next one
    assert is_caught(said(size, size + 8))  # the next one


def test_what_is_written_after_it_was_freed() -> None:
    assert said(24, "nowhere", "freed") == ""
    assert is_caught(said(24, 0, "freed"))
