"""Types that eager has no kernels for: which operators are left whole, and when."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fusec.graph.refusals.kernels import refused, refusing

aten = torch.ops.aten
I32, I64, BOOL, HALF, F32 = torch.int32, torch.int64, torch.bool, torch.float16, torch.float32


def on_cpu(*dtypes: torch.dtype) -> list[tuple[torch.dtype, str]]:
    return [(dtype, "cpu") for dtype in dtypes]


@pytest.mark.parametrize(
    ("target", "given", "found"),
    [
        (aten.ceil.default, on_cpu(BOOL), BOOL),
        (aten.ceil.default, on_cpu(I64), None),
        (aten.ceil.default, [], None),
        (aten.ceil.default, [(BOOL, "cuda")], None),
        (aten.sin.default, on_cpu(BOOL), None),
        ("ceil", on_cpu(BOOL), None),
        (torch.ops.prims.ceil.default, on_cpu(BOOL), None),
        (aten.trace.default, on_cpu(HALF), HALF),
        (aten.trace.default, on_cpu(F32), None),
        (aten.avg_pool2d.default, on_cpu(I32), I32),
        (aten.avg_pool2d.default, on_cpu(I64), None),
        # what differs is promoted
        (aten.lerp.Tensor, on_cpu(I64, I64, I64), I64),
        (aten.lerp.Tensor, on_cpu(I64, F32, F32), None),
        # the first decides
        (aten.take.default, on_cpu(torch.float8_e5m2, I64), torch.float8_e5m2),
        (aten.take.default, on_cpu(F32, torch.float8_e5m2), None),
        # any does
        (aten.sub.Tensor, on_cpu(F32, BOOL), BOOL),
        (aten.sub.Tensor, on_cpu(BOOL, F32), BOOL),
        (aten.sub.Tensor, [(F32, "cpu"), (BOOL, "cuda")], None),
        (aten.sub.Tensor, on_cpu(F32, I64), None),
    ],
)
def test_types(target: object, given: Any, found: torch.dtype | None) -> None:
    assert refused(target, given) is found
    assert refused(target, given, F32) is None  # in which it is computed


def decomposed(operator: Any, *args: Any, error: bool = False, **kwargs: Any) -> Any:
    """Return what a formula that is asked for an operator by the user yields."""

    def rule(*_: Any, **__: Any) -> str:
        if error:
            raise ValueError
        return "a formula"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.fx.traceback.current_meta", {"original_aten": operator})
        return refusing(operator, rule)(*args, **kwargs)


def test_formulas_that_are_not_asked() -> None:
    bools, rare = torch.ones(3, dtype=BOOL), torch.ones(3, dtype=torch.uint16)
    complex_halves = torch.ones(3, dtype=torch.complex32)
    whole = NotImplemented
    assert decomposed(aten.ceil.default, torch.ones(3)) == "a formula"
    assert decomposed(aten.ceil.default, bools) is whole
    assert decomposed(aten.sub.Tensor, 1, other=bools) is whole
    assert decomposed(aten.mean.default, bools) is whole
    assert decomposed(aten.mean.default, bools, dtype=F32) == "a formula"
    assert decomposed(aten.mean.default, bools, dtype=torch.uint64) is whole
    assert decomposed(aten.eye.default, 3, dtype=torch.uint32) is whole
    assert decomposed(aten.eye.default, 3) == "a formula"
    assert decomposed(aten.take.default, rare, bools) is whole
    assert decomposed(aten.mm.default, complex_halves, complex_halves) is whole
    assert decomposed(aten.take.default, bools, rare) == "a formula"
    assert decomposed(aten.take.default, rare.to("meta"), rare) == "a formula"
    assert decomposed(aten.ceil.default, torch.ones(3), error=True) is whole


def test_what_another_formula_is_made_of_is_computed() -> None:
    rule = refusing(aten.ceil.default, lambda _: "a formula")
    assert rule(torch.ones(3, dtype=BOOL)) == "a formula"


@pytest.mark.parametrize(
    "operator",
    [
        aten.view.default,
        aten.t.default,
        aten.clone.default,
        aten._to_copy.default,
        aten.copy.default,
        aten.view_copy.default,
        torch.ops.higher_order.cond,
    ],
    ids=str,
)
def test_what_moves_elements_is_not_refused(operator: object) -> None:
    def rule() -> None:
        raise AssertionError

    assert refusing(operator, rule) is rule
