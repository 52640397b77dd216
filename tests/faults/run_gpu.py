"""The table of edits for a GPU; without one they run in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

from faults.gpu_edits import GPU_FAULTS
from faults.report import Outcome
from faults.run_edits import Notebook, run_edits

# Triton compiles each of them, and a device's worker starts again after an error.
_PATIENCE = 120.0


def run_gpu(only: str = "", times: int = 1, *, trust: bool = False, jobs: int = 1) -> list[Outcome]:
    """Do every edit whose name has ``only`` in it, ``times`` times, on a GPU.

    Args:
        only: What to do.
        times: How often.
        trust: Whether the text may do anything, so that only what happens is looked at.
        jobs: How many notebooks share the table.
    """
    faults = GPU_FAULTS
    if trust:
        faults = tuple(replace(f, group="right") if f.outside else f for f in faults)
    arguments = ("faults.gpu_notebook", *(["--trust"] if trust else []))
    return run_edits(
        only,
        times,
        faults,
        start=lambda: Notebook(arguments, _PATIENCE),
        says=trust,
        jobs=jobs,
    )


__all__ = ["run_gpu"]
