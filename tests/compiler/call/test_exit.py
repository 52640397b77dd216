"""A process that ends does not wait for what is being built for later."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fusec.toolchain.compiler import find_compiler
from support import nursery

PROGRAM = """
import torch, fusec, time
from fusec.call import native
call = fusec.compile(lambda x: (x * 2).relu())
call(torch.randn(64))
native.prepare()
while native.types() is None and not native._children.running:
    time.sleep(0.01)
assert native.types() is None
"""
# Builds kernels; what needs headers, which is the native part, it never ends.
COMPILER = """\
#!/bin/sh
case " $* " in *" -I"*) echo > {begun}; exec sleep 10000;; esac
exec {compiler} "$@"
"""


@pytest.mark.posix("that what a compiler has started ends with it")
def test_exit_waits_for_no_build(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found, begun = find_compiler(), tmp_path / "begun"
    compiler = tmp_path / "g++"
    compiler.write_text(COMPILER.format(compiler=found.path, begun=begun))
    compiler.chmod(0o700)
    done = nursery.run(
        PROGRAM,
        folder=tmp_path,
        environment=os.environ | {"FUSEC_CACHE_DIR": str(tmp_path / "cache"), "CXX": str(compiler)},
        modules=nursery.COMPILER,
    )  # does not take the ten thousand seconds that it would wait
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert begun.exists()
