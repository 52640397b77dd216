"""On a GPU: checks of edits whose inputs and results are of every type, and tuning of them."""

from __future__ import annotations

import pytest
import torch

import fusec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
WIDE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
FEW_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)


def scaled(x: torch.Tensor, to: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as another type, and what they were divided by."""
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 64
    return (x / most).to(to), most


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("to", WIDE + FEW_BITS + INTEGERS, ids=str)
def test_results_of_every_type_are_checked(to: torch.dtype) -> None:
    if to in (torch.uint8, torch.bool):
        x = torch.rand(33, 500, device="cuda")  # what is below 0 is undefined in them
    else:
        x = torch.randn(33, 500, device="cuda")
    compiled = fusec.compile(lambda x: scaled(x, to), tuned=False, keep_inputs=True)
    compiled(x)
    (graph,) = compiled.graphs
    (kernel,) = graph.kernels
    assert graph.check(kernel, kernel.source + "\n# the same\n", timed=False).ok
    wrong = kernel.source.replace("0.015625", "0.03125")  # a 64th
    assert wrong != kernel.source
    assert not graph.check(kernel, wrong, timed=False).ok


@pytest.mark.parametrize("dtype", FEW_BITS + INTEGERS[:4], ids=str)
def test_inputs_of_every_type_are_checked_and_tuned(dtype: torch.dtype) -> None:
    x = (torch.randn(64, 1024, device="cuda") * 8).to(dtype)
    compiled = fusec.compile(lambda x: x.float().sin().to(dtype), tuned=False, keep_inputs=True)
    compiled(x)
    (graph,) = compiled.graphs
    (kernel,) = graph.kernels
    assert graph.check(kernel, kernel.source + "\n# the same\n", timed=False).ok
    run = graph.tune(kernel, budget=2.0, progress=None, stop=None)
    assert any(trial.timing is not None for trial in run.trials)
    assert torch.equal(compiled(x).float(), x.float().sin().to(dtype).float())


@pytest.mark.parametrize("waits", [False, True])
def test_work_on_another_stream_has_to_be_waited_for(waits: bool) -> None:
    x, w, b = (torch.randn(64, 64, device="cuda") for _ in range(3))
    compiled = fusec.compile(lambda x, w, b: (x * w + b).relu(), tuned=False, keep_inputs=True)
    compiled(x, w, b)
    (graph,) = compiled.graphs
    (kernel,) = graph.kernels
    head, entry, launch = kernel.source.partition('made."""\n')
    assert entry
    stream = "    stream = torch.cuda.Stream()\n"
    if waits:
        stream += "    stream.wait_stream(torch.cuda.current_stream())\n"
    body = "".join(f"    {line}\n" if line else "\n" for line in launch.splitlines())
    after = "    torch.cuda.current_stream().wait_stream(stream)\n" if waits else ""
    text = f"{head}{entry}{stream}    with torch.cuda.stream(stream):\n{body}{after}"
    verdict = graph.check(
        kernel, text.replace("import triton\n", "import torch\nimport triton\n", 1)
    )
    assert verdict.ok == waits, verdict
    assert waits or "stream of its own" in verdict.reason
