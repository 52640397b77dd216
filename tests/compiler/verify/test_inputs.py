"""Fresh inputs: like the originals, and different from them."""

from __future__ import annotations

import pytest
import torch

from fusec.memory.strided import clone_strided
from fusec.verify.check import KINDS as ALL_KINDS
from fusec.verify.trials.inputs import are_ordinary, fresh_inputs, secret_seed

KINDS = [*ALL_KINDS, "named"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 6)[::2, 1:].t(),
        torch.randn(5).expand(3, 5),
        torch.tensor(2.5),
        torch.empty(0, 3),
        torch.randn(10, dtype=torch.float16),
        torch.randn(10).to(torch.bfloat16),
        torch.randn(10).to(torch.float8_e4m3fn),
        torch.randn(4, dtype=torch.complex64),
        torch.randint(0, 9, (20,)),
        torch.randint(0, 255, (20,), dtype=torch.uint8),
        torch.rand(20) < 0.3,
    ],
    ids=lambda t: f"{str(t.dtype)[6:]}-{tuple(t.shape)}",
)
def test_shape_strides_and_dtype_stay(tensor, kind):
    original = clone_strided(tensor)
    (fresh,) = fresh_inputs([tensor], kind=kind, numbers=[1234.5, -1234.5])
    assert (fresh.shape, fresh.stride(), fresh.dtype) == (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
    )
    assert torch.equal(
        tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor,
        original.contiguous().view(torch.uint8) if tensor.dim() else original,
    )


def test_similar_floats():
    x = torch.randn(20_000) * 3 + 50
    (fresh,) = fresh_inputs([x])
    assert fresh.mean().item() == pytest.approx(50, rel=0.01)
    assert fresh.std().item() == pytest.approx(3, rel=0.05)
    assert not torch.equal(fresh, x)


def test_as_peoples_tensors_are():
    x, weight, bias = torch.randn(20, 64), torch.randn(64), torch.randn(64)

    def made(kind):
        return fresh_inputs([x, weight, bias], kind=kind)

    assert all((each == 1).all() for each in made("ones"))
    first, ones, zeros = made("layers")
    assert (ones == 1).all()
    assert (zeros == 0).all()
    assert first.unique().numel() > 1000
    assert made("whole")[0].reshape(-1)[:300].tolist() == [i % 256 for i in range(300)]
    nothing, kept, _ = made("padding")
    assert (nothing == 0).all()
    assert (kept != 0).all()
    assert 0.01 < (made("sparse")[0] != 0).float().mean() < 0.2
    unit = made("unit")[0]
    assert unit.min() >= 0
    assert unit.max() < 1
    for kind, spread in (("ordinary", 1.0), ("wide", 8.0)):
        data, kept, _ = made(kind)
        assert data.std() == pytest.approx(spread, rel=0.2)
        assert kept.std() == pytest.approx(weight.std(), rel=0.5)
    assert 0 < made("small")[0].abs().max() < 1e-4
    assert 0 < made("tiny")[0].abs().max() < 1e-15
    far = made("far")[0]
    assert far.min() > 20
    assert torch.equal(far, far.round())
    assert all(each.isnan().all() for each in made("nan"))
    one, *others = made("one nan")
    assert one.isnan().reshape(-1).nonzero().tolist() == [[0]]
    assert all(each.isfinite().all() for each in others)
    many, kept, _ = made("many nonfinite")
    assert 0.2 < (~many.isfinite()).float().mean() < 0.4
    assert kept.isfinite().all()


def test_numbers_that_somebody_names():
    (fresh,) = fresh_inputs([torch.randn(4000)], kind="named", numbers=[1234.5, -1234.5])
    assert fresh[0] == fresh[-1] == 1234.5
    assert -1234.5 in fresh
    assert fresh.unique().numel() > 200


def test_numbers_that_somebody_names_in_what_is_computed_alone():
    """Beside ordinary weights: products of two such numbers would widen what is allowed."""
    given = [torch.randn(4000), torch.randn(40)]
    data, weights = fresh_inputs(given, kind="named data", numbers=[617.5])
    assert data[0] == data[-1] == 617.5
    assert weights.abs().max() < 617.5


def test_small_halves_have_products():
    (fresh,) = fresh_inputs([torch.randn(400).half()], kind="small")
    assert (fresh * fresh).abs().max() > 0


@pytest.mark.parametrize(
    ("dtype", "least", "most"),
    [(torch.float16, -24, 7), (torch.bfloat16, -133, 63), (torch.float32, -149, 63)],
    ids=["float16", "bfloat16", "float32"],
)
def test_every_power_of_two(dtype, least, most):
    (fresh,) = fresh_inputs([torch.randn(4000).to(dtype)], kind="every power")
    _, exponents = torch.frexp(fresh.double())
    # rounding may lift the largest by one
    assert {*range(least + 2, most)} <= set((exponents - 1).tolist()) <= {*range(least, most + 1)}
    assert 0.4 < (fresh < 0).float().mean() < 0.6
    assert (fresh * fresh).isfinite().all()
    (shares,) = fresh_inputs([torch.rand(4000).to(dtype)], kind="every power")
    assert shares.min() >= 0
    assert shares.max() <= 1


def test_one_side_alone():
    x = torch.randn(200)
    ((low,), (high,), (none,)) = (
        fresh_inputs([x], kind=kind) for kind in ("negative", "positive", "zeros")
    )
    assert low.max() <= 0
    assert high.min() >= 0
    assert not none.any()
    assert low.unique().numel() > 100
    shares = torch.rand(200)  # which may have to be positive
    assert fresh_inputs([shares], kind="negative")[0].min() >= 0


def test_a_row_that_is_masked():
    (fresh,) = fresh_inputs([torch.randn(64, 32)], kind="nonfinite")
    assert (fresh[0] == float("-inf")).all()
    assert fresh[1:].isfinite().any()


def test_secret_seeds_differ():
    assert secret_seed() != secret_seed()
    x = torch.randn(10)
    assert not torch.equal(fresh_inputs([x])[0], fresh_inputs([x])[0])
    assert torch.equal(fresh_inputs([x], seed=1)[0], fresh_inputs([x], seed=1)[0])


def test_ranges_that_matter_stay():
    for x in (torch.rand(1000), torch.randn(1000).softmax(0), torch.randn(1000).square()):
        (fresh,) = fresh_inputs([x])
        assert x.min() <= fresh.min()
        assert fresh.max() <= x.max()


@pytest.mark.parametrize("kind", KINDS)
def test_indices_stay_in_range(kind):
    index = torch.randint(3, 40, (500,))
    (fresh,) = fresh_inputs([index], kind=kind)
    assert index.min() <= fresh.min()
    assert fresh.max() <= index.max()
    places = torch.randperm(50)
    (fresh,) = fresh_inputs([places], kind=kind)
    assert torch.equal(fresh.sort().values, torch.arange(50))
    (fresh,) = fresh_inputs([torch.full((9,), 4)], kind=kind)
    assert fresh.tolist() == [4] * 9


def test_bools_keep_their_density():
    mask = torch.rand(10_000) < 0.2
    (fresh,) = fresh_inputs([mask])
    assert fresh.double().mean().item() == pytest.approx(0.2, abs=0.03)
    (fresh,) = fresh_inputs([torch.ones(1000, dtype=torch.bool)])
    assert 0 < (~fresh).sum() < 200


def test_constants_change():
    (zeros,) = fresh_inputs([torch.zeros(100)])
    assert zeros.abs().max() > 0.1
    (ones,) = fresh_inputs([torch.ones(100)])
    assert ones.unique().numel() > 10
    assert (ones > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_adversarial_values(dtype):
    (fresh,) = fresh_inputs([torch.randn(5000).to(dtype)], kind="adversarial")
    info = torch.finfo(dtype)
    assert fresh.isfinite().all()
    zeros = fresh[fresh == 0]
    assert zeros.signbit().any()
    assert not zeros.signbit().all()
    assert ((fresh != 0) & (fresh.abs() < info.smallest_normal)).any()
    assert fresh.abs().max() > 1000


def test_adversarial_keeps_signs():
    (fresh,) = fresh_inputs([torch.rand(5000)], kind="adversarial")
    assert (fresh >= 0).all()


def test_nonfinite_values_are_few():
    (fresh,) = fresh_inputs([torch.randn(20_000)], kind="nonfinite")
    share = (~fresh.isfinite()).double().mean().item()
    assert 0.01 < share < 0.03
    assert fresh.isnan().any()
    assert (fresh == float("inf")).any()
    assert (fresh == -float("inf")).any()


def test_originals_that_are_not_finite():
    x = torch.randn(1000)
    x[3] = float("nan")
    x[4] = float("inf")
    (fresh,) = fresh_inputs([x])
    assert fresh.isfinite().all()
    (fresh,) = fresh_inputs([torch.full((4,), float("nan"))])
    assert fresh.isfinite().all()


def test_large_tensors():
    x = torch.randn(2_500_000)
    (fresh,) = fresh_inputs([x], kind="adversarial")
    assert fresh.shape == x.shape
    assert fresh[:1000].ne(fresh[-1000:]).any()


def test_the_first_of_many_magnitudes_is_large():
    for seed in range(20):
        (made,) = fresh_inputs([torch.randn(64, 64)], kind="magnitudes", seed=seed)
        assert made[0, 0] > 30
        (made,) = fresh_inputs([-torch.rand(64) - 1], kind="magnitudes", seed=seed)
        assert made[0] < -30


def test_tiny_halves_have_fewer_bits_than_others():
    """They are converted in another way, which no other kind takes with bits that count."""
    fresh = fresh_inputs([torch.randn(1000).half()], kind="tiny", seed=0)[0]
    few = (fresh != 0) & (fresh.abs() < torch.finfo(torch.float16).smallest_normal)
    assert 0.2 < few.double().mean() < 0.9
    assert fresh[few].unique().numel() > 100


def test_which_data_are_like_ordinary_ones():
    weights = torch.full((60,), 1e6)
    assert are_ordinary([torch.randn(24, 60), weights])
    assert not are_ordinary([torch.randn(24, 60) * 100, weights])
    assert not are_ordinary([torch.randn(24, 60) / 100])
    assert are_ordinary([torch.arange(9), torch.empty(0)])


def test_some_rows_end_and_begin_with_what_is_special():
    """What reads one element of a row beside its own is nearly always right otherwise."""
    (made,) = fresh_inputs([torch.randn(40, 30)], kind="nonfinite")
    assert (~made[1:-1, -1].isfinite()).sum() >= 3
    assert (~made[1:, 0].isfinite()).sum() >= 4


def test_truth_values_alone():
    pair = [torch.rand(5, 6) > 0.5, torch.rand(5, 6) > 0.5]
    for kind, expected in {
        "zeros": (False, False),
        "ones": (True, True),
        "positive": (True, False),
        "negative": (False, True),
    }.items():
        made = fresh_inputs(pair, kind=kind)
        assert [bool(each.all()) or bool(each.any()) for each in made] == list(expected), kind
