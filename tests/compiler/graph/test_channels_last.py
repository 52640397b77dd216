"""Convolutions with the channels innermost: what changes, and what must not."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fusec
from fusec.graph.convolutions.channels_last import CHANNELS_LAST, turn_channels_inward
from fusec.graph.facts.half_speed import HalfSpeed


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)


def changed(compiled: fusec.CompiledFunction) -> list[bool]:
    """Return for each convolution whether its layout was chosen."""
    externs = [e for g in compiled.graphs for e in g.externs]
    return [CHANNELS_LAST in e.reason for e in externs if e.name == "aten.convolution.default"]


def check(module: nn.Module, *inputs: torch.Tensor) -> list[bool]:
    """Compare with eager, layout included, twice; return ``changed``."""
    module.eval()
    compiled = fusec.compile(module)
    with torch.no_grad():
        for _ in range(2):
            found, eager = compiled(*inputs), module(*inputs)
            for got, plain in zip(_flat(found), _flat(eager), strict=True):
                scale = plain.abs().max().item()
                torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-5 * scale + 1e-5)
                assert got.stride() == plain.stride()
    return changed(compiled)


def _flat(result: object) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]  # type: ignore[list-item]


class Block(nn.Module):
    """Convolutions with norms, a pool and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.third = nn.Conv2d(16, 24, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        x = F.relu(x + self.second(x))
        return self.third(x).relu().mean((2, 3))


@pytest.mark.sample(2)
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 3, 64, 64), (1, 3, 57, 43)])
def test_a_network_of_convolutions(given: torch.memory_format, shape: tuple[int, ...]) -> None:
    assert check(Block(), torch.randn(shape).to(memory_format=given)) == [True, True, True]


@pytest.mark.parametrize("native", [True, False])
def test_of_bfloat16(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are turned where the processor multiplies it; else as what they are widened to."""
    speed = HalfSpeed(half=0.01 if native else 0.05, single=0.0167, conversion=0.8)
    monkeypatch.setattr("fusec.graph.choices.half_speed", lambda dtype: speed)
    exact = Block().eval().double()
    module, x = copy.deepcopy(exact).bfloat16(), torch.randn(2, 3, 57, 43).bfloat16()
    compiled = fusec.compile(module)
    with torch.no_grad():
        for _ in range(2):
            found, eager, truth = compiled(x), module(x), exact(x.double())
            errors = [(y.double() - truth).abs().max().item() for y in (found, eager)]
            assert errors[0] <= 1.5 * errors[1] + 1e-3
            assert found.stride() == eager.stride()
    if native:
        assert changed(compiled) == [True, True, True]


def test_norms_lie_as_their_input_does() -> None:
    class Norms(nn.Module):
        """ConvNeXt's order, then a group norm between two convolutions."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
            self.layer, self.group = nn.LayerNorm(16), nn.GroupNorm(4, 16)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.layer(self.first(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            z = F.silu(self.group(self.second(F.gelu(y))))
            return z.mean((2, 3)), z[:, 3, 2]

    assert check(Norms(), torch.randn(2, 16, 36, 34)) == [True, True]


def test_views_of_a_result_see_what_was_traced() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(8, 16, 5, padding=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x).flatten(2)
            return torch.bmm(y, y.mT) + y.sum()

    # the product reads the convolution's result through a view: it stays row-major
    assert check(Views(), torch.randn(2, 8, 32, 32)) == [False]


def test_what_is_returned_keeps_its_layout() -> None:
    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = self.first(x)
            z = F.gelu(y)
            return y, z, F.silu(self.second(z) + x)

    assert check(Returned(), torch.randn(2, 16, 32, 32)) == [False, False]


@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv2d(16, 16, 3, groups=4), (2, 16, 48, 48)),
        (nn.ConvTranspose2d(16, 8, 3), (2, 16, 48, 48)),
        (nn.Conv2d(4, 4, 1), (1, 4, 2, 2)),
        (nn.Conv1d(16, 16, 3), (2, 16, 4096)),
        (nn.Conv3d(4, 8, 3), (2, 4, 12, 12, 12)),
    ],
)
def test_other_convolutions_stay(conv: nn.Module, shape: tuple[int, ...]) -> None:
    assert check(nn.Sequential(conv, nn.ReLU()), torch.randn(shape)) == [False]


@pytest.mark.parametrize("shape", [(4, 1, 64, 64), (1, 64, 1, 4096), (256, 64, 1, 1)])
def test_ambiguous_layouts(shape: tuple[int, ...]) -> None:
    net = nn.Sequential(nn.Conv2d(shape[1], 32, 1), nn.GELU(), nn.Conv2d(32, 16, 1), nn.GELU())
    check(net, torch.randn(shape))


def test_an_input_that_is_updated_in_place() -> None:
    conv = nn.Conv2d(8, 16, 3, padding=1)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = conv(x)
        x.mul_(2)
        return y.relu().sum((2, 3)) + conv(x).sum((2, 3))

    x, z = (torch.ones(2, 8, 40, 40) for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(fusec.compile(function)(x), function(z), rtol=1e-4, atol=1e-3)
    assert torch.equal(x, z)


@pytest.mark.slow
def test_gradients_and_changing_sizes() -> None:
    net, other = Block().train(), Block().train()
    other.load_state_dict(net.state_dict())
    compiled = fusec.compile(net)
    for side in (32, 48, 64):
        x = torch.randn(2, 3, side, side)
        compiled(x).square().sum().backward()
        other(x).square().sum().backward()
        for ours, theirs in zip(net.parameters(), other.parameters(), strict=True):
            scale = theirs.grad.abs().max().item()  # type: ignore[union-attr]
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3 * scale + 1e-3)


def test_enlarged_images_stay_channels_last_on_a_gpu() -> None:
    aten = torch.ops.aten
    places = (torch.arange(32)[:, None] // 2, torch.arange(32) // 2)

    def function(
        x: torch.Tensor, above: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        where = [None, None, *(each.to(x.device) for each in places)]
        settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        large = aten.convolution(aten._unsafe_index(x.relu(), where), weight, *settings)
        zeros = aten.new_zeros(above, x.shape)
        gathered = aten._unsafe_index_put(zeros, where, above * 2, True)
        return large.sum(), aten.convolution(gathered, weight, *settings).sum()

    half = torch.bfloat16
    inputs = [
        torch.randn(shape, dtype=half).contiguous(memory_format=torch.channels_last)
        for shape in ((2, 24, 16, 16), (2, 24, 32, 32), (32, 24, 3, 3))
    ]
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty_strided(t.shape, t.stride(), dtype=half, device="cuda") for t in inputs]
        module = make_fx(function)(*fake)
    assert turn_channels_inward(module) == 2
    picked = (aten._unsafe_index.Tensor, aten._unsafe_index_put.default)
    found = [node.meta["val"] for node in module.graph.nodes if node.target in picked]
    assert [t.is_contiguous(memory_format=torch.channels_last) for t in found] == [True, True]
    assert not module.graph.find_nodes(op="call_function", target=aten.clone.default)


def test_picked_elements_that_are_returned_lie_as_they_were_traced() -> None:
    aten = torch.ops.aten
    places = (torch.arange(32)[:, None] // 2, torch.arange(32) // 2)

    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        where = [None, None, *(each.to(x.device) for each in places)]
        large = aten._unsafe_index(x.relu(), where)
        settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return large, aten.convolution(large, weight, *settings).sum()

    half = torch.bfloat16
    shapes = (2, 24, 16, 16), (32, 24, 3, 3)
    inputs = [torch.randn(s).to(half).contiguous(memory_format=torch.channels_last) for s in shapes]
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty_strided(t.shape, t.stride(), dtype=half, device="cuda") for t in inputs]
        module = make_fx(function)(*fake)
    traced = [n.meta["val"].stride() for n in module.graph.find_nodes(op="output")[0].args[0]]
    assert turn_channels_inward(module) == 1
    (picked,) = module.graph.find_nodes(op="call_function", target=aten._unsafe_index.Tensor)
    assert picked.meta["val"].is_contiguous(memory_format=torch.channels_last)
    found = [n.meta["val"].stride() for n in module.graph.find_nodes(op="output")[0].args[0]]
    assert found == traced


def test_elements_picked_twice_are_copied_nowhere_on_a_gpu() -> None:
    """The second time they are picked as those of the first time lie now."""
    aten = torch.ops.aten

    def function(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for size in (32, 64):
            places = (torch.arange(size)[:, None] // 2, torch.arange(size) // 2)
            where = [None, None, *(each.to(x.device) for each in places)]
            x = aten._unsafe_index(x, where).relu()
        settings = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        return aten.convolution(x, weight, *settings).sum()

    half, shapes = torch.bfloat16, ((2, 24, 16, 16), (32, 24, 3, 3))
    inputs = [torch.randn(s).to(half).contiguous(memory_format=torch.channels_last) for s in shapes]
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = [torch.empty_strided(t.shape, t.stride(), dtype=half, device="cuda") for t in inputs]
        module = make_fx(function)(*fake)
    assert turn_channels_inward(module) == 1
    for target in (aten._unsafe_index.Tensor, aten.relu.default):
        found = module.graph.find_nodes(op="call_function", target=target)
        lies = [n.meta["val"].is_contiguous(memory_format=torch.channels_last) for n in found]
        assert lies == [True, True]
    assert not module.graph.find_nodes(op="call_function", target=aten.clone.default)
