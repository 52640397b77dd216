"""Real programs as steps: what the native part does is what the host program does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from triton.runtime.jit import JITFunction

import fusec
from fusec.call import native
from fusec.device import plan_steps
from fusec.device.capture_policy import MOST_KEYS, MOST_PLACES, WARM_UPS, Policy
from fusec.device.captured_steps import baked_inputs, for_graph, unmovable_inputs
from fusec.device.plan import DeviceProgram, device_of
from fusec.device.plan_policy import MOST_PLANS
from fusec.device.same_memory import SameMemory
from fusec.device.start_rows import DELAYED_BYTES, MANY_PROGRAMS, in_rows, waiting
from fusec.device.step_memory import SHARED, share_memory, with_frees
from fusec.device.steps import Memory, PythonCall, Start, touched
from fusec.target_api.launches import KernelStart, LaunchRecord
from fusec.targets.triton.toolchain.launch import with_launchers
from fusec.targets.triton.toolchain.launch_records import only_launches
from fusec.targets.triton.toolchain.load import load
from support.fake_device import Device, like, operator, scale, steps_of
from support.paths import GOLDEN


@pytest.fixture(scope="module", autouse=True)
def _native_part() -> None:
    if native.types(wait=True) is None:
        assert "Python.h" in native.problem() or "only CPython" in native.problem()
        pytest.skip(f"no native part: {native.problem()}")


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def program_of(function: Callable[..., Any], *inputs: Any, **options: Any) -> DeviceProgram:
    """Compile a function for the CPU, and return its only part as if it were on a GPU."""
    compiled = fusec.compile(function, **options)
    with torch.no_grad():
        compiled(*inputs)
    (part,) = compiled.graphs[0].parts
    return DeviceProgram(
        part.state.scheduled,
        0,
        Device().machine(),
        part._run,  # type: ignore[arg-type]
        part.trace,
        lambda name: part.kernels[name].runnable(),
    )


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    scores = torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1)
    return (scores @ v).transpose(1, 2), scores.sum(-1), 3, None


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "pointwise": (lambda a, b: (a + b).relu(), [(64,), (64,)]),
    "softmax of a product": (lambda x, y: torch.softmax(x @ y, -1), [(33, 17), (17, 5)]),
    "attention": (attention, [(2, 3, 8, 4)] * 3),
    "several results": (lambda x: (x.sort(-1), x.topk(2), x.sin()), [(7, 9)]),
    "convolution": (lambda x, w: F.gelu(F.conv2d(x, w, padding=1)), [(1, 3, 8, 8), (4, 3, 3, 3)]),
    "lists": (lambda a, b: torch.cat([a @ b, torch.stack([a, b]).sum(0)]).relu(), [(4, 4)] * 2),
    "an input returned": (lambda a, b: (a, a.t(), (a @ b).exp()), [(4, 4)] * 2),
    "empty": (lambda a, b: ((a @ b).exp(), a.sum(0)), [(0, 4), (4, 4)]),
    "views": (lambda a: ((a[1:, :-1] @ a[:-1, 1:]).relu(), a[0]), [(5, 5)]),
    "a chain of kernels": (
        lambda a: [a := torch.softmax(torch.softmax(a, 0) * a.sum(1, True), 1) for _ in range(3)],
        [(8, 8)],
    ),
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", CASES)
def test_a_plan_does_what_the_host_program_does(case: str) -> None:
    function, shapes = CASES[case]
    inputs = [torch.randn(shape) for shape in shapes]
    program = program_of(function, *inputs)
    for _ in range(3):
        given = [torch.randn(shape) for shape in shapes]
        expected = program._run(list(given))
        actual = program.call(*given)
        torch.testing.assert_close(actual, expected, equal_nan=True)
        for a, b in zip(actual, expected, strict=True):
            if isinstance(a, torch.Tensor):
                assert a.stride() == b.stride()
    assert program.call.hits == 3  # the first call was compared with it


@pytest.mark.parametrize("most", [4, 3])
def test_a_kernel_of_more_tensors_than_a_start_takes_is_called_by_python(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(native.__file__).with_name("plan.cpp").read_text()
    assert f"kMostParameters = {plan_steps.MOST_PARAMETERS};" in source
    monkeypatch.setattr(plan_steps, "MOST_PARAMETERS", most)
    inputs = [torch.randn(2) for _ in range(3)]
    program = program_of(lambda *given: torch.stack(given), *inputs)
    known = program._runnables

    def recording(name: str) -> Any:
        def recorded(tensors: list[torch.Tensor], extra: list[int]) -> LaunchRecord:
            known(name)(tensors, extra)  # type: ignore[operator]
            parameters = tuple((i, 0) for i in range(len(tensors)))
            return LaunchRecord((KernelStart(1, (1, 1, 1), 32, 0, parameters),), (), (None,))

        return SimpleNamespace(recorded=recorded)

    program._runnables = recording
    outputs, steps = program._record((), list(inputs))
    torch.testing.assert_close(outputs, [torch.stack(inputs)])
    kinds = [type(step) for step in steps.steps if isinstance(step, Start | PythonCall)]
    assert kinds == [Start if most == 4 else PythonCall]


def test_sizes_that_return_get_a_plan() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y, -1) + 1

    compiled = fusec.compile(function, dynamic=True, keep_inputs=True)
    y = torch.randn(7, 3)
    with torch.no_grad():
        compiled(torch.randn(5, 7), y)
    (part,) = compiled.graphs[0].parts
    program = DeviceProgram(
        part.state.scheduled,
        0,
        Device().machine(),
        part._run,  # type: ignore[arg-type]
        part.trace,
        lambda name: part.kernels[name].runnable(),
    )
    recorded = 0
    record = program._record

    def counted(*given: Any) -> Any:
        nonlocal recorded
        recorded += 1
        return record(*given)

    program._record = counted  # type: ignore[method-assign]

    def call(n: int) -> None:
        x = torch.randn(n, 7)
        with torch.no_grad():
            compiled(x, y)
        assert len(compiled.graphs) == 1
        given = list(part.last_inputs or ())  # with the sizes among them
        torch.testing.assert_close(program.call(*given), [function(x, y)])

    for n in range(10, 15):
        call(n)
    assert recorded == 0  # none has returned
    for n in range(10, 15):
        call(n)
        call(n)
    assert recorded == program.call.plans == 5
    more = MOST_PLANS + 8
    for n in range(20, 20 + more):
        call(n)
        call(n)
    assert program.call.plans == MOST_PLANS
    before = recorded
    for _ in range(3):  # more than there is room for, in turns
        for n in range(20, 20 + more):
            call(n)
    assert program.call.plans == MOST_PLANS
    assert recorded - before < 16  # the others run without
    served = program.call.hits
    for n in range(20, 20 + more):
        call(n)
    assert program.call.hits - served >= MOST_PLANS - 16


def test_a_program_on_the_cpu_is_none_for_plans() -> None:
    compiled = fusec.compile(lambda x: torch.softmax(x @ x, -1))
    with torch.no_grad():
        compiled(torch.randn(4, 4))
    (part,) = compiled.graphs[0].parts
    assert device_of(part.state.scheduled) == "x is on the CPU"


CONJUGATED = (
    lambda x: torch.complex(x, x + 1).conj(),
    lambda x: (torch.complex(x, x).conj() @ torch.complex(x, x)).abs() + 1,
    lambda x: torch.fft.ihfft(x) * 2,
)


@pytest.mark.parametrize("number", range(len(CONJUGATED)))
def test_what_memory_does_not_hold_has_no_plan(number: int) -> None:
    function, x = CONJUGATED[number], torch.randn(4, 4)
    program = program_of(function, x)
    for _ in range(4):
        torch.testing.assert_close(program.call(x), [function(x)])
    known = program.program
    buffers = {n: replace(b, device=torch.device("cuda")) for n, b in known.buffers.items()}
    reason = device_of(replace(known, buffers=buffers))
    assert (
        reason == "what aten._conj.default returns stands for other numbers than its memory holds"
    )


@pytest.mark.parametrize("function", [lambda x: torch.softmax(x @ x, -1), lambda x: x.sin() * 2])
def test_asked_for_graphs_on_the_cpu_the_report_says_why(function: Callable[..., Any]) -> None:
    compiled = fusec.compile(function, cuda_graphs=True)
    with torch.no_grad():
        compiled(torch.randn(4, 4))
        compiled(torch.randn(4, 4))
    assert "inference: no CUDA graph: x is on the CPU" in str(compiled.explain())


def test_reduce_overhead_asks_for_graphs() -> None:
    compiled = torch.compile(lambda x: (x + 1).relu(), backend="fusec", mode="reduce-overhead")
    x = torch.randn(8)
    torch.testing.assert_close(compiled(x), (x + 1).relu())


# -- kernel files ---------------------------------------------------------------------------

TEXTS = GOLDEN / "triton"


@pytest.mark.sample(16)
@pytest.mark.parametrize("name", sorted(p.stem for p in TEXTS.glob("*.py")))
def test_generated_files_only_launch(name: str) -> None:
    namespace, _ = load((TEXTS / f"{name}.py").read_text())
    entry = with_launchers(namespace["launch"])
    assert any(isinstance(value, JITFunction) for value in namespace.values())
    # A kernel that takes descriptors of tiles copies what no descriptor can begin at.
    copies = "copy_" in (TEXTS / f"{name}.py").read_text().split("def launch")[1]
    assert only_launches(entry) != copies


# -- memory ---------------------------------------------------------------------------------


def test_memory_is_dropped_after_the_last_step_that_needs_it() -> None:
    device = Device()
    steps = with_frees(
        [like("a", 4), scale("x", "a", 4, 2), operator("a", "b", 4, 2, device), like("y", 4)]
        + [scale("b", "y", 4, 3)],
        {"y"},
    )
    kinds = [type(step).__name__ for step in steps]
    assert kinds == ["Memory", "Start", "Free", "PythonCall", "Free", "Memory", "Start"]
    assert touched(steps[2]) == ("x",)
    assert touched(steps[4]) == ("a",)


def test_kernels_are_started_together_where_little_memory_waits_for_it() -> None:
    device = Device()

    def kinds(n: int) -> list[str]:
        steps = [like("a", n), scale("x", "a", n, 2), like("y", n), scale("a", "y", n, 3)]
        steps += [operator("y", "b", n, 2, device), like("z", n), scale("b", "z", n, 3)]
        rows = in_rows(with_frees(steps, {"z"}), {"x": like("x", n)})
        return [type(step).__name__ for step in rows]

    assert kinds(4) == ["Memory", "Memory", "Start", "Start", "Free", "PythonCall", "Free"] + [
        "Memory",
        "Start",
    ]
    apart = ["Memory", "Start", "Free", "Memory", "Start", "Free", "PythonCall", "Free", "Memory"]
    assert kinds(DELAYED_BYTES) == [*apart, "Start"]


def test_memory_that_operators_see_is_not_shared() -> None:
    device = Device()
    steps = [like("a", 64), scale("x", "a", 64, 2), operator("a", "b", 64, 2, device)]
    steps += [like("c", 64), scale("b", "c", 64, 2), like("d", 64), scale("c", "d", 64, 2)]
    steps += [like("y", 64), scale("d", "y", 64, 2)]
    shared = share_memory(steps, {"y"})
    made = [step.name for step in shared if isinstance(step, Memory)]
    assert made == ["a", "/shared", "y"]


def test_shared_memory_never_holds_two_live_tensors() -> None:
    steps: list[Any] = []
    for i in range(6):
        steps += [like(f"t{i}", 50 + 40 * i), scale("x", f"t{i}", 50, 2)]
    steps += [like("y", 50)] + [scale(f"t{i}", "y", 50, 2) for i in range(6)]  # all live to here
    shared = share_memory(steps, {"y"})
    (block,) = [s for s in shared if isinstance(s, Memory) and s.name == "/shared"]
    starts = sorted(
        {p.offset for s in shared for p in getattr(s, "places", ()) if p.name == "/shared"}
    )
    assert len(starts) == 6
    sizes = {f"t{i}": 4 * (50 + 40 * i) for i in range(6)}
    assert block.bytes >= sum(sizes.values())
    assert all(start % 128 == 0 for start in starts)


# -- rearranged for a graph -----------------------------------------------------------------


def test_only_what_operators_touch_is_baked_or_copied() -> None:
    device = Device()
    x, w, y, z = like("x", 4), like("w", 4), like("y", 4), like("z", 4)
    steps = [operator("w", "y", 4, 2, device), z, scale("x", "z", 4, 3)]
    program = steps_of((x, w), steps, (y, z))
    assert baked_inputs(program) == ("w",)
    assert unmovable_inputs(program) == frozenset()
    graph = for_graph(program, ())
    assert graph.fixed == ("w",)
    assert set(graph.loose) == {"x", "z", "y/fresh"}
    assert graph.copied_outputs == ("y",)
    copied = for_graph(program, ("w",))
    assert copied.fixed == ()
    assert copied.copied_inputs == ("w",)
    assert set(copied.loose) == {"x", "w", "z", "y/fresh"}
    call = next(step for step in copied.steps.steps if isinstance(step, PythonCall))
    assert touched(call) == ("w/copy", "y")


def mutating(device: Device, name: str, **more: Any) -> PythonCall:
    return operator(name, "z", 4, 3, device, fixed=(name,), mutates=True, **more)


def test_what_is_written_through_a_view_cannot_be_copied() -> None:
    device = Device()
    x, z = like("x", 4), like("z", 4)
    view = operator("x", "y", 4, 2, device, views=True)
    again = operator("y", "w", 4, 2, device, views=True)
    assert unmovable_inputs(steps_of((x,), [view, again, mutating(device, "w")], (z,))) == {"x"}
    plain = operator("x", "y", 4, 2, device)
    assert not unmovable_inputs(steps_of((x,), [plain, mutating(device, "y")], (z,)))


def inputs_that_cannot_be_copied(function: Callable[..., Any], *inputs: Any) -> set[int]:
    program = program_of(function, *inputs)
    program.graphs = True  # such a program keeps its steps
    program.call(*inputs)
    (steps,) = program._steps.values()
    assert any(isinstance(step, PythonCall) for step in steps.steps)
    return {steps.inputs.index(name) for name in unmovable_inputs(steps)}


def test_inputs_that_operators_take_views_of_may_be_copied() -> None:
    a = torch.randn(6, 5)
    assert not inputs_that_cannot_be_copied(lambda a: a[1:, :4] @ a[:4, 1:], a)
    assert not inputs_that_cannot_be_copied(lambda a: a.t() @ a, a)
    gaps = torch.randn(6, 10)[:, ::2]
    assert not inputs_that_cannot_be_copied(lambda a: a[1:].t() @ a[1:], gaps)
    same = torch.randn(6, 1).expand(6, 5)
    assert not inputs_that_cannot_be_copied(lambda a: a.t() @ a, same)


def test_views_beyond_an_input_need_the_input_itself() -> None:
    part = torch.randn(8, 8)[:4, :4]
    assert inputs_that_cannot_be_copied(lambda a: a.as_strided((4, 4), (8, 1), 16) @ a, part) == {0}
    whole = torch.randn(8, 4)
    assert not inputs_that_cannot_be_copied(lambda a: a.as_strided((4, 4), (8, 1)) @ a.t(), whole)


@pytest.mark.parametrize(
    "layout",
    [((4, 6), (6, 1)), ((4, 6), (1, 4)), ((4, 6), (20, 3)), ((4, 6), (1, 0)), ((1, 6), (99, 2))],
)
def test_a_copy_of_an_input_serves_every_view_of_it(layout: Any) -> None:
    """As the graph makes it: other memory of the same layout, filled with the span of bytes."""
    shape, strides = layout
    memory = Memory("x", shape, strides, torch.float32)
    offset = 7
    x = torch.randn(200).as_strided(shape, strides, offset)
    copied = torch.empty_strided(shape, strides)
    size = memory.bytes // 4
    span = torch.as_strided(x, (size,), (1,), offset)
    torch.as_strided(copied, (size,), (1,), 0).copy_(span)

    def views(t: torch.Tensor) -> list[torch.Tensor]:
        return [t, t.t(), t[:, 1:5:2], t[-1:], t.as_strided((size,), (1,), t.storage_offset())]

    for actual, expected in zip(views(copied), views(x), strict=True):
        assert torch.equal(actual, expected)


# -- policy ---------------------------------------------------------------------------------

KEY = (1, 2)


def decide(policy: Policy, *places: int) -> Any:
    given = dict(enumerate(places))
    return policy.decide(KEY, given, list(given))


def test_the_first_calls_are_watched() -> None:
    policy = Policy({})
    assert [decide(policy, 1, 2).capture for _ in range(WARM_UPS)] == [False] * WARM_UPS
    decision = decide(policy, 1, 2)
    assert (decision.capture, decision.copied, decision.forget) == (True, frozenset(), False)


def test_what_moved_between_the_last_two_calls_is_copied() -> None:
    policy = Policy({})
    for i in range(WARM_UPS):
        decide(policy, 1, i)
    assert decide(policy, 1, 9).copied == {1}


def test_what_moves_later_is_copied_when_it_moved_too_often() -> None:
    policy = Policy({})
    for _ in range(WARM_UPS + 1):
        decide(policy, 1, 2)
    for i in range(MOST_PLACES - 1):
        decision = decide(policy, 1, 10 + i)
        assert (decision.copied, decision.forget) == (frozenset(), False)
    decision = decide(policy, 1, 99)
    assert (decision.copied, decision.forget) == ({1}, True)


def test_what_cannot_be_copied_ends_it_when_it_moves() -> None:
    policy = Policy({1: "state"})
    for i in range(WARM_UPS + MOST_PLACES):
        assert decide(policy, 1, 100 * i).capture == (i >= WARM_UPS)
    assert not decide(policy, 1, 5555).capture
    assert policy.reasons[0].startswith("state moved from call to call")
    assert not decide(policy, 1, 5555).capture


def test_keys_are_bounded() -> None:
    policy = Policy({})
    for key in range(3 * MOST_KEYS):
        policy.decide((key,), {0: 1}, [0])
    assert len(policy.histories) == MOST_KEYS


def rows_of(*starts: tuple[str, str, int]) -> list[tuple[int, ...]]:
    """Return what starts wait for; each is what it reads, what it writes, and its programs."""
    made = [
        replace(scale(x, out, 4, 2), grid=(programs, 1, 1), writes=(out,))
        for x, out, programs in starts
    ]
    return [start.after for start in waiting(made, SameMemory([]))]


def test_large_starts_wait_for_what_they_read_or_overwrite() -> None:
    many = MANY_PROGRAMS
    assert rows_of(("x", "a", many), ("x", "b", many), ("a", "c", many)) == [(), (), (2,)]
    assert rows_of(("a", "b", many), ("x", "a", many), ("x", "b", many)) == [(), (1,), (2,)]
    # through what it waits for it waits for the rest
    assert rows_of(("x", "a", many), ("a", "b", many), ("a", "b", many)) == [(), (1,), (1,)]


def test_small_starts_keep_their_order() -> None:
    many = MANY_PROGRAMS
    assert rows_of(("x", "a", 4), ("x", "b", 4), ("x", "c", 4)) == [(), (1,), (1,)]
    row = rows_of(("x", "a", many), ("x", "b", many), ("x", "c", 4), ("x", "d", many))
    assert row == [(), (), (1, 2), (1,)]


def test_what_shares_memory_or_is_a_view_is_waited_for() -> None:
    many = (MANY_PROGRAMS, 1, 1)
    first = replace(scale("x", SHARED, 4, 2), grid=many, writes=("t",))
    second = replace(scale("y", SHARED, 4, 2), grid=many, writes=("u",))
    assert [s.after for s in waiting([first, second], SameMemory([]))] == [(), (1,)]
    view = replace(operator("a", "v", 4, 1, Device()), views=True)
    first = replace(scale("x", "a", 4, 2), grid=many, writes=("a",))
    second = replace(scale("v", "b", 4, 2), grid=many, writes=("b",))
    assert [s.after for s in waiting([first, second], SameMemory([view]))] == [(), (1,)]
