"""Random programs in random states of torch; ``make fuzz ARGS=--state`` runs any number of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fusec
from programs.check import CLOSE, TF32
from programs.contexts import write
from programs.nodes import Node, StateProgram
from programs.shrink import repro, shrunk
from programs.state import (
    Note,
    _is_right_otherwise,
    _kind_of,
    _raised,
    compared,
    problems,
    run,
)
from programs.state_calls import _fit_for
from programs.ways import Way
from support.calls import strict_calls
from support.collector import looking_at_what_is_new

__all__ = ["strict_calls"]  # a fixture of every test here


@pytest.fixture(autouse=True)
def any_number_of_states() -> Iterator[None]:
    with torch._dynamo.config.patch(recompile_limit=64):
        yield


@pytest.fixture(autouse=True)
def collects_what_is_new() -> Iterator[None]:
    """Programs that raise collect garbage: not that of all tests before, which takes a second."""
    with looking_at_what_is_new():
        yield


@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(99))
def test_states(seed: int) -> None:
    wrong = problems(write(seed))
    assert not wrong, "\n".join([f"{write(seed)}", *wrong])


def program(*body: str) -> StateProgram:
    """Return a program of a few lines, with one call."""
    lines = ("out = f(a)", 'note_tensors("out", out)', 'note("state", state())')
    made = Node("a = tensor([2, 4], 1, torch.float32, grad=True)")
    calls = ((made, *(Node(line) for line in lines)),)
    return StateProgram(0, (), ("a",), tuple(Node(line) for line in body), ("y",), calls)


def found_in(wanted: StateProgram, broken: Callable[..., Any]) -> list[str]:
    """Return what is found where a function is called through another one."""
    eager = run(wanted, lambda f: f)
    mine = run(wanted, lambda f: lambda *args: broken(f, *args))
    return compared(wanted, eager, mine, "cpu")


def off_by_little(f: Callable[..., Any], a: torch.Tensor) -> Any:
    (y,) = f(a)
    return (y * 1.001,)


def off_by_much(f: Callable[..., Any], a: torch.Tensor) -> Any:
    (y,) = f(a)
    return (y * 1.5,)


def leaves_gradients_off(f: Callable[..., Any], a: torch.Tensor) -> Any:
    found = f(a)
    torch.set_grad_enabled(False)
    return found


def takes_random_numbers(f: Callable[..., Any], a: torch.Tensor) -> Any:
    torch.rand(1)
    return f(a)


def forgets_gradients(f: Callable[..., Any], a: torch.Tensor) -> Any:
    return tuple(each.detach() for each in f(a))


def raises_nothing(f: Callable[..., Any], a: torch.Tensor) -> Any:
    try:
        return f(a)
    except RuntimeError:
        return (a * 1,)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (off_by_little, "elements differ"),
        (leaves_gradients_off, "'gradients', False"),
        (takes_random_numbers, "'random'"),
        (forgets_gradients, "requires_grad is False"),
    ],
)
def test_what_is_wrong_is_found(broken: Callable[..., Any], words: str) -> None:
    wanted = program("y = torch.tanh(a) * 2")
    assert not found_in(wanted, lambda f, a: f(a))
    assert words in "\n".join(found_in(wanted, broken))


def test_an_error_that_does_not_come_is_found() -> None:
    wanted = program("y = a @ a")
    assert "raised in eager alone" in "\n".join(found_in(wanted, raises_nothing))


def test_halves_may_round_elsewhere() -> None:
    """But not be off by more than that."""
    wanted = program(
        "with torch.autocast('cpu', torch.bfloat16): y = (a @ a.mT).sin() / (a.mean() + 3)"
    )

    def rounded(f: Callable[..., Any], a: torch.Tensor) -> Any:
        return tuple((y.float() * 1.002).to(y.dtype) for y in f(a))

    def far(f: Callable[..., Any], a: torch.Tensor) -> Any:
        return tuple((y.float() + 0.5).to(y.dtype) for y in f(a))

    assert not found_in(wanted, rounded)
    assert "elements differ" in "\n".join(found_in(wanted, far))


def test_a_block_in_inference_mode_can_be_under_no_grad() -> None:
    """It is what says what is torch's own where AOTAutograd refuses the program itself."""
    wanted = program("with torch.inference_mode(): b = a * 2", "y = b * 3")
    notes = {
        mode: next(note.value for note in run(wanted, lambda f: f, inference=mode))
        for mode in (True, False)
    }
    inference, other = notes[True], notes[False]
    assert isinstance(inference, torch.Tensor)
    assert isinstance(other, torch.Tensor)
    assert wanted.text() != wanted.text(inference=False)
    assert not other.requires_grad
    torch.testing.assert_close(other, inference)


def differs_where_there_is_a_tanh(each: StateProgram) -> list[str]:
    notes = run(each, lambda f: f)
    if not any(note.what == "out 0" for note in notes):
        return []
    return ["call 0: out 0: 1 of 4 elements differ"] if "tanh" in each.source else []


def test_a_statement_that_has_nothing_to_do_with_it_goes() -> None:
    whole = replace(program("c = torch.sin(a)", "y = torch.tanh(a)"), results=("y",))
    smaller, found = shrunk(whole, differs_where_there_is_a_tanh, seconds=float("inf"))
    assert found
    assert [node.text for node in smaller.body] == ["y = torch.tanh(a)"]


@pytest.mark.slow
@pytest.mark.timeout(600)  # the collector runs after each candidate that is no program
def test_shrinking() -> None:
    """What has nothing to do with a difference goes; what is left can be run by itself."""
    whole = program(
        "b = a * 2",
        "with torch.no_grad(): c = torch.sin(b)",
        "y = torch.tanh(b)",
        "z = y + c",
    )
    whole = replace(whole, calls=whole.calls * 2, results=("z", "c", "y"))
    smaller, found = shrunk(whole, differs_where_there_is_a_tanh, seconds=float("inf"))
    assert found
    assert "tanh" in smaller.source
    assert len(smaller.calls) == 1
    assert [node.text for node in smaller.body] == ["b = a * 2", "y = torch.tanh(b)"]
    assert smaller.results == ("y",)


@pytest.mark.slow
def test_a_repro_runs_by_itself(tmp_path: Path) -> None:
    wanted = program("y = torch.tanh(a) * 2")
    path = repro(wanted, ["call 0: out 0: 1 of 8 elements differ"], tmp_path)
    places = [str(Path(fusec.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, str(path)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["4 notes of eager, 4 of fusec"]


def test_a_program_is_made_again() -> None:
    assert write(7).source == write(7).source
    changed = replace(write(7), seed=8)
    assert changed.source == write(7).source


@pytest.mark.parametrize("times", [1, 3], ids=["once", "too often"])
def test_what_a_checkpoint_does_again_is_not_held_against_us(times: int) -> None:
    """But for that, gradients must be right."""
    body = ("backward(a, keep=True)", "y = torch.autograd.grad(total(a * a), a)[0]")
    wanted = program(*body)
    (made, _, *rest) = wanted.calls[0]
    call = Node("out = checkpoint(f, a, use_reentrant=False)")
    wanted = replace(wanted, calls=((made, call, Node('note("a.grad", a.grad)'), *rest),))

    def mine(f: Callable[..., Any]) -> Callable[..., Any]:
        def call(a: torch.Tensor) -> Any:
            y = torch.autograd.grad((a * a).sum(), a)[0]  # nothing is saved for a checkpoint
            del y
            weights = torch.linspace(0.5, 1.5, 8).reshape(2, 4)
            a.grad = weights * times
            return (2 * a.detach() * weights,)

        return call

    found = run(wanted, mine)
    assert _is_right_otherwise(wanted, found, "cpu") == (times == 1)


def test_only_products_may_have_ten_bits() -> None:
    """And only on a GPU, where a program lets them."""
    within = Node('with matmul_precision("medium")', (Node("out = f(a)"),))
    note = Note((0, 0), "out 0", torch.zeros(()))
    for body, expected in {
        "y = torch.tanh(a)": torch.float32,
        "y = a @ a.mT": TF32,
        "y = torch.addmm(a.sum(), a, a.t())": TF32,
        "y = (a @ a.mT).half()  # torch.float16": torch.float16,
    }.items():
        wanted = replace(program(body), calls=((within,),))
        assert _kind_of(wanted, note, "cuda") == expected
        assert _kind_of(wanted, note, "cpu") != TF32
        assert _kind_of(program(body), note, "cuda") != TF32
    assert CLOSE[torch.float32] < CLOSE[TF32] < CLOSE[torch.float16]


def test_zeros_for_no_gradient_are_wrong() -> None:
    """An optimizer with momentum shows them: a parameter moves where eager leaves it alone."""
    a = Node("a = tensor([2, 4], 1, torch.float32, grad=True)")
    m = Node("m0 = module(nn.Linear(4, 4), 1, torch.float32)")
    opt = Node("opt = torch.optim.SGD([*m0.parameters()], lr=0.1, momentum=0.5)")
    step = (Node("opt.step()"), Node("opt.zero_grad()"), Node('note_module("m0", m0)'))
    calls = tuple(
        (a, Node("out = f(a)"), Node(f"backward({ends})"), *step) for ends in ("out", "out[-1]")
    )
    body = (Node("v = m0(a)"), Node("w = torch.tanh(a)"))
    wanted = StateProgram(0, (m, opt), ("a",), body, ("v", "w"), calls)

    def materializes(f: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(f, backend="aot_eager")

    assert "elements differ" in "\n".join(
        compared(wanted, run(wanted, lambda f: f), run(wanted, materializes), "cpu")
    )
    assert not _is_right_otherwise(wanted, run(wanted, materializes), "cpu")
    torch._dynamo.reset()
    ours = run(wanted, fusec.compile)
    assert not compared(wanted, run(wanted, lambda f: f), ours, "cpu")


def test_other_strides_of_saved_tensors_are_the_same_numbers() -> None:
    """Of which torch's layer norm makes other gradients."""
    text = "y = F.layer_norm(a, (4,), eps=0.1)"
    wanted = program(text)
    made, call, *rest = wanted.calls[0]
    within = Node('with saved("gaps")', (call, Node("backward(out)")))
    wanted = replace(wanted, calls=((made, within, *rest, Node('note("a.grad", a.grad)')),))
    found = run(wanted, lambda f: f, way=Way(strides=False))
    assert _is_right_otherwise(wanted, found, "cpu")


def test_no_dispatch_mode_where_a_checkpoint_computes_again() -> None:
    given = ["Operators()", "anomaly()"]
    assert _fit_for("out = checkpoint(f, a, use_reentrant=False)", given) == ["anomaly()"]
    assert _fit_for("out = f(a)", given) == given


def test_transforms_within_hooks_are_not_held_against_us() -> None:
    """Eager refuses them; what is compiled does what eager does without the hooks."""
    wanted = program("y = torch.func.vjp(torch.tanh, a)[1](a)[0]")
    made, call, *rest = wanted.calls[0]
    within = Node('with saved("same")', (call, Node('note("within", state())')))
    calls = (wanted.calls[0], (made, within, *rest))
    wanted = replace(wanted, calls=calls)
    found = run(wanted, lambda f: f, way=Way(refuses=False))
    assert "raised in eager alone" in "\n".join(
        compared(wanted, run(wanted, lambda f: f), found, "cpu")
    )
    assert _is_right_otherwise(wanted, found, "cpu")
    wrong = run(wanted, lambda f: lambda a: (f(a)[0] * 2,), way=Way(refuses=False))
    assert not _is_right_otherwise(wanted, wrong, "cpu")


def test_checkpoints_within_a_mode_may_alone_compute_again() -> None:
    """TorchDynamo leaves alone what a mode sees, each time that it does; what is compiled keeps."""
    wanted = program("y = checkpoint(lambda t: m0(t).sin(), a, use_reentrant=False)")
    made, call, *rest = wanted.calls[0]
    body = (call, Node("backward(out)"))
    calls = (
        (made, Node("with Operators()", body), *rest, Node('note_module("m0", m0)')),
        (made, *body, *rest, Node('note_module("m0", m0)')),
    )
    modules = (Node("m0 = module(Twice(4), 1, torch.float32)"),)
    wanted = replace(wanted, modules=modules, calls=calls)
    found = run(wanted, lambda f: f, way=Way(recomputes="within modes"))
    for way in (Way(), Way(recomputes=False)):
        plain = run(wanted, lambda f: f, way=way)
        assert compared(wanted, plain, found, "cpu", way)
    assert _is_right_otherwise(wanted, found, "cpu")


def casts_in_two_types() -> StateProgram:
    """Return a program whose parameter is cast to half in an inner block, and then to bfloat16."""
    inner = Node('with torch.autocast("cpu", torch.float16)', (Node("b = m0(a)"),))
    body = Node('with torch.autocast("cpu", torch.bfloat16)', (inner, Node("y = m0(a.tanh()) + b")))
    modules = (Node("m0 = module(nn.Linear(4, 4), 1, torch.float32)"),)
    return replace(program(), body=(body,), modules=modules)


def test_what_eager_raises_for_a_cast_that_autocast_keeps_is_not_expected_of_us() -> None:
    """By what eager does without the cache, and by nothing less."""
    wanted = casts_in_two_types()
    eager = run(wanted, lambda f: f)
    raised = _raised(eager)
    assert "same dtype" in raised
    assert not problems(wanted)
    way = Way(caches=False)
    mine = run(wanted, lambda f: f, way=way)
    assert "raised in eager alone" in "\n".join(compared(wanted, eager, mine, "cpu"))
    for broken in (off_by_much, forgets_gradients):
        wrong = run(wanted, lambda f, b=broken: lambda a: b(f, a), way=way)  # type: ignore[misc]
        assert not _is_right_otherwise(wanted, wrong, "cpu", raised)
    assert not _is_right_otherwise(wanted, mine, "cpu", "RuntimeError: another one")


def test_a_block_without_a_cache_says_that_it_has_one() -> None:
    """As what is compared with it, but for a program's own ``cache_enabled``."""
    for text, kept in {"": True, ", cache_enabled=False": False}.items():
        inner = (Node("y = a @ a.mT"), Node('note("within", state())'))
        block = Node(f'with torch.autocast("cpu", torch.bfloat16{text})', inner)
        wanted = replace(program(), body=(block,))
        plain, other = (run(wanted, lambda f: f, way=way) for way in (Way(), Way(caches=False)))
        assert not compared(wanted, plain, other, "cpu")
        assert ("cache", kept) in plain[0].value  # type: ignore[operator]
