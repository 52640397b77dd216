"""The machine that kernels are made for is given, not read: other machines' kernels can be seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import fusec
from fusec import machine
from fusec.machine import GpuFacts, HalfSpeed, MachineFacts, current_machine, this_machine, using
from fusec.options import Options
from fusec.systems import this_system
from fusec.systems.face import System
from fusec.targets.triton.plan.choice import kept_in_l2, sms
from fusec.toolchain.compiler import find_compiler

X86 = MachineFacts("a processor", False, "avx512", False, 64, 32 << 20, True)


@pytest.fixture(autouse=True)
def as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor counts, and not what the suite is told to take it for."""
    monkeypatch.delenv("FUSEC_ISA", raising=False)


def kernel(facts: MachineFacts, size: int = 1 << 20) -> fusec.kernel.Kernel:
    compiled = fusec.compile(lambda x: x * 2 + 1, dynamic=False, machine=facts)
    x = torch.randn(size)
    torch.testing.assert_close(compiled(x), x * 2 + 1)
    (found,) = compiled.kernels.values()
    return found


@pytest.mark.parametrize(
    ("isa", "flag"),
    [("avx512", "x86-64-v4"), ("avx2", "x86-64-v3"), ("sse2", "x86-64"), ("neon", ""), ("", "")],
)
def test_a_compiler_is_told_of_another_machine(isa: str, flag: str) -> None:
    facts = replace(X86, isa=isa)
    assert facts.flags == ((f"-march={flag}",) if flag else ())


def test_kernels_are_built_for_the_machine_they_are_made_for() -> None:
    assert this_machine().flags == ()
    if this_machine().isa not in ("avx2", "avx512"):
        pytest.skip("another kind of processor")
    wide = kernel(this_machine(), 64)
    narrow = kernel(this_machine().with_isa("sse2"), 64)
    assert wide.generated.flags == ()
    assert narrow.generated.flags == ("-march=x86-64",)
    assert narrow.source == wide.source


def test_the_last_cache_decides_what_is_written_past_it() -> None:
    small = kernel(replace(X86, native=True, last_cache=1 << 20))
    large = kernel(replace(X86, native=True, last_cache=1 << 30))
    none = kernel(replace(X86, native=True, last_cache=1 << 20, streams=False))
    assert "stream(" in small.source
    assert "stream(" not in large.source
    assert none.source == large.source


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1 << 20, (1 << 20) + 37])
def test_long_sums_on_amd_are_read_ahead_by_the_processor(dtype: torch.dtype, size: int) -> None:
    """Where it was measured: nothing is asked for, and a block's sums stay in registers."""

    def summed(facts: MachineFacts, function: Callable[[torch.Tensor], torch.Tensor]) -> str:
        compiled = fusec.compile(function, dynamic=False, machine=facts)
        x = torch.randn(size, dtype=dtype)
        torch.testing.assert_close(compiled(x), function(x))
        x[size - 2] = torch.nan
        assert compiled(x).isnan()
        x[size - 2] = torch.inf
        torch.testing.assert_close(compiled(x), function(x))
        (found,) = compiled.kernels.values()
        return found.source

    def light(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).abs().sum()

    facts = replace(this_machine(), amd=True)
    other = summed(replace(facts, amd=False), light)
    quiet = summed(facts, light)
    assert "__builtin_prefetch" in other
    assert "__builtin_prefetch" not in quiet
    assert f"LINE = {16 if dtype == torch.float64 else 64};" in quiet
    assert "__builtin_prefetch" in summed(facts, lambda x: x.sigmoid().sum())  # more arithmetic


def test_kernels_that_are_written_late_know_their_machine() -> None:
    """Those that are equal to another but for names are written when somebody reads them."""
    facts = replace(X86, native=True, last_cache=1 << 20)
    compiled = fusec.compile(lambda x, y: (x * 2 @ y * 2).abs() * 2, dynamic=False, machine=facts)
    compiled(torch.randn(64, 64), torch.randn(64, 64))
    assert all(each.generated.flags == facts.flags for each in compiled.kernels.values())


@pytest.mark.triton
def test_multiprocessors_decide_how_triton_cuts_up() -> None:
    def text(gpu: str) -> str:
        compiled = fusec.compile(lambda x: x.sum(), dynamic=False, target="triton", gpu=gpu)
        compiled(torch.randn(1 << 20))
        (found,) = compiled.kernels.values()
        return found.source

    if torch.cuda.is_available():
        pytest.skip("the GPU that is there counts")
    assert text("sm_90") != text("sm_75")


def test_half_precision_is_as_fast_as_the_machine_says() -> None:
    from fusec.graph.facts.half_speed import half_speed

    said = HalfSpeed(3.0, 1.0, 0.5)
    with using(replace(X86, half_speed=(("bfloat16", said),))):
        assert half_speed(torch.bfloat16) is said


def test_facts_hold_within_the_block_alone() -> None:
    with using(replace(X86, gpu=GpuFacts("sm_80", 108, 40 << 20))):
        assert (sms(), kept_in_l2()) == (108, (40 << 20) * 12 // 25)
        assert current_machine().processor == "a processor"
    if not torch.cuda.is_available():
        assert (sms(), kept_in_l2()) == (132, 24 << 20)
    assert current_machine().processor == machine.processor()


def test_the_process_can_be_taken_for_an_older_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_ISA", "sse2")
    assert Options().facts.flags == ("-march=x86-64",)
    if this_machine().streams:  # x86
        flags = find_compiler().flags
        assert "-march=x86-64" in flags
        assert "-march=native" not in flags
    monkeypatch.setenv("FUSEC_ISA", "nonsense")
    with pytest.raises(ValueError, match="not one of avx512"):
        this_machine()


@pytest.mark.posix("what the system says of a processor")
def test_the_last_cache_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert this_system().last_cache() > 0
    for answer in (0, -1):
        monkeypatch.setattr("os.sysconf", lambda name, answer=answer: answer)
        assert this_system().last_cache() == System().last_cache()

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr("os.sysconf", unknown)
    assert this_system().last_cache() == System().last_cache()


@pytest.mark.parametrize("isa", ["avx2", "sse2"])
@pytest.mark.parametrize("gathers", [True, False])
def test_columns_by_index_are_gathered_where_that_is_quick(isa: str, gathers: bool) -> None:
    if this_machine().isa not in ("avx2", "avx512"):
        pytest.skip("another kind of processor")
    facts = replace(this_machine().with_isa(isa), gathers=gathers)

    def text(dtype: torch.dtype) -> str:
        torch._dynamo.reset()
        compiled = fusec.compile(lambda x, i: x.index_select(1, i), machine=facts)
        x, index = torch.randn(300, 64).to(dtype), torch.randint(0, 64, (200,))
        assert torch.equal(compiled(x, index), x.index_select(1, index))
        (kernel,) = compiled.kernels.values()
        return kernel.source

    quick = gathers and isa != "sse2"
    assert ("safelen(1)" not in text(torch.float32)) == quick
    assert "safelen(1)" in text(torch.bfloat16)
