"""Native calls on a GPU and CUDA graphs, over a driver that the test stands in for."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sysconfig
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton

from fusec.call import native
from fusec.device.capture_policy import MOST_CAPTURES, MOST_GRAPHS, WARM_UPS
from fusec.device.plan_check import agree
from fusec.targets.triton.toolchain.launch_records import (
    RecordedLaunch,
    only_launches,
    record_of,
    recording,
)
from fusec.toolchain.compiler import find_compiler
from support.fake_device import (
    STREAM,
    ByHand,
    Device,
    JITFunction,
    calls,
    kernel,
    library,
    like,
    operator,
    scale,
    steps_of,
)
from support.paths import SUPPORT

N = 8


@pytest.fixture(scope="module", autouse=True)
def _native_part() -> None:
    if native.types(wait=True) is None:
        assert "Python.h" in native.problem() or "only CPython" in native.problem()
        pytest.skip(f"no native part: {native.problem()}")


@pytest.fixture
def device() -> Iterator[Device]:
    calls()
    yield Device()
    library()[0].fake_refuse(0)
    library()[0].fake_end()


def tensor(n: int = N) -> torch.Tensor:
    return torch.randn(n)


def two_starts() -> Any:
    """y = 2 x, z = 3 y"""
    x, y, z = like("x", N), like("y", N), like("z", N)
    steps = [y, scale("x", "y", N, 2), z, scale("y", "z", N, 3)]
    return steps_of((x,), steps, (z,)), lambda x: [x * 6]


def start_and_operator(device: Device) -> Any:
    """y = 2 x by an operator, z = 3 y by us; both are returned."""
    x, y, z = like("x", N), like("y", N), like("z", N)
    steps = [operator("x", "y", N, 2, device), z, scale("y", "z", N, 3)]
    return steps_of((x,), steps, (y, z)), lambda x: [x * 2, x * 6]


def check(program: ByHand, *inputs: torch.Tensor) -> list[torch.Tensor]:
    expected = program.host(list(inputs))
    outputs: list[torch.Tensor] = program.call(*inputs)
    for output, wanted in zip(outputs, expected, strict=True):
        assert torch.equal(output, wanted)
    return outputs


@pytest.mark.parametrize("graphs", [False, True])
def test_another_program_in_its_place(device: Device, graphs: bool) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run, graphs=graphs)
    for _ in range(4):
        check(program, tensor())
    program.redirect(lambda inputs: [inputs[0] - 1])
    for _ in range(4):
        x = tensor()
        (output,) = program.call(x)
        assert torch.equal(output, x - 1)
    program.redirect(None)
    for _ in range(4):
        check(program, tensor())


# -- without graphs -------------------------------------------------------------------------


def test_a_plan_serves_every_call_after_the_first(device: Device) -> None:
    program = ByHand(*two_starts()[:1], device, two_starts()[1], graphs=False)
    check(program, tensor())
    before = program.slow_runs
    calls()
    (z,) = program.call(tensor())
    assert program.slow_runs == before
    assert program.call.hits == 2  # the first call was compared with it
    assert calls() == ["launch 1x1x1 128 0 on 7"] * 2
    assert z.shape == (N,)
    x = tensor()
    assert torch.equal(program.call(x)[0], x * 6)


def test_what_only_kernels_see_shares_one_allocation(device: Device) -> None:
    x, z = like("x", N), like("z", N)
    middle = [like(f"t{i}", N) for i in range(3)]
    steps: list[Any] = [middle[0], scale("x", "t0", N, 2)]
    steps += [middle[1], scale("t0", "t1", N, 2), middle[2], scale("t1", "t2", N, 2)]
    steps += [z, scale("t2", "z", N, 2)]
    program = ByHand(steps_of((x,), steps, (z,)), device, lambda x: [x * 16], graphs=False)
    check(program, tensor())
    device.allocated.clear()
    check(program, tensor())
    assert device.allocated == [(256,), (N,)]  # two of 128 bytes take turns


def test_inputs_that_nobody_else_holds_are_freed_on_the_way(device: Device) -> None:
    seen: list[bool] = []
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run, graphs=False)
    check(program, tensor())
    x = tensor()
    reference = weakref.ref(x)
    allocate = device.allocate

    def watch(*layout: Any) -> torch.Tensor:
        seen.append(reference() is not None)
        return allocate(*layout)

    plan = program._plan
    object.__setattr__(program.machine, "allocate", watch)
    program.forget()
    program.call(tensor())
    assert plan is not None
    inputs = [x]
    del x
    seen.clear()
    program.call.boxed(inputs)
    assert inputs == []
    assert seen == [False]  # z is made after the operator, x's only reader


@pytest.mark.parametrize("change", ["device", "watcher", "capture"])
def test_what_a_plan_is_not_for_takes_the_ordinary_path(device: Device, change: str) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run, graphs=change == "capture")
    for _ in range(WARM_UPS + 2):
        program.call(tensor())
    before, slow = program.call.hits, program.slow_runs
    if change == "device":
        device.device = 1
    elif change == "watcher":
        device.watchers.append(print)
    else:
        device.capturing = True
        library()[0].fake_begin(STREAM)
    x = tensor()
    assert torch.equal(program.call(x)[0], x * 6)
    assert program.slow_runs == slow + 1
    assert program.call.hits == before


def test_launches_go_to_the_current_stream(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run, graphs=False)
    check(program, tensor())
    device.stream = 11
    calls()
    check(program, tensor())
    assert calls() == ["launch 1x1x1 128 0 on 11"] * 2


def test_a_thread_that_has_not_used_the_gpu_yet(device: Device) -> None:
    """It has no context of the driver's, though torch gives it memory: as any server's thread."""
    steps, run = two_starts()
    program = ByHand(steps, device, run, graphs=False)
    check(program, tensor())
    calls()
    library()[0].fake_new_thread()
    for _ in range(2):
        check(program, tensor())
    launches = ["launch 1x1x1 128 0 on 7"] * 2
    assert calls() == ["context of 0", *launches, *launches]


def test_unaligned_inputs_have_plans_of_their_own(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run, graphs=False)
    check(program, tensor())
    check(program, tensor(N + 1)[1:])
    assert program.call.plans == 2
    check(program, tensor(N + 4)[4:])
    assert program.call.plans == 2


def test_a_launch_that_fails_is_an_error(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run, graphs=False)
    check(program, tensor())
    library()[0].fake_refuse(1)
    with pytest.raises(RuntimeError, match="launching a kernel failed: CUDA_ERROR_ILLEGAL_ADDRESS"):
        program.call(tensor())


def test_an_error_of_an_operator_arrives_and_nothing_leaks(device: Device) -> None:
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run, graphs=False)
    check(program, tensor())
    x = tensor()
    reference = weakref.ref(x)
    with pytest.raises(TypeError, match="takes 1 inputs, not 2"):
        program.call(x, x)
    with pytest.raises(TypeError):
        program.call(None)
    del x
    gc.collect()
    assert reference() is None


def test_kept_inputs_and_marks(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run, graphs=False)
    program.call.keep = True
    program.call.marks = ((0, "_marked", frozenset({0})),)
    for _ in range(2):
        x = tensor()
        (z,) = program.call(x)
        assert program.call.last[0] is x
        assert z._marked == {0}


# -- graphs ---------------------------------------------------------------------------------


def warm(program: ByHand, *inputs: torch.Tensor) -> None:
    """Call until there is a graph."""
    for _ in range(WARM_UPS + 1):
        check(program, *inputs)
    assert program.call.plans == 1, program.notes


def test_a_graph_is_replayed_on_new_inputs(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    warm(program, tensor())
    slow = program.slow_runs
    calls()
    x = tensor()
    (z,) = program.call(x)
    assert torch.equal(z, x * 6)
    assert program.slow_runs == slow
    told = calls()
    assert told[-1] == "graph"
    assert told[:-1] == ["tell kernel"] * 2  # the first takes x, the second makes z


def test_outputs_are_never_overwritten_by_a_later_call(device: Device) -> None:
    """Neither what kernels of ours make, nor what operators make inside of the graph."""
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run)
    x = tensor()
    warm(program, x)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for i in range(20):
        x.fill_(float(i + 1))
        outputs = program.call(x)
        for output, wanted in zip(outputs, run(x), strict=True):
            kept.append((output, wanted.clone()))
    assert program.call.hits >= 20
    for output, wanted in kept:
        assert torch.equal(output, wanted)
    addresses = {output.data_ptr() for output, _ in kept}
    assert len(addresses) == len(kept)
    assert not addresses & {ctypes.addressof(memory) for memory in device.alive}


def test_what_operators_read_of_ours_is_copied_out(device: Device) -> None:
    """It stays where the operator looks for it; the caller gets memory of its own."""
    x, y, z = like("x", N), like("y", N), like("z", N)
    steps: list[Any] = [y, scale("x", "y", N, 2), operator("y", "z", N, 3, device)]
    program = ByHand(steps_of((x,), steps, (y, z)), device, lambda x: [x * 2, x * 6])
    kept = [tensor() for _ in range(WARM_UPS + 6)]
    outputs = [check(program, each) for each in kept]
    assert device.captures == 1
    for each, (first, second) in zip(kept, outputs, strict=True):
        assert torch.equal(first, each * 2)
        assert torch.equal(second, each * 6)


def test_outputs_may_be_changed_by_their_owner(device: Device) -> None:
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run)
    x = tensor()
    warm(program, x)
    y, z = program.call(x)
    y.zero_(), z.zero_()
    check(program, x)
    assert not y.any()
    assert not z.any()


def test_nothing_is_told_to_a_graph_whose_memory_stays(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    x, z = tensor(), torch.empty(N)
    allocate = device.allocate
    object.__setattr__(program.machine, "allocate", lambda *a: z if a[0] == (N,) else allocate(*a))
    warm(program, x)
    program.call(x)
    calls()
    program.call(x)
    assert calls() == ["graph"]


def test_an_input_that_operators_take_is_not_copied_while_it_stays(device: Device) -> None:
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run)
    x = tensor()
    warm(program, x)
    calls()
    x.normal_()
    check(program, x)
    assert "copy" not in "".join(calls()).replace("tell copy", "")
    assert program.notes == (
        "CUDA graphs: captured; of 1 inputs none is copied, of 2 outputs 1 (my_y) is",
    )


def test_an_input_that_moves_is_copied(device: Device) -> None:
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run)
    kept = [tensor() for _ in range(WARM_UPS + 6)]  # all alive: no address returns
    for x in kept:
        check(program, x)
    assert device.captures == 1
    assert "1 (my_x) is copied" in program.notes[0]
    slow = program.slow_runs
    program.call(kept[0])
    assert program.slow_runs == slow


def test_inputs_that_alternate_have_a_graph_each(device: Device) -> None:
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run)
    first, second = tensor(), tensor()
    warm(program, first)
    for _ in range(3):
        check(program, first)
        check(program, second)
    assert device.captures == 2
    assert program.call.plans == 2
    third = tensor()
    check(program, third)  # one place too many: from now on a copy
    assert device.captures == 3
    assert program.call.plans == 1
    for x in (first, second, third, tensor()):
        check(program, x)
    assert device.captures == 3


def test_an_input_that_is_written_in_place_is_never_copied(device: Device) -> None:
    x, y = like("x", N), like("y", N)
    call = operator("x", "y", N, 2, device, fixed=("x",))
    steps: list[Any] = [call, like("z", N), scale("y", "z", N, 3)]
    program = ByHand(steps_of((x,), steps, (y, like("z", N))), device, lambda x: [x * 2, x * 6])
    for _ in range(12):
        kept = [tensor() for _ in range(3)]
        for each in kept:
            check(program, each)
    assert all("my_x) is copied" not in note for note in program.notes)
    assert "my_x moved from call to call and cannot be copied" in program.notes[-1]


def test_each_size_and_stream_has_its_graph_and_the_oldest_goes(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    x = tensor()
    for stream in range(1, MOST_GRAPHS + 3):
        device.stream = stream
        for _ in range(WARM_UPS + 1):
            check(program, x)
        assert device.captures == stream
    assert program.call.plans == MOST_GRAPHS
    device.stream = MOST_GRAPHS + 2
    check(program, x)
    assert device.captures == MOST_GRAPHS + 2
    device.stream = 1  # this one went
    check(program, x)
    assert device.captures == MOST_GRAPHS + 3


def test_graphs_that_are_always_dropped_for_others_are_given_up(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    x = tensor()
    streams = range(1, MOST_GRAPHS + 2)  # one more than there is room for, in turns
    for _ in range(WARM_UPS + MOST_CAPTURES + 2):
        for device.stream in streams:
            check(program, x)
    captures = device.captures
    assert captures <= MOST_CAPTURES * len(streams)
    for device.stream in streams:
        check(program, x)
    assert device.captures == captures
    assert f"it was captured {MOST_CAPTURES} times" in program.notes[-1]


def test_what_cannot_be_captured_runs_without_and_says_why(device: Device) -> None:
    steps, run = start_and_operator(device)
    program = ByHand(steps, device, run)
    device.failing = "operation not permitted when stream is capturing\nmore"
    x = tensor()
    for _ in range(WARM_UPS + 3):
        check(program, x)
    assert device.captures == 1
    assert program.notes == (
        "no CUDA graph: an operator cannot be captured: "
        "operation not permitted when stream is capturing",
    )
    slow = program.slow_runs
    program.call(x)
    assert program.slow_runs == slow  # it is a plan nevertheless


def test_a_driver_that_refuses_to_move_memory_costs_the_graph_only(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    warm(program, tensor())
    library()[0].fake_refuse(2)
    x = tensor()
    assert torch.equal(program.call(x)[0], x * 6)
    library()[0].fake_refuse(0)
    check(program, tensor())
    assert program.notes[-1] == "no CUDA graph: the driver refused to move its memory"


def test_a_single_launch_needs_no_graph(device: Device) -> None:
    x, y = like("x", N), like("y", N)
    steps: list[Any] = [y, scale("x", "y", N, 2)]
    program = ByHand(steps_of((x,), steps, (y,)), device, lambda x: [x * 2])
    for _ in range(WARM_UPS + 2):
        check(program, tensor())
    assert device.captures == 0
    assert program.call.hits == WARM_UPS + 2
    assert program.notes == ("no CUDA graph: a single launch costs less than a graph's",)


def test_random_numbers_are_torchs_business(device: Device) -> None:
    """A graph with random operators is replayed by torch, which moves the generators on."""
    x, z = like("x", N), like("z", N)
    steps: list[Any] = [operator("x", "y", N, 2, device, random=True), z, scale("y", "z", N, 3)]
    program = ByHand(steps_of((x,), steps, (z,)), device, lambda x: [x * 6])
    asked: list[bool] = []
    capture = device.capture

    def watch(plan: Any, inputs: Any, **given: Any) -> None:
        asked.append(given["random"])
        capture(plan, inputs, **given)

    object.__setattr__(program.machine, "capture", watch)
    given = tensor()
    warm(program, given)
    assert asked == [True]
    check(program, given)


@pytest.mark.parametrize("graphs", [False, True])
def test_a_plan_that_does_something_else_is_never_used(device: Device, graphs: bool) -> None:
    """As if a launch had been recorded wrongly: the first comparison finds it."""
    steps, _ = two_starts()
    program = ByHand(steps, device, lambda x: [x * 5], graphs=graphs)
    for _ in range(WARM_UPS + 4):
        check(program, tensor())
    assert program.call.plans == 0
    assert program.call.hits == 1
    if graphs:
        assert "its results were not those of the host program" in program.notes[-1]


def test_agreement_is_but_for_the_order_of_sums() -> None:
    x = torch.randn(1000)
    nan = torch.tensor([1.0, float("nan"), float("inf")])
    assert agree([x, 3, None, nan], [x * (1 + 1e-6), 3, None, nan.clone()])
    assert not agree([x], [x * 1.01])
    assert not agree([x], [x.double()])
    assert not agree([x], [torch.where(torch.arange(1000) == 500, 100.0, x)])
    assert not agree([nan], [torch.tensor([1.0, 2.0, float("inf")])])
    assert not agree([3], [4])
    assert not agree([x], [x, x])
    assert not agree([x.view(10, 100)], [x.view(100, 10).t()])
    assert not agree([torch.arange(4)], [torch.arange(4) + 1])
    assert agree([torch.empty(0)], [torch.empty(0)])


def test_an_edited_kernel_starts_anew(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    warm(program, tensor())
    program.link("a kernel", None)
    assert program.call.plans == 0
    warm(program, tensor())


def test_threads_replay_one_graph_on_their_own_memory(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    warm(program, tensor())
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = torch.full((N,), float(seed))
        for _ in range(300):
            if not torch.equal(program.call(x)[0], x * 6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_graph_dies_with_its_program(device: Device) -> None:
    steps, run = two_starts()
    program = ByHand(steps, device, run)
    warm(program, tensor())
    reference = weakref.ref(program)
    del program
    gc.collect()
    assert reference() is None


# -- launches recorded ----------------------------------------------------------------------

SIGNATURE = {"a": "*fp32", "b": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
BLOCK = 32


def test_a_recorded_launch_has_the_parameters_of_the_kernel() -> None:
    start = JITFunction("add_relu", SIGNATURE)
    a, b, out = tensor(), tensor(), torch.empty(N)
    with recording() as launches:
        start[(1,)](a, b, out, N)
    record = record_of(launches, [a, b, out])
    assert record is not None
    (found,) = record.starts
    assert (found.function, found.grid, found.threads) == (kernel("add_relu"), (1, 1, 1), 128)
    assert found.parameters == ((0, 0), (1, 0), (2, 0), (None, N), (None, 0), (None, 0))
    assert torch.equal(out, (a + b).relu())


def test_an_integer_that_became_a_constant_is_no_parameter() -> None:
    start = JITFunction("add_relu", {**SIGNATURE, "n": "constexpr"})
    a, b, out = torch.randn(1), torch.randn(1), torch.empty(1)
    with recording() as launches:
        start[(1,)](a, b, out, 1)
    record = record_of(launches, [a, b, out])
    assert record is not None
    assert record.starts[0].parameters == ((0, 0), (1, 0), (2, 0), (None, 0), (None, 0))


@pytest.mark.parametrize(
    "metadata", [{"num_ctas": 2}, {"launch_pdl": True}, {"global_scratch_size": 64}]
)
def test_kernels_that_need_more_are_left_to_triton(metadata: dict[str, object]) -> None:
    start = JITFunction("add_relu", SIGNATURE, **metadata)
    a = tensor()
    with recording() as launches:
        start[(1,)](a, a, a, N)
    assert record_of(launches, [a]) is None


kernel_of_file = JITFunction.__new__(JITFunction)
total = 0


def launch_plainly(x: Any, out: Any, n: int) -> None:
    """Start one kernel."""
    parts = torch.empty((4, n), dtype=torch.float32, device=x.device)
    blocks = -(-n // BLOCK) if n > 1 else 1
    if n >= 2**31:
        blocks = max(blocks, 2)
    kernel_of_file[(blocks, 1)](x, parts, out, n, BLOCK=BLOCK)


def launch_after_zeroing(x: Any, out: Any) -> None:
    out.zero_()
    kernel_of_file[(1,)](x, out)


def launch_with_zeros(x: Any, out: Any) -> None:
    counter = torch.zeros((4,), device=x.device)
    kernel_of_file[(1,)](x, out, counter)


def launch_by_address(x: Any, out: Any) -> None:
    kernel_of_file[(x.data_ptr() % 7,)](x, out)


def launch_with_state(x: Any, out: Any) -> None:
    global total
    total += 1
    kernel_of_file[(total,)](x, out)


def launch_in_a_loop(x: Any, out: Any) -> None:
    for _ in range(3):
        kernel_of_file[(1,)](x, out)


def launch_by_chance(x: Any, out: Any) -> None:
    kernel_of_file[(torch.randint(0, 4, ()),)](x, out)


def launch_by_alignment(x: Any, out: Any) -> None:
    kernel_of_file[(1,)](x, out, aligned=x.data_ptr() % 16 == 0)


def launch_by_less(x: Any, out: Any) -> None:
    kernel_of_file[(1,)](x, out, aligned=x.data_ptr() % 4 == 0)


def test_a_launch_that_only_launches_is_known_by_its_text() -> None:
    assert only_launches(launch_plainly)
    assert only_launches(launch_by_alignment), "plans are told apart by it"


@pytest.mark.parametrize(
    "launch",
    [
        launch_after_zeroing,
        launch_with_zeros,
        launch_by_address,
        launch_by_less,
        launch_with_state,
        launch_in_a_loop,
        launch_by_chance,
        len,
    ],
)
def test_a_launch_that_may_do_more_is_not(launch: Any) -> None:
    assert not only_launches(launch)


# -- against CUDA's and Triton's own declarations -------------------------------------------


def test_the_driver_is_declared_as_cudas_header_declares_it(tmp_path: Path) -> None:
    """Nothing is built with that header; where there is one, it must agree."""
    header = Path(triton.__file__).parent / "backends" / "nvidia" / "include" / "cuda.h"
    if not header.exists():
        pytest.skip("this Triton comes without CUDA's header")
    folder = Path(native.__file__).parent
    text = "\n".join(
        [
            "#define PY_SSIZE_T_CLEAN\n#include <Python.h>\n#include <cstdint>\n#include <cstdlib>",
            (folder / "system.cpp").read_text(),
            (folder / "driver.cpp").read_text(),
            (SUPPORT / "driver_layout.cpp").read_text(),
        ]
    )
    source = tmp_path / "layout.cpp"
    source.write_text(text)
    includes = [f"-I{header.parent}", f"-I{sysconfig.get_path('include')}"]
    command = [find_compiler().path, "-std=c++17", "-fsyntax-only", "-w", *includes, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FILE = """
import triton
import triton.language as tl

BLOCK = 128

@triton.jit
def plus(x_ptr, n, one, wide, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, i < n) + one + wide, i < n)

def launch(x, n, out):
    plus[(triton.cdiv(n, BLOCK),)](x, n, 1, 1 << 40, out, BLOCK=BLOCK, num_warps=2)
"""


def test_parameters_are_those_of_the_code_that_triton_makes() -> None:
    """The count and sizes of what is passed, against the entry point in the machine's text."""
    from fusec.targets.triton.toolchain import cross_compile as triton_cross
    from fusec.targets.triton.toolchain import load as triton_load
    from fusec.targets.triton.toolchain import starts as triton_starts

    namespace, path = triton_load.load(FILE)
    target = triton_starts.gpu_target("sm_90")
    x, out = torch.randn(1000), torch.empty(1000)
    starts: list[Any] = []
    function = namespace["plus"]
    namespace["plus"] = triton_starts.StartRecorder(function, starts)
    namespace["launch"](x, 1000, out)
    namespace["plus"] = function
    (start,) = starts
    compiled = triton_cross.compile_start(start, target, namespace, path)
    found = SimpleNamespace(function=4711, metadata=compiled.metadata, src=compiled.src)
    names = tuple(function.arg_names)
    record = record_of([RecordedLaunch(found, names, (8,), start.args)], [x, out])
    assert record is not None
    (one,) = record.starts
    entry = re.search(r"\.entry plus\((.*?)\)", compiled.asm["ptx"], re.DOTALL)
    assert entry is not None
    declared = re.findall(r"\.param \.(\w+)", entry[1])
    assert len(one.parameters) == len(declared)
    kinds = {"u64": 8, "u32": 4, "b64": 8, "b32": 4}
    sizes = [kinds[kind] for kind in declared]
    values = [
        8 if slot is not None or number in (0, 1 << 40) else 4 for slot, number in one.parameters
    ]
    assert values == sizes
    assert (one.grid, one.threads) == ((8, 1, 1), 64)
    assert only_launches(namespace["launch"])
