"""Packages of functions: what they compute, which calls they serve, what they refuse."""

from __future__ import annotations

import errno
from collections import namedtuple
from pathlib import Path
from types import FunctionType
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

import fusec
from fusec.inspect.planner import Call
from fusec.packages import contents
from fusec.packages.binaries import default_names
from fusec.packages.errors import CannotPackage
from fusec.packages.runtime import (
    CannotRun,
    KernelStopped,
    NoSpecialization,
    PackageError,
    archive,
)
from fusec.packages.runtime import load as load_alone
from fusec.packages.stores import noted, noting

PLAIN = default_names()[-1:]  # one binary is enough, and the plainest runs everywhere


def packaged(function, signatures, folder: Path, **options):
    path = folder / "it.fuse"
    found = fusec.package(function, signatures, path, **{"binaries": PLAIN, **options})
    return found, fusec.load(path)


def alike(result, expected) -> None:
    torch.testing.assert_close(torch.as_tensor(result), expected, equal_nan=True)


def rows(x: torch.Tensor, y: torch.Tensor, scale: float = 2.0):
    z = torch.softmax(x + y, -1) * scale
    return {"rows": z, "rest": (z.sum(0), x, "text", 3)}


def test_torch_and_numpy_compute_what_eager_does(tmp_path):
    given = torch.randn(4, 9), torch.randn(4, 9)
    said, loaded = packaged(rows, [given], tmp_path)
    assert not any(said.needs_torch.values())
    fresh = torch.randn(4, 9), torch.randn(4, 9)
    expected = rows(*fresh)
    found = loaded(*fresh)
    alike(found["rows"], expected["rows"])
    alike(found["rest"][0], expected["rest"][0])
    assert found["rest"][1] is fresh[0]
    assert found["rest"][2:] == ("text", 3)
    alone = load_alone(tmp_path / "it.fuse")
    arrays = [each.numpy() for each in fresh]
    assert alone(*arrays)["rest"][1] is arrays[0]
    alike(alone(*arrays)["rows"], expected["rows"])
    alike(alone(y=arrays[1], x=arrays[0])["rows"], expected["rows"])


def test_dynamic_sizes_stay_dynamic_and_are_guarded(tmp_path):
    example = torch.randn(4, 9), torch.randn(4, 9)
    said, loaded = packaged(rows, [example], tmp_path, dynamic={"x": (0,), "y": (0,)})
    assert said.fixed == ()
    for count in (2, 5, 300):
        given = torch.randn(count, 9), torch.randn(count, 9)
        alike(loaded(*given)["rows"], rows(*given)["rows"])
    for bad, words in (
        ((torch.randn(5, 9), torch.randn(6, 9)), "size 0 of y is 6"),
        ((torch.randn(5, 8), torch.randn(5, 8)), "size 1 of x is 8; packaged for 9"),
        ((torch.randn(1, 9), torch.randn(1, 9)), "packaged for 2 and more"),
        ((torch.randn(5, 9).double(), torch.randn(5, 9)), "x is float64; packaged for float32"),
        ((torch.randn(9, 5).t(), torch.randn(5, 9)), "x lies in memory with stride 1"),
        ((torch.randn(5), torch.randn(5, 9)), "x has too few dimensions|1 dimensions"),
        ((torch.randn(5, 9), torch.randn(5, 9), 3.0), "scale is 3.0; packaged for 2.0"),
        ((torch.randn(5, 9), torch.randn(5, 9), 2), "scale is 2; packaged for 2.0"),
        ((torch.randn(5, 9), "y"), "y is 'y'; a plain tensor is expected"),
        ((torch.randn(5, 9),), "missing a required argument"),
    ):
        with pytest.raises(NoSpecialization, match=words):
            loaded(*bad)


def test_sizes_alike_in_the_example_alone_stay_apart(tmp_path):
    _, loaded = packaged(
        lambda x: x.cos() + 1, [(torch.randn(6, 6),)], tmp_path, dynamic={"x": (0, 1)}
    )
    x = torch.randn(3, 11)
    alike(loaded(x), x.cos() + 1)


def test_a_dimension_that_the_code_fixes_is_said_with_its_line(tmp_path):
    def picky(x):
        if x.shape[0] == 7:
            return x.sin()
        return x.cos()

    said, loaded = packaged(picky, [(torch.randn(7, 5),)], tmp_path, dynamic={"x": (0, 1)})
    (reason,) = said.fixed
    assert reason.startswith("size 0 of x is always 7: ")
    assert "test_package.py" in reason
    alike(loaded(torch.ones(7, 12)), torch.ones(7, 12).sin())
    with pytest.raises(NoSpecialization, match="size 0 of x is 8; packaged for 7"):
        loaded(torch.ones(8, 5))


def test_conditions_on_sizes_are_guards(tmp_path):
    def wide(x):
        return x.sin() if x.shape[0] > 10 else x.cos()

    _, loaded = packaged(wide, [(torch.randn(30),)], tmp_path, dynamic={"x": 0})
    alike(loaded(torch.ones(11)), torch.ones(11).sin())
    with pytest.raises(NoSpecialization, match=r"packaged for 11 and more|must satisfy"):
        loaded(torch.ones(10))


def test_eight_specializations_share_weights(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 3)).eval()
    calls = [(torch.randn(count, 6),) for count in range(1, 9)]
    said, loaded = packaged(model, calls, tmp_path)
    assert len(said.specializations) == 8
    alone = load_alone(tmp_path / "it.fuse")
    for (x,) in calls:
        with torch.no_grad():
            alike(loaded(x), model(x))
            alike(alone(x.numpy()), model(x))
            assert loaded.find(x).name.endswith(f"{len(x)} x 6")
    with pytest.raises(NoSpecialization) as error:
        loaded(torch.randn(9, 6))
    assert len(error.value.reasons) == 8
    size = (tmp_path / "it.fuse").stat().st_size
    packaged(model, calls[:1], tmp_path)
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert size - (tmp_path / "it.fuse").stat().st_size < 8 * weights + 300_000


def test_weights_by_reference(tmp_path):
    model = nn.Linear(5, 4).eval()
    x = torch.randn(3, 5)
    _, loaded = packaged(model, [(x,)], tmp_path, weights="reference")
    with torch.no_grad():
        alike(loaded(x), model(x))
    beside = tmp_path / "it.safetensors"
    data = bytearray(beside.read_bytes())
    data[-1] ^= 1
    beside.write_bytes(data)
    with pytest.raises(ValueError, match="beside it is not what it was packaged with"):
        fusec.load(tmp_path / "it.fuse")
    beside.unlink()
    with pytest.raises(fusec.packages.runtime.PackageError, match="put it"):
        fusec.load(tmp_path / "it.fuse")


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.randn(0, 4),),
        lambda: (torch.tensor(2.5),),
        lambda: (torch.randn(5, 3).t(),),
        lambda: (torch.randn(6, 8)[:, 1::2],),
        lambda: (torch.randn(1, 7).expand(4, 7),),
        lambda: (torch.randn(3, 4).half(),),
        lambda: (torch.randn(3, 4).bfloat16(),),
        lambda: (torch.randint(-9, 9, (3, 4)),),
    ],
)
def test_odd_tensors(tmp_path, make):
    def function(x):
        return (x * 2 + 1).abs(), x.float().sum()

    given = make()
    _, loaded = packaged(function, [given], tmp_path)
    for _ in range(2):
        for found, expected in zip(loaded(*given), function(*given), strict=True):
            torch.testing.assert_close(found, expected, check_stride=True)


def test_results_are_memory_of_their_own(tmp_path):
    _, loaded = packaged(lambda x: x.exp(), [(torch.randn(50),)], tmp_path)
    first = loaded(torch.zeros(50))
    loaded(torch.ones(50))
    assert torch.equal(first, torch.ones(50))


def test_updates_in_place_reach_the_caller(tmp_path):
    def step(x, state):
        state.mul_(0.5).add_(x)
        return state.sin()

    given = torch.randn(40), torch.randn(40)
    _, loaded = packaged(step, [given], tmp_path)
    for make in (lambda t: t.clone(), lambda t: t.clone().numpy()):
        runs = (
            loaded if make(given[0]).__class__ is torch.Tensor else load_alone(tmp_path / "it.fuse")
        )
        x, state = map(make, given)
        expected_state = given[1].clone()
        for _ in range(2):
            expected = step(given[0], expected_state)
            alike(runs(x, state), expected)
            alike(state, expected_state)
    shared = torch.randn(41)
    with pytest.raises(CannotRun, match="shares memory"):
        loaded(shared[:40], shared[1:])
    frozen = given[1].numpy().copy()
    frozen.flags.writeable = False
    with pytest.raises(CannotRun, match="cannot be written"):
        load_alone(tmp_path / "it.fuse")(given[0].numpy(), frozen)


def test_an_updated_input_may_be_returned(tmp_path):
    def step(x, state):
        return state.mul_(0.5).add_(x), {"x": x, "sum": state.sum(0), "row": state[0]}

    x, state = torch.randn(4), torch.randn(3, 4)
    _, loaded = packaged(step, [(x, state)], tmp_path)
    mine, other = state.clone(), state.clone().numpy()
    expected, rest = step(x, state)
    for run, given, into in (
        (loaded, x, mine),
        (load_alone(tmp_path / "it.fuse"), x.numpy(), other),
    ):
        result, found = run(given, into)
        assert result is into
        assert found["x"] is given
        alike(result, expected)
        alike(found["sum"], rest["sum"])
        alike(found["row"], rest["row"])


def test_an_index_out_of_range_stops(tmp_path):
    _, loaded = packaged(
        lambda table, i: table[i] + 1, [(torch.randn(5, 3), torch.tensor([0, 4]))], tmp_path
    )
    with pytest.raises(KernelStopped, match=r"out of range|out of bounds"):
        loaded(torch.randn(5, 3), torch.tensor([0, 5]))


def test_edited_kernels_are_shipped(tmp_path):
    def double(x):
        return torch.softmax(x, -1) * 2

    compiled = fusec.compile(double, keep_inputs=True)
    x = torch.randn(16, 33)
    compiled(x)
    (kernel,) = compiled.kernels.values()
    kernel.use("// mine\n" + kernel.source)
    said, loaded = packaged(compiled, [(x,)], tmp_path)
    assert said.edited == (kernel.name,)
    assert any(text.startswith("// mine") for text in loaded.kernels.values())
    alike(loaded(x), double(x))


Pair = namedtuple("Pair", "left right")


def test_trees_of_arguments_and_results(tmp_path):
    def function(batch, *more, flag=True):
        a, b = batch["pair"]
        total = a + b * batch["factor"]
        for each in more:
            total = total + each
        return Pair(total, [total.sum(), None, flag])

    x = torch.randn(7)
    call = Call(({"pair": (x, x + 1), "factor": 3}, x * 2), {"flag": False})
    _, loaded = packaged(function, [call], tmp_path)
    batch = {"pair": (x * 3, x), "factor": 3}
    found, expected = loaded(batch, x, flag=False), function(batch, x, flag=False)
    assert type(found).__name__ == "Pair"
    alike(found.left, expected.left)
    assert found.right[1:] == [None, False]
    with pytest.raises(NoSpecialization, match=r"batch\['factor'\] is 4; packaged for 3"):
        loaded({**batch, "factor": 4}, x, flag=False)
    with pytest.raises(NoSpecialization, match=r"batch\['pair'\] has 1 parts; packaged for 2"):
        loaded({"pair": (x,), "factor": 3}, x, flag=False)


def test_what_needs_torch_says_so(tmp_path):
    said, loaded = packaged(
        lambda x: torch.fft.rfft(x).abs() + 1, [(torch.randn(4, 16),)], tmp_path
    )
    (reasons,) = said.needs_torch.values()
    assert any("aten._fft_r2c" in reason for reason in reasons)
    x = torch.randn(4, 16)
    alike(loaded(x), torch.fft.rfft(x).abs() + 1)
    with pytest.raises(CannotRun, match="needs torch: aten"):
        load_alone(tmp_path / "it.fuse")(x.numpy())


COUNTER = {"calls": 0}


def test_what_no_package_can_hold_is_refused(tmp_path):
    def breaks(x):
        x = x.sin()
        print("between")
        return x.cos()

    def counts(x):
        COUNTER["calls"] += 1
        return x.sin()

    def draws(x):
        return torch.nn.functional.dropout(x, 0.5)

    norm = nn.BatchNorm1d(4).train()
    x = torch.randn(8, 4)
    for function, words in (
        (breaks, r"more than one graph: .*\(line \d+: print"),
        (counts, "is compiled again at each call"),
        (draws, "draws random numbers"),
        (norm, "which its calls do not give"),
        (lambda x: 3, "computes nothing"),
    ):
        with pytest.raises(CannotPackage, match=words):
            packaged(function, [(x,)], tmp_path)
        torch._dynamo.reset()
    for given, words in (
        ((x.numpy(),), "x is a ndarray"),
        ((x, x), "are one tensor"),
        ((x.to_sparse(),), "not a plain tensor"),
    ):
        with pytest.raises(CannotPackage, match=words):
            packaged(lambda x, y=1: x + y, [given], tmp_path)
    with pytest.raises(CannotPackage, match="names 'z', which is a tensor in none"):
        packaged(lambda x: x + 1, [(x,)], tmp_path, dynamic={"z": 0})
    assert list(tmp_path.iterdir()) == []


def test_it_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    x = torch.randn(4)
    packaged(lambda x: x + 1, [(x,)], tmp_path)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    monkeypatch.setattr(contents, "write_archive", full)
    with pytest.raises(CannotPackage, match="cannot be written: No space left"):
        packaged(lambda x: x + 2, [(x,)], tmp_path)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.parametrize(("change", "mend"), [(1, "install a later"), (-1, "package it again")])
def test_another_format_is_told(tmp_path, monkeypatch, change, mend):
    with monkeypatch.context() as other:
        other.setattr(archive, "FORMAT", archive.FORMAT + change)
        packaged(lambda x: x + 1, [(torch.randn(4),)], tmp_path)
    (path,) = tmp_path.iterdir()
    with pytest.raises(PackageError, match=f"format .*{mend}"):
        fusec.load(path)


def test_sizes_are_named_as_the_caller_does(tmp_path):
    def both(x, y):
        return (x @ y.t()).view(x.shape[0] // 2, -1)

    x, y = torch.randn(4, 8), torch.randn(5, 8)
    loaded = packaged(both, [(x, y)], tmp_path, dynamic={"x": (0, 1), "y": (0, 1)})[1]
    with pytest.raises(NoSpecialization, match=r"size 1 of y is 8; packaged for x.shape\[1\], 9"):
        loaded(torch.randn(4, 9), y)
    with pytest.raises(NoSpecialization, match=r"must satisfy .*x.shape\[0\] // 2"):
        loaded(torch.randn(5, 8), y)
    assert "x: float32 (x.shape[0], x.shape[1])" in loaded.describe()


def test_gradients_and_views_of_other_numbers_are_refused(tmp_path):
    _, loaded = packaged(lambda x: x * 2, [(torch.randn(4),)], tmp_path)
    with pytest.raises(CannotRun, match="records nothing"):
        loaded(torch.randn(4, requires_grad=True))
    with torch.no_grad():
        loaded(torch.randn(4, requires_grad=True))
    with pytest.raises(CannotRun, match="negated view"):
        loaded(torch._neg_view(torch.randn(4)))
    freed = torch.randn(4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(CannotRun, match="of which 0 are there"):
        loaded(freed)
    with pytest.raises(CannotRun, match="tangent"), torch.autograd.forward_ad.dual_level():
        loaded(torch.autograd.forward_ad.make_dual(torch.ones(4), torch.ones(4)))
    with pytest.raises(CannotRun, match="not a plain tensor"):
        torch.func.vmap(loaded)(torch.ones(3, 4))


def test_numpy_arrays_that_are_not_what_they_seem(tmp_path):
    packaged(lambda x: x + 1, [(torch.zeros(6),)], tmp_path)
    alone = load_alone(tmp_path / "it.fuse")
    with pytest.raises(NoSpecialization, match="of other bytes"):
        alone(np.zeros(6, ">f4"))
    with pytest.raises(CannotRun, match="not aligned"):
        alone(np.zeros(25, np.uint8)[1:].view(np.float32))
    with pytest.raises(NoSpecialization, match="a MaskedArray"):
        alone(np.ma.masked_array(np.zeros(6, np.float32)))
    with pytest.raises(NoSpecialization, match="stride -1"):
        alone(np.zeros(6, np.float32)[::-1])
    alike(alone(torch.zeros(6)), torch.ones(6))  # by DLPack


def test_autocast_does_not_reach_a_package(tmp_path):
    model = nn.Linear(5, 4).eval()
    x = torch.randn(3, 5)
    _, loaded = packaged(model, [(x,)], tmp_path)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert loaded(x).dtype == torch.float32


class Holder:
    mark = ""


HOLDER = Holder()


def test_what_is_set_as_it_was_is_no_change(tmp_path):
    def marks(x):
        HOLDER.mark = "same"
        return x.sin()

    def keeps(x):
        HOLDER.mark = x
        return x.sin()

    x = torch.randn(8)
    _, loaded = packaged(marks, [(x,)], tmp_path)
    alike(loaded(x), x.sin())
    with pytest.raises(CannotPackage, match=r"sets Holder\.mark beside its result"):
        packaged(keeps, [(x,)], tmp_path)


def test_what_code_sets_is_noted_and_not_done():
    many = "; ".join(f"o.n{i}" for i in range(300))  # names beyond a byte
    text = (
        f"def f(o, v):\n    {many}\n    o.first = v\n    v.other = o.n7 = [v]\n    return o.n299\n"
    )
    space = {}
    exec(text, space)
    code, notes = noting(space["f"].__code__)
    assert list(notes.values()) == ["first", "other", "n7"]
    owner, value = Mock(), Mock()
    before = owner.n7
    ran = {"__builtins__": {}}
    assert FunctionType(code, ran)(owner, value) is owner.n299
    found = list(noted(ran, notes))
    assert found[0] == (owner, "first", value)
    assert found[1][:2] == (value, "other")
    assert found[2] == (owner, "n7", [value])
    assert owner.n7 is before
    assert space["f"](owner, value) is owner.n299
    assert owner.n7 == [value]


def whole_bits(x):
    return (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)


def bits_of_a_part(x):
    return (x + 1)[1:, ::2].view(torch.int32), x.view(torch.int32).T


def bits_multiplied(x):
    return (x.view(torch.int32) ^ 0).view(torch.float32) @ x.T


@pytest.mark.parametrize("function", [whole_bits, bits_of_a_part, bits_multiplied])
def test_bits_read_as_another_type(tmp_path, function):
    said, loaded = packaged(function, [(torch.randn(4, 6),)], tmp_path)
    assert not any(said.needs_torch.values())
    x = torch.randn(4, 6)
    expected = function(x)
    alone = load_alone(tmp_path / "it.fuse")(x.numpy())
    for found in (loaded(x), alone):
        for one, other in zip(
            found if isinstance(found, tuple) else [found],
            expected if isinstance(expected, tuple) else [expected],
            strict=True,
        ):
            assert torch.as_tensor(one).dtype == other.dtype
            alike(one, other)


def test_what_an_operator_returns_is_asked_of_each_result():
    """The quick look says yes to nothing that the slow one would refuse."""
    from fusec.packages.load import TorchTensors

    tensors, x = TorchTensors(), torch.zeros(4, 6)
    right = ("float32", (4, 6), (6, 1))
    assert tensors.is_same(x, *right)
    for other in (x.double(), x[:3], x.t().contiguous().t(), x.to_sparse(), x[..., None]):
        assert not tensors.is_same(other, *right)


def test_a_function_that_torch_gave_up(tmp_path):
    """It was called in more ways than TorchDynamo compiles; a package asks for its own."""
    with torch._dynamo.config.patch(recompile_limit=1):
        compiled = fusec.compile(lambda x: x.cos() * 5, dynamic=False)
        compiled(torch.randn(3))
        compiled(torch.randn(4))
        x = torch.randn(5)
        fusec.package(compiled, [(x,)], tmp_path / "it.fuse", binaries=PLAIN)
    torch.testing.assert_close(fusec.load(tmp_path / "it.fuse")(x), x.cos() * 5)


def test_a_list_of_the_functions_own_is_no_change(tmp_path):
    """It is gone in what TorchDynamo made of the code, and stands among its names all the same."""

    def steps(x):
        found = []
        for row in x.unbind(0):
            found.append(row.cumsum(-1))
        return torch.stack(found)

    x = torch.randn(3, 5)
    fusec.package(steps, [(x,)], tmp_path / "it.fuse", binaries=PLAIN)
    torch.testing.assert_close(fusec.load(tmp_path / "it.fuse")(x), steps(x))


def test_prefill_and_decode_with_a_past_that_grows(tmp_path):
    def attend(x, past=None):
        keys = x if past is None else torch.cat([past, x], 1)
        return (x @ keys.transpose(1, 2)).softmax(-1) @ keys, keys

    x, one = torch.randn(1, 6, 8), torch.randn(1, 1, 8)
    path = tmp_path / "it.fuse"
    gaps = torch.randn(1, 6, 16)[:, :, :8]
    with pytest.raises(CannotPackage, match="past has sizes that stay dynamic, and gaps"):
        fusec.package(attend, [(one, gaps)], path, dynamic={"past": 1}, binaries=PLAIN)
    with pytest.raises(CannotPackage, match="'pasts', which is a tensor in none of the calls"):
        fusec.package(attend, [(x,), (one, x)], path, dynamic={"pasts": 1}, binaries=PLAIN)
    fusec.package(attend, [(x,), (one, x)], path, dynamic={"x": 1, "past": 1}, binaries=PLAIN)
    loaded = fusec.load(path)
    x = torch.randn(1, 9, 8)
    (_, past), (_, wanted) = loaded(x), attend(x)
    for _ in range(3):
        one = torch.randn(1, 1, 8)
        (found, past), (expected, wanted) = loaded(one, past), attend(one, wanted)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(past, wanted)
