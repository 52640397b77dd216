"""What a check works out is used again by the next check of the same kernel on the same inputs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import fusec
from fusec.verify.check import Case, check_kernel
from fusec.verify.isolation import sandbox
from fusec.verify.trials import references as trials
from fusec.verify.trials.references import KeptTrials
from support import handwritten_kernels as kernels


class Counted:
    """The reference of ``scale``, counting runs of eager: float64 is asked for late."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], precision: torch.dtype | None
    ) -> list[torch.Tensor]:
        self.runs += precision is None
        return kernels.interpret(tensors, sizes, precision)


def run(subject: fusec.Kernel, case: Case, counted: Counted, kept: KeptTrials, text: str):  # type: ignore[no-untyped-def]
    return check_kernel(
        subject,
        text,
        cases=[case],
        build=kernels.build_library,
        interpret=counted,
        generated=kernels.prepare(kernels.cpp()),
        timed=False,
        kept=kept,
    )


@pytest.fixture
def subject() -> fusec.Kernel:
    return kernels.kernel(target="cpp", n=1000)


def test_references_are_worked_out_once(subject: fusec.Kernel) -> None:
    counted, kept, case = Counted(), KeptTrials(), kernels.case()
    assert run(subject, case, counted, kept, kernels.cpp()).ok
    first = counted.runs
    assert first >= 4
    again = Case(tuple(t.clone() for t in case.tensors), case.sizes)
    again.tensors[1].fill_(7)  # only written: what was there does not matter
    assert run(subject, again, counted, kept, kernels.cpp() + "// other\n").ok
    assert counted.runs == first


def test_a_wrong_edit_is_found_on_kept_trials(subject: fusec.Kernel) -> None:
    counted, kept, case = Counted(), KeptTrials(), kernels.case()
    right = kernels.cpp()
    assert run(subject, case, counted, kept, right).ok
    wrong = right.replace("2.0f", "2.1f")
    assert wrong != right
    first = run(subject, case, counted, kept, wrong)
    fresh = run(subject, case, counted, KeptTrials(), wrong)
    for verdict in (first, fresh):
        assert not verdict.ok
        assert verdict.stage == "wrong"
    assert first.reason == fresh.reason
    broken = run(subject, case, counted, kept, right + "nonsense\n")
    assert broken.stage == "compile"
    assert run(subject, case, counted, kept, right).ok


def test_other_inputs_are_worked_out_anew(subject: fusec.Kernel) -> None:
    counted, kept, case = Counted(), KeptTrials(), kernels.case()
    run(subject, case, counted, kept, kernels.cpp())
    for change in (
        lambda x: x.fill_(-0.0),
        lambda x: x.fill_(0.0),  # other bits, an equal number
        lambda x: x.normal_(),
    ):
        before, other = counted.runs, Case(tuple(t.clone() for t in case.tensors), case.sizes)
        change(other.tensors[0])
        run(subject, other, counted, kept, kernels.cpp())
        assert counted.runs > before
    before = counted.runs
    run(kernels.kernel(target="cpp", n=1000), other, counted, kept, kernels.cpp())
    assert counted.runs > before


def test_made_up_inputs_are_drawn_anew_from_time_to_time(
    subject: fusec.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "_MOST_USES", 2)
    counted, kept, case = Counted(), KeptTrials(), kernels.case()
    counts = []
    for _ in range(5):
        run(subject, case, counted, kept, kernels.cpp())
        counts.append(counted.runs)
    first = counts[0]
    assert counts == [first, first, first, 2 * first, 2 * first]


def test_large_trials_are_not_kept(subject: fusec.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_KEPT_BYTES", 1000)
    counted, kept, case = Counted(), KeptTrials(), kernels.case()
    run(subject, case, counted, kept, kernels.cpp())
    before = counted.runs
    assert run(subject, case, counted, kept, kernels.cpp()).ok
    assert counted.runs == 2 * before


def test_all_graphs_together_keep_no_more_than_the_limit(
    subject: fusec.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, case = Counted(), kernels.case()
    first, second = KeptTrials(), KeptTrials()
    run(subject, case, counted, first, kernels.cpp())
    one = first.nbytes
    assert one > 0
    # All that it takes once everything was worked out of two, but not of three.
    monkeypatch.setattr(trials, "_KEPT_BYTES", int(2.9 * one))
    run(subject, case, counted, first, kernels.cpp())
    run(subject, case, counted, second, kernels.cpp())
    assert first.nbytes > 0 < second.nbytes
    many = [KeptTrials() for _ in range(4)]
    for kept in many:
        run(subject, case, counted, kept, kernels.cpp())
        assert trials.KEPT.total <= 2.9 * one
        assert kept.nbytes > 0, "what was used last stays"
    assert first.nbytes == second.nbytes == many[0].nbytes == 0


def test_edits_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.compiled import checking

    runs = []
    plain = checking.interpret_kernel
    monkeypatch.setattr(
        checking,
        "interpret_kernel",
        lambda *args: (args[-1] or runs.append(args), plain(*args))[1],  # those of eager
    )
    compiled = fusec.compile(lambda a, b: (a + b).relu(), keep_inputs=True)
    a, b = torch.randn(64), torch.randn(64)
    compiled(a, b)
    (kernel,) = compiled.kernels.values()
    assert kernel.check(kernel.source + "// 1\n").ok
    first = len(runs)
    assert kernel.check(kernel.source + "// 2\n").ok
    assert len(runs) == first
    a.mul_(2)  # the kept inputs are the caller's own
    assert kernel.check(kernel.source + "// 3\n").ok
    assert len(runs) == 2 * first
    torch._dynamo.reset()


def test_the_generated_kernel_is_tried_once_where_inputs_are_hard(subject: fusec.Kernel) -> None:
    """An edit that differs on made-up values, as the generated kernel does, passes each time."""
    runs: list[object] = []
    generated = kernels.prepare(kernels.cpp())

    def counted_kernel(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> object:
        runs.append(sizes)
        return generated(tensors, sizes)

    def rounding(
        tensors: Sequence[torch.Tensor], sizes: Sequence[int], precision: torch.dtype | None
    ) -> list[torch.Tensor]:
        (plain,) = kernels.interpret(tensors, sizes, precision)
        return [torch.where(tensors[0].isinf(), 0.0, plain)]  # what no kernel here does

    firsts = 0
    kept, case = KeptTrials(), kernels.case()
    for number in range(3):
        verdict = check_kernel(
            subject,
            f"{kernels.cpp()}// {number}\n",
            cases=[case],
            build=kernels.build_library,
            interpret=rounding,
            generated=counted_kernel,  # type: ignore[arg-type]
            timed=False,
            kept=kept,
        )
        assert verdict.ok, verdict.reason
        assert "as the generated kernel does" in verdict.details
        firsts = firsts or len(runs)  # one for each kind of infinities
        assert len(runs) == firsts > 0


def test_the_same_bits_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = kernels.case()
    references = trials.References(case, kernels.interpret)
    looks = []
    real = trials.compare_output

    def counted(*args: Any, **options: Any) -> Any:
        looks.append(1)
        return real(*args, **options)

    monkeypatch.setattr(trials, "compare_output", counted)
    right = [each.clone() for each in references.eager]
    names = [f"output {number}" for number in range(len(right))]
    shown = references.compare(names, right, figures=True)
    first = len(looks)
    again = [each.clone() for each in right]
    assert references.compare(names, again, figures=True) == shown
    assert references.compare(names, again, figures=False) == shown
    assert len(looks) == first
    again[0].view(-1)[-1] += 1
    for _ in range(2):  # what is wrong is never taken for known
        assert not all(each.ok for each in references.compare(names, again, figures=False))
    assert len(looks) > first


def test_the_same_bits_laid_out_otherwise_are_compared_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = kernels.case()
    references = trials.References(case, kernels.interpret)
    (right,) = references.eager
    assert all(e.ok for e in references.compare(["y"], [right.clone()], figures=False))
    for other in (right.view(torch.int32), right.reshape(2, -1), right.double()):
        assert not all(e.ok for e in references.compare(["y"], [other], figures=False))


def test_trials_of_megabytes_are_kept():
    """Half a million elements: kept outputs once took the place of what they were compared with."""
    x = torch.randn(1 << 19)
    case = Case((x, torch.empty_like(x)), (x.numel(),))
    kept, subject = KeptTrials(), kernels.kernel(target="cpp", n=x.numel())
    made = [
        trials.ReferencedCase(case, trials.References(case, kernels.interpret)) for _ in range(6)
    ]
    for each in made:
        assert all(
            f.ok for f in each.references.compare(["y"], each.references.eager, figures=True)
        )
    kept.keep(subject, [case], (), made, trials.LeftOut())
    assert kept.find(subject, [case], ()) is not None


@pytest.mark.parametrize("wrong", [False, True])
def test_what_ran_is_judged_before_anything_is_timed(
    subject: fusec.Kernel, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    text = kernels.cpp()
    text = text.replace("2.0f", "2.1f") if wrong else text + "// other\n"
    seen = []
    real = sandbox.endure

    def endure(**options: Any) -> Any:
        found = real(**options)
        seen.append((options["gate"], found.calls, found.times))
        return found

    monkeypatch.setattr(sandbox, "endure", endure)
    verdict = check_kernel(
        subject,
        text,
        cases=[kernels.case()],
        build=kernels.build_library,
        interpret=kernels.interpret,
        generated=kernels.prepare(kernels.cpp()),
    )
    ((gate, calls, times),) = seen
    assert gate is not None
    assert calls >= 50
    assert verdict.ok is not wrong
    assert (times is None) is wrong
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(gate)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files")
def test_no_check_leaves_a_file_open():
    kept = KeptTrials()
    kernels.check(kernels.cpp(), kept=kept, timed=False)
    before = len(os.listdir("/proc/self/fd"))
    others = [KeptTrials() for _ in range(2)]
    for each in others:
        kernels.check(kernels.cpp(), kept=each, timed=False)
    assert len(os.listdir("/proc/self/fd")) <= before
