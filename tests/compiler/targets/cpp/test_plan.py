"""Plans of C++ loops: decided before anything is written, with reasons, and open to overrides."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.errors import BadOption
from fusec.inspect.whatif import what_if
from fusec.machine import current_machine, using
from fusec.schedule.overrides import LoopOverride, Overrides
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.choose import plan_loops
from fusec.targets.cpp.plan.wanted import KINDS, TECHNIQUES, Wanted

CPP = Path(fusec.__file__).parent / "targets" / "cpp"


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def test_a_position_is_searched_among_what_follows_from_a_scan() -> None:
    """The search computes again what the loop had; not what lies below a finished sum."""

    def cell(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(-1).sum(-1, keepdim=True).expand(x.shape).argmax(-1)

    x = torch.randn(9, 100)
    torch.testing.assert_close(fusec.compile(cell)(x), cell(x))


Case = tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor, str]
# A technique, a cell that has it by the heuristics, and what its text has for it.
CELLS: dict[str, Case] = {
    "threads": (lambda x: x * 2, torch.randn(300, 400), "omp parallel"),
    "prefetch": (lambda x: x * 2, torch.randn(700, 800), "prefetch<"),
    "staging": (lambda x: x * 2, torch.randn(64, 512).half(), "_f32["),
    "interleave": (lambda x: x.exp(), torch.randn(64, 512), "marks["),
    "split_ranges": (lambda x: F.pad(x, (300, 0)), torch.randn(99, 512), "for (int64_t"),
    "split_axes": (
        lambda x: x.view(3, 4, 16, 16).permute(1, 0, 2, 3).reshape(4, 768) * 2,
        torch.randn(3, 1024),
        "for (int64_t",
    ),
    "tiles": (lambda x: x.t().contiguous(), torch.randn(99, 64), "turn_over"),
    "tables": (
        lambda x: x * torch.arange(99).float().exp(),
        torch.randn(50, 99),
        "_table[",
    ),
    "row_reuse": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        torch.randn(4, 8, 16, 20),
        "row_held",
    ),
    "deinterleave": (lambda x: F.max_pool2d(x, 3, 2), torch.randn(2, 9, 33, 33), "_even["),
    "moderate_angles": (lambda x: x.sin(), torch.randn(64, 512), "lanes("),
    "keep_rows": (lambda x: x.softmax(-1), torch.randn(99, 300), "_row["),
    "full_vectors": (lambda x: x.amax(-1), torch.randn(99, 77), "int32_t r0"),
    "split_rows": (lambda x: x.sum(0), torch.randn(4000, 40), "PIECES"),
}


def one_kernel(cell: Callable[..., torch.Tensor], x: torch.Tensor, **options: object) -> Any:
    torch._dynamo.reset()
    compiled = fusec.compile(cell, **options)
    torch.testing.assert_close(compiled(x), cell(x), rtol=1e-3, atol=1e-3)
    (kernel,) = compiled.kernels.values()
    return kernel


@pytest.mark.parametrize("technique", CELLS)
def test_a_technique_is_decided_with_a_reason_and_can_be_left_out(technique: str) -> None:
    if technique == "full_vectors" and not choices.full_turns(77):
        pytest.skip("this machine's vectors are not read by masks")
    cell, x, mark = CELLS[technique]
    kernel = one_kernel(cell, x)
    rules = [f"{name}: {technique}=0" for name in names_of(cell, x)]
    without = one_kernel(cell, x, loops=rules)
    assert code(kernel).count(mark) > code(without).count(mark), kernel.source
    assert f"{technique}: left out (as asked for)" in without.generated.plan or (
        technique == "threads" and "threads: one (as asked for)" in without.generated.plan
    )


def test_tiles_ask_for_nothing_where_that_is_left_out() -> None:
    x, y = torch.randn(800, 700), torch.randn(700, 800)
    for rules, asks in ((), True), (["add: prefetch=0"], False):
        torch._dynamo.reset()
        compiled = fusec.compile(lambda x: x.t() + y, loops=rules)
        torch.testing.assert_close(compiled(x), x.t() + y)
        (kernel,) = compiled.kernels.values()
        assert "turn_over" in code(kernel)
        assert ("prefetch<" in code(kernel)) is asks


def test_rows_of_few_tiles_of_columns_are_shared_out() -> None:
    kernel = one_kernel(lambda x: x.sum(0), torch.randn(1000, 2 * choices.COLUMNS + 9))
    assert "PIECES" in code(kernel)
    assert "3 tiles would not keep threads busy" in kernel.generated.plan


def test_bags_of_embeddings_are_summed_along_what_lies_side_by_side() -> None:
    """An index that is read once a row outweighs no row of what it finds."""
    index, table = torch.randint(0, 300, (40, 16)), torch.randn(300, 128)
    kernel = one_kernel(lambda i: torch.nn.functional.embedding(i, table).sum(1), index)
    assert "kind: columns" in kernel.generated.plan


def test_places_that_every_row_looks_up_are_checked_once() -> None:
    x, places = torch.randn(64, 200), torch.randint(0, 200, (100,))
    kernel = one_kernel(lambda x: x.index_select(1, places) + 1, x)
    assert "_table[" in code(kernel)
    torch._dynamo.reset()
    compiled = fusec.compile(lambda x, i: x[:, i] + 1)
    places[50] = 200
    with pytest.raises(IndexError):
        compiled(x, places)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_halves_convert_each_element_once(dtype: torch.dtype) -> None:
    x = torch.randn(64, 512).to(dtype)
    for dims in (-1, 0, None):
        kernel = one_kernel(lambda x, dims=dims: x.sum(dims), x)
        loops = code(kernel).partition("sum[")[0]
        assert "fx_to_f16(" not in loops
        assert "fx_to_bf16(" not in loops


@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 64, (1 << 18) + 1, 131_072 + 192])
def test_pieces_are_cut_between_lines(size: int) -> None:
    x = torch.rand(size)
    kernel = one_kernel(lambda x: x.sum(), x)
    assert ("* LINE" in code(kernel)) is (size % 64 == 0)
    for cell in (torch.argmax, torch.amin):
        one_kernel(cell, x)


def code(kernel: Any) -> str:
    """Return a kernel's text without its comments, which quote the cells above."""
    lines = kernel.source.splitlines()
    return "\n".join(line for line in lines if not line.strip().startswith("//"))


def names_of(cell: Callable[..., torch.Tensor], x: torch.Tensor) -> list[str]:
    """Return the computations of a cell as rules call them."""
    from fusec.schedule.rules import known_names

    torch._dynamo.reset()
    compiled = fusec.compile(cell)
    compiled(x)
    (graph,) = compiled.graphs
    return list(known_names(graph.parts[0].state.program))


def test_every_technique_has_a_cell() -> None:
    # what is written past the caches has tests of its own, with caches of any size
    assert CELLS.keys() | {"nontemporal"} == TECHNIQUES.keys()


REDUCTIONS = {
    "columns": lambda x: x.t().softmax(-1),
    "short_rows": lambda x: x[:, :12].softmax(-1),
    "split_reduction": lambda x: x.softmax(-1),
    "rows": lambda x: x.t().softmax(-1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_loops_can_be_asked_for(kind: str) -> None:
    kernel = one_kernel(REDUCTIONS[kind], torch.randn(40, 90), loops=f"softmax: {kind}")
    assert f"kind: {kind} (as asked for)" in kernel.generated.plan


def test_what_is_not_possible_stays_as_it_is() -> None:
    x = torch.randn(40, 90)
    plain = one_kernel(lambda x: x.cumsum(-1), x)
    kernel = one_kernel(lambda x: x.cumsum(-1), x, loops="cumsum: split_reduction")
    assert code(kernel) == code(plain)
    assert "split_reduction is not possible" in kernel.generated.plan


@pytest.mark.parametrize("rule", ["softmax: rowwise", "softmax: hopes=0", "softmax", ": rows"])
def test_rules_that_mean_nothing_are_refused(rule: str) -> None:
    with pytest.raises((BadOption, torch._dynamo.exc.BackendCompilerFailed)) as raised:
        one_kernel(lambda x: x.softmax(-1), torch.randn(4, 9), loops=rule)
    assert "not known" in str(raised.value)


def test_plans_are_frozen_and_say_why() -> None:
    kernel = one_kernel(lambda x: F.layer_norm(F.gelu(x), (64,)), torch.randn(700, 64))
    lines = kernel.generated.plan.splitlines()
    assert lines[0].startswith("kind: rows (")
    assert all(line.endswith(")") and len(line.partition("(")[2]) > 5 for line in lines)
    from support.triton_bodies import softmax

    case = softmax(24, 200, torch.float32)
    plan = plan_loops(case.body, case.buffers, Wanted())
    with pytest.raises(AttributeError):
        plan.kind = "columns"  # type: ignore[misc]


def _asked(cell: Callable[..., torch.Tensor], *sizes: int) -> list[list[str]]:
    """Return what each loop over a row asks for: the functions that it calls."""
    with using(replace(current_machine(), streams=False)):  # whose results are not asked for
        text = code(one_kernel(cell, torch.randn(*sizes)))
    loops = text.split("_line < ")[1:]
    return [re.findall(r"\b(prefetch\w*)<", loop.split("#pragma")[0]) for loop in loops]


def test_rows_of_little_arithmetic_ask_where_the_memory_is_idle() -> None:
    norm = _asked(lambda x: F.layer_norm(x, (4096,)), 100, 4096)
    assert norm == [[], ["prefetch_to_second"], ["prefetch_to_write"]]
    short = _asked(lambda x: F.layer_norm(x, (1024,)), 400, 1024)  # a row finds room beside another
    assert short == [[], ["prefetch"], ["prefetch_to_write"]]
    assert _asked(F.instance_norm, 20, 8, 4096) == norm
    weights = _asked(lambda x: x.softmax(-1), 100, 4096)  # which asks in the pass of exponentials
    assert sorted(weights[1]) == ["prefetch", "prefetch_to_write"]
    weight = torch.randn(64)
    channels = one_kernel(lambda x: F.group_norm(x, 8, weight), torch.randn(100, 64, 128))
    assert "prefetch" not in channels.source  # a request for each few elements


def test_positions_of_a_row_are_converted_once() -> None:
    x = torch.randn(4, 8, 30, 30)
    facts = replace(current_machine(), gathers=False)
    kernel = one_kernel(lambda x: F.interpolate(x, scale_factor=2), x, machine=facts)
    rectified = one_kernel(lambda x: F.interpolate(x, scale_factor=2).relu(), x, machine=facts)
    assert "_table[" in code(kernel)
    assert "safelen(1)" in code(kernel)  # nothing but reading from all over
    assert "_table[" in code(rectified)
    assert "safelen(1)" not in code(rectified)  # which would be a branch an element


def test_another_plan_is_tried_and_put_in_use() -> None:
    torch._dynamo.reset()
    x = torch.randn(60, 300)
    compiled = fusec.compile(lambda x: x.softmax(-1), keep_inputs=True)
    compiled(x)
    (graph,) = compiled.graphs
    (name,) = graph.parts[0].kernels
    before = graph.parts[0].kernels[name].source
    alternatives = graph.parts[0].kernels[name].generated.alternatives
    assert {"keep_rows=0", "split_reduction"} <= set(alternatives)
    (step,) = (step.name for step in graph.parts[0].state.program.steps)
    asked = Overrides(loops=(LoopOverride(step, settings=(("keep_rows", 0),)),))
    found = what_if(graph, graph.parts[0], asked, 0.02)
    assert found.same
    assert found.then.median > 0
    assert graph.parts[0].kernels[name].source == before, "what is in use stays"
    compiled.reschedule(loops=["softmax: keep_rows=0"])
    (kernel,) = compiled.kernels.values()
    assert kernel.source != before
    torch.testing.assert_close(compiled(x), x.softmax(-1))
    compiled.reschedule(loops=())
    (kernel,) = compiled.kernels.values()
    assert kernel.source == before


def test_writers_decide_nothing() -> None:
    """They read sizes that are constants of the text; what is worth while is the plan's to say."""
    asked = set[str]()
    for folder in ("loops", "memory", "vector", "text"):
        for path in sorted((CPP / folder).glob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                owner = getattr(node, "value", None)
                if isinstance(node, ast.Attribute) and isinstance(owner, ast.Name):
                    asked |= {node.attr} if owner.id == "choices" else set()
    assert {name for name in asked if not name.isupper()} == {"whole_vectors", "has_fma"}
