"""What a stranger waits for a first fused cell: ``python tests/bench/first_cell.py``.

A fresh environment gets the wheel (``--wheel FILE``; built here if none is given) and takes all
else, torch with it, from this one; then a fresh process with an empty cache loads the extension
and fuses a cell.  Printed are seconds by the clock, which count on an idle machine alone, and those
of processors, compilers' too: of Python and torch's import, and of what comes after it, our own.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
TORCH = "import torch, torch._dynamo, IPython"
CELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for text in (
    "import torch, torch.nn.functional as F",
    "x, w, b = torch.randn(512, 768), torch.ones(768), torch.zeros(768)",
    "%load_ext fuselab",
    "%%fuse\\ny = F.layer_norm(F.gelu(x), (768,), w, b)",
    "assert torch.allclose(y, F.layer_norm(F.gelu(x), (768,), w, b), atol=1e-5)",
):
    shell.run_cell(text).raise_error()
"""


def environment(folder: Path, wheel: Path) -> Path:
    """Make an environment with the wheel; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    home = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", home, wheel],
        check=True,
    )
    # Behind it, so that the wheel's own packages are those that are imported.
    Path(home, "rest.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def used(python: Path, code: str, cache: Path) -> tuple[float, float]:
    """Return how many seconds a program takes by the clock, and of processors."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    options = {"env": {**env, "FUSEC_CACHE_DIR": str(cache)}, "cwd": cache.parent}
    subprocess.run([python, "-c", code], check=True, stdout=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    seconds = time.perf_counter() - started
    while True:  # workers and compilers that outlive it
        try:
            os.wait()
        except ChildProcessError:
            break
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, now.ru_utime + now.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wheel", type=Path, help="what is installed; built here by default")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        wheel = options.wheel
        if wheel is None:
            command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT]
            subprocess.run(command, check=True)
            (wheel,) = folder.glob("*.whl")
        python = environment(folder / "fresh", wheel.resolve())
        used(python, TORCH, folder / "none")  # its byte code
        clock, processors = used(python, TORCH, folder / "none")
        whole, all_of_it = used(python, CELL, folder / "cache")
    print(f"torch and IPython: {clock:.1f} s by the clock, {processors:.1f} of processors")
    print(f"with the first cell: {whole:.1f} and {all_of_it:.1f}")
    print(
        f"ours: {whole - clock:.1f} and {all_of_it - processors:.1f}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
