"""Conditions of passes, one at a time: a call that fits, and the same with one thing different."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fusec.graph.convolutions import channels_last, depthwise, one_pixel
from fusec.graph.decompositions import _with_exact_statistics
from fusec.graph.products import alignment, widened_halves
from fusec.graph.refusals import asked, classes, values
from fusec.graph.simplify import attention_masks, inference_regions
from fusec.graph.training.saved import saved_tensors

aten = torch.ops.aten
HALF, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
CHANNELS_LAST = torch.channels_last
Shape = tuple[int, ...]


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    with FakeTensorMode(shape_env=ShapeEnv()) as mode:
        yield mode


def changing(mode: FakeTensorMode, size: int) -> Any:
    """Return a size that is this at present."""
    with unset_fake_temporarily():
        real = torch.empty(size)
    return mode.from_tensor(real, static_shapes=False).shape[0]


def each_changing(mode: FakeTensorMode, *shapes: Shape) -> Iterator[list[list[Any]]]:
    """Return the shapes as often as they have sizes, one of which may change."""
    for number, shape in enumerate(shapes):
        for dim, size in enumerate(shape):
            if size > 1:
                made: list[list[Any]] = [list(each) for each in shapes]
                made[number][dim] = changing(mode, size)
                yield made


def node_of(target: Any, *args: Any, result: Any = None) -> fx.Node:
    """Return a call in a graph of its own; tensors are inputs."""
    graph = fx.Graph()

    def given(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            node = graph.placeholder(f"x{len(graph.nodes)}")
            node.meta["val"] = value
            return node
        return value

    node = graph.call_function(target, tuple(map(given, args)))
    node.meta["val"] = result
    return node


# -- convolutions -----------------------------------------------------------------------------


def _images(shape: list[Any], device: str = "cpu", dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=device, memory_format=CHANNELS_LAST)


def _convolution(
    image: torch.Tensor,
    weight: torch.Tensor,
    *,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    transposed: bool = False,
    groups: int = 1,
) -> fx.Node:
    more = (None, stride, padding, (1, 1), transposed, (0, 0), groups)
    return node_of(aten.convolution.default, image, weight, *more, result=image)


def test_windows_of_one_pixel(fake: FakeTensorMode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_pixel, "multiply_pixels", lambda *given: True)
    shapes = (4, 256, 16, 16), (256, 256, 1, 1)
    image, weight = _images(list(shapes[0])), torch.empty(shapes[1])
    fits = one_pixel._fits
    assert fits(_convolution(image, weight))
    assert not fits(_convolution(image, weight, stride=(1, 2)))
    assert not fits(_convolution(image, weight, stride=(2, 1)))
    assert not fits(_convolution(image, weight, padding=(0, 1)))
    assert not fits(_convolution(image, weight, transposed=True))
    assert not fits(_convolution(image, weight, groups=2))
    assert not fits(_convolution(image.contiguous(), weight)), "no matrix of pixels"
    assert not fits(_convolution(_images([0, 256, 16, 16]), weight)), "nothing"
    assert not fits(_convolution(image, torch.empty(256, 256, 1, 3)))
    elsewhere = torch.empty(shapes[1], device="cuda")
    assert not fits(_convolution(_images(list(shapes[0]), "cuda"), elsewhere))
    for given in each_changing(fake, *shapes):
        assert not fits(_convolution(_images(given[0]), torch.empty(given[1]))), given

    def backward(gradient: torch.Tensor, image: torch.Tensor = image) -> fx.Node:
        more = ([0], (1, 1), (0, 0), (1, 1), False, (0, 0), 1, [True, True, False])
        return node_of(aten.convolution_backward.default, gradient, image, weight, *more)

    assert fits(backward(image))
    assert not fits(backward(torch.empty(shapes[0]))), "the gradient is no matrix of pixels"
    assert not fits(backward(image, torch.empty(shapes[0])))
    for (changed,) in each_changing(fake, shapes[0]):
        assert not fits(backward(_images(changed)))


def test_gradients_of_windows_of_one_channel(fake: FakeTensorMode) -> None:
    shapes = (2, 32, 16, 16), (2, 32, 16, 16), (32, 1, 3, 3)

    def call(
        given: Any = shapes,
        *,
        wanted: Any = (True, True, False),
        dilation: Any = (1, 1),
        device: str = "cuda",
        plain: bool = False,
    ) -> fx.Node:
        gradient, image = (_images(list(each), device, HALF) for each in given[:2])
        image = torch.empty(list(given[1]), dtype=HALF, device=device) if plain else image
        weight = torch.empty(list(given[2]), dtype=HALF, device=device)
        more = ([0], (1, 1), (1, 1), dilation, False, (0, 0), 32, list(wanted))
        target = aten.convolution_backward.default
        return node_of(target, gradient, image, weight, *more)

    fits = depthwise._fits
    assert fits(call(), False)
    assert fits(call(wanted=(True, False, True)), False)
    for wanted in ((False, True, True), (True, False, False)):
        assert not fits(call(wanted=wanted), False)
    assert not fits(call(dilation=(1, 2)), False)
    assert not fits(call(dilation=(2, 1)), False)
    assert not fits(call(plain=True), False)
    assert not fits(call(device="cpu"), False)
    assert fits(call(device="cpu"), True)
    assert not fits(call((*shapes[:2], (32, 2, 3, 3))), False)
    assert not fits(call((*shapes[:2], (16, 1, 3, 3))), False)
    for given in each_changing(fake, *shapes):
        assert not fits(call(given), False), given


def test_images_whose_channels_are_turned_inward(
    fake: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels_last, "innermost_channels_pay", lambda *given: True)
    shapes = (4, 64, 16, 16), (64, 64, 3, 3)

    def wanted(given: Any = shapes, transposed: bool = False) -> bool:
        x, weight = (torch.empty(list(each)) for each in given)
        return channels_last._is_wanted(_convolution(x, weight, transposed=transposed))

    assert wanted()
    assert not wanted(transposed=True)
    assert not wanted(((64, 16, 16), (64, 64, 3, 3)))
    for given in each_changing(fake, *shapes):
        assert not wanted(given), given


def test_how_images_lie() -> None:
    x = torch.empty(2, 3, 4, 5)
    lies = channels_last._is_channels_last
    assert lies(x.to(memory_format=CHANNELS_LAST))
    assert not lies(x)
    assert not lies(x.to(memory_format=CHANNELS_LAST)[:, :2])
    assert lies(x.to(memory_format=CHANNELS_LAST)[:1])
    assert lies(torch.empty(2, 1, 4, 5))


# -- products whose rows start anywhere -------------------------------------------------------


def test_products_that_may_gain_by_padding(fake: FakeTensorMode) -> None:
    shapes = (100, 60), (60, 37), (100, 37)

    def gains(
        given: Any = shapes, device: str = "cuda", dtype: torch.dtype = HALF, change: Any = None
    ) -> bool:
        made = [torch.empty(list(each), dtype=dtype, device=device) for each in given]
        if change is not None:
            place, function = change
            made[place] = function(made[place])
        node = node_of(aten.mm.default, *made[:2], result=made[2])
        return alignment._may_gain(node)

    assert gains()
    assert gains(dtype=BF16)
    assert gains(((100, 64), (64, 37), (100, 37))), "one of them is enough"
    assert gains(((100, 61), (61, 64), (100, 64))), "one of them is enough"
    assert not gains(((100, 64), (64, 32), (100, 32)))
    assert not gains(dtype=F32)
    assert not gains(device="cpu")
    for place in range(3):
        assert not gains(change=(place, lambda x: None)), "no tensor"
        apart = (place, lambda x: torch.empty_strided(x.shape, (999, 2), dtype=HALF, device="cuda"))
        assert not gains(change=apart), "neither rows nor columns"
    for given in (((1, 60), (60, 37), (1, 37)), ((100, 1), (1, 37), (100, 37)),
                  ((100, 60), (60, 1), (100, 1))):  # fmt: skip
        assert not gains(given)
    for changed in each_changing(fake, *shapes):
        assert not gains(changed), changed


def test_products_of_operands_that_have_rows(fake: FakeTensorMode) -> None:
    """Others lie as they were traced, and nothing is known of where they will."""
    x, w = torch.empty(8, 8), torch.empty(8, 8)
    apart = torch.empty_strided((8, 8), (32, 2))
    for left, right, rewritten in ((x, w, True), (x.t(), w, True), (apart, w, False),
                                   (x, apart, False), (apart, apart, False)):  # fmt: skip
        node = node_of(aten.mm.default, left, right, result=x @ w)
        node.graph.output(node)
        assert alignment._Padding(node.graph).rewrite(node) is rewritten
    assert not alignment._Padding(node.graph).rewrite(node_of(aten.add.Tensor, x, w, result=x))


def test_who_returns_a_product() -> None:
    graph = fx.Graph()
    made = [graph.call_function(aten.mm.default) for _ in range(6)]
    unread, alone, viewed, summed, both, viewed_and_summed = made
    view = graph.call_function(aten.view.default, (viewed, [-1]))
    graph.call_function(aten.neg.default, (summed,))
    graph.call_function(aten.neg.default, (both,))
    other = graph.call_function(aten.view.default, (viewed_and_summed, [-1]))
    graph.call_function(aten.neg.default, (other,))
    graph.output((alone, view, both, other))
    is_any, is_only = alignment._is_returned, alignment._is_only_returned
    assert [is_any(node) for node in made] == [False, True, True, False, True, True]
    assert [is_only(node) for node in made] == [False, True, True, False, False, False]
    assert unread in made


# -- masks ------------------------------------------------------------------------------------


def test_a_mask_of_a_size_that_may_change_is_not_known(fake: FakeTensorMode) -> None:
    def known(rows: Any, columns: Any) -> torch.Tensor | None:
        graph = fx.Graph()
        ones = graph.call_function(torch.ones, (4, 6))
        mask = graph.call_method("tril", (ones,))
        ones.meta["example_value"] = torch.ones(4, 6)
        mask.meta["example_value"] = torch.ones(rows, columns)
        return attention_masks.known_value(mask)

    found = known(4, 6)
    assert found is not None
    assert found.shape == (4, 6)
    for (given,) in each_changing(fake, (4, 6)):
        assert known(*given) is None
    assert known(0, 6) is None


def test_what_makes_a_mask_of_changing_size_is_not_done_again(fake: FakeTensorMode) -> None:
    def again(*sizes: Any) -> bool:
        node = fx.Graph().call_function(torch.ones, (4, 6))
        node.meta["example_value"] = torch.ones(sizes)
        return attention_masks._is_repeatable(node)

    assert again(4, 6)
    assert not any(again(*given) for (given,) in each_changing(fake, (4, 6)))


# -- what is saved for backward ---------------------------------------------------------------


def test_bytes_of_what_is_saved(fake: FakeTensorMode) -> None:
    def found(*sizes: Any) -> tuple[object, ...]:
        node = node_of(aten.neg.default, result=torch.empty(sizes, dtype=HALF))
        node.graph.output((None, node, node))
        (saved,) = saved_tensors(fx.GraphModule({}, node.graph), 1)
        return tuple(vars(saved).values())[1:4]

    assert found(4, 6) == ((4, 6), "float16", 48)
    for (given,) in each_changing(fake, (4, 6)):
        sizes, _, count = found(*given)
        assert count == -1
        assert sizes == tuple(n if type(n) is int else str(n) for n in given)
        assert {type(n) for n in sizes} == {int, str}, "no size of torch's stays in a report"


# -- rules ------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", range(4))
def test_statistics_are_as_exact_as_the_widest(wide: int) -> None:
    """One parameter of a wider type is enough, whichever it is."""
    torch.manual_seed(0)
    x = torch.randn(8, 4).to(BF16)
    given = [torch.rand(4) + 0.5 for _ in range(4)]
    given = [each if n == wide else each.to(BF16) for n, each in enumerate(given)]
    operator = aten.native_batch_norm.default
    _, mean, _ = _with_exact_statistics(operator)(x, *given, True, 0.1, 1e-5)  # type: ignore[misc]
    assert mean.dtype == F32
    torch.testing.assert_close(mean, x.to(F64).mean(0).to(F32), rtol=1e-6, atol=1e-6)
    narrow = [each.to(BF16) for each in given]
    _, mean, _ = _with_exact_statistics(operator)(x, *narrow, True, 0.1, 1e-5)  # type: ignore[misc]
    assert mean.dtype != F64


def test_targets_are_looked_at_as_inputs_are() -> None:
    rule = values.value_checking_rules()[aten.binary_cross_entropy.default]
    half = torch.full((3,), 0.5)
    for wrong in (half + 1, half - 1):
        with pytest.raises(RuntimeError, match="target"):
            torch.nn.functional.binary_cross_entropy(half, wrong)
        with pytest.raises(RuntimeError, match="target"):
            rule(half, wrong)
        with pytest.raises(RuntimeError, match="input"):
            rule(wrong, half)


@pytest.mark.parametrize("operators", [["a", "_assert_async"], ["a", "b"], ["assert"]])
def test_whether_tracing_leaves_a_check_of_classes(
    operators: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced(*given: Any, **more: Any) -> Callable[..., Any]:
        graph = fx.Graph()
        for name in operators:
            graph.call_method(name)
        return lambda x: SimpleNamespace(graph=graph)

    monkeypatch.setattr(classes, "make_fx", traced)
    classes._checks.cache_clear()
    try:
        assert classes._checks() is any("assert" in each for each in operators)
    finally:
        classes._checks.cache_clear()


def test_small_forms_of_what_is_asked_of_eager(fake: FakeTensorMode) -> None:
    most = asked._MOST
    x = torch.empty(1, most, most + 1, 0)
    assert asked._shape(x, whole=False) == [1, most, most, 0]
    assert asked._shape(x, whole=True) == [1, most, most + 1, 0]
    with pytest.raises(asked._Unknown):
        asked._shape(torch.empty(asked._WHOLE + 1), whole=True)
    assert asked._shape(torch.empty(asked._WHOLE), whole=True) == [asked._WHOLE]


def test_one_slow_result_of_several_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widened_halves, "multiplies_slowly", lambda dtype: dtype == HALF)
    half, single = torch.empty(3, dtype=HALF), torch.empty(3)
    slow = widened_halves._is_slow
    assert slow(half)
    assert slow((half, single))
    assert slow([single, half])
    assert not slow((single, single))
    assert not slow(())
    assert not slow(torch.empty(3, dtype=BF16))
    assert not slow(torch.empty(3, dtype=HALF, device="meta"))
    assert not slow(None)


def test_blocks_of_inference_mode_become_switches() -> None:
    """Of a graph with more in it than those; one without any is left as it is."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    entered = graph.call_function(torch.autograd.grad_mode._enter_inference_mode, (True,))
    inside = graph.call_function(torch.is_grad_enabled)
    graph.call_function(torch.autograd.grad_mode._exit_inference_mode, (entered,))
    graph.output((inside, x))
    module = fx.GraphModule({}, graph)
    changed = inference_regions.record_nothing_instead(module)
    assert changed is not module
    assert changed(1) == (False, 1)
    assert torch.is_grad_enabled()
    plain = fx.Graph()
    plain.output(plain.placeholder("x"))
    module = fx.GraphModule({}, plain)
    assert inference_regions.record_nothing_instead(module) is module
