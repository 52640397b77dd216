"""What Triton's kernels are decided by, condition for condition: nothing is compiled."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.errors import FusecError
from fusec.ir import ops
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.node import Node, Op, cast, indirect, op, recording
from fusec.ir.walk import free_axes, walk
from fusec.machine import using
from fusec.targets.triton.plan.choices import transposed_tile, window_tiles
from fusec.targets.triton.plan.choices_attention import _splits
from fusec.targets.triton.plan.choices_matmul import Operand, as_matrix
from fusec.targets.triton.plan.tiling import Dim, Tile
from fusec.targets.triton.plan.unaligned_rows import odd_row
from fusec.targets.triton.rewrite.score_patterns import TANH, quicken, without_row_term
from fusec.targets.triton.toolchain import interpret, packed_kernel, side_by_side
from fusec.targets.triton.toolchain import lines as machine_lines
from fusec.targets.triton.toolchain.build import TritonRunnable
from support.triton_bodies import F32, at, axes, buffer, f32, reduce_rows, transpose_add
from support.triton_windows import weighted
from support.whole_programs import MACHINE

F16, I64, I32, BOOL = torch.float16, torch.int64, torch.int32, torch.bool


@pytest.fixture(autouse=True)
def _recorder():
    with recording():
        yield


# -- operands that a tensor descriptor fetches ---------------------------------------------------


def operand(
    place: Callable[[Expr, Expr], tuple[Expr, ...]] = lambda i, k: (i, k),
    strides: tuple[IntLike, IntLike] = (64, 1),
    dtype: torch.dtype = F16,
    mask: Node | None = None,
) -> Operand | None:
    first, second = axes(128, 48)
    x = ops.load("x", place(*at(first, second)), dtype, mask)
    return as_matrix(x, (first, second), {"x": buffer("x", (128, 128), dtype, strides)})


def test_a_matrix_in_memory() -> None:
    sizes = Expr.of(128), Expr.of(48)
    assert operand() == Operand("x", (Expr.of(64), Expr.of(1)), sizes)
    assert not operand().turned  # type: ignore[union-attr]
    turned = operand(lambda i, k: (k, i))
    assert turned == Operand("x", (Expr.of(1), Expr.of(64)), sizes)
    assert turned.turned
    assert operand(strides=(1, 64)) == Operand("x", (Expr.of(1), Expr.of(64)), sizes)
    one = Symbol("one", "axis", None), Symbol("two", "axis", None)
    found = as_matrix(ops.load("x", at(*one), F16), one, {"x": buffer("x", (8, 8), F16)})
    assert found is not None
    assert found.shape == (Expr.of(1), Expr.of(1))


@pytest.mark.parametrize(
    ("step", "dtype", "fits"),
    [
        (64, F16, True), (60, F16, False), (8, F16, True), (4, F16, False), (4, F32, True),
        (2, F32, False), (16, torch.int8, True), (8, torch.int8, False), (0, F16, False),
        (1, torch.int8, False),
    ],
)  # fmt: skip
def test_a_descriptor_wants_steps_of_sixteen_bytes(
    step: int, dtype: torch.dtype, fits: bool
) -> None:
    assert (operand(strides=(step, 1), dtype=dtype) is not None) is fits
    assert (operand(strides=(1, step), dtype=dtype) is not None) is fits


@pytest.mark.parametrize(
    "place",
    [
        lambda i, k: (i, k + 1),
        lambda i, k: (i, k // 2),
        lambda i, k: (i // 2, k),
        lambda i, k: (i % 7, k // 3),
        lambda i, k: (i, 2 * k),
        lambda i, k: (i, Expr.of(Symbol("j", "axis", Expr.of(4)))),
        lambda i, k: (indirect(ops.load("at", (i,), I64), Expr.of(9)), k),
        lambda i, k: (i * k, k),
        lambda i, k: (i * 2, k * k),
    ],
)
def test_what_is_no_matrix(place: Callable[[Expr, Expr], tuple[Expr, ...]]) -> None:
    assert operand(place) is None


def test_what_is_more_than_its_elements() -> None:
    assert operand(mask=ops.load("ok", (), BOOL)) is None
    n = Expr.of(Symbol("n", "size", low=2))
    assert operand(strides=(n, 1)) is None
    assert operand(strides=(n, 8)) is None
    assert operand(strides=(1, n)) is None
    assert operand(strides=(64, 2)) is None
    assert operand(strides=(64, 16)) is None
    x = ops.unary("neg", ops.load("x", at(*axes(8, 8)), F16))
    assert as_matrix(x, axes(8, 8), {}) is None  # type: ignore[arg-type]


# -- what all scores of a row have in common -------------------------------------------------------


class Scores:
    """``q . k + slope * (left - right)``, with one of the two along the row."""

    def __init__(self, dtype: torch.dtype = I64) -> None:
        (self.i,), (self.j,) = axes(64), axes(64, prefix="k")
        self.query, self.key = (
            ops.load(n, at(a), dtype) for n, a in (("q", self.i), ("k", self.j))
        )
        self.rest = ops.load("score", at(self.i, self.j), F32)
        self.slope = ops.load("slope", (), F32)
        self.first = Symbol("first", "axis", Expr.of(64))

    def varies(self, node: Node) -> bool:
        return self.j in free_axes((node,))[node]

    def distance(self, left: Node, right: Node) -> Node:
        return op("sub", (cast(left, F32), cast(right, F32)), F32)

    def bias(self, left: Node, right: Node, slope: Node | None = None) -> Node:
        return op("mul", (slope or self.slope, self.distance(left, right)), F32)

    def parts(self, score: Node) -> tuple[Node, Node | None]:
        return without_row_term(score, self.first, self.varies)

    def moved(self, node: Node) -> Node:
        start = ops.index_value(Expr.of(self.first), node.dtype)
        return ops.binary("mul", self.slope, cast(ops.binary("sub", node, start), F32))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("dtype", [I64, I32])
def test_a_row_gives_its_part_back_at_the_end(
    turned: bool, second: bool, dtype: torch.dtype
) -> None:
    s = Scores(dtype)

    def score(left: Node, right: Node) -> Node:
        factors = (s.slope, s.distance(left, right))
        bias = op("mul", factors[::-1] if turned else factors, F32)
        terms = (s.rest, bias)
        return op("add", terms[::-1] if second else terms, F32)

    key, query = s.moved(s.key), s.moved(s.query)
    assert s.parts(score(s.key, s.query)) == (
        ops.binary("add", s.rest, key), ops.unary("neg", query),
    )  # fmt: skip
    assert s.parts(score(s.query, s.key)) == (ops.binary("sub", s.rest, key), query)


def test_scores_without_such_a_part() -> None:
    s = Scores()
    good = s.bias(s.key, s.query)
    other = Scores(I32)
    varying = ops.load("slopes", at(s.j), F32)
    floats = op("sub", (ops.load("a", at(s.j), F32), ops.load("b", at(s.i), F32)), F32)
    bools = Scores(BOOL)
    halves = Scores(F16)
    for score in (
        s.rest,
        good,
        op("sub", (s.rest, good), F32),
        op("add", (s.rest, s.distance(s.key, s.query)), F32),
        op("add", (s.rest, op("truediv", (s.slope, s.distance(s.key, s.query)), F32)), F32),
        op("add", (s.rest, s.bias(s.key, s.query, varying)), F32),
        op("add", (s.rest, s.bias(s.key, s.key)), F32),
        op("add", (s.rest, s.bias(s.query, s.query)), F32),
        op("add", (s.rest, op("mul", (s.slope, floats), F32)), F32),
        op(
            "add",
            (s.rest, op("mul", (s.slope, op("add", s.distance(s.key, s.query).args, F32)), F32)),
            F32,
        ),
        op("add", (s.rest, s.bias(s.key, ops.load("q32", at(s.i), I32))), F32),
        op("add", (s.rest, s.bias(bools.key, bools.query)), F32),
        op("add", (s.rest, s.bias(halves.key, halves.query)), F32),
        op(
            "add",
            (s.rest, op("mul", (s.slope, op("sub", (cast(s.key, F32), f32(1.0)), F32)), F32)),
            F32,
        ),
    ):
        assert s.parts(score) == (score, None)
    assert other.parts(op("add", (other.rest, other.bias(other.key, other.query)), F32))[1]


# -- kernels compiled beside each other, and packed, as if there were a GPU ------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


@pytest.mark.parametrize(("cores", "threads"), [(None, 1), (3, 3), (16, 16), (64, 16)])
def test_what_triton_refuses_is_no_candidate(
    cores: int | None, threads: int, gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    pools: list[tuple[int, str]] = []

    class Pool(side_by_side.ThreadPoolExecutor):
        def __init__(self, workers: int, name: str) -> None:
            pools.append((workers, name))
            super().__init__(1, name)

    def start(text: str, good: bool) -> Any:
        def warmup(*args: object, **options: object) -> None:
            asked.append((text, args, options))
            if not good:
                raise RuntimeError("out of registers")

        return SimpleNamespace(function=SimpleNamespace(warmup=warmup), args=(1,), kwargs={"M": 2})

    def built(text: str, *_: object) -> Any:
        kind = side_by_side.TritonRunnable if text != "plain" else SimpleNamespace
        found: Any = kind.__new__(kind)
        for name, value in (
            ("namespace", text),
            ("starter", None),
            ("interpreted", text == "slow"),
        ):
            setattr(found, name, value)
        return found

    starts = {"good": [True, True], "bad": [True, False], "worse": [False], "none": []}
    monkeypatch.setattr(side_by_side, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(side_by_side.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(side_by_side, "compiling", contextlib.nullcontext)
    monkeypatch.setattr(side_by_side, "build_triton", built)
    monkeypatch.setattr(
        side_by_side, "starts_of", lambda space, *_: [start(space, good) for good in starts[space]]
    )
    names = ["good", "bad", "slow", "plain", "worse", "none"]
    sources: Any = [SimpleNamespace(text=n, signature=None, entry="launch") for n in names]
    found = side_by_side.build_for(sources, [])
    assert [getattr(each, "namespace", None) for each in found] == [
        "good", None, "slow", "plain", None, "none",
    ]  # fmt: skip
    assert [text for text, *_ in asked] == ["good", "good", "bad", "bad", "worse"]
    assert asked[0][1:] == ((1,), {"grid": (1,), "M": 2})
    assert gpu == [1] * 5
    assert pools == [(threads, "fusec-product")]
    assert side_by_side.build_for(sources[2:4], [])[0] is not None
    assert len(pools) == 1  # with nothing to compile nobody is asked


def test_what_cannot_be_packed_stays_single(
    gpu: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel: Any = SimpleNamespace(hash="h", src="source", metadata=None)
    monkeypatch.setattr(packed_kernel, "packed_source", lambda source, count: None)
    monkeypatch.setattr(packed_kernel, "_packed", {})
    assert packed_kernel._build(kernel, 2) is None
    built: list[int] = []

    def build(_: object, count: int) -> object:
        built.append(count)
        if count == 3:
            raise RuntimeError("no")
        return f"{count} at once"

    monkeypatch.setattr(packed_kernel, "_build", build)
    for _ in range(2):
        assert packed_kernel.pack(kernel, 2) == "2 at once"
        assert packed_kernel.pack(kernel, 3) is None
    assert built == [2, 3]  # asked once each
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert packed_kernel.pack(kernel, 2) == "2 at once"
    assert built == [2, 3, 2]


# -- sizes of tiles --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "dtype", "tile"),
    [
        (4096, F32, (64, 64, 8)), (512, F32, (32, 64, 4)), (4096, F16, (128, 128, 8)),
        (512, F16, (128, 128, 8)), (1472, F32, (64, 64, 8)), (1408, F32, (32, 64, 4)),
    ],
)  # fmt: skip
def test_a_tile_that_is_turned(rows: int, dtype: torch.dtype, tile: tuple[int, int, int]) -> None:
    """Two cache lines on both sides, where enough tiles are left for the SMs."""
    case = transpose_add(rows, rows, dtype)
    with using(MACHINE):
        assert transposed_tile(case.body, case.buffers, rows * rows) == tile


@pytest.mark.parametrize(
    ("channels", "across"),
    [
        (8, 0), (16, 16), (24, 0), (31, 0), (32, 32), (48, 0), (59, 0), (60, 64), (63, 64),
        (64, 64), (65, 0), (96, 32), (119, 0), (120, 64), (128, 64), (160, 32), (179, 0),
        (180, 64), (960, 64),
    ],
)  # fmt: skip
def test_channels_of_a_tile(channels: int, across: int) -> None:
    case = weighted(64, 28, channels)
    with using(MACHINE):
        found = window_tiles(case.body, case.buffers, [*case.body.axes], 1 << 30)
    sizes = {knob.name: knob.value for knob in found}
    assert sizes.get("XBLOCK", 0) == across
    if across:
        assert sizes["YBLOCK"] == 2048 // across


@pytest.mark.parametrize(
    ("pairs", "rows", "keys", "splits"),
    [
        (8, 1, 25_600, 32), (8, 64, 25_600, 32), (8, 65, 25_600, 16), (1, 1, 256, 1),
        (1, 1, 511, 1), (1, 1, 512, 2), (1, 1, 1024, 4), (1, 1, 100_000, 64), (132, 1, 100_000, 2),
        (133, 1, 100_000, 1), (264, 1, 100_000, 1), (44, 1, 100_000, 4), (0, 1, 100_000, 64),
    ],
)  # fmt: skip
def test_programs_that_share_a_row_of_keys(pairs: int, rows: int, keys: int, splits: int) -> None:
    found: Any = SimpleNamespace(pairs=Expr.of(pairs))
    with using(MACHINE):
        assert _splits(found, rows, keys) == splits


@pytest.mark.parametrize("change", ["", "no inner", "two dimensions", "a walk", "no mask"])
def test_who_has_odd_rows(change: str) -> None:
    case = reduce_rows("sum", 9, 5003, F16)
    (i,), (r,) = case.body.axes, case.body.reduce_axes
    rows, size = (Expr.of(n) for n in (9, 5003))
    row = Dim(i, rows, "row", "", "row_inside", 0)
    inner = Dim(r, size, "r", "RBLOCK", "" if change == "no mask" else "r_inside", 1)
    tile = Tile(
        case.body,
        (row,),
        None if change == "no inner" else inner,
        2 if change == "two dimensions" else 1,
        row if change == "a walk" else None,
    )
    found = odd_row(tile, case.buffers)
    assert (found is None) is bool(change)
    if found is not None:
        assert (found.buffer, found.begin, found.group) == ("x", 5003 * Expr.of(i), 8)


@pytest.mark.parametrize(
    ("factor", "quick"), [(20.0, True), (1e3, True), (-1e3, True), (1001.0, False), (None, False)]
)
def test_a_bounded_score_is_taken_by_powers_of_two(factor: float | None, quick: bool) -> None:
    (i,) = axes(8)
    x = ops.load("x", at(i), F32)
    score = ops.unary("tanh", ops.binary("mul", x, f32(0.05)))
    if factor is not None:
        score = ops.binary("mul", score, f32(factor))
    (found,) = quicken([score])
    names = [node.name for node in walk((found,)) if isinstance(node, Op)]
    assert (TANH in names) is quick
    assert ("tanh" in names) is not quick


# -- what is run, and where it failed --------------------------------------------------------------


def test_who_starts_kernels() -> None:
    def start() -> None:
        """Start nothing."""

    signature: Any = SimpleNamespace(arguments=())
    interpreted = TritonRunnable({"start": start}, "kernel.py", signature, "start", True)
    assert interpreted.entry is None
    assert interpreted.compiled() == ()
    compiled = TritonRunnable({"start": start}, "kernel.py", signature, "start", False)
    assert compiled.entry is not None
    assert compiled.entry.__name__ == "start"


@pytest.mark.parametrize("how", ["alone", "raised from", "raised beside", "elsewhere"])
def test_the_line_of_an_error(how: str) -> None:
    text = "def kernel():\n    x = 1\n    assert x == 2, 'it failed'\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, "kernel.py", "exec"), namespace)

    def failing() -> None:
        if how == "alone":
            namespace["kernel"]()
        elif how == "raised from":
            try:
                namespace["kernel"]()
            except AssertionError as error:
                raise ValueError("from it") from error
        elif how == "raised beside":
            try:
                namespace["kernel"]()
            except AssertionError:
                raise ValueError("beside it")  # noqa: B904
        else:
            raise ValueError("elsewhere")

    with pytest.raises((AssertionError, ValueError)) as caught:
        failing()
    found = how != "elsewhere"
    assert interpret.line_of(caught.value, "kernel.py") == (3 if found else None)
    assert interpret.failed_check(caught.value) == ("it failed" if found else None)


def test_machine_code_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    run_any = subprocess.run

    def run(command: list[str], **given: Any) -> object:
        if command[1:3] != ["-g", "-c"]:  # Triton asks the tool for its version
            return run_any(command, **given)
        assert Path(command[3]).read_bytes() == b"cubin"
        said = ("", "no such thing\n") if failing else ("code", "")
        out, err = said if given.get("text") else tuple(part.encode() for part in said)
        return SimpleNamespace(returncode=int(failing), stdout=out, stderr=err)

    failing = False
    monkeypatch.setattr(machine_lines.subprocess, "run", run)
    assert machine_lines.disassembled(b"cubin") == "code"
    failing = True
    with pytest.raises(FusecError, match="nvdisasm: no such thing"):
        machine_lines.disassembled(b"cubin")
