"""Python processes that begin with torch imported: forks of one that has done nothing else.

An import of torch takes as long as most of what such a process is started for.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# What a process that compiles begins with.
COMPILER = "torch torch._dynamo fusec fusec.pipeline fusec.capture.backend"
# Reads requests, a line each; for each it forks a child, and writes how that ended.
_PARENT = """\
import importlib, json, os, sys, traceback

def be_child(request):
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for descriptor, name in enumerate(("/dev/null", *request["output"])):
        opened = os.open(name, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["-c", *request["arguments"]]
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    exec(compile(request["code"], "<string>", "exec"), main.__dict__)

for name in sys.argv[1].split():
    importlib.import_module(name)
for line in sys.stdin.buffer:
    request = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            be_child(request)
        except SystemExit:
            raise
        except BaseException:
            traceback.print_exc()
            sys.exit(1)
        sys.exit()
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(ended, flush=True)
"""


def run(
    code: str,
    arguments: Sequence[str] = (),
    *,
    folder: Path,
    environment: Mapping[str, str],
    modules: str = "torch",
) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own; where nothing forks, in one that imports all anew.

    Args:
        code: Of the module ``__main__``.
        arguments: For the code.
        folder: Where it runs.
        environment: Its environment.
        modules: What is imported already, by names with spaces between.
    """
    given = {**environment}
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            env=given,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    # What decides how Python itself begins: another interpreter has another parent.
    fixed = {k: v for k, v in given.items() if k.startswith(("PYTHON", "LD_", "OMP_"))}
    parent = _parent(modules, json.dumps(fixed))
    with tempfile.TemporaryDirectory() as written:
        output = [Path(written, name) for name in ("stdout", "stderr")]
        for each in output:
            each.touch()
        request = {
            "code": code,
            "arguments": [*arguments],
            "folder": str(folder),
            "environment": given,
            "output": [str(each) for each in output],
        }
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            parent.stdin.write(json.dumps(request) + "\n")
            parent.stdin.flush()
            status = int(parent.stdout.readline())
        except BaseException:  # out of time, say: nobody is to wait for that child again
            _parent.cache_clear()
            os.killpg(parent.pid, signal.SIGKILL)
            raise
        said = [each.read_text() for each in output]
    return subprocess.CompletedProcess(code, status, *said)


@functools.cache
def _parent(modules: str, environment: str) -> subprocess.Popen[str]:
    """Start the process that is forked; it ends with this one."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _PARENT, modules],
        env={"PATH": os.environ.get("PATH", os.defpath), **json.loads(environment)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait()


__all__ = ["COMPILER", "run"]
