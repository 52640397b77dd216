"""A kernel file's own Python runs in a worker first, whatever its user trusts it with."""

from __future__ import annotations

import re

import pytest
import torch

import fusec
from fusec.verify.isolation import rehearsal
from support import handwritten_kernels as vk

pytest.importorskip("triton")


@pytest.fixture(scope="module")
def kernel():
    call = fusec.compile(lambda x: (x * 2 + 1).relu(), keep_inputs=True, target="triton")
    call(torch.randn(64))
    (found,) = call.kernels.values()
    return found


def begun(text, code):
    """Put lines of Python where a file begins to start its kernels."""
    head, entry, rest = text.partition('made."""\n')
    assert entry
    return head + entry + "".join(f"    {line}\n" for line in code.splitlines()) + rest


@pytest.mark.parametrize(
    ("code", "stage", "says"),
    [
        ("while True:\n    pass", "timeout", "its own Python did not finish within"),
        ("for k in range(1 << 62):\n    pass", "timeout", "an endless loop?"),
        ("import sys; sys.modules['os']._exit(3)", "crash", "ended its own process"),
        ("sys.modules", "compile", "NameError: name 'sys' is not defined"),
    ],
)
def test_what_never_reaches_the_notebook(kernel, monkeypatch, code, stage, says):
    monkeypatch.setattr(rehearsal, "SECONDS", 0.5)
    text = begun(kernel.generated.text, code)
    verdict = kernel.check(text, trust=True)
    assert (verdict.ok, verdict.stage) == (False, stage), verdict
    assert says in verdict.reason
    if stage != "crash":
        shown = text.splitlines()[verdict.line - 1].strip()
        assert shown in code.splitlines()[-1] or shown in code


def test_an_edit_that_is_refused_has_changed_nothing(kernel, monkeypatch):
    before = torch.get_default_dtype()
    text = begun(kernel.generated.text, "torch.set_default_dtype(torch.float64)\nx.nothing")
    verdict = kernel.check(
        text.replace("import triton\n", "import torch\nimport triton\n", 1), trust=True
    )
    assert not verdict.ok
    assert torch.get_default_dtype() == before


def test_streams_and_properties_are_answered_without_a_device(kernel):
    from fusec.targets.triton.toolchain import candidate

    code = """assert torch.cuda.get_device_properties("cuda").multi_processor_count == 132
assert torch.cuda.get_device_capability() == (9, 0)
stream, event = torch.cuda.Stream(), torch.cuda.Event()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream), torch.cuda.device(0):
    event.record()
torch.cuda.current_stream().wait_event(stream.record_event())
torch.cuda.synchronize(torch.cuda.current_device())"""
    text = begun(kernel.generated.text, code).replace(
        "import triton\n", "import torch\nimport triton\n", 1
    )
    h100 = {"multi_processor_count": 132, "major": 9, "minor": 0}
    request = {"text": text, "file": "f.py", "entry": kernel.generated.entry, "device": h100}
    tensors = [torch.empty(64, device="meta") for _ in kernel.signature.arguments]
    stream = torch.cuda.Stream
    candidate.rehearse(request, tensors, ())
    assert torch.cuda.Stream is stream
    assert not torch.cuda.is_initialized()


def test_triton_refuses_what_cannot_start(monkeypatch):
    from triton import knobs

    from fusec.errors import CompileError
    from fusec.targets.triton.toolchain import candidate
    from fusec.targets.triton.toolchain.cross_compile import artifacts

    # A sum over a block needs a little, to hand parts from warp to warp.
    text = vk.TRITON.replace("value * 2.0", "value * 2.0 + 0.0 * tl.sum(value)")
    told = []
    with knobs.runtime.scope(), knobs.compilation.scope():
        knobs.compilation.always_compile = True
        candidate.announce(lambda *said: told.append(said))
        monkeypatch.setattr(candidate, "_shared_memory", lambda: 8)
        with pytest.raises(CompileError, match=r"OutOfResources.*shared memory"):
            artifacts(text, vk.signature(1000), kinds=("ptx",))
        assert told == [("compile", 60.0)]
        monkeypatch.setattr(candidate, "_shared_memory", lambda: 200_000)
        artifacts(text, vk.signature(1000), kinds=("ptx",))
        assert told[1:] == [("compile", 60.0), ("run", 0.0)]


def test_what_is_said_of_threads():
    from triton.backends.compiler import GPUTarget
    from triton.runtime.errors import OutOfResources

    from fusec.targets.triton.toolchain import candidate

    given = {"target": GPUTarget("cuda", 90, 32), "num_warps": 32}
    candidate.require_resources(given, 0)
    with pytest.raises(OutOfResources) as raised:
        candidate.require_resources({**given, "num_warps": 64}, 0)
    made = object.__new__(candidate.TritonCandidate)
    assert made.refused(raised.value) == {
        "problem": "resources",
        "what": "threads",
        "wanted": 2048,
        "there": 1024,
    }


def test_what_torch_imports_by_itself_is_no_fault_of_the_text(kernel):
    """Random numbers of a tensor without memory once changed the environment, by an import."""
    verdict = kernel.check(begun(kernel.generated.text, "x.new_empty(3).normal_()"), trust=True)
    assert (verdict.ok, verdict.stage) == (False, "unsafe"), verdict
    assert "random numbers" in verdict.reason


def test_who_edits_a_kernel_alone_does_not_wait_for_what_torch_imports(kernel, monkeypatch):
    """It is a second of each first check; whoever changes what starts the kernels waits for it."""
    asked = []
    worker = rehearsal.worker()

    class Watched:
        @staticmethod
        def ask(request, *rest):
            asked.append("torch._dynamo" in request["modules"])
            return worker.ask(request, *rest)

    monkeypatch.setattr(rehearsal, "worker", lambda: Watched)
    text = kernel.generated.text
    edits = (
        re.sub(r"= x_val", "= x_val + 0", text) + "\n# a comment\n",
        re.sub(r"(?m)^(\w+ = )(\d+)", lambda m: m[1] + str(2 * int(m[2])), text),
        text.replace('"""', '"""Words: ', 1),
        begun(text, "x = x * 1"),
        text + "\nEMPTY = []\n",
    )
    assert text not in edits
    for edit in edits:
        kernel.check(edit, trust=True)
    assert asked == [False, False, False, True, True]
