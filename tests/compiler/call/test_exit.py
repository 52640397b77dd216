"""A process that ends does not wait for what is being built for later."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

PROGRAM = """
import torch, fusec, time
from fusec.call import native
call = fusec.compile(lambda x: (x * 2).relu())
call(torch.randn(64))
native.prepare()
while native.types() is None and not native._children.running:
    time.sleep(0.01)
assert native.types() is None
print(time.time(), flush=True)
"""


@pytest.mark.posix("that what a compiler has started ends with it")
def test_exit_waits_for_no_build(tmp_path):
    tmp_path.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "FUSEC_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    # The build itself takes half a minute.
    assert time.time() - float(done.stdout.split()[-1]) < 6.0
