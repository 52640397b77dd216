"""Everything that asks the operating system does so through ``fusec.systems``."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fusec.systems import this_system
from fusec.systems.face import NotHere, System
from fusec.systems.posix import Posix
from support.paths import ROOT, TESTS

SOURCES = (ROOT / "compiler" / "fusec", ROOT / "ext" / "fuselab")
# Modules that some systems lack, and parts of others.
MODULES = {"fcntl", "resource", "pwd", "grp", "termios", "winreg", "msvcrt"}
PARTS = {
    "os": {
        *("geteuid", "getuid", "memfd_create", "sched_getaffinity", "sysconf", "uname"),
        *("getpriority", "setpriority", "setsid", "register_at_fork", "O_CLOEXEC", "O_NOFOLLOW"),
    },
    "sys": {"platform"},
    "mmap": {"MAP_SHARED", "MAP_PRIVATE", "MAP_ANONYMOUS", "PROT_READ", "PROT_WRITE", "PAGESIZE"},
    "socket": {"AF_UNIX", "SOCK_SEQPACKET", "send_fds", "recv_fds", "MSG_CMSG_CLOEXEC"},
}
# The processes that run candidates exist only where a system isolates them.
FORKING = {"os.fork", "os.killpg", "os.setpgid", "signal.SIGKILL"}
FORKS = {"worker.py", "child.py", "sandbox.py"}
# One of these words stands wherever one of the above does.
ASKING = MODULES.union({"proc", "sys"}, *PARTS.values(), (each.split(".")[1] for each in FORKING))
# Triton's own code and kernels, which only Triton imports.
TRITON = {
    f"targets/triton/{name}.py" for name in ("grouped_products", "multiply", "toolchain/launch")
}

SCRIPT = """
import os
import sys
import torch
import fusec
from fusec.call import native

def f(x, y):
    return torch.softmax(x * 2 + y, -1), (x * y).sum(0)

x, y = torch.randn(300, 70), torch.randn(300, 70)
compiled = fusec.compile(f, keep_inputs=True)
for found, wanted in zip(compiled(x, y), f(x, y), strict=True):
    torch.testing.assert_close(found, wanted)
if os.environ["FUSEC_BARE"] == "plain":  # the slow one
    assert native.types(wait=True) is not None, native.problem()
    for found, wanted in zip(compiled(x, y), f(x, y), strict=True):
        torch.testing.assert_close(found, wanted)
kernel = compiled.graphs[0].kernels[0]
assert "triton" not in sys.modules
right = kernel.check(kernel.source + "// the same", timed=False)
print("right:", right.ok, right.reason)
text = kernel.source
at = text.rindex("return 0;")
name = next(a.name for a in kernel.signature.arguments if a.role == "out")
wrong = kernel.check(text[:at] + f"{name}[30000000] = 1;" + text[at:], timed=False)
print("wrong:", wrong.ok, wrong.reason)
"""


def files() -> Iterator[Path]:
    for folder in SOURCES:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).parts
            # The loader of packages stands alone, without the rest of us: it asks for itself.
            if "systems" not in parts and parts[:2] != ("packages", "runtime"):
                yield path


def asked(path: Path) -> Iterator[str]:
    """Yield what a file asks of the system by itself."""
    text = path.read_text(encoding="utf-8")
    if ASKING.isdisjoint(re.findall(r"\w+", text)):
        return  # what is asked is named: most files need not be parsed
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield str(node.module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            forking = name in FORKING and path.name not in FORKS
            if forking or node.attr in PARTS.get(node.value.id, ()):
                yield name
        elif isinstance(node, ast.Constant) and str(node.value).startswith(("/proc/", "/sys/")):
            yield str(node.value)


def test_nothing_else_asks_the_system() -> None:
    assert {str(p.relative_to(ROOT)): found for p in files() if (found := list(asked(p)))} == {}


def test_triton_is_imported_by_its_own_target_alone() -> None:
    """At a file's top, where it would have to be installed for the file to be imported."""
    found = set()
    for path in files():
        text = path.read_text(encoding="utf-8")
        # Most files do not name it at all, and need not be parsed.
        for node in ast.parse(text).body if "triton" in text else ():
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == "triton" for name in names):
                found.add(str(path.relative_to(SOURCES[0])))
    assert found <= TRITON


def run_bare(kind: str, folder: Path) -> str:
    paths = [str(TESTS / "support" / "bare"), str(ROOT / "compiler"), str(ROOT / "ext")]
    paths += os.environ.get("PYTHONPATH", "").split(os.pathsep)  # where libraries may be, too
    environment = {
        **os.environ,
        "FUSEC_BARE": kind,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "FUSEC_STRICT": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_what_only_linux_has(tmp_path: Path) -> None:
    said = run_bare("posix", tmp_path)
    assert "right: True" in said
    assert "wrong: False writes past the end" in said or "wrong: False reads or writes" in said


@pytest.mark.slow  # the above samples it
def test_without_what_only_posix_has(tmp_path: Path) -> None:
    said = run_bare("plain", tmp_path)
    assert said.count("candidates cannot run in a process of their own") == 2
    assert "True" not in said


@pytest.mark.parametrize("size", [1, 4096, 150_000])
def test_messages_in_a_stream(size: int) -> None:
    system = Posix()
    mine, theirs = system.message_pair()
    descriptor = system.memory_file("fusec-test")
    os.write(descriptor, b"inside")
    with mine, theirs:
        sender = threading.Thread(
            target=lambda: [
                system.send(mine, b"a" * size, (descriptor,)),
                system.send(mine, b"next", ()),
                mine.close(),
            ]
        )
        sender.start()
        data, (received,) = system.receive(theirs, 160_000)
        assert data == b"a" * size
        assert os.pread(received, 10, 0) == b"inside"
        assert not os.get_inheritable(received)
        assert system.receive(theirs, 160_000) == (b"next", ())
        assert system.receive(theirs, 160_000) == (b"", ())
        sender.join()
    os.close(received)
    os.close(descriptor)


def test_a_message_that_is_too_long_or_cut() -> None:
    system = Posix()
    mine, theirs = system.message_pair()
    with mine, theirs:
        mine.sendall((1 << 30).to_bytes(4, sys.byteorder))
        with pytest.raises(OSError, match="too long"):
            system.receive(theirs, 1000)
    mine, theirs = system.message_pair()
    with theirs:
        mine.sendall((10).to_bytes(4, sys.byteorder) + b"half")
        mine.close()
        assert system.receive(theirs, 1000) == (b"", ())


def test_reserved_pages() -> None:
    system = this_system()
    if not system.isolates:
        pytest.skip("no untouchable memory here")
    base = system.reserve(4 * system.page)
    system.open_pages(base + system.page, system.page)
    ctypes.memset(base + system.page, 7, system.page)
    assert ctypes.string_at(base + system.page, 3) == b"\7\7\7"
    assert system.same_bytes(base + system.page, base + system.page + 100, 50)
    system.release(base, 4 * system.page)


def test_a_system_of_which_nothing_is_known() -> None:
    system = System()
    assert not system.isolates
    with pytest.raises(NotHere, match="process of their own"):
        system.message_pair()
    assert system.processors() >= 1
    assert system.last_cache() > 0


def test_how_long_threads_ran() -> None:
    """As each thread's own clock says; where nobody says, nothing is made up."""
    began = time.thread_time()
    found = this_system().thread_times()
    if not found:
        pytest.skip("this system does not say")
    assert began <= found[threading.get_native_id()] <= time.thread_time()
    assert not System().thread_times()
