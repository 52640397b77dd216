"""Frozen mode: nothing is compiled, and a miss says what was asked for and what there is."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import fusec
from fusec.ahead.signatures import CallSignature, NotWritable, load_signatures
from fusec.capture.frozen_calls import CompiledMeanwhile
from fusec.freezing import FrozenMiss, Unfit
from fusec.toolchain.build import build


@pytest.fixture
def scaled():
    torch._dynamo.reset()  # all share one code object, of which torch compiles eight forms at most

    @fusec.compile(dynamic=False)
    def scaled(x, factor=2.0):
        return (x.sin() * factor).sum(-1)

    scaled(torch.ones(4, 8))
    return scaled


MISSES = {
    "sizes": (lambda: (torch.ones(5, 8),), "not 4; found: float32 5 x 8"),
    "dtype": (lambda: (torch.ones(4, 8).double(),), "not float32; found: float64 4 x 8"),
    "strides": (lambda: (torch.ones(8, 4).T,), "lies differently in memory"),
    "rank": (lambda: (torch.ones(8),), "1 dimensions, not 2; found: float32 8"),
    "gradients": (lambda: (torch.ones(4, 8, requires_grad=True),), "takes part in autograd"),
    "number": (lambda: (torch.ones(4, 8), 3.0), "found: 3.0"),
}


@pytest.mark.parametrize("name", MISSES)
def test_a_miss_names_the_guard_the_value_and_what_there_is(scaled, name):
    arguments, expected = MISSES[name]
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss) as caught:
        scaled(*arguments())
    assert expected in str(caught.value)
    assert caught.value.compiled[0].what.startswith("x float32 4 x 8")
    assert len(scaled.graphs) == 1
    scaled(*arguments())  # afterwards it compiles again
    assert len(scaled.graphs) == 2


def test_a_kind_of_number_is_told_in_words():
    def scale(x, n):
        return x * n

    compiled = fusec.compile(scale, dynamic=True)
    compiled(torch.ones(4), 5)
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss, match="n is of the type int; found: n is"):
        compiled(torch.ones(4), 5.0)


def test_a_tensor_on_another_device_is_told_so():
    """torch tells its dispatch keys; of another GPU it prints the number as a character."""
    compiled = fusec.compile(lambda x: x * 2)
    compiled(torch.ones(3))
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss, match="x is on cpu; found: meta"):
        compiled(torch.ones(3, device="meta"))


def test_a_tensor_stands_for_a_call_and_other_things_are_none():
    outcome = fusec.precompile(lambda x: x + 1, [torch.ones(3)])
    assert [each.signature for each in outcome.calls] == ["(float32 3)"]
    with pytest.raises(NotWritable, match="a int does not say what a call is given"):
        fusec.precompile(lambda x: x + 1, [3])


def test_what_was_compiled_runs_and_the_state_of_torch_is_a_guard(scaled):
    x = torch.randn(4, 8)
    with fusec.frozen():
        torch.testing.assert_close(scaled(x), (x.sin() * 2.0).sum(-1))
        with torch.no_grad(), pytest.raises(fusec.FrozenMiss, match="grad_mode"):
            scaled(x)


def test_nothing_at_all_was_compiled():
    never = fusec.compile(lambda x: x.cos() + 1)
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss, match="nothing was compiled"):
        never(torch.ones(3))
    assert never(torch.ones(3)).shape == (3,)


def test_torchs_own_compile_is_frozen_as_well():
    compiled = torch.compile(lambda x: x.exp() + 1, backend="fusec", dynamic=False)
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss):
        compiled(torch.ones(3))
    compiled(torch.ones(3))
    with fusec.frozen():
        compiled(torch.ones(3))
        with pytest.raises(fusec.FrozenMiss, match="x float32 3: "):
            compiled(torch.ones(4))


def test_other_compilers_are_left_alone():
    with fusec.frozen():
        assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2, 2]


def test_freeze_is_about_one_function(scaled):
    assert fusec.freeze(scaled) is scaled
    assert scaled.frozen
    with pytest.raises(fusec.FrozenMiss):
        scaled(torch.ones(5, 8))
    assert fusec.compile(lambda x: x.tan())(torch.ones(2)).shape == (2,)
    scaled.frozen = False
    assert scaled(torch.ones(5, 8)).shape == (5,)


def test_a_backward_part_that_never_ran_is_a_miss():
    module = nn.Linear(4, 3)
    compiled = fusec.compile(module)
    loss = compiled(torch.ones(2, 4)).square().sum()
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss, match="backward"):
        loss.backward()
    loss = compiled(torch.ones(2, 4)).square().sum()
    loss.backward()
    with fusec.frozen():
        compiled(torch.ones(2, 4)).square().sum().backward()


def test_a_graph_break_needs_all_its_parts():
    @fusec.compile
    def broken(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() + 1

    broken(torch.ones(3))
    with fusec.frozen():
        assert broken(torch.ones(3)).shape == (3,)


def test_no_compiler_is_started():
    text = 'extern "C" int nothing_new(long long threads) { return (int)(threads - threads); }\n'
    with fusec.frozen(), pytest.raises(fusec.FrozenMiss, match=r"C\+\+ kernel"):
        build(text, kind="frozen-test")


def test_it_holds_for_other_threads_and_nests():
    found = []

    def run():
        try:
            fusec.compile(lambda x: x.log1p())(torch.ones(3))
        except fusec.FrozenMiss as error:
            found.append(error)

    with fusec.frozen():
        with fusec.frozen():
            pass
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(found) == 1


# -- signatures ---------------------------------------------------------------------------------


def test_calls_are_recorded_once_each(scaled):
    with fusec.record() as calls:
        for _ in range(3):
            scaled(torch.ones(4, 8))
        with torch.no_grad():
            scaled(torch.ones(2, 3), factor=float("inf"))
    scaled(torch.ones(7, 7))
    assert list(calls.counts().values()) == [3, 1]
    assert str(calls[0]) == "(float32 4 x 8)"
    assert str(calls[1]) == "(float32 2 x 3, factor=inf), no gradients"
    assert load_signatures(calls.save()) == tuple(calls)


def test_only_one_function_is_recorded(scaled):
    other = fusec.compile(lambda x: x + 1)
    with fusec.record(scaled) as calls:
        other(torch.ones(2))
        scaled(torch.ones(4, 8))
    assert len(calls) == 1


def test_a_function_compiled_while_recording_is_recorded():
    with fusec.record() as calls:
        fusec.compile(lambda x, y: x @ y)(
            torch.ones(2, 3), y=torch.ones(3, 2).to(torch.bfloat16).float()
        )
    assert [str(each) for each in calls] == ["(float32 2 x 3, y=float32 3 x 2)"]


def test_a_signature_makes_a_call_like_it():
    x = torch.randn(3, 4).T.requires_grad_()
    signature = CallSignature.of(
        [x, (1, 2.5, None)], key={"a": torch.tensor(3)}, dtype=torch.float16
    )
    args, kwargs = signature.call()
    (made, numbers) = args[0]
    assert made.shape == x.shape
    assert made.stride() == x.stride()
    assert made.requires_grad
    assert numbers == (1, 2.5, None)
    assert kwargs["dtype"] is torch.float16
    assert kwargs["key"]["a"].dtype == torch.int64
    assert CallSignature.from_data(signature.data()) == signature


@pytest.mark.parametrize("value", [object(), torch.ones(2).to_sparse(), {1: 2}, 1j])
def test_what_cannot_be_written_down_is_refused(value):
    with pytest.raises(NotWritable):
        CallSignature.of(value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"signatures": [{}]}', '{"signatures": 3}'])
def test_other_texts_are_no_signatures(text):
    with pytest.raises(NotWritable):
        load_signatures(text)


def test_calls_that_cannot_be_written_down_are_named():
    compiled = fusec.compile(lambda x, box: x + box["n"])
    with fusec.record() as calls:
        compiled(torch.ones(2), {1: 0, "n": 2})
    assert len(calls) == 0
    assert "cannot be written down" in calls.skipped[0]


def test_what_fits_is_no_miss_though_torch_did_not_find_it():
    """Another thread may move compiled code in torch's list while a call goes through that."""
    compiled, x = fusec.compile(lambda x: x.sin() + 1, dynamic=False), torch.randn(4)
    compiled(x)
    fusec.freeze(compiled)
    watch = compiled._watch
    found = SimpleNamespace(f_code=watch.root, f_locals={"x": x}, f_globals=globals())
    with pytest.raises(CompiledMeanwhile):
        watch(found, None, {})
    with watch.once_more(last=True), pytest.raises(fusec.FrozenMiss):
        watch(found, None, {})
    other = SimpleNamespace(**{**vars(found), "f_locals": {"x": torch.randn(5)}})
    with pytest.raises(fusec.FrozenMiss, match="5"):
        watch(other, None, {})
    torch.testing.assert_close(compiled(x), x.sin() + 1)


def test_forms_that_say_the_same_are_one_line_of_a_miss():
    alike = [Unfit("x float32 any x 16", "another type", "float64")] * 3
    said = FrozenMiss("it", [Unfit("x float32 3 x 16", "another type", "float64"), *alike]).message
    assert said.count("x float32 any x 16") == 1
    assert "float64 (3 such)" in said
    many = [Unfit(f"x {n}", "another size") for n in range(20)]
    assert "and 12 more" in FrozenMiss("it", many).message
