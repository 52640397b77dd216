"""Python in a process of its own."""

from __future__ import annotations

import subprocess
import sys


def run_python(code: str, timeout: float = 120) -> str:
    """Run ``code`` in a fresh interpreter; return what it printed.

    Raises:
        AssertionError: It failed; with all that it said.
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
