"""What forward saves for backward stays where its graph makes it: over a driver stood in for."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fusec.call import native
from fusec.device.capture_policy import MOST_PLACES, MOST_RESIDING, WARM_UPS, Policy
from fusec.device.residents import Homes, at_home, holders, may_stay
from fusec.device.steps import Output, PythonCall, SizedProgram
from support.collector import looking_at_what_is_new
from support.fake_device import ByHand, Device, calls, library, like, operator, scale, steps_of

N = 8


@pytest.fixture(scope="module", autouse=True)
def _native_part() -> Iterator[None]:
    if native.types(wait=True) is None:
        assert "Python.h" in native.problem() or "only CPython" in native.problem()
        pytest.skip(f"no native part: {native.problem()}")
    assert holders() is not None
    with looking_at_what_is_new():
        yield


@pytest.fixture
def device() -> Iterator[Device]:
    calls()
    yield Device()
    library()[0].fake_refuse(0)
    library()[0].fake_end()


def change(x: torch.Tensor) -> torch.Tensor:
    """Give a tensor other values: whole numbers, so that products are exact."""
    return x.random_(-100, 100)


def tensor() -> torch.Tensor:
    return change(torch.empty(N))


def forward_steps(device: Device) -> SizedProgram:
    """y = 2 x is the caller's; u = 3 x by a kernel and v = 5 x by an operator are saved."""
    x, y, u, v = like("x", N), like("y", N), like("u", N), like("v", N)
    steps: list[Any] = [y, scale("x", "y", N, 2), u, scale("x", "u", N, 3)]
    return steps_of((x,), [*steps, operator("x", "v", N, 5, device)], (y, u, v))


def forward(device: Device) -> ByHand:
    run: Callable[..., Any] = lambda x: [x * 2, x * 3, x * 5]  # noqa: E731
    return ByHand(forward_steps(device), device, run, saved=(1, 2))


def backward(device: Device) -> ByHand:
    """g = 2 u by an operator, h = 3 v by another."""
    u, v, g, h = like("u", N), like("v", N), like("g", N), like("h", N)
    steps: list[Any] = [operator("u", "g", N, 2, device), operator("v", "h", N, 3, device)]
    return ByHand(steps_of((u, v), steps, (g, h)), device, lambda u, v: [u * 2, v * 3])


def check(outputs: list[torch.Tensor], *expected: torch.Tensor) -> None:
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(output, wanted)


def call(program: ByHand, x: torch.Tensor) -> list[torch.Tensor]:
    outputs: list[torch.Tensor] = program.call(x)
    check(outputs, x * 2, x * 3, x * 5)
    return outputs


def warm(program: ByHand, x: torch.Tensor) -> None:
    for _ in range(WARM_UPS + 1):
        call(program, x)
    assert program.call.residing == 1, program.notes


def test_what_is_saved_stays_and_is_neither_copied_nor_allocated(device: Device) -> None:
    program = forward(device)
    x = tensor()
    warm(program, x)
    assert program.notes == (
        "CUDA graphs: captured; of 1 inputs none is copied, of 3 outputs none is, "
        "2 stay for backward",
    )
    assert device.alone == [True]
    places: set[int] = set()
    slow = program.slow_runs
    for _ in range(4):
        change(x)
        device.allocated.clear()
        calls()
        outputs = call(program, x)
        assert device.allocated == [(N,)]  # y
        assert [each for each in calls() if each != "graph"] in ([], ["tell kernel"])
        places |= {each.data_ptr() for each in outputs[1:]}
        del outputs
    assert len(places) == 2
    assert program.slow_runs == slow


def test_each_call_hands_out_other_tensors_with_versions_of_their_own(device: Device) -> None:
    program = forward(device)
    x = tensor()
    warm(program, x)
    identities = set()
    for _ in range(3):
        _, u, v = call(program, x)
        assert not u._is_view()
        assert u._version == v._version == 0
        assert not u.requires_grad
        u.zero_()
        u.mine = True  # type: ignore[attr-defined]
        identities.add(id(u))
        del u, v
    (_, u, _) = call(program, x)
    assert u._version == 0
    assert not hasattr(u, "mine")


HOLD: dict[str, Callable[[torch.Tensor], object]] = {
    "itself": lambda t: t,
    "a view": lambda t: t[2:4],
    "its data": lambda t: t.data,
    "its storage": lambda t: t.untyped_storage(),
    "its typed storage": lambda t: t.storage(),
    "an alias": lambda t: t.detach(),
    "numpy": lambda t: t.numpy(),
    "dlpack": torch.utils.dlpack.to_dlpack,
    "autograd": lambda t: (t * torch.ones(N, requires_grad=True)).grad_fn,
    "a closure": lambda t: lambda: t,
}


@pytest.mark.filterwarnings("ignore:TypedStorage")
@pytest.mark.parametrize("how", HOLD)
def test_what_somebody_holds_is_never_overwritten(device: Device, how: str) -> None:
    program = forward(device)
    x = tensor()
    warm(program, x)
    _, u, v = call(program, x)
    home, wanted = u.data_ptr(), u.clone()
    held = HOLD[how](u)
    del u, v
    for _ in range(2 * WARM_UPS + 3):
        change(x)
        _, other, _ = call(program, x)
        assert other.data_ptr() != home
        del other
    if how == "its data" or how == "itself":
        assert torch.equal(held, wanted)  # type: ignore[arg-type]
    del held
    gc.collect()
    slow = program.slow_runs
    _, u, _ = call(program, x)  # free again: by the graph again
    assert u.data_ptr() == home
    assert program.slow_runs == slow


def test_calls_that_find_residents_held_become_a_graph_of_their_own(device: Device) -> None:
    program = forward(device)
    x = tensor()
    warm(program, x)
    kept = call(program, x)
    wanted = [each.clone() for each in kept]
    for _ in range(WARM_UPS):
        change(x)
        call(program, x)
        assert device.captures == 1
    call(program, x)
    assert device.captures == 2
    assert device.alone == [True, False]
    slow = program.slow_runs
    others = [(change(x), call(program, x), x.clone())[1:] for _ in range(5)]
    assert program.slow_runs == slow
    for outputs, given in others:
        check(outputs, given * 2, given * 3, given * 5)
    check(kept, *wanted)
    home = {each.data_ptr() for each in kept[1:]}
    del kept, others, outputs
    assert {each.data_ptr() for each in call(program, x)[1:]} == home
    assert device.captures == 2
    assert program.notes[1].endswith("of 3 outputs 1 (my_v) is")


def test_what_is_given_to_hooks_is_no_resident(device: Device) -> None:
    program = forward(device)
    x = tensor()
    warm(program, x)
    home = call(program, x)[1].data_ptr()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert call(program, x)[1].data_ptr() != home
    assert call(program, x)[1].data_ptr() == home


def test_two_forwards_then_two_backwards_again_and_again(device: Device) -> None:
    program, gradient = forward(device), backward(device)
    x = tensor()
    for count in (1, 1, 1, 1, 2, 1, 2, 2, 2, 2, 3, 1, 1, 2):
        saved = []
        for _ in range(count):
            change(x)
            saved.append((x.clone(), call(program, x)[1:]))
        while saved:
            given, tensors = saved.pop()
            check(gradient.call(*tensors), given * 3 * 2, given * 5 * 3)
            del tensors
    assert device.captures <= 4


def test_backward_finds_its_inputs_where_they_were(device: Device) -> None:
    program, gradient = forward(device), backward(device)
    x = tensor()
    for _ in range(WARM_UPS + 3):
        change(x)
        gradient.call(*call(program, x)[1:])
    assert gradient.notes[0].startswith("CUDA graphs: captured; of 2 inputs none is copied")
    captures, slow = device.captures, gradient.slow_runs
    for _ in range(5):
        change(x)
        saved = call(program, x)[1:]
        calls()
        check(gradient.call(*saved), x * 6, x * 15)
        del saved
        assert not [each for each in calls() if each.startswith("copy")]
    assert (device.captures, gradient.slow_runs) == (captures, slow)


def test_a_backward_from_elsewhere_does_not_ruin_the_graph(device: Device) -> None:
    program, gradient = forward(device), backward(device)
    x = tensor()

    def step() -> None:
        change(x)
        check(gradient.call(*call(program, x)[1:]), x * 6, x * 15)

    for _ in range(WARM_UPS + 3):
        step()
    captures = device.captures
    for _ in range(WARM_UPS):  # a few of them: no graph for these
        gradient.call(tensor(), tensor())
        step()
    assert device.captures == captures
    kept = []
    for _ in range(10):  # many: a graph that copies
        kept.append((tensor(), tensor()))
        check(gradient.call(*kept[-1]), kept[-1][0] * 2, kept[-1][1] * 3)
        step()
    assert device.captures == captures + 1
    assert any("2 (my_u, my_v) are copied" in note for note in gradient.notes)
    calls()
    saved = call(program, x)[1:]
    gradient.call(*saved)
    # The usual ones have their own, which copies nothing in.
    assert not [each for each in calls() if each.startswith("tell copy")][2:]
    assert not any("no CUDA graph" in note for note in gradient.notes)


def test_held_tensors_outlive_the_graph(device: Device) -> None:
    program = forward(device)
    x = tensor()
    warm(program, x)
    kept = call(program, x)
    wanted = [each.clone() for each in kept]
    program.forget()
    device.alive.clear()
    gc.collect()
    for _ in range(WARM_UPS + 4):
        change(x)
        call(program, x)
        torch.full((N,), float("nan"))
    del program
    gc.collect()
    check(kept, *wanted)


@pytest.mark.parametrize("seed", range(4))
def test_calls_in_any_order(device: Device, seed: int) -> None:
    """Results held, given to backward, dropped at random: each is what it was when it was made."""
    generator = random.Random(seed)
    program, gradient = forward(device), backward(device)
    inputs = [tensor() for _ in range(2)]
    alive: list[tuple[torch.Tensor, Any]] = []
    for _ in range(300):
        what = generator.random()
        if what < 0.5:
            x = generator.choice(inputs) if generator.random() < 0.9 else tensor()
            change(x)
            outputs = call(program, x)
            alive.append((x.clone(), outputs))
            del outputs
        elif what < 0.9 and alive:
            x, outputs = alive.pop(generator.randrange(len(alive)))
            check(outputs, x * 2, x * 3, x * 5)
            if generator.random() < 0.8:
                check(gradient.call(*outputs[1:]), x * 6, x * 15)
            del outputs
        elif what < 0.95:
            alive = alive[:1]
        elif what < 0.96:
            generator.choice((program, gradient)).forget()
    for x, outputs in alive:
        check(outputs, x * 2, x * 3, x * 5)


def test_threads_never_share_residents(device: Device) -> None:
    program = forward(device)
    x = torch.ones(N)
    warm(program, x)
    wrong: list[int] = []
    inputs = [x] + [torch.full((N,), float(i)) for i in range(2, 5)]

    def work(given: torch.Tensor) -> None:
        for _ in range(300):
            y, u, v = program.call(given)
            ok = torch.equal(y, given * 2) and torch.equal(u, given * 3)
            if not ok or not torch.equal(v, given * 5):
                wrong.append(int(given[0]))

    threads = [threading.Thread(target=work, args=(each,)) for each in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_an_operator_keeps_is_copied_out(device: Device) -> None:
    """It hands out what it was given, or remembers what it made: not the graph's alone."""
    x, u, v = like("x", N), like("u", N), like("v", N)
    kept: list[torch.Tensor] = []
    plain = operator("x", "v", N, 5, device)

    def remember(given: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = plain.function(given)
        kept.append(made)
        return made

    careless = PythonCall(remember, plain.arguments, (), ("v",), (None,), False, ("x",))
    steps: list[Any] = [u, scale("x", "u", N, 3), careless]
    program = ByHand(steps_of((x,), steps, (u, v)), device, lambda x: [x * 3, x * 5], saved=(0, 1))
    given = tensor()
    for _ in range(WARM_UPS + 4):
        check(program.call(given), given * 3, given * 5)
        change(given)
    assert device.captures == 2
    assert program.notes == (
        "CUDA graphs: captured; of 1 inputs none is copied, of 2 outputs 1 (my_v) is, "
        "1 stay for backward",
    )
    program.forget()
    given = tensor()
    for _ in range(WARM_UPS + 2):
        check(program.call(given), given * 3, given * 5)


def test_without_a_way_to_count_holders_nothing_stays(device: Device) -> None:
    on = device.machine()
    object.__setattr__(on, "holders", None)
    device.machine = lambda: on  # type: ignore[method-assign]
    program = forward(device)
    x = tensor()
    for _ in range(WARM_UPS + 3):
        call(program, x)
    assert program.call.residing == 0
    assert program.notes[0].endswith("of 3 outputs 1 (my_v) is")


def test_where_memory_is_short_nothing_stays(device: Device) -> None:
    program = forward(device)
    capture = device.capture

    def short(*given: Any, alone: bool, **more: Any) -> None:
        if alone:
            raise torch.OutOfMemoryError("CUDA out of memory")
        capture(*given, **more)

    object.__setattr__(program.machine, "capture", short)
    x = tensor()
    for _ in range(WARM_UPS + 3):
        call(program, x)
    assert (program.call.residing, program.call.plans, device.captures) == (0, 1, 1)


def test_few_graphs_of_a_part_have_residents(device: Device) -> None:
    program = forward(device)
    x = tensor()
    for device.stream in range(1, MOST_RESIDING + 3):
        for _ in range(WARM_UPS + 2):
            call(program, x)
    assert program.call.plans == MOST_RESIDING + 2
    assert program.call.residing == MOST_RESIDING
    assert device.alone == [True] * MOST_RESIDING + [False] * 2


def test_a_driver_that_refuses_costs_the_graph_only(device: Device) -> None:
    program = forward(device)
    x = tensor()
    warm(program, x)
    library()[0].fake_refuse(2)
    kept = [call(program, tensor()) for _ in range(3)]
    library()[0].fake_refuse(0)
    del kept
    assert "the driver refused to move its memory" in program.notes[-1]
    for _ in range(3):
        call(program, tensor())


def test_what_may_stay(device: Device) -> None:
    steps = forward_steps(device)
    assert may_stay(steps, (1, 2)) == ("u", "v")
    assert may_stay(steps, ()) == ()
    x, y, u, v = like("x", N), like("y", N), like("u", N), like("v", N)
    given = steps.steps

    def outputs(*values: Output) -> SizedProgram:
        return SizedProgram(("x",), given, values, {"x": x}, (y, u, v), ())

    view = Output("u", lambda t: t[:2])
    assert may_stay(outputs(Output("y"), view, Output("v")), (1, 2)) == ("u", "v")
    # saved and returned, whole or in part; an input; a size
    assert may_stay(outputs(Output("u"), Output("u"), Output("v")), (1, 2)) == ("v",)
    assert may_stay(outputs(view, Output("u")), (1,)) == ()
    assert may_stay(outputs(Output("y"), Output("x"), Output(None, constant=3)), (1, 2)) == ()
    viewing = operator("x", "v", N, 5, device, views=True)
    aliased = steps_of((x,), [y, scale("x", "y", N, 2), viewing], (y, v))
    assert may_stay(aliased, (1,)) == ()


# -- policy ---------------------------------------------------------------------------------

KEY = (1, 2)


def decide(policy: Policy, u: int, v: int, home: frozenset[int] = frozenset()) -> Any:
    return policy.decide(policy.key(KEY, home), {0: u, 1: v}, [0, 1], home)


def test_residents_are_not_copied_though_they_came_from_elsewhere_before() -> None:
    policy = Policy({})
    decide(policy, 1, 11)
    decide(policy, 2, 12)
    decision = decide(policy, 100, 13, frozenset({0}))
    assert (decision.capture, decision.copied) == (True, {1})


def test_residents_of_graphs_that_come_and_go_are_never_copied() -> None:
    policy = Policy({})
    home = frozenset({0, 1})
    captures = 0
    for place in range(100, 120):
        decision = decide(policy, place, place + 1000, home)
        captures += decision.capture
        assert not decision.copied
    assert MOST_PLACES < captures <= 8
    assert "it was captured" in policy.reasons[0]


def test_calls_with_residents_elsewhere_have_a_history_of_their_own() -> None:
    policy = Policy({})
    home = frozenset({0, 1})
    for _ in range(WARM_UPS + 1):
        decide(policy, 100, 200, home)
    for i in range(WARM_UPS):
        assert not decide(policy, i, 10 + i).capture
    assert decide(policy, 5, 15).copied == {0, 1}
    assert policy.histories[policy.key(KEY, home)].captures == 1


def test_homes_are_known_while_their_plan_lives() -> None:
    homes = Homes()
    homes.lie_at((4096, 0, 512), (64, 0, 8))
    places = {0: 4096, 1: 0, 2: 5, 3: 4159, 4: 4160, 5: 4095, 6: 512, 7: 520}
    assert at_home(places, range(8)) == {0, 3, 6}  # a part of one is as much at home
    assert at_home({0: 4096}, []) == frozenset()
    del homes
    gc.collect()
    assert at_home({0: 4096}, [0]) == frozenset()
