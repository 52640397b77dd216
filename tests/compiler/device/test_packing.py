"""Several starts of one kernel as one: which of them, in what order, and the kernel around it."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.device.packing import MOST_POINTERS, pack_starts
from fusec.device.steps import Copy, Memory, MemoryPlace, PythonCall, Start, Step
from fusec.ir.index import Expr
from fusec.kernel_source import Argument, Signature
from fusec.target_api.base import PackedKernel
from fusec.targets.triton.toolchain import build as triton_build
from fusec.targets.triton.toolchain import cross_compile as triton_cross
from fusec.targets.triton.toolchain import load as triton_load
from fusec.targets.triton.toolchain import packed_kernel
from fusec.targets.triton.toolchain import starts as triton_starts
from fusec.targets.triton.toolchain.packed_kernel import compile_packed, packed_source, packed_text

KINDS = {"x_ptr": "*fp32", "out_ptr": "*fp32", "BLOCK": "constexpr"}
KERNELS = [SimpleNamespace(src=SimpleNamespace(signature=KINDS)) for _ in range(3)]


def start(kernel: int, x: str, out: str, grid: int = 4, number: int = 0) -> Start:
    places = (
        MemoryPlace(x),
        MemoryPlace(out),
        MemoryPlace(None, number),
        MemoryPlace(None),
        MemoryPlace(None),
    )
    return Start(100 + kernel, (grid, 1, 1), 128, 0, places, (out,), KERNELS[kernel])


def call(*names: str) -> PythonCall:
    return PythonCall(
        print, tuple(MemoryPlace(n) for n in names), (), (), (), False, names, mutates=True
    )


def view(of: str, name: str) -> PythonCall:
    return PythonCall(print, (MemoryPlace(of),), (), (name,), (None,), False, (of,), views=True)


def memory(name: str) -> Memory:
    return Memory(name, (4,), (1,), torch.float32)


def build(kernel: Any, count: int) -> PackedKernel:
    (index,) = (i for i, each in enumerate(KERNELS) if each is kernel)
    return PackedKernel(kernel, 1000 * count + 100 + index, 128, 0)


def joined(steps: Sequence[Step]) -> list[Step]:
    return pack_starts(steps, build)[0]


def counts(steps: Sequence[Step]) -> list[int]:
    return [step.grid[1] for step in steps if isinstance(step, Start)]


_histories: dict[object, int] = {}


def history(*event: object) -> int:
    """Return a number for how a value came about, the same for the same events."""
    return _histories.setdefault(event, len(_histories))


def simulate(steps: Sequence[Step]) -> dict[str, object]:
    """Return what is in all memory in the end, as the history of how it came about."""
    state: dict[str, object] = {}
    viewed: dict[str, str] = {}

    def memory_of(name: str) -> str:
        return viewed.get(name, name)

    def there(name: str) -> object:
        return state.get(memory_of(name), memory_of(name))

    for step in steps:
        if isinstance(step, Copy):
            state[memory_of(step.to)] = there(step.source)
        elif isinstance(step, PythonCall):
            names = [a.name for a in step.arguments if isinstance(a, MemoryPlace) and a.name]
            if step.views:
                viewed[str(step.outputs[0])] = memory_of(names[0])
                continue
            given = tuple(there(name) for name in names)
            state.update({memory_of(name): history("call", name, given) for name in names})
        elif isinstance(step, Start):
            named = [place.name for place in step.places if place.name]
            (number, *_) = (place.offset for place in step.places if place.name is None)
            for x, out in zip(named[::2], named[1::2], strict=True):
                event = history(step.function % 1000, number, there(x), there(out))
                state[memory_of(out)] = event
    return state


def test_independent_starts_become_one() -> None:
    steps = [each for i in range(9) for each in (memory(f"y{i}"), start(0, f"x{i}", f"y{i}"))]
    found = joined(steps)
    assert counts(found) == [9]
    (one,) = (step for step in found if isinstance(step, Start))
    assert one.function == 9100
    assert set(one.writes) == {f"y{i}" for i in range(9)}
    assert simulate(found) == simulate(steps)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([start(0, "a", "b"), start(0, "b", "c")], [1, 1]),  # reads what the other wrote
        ([start(0, "a", "b"), start(0, "c", "a")], [1, 1]),  # overwrites what the other reads
        ([start(0, "a", "b"), start(0, "c", "b")], [1, 1]),  # writes the same
        ([start(0, "a", "b"), start(0, "a", "c")], [2]),  # reads the same
        ([start(0, "a", "a"), start(0, "b", "b")], [2]),  # in place
        ([start(0, "a", "b"), start(1, "b", "b"), start(0, "c", "d")], [1, 1, 1]),
        ([start(0, "a", "b"), start(1, "c", "d"), start(0, "e", "f"), start(1, "g", "h")], [2, 2]),
        ([start(0, "a", "b"), call("b"), start(0, "c", "d")], [1, 1]),
        ([start(0, "a", "b"), call("z"), start(0, "c", "d")], [2]),
        ([start(0, "a", "b"), Copy("a", "z", 16), start(0, "c", "d")], [1, 1]),
        ([start(0, "a", "b"), Copy("z", "a", 16), start(0, "c", "d")], [2]),
        ([view("a", "v"), start(0, "v", "b"), start(1, "c", "a"), start(0, "e", "f")], [1, 1, 1]),
        ([view("a", "v"), view("v", "w"), start(0, "a", "a"), start(0, "w", "b")], [1, 1]),
        ([view("a", "v"), start(0, "v", "b"), start(0, "a", "c")], [2]),
        ([start(0, "a", "b"), start(0, "c", "d", grid=5)], [1, 1]),  # other programs
        ([start(0, "a", "b"), start(0, "c", "d", number=5)], [1, 1]),  # another integer
        ([start(0, "a", "b", grid=9000), start(0, "c", "d", grid=9000)], [1, 1]),  # long enough
    ],
)
def test_order_stays_where_it_matters(steps: list[Step], expected: list[int]) -> None:
    found = joined(steps)
    assert counts(found) == expected
    assert simulate(found) == simulate(steps)


@pytest.mark.parametrize("seed", range(60))
def test_any_program_computes_the_same(seed: int) -> None:
    draw = random.Random(seed)
    names = [f"t{i}" for i in range(draw.choice([3, 8, 30]))]
    steps: list[Step] = []
    for i in range(80):
        kind = draw.random()
        if kind < 0.8:
            steps.append(start(draw.randrange(3), *draw.sample(names, 2), grid=draw.choice([4, 5])))
        elif kind < 0.87:
            steps.append(Copy(*draw.sample(names, 2), 16))
        elif kind < 0.9:
            steps.append(call(*draw.sample(names, 2)))
        elif kind < 0.93:
            steps.append(view(draw.choice(names), f"view{i}"))
            names.append(f"view{i}")
        else:
            names.append(f"new{i}")
            steps.append(memory(names[-1]))
    found = joined(steps)
    assert simulate(found) == simulate(steps)
    assert sum(counts(found)) == sum(counts(steps))
    placed = [step.name for step in found if isinstance(step, Memory)]
    assert placed == [step.name for step in steps if isinstance(step, Memory)]


def test_parameters_fit() -> None:
    steps = [start(0, f"x{i}", f"y{i}") for i in range(500)]
    found = joined(steps)
    assert max(counts(found)) * 2 <= MOST_POINTERS
    assert sum(counts(found)) == 500
    assert simulate(found) == simulate(steps)


def test_what_cannot_be_packed_stays() -> None:
    steps = [start(0, "a", "b"), start(0, "c", "d")]
    assert pack_starts(steps, lambda kernel, count: None) == (steps, ())
    unknown = [replace(step, kernel=None) for step in steps]
    assert joined(unknown) == unknown


# -- the kernel -----------------------------------------------------------------------------

FILE = """
import triton
import triton.language as tl

BLOCK = 512

@triton.jit
def plus(x_ptr, n, one, out_ptr, BLOCK: tl.constexpr, INDEX: tl.constexpr, BY: tl.constexpr):
    i = tl.program_id(0).to(INDEX) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, i < n) * BY + one, i < n)

def launch(x, n, out):
    plus[(triton.cdiv(n, BLOCK),)](x, n, 1, out, BLOCK=BLOCK, INDEX=tl.int32, BY=0.5, num_warps=2)
"""


def compiled(text: str = FILE, n: int = 1024) -> Any:
    namespace, path = triton_load.load(text)
    x, out = torch.randn(n), torch.empty(n)
    starts: list[Any] = []
    function = namespace["plus"]
    namespace["plus"] = triton_starts.StartRecorder(function, starts)
    namespace["launch"](x, n, out)
    namespace["plus"] = function
    (one,) = starts
    return triton_cross.compile_start(one, triton_starts.gpu_target("sm_90"), namespace, path)


@pytest.mark.parametrize("count", [2, 3, 11])
def test_a_packed_kernel_compiles(count: int) -> None:
    kernel = compiled()
    source = packed_source(kernel.src, count)
    assert source is not None
    packed = compile_packed(source, kernel.metadata)
    entry = re.search(r"\.entry packed\((.*?)\)", packed.asm["ptx"], re.DOTALL)
    assert entry is not None
    kinds = re.findall(r"\.param \.(\w+)", entry[1])
    numbers = [kind for kind in kernel.src.signature.values() if kind in ("i32", "i64")]
    assert len(kinds) == 2 * count + len(numbers) + 2  # two are Triton's own
    assert kinds[2 * count] in ("u32", "b32")
    accesses = [set(re.findall(r"(?:ld|st)\.global\S*", k.asm["ptx"])) for k in (kernel, packed)]
    assert accesses[0] == accesses[1], "as wide as they were"
    assert packed.metadata.num_warps == kernel.metadata.num_warps


def test_kernels_that_cannot_be_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = compiled().src
    with monkeypatch.context() as patch:
        patch.setattr(packed_kernel, "is_gluon", lambda function: function is source.fn)
        assert packed_source(source, 2) is None, "written in Gluon"
    assert packed_source(source, 2) is not None
    loose = copy.copy(source)
    loose.attrs = {place: what for place, what in loose.attrs.items() if place != (0,)}
    assert packed_source(loose, 2) is None, "a pointer that is not aligned"
    other = FILE.replace("tl.program_id(0)", "(tl.program_id(0) + tl.program_id(1))")
    assert packed_source(compiled(other).src, 2) is None, "asks for its second number"
    counted = FILE.replace("* BY + one", "* BY + tl.num_programs(0)")
    assert packed_source(compiled(counted).src, 2) is None, "asks how many there are"


@pytest.mark.parametrize("count", [2, 5])
def test_each_set_has_its_own_tensors(count: int) -> None:
    wrapper = packed_text([0, 3], [1], ["", "", "1", "", "512", "tl.int32", "0.5"], count)
    names = [f"{n}{i}" for i in range(count) for n in ("x", "out")]
    launch = f"""
kernel = plus

{wrapper[wrapper.index("@triton.jit") :]}

def launch({", ".join(names)}, n):
    packed[(triton.cdiv(n, BLOCK), {count})]({", ".join(names)}, n, num_warps=2)
"""
    text = FILE[: FILE.index("def launch")] + launch
    shape, strides = (Expr.of(1100),), (Expr.of(1),)
    arguments = tuple(
        Argument(n, torch.float32, shape, strides, "out" if "out" in n else "in") for n in names
    )
    runnable = triton_build.build_triton(text, Signature(arguments, ("n",)))
    tensors = [torch.randn(1100) for _ in names]
    expected = [t * 0.5 + 1 for t in tensors[::2]]
    before = [t.clone() for t in tensors]
    runnable(tensors, [1000])
    for i, wanted in enumerate(expected):
        assert torch.equal(tensors[2 * i], before[2 * i])
        torch.testing.assert_close(tensors[2 * i + 1][:1000], wanted[:1000], rtol=0, atol=0)
        assert torch.equal(tensors[2 * i + 1][1000:], before[2 * i + 1][1000:])
