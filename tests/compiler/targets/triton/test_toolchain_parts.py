"""Parts of Triton's toolchain that elsewhere run in processes of their own or on a GPU alone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fusec.errors import CompileError
from fusec.ir.index import Expr
from fusec.kernel_source import Argument, Role, Signature
from fusec.report import GpuStart
from fusec.targets.triton.toolchain import build, candidate, resources, worker
from fusec.targets.triton.toolchain.build import TritonRunnable, build_triton
from fusec.targets.triton.toolchain.entry import check_entry
from fusec.targets.triton.toolchain.interpret import interpreting
from fusec.targets.triton.toolchain.interpreted import sampling
from fusec.targets.triton.toolchain.starts import RecordedStart
from fusec.targets.triton.toolchain.watch import watching
from fusec.targets.triton.toolchain.watched_run import Handle, collecting, tensor_of, with_tensors

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64


def argument(name: str, role: Role, dtype: torch.dtype, device: str = "cpu") -> Argument:
    size, one = (Expr.of(8),), (Expr.of(1),)
    return Argument(name, dtype, size, one, role, device)


# -- some programs of a grid ------------------------------------------------------------------


class Builder:
    seen: list[Any] = []

    def set_grid_dim(self, *sizes: int) -> None:
        self.seen.append(sizes)

    def set_grid_idx(self, *place: int) -> None:
        self.seen.append(place)


class Executor:
    def __init__(self, grid: Any) -> None:
        self.grid = grid

    def __call__(self, meta: int) -> None:
        grid = self.grid(meta) if callable(self.grid) else self.grid
        grid = (*grid, *(1,) * (3 - len(grid)))
        builder = Builder()
        builder.set_grid_dim(*grid)
        for x in range(grid[0]):
            for y in range(grid[1]):
                for z in range(grid[2]):
                    builder.set_grid_idx(x, y, z)


@pytest.mark.parametrize("callable_", [False, True])
@pytest.mark.parametrize(
    ("grid", "count", "places"),
    [
        ((3, 4), 2, [(0, 0, 0), (2, 3, 0)]),
        ((2, 3, 4), 2, [(0, 0, 0), (1, 2, 3)]),
        ((5,), 8, [(n, 0, 0) for n in range(5)]),
        ((2, 1, 2), 4, [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]),
        ((2, 2), 0, [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]),
    ],
)
def test_some_programs_find_the_whole_grid_around_them(
    grid: tuple[int, ...], count: int, places: Any, callable_: bool, monkeypatch: Any
) -> None:
    from triton.runtime import interpreter

    monkeypatch.setattr(interpreter, "GridExecutor", Executor)
    monkeypatch.setattr(interpreter, "InterpreterBuilder", Builder)
    before = Executor.__call__, Builder.set_grid_dim, Builder.set_grid_idx
    Builder.seen = []
    with sampling.some_programs(count, 0):
        Executor((lambda meta: grid[:meta]) if callable_ else grid)(3)
    assert Builder.seen == [(*grid, *(1,) * (3 - len(grid))), *places]
    assert before == (Executor.__call__, Builder.set_grid_dim, Builder.set_grid_idx)


def test_which_programs_are_drawn() -> None:
    assert sampling.draw(5, 5, 0) == [0, 1, 2, 3, 4]
    assert sampling.draw(6, 1, 0) == sampling.draw(6, 2, 0) == [0, 5]
    for seed in range(20):
        (first, inner, last) = sampling.draw(4, 3, seed)
        assert (first, last) == (0, 3)
        assert inner in (1, 2)
    assert sampling.draw(1000, 20, 1) != sampling.draw(1000, 20, 2)
    assert len(set(sampling.draw(1000, 20, 1))) == 20


# -- what kernels take of a GPU ---------------------------------------------------------------


def compiled(name: str, **asm: Any) -> Any:
    metadata = SimpleNamespace(name=name, num_warps=4, shared=1024)
    return SimpleNamespace(metadata=metadata, n_regs=32, n_spills=len(name), asm=asm)


def start(name: str, grid: Any) -> Any:
    return SimpleNamespace(function=SimpleNamespace(__name__=name), grid=grid)


def test_how_starts_occupy_a_gpu() -> None:
    kernels = [compiled("one", cubin=b"1"), compiled("second", cubin=b"2")]
    (first, second) = resources.occupancies([start("second", (3, 2)), start("one", (5,))], kernels)
    assert (first.programs, second.programs) == (6, 5)
    assert (first.warps, first.registers, first.shared) == (4, 32, 1024)
    assert resources.occupancies([start("other", (3,))], kernels) == ()
    assert resources.occupancies([start("one", (3,)), start("second", len)], kernels) == ()
    use = resources.gpu_use([start("one", (3,))], kernels)
    assert (use.binaries, use.spilled) == ((b"1", b"2"), 6)


def test_programs_of_a_start_whose_grid_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    grids = [(3, 2), (), (3, None), len]
    signature = Signature((), ())

    def launched(namespace: Any, path: str, *rest: Any) -> list[Any]:
        assert (namespace["STEPS"], path[-3:], rest) == (2, ".py", (signature, "launch"))
        return [start("one", grid) for grid in grids]

    def compile_start(each: Any, target: Any, namespace: Any, path: str) -> Any:
        assert (each.function.__name__, target.arch) == ("one", 90)
        assert (namespace["STEPS"], path[-3:]) == (2, ".py")
        return compiled("one", amdgcn=".vgpr_count: 7")

    monkeypatch.setattr(resources, "launched", launched)
    monkeypatch.setattr(resources, "compile_start", compile_start)
    numbers = ("XBLOCK = 16", "STEPS = 2", "TILE = 4")
    text = "".join(f"{number}  # tunable: 2 4 16 (elements)\n" for number in numbers)
    found = resources.gpu_starts(text, signature, "sm_90")
    assert [each.programs for each in found] == [6, 0, 0, 0]
    (same,) = {replace(each, programs=0) for each in found}
    assert same == GpuStart("one", 0, 4, 7, 1024, "XBLOCK=16 TILE=4")


def test_registers_are_read_from_machine_code() -> None:
    cubin = b"..\x04\x2f\x08\x00" + b"\n\0\0\0" + (200).to_bytes(4, "little") + b".."
    assert resources._registers(compiled("a", cubin=cubin)) == 200
    assert resources._registers(compiled("a", cubin=b"nothing", amdgcn=".vgpr_count: 7")) == 0
    assert resources._registers(compiled("a", amdgcn="x\n .vgpr_count:     77\n")) == 77
    assert resources._registers(compiled("a", amdgcn="x")) == 0
    assert resources._registers(compiled("a")) == 0


# -- the process that compiles ----------------------------------------------------------------


@contextlib.contextmanager
def at_work(compile_starts: Callable[[Any], None], monkeypatch: Any) -> Iterator[Any]:
    """Run the worker's loop in a thread; yield how it is asked."""
    monkeypatch.setattr(worker, "compile_starts", compile_starts)
    given, asked = os.pipe()
    said, saying = os.pipe()
    kept, kept_errors = os.dup(1), os.dup(2)
    with os.fdopen(given) as stdin, os.fdopen(asked, "w") as questions, os.fdopen(said) as answers:
        monkeypatch.setattr(sys, "stdin", stdin)
        os.dup2(saying, 1)
        os.close(saying)
        thread = threading.Thread(target=worker.main, daemon=True)
        try:
            thread.start()

            def ask(request: Any) -> str:
                print(json.dumps(request), file=questions, flush=True)
                assert select.select([answers], [], [], 60)[0], "no answer before the end"
                return answers.readline()

            yield ask
        finally:
            questions.close()
            thread.join(60)
            os.dup2(kept, 1)
            os.dup2(kept_errors, 2)
            os.close(kept)
            os.close(kept_errors)
    assert not thread.is_alive(), "who asks no more is not waited for"


def test_a_worker_answers_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def compile_starts(request: Any) -> None:
        seen.append(request)
        print("what Triton prints is no answer")
        if request["path"] == "wrong":
            raise ValueError("it is\n  wrong")

    with at_work(compile_starts, monkeypatch) as ask:
        assert ask({"path": "a"}) == "done\n"
        assert ask({"path": "wrong"}) == "ValueError: it is wrong\n"
        assert ask({"path": "b"}) == "done\n"
    assert [each["path"] for each in seen] == ["a", "wrong", "b"]


def test_a_worker_that_nobody_asks_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "IDLE", 0.01)
    with at_work(lambda request: None, monkeypatch):
        pass


@pytest.mark.parametrize(("backend", "launchers"), [("cuda", 2), ("hip", 0)])
def test_what_a_request_names_is_compiled(
    tmp_path: Path, backend: str, launchers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton import compiler, knobs

    file, other = tmp_path / "kernel.py", tmp_path / "other.py"
    file.write_text("def one(): return helper()\ndef two(): pass\n")
    other.write_text("def helper(): return __file__\n")
    sources, targets, built = [], [], []
    monkeypatch.setattr(compiler, "ASTSource", lambda **given: given)
    monkeypatch.setattr(
        "triton.compile",
        lambda source, target, options: (sources.append(source), targets.append((target, options))),
    )
    monkeypatch.setattr(worker, "_build_launcher", built.append)
    monkeypatch.setattr(knobs.cache, "dir", "as it was")
    rest = {"signature": {"x": "*fp32"}, "constants": [[1, 64]], "attributes": [[0, [["d", 16]]]]}
    starts = [
        {"function": f, "options": {"num_warps": n}, **rest} for n, f in enumerate(("two", "one"))
    ]
    request = {"cache": None, "path": str(file), "target": [backend, 90, 32], "starts": starts}
    worker.compile_starts({**request, "needs": {"helper": [str(other), "helper"]}})
    assert knobs.cache.dir == "as it was"
    assert [source["fn"].__name__ for source in sources] == ["two", "one"]
    assert sources[1]["fn"]() == str(other)
    assert sources[0]["constexprs"] == {(1,): 64}
    assert sources[0]["attrs"] == {(0,): [["d", 16]]}
    assert sources[0]["signature"] == {"x": "*fp32"}
    assert [(t.backend, t.arch, t.warp_size, o) for t, o in targets] == [
        (backend, 90, 32, {"num_warps": n}) for n in range(2)
    ]
    assert len(built) == launchers
    worker.compile_starts({**request, "cache": str(tmp_path), "starts": []})
    assert knobs.cache.dir == str(tmp_path)


def test_a_module_is_imported_once_somebody_wants_something_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import colorsys

    stands = worker.Postponed("colorsys")
    monkeypatch.setitem(sys.modules, "colorsys", stands)
    with pytest.raises(AttributeError):
        stands.__wrapped__
    assert sys.modules["colorsys"] is stands
    assert stands.rgb_to_hsv(1, 0, 0) == colorsys.rgb_to_hsv(1, 0, 0)
    found = sys.modules["colorsys"]
    assert found is not stands
    assert stands.ONE_THIRD == colorsys.ONE_THIRD
    assert sys.modules["colorsys"] is found


# -- a file in the process that is thrown away ------------------------------------------------


def placed(tensor: Any) -> Any:
    return SimpleNamespace(tensor=lambda: tensor)


def asked_for(text: str, **more: Any) -> dict[str, Any]:
    return {"text": text, "file": "k.py", "entry": "launch", "checks": [], "device": "cuda", **more}


def test_a_candidate_is_started_with_tensors_and_sizes() -> None:
    made = candidate.prepare(asked_for("seen = []\ndef launch(*given):\n    seen.append(given)\n"))
    assert type(made) is candidate.TritonCandidate
    x, y = torch.ones(2), torch.ones(3)
    assert made([placed(x), placed(y)], [5], 2) == 0
    ((first, second, size),) = made.namespace["seen"]
    assert (first is x, second is y, size) == (True, True, 5)
    with pytest.raises(RuntimeError, match="asks for gradients"):
        made([placed(x), placed(torch.ones(1, requires_grad=True))], [], 2)
    assert made.refused(ValueError("no")) == {}


@pytest.mark.parametrize(
    ("message", "number"),
    [("index out of range", 2), ("it is too long", 1), ("something else", None)],
)
def test_an_interpreted_candidate_says_which_check_failed(
    message: str, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusec.targets.triton.toolchain import interpret

    monkeypatch.setattr(interpret, "failed_check", str)
    checks = ["too long", "index out of range"]
    text = f"def launch(bad):\n    if len(bad): raise ValueError({message!r})\n"
    made = candidate.prepare(asked_for(text, device="cpu", checks=checks))
    assert type(made) is candidate.Interpreted
    assert made([placed(torch.ones(0))], [], 1) == 0
    assert made.refused(ValueError("no")) == {}
    if number is None:
        with pytest.raises(ValueError, match="else"):
            made([placed(torch.ones(1))], [], 1)
    else:
        assert made([placed(torch.ones(1))], [], 1) == number


def test_resources_that_are_not_there_are_refused() -> None:
    from triton.runtime.errors import OutOfResources

    target = SimpleNamespace(warp_size=32)
    usual = {"num_warps": 32, "target": target}
    candidate.require_resources({**usual, "shared": 100}, 100)
    candidate.require_resources(usual, 0)
    for wrong, what in (({"shared": 101}, "shared memory"), ({"num_warps": 33}, "threads")):
        with pytest.raises(OutOfResources) as caught:
            candidate.require_resources({**usual, **wrong}, 100)
        made = candidate.prepare(asked_for("def launch(): pass"))
        wanted = 101 if "shared" in wrong else 33 * 32
        there = 100 if "shared" in wrong else 1024
        assert made.refused(caught.value) == {
            "problem": "resources", "what": what, "wanted": wanted, "there": there
        }  # fmt: skip


def test_triton_says_when_it_compiles_and_when_that_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", None)
    monkeypatch.setattr(candidate, "_shared_memory", lambda: 100)
    said: list[Any] = []
    candidate.announce(lambda *what: said.append(what))
    stages: dict[str, Any] = {n: lambda source, metadata, n=n: source + n for n in ("a", "b")}
    hook: Any = knobs.runtime.add_stages_inspection_hook
    hook(None, stages, None)
    metadata = {"num_warps": 4, "target": SimpleNamespace(warp_size=32)}
    assert said == [("compile", 60.0)]
    assert stages["a"]("text ", metadata) == "text a"
    assert len(said) == 1
    assert stages["b"]("text ", metadata) == "text b"
    assert said[1:] == [("run", 0.0)]


# -- kernels as something to call -------------------------------------------------------------


@pytest.fixture
def gpu_like(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Have a file of plain Python run as one for a GPU; returns what happens."""
    happens: list[Any] = []
    monkeypatch.setattr(build, "with_launchers", lambda launch: launch)
    monkeypatch.setattr(build, "require", lambda tensor, name: happens.append(name))
    monkeypatch.setattr(build.triton_pool, "wait", lambda path: happens.append("wait"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    @contextlib.contextmanager
    def device(which: torch.device) -> Iterator[None]:
        happens.append(which.index)
        yield

    monkeypatch.setattr(torch.cuda, "device", device)
    return happens


def like_tensor(index: int | None) -> Any:
    return SimpleNamespace(device=torch.device("cuda", index), get_device=lambda: index)


def runnable(launch: Any, happens: list[Any]) -> TritonRunnable:
    signature = Signature((argument("x", "in", F32, "cuda"),))
    return TritonRunnable({"launch": launch}, "k.py", signature, "launch", cpu=False)


def test_the_first_call_waits_and_later_ones_are_short(gpu_like: list[Any]) -> None:
    made = runnable(lambda *given: gpu_like.append(len(given)), gpu_like)
    x, elsewhere = like_tensor(0), like_tensor(1)
    made([x], [7])
    assert gpu_like == ["x", "wait", 2]
    made([x], [7])
    assert gpu_like[3:] == ["x", 2]
    direct = made.direct
    assert direct is not None
    assert made.entry is not None
    del gpu_like[:]
    direct(x, 7)
    assert gpu_like == [2]
    direct(elsewhere, 7)
    assert gpu_like[1:] == ["x", 1, 2]
    del gpu_like[:]
    made([like_tensor(None)], [])
    assert gpu_like == ["x", 1]
    assert made.compiled() == ()
    assert made.gpu_use([x], []) is None


def test_a_direct_call_before_any_other_waits_as_well(gpu_like: list[Any]) -> None:
    made = runnable(lambda *given: gpu_like.append(given[1:]), gpu_like)
    assert made.direct is not None
    made.direct(like_tensor(0), 7, 8)
    assert gpu_like == ["x", "wait", (7, 8)]


def test_what_triton_refuses_is_a_compile_error_and_else_nothing(gpu_like: list[Any]) -> None:
    class Refused(Exception):
        __module__ = "triton.compiler"

    for error, found in ((Refused("no"), CompileError), (KeyError("x"), KeyError)):

        def launch(*given: Any, error: Exception = error) -> None:
            raise error

        made = runnable(launch, gpu_like)
        with pytest.raises(found):
            made([like_tensor(0)], [])
        assert not made._compiled


TWO = "def launch(x):\n    first(x)\n    second(x)\n"


@pytest.mark.parametrize(
    ("role", "names", "warps", "runs"),
    [
        ("out", ("first", "second"), 4, True),
        ("inout", ("first",), 4, True),
        ("inout", ("first", "second"), 4, False),
        ("out", ("first", "second"), None, False),
    ],
)
def test_who_may_run_once_more_with_other_warps(
    role: Role, names: tuple[str, ...], warps: int | None, runs: bool, monkeypatch: Any
) -> None:
    """Not a kernel that updates, where another one has run already."""
    monkeypatch.setattr(build, "Launcher", SimpleNamespace)
    monkeypatch.setattr(build, "is_compiler_failure", lambda error: str(error) == "fails")
    space: dict[str, Any] = {name: SimpleNamespace() for name in names}
    exec(TWO, space)
    if warps is not None:
        space[build.WARPS] = warps
    signature = Signature((argument("x", role, F32),))
    made = TritonRunnable(space, "k.py", signature, "launch", cpu=True)
    tried = []

    def start(tensors: Any, sizes: Any) -> None:
        tried.append(space[build.WARPS])
        if len(tried) < 2:
            raise RuntimeError("fails")

    monkeypatch.setattr(made, "_start", start)
    assert made._runs_with_other_warps([], []) is runs
    assert tried == ([8, 2] if runs else [])
    if runs:
        assert space[build.WARPS] == 2
        monkeypatch.setattr(made, "_start", lambda tensors, sizes: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            made._runs_with_other_warps([], [])
        assert space[build.WARPS] == 2, "as it was"


# -- starts by hand ---------------------------------------------------------------------------


def test_a_handle_tells_all_but_values() -> None:
    x = torch.zeros(4, 6).t()
    handle = Handle(x, "x")
    assert (handle.shape, handle.ndim, handle.dim(), len(handle)) == ((6, 4), 2, 2, 6)
    assert (handle.stride(), handle.stride(0), handle.stride(1)) == ((1, 6), 1, 6)
    assert (handle.size(), handle.size(0), handle.size(1), handle.numel()) == ((6, 4), 6, 4, 24)
    assert (handle.dtype, handle.device) == (F32, x.device)
    assert tensor_of(handle) is x
    assert tensor_of(5) == 5
    with pytest.raises(AttributeError, match="here x has a shape"):
        handle.sum()
    made = with_tensors(RecordedStart("f", (handle, 3), {"y": handle, "z": 1}, (2,)))  # type: ignore[arg-type]
    assert made == RecordedStart("f", (x, 3), {"y": x, "z": 1}, (2,))  # type: ignore[arg-type]


def test_starts_are_collected_and_kernels_put_back() -> None:
    from triton.runtime.jit import JITFunction

    kernel = JITFunction(tensor_of)
    namespace: dict[str, Any] = {"kernel": kernel, "other": 5}
    with collecting(namespace) as starts:
        assert namespace["other"] == 5
        namespace["kernel"][(2,)](1, n=2)
    assert namespace == {"kernel": kernel, "other": 5}
    ((args, kwargs, grid),) = [(s.args, s.kwargs, s.grid) for s in starts]
    assert (args, kwargs, grid) == ((1,), {"n": 2}, (2,))


@pytest.mark.parametrize("failing", [False, True])
def test_the_interpreter_is_as_before_once_nobody_watches(failing: bool) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    def methods() -> list[Any]:
        names = "create_masked_load create_masked_store create_atomic_rmw set_grid_idx"
        return [getattr(InterpreterBuilder, name) for name in names.split()]

    with interpreting():
        before = methods()
        with contextlib.suppress(KeyError), watching({}, strict=True):
            assert not set(methods()) & set(before)
            if failing:
                raise KeyError
        assert methods() == before


# -- half precision where it is interpreted ---------------------------------------------------

ATOMIC = """
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    tl.atomic_add(out_ptr + at % 3, x, mask=at != 5)

def launch(x, out):
    kernel[(1,)](x, out, SIZE=8)
"""


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_sums_in_half_precision_are_rounded_one_by_one(dtype: torch.dtype) -> None:
    arguments = (argument("x", "in", dtype), argument("out", "inout", dtype))
    kernel = build_triton(ATOMIC, Signature(arguments))
    x = torch.tensor([0.1, 1000, 3, 0.3, 7, 1e4, -0.1, 5], dtype=dtype)
    out = torch.tensor([2048, 1, -4], dtype=dtype)
    wanted = out.clone()
    for n in range(8):
        if n != 5:
            wanted[n % 3] += x[n]
    kernel([x, out], [])
    assert torch.equal(out, wanted)


FUSED = """
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, y_ptr, z_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x, y, z = tl.load(x_ptr + at), tl.load(y_ptr + at), tl.load(z_ptr + at)
    tl.store(out_ptr + at, tl.fma(x, y, z))

def launch(x, y, z, out):
    kernel[(1,)](x, y, z, out, SIZE=64)
"""


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64])
def test_a_product_and_a_sum_are_rounded_once(dtype: torch.dtype) -> None:
    names: dict[str, Role] = {"x": "in", "y": "in", "z": "in", "out": "out"}
    arguments = tuple(argument(name, role, dtype) for name, role in names.items())
    kernel = build_triton(FUSED, Signature(arguments))
    x, y, z = (torch.randn(64).to(dtype) for _ in range(3))
    z = -(x * y) + z * 1e-3  # what rounding the product would lose
    out = torch.empty_like(x)
    kernel([x, y, z, out], [])
    wanted = (x.double() * y.double() + z.double()).to(dtype)
    assert torch.equal(out, wanted) if dtype != F64 else torch.allclose(out, wanted)
    if dtype != F64:
        assert not torch.equal(out, x * y + z)


# -- a file's own function --------------------------------------------------------------------

JIT = "import triton\n@triton.jit\ndef kernel(): pass\n"


@pytest.mark.parametrize(
    ("text", "reference", "said"),
    [
        ("def launch(x, *y, z=1, **w): pass", "def launch(x, *y, z, **w): pass", ""),
        ("def launch(x, /, y): pass", "def launch(x, y): pass", ""),
        ("def launch(x, y): pass", "def launch(y, x): pass", "launch(x, y) must keep"),
        (
            "def launch(x, *y): pass",
            "def launch(x, **y): pass",
            "must keep its parameters: (x, **y)",
        ),
        ("def launch(*, x): pass", "def launch(x): pass", ""),
        ("def launch(x): pass", "def other(x): pass", ""),
    ],
)
def test_a_start_keeps_its_parameters(text: str, reference: str, said: str) -> None:
    found = check_entry(JIT + text, "launch", reference)
    assert (found is None) if not said else (found is not None and said in found.reason)


@pytest.mark.parametrize(
    ("decorator", "known"),
    [
        ("triton.jit", True),
        ("jit", True),
        ("triton.jit(noinline=True)", True),
        ("triton.autotune([], triton.jit)", True),
        ("staticmethod", False),
        ("triton.heuristics({})", False),
        ("triton.jot", False),
    ],
)
def test_what_is_a_kernel(decorator: str, known: bool) -> None:
    text = f"@{decorator}\ndef kernel(): pass\ndef launch(): pass\n"
    assert (check_entry(text, "launch", "def launch(): pass") is None) is known
