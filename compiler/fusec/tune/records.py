"""Tuning records on disk: every trial of a run, on which machine, and when.

A record is one JSON file in the store.  Entries of the store never change, so each further run
of the same kernel is a further generation under the same key, and the last one counts.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from fusec.devices import is_gpu
from fusec.kernel import Kernel
from fusec.machine import processor
from fusec.report import Timing
from fusec.target_api.registry import find_target
from fusec.tunables import read_tunables, set_tunables
from fusec.tuning_report import Trial, TriedPlan, TuningRun

KIND = "tuning"
FILE = "record.json"
SCHEMA = 1
_GENERATIONS = 64


class RecordEntry(Protocol):
    """What is needed of a store's entry."""

    def read_text(self, name: str) -> str:
        """Return a file's contents."""


class RecordStore(Protocol):
    """What is needed of ``cache.Store``."""

    def get(self, kind: str, key: Mapping[str, Any]) -> RecordEntry | None:
        """Return an entry or None."""

    def put(self, kind: str, key: Mapping[str, Any], files: Mapping[str, Any]) -> object:
        """Keep files under a key."""


def tuning_key(kernel: Kernel, sizes: Sequence[int], device: torch.device) -> dict[str, Any]:
    """Return what a tuning result depends on: the text, the shapes, the device and who compiles.

    Args:
        kernel: Its signature says the shapes and strides of its arguments, by its sizes.
        sizes: The values of its symbolic sizes.
        device: Where it runs.
    """
    # tuned, it is still the same kernel
    text = kernel.source if kernel.state == "edited" else kernel.heuristic.text
    return {
        "text": text_digest(text),
        "signature": kernel.signature.digest(),
        "sizes": [int(size) for size in sizes],
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else 0,
        "compilers": [torch.__version__, find_target(kernel.target).version()],
    }


def text_digest(text: str) -> str:
    """Return a hash of a kernel's text, whatever the values of its tunables."""
    return hashlib.sha256(neutral(text).encode()).hexdigest()


def neutral(text: str) -> str:
    """Return a kernel's text with every tunable at its first choice.

    Tuning changes the values; the text before and after has to have the same key.
    """
    tunables = read_tunables(text)
    return set_tunables(text, {t.name: t.choices[0] for t in tunables if t.choices})


def device_name(device: torch.device) -> str:
    """Return what the device is called."""
    if is_gpu(device):
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} sm_{major}{minor}"
    return processor()


@functools.cache
def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine for a record."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = -1.0
    return {
        "device": device_name(device),
        "processor": processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "load": load,
        "system": platform.platform(),
        "torch": torch.__version__,
    }


def save(
    store: RecordStore, key: Mapping[str, Any], run: TuningRun, description: Mapping[str, Any]
) -> None:
    """Keep a finished run."""
    record = {
        "schema": SCHEMA,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": dict(description),
        "text": key.get("text", ""),
        "run": run_to_json(run),
    }
    data = json.dumps(record, indent=1).encode()
    for generation in range(_GENERATIONS):
        full = {**key, "generation": generation}
        if store.get(KIND, full) is None:
            store.put(KIND, full, {FILE: data})
            return


def stored(store: RecordStore, key: Mapping[str, Any]) -> TuningRun | None:
    """Return the last run kept under ``key``; None where there is none that can be read."""
    found = None
    for generation in range(_GENERATIONS):
        entry = store.get(KIND, {**key, "generation": generation})
        if entry is None:
            break
        try:
            record = json.loads(entry.read_text(FILE))
            if record["schema"] == SCHEMA:
                found = run_from_json(record["run"])
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            continue
    return found


def run_to_json(run: TuningRun) -> dict[str, Any]:
    """Return a run as JSON values."""
    return {
        "kernel": run.kernel,
        "trials": [
            {
                "values": dict(trial.values),
                "plan": trial.plan,
                "timing": _timing_to_json(trial.timing),
                "error": trial.error,
                "note": trial.note,
            }
            for trial in run.trials
        ],
        "best": run.best,
        "total": run.total,
        "eager": _timing_to_json(run.eager),
        "stopped": run.stopped,
        "seconds": run.seconds,
        "eager_is_whole": run.eager_is_whole,
        "checked": run.checked,
        "plans": [
            {"name": p.name, "digest": p.digest, "decisions": list(p.decisions)} for p in run.plans
        ],
    }


def run_from_json(data: Mapping[str, Any]) -> TuningRun:
    """Return the run, marked as stored. Raises ValueError and its like for anything odd."""
    trials = tuple(
        Trial(
            tuple((str(name), int(value)) for name, value in trial["values"].items()),
            _timing_from_json(trial["timing"]),
            str(trial["error"]),
            str(trial.get("note", "")),
            str(trial.get("plan", "")),
        )
        for trial in data["trials"]
    )
    best = data["best"]
    if best is not None and not (isinstance(best, int) and 0 <= best < len(trials)):
        raise ValueError("best is not one of the trials")
    return TuningRun(
        kernel=str(data["kernel"]),
        trials=trials,
        best=best,
        total=int(data["total"]),
        eager=_timing_from_json(data["eager"]),
        stopped="stored",
        seconds=float(data["seconds"]),
        eager_is_whole=bool(data.get("eager_is_whole", False)),
        checked=str(data.get("checked", "")),
        plans=tuple(
            TriedPlan(str(p["name"]), str(p["digest"]), tuple(map(str, p["decisions"])))
            for p in data.get("plans", ())
        ),
    )


def _timing_to_json(timing: Timing | None) -> dict[str, Any] | None:
    if timing is None:
        return None
    return {
        "median": timing.median,
        "low": timing.low,
        "high": timing.high,
        "samples": timing.samples,
        "method": timing.method,
    }


def _timing_from_json(data: Mapping[str, Any] | None) -> Timing | None:
    if data is None:
        return None
    return Timing(
        float(data["median"]),
        float(data["low"]),
        float(data["high"]),
        int(data["samples"]),
        str(data["method"]),
    )
