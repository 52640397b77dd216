"""What an activation was given is computed again in backward, from the input of a norm."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import fusec
from fusec.graph.simplify.extremes import COMPARED
from fusec.graph.training.norm_formula import normalized
from fusec.graph.training.rematerialize import activate_again
from support.compare import difference


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def saved(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> int:
    """Compare result and gradients with eager's; return the bytes that forward keeps anew."""
    compiled = fusec.compile(function)
    ours = [x.detach().clone().requires_grad_() for x in inputs]
    theirs = [x.detach().clone().requires_grad_() for x in inputs]
    gradient = torch.randn_like(function(*inputs))
    results = []
    for run, given in ((compiled, ours), (function, theirs)):
        result = run(*given)
        result.backward(gradient)
        results.append((result.detach(), *(x.grad for x in given)))
    assert not difference(*results)
    (graph,) = compiled.graphs
    assert not graph.fallback
    return sum(tensor.bytes for tensor in graph.saved if not tensor.given)


def group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.silu(F.group_norm(x, 2, w, b))


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(x, (x.shape[-1],), w, b))


@pytest.mark.sample(1)
@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 2, 33), (3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype) + 3
    w, b = torch.randn(2, shape[1], dtype=dtype)
    assert saved(group_norm, x, w, b) < x.nbytes or x.numel() < 16


def test_group_norm_without_weights_and_channels_last() -> None:
    x = torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last)
    assert saved(lambda x: F.silu(F.group_norm(x, 4)), x) < x.nbytes


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", [(8, 100), (2, 3, 17)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    w, b = torch.randn(2, shape[-1], dtype=dtype)
    found = saved(layer_norm, x, w, b)
    if dtype == torch.float32:
        assert found < x.nbytes


def test_a_matrix_product_takes_the_result_itself() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],)) @ w

    x = torch.randn(16, 32)
    assert saved(function, x, torch.randn(32, 8)) >= x.nbytes


def test_empty() -> None:
    assert saved(lambda x: F.silu(F.layer_norm(x, (4,))), torch.randn(0, 4)) == 0


class Normed(nn.Module):
    """A convolution, a batch norm, what follows, and a convolution that reads the result."""

    def __init__(self, after: Callable[[torch.Tensor], torch.Tensor], *, last: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.after = after
        self.second = nn.Conv2d(8, 4, 3) if last else nn.Identity()
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.after(self.norm(self.first(x))))


def kept(module: nn.Module, x: torch.Tensor, steps: int = 2) -> tuple[int, Sequence[str]]:
    """Compare results, gradients and running sums with float64; what is kept for backward."""
    theirs, exact = copy.deepcopy(module), copy.deepcopy(module).double()
    compiled = fusec.compile(module)
    for _ in range(steps):
        found = []
        fresh = torch.randn_like(x)
        for model, call in ((module, compiled), (theirs, theirs), (exact, exact)):
            model.zero_grad()
            leaf = fresh.clone().to(next(model.parameters()).dtype).requires_grad_()
            result = call(leaf)
            result.square().mean().backward()
            named = [*model.named_parameters(), *model.named_buffers()]
            values = [p.grad if p.grad is not None else p for _, p in named]
            found.append([result.detach(), leaf.grad, *values])
        for got, plain, truth in zip(*found, strict=True):
            scale = truth.double().abs().max() + 1e-9
            wrong, own = ((v.double() - truth).abs().max() / scale for v in (got, plain))
            assert wrong <= 4 * own + 1e-5
    (graph,) = compiled.graphs
    assert not graph.fallback
    return sum(t.bytes for t in graph.saved if not t.given), [t.dtype for t in graph.saved]


AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "leaky relu": lambda y: F.leaky_relu(y, 0.1),
    "gelu": F.gelu,
    "scaled": lambda y: F.relu(2 * y + 1),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", AFTER)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm(name: str, training: bool, layout: torch.memory_format) -> None:
    module = Normed(AFTER[name], last=False).train(training)
    x = torch.randn(3, 4, 12, 12).to(memory_format=layout)
    image = 4 * 3 * 8 * 10 * 10  # bytes of what the first convolution returns
    found, kinds = kept(module.to(memory_format=layout), x)
    assert image <= found < 1.25 * image  # that and statistics: no mask, no result of the norm
    assert "bool" not in kinds


@pytest.mark.parametrize("name", ["relu", "silu"])
def test_what_a_convolution_reads_is_kept_for_it_alone(name: str) -> None:
    module = Normed(AFTER[name], last=True)
    found, kinds = kept(module, torch.randn(3, 4, 12, 12))
    image = 4 * 3 * 8 * 10 * 10
    assert 2 * image <= found < 2.25 * image
    assert "bool" not in kinds


def test_a_residual_is_no_small_tensor() -> None:
    """Two large tensors to read instead of one mask would be no gain."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # No bias: a norm takes it away again, and its gradient would be rounding alone.
            self.convolution = nn.Conv2d(4, 4, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.norm(self.convolution(x)) + x)

    _, kinds = kept(Block(), torch.randn(3, 4, 12, 12))
    assert "bool" in kinds


def test_under_autocast() -> None:
    module = Normed(F.relu, last=True)
    exact = copy.deepcopy(module).double()
    compiled = fusec.compile(module)
    x = torch.randn(3, 4, 12, 12)
    with torch.autocast("cpu", torch.bfloat16):
        result = compiled(x)
    result.float().square().mean().backward()
    exact(x.double()).square().mean().backward()
    for (name, ours), truth in zip(module.named_parameters(), exact.parameters(), strict=True):
        assert (ours.grad - truth.grad).abs().max() < 0.05 * truth.grad.abs().max(), name
    assert "bool" not in [t.dtype for t in compiled.graphs[0].saved]


def test_the_bias_may_not_change_before_backward() -> None:
    """It is read again; torch says so instead of computing with another one."""
    x = torch.randn(4, 8, 6, 6)
    w, b = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    compiled = fusec.compile(lambda x, w, b: F.relu(F.group_norm(x, 2, w, b)))
    result = compiled(x, w, b)
    with torch.no_grad():
        b.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_sizes_that_vary() -> None:
    compiled = fusec.compile(lambda x, w, b: F.relu(F.layer_norm(x, (24,), w, b)), dynamic=True)
    for rows in (5, 9):
        w, b = torch.randn(2, 24)
        given = [torch.randn(rows, 24), w, b]
        ours = [t.clone().requires_grad_() for t in given]
        theirs = [t.clone().requires_grad_() for t in given]
        gradient = torch.randn(rows, 24)
        compiled(*ours).backward(gradient)
        F.relu(F.layer_norm(theirs[0], (24,), *theirs[1:])).backward(gradient)
        assert not difference([t.grad for t in ours], [t.grad for t in theirs])


def test_within_a_checkpoint() -> None:
    """The user has it all computed again; what is added does as the nodes around it do."""
    block = Normed(F.relu, last=True)
    block.norm = nn.GroupNorm(2, 8)  # in eager, running sums would be updated twice

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = block

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, x, use_reentrant=False)

    kept(Checkpointed(), torch.randn(3, 4, 12, 12))


def test_dropout_between() -> None:
    """Random numbers are not drawn again: only what they are applied to is computed again."""
    w, b = torch.randn(2, 64)
    x = torch.randn(32, 64)

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.relu(F.layer_norm(x, (64,), w, b)), 0.5)

    compiled = fusec.compile(function)
    given = [t.clone().requires_grad_() for t in (x, w, b)]
    result = compiled(*given)
    result.backward(torch.ones_like(result))
    leaves = [t.double().requires_grad_() for t in (x, w, b)]
    exact = F.relu(F.layer_norm(leaves[0], (64,), *leaves[1:]))
    chosen = torch.where(result != 0, 2.0, 0.0).double()
    exact.backward(chosen)
    assert not difference([t.grad for t in given], [t.grad.float() for t in leaves])


def test_an_input_that_is_updated_is_not_read_again() -> None:
    def joint(x: torch.Tensor, mean: torch.Tensor, gradient: torch.Tensor) -> object:
        y = F.relu(x - mean)
        later = torch.where(y <= 0, 0.0, gradient) + 2 * x * gradient
        return y, mean + 1, later

    def traced() -> torch.fx.GraphModule:
        given = torch.randn(64, 32), torch.randn(32), torch.randn(64, 32)
        return make_fx(joint, tracing_mode="fake")(*given)

    assert activate_again(traced(), 2) == 1
    assert activate_again(traced(), 2, updated=("mean_1",)) == 0
    assert activate_again(traced(), 2, updated=("x_1",)) == 1  # which is read in any case


def test_what_is_compared_is_computed_once() -> None:
    """Nor is what backward does not read, or what nothing is computed for."""

    def joint(x: torch.Tensor, gradient: torch.Tensor) -> object:
        y = F.relu(x * 2)
        return y, torch.where(y <= 0, 0.0, gradient) + x

    def traced(mark: bool) -> torch.fx.GraphModule:
        module = make_fx(joint, tracing_mode="fake")(torch.randn(64, 32), torch.randn(64, 32))
        for node in module.graph.nodes:
            if mark and node.target is torch.ops.aten.relu.default:
                node.meta[COMPARED] = True
        return module

    assert activate_again(traced(mark=False), 1) == 1
    marked = traced(mark=True)
    before = str(marked.graph)
    assert activate_again(marked, 1) == 0
    assert str(marked.graph) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_norm_as_a_formula_has_the_type_of_its_result(dtype: torch.dtype) -> None:
    with FakeTensorMode():
        x = torch.empty(8, 64, dtype=dtype, device="cuda")  # where its statistics are exact
        module = make_fx(lambda x: torch.native_layer_norm(x, [64], None, None, 1e-5))(x)
    (norm,) = [n for n in module.graph.nodes if "layer_norm" in str(n.target)]
    assert isinstance(norm.args[0], torch.fx.Node)
    (output,) = module.graph.find_nodes(op="output")
    with module.graph.inserting_before(output):
        made = normalized(module.graph, norm, norm.args[0])
    assert made.meta["val"].dtype == dtype
    assert (made.target is torch.ops.aten._to_copy.default) is (dtype != torch.float32)
