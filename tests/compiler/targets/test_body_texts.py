"""How bodies are written that tests run elsewhere: settings, and a short digest of each text.

What runs them asks whether results are right; what was decided for speed shows here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import pytest

from fusec.ir.node import recording
from fusec.machine import using
from fusec.targets.cpp.emit import emit_cpp
from fusec.targets.plain.emit import emit_plain
from fusec.targets.triton.emit import emit_triton
from fusec.tunables import read_tunables
from support import cpp_golden, triton_cases
from support import triton_bodies as bodies
from support import triton_windows as windows
from support.cpp_bodies import random_bench
from support.decisions import compare_part
from support.random_bodies import Maker
from support.triton_bodies import Case
from support.triton_cases import BF16, F32, F64, HALF, symbolic, symbolic_rows
from support.whole_programs import MACHINE

EMITTERS = {"triton": emit_triton, "cpp": emit_cpp, "plain": emit_plain}
# Settings that have no test of their own: sizes on either side of a limit, and other types.
MORE: dict[str, Callable[[], Case]] = {
    "many rows": lambda: bodies.softmax(100_000, 1024),
    "many short rows": lambda: bodies.softmax(100_000, 24, F32),
    "rows of 4096": lambda: bodies.gelu_layer_norm(8192, 4096),
    "rows of 50257": lambda: bodies.cross_entropy(4096, 50257),
    "odd rows": lambda: bodies.reduce_rows("sum", 4096, 5003, HALF),
    "odd rows of 50257": lambda: bodies.reduce_rows("max", 4096, 50257, BF16),
    "positions": lambda: bodies.reduce_rows("argmin", 4096, 50257, F32),
    "columns": lambda: bodies.sum_columns(100_000, 768),
    "few columns": lambda: bodies.sum_columns(1_000_000, 7, F32),
    "all": lambda: bodies.sum_all(1 << 24, dtype=F32),
    "all of doubles": lambda: bodies.sum_all(1000, 1000, dtype=F64),
    "groups": lambda: bodies.group_norm(32, 32, 8, 3136),
    "batches": lambda: bodies.batch_norm(64, 64, 3136),
    "batches, channels last": lambda: bodies.batch_norm_last(200_704, 64),
    "norm gradient": lambda: bodies.norm_gradient(8192, 768, 64),
    "norm gradient of 4096": lambda: bodies.norm_gradient(4096, 4096, 32, BF16),
    "running": lambda: bodies.scans(("sum",), 64, 100_000),
    "running down": lambda: bodies.scans(("max",), 1000, 4096, down=True),
    "running mean": lambda: bodies.running_mean(64, 4096),
    "running mean down": lambda: bodies.running_mean(4096, 64, down=True),
    "spread": lambda: bodies.spread_rows(4096, 1024),
    "turned": lambda: bodies.transpose_add(4096, 4096),
    "turned floats": lambda: bodies.transpose_add(4096, 1000, F32),
    "gathered": lambda: bodies.gather(50_000, 768, 8192, HALF),
    "scattered": lambda: bodies.scatter_add(1000, 128, 8192),
    "wave": lambda: bodies.wave(1000, 4096),
    "row windows": lambda: bodies.row_windows(2048, 112),
    "chain": lambda: bodies.pointwise_chain(4096, 4096),
    "chain of bytes": lambda: bodies.pointwise_chain(4096, 4095, dtype=BF16),
    "two rows in one": lambda: bodies.broadcast_add(8192, 1024, HALF),
    "neighbors": lambda: windows.neighbors(8192, 2048, HALF),
    "windows": lambda: windows.windows(512, 56, 56, HALF),
    "blended": lambda: windows.blended(4096, 1024, HALF),
    "overlapping": lambda: windows.overlapping(4096, 1024, (-1, 0, 1), width=2050),
    "weighted, 120 channels": lambda: windows.weighted(64, 28, 120),
    "weighted, 96 channels": lambda: windows.weighted(64, 112, 96),
    "weighted, 64 channels": lambda: windows.weighted(2, 7, 64),
    "weighted, 16 channels": lambda: windows.weighted(64, 28, 16),
    "weighted, 24 channels": lambda: windows.weighted(64, 28, 24),
    "weighted, 240 channels": lambda: windows.weighted(64, 28, 240),
    "weighted, 960 channels": lambda: windows.weighted(64, 7, 960),
    "symbolic rows": lambda: symbolic(lambda n, m: bodies.gelu_layer_norm(n, 768), 8, 768),
    "symbolic softmax": lambda: symbolic(lambda n, m: bodies.softmax(n, m, HALF), 8, 768),
    "symbolic turned": lambda: symbolic(bodies.transpose_add, 8, 768),
    "symbolic columns": lambda: symbolic(bodies.sum_columns, 8, 768),
    "symbolic all": lambda: symbolic(bodies.sum_all, 8, 768),
    "symbolic chain": lambda: symbolic(bodies.pointwise_chain, 8, 768),
    "symbolic blended": lambda: symbolic_rows(8, lambda n: windows.blended(n, 1024)),
    **{
        f"product {m} x {n} over {k}": lambda m=m, n=n, k=k: bodies.product(m, n, k)  # type: ignore[misc]
        for m, n, k in ((1, 4096, 4096), (16, 4096, 4096), (60, 4096, 11008), (500, 512, 256))
    },
    "a large product": lambda: bodies.product(4096, 4096, 4096, BF16),
    "a product of floats": lambda: bodies.product(512, 512, 512, F32),
    "a product, then softmax": lambda: bodies.softmax_of_product(4096, 128, 64),
}


def random_case(seed: int) -> Case:
    """Return a random body; every other one has reductions."""
    if seed % 3:
        return Maker(seed, reduces=bool(seed % 2)).case()
    bench = random_bench(seed)
    return Case("random", bench.body, bench.buffers)


def made(name: str) -> tuple[Case, str]:
    if name in triton_cases.CASES:
        return triton_cases.CASES[name]()
    if name.startswith("seed "):
        return random_case(int(name.split()[1])), ""
    return {**cpp_golden.CASES, **cpp_golden.FULL, **MORE}[name](), ""


NAMES = list(dict.fromkeys([*triton_cases.CASES, *cpp_golden.CASES, *cpp_golden.FULL, *MORE])) + [
    f"seed {seed}" for seed in range(85)
]


PLAIN = frozenset(name for name in NAMES if name not in MORE) - {f"seed {n}" for n in range(30, 85)}
# Whose other plans are written as well: every third, and no long text.
ASKED = frozenset(name for name in NAMES[::3] if not name.startswith(("weighted", "norm grad")))


def told(name: str) -> Iterable[str]:
    case, strategy = made(name)
    for target, emit in EMITTERS.items():
        if (case.body.products and target != "triton") or (target == "plain" and name not in PLAIN):
            continue
        given = {"strategy": strategy} if target == "triton" else {}
        source = emit("body", case.body, case.buffers, **given)  # type: ignore[operator]
        digest = hashlib.sha256(f"{source.text} {source.plan}".encode()).hexdigest()[:8]
        knobs = " ".join(f"{t.name}={t.value}" for t in read_tunables(source.text))
        others = "; ".join([source.strategy, *source.alternatives])
        yield f"{target}: {source.summary}; {knobs}; {others}; {digest}"
        if target == "cpp" and source.alternatives and name in ASKED:
            yield f"  asked for {' '.join(asked_for(case, source.alternatives))}"


def asked_for(case: Case, alternatives: Iterable[str]) -> Iterator[str]:
    """Yield digests of the texts under the plans that may be asked for instead."""
    for plan in alternatives:
        name, _, value = plan.partition("=")
        wanted = {"settings": ((name, int(value)),)} if value else {"strategy": name}
        source = emit_cpp("body", case.body, case.buffers, **wanted)  # type: ignore[arg-type]
        yield hashlib.sha256(f"{source.text} {source.plan}".encode()).hexdigest()[:6]


@pytest.fixture(autouse=True)
def _recorder() -> Iterator[None]:
    with recording():
        yield


@pytest.mark.parametrize("name", NAMES)
def test_how_bodies_are_written(name: str) -> None:
    with using(MACHINE):
        compare_part("bodies", name, told(name))
