"""No text is right that was not run on special values: whatever time, memory or luck there is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

import fusec
from fusec.report import Verdict
from fusec.verify.check import KINDS, check_kernel
from fusec.verify.judge import Judge
from fusec.verify.trials import made_trials
from fusec.verify.trials.inputs import fresh_inputs
from fusec.verify.trials.made_trials import NEEDED, unseen
from fusec.verify.trials.references import (
    Interpret,
    KeptTrials,
    LeftOut,
    ReferencedCase,
    References,
)
from support import handwritten_kernels as kernels

RIGHT = kernels.cpp()
HIDES_NAN = RIGHT.replace("out[i] = ", "out[i] = x[i] != x[i] ? 0.0f : ")
CUTS_OFF = RIGHT.replace("2.0f", "(x[i] > 100.0f ? 3.0f : 2.0f)")


def check(
    text: str,
    *,
    kept: KeptTrials | None = None,
    interpret: Interpret = kernels.interpret,
    generated: Callable[..., object] | None = None,
    real: torch.Tensor | None = None,
) -> Verdict:
    case = kernels.case()
    if real is not None:
        case = replace(case, tensors=(real, *case.tensors[1:]))
    return check_kernel(
        kernels.kernel(target="cpp", n=1000),
        text,
        cases=[case],
        build=kernels.build_library,
        interpret=interpret,
        generated=generated or kernels.prepare(RIGHT),
        timed=False,
        kept=kept,
    )


@pytest.fixture(params=["no time", "large"])
def hurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is left out that may be."""
    if request.param == "large":
        monkeypatch.setattr(made_trials, "_LARGE", 0)
        monkeypatch.setattr(made_trials, "_SMALL", 0)
    else:
        monkeypatch.setattr(made_trials, "_PATIENCE", -1.0)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("text", [HIDES_NAN, CUTS_OFF], ids=["NaN hidden", "cut off"])
def test_what_is_wrong_for_special_values_alone(text: str) -> None:
    assert text != RIGHT
    verdict = check(text)
    assert not verdict.ok
    assert verdict.stage == "wrong"


@pytest.mark.parametrize("limit", ["_PATIENCE", "_SMALL"])
def test_what_is_wrong_for_ordinary_values_where_the_real_ones_are_large(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values like the real ones are all large, too: a softmax of them is ones and zeros."""
    monkeypatch.setattr(made_trials, limit, -1)
    text = RIGHT.replace("2.0f", "(x[i] > 0.6f && x[i] < 0.9f ? 3.0f : 2.0f)")
    assert text != RIGHT
    verdict = check(text, real=torch.rand(1000) * 90 + 50)
    assert not verdict.ok
    assert "on inputs of a normal distribution" in verdict.reason


def test_waiting_for_others_is_no_reason_to_leave_anything_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0, 0.0]
    monkeypatch.setattr(made_trials.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(made_trials.time, "thread_time", lambda: now[1])
    now[:] = [12.0, 1.0]
    assert made_trials._elapsed((0.0, 0.0)) < made_trials._PATIENCE
    now[:] = [12.0, 6.0]
    assert made_trials._elapsed((0.0, 0.0)) > made_trials._PATIENCE
    now[:] = [60.0, 1.0]
    assert made_trials._elapsed((0.0, 0.0)) > made_trials._PATIENCE


@pytest.mark.usefixtures("hurried")
def test_right_texts_pass_and_it_is_said_what_was_left_out() -> None:
    verdict = check(RIGHT + "// other\n")
    assert verdict.ok
    assert "not checked on NaN alone" in verdict.details


def test_what_there_was_no_time_for_once_is_not_left_out_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject, case, kept = kernels.kernel(target="cpp", n=1000), kernels.case(), KeptTrials()
    made = [ReferencedCase(case, References(case, kernels.interpret))]
    kept.keep(subject, [case], KINDS, made, LeftOut(hurried=True))
    assert kept.find(subject, [case], KINDS) is None
    kept.keep(subject, [case], KINDS, made, LeftOut())
    assert kept.find(subject, [case], KINDS) is not None


def test_a_check_whose_special_values_are_lost_accepts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = KeptTrials.find

    def lost(self: KeptTrials, *arguments: object) -> object:
        found = real(self, *arguments)  # type: ignore[arg-type]
        if found is None:
            return None
        return tuple(each for each in found[0] if each.kind != "nonfinite"), found[1]

    kept = KeptTrials()
    subject, case = kernels.kernel(target="cpp", n=1000), kernels.case()
    monkeypatch.setattr(KeptTrials, "find", lost)
    for wanted in (True, False):
        verdict = check_kernel(
            subject,
            RIGHT + f"// {wanted}\n",
            cases=[case],
            build=kernels.build_library,
            interpret=kernels.interpret,
            generated=kernels.prepare(RIGHT),
            timed=False,
            kept=kept,
        )
        assert verdict.ok is wanted
    assert (
        verdict.reason
        == "could not be checked on inputs with NaN and infinities: they were left out"
    )


def test_results_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Judge.judge_all
    monkeypatch.setattr(Judge, "judge_all", lambda self, ran: real(self, list(ran)[:-1]))
    verdict = check(RIGHT + "// other\n")
    assert not verdict.ok
    assert verdict.reason == "could not be checked: 1 of its runs are missing"


def _without_memory(error: BaseException) -> Interpret:
    def interpret(
        tensors: Sequence[torch.Tensor], sizes: Sequence[int], precision: torch.dtype | None
    ) -> Sequence[torch.Tensor]:
        if bool(tensors[0].isnan().any()):
            raise error
        return kernels.interpret(tensors, sizes, precision)

    return interpret


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
    ids=["a GPU's", "the CPU's", "Python's"],
)
def test_no_memory_for_them_is_no_refusal_of_eagers(error: BaseException) -> None:
    verdict = check(HIDES_NAN, interpret=_without_memory(error))
    assert not verdict.ok
    assert "there is not enough memory" in verdict.reason


def test_what_eager_refuses_is_left_out() -> None:
    verdict = check(RIGHT + "// other\n", interpret=_without_memory(ValueError("no such number")))
    assert verdict.ok
    assert "not checked on inputs with NaN and infinities: eager refuses them" in verdict.details


def test_the_generated_kernel_without_memory_excuses_nothing() -> None:
    def generated(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    verdict = check(HIDES_NAN, generated=generated)
    assert not verdict.ok
    assert "there is not enough memory" in verdict.reason


def test_what_is_hard_for_the_generated_kernel_excuses_no_hidden_nan() -> None:
    right = kernels.prepare(RIGHT)

    def generated(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        right(tensors, sizes)
        if not bool(tensors[0].isfinite().all()):
            tensors[1][tensors[1] == float("inf")] = 1.0  # off where values are infinite

    assert not check(HIDES_NAN, generated=generated).ok
    infinite = RIGHT.replace("2.0f", "(x[i] > 1e38f ? 0.0f : 2.0f)")
    excused = check(infinite, generated=generated)
    assert "as the generated kernel does" in excused.details or not excused.ok


@pytest.mark.parametrize("count", [6, 20, 64, 5000])
def test_few_values_have_all_special_ones(count: int) -> None:
    for seed in range(20):
        (fresh,) = fresh_inputs([torch.randn(count)], kind="nonfinite", seed=seed)
        assert fresh.isnan().any()
        assert (fresh == float("inf")).any()
        assert (fresh == float("-inf")).any()


def test_what_is_needed_is_asked_for() -> None:
    assert set(NEEDED) <= set(KINDS)
    found = unseen(KINDS, [], LeftOut(refused={"adversarial"}))
    assert found is not None
    assert "fresh random inputs and inputs with NaN" in found.reason
    assert unseen(("similar",), [], LeftOut(refused={"similar"})) is None


def test_what_is_wrong_where_infinities_stand_around_nan() -> None:
    """Of rows with few NaN, 3 of 4 draws had none in which a search that lets NaN go is wrong."""
    torch._dynamo.reset()
    compiled = fusec.compile(lambda x: (x.argmax(-1), x.amax(-1)), keep_inputs=True)
    compiled(torch.randn(24, 60))
    (kernel,) = compiled.kernels.values()
    text = kernel.source.replace("chunk_max_nan |= x_val", "r0 |= x_val")
    assert text != kernel.source
    verdict = kernel.check(text, timed=False)
    assert not verdict.ok
    assert verdict.stage == "wrong"
