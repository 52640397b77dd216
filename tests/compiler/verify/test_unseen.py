"""Edits whose results are right by luck: threads that race, a step past a local array."""

from __future__ import annotations

import pytest
import torch

import fusec
from fusec.kernel import Kernel
from fusec.systems import this_system
from fusec.toolchain import sanitizers
from fusec.verify.check import Case
from fusec.verify.isolation.unseen import seen_by_watching
from fusec.verify.words import Finding

needs_sanitizers = pytest.mark.skipif(
    this_system().name != "linux" or sanitizers.ADDRESS not in sanitizers.sanitizers(),
    reason="the compiler has no sanitizers",
)
LOOP = "    for (int64_t i0 = 0; i0 < 20; ++i0) {"
ROW = "        alignas(64) float exponential_row[37];\n"
PARALLEL = "#pragma omp parallel for num_threads((int)threads)"


def kernel(function, *given: torch.Tensor) -> Kernel:
    call = fusec.compile(function, keep_inputs=True)
    call(*given)
    return list(call.kernels.values())[-1]


@pytest.fixture(scope="module")
def rows() -> Kernel:
    """Return a kernel that keeps a row in an array of its own."""

    def masked(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.masked_fill(m, -float("inf")), -1)

    return kernel(masked, torch.randn(20, 37), torch.rand(20, 37) < 0.3)


def watched(kernel: Kernel, text: str) -> Finding | None:
    tensors = torch.rand(20, 37) < 0.3, torch.randn(20, 37), torch.randn(20, 37)
    source = kernel.generated
    return seen_by_watching(
        text,
        source.text,
        source.entry,
        kernel.signature,
        [Case(tensors, ())],
        threads=2,
        seconds=60.0,
    )


@needs_sanitizers
def test_threads_that_share_a_row(rows: Kernel) -> None:
    text = rows.generated.text
    assert LOOP in text
    assert ROW in text
    right = text.replace(LOOP, f"    {PARALLEL}\n{LOOP}")
    assert watched(rows, right) is None
    wrong = right.replace(ROW, "").replace(f"    {PARALLEL}", f"{ROW}    {PARALLEL}")
    found = watched(rows, wrong)
    assert found is not None
    assert found.reason.startswith("its threads race")
    assert "exponential_row[r0]" in wrong.splitlines()[found.line - 1]


@needs_sanitizers
@pytest.mark.parametrize("clause", ["", " schedule(dynamic)", " schedule(guided, 2)"])
def test_threads_that_do_not_race(rows: Kernel, clause: str) -> None:
    text = rows.generated.text.replace(LOOP, f"    {PARALLEL}{clause}\n{LOOP}")
    assert watched(rows, text) is None


@needs_sanitizers
def test_threads_that_wait_for_each_other(rows: Kernel) -> None:
    start = "{\n    float sums[4] = {};\n    float most = 0.0f;\n"
    team = (
        "    #pragma omp parallel num_threads((int)threads)\n    {\n"
        "        #pragma omp for%s\n"
        "        for (int k = 0; k < 4; ++k) sums[k] = x[k];\n"
        "        #pragma omp for reduction(+ : most)\n"
        "        for (int k = 0; k < 4; ++k) most += sums[3 - k];\n"
        "        #pragma omp critical\n"
        "        sums[0] += 1.0f;\n"
        "        #pragma omp single\n"
        "        softmax[0] = most;\n    }\n"
    )
    head, entry, rest = rows.generated.text.partition('extern "C"')

    def with_team(clause: str) -> str:
        return head + entry + rest.replace("{\n", start + team % clause, 1)

    assert watched(rows, with_team("")) is None
    found = watched(rows, with_team(" nowait"))
    assert found is not None
    assert found.reason.startswith("its threads race")


@needs_sanitizers
def test_an_array_that_is_too_short(rows: Kernel) -> None:
    verdict = rows.check(rows.generated.text.replace("exponential_row[37]", "exponential_row[32]"))
    assert not verdict.ok
    assert verdict.line
    assert "outside of a local array" in verdict.reason
    longer = rows.generated.text.replace("exponential_row[37]", "exponential_row[64]")
    assert watched(rows, longer) is None


def test_what_is_the_same_is_not_watched(rows: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizers, "run_watched", lambda *_, **__: pytest.fail("it was"))
    assert watched(rows, rows.generated.text + "// a remark\n") is None


@needs_sanitizers
def test_threads_that_meet_where_all_indices_are_one() -> None:
    def add(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.index_add(0, i, s)

    found = kernel(add, torch.randn(20, 12), torch.arange(8), torch.randn(8, 12))
    loop = "    for (int64_t u0 = 0; u0 < 8; ++u0) {"
    text = found.generated.text
    assert loop in text
    verdict = found.check(text.replace(loop, f"    {PARALLEL} reduction(max : failed)\n{loop}"))
    assert not verdict.ok
    assert "race" in verdict.reason
