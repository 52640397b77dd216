"""A part of the operator suite, and the suite itself."""

from __future__ import annotations

import base64
import dataclasses
import math
import re
import runpy
import zlib
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from ops import judge, report, unit
from ops.__main__ import DTYPES, main
from ops.databases import DATABASES, Asked, database
from ops.layouts import layouts
from support import repro
from support.compare import difference

OPS = (
    "add",
    "where",
    "clamp",
    "sum",
    "amax",
    "std_mean",
    "cumsum",
    "gather",
    "cat",
    "nn.functional.gelu",
    "nn.functional.layer_norm",
    "nn.functional.cross_entropy",
    "nn.functional.max_pool2d",
)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", OPS)
def test_operators_equal_eager(name: str) -> None:
    op = unit.find(name)
    for direction, dtype in unit.units(op, forward=True, backward=True):
        if dtype in (torch.float32, torch.int64, torch.float16):
            for sample in unit.run_unit(op, direction, dtype, "fusec", 1):
                assert sample.verdict in ("ok", "float64", "not compiled"), (direction, sample)


def test_what_never_compiles_is_counted_apart() -> None:
    (sample, *_) = unit.run_unit(unit.find("nonzero"), "forward", torch.float32, "fusec", 1)
    assert sample.verdict == "not compiled"


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.capture.backend import Backend

    real = Backend.__call__

    def wrong(self: Backend, *args: object, **kwargs: object) -> object:
        run = real(self, *args, **kwargs)  # type: ignore[arg-type]
        return lambda *inputs: tuple(each * 1.001 for each in run(*inputs))

    monkeypatch.setattr(Backend, "__call__", wrong)
    samples = unit.run_unit(unit.find("exp"), "forward", torch.float32, "fusec", 3)
    assert "wrong" in [sample.verdict for sample in samples]


def test_a_fallback_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    import fusec.pipeline

    def fail(state: object) -> None:
        raise ValueError("made up")

    monkeypatch.setattr(fusec.pipeline, "STAGES", (("lower", fail),))
    (sample,) = unit.run_unit(unit.find("exp"), "forward", torch.float32, "fusec", 1)
    assert sample.verdict == "eager"
    assert "made up" in sample.detail


def test_a_run_is_reported_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ops.jsonl"
    options = ["sin", "--dtypes", "float32", "--samples", "1", "--report", str(path)]
    assert main(options) == 0
    text = path.with_suffix(".md").read_text()
    assert "1 operators, 2 samples: 2 ok" in text
    assert "all operators: 2 of 2 samples have no extern call (100.0 %)" in text
    path.write_text(path.read_text() + '{"key": "cut o')
    capsys.readouterr()
    assert main(options) == 0
    assert "of 1 operators" not in capsys.readouterr().out, "nothing was left to run"
    assert len([u for u in report.read(path).values() if u["samples"]]) == 2
    assert main(["no such thing"]) == 2


# -- the other databases ------------------------------------------------------------------


def asked(*directions: str, dtypes: str = "float32") -> Asked:
    return Asked(frozenset(directions), frozenset(dtypes.split()), samples=1)


@pytest.mark.parametrize(
    ("kind", "name", "way"),
    [
        ("higher-order", "cond.simple", "backward"),
        ("errors", "nn.functional.adaptive_avg_pool2d", "errors"),
        ("module-tests", "SmoothL1Loss_beta", "train backward"),
        ("functional-tests", "huber_loss.with_grad", "backward"),
        ("functions", "NumpySplitCopyWithIntCustomOp", "backward"),
        ("autocast", "nn_fp32.mse_loss", "backward"),
        ("transforms", "nn.functional.gelu", "hvp"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("modules", "nn.LayerNorm", "train backward"),
                ("optimizers", "SGD", "foreach"),
                ("optimizers", "Muon", "steps"),
                ("module-tests", "CosineEmbeddingLoss_no_batch_dim_mean", "train backward"),
                ("functional-tests", "hardtanh.inplace", "forward"),
                ("autocast", "torch_need_autocast_promote.cat", "backward"),
                ("transforms", "cumsum", "vmap of grad"),
            )
        ),
    ],
)
def test_other_databases(kind: str, name: str, way: str) -> None:
    dtypes = "bfloat16" if kind == "autocast" else "float32 int64"
    given = asked("forward", "backward", dtypes=dtypes)
    found = [unit for unit in database(kind).asked_units(name, given) if unit.direction == way]
    samples = [sample for unit in found for sample in unit.run("fusec")]
    assert samples
    for sample in samples:
        assert sample.verdict in ("ok", "rounding", "raises"), sample


def test_second_gradients_are_refused_not_wrong() -> None:
    (way,) = (
        unit
        for unit in database("functions").asked_units("NumpyMulCustomOp", asked("backward"))
        if unit.direction == "twice"
    )
    (sample,) = way.run("fusec")
    assert sample.verdict == "not captured"
    assert "double backward" in sample.detail


def test_how_a_result_lies_is_compared() -> None:
    x = torch.ones(3, 4)
    assert layouts((x, x.t())) == ["strides (4, 1)", "strides (1, 4)"]
    assert layouts([x.clone().requires_grad_()]) == ["strides (4, 1), with a gradient"]

    def run(wrap: judge.Wrap, *, exact: bool) -> tuple[object, object]:
        call = wrap(torch.neg)
        found = call(x)
        return (found, layouts(found if call is torch.neg else found.t())), ()

    sample = judge.judge(judge.Case(run), "fusec")
    assert sample is not None
    assert sample.verdict == "wrong"


def test_what_computes_where_eager_refuses_is_bad() -> None:
    def run(wrap: judge.Wrap, *, exact: bool) -> tuple[object, object]:
        call = wrap(torch.neg)
        if call is torch.neg:  # eager
            raise TypeError("not of this type")
        return call(torch.ones(3)), ()

    sample = judge.must_raise(judge.Case(run), "fusec")
    assert sample is not None
    assert sample.verdict == "computes"
    assert report.way(dataclasses.asdict(sample)) == "wrong"


def test_every_name_of_every_database_has_units() -> None:
    everything = Asked(frozenset(unit.DIRECTIONS), frozenset(DTYPES), samples=1)
    for kind in DATABASES:
        chosen = database(kind)
        empty = [n for n in chosen.names() if not list(chosen.asked_units(n, everything))]
        assert len(empty) < len(chosen.names()) / 20, (kind, empty)


# -- programs that show what is wrong -----------------------------------------------------


def values() -> tuple[torch.Tensor, tuple[object, ...], dict[str, object]]:
    large = torch.arange(300, dtype=torch.int16).reshape(20, 15)
    special = torch.tensor([[float("nan"), -0.0], [float("inf"), 1.5]], dtype=torch.bfloat16)
    return large, (special.t(), torch.tensor(True), 2.5, None), {"dim": [0, (1,)]}


def test_values_are_written_as_they_are() -> None:
    space = {"torch": torch, "zlib": zlib, "base64": base64, "inf": math.inf, "nan": math.nan}
    for value in pytree.tree_leaves(values()):
        made = eval(repro.value_text(value), dict(space))
        assert not difference(made, value)
        if isinstance(value, torch.Tensor):
            assert (made.stride(), made.dtype) == (value.stride(), value.dtype)
            assert torch.equal(made.isnan(), value.isnan())
    with pytest.raises(repro.NoProgram):
        repro.value_text(object())


def test_a_program_shows_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.tensor([0.5, 2.0]).requires_grad_()
    op = unit.find("exp")
    text = repro.program("exp", repro.operator_text(op), (x, (), {}), backward=True)
    path = repro.write(tmp_path, "exp float32 backward/1", text)
    assert path.name == "exp_float32_backward_1.py"
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    eager, compiled = capsys.readouterr().out.strip().split("compiled:")
    numbers = re.findall(r"[\d.]{4,}", compiled)
    assert numbers == re.findall(r"[\d.]{4,}", eager)
    assert "7.3891" in numbers


@pytest.mark.parametrize(
    ("kind", "name", "way", "dtype"),
    [
        ("autocast", "nn_fp32.mse_loss", "backward", "bfloat16"),
        ("functional-tests", "huber_loss.with_grad", "backward", "float32"),
        ("functions", "NumpySplitCopyWithIntCustomOp", "forward", "float32"),
        ("module-tests", "SmoothL1Loss_beta", "eval", "float32"),
        ("transforms", "sin", "jvp", "float32"),
    ],
)
def test_a_case_is_run_again_by_its_program(
    kind: str,
    name: str,
    way: str,
    dtype: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = list(database(kind)._cases(name, way, getattr(torch, dtype), False))  # type: ignore[attr-defined]
    program = cases[-1].program
    assert program is not None
    path = repro.write(tmp_path, name, program())
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path), run_name="__main__")
    assert end.value.code == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("ok")
