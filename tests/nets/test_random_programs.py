"""Random programs compute what they do in eager; ``make fuzz`` runs as many as one likes."""

from __future__ import annotations

import pytest
import torch

from programs.check import Run, call, compared, problems
from programs.generate import Program, write

BLOCK = 8


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setenv("FUSEC_POISON", "1")  # what nothing has written is NaN, where it is read


def check(programs: list[Program], **how: object) -> None:
    found = {}
    for program in programs:
        wrong = problems(program, **how)  # type: ignore[arg-type]
        if wrong:
            found[program.seed] = f"{program}" + "\n".join(wrong)
    assert not found, "\n\n".join(f"# {seed}\n{text}" for seed, text in found.items())


def block(number: int, size: int = BLOCK) -> range:
    return range(number * size, (number + 1) * size)


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(12))
def test_forward(number: int) -> None:
    check([write(seed) for seed in block(number)])


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(12))
def test_gradients(number: int) -> None:
    check([write(seed, train=True) for seed in block(number)])


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(4))
def test_halves(number: int) -> None:
    check([write(seed, halves=True, train=seed % 2 == 1) for seed in block(number)])


@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(4))
def test_symbolic_sizes(number: int) -> None:
    check([write(seed) for seed in block(number)], dynamic=True)


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize("number", range(4))
def test_triton_kernels(number: int) -> None:
    check([write(seed, length=5) for seed in block(number, 4)], target="triton")


def test_a_seed_makes_the_same_program_again() -> None:
    one, other = write(7), write(7)
    assert str(one) == str(other)
    for a, b in zip(one.fresh(), other.fresh(), strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that computes something else, shares memory, or lies otherwise, differs."""
    program = write(0)
    right = program.function()

    def wrong(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = list(right(*inputs))
        outputs[1] = outputs[1].clone()
        outputs[1].view(-1)[-1] += 0.01
        return tuple(outputs)

    monkeypatch.setattr("fusec.compile", lambda *_, **__: wrong)
    assert all("output 1: 1 of" in each for each in problems(program))
    assert len(problems(program)) == 2


def test_float64_tells_where_eager_rounds_though_it_may_not_derive() -> None:
    """A sum of 512 halves stops growing in eager; in float64 what backward reads was updated."""
    lines = (
        "v0 = torch.zeros_like(a).index_add(0, b, a.index_select(0, b))",
        "v1 = a.square()",
        "v2 = F.rms_norm(v1, (1,))",
        "v1.clamp_(-2, 2)",
        "return (v0, v2)",
    )
    a, b = torch.full([1], 0.92, dtype=torch.bfloat16), torch.zeros(512, dtype=torch.int64)
    program = Program(0, lines, {"a": a.requires_grad_(), "b": b}, {}, True)
    eager = call(program.function(), program.fresh())
    assert eager.outputs[0].item() == 256

    def found(first: float, second: float) -> list[str]:
        pairs = zip(eager.outputs, (first, second), strict=True)
        outputs = [torch.full_like(each, number) for each, number in pairs]
        mine = Run(outputs, eager.inputs, eager.slopes)
        return compared(program, program.fresh(), eager, mine)

    norm = eager.outputs[1].item()
    assert not found(472, norm)
    assert [each.split(":")[0] for each in found(472, norm + 1)] == ["output 1"]


def test_a_tie_that_a_mean_rounds_is_either() -> None:
    """A mean of equal numbers is that number or the one beside it, and a comparison tells."""
    lines = (
        "v0 = a.expand(18, 4)",
        "v1 = torch.where(v0 > v0.mean(0, keepdim=True), v0, v0 * 0.5)",
        "v2 = F.layer_norm(b, (1,))",
        "return (v1, v2)",
    )
    a, b = torch.tensor([[1.1, -0.3, 0.7, 2.9]]), torch.tensor([[1.1], [0.3]])
    program = Program(0, lines, {"a": a, "b": b}, {}, False)
    eager = call(program.function(), program.fresh())

    def found(compared_to: torch.Tensor, norm: float) -> list[str]:
        outputs = [compared_to.expand(18, 4).contiguous(), torch.full_like(b, norm)]
        return compared(program, program.fresh(), eager, Run(outputs, eager.inputs, eager.slopes))

    assert not found(a, 0.0)
    assert not found(a * 0.5, 5e-5)
    assert [each.split(":")[0] for each in found(a * 100, 0.1)] == ["output 0", "output 1"]


def test_which_of_two_nearly_equal_numbers_is_greatest_is_either() -> None:
    """One run with other roundings may move both alike."""
    lines = ("v0 = a.softmax(-1)", "v1 = (v0 >= v0.amax(-1, keepdim=True)).float()", "return (v1,)")
    rows = torch.tensor([[0.0, 2e-7], [2e-7, 0.0], [1.0, 0.0], [0.0, 1.0]])
    program = Program(0, lines, {"a": rows}, {}, False)
    eager = call(program.function(), program.fresh())

    def found(result: torch.Tensor) -> list[str]:
        return compared(program, program.fresh(), eager, Run([result], eager.inputs, eager.slopes))

    (ours,) = eager.outputs
    tied = torch.cat([torch.ones(2, 2), ours[2:]])
    assert not found(torch.cat([1 - ours[:2], ours[2:]]))
    assert not found(tied)
    assert found(1 - ours)
