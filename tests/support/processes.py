"""Python in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import nursery


def run_python(code: str, timeout: float = 120) -> str:
    """Run ``code`` in a fresh interpreter; return what it printed.

    Raises:
        AssertionError: It failed; with all that it said.
    """
    return _said(
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    )


def run_compiler(code: str) -> str:
    """Do the same in a process that has imported torch and the compiler, and done nothing else.

    Raises:
        AssertionError: It failed; with all that it said.
    """
    done = nursery.run(code, folder=Path.cwd(), environment=os.environ, modules=nursery.COMPILER)
    return _said(done)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
