"""The workloads of ``make bench-gpu``, made small: each compiles for a GPU and is right."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import fusec

sys.path.insert(0, str(Path(__file__).parent))

import gpu
import gpu_quantized
from gpu_workloads import WORKLOADS, Workload, tiny_size


def test_names_are_unique_and_there_are_enough() -> None:
    names = [w.name for w in WORKLOADS]
    assert len(set(names)) == len(names)
    assert sum(w.bound == "memory" for w in WORKLOADS) >= 30


@pytest.mark.triton
@pytest.mark.sample(9)
@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_workload(workload: Workload) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = gpu.make_inputs(workload, "cpu", tiny_size)
    fused = fusec.compile(workload.function, target="triton")
    functions = {"eager": workload.function, "fusec": fused}
    with torch.set_grad_enabled(workload.backward):
        _, errors, wrong = gpu.check(workload, functions, inputs)
    # on a CPU torch's own decomposition of batch norm keeps its statistics in the input's type
    assert not wrong or (workload.backward and errors["fusec"] < 1e-3)
    assert errors["fusec"] < 0.1
    assert not fused.fallbacks
    assert {k.target for k in fused.kernels.values()} == {"triton"}


@pytest.mark.triton
@pytest.mark.sample(4)
@pytest.mark.parametrize("workload", gpu_quantized.WORKLOADS, ids=lambda w: w.name)
def test_numbers_of_few_bits(workload: Workload) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = gpu.make_inputs(workload, "cpu", tiny_size)
    fused = fusec.compile(workload.function, target="triton", matmul="template")
    functions = {"eager": workload.function, "fusec": fused}
    assert not gpu.check(workload, functions, inputs)[2]
    assert {k.target for k in fused.kernels.values()} == {"triton"}
    assert not fused.fallbacks


def row(name: str, own: float, peer: float) -> gpu.Row:
    times = {"copy": 1.0, "eager": 3.0, "fusec": own, "default": peer}
    spread = {f"{k}_spread": [v * 0.99, v * 1.01] for k, v in times.items()}
    return {"name": name, "bound": "memory", "error": "", **times, **spread}


def test_report() -> None:
    rows = [row("quick", 1.0, 2.0), row("slow", 2.0, 1.0)]
    text = gpu.totals(rows, ["default"])
    assert "under 0.75: slow" in text
    assert "over default: 1.00x" in text
    assert text.endswith("beyond the spread: slow")
    assert "failed: lost" in gpu.line({"name": "a", "error": "lost"}, ["default"])
    assert gpu.complete(rows[0], ["default"])
    assert not gpu.complete(rows[0], ["default", "reduce-overhead"])


def test_wrong_results_are_noticed() -> None:
    workload = WORKLOADS[0]
    inputs = gpu.make_inputs(workload, "cpu", tiny_size)
    functions = {"eager": workload.function, "fusec": lambda x: x.softmax(0)}
    assert "result 0 is off" in gpu.check(workload, functions, inputs)[2]
