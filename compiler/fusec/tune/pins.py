"""Winners of earlier tuning, in use again: the same kernel on the same device starts from them.

A winner was checked against eager and float64 when it won; what the check found is in its record.
Kernels of symbolic sizes are left as generated: their winners are for the sizes that they were
tuned on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch

from fusec.cache import CacheStore, default_store
from fusec.kernel import Kernel
from fusec.tunables import read_tunables
from fusec.tune.records import KIND, stored, text_digest, tuning_key
from fusec.tuning_report import Trial, TuningRun

_SWITCH = "FUSEC_TUNED"


def pin(kernels: Iterable[Kernel], *, store: CacheStore | None = None) -> tuple[str, ...]:
    """Give kernels that are not built yet the settings that tuning found for them.

    ``FUSEC_TUNED=0`` in the environment leaves all as they are generated.

    Args:
        kernels: As generated.
        store: Where the records are; the process's default store if None.

    Returns:
        The names of those that have other settings now.
    """
    if os.environ.get(_SWITCH) == "0":
        return ()
    store = store or default_store()
    if not (store.folder / KIND).is_dir():
        return ()
    pinned = []
    for kernel in kernels:
        signature = kernel.signature
        if signature.sizes or not kernel.can_be_tuned or not signature.arguments:
            continue
        run = stored(store, tuning_key(kernel, (), torch.device(signature.arguments[0].device)))
        if run is None or run.winner is None or not run.best or not run.checked:
            continue
        if not _is_known(kernel, run, run.winner):
            continue
        kernel.pin(run)
        pinned.append(kernel.name)
    return tuple(pinned)


def is_recorded(kernel: Kernel, *, store: CacheStore | None = None) -> bool:
    """Whether a kernel of known sizes was tuned before, whatever came of it.

    Args:
        kernel: As generated, or pinned.
        store: Where the records are; the process's default store if None.
    """
    signature = kernel.signature
    if signature.sizes or not signature.arguments:
        return False
    device = torch.device(signature.arguments[0].device)
    return stored(store or default_store(), tuning_key(kernel, (), device)) is not None


def _is_known(kernel: Kernel, run: TuningRun, winner: Trial) -> bool:
    """Whether the compiler still writes the text that won."""
    if winner.plan and winner.plan not in kernel.heuristic.alternatives:
        return False
    text, plan = kernel.variant(winner.plan).text, run.plan(winner.plan)
    if winner.plan and (plan is None or plan.digest != text_digest(text)):
        return False
    return dict(winner.values).keys() == {t.name for t in read_tunables(text)}


__all__ = ["is_recorded", "pin"]
