"""Nothing is decided on the wording of a reason: other words, the same kernels."""

from __future__ import annotations

import ast
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fusec.graph.products.alignment import align_products
from fusec.ir.node import Recorder
from fusec.lower import lower_graph
from fusec.lower.values import NotLowered
from fusec.options import Options
from fusec.schedule import products_of, small_products
from programs.generate import write
from support.paths import ROOT
from support.written import Written, written

TARGETS = ("cpp", "triton", "gpu")
# What fields of records are called that are only shown.
SHOWN = frozenset({"reason", "words", "why", "note"})


# -- the same kernels ---------------------------------------------------------------------


def reworded(text: object) -> object:
    """Return other words of which no part is as before."""
    return f"<{text[::-1].upper().translate({32: 95})}>" if isinstance(text, str) and text else text


def records() -> Iterator[tuple[type, tuple[str, ...]]]:
    """Yield every record of the compiler's that has fields which are only shown."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fusec."):
            for each in list(vars(module).values()):
                if isinstance(each, type) and dataclasses.is_dataclass(each):
                    fields = tuple(f.name for f in dataclasses.fields(each) if f.name in SHOWN)
                    if fields and each.__module__ == name:
                        yield each, fields


@contextmanager
def other_words() -> Iterator[dict[str, int]]:
    """Reword the reasons of all records that are made in the block; yield how many, by class."""
    counts: dict[str, int] = {}
    with ExitStack() as stack:
        for record, fields in records():

            def make(
                self: Any,
                *given: Any,
                usual: Any = record.__init__,
                fields: tuple[str, ...] = fields,
                **more: Any,
            ) -> None:
                usual(self, *given, **more)
                for field in fields:
                    object.__setattr__(self, field, reworded(getattr(self, field)))
                    counts[type(self).__name__] = counts.get(type(self).__name__, 0) + 1

            stack.enter_context(patch.object(record, "__init__", make))

        def refuse(self: NotLowered, why: Any, usual: Any = NotLowered.__init__) -> None:
            usual(self, reworded(why))

        stack.enter_context(patch.object(NotLowered, "__init__", refuse))
        yield counts


def kernels(made: list[Written]) -> list[tuple[str, ...]]:
    return [each.without_comments() for each in made]


def normal(*shape: int, grad: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(grad)


def norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x) + 1, x.shape[-1:])


def odd_head(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x @ w, torch.relu(x) @ w.float().to(x.dtype) + 1)


def picked(x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[at] * 2, torch.zeros(5, 8).index_add(0, at, x[at]), x[at] // (at[:, None] + 1)


def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, w, padding=1)), 2)


def noisy(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.3) + torch.rand_like(x)


def apart(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sizes = torch.empty_strided((3, 4), (9, 2))
    return x.cumsum(1), torch.cat([x, x.softmax(0)], 1), x.sort().values, sizes.shape, x.sum(0)


def updated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(y.exp()).clamp_(min=0)
    return torch.linalg.norm(x, dim=-1) / y.var(-1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "norm": (norm, (normal(64, 96, grad=True),)),
    "odd_head": (odd_head, (normal(256, 64).bfloat16(), normal(64, 1003).bfloat16())),
    "picked": (picked, (normal(5, 8), torch.tensor([4, 0, 2]))),
    "convolved": (convolved, (normal(2, 8, 12, 12, grad=True), normal(8, 8, 3, 3, grad=True))),
    "noisy": (noisy, (normal(16, 32),)),
    "apart": (apart, (normal(6, 10),)),
    "updated": (updated, (normal(6, 300), normal(6, 300))),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, target: str) -> None:
    function, inputs = FUNCTIONS[name]

    def made() -> list[Written]:
        given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        torch.manual_seed(0)
        return written(function, given, target=target)

    usual = made()
    with other_words() as counts:
        other = made()
    assert sum(counts.values()), "nothing was reworded"
    assert kernels(other) == kernels(usual)
    assert any(each.kernels for each in usual)


def returned(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.mm(x, w.t()),)


def test_products_of_odd_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fusec.graph.choices._LARGE_PRODUCT", 24 * 64 * 37)
    monkeypatch.setattr("fusec.lower.program.require_device", lambda *_: None)
    given = (normal(24, 64), normal(37, 64))
    abilities = Options(target="triton", matmul="small").abilities

    def chosen() -> tuple[str, ...]:
        with FakeTensorMode():
            fake = [torch.empty(x.shape, dtype=torch.bfloat16, device="cuda") for x in given]
            module = make_fx(returned)(*fake)
        assert align_products(module) == 0
        program = lower_graph(module, recorder=Recorder(), abilities=abilities)
        monkeypatch.setattr("fusec.schedule.choices_products.is_small_product", lambda body: False)
        return small_products(program, products_of(program))

    usual = chosen()
    assert len(usual) == 1
    with other_words():
        assert chosen() == usual


def test_reasons_are_other_words() -> None:
    function, inputs = FUNCTIONS["odd_head"]
    usual = written(function, inputs, target="gpu")
    with other_words() as counts:
        other = written(function, inputs, target="gpu")
    assert {"Extern", "FusionDecision"} <= counts.keys()
    shown = [w.program for w in usual]
    assert shown != [w.program for w in other], "the reasons are shown"


@pytest.mark.sample(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(31000, 31036))
def test_random_programs(seed: int, target: str) -> None:
    program = write(seed, train=seed % 3 == 0, halves=seed % 3 == 1)
    try:
        program.function()(*program.fresh())
        usual = written(program.function(), program.fresh(), target=target)
    except RuntimeError:
        pytest.skip("autograd refuses it")
    with other_words():
        other = written(program.function(), program.fresh(), target=target)
    assert kernels(other) == kernels(usual)


# -- no decision in the source ------------------------------------------------------------

# Where another project hands on words alone, and what reads them.
OTHER_PROJECTS = {
    "compiler/fusec/capture/dynamo/graph_breaks.py": "TorchDynamo's graph breaks",
    "compiler/fusec/targets/triton/toolchain/candidate.py": "asserts of Triton's interpreter",
    "ext/fuselab/magics/arguments.py": "argparse",
    "ext/fuselab/magics/hints.py": "magics that IPython does not know",
}
# Where somebody looks for a title that he typed.
LOOKS_UP = {"ext/fuselab/display/pages/stages.py"}
PROSE = SHOWN | {"title", "message", "doing", "activity"}
ASKS = frozenset("startswith endswith find index match search fullmatch findall".split())


def prose(node: ast.expr) -> bool:
    """Whether an expression is a text that is only shown."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in {"lower", "upper", "strip"} and prose(node.func.value)
    if isinstance(node, ast.Attribute):
        return node.attr in PROSE
    return isinstance(node, ast.Name) and node.id in PROSE - {"words"}


def known_texts(node: ast.expr) -> bool:
    """Whether an expression is a collection of texts that somebody wrote down."""
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.Tuple | ast.Set | ast.List)


def asks(node: ast.Compare) -> bool:
    """Whether a comparison asks what a text says."""
    sides = [node.left, *node.comparators]
    if any(isinstance(s, ast.Constant) and s.value in (None, "") for s in sides):
        return False
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        return prose(sides[1]) or (prose(sides[0]) and known_texts(sides[1]))
    return any(map(prose, sides)) and not isinstance(node.ops[0], ast.Is | ast.IsNot)


def decisions(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that ask what a text says, rather than whether there is one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            if asks(node):
                yield node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ASKS and any(map(prose, [node.func.value, *node.args])):
                yield node.lineno
        elif isinstance(node, ast.Match) and prose(node.subject):
            yield node.lineno


@pytest.mark.parametrize(
    "text",
    [
        "if ODD in step.reason: pass",
        "x = step.reason == SEED",
        "'slower' in self.words",
        "d.reason.startswith('saves ')",
        "re.search('a', reason)",
        "step.reason.lower() in (A, B)",
        "self.reason in PLUMBING",
        "match note:\n case 'x': pass",
    ],
)
def test_decisions_are_found(text: str) -> None:
    assert list(decisions(ast.parse(text)))


@pytest.mark.parametrize("text", ["reason is None", "note != ''", "x = f'{a}: {step.reason}'"])
def test_what_is_no_decision(text: str) -> None:
    assert not list(decisions(ast.parse(text)))


def test_no_decision_on_prose() -> None:
    found = {}
    for folder in ("compiler", "ext"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            lines = list(decisions(ast.parse(path.read_text())))
            if lines:
                found[path.relative_to(ROOT).as_posix()] = lines
    unknown = found.keys() - OTHER_PROJECTS.keys() - LOOKS_UP
    assert not unknown, {path: found[path] for path in unknown}
    assert not OTHER_PROJECTS.keys() - found.keys(), "these decide on no words any more"
