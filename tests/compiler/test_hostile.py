"""Calls that an outside suite would make to catch a compiler: eager is right about all of them.

Each function is compiled with known and with symbolic sizes and called twice, then with other
values. What it returns (and what became of its inputs) is eager's: values, signs of zeros, NaN,
types, shapes, strides and who shares memory; where eager raises, so do we, in the same class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec

pytestmark = pytest.mark.timeout(600)
Make = Callable[[], tuple[Any, ...]]
CASES: dict[str, tuple[Callable[..., Any], Make]] = {}
INF, NAN = math.inf, math.nan
SPECIAL = [0.0, -0.0, 1.5, -1.5, INF, -INF, NAN, 1e-40, -1e-40, 3.4e38]
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
HALVES = (torch.float16, torch.bfloat16)


def case(name: str, function: Callable[..., Any], *make: Any) -> None:
    """Add a case; what is no tensor but callable makes an input."""
    assert name not in CASES
    CASES[name] = (function, lambda: tuple(m() if callable(m) else m for m in make))


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: (torch.randn(shape) * 3).to(dtype)


def special(dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: torch.tensor(SPECIAL, dtype=dtype)


def ends(dtype: torch.dtype) -> Callable[[], torch.Tensor]:
    info = torch.iinfo(dtype)
    return lambda: torch.tensor([info.min, info.min + 1, 0, 1, 2, 7, info.max - 1, info.max]).to(
        dtype
    )


# -- integers at the ends of their types ------------------------------------------------------

for kind in INTEGERS:
    word = str(kind).removeprefix("torch.")
    case(f"{word} wraps", lambda x: (x + 1, x - 1, x * 3, -x, x.abs()), ends(kind))
    case(f"{word} divided", lambda x: (x // 3, x % 3, x // -3, x % -3, x / 7), ends(kind))
    case(f"{word} shifted", lambda x: (x << 1, x >> 1, x << 3, (x >> 3) & 5), ends(kind))
    case(f"{word} compared", lambda x: (x < -x, x == ~x, x >= 0, x.clamp(1, 5)), ends(kind))
    case(
        f"{word} reduced",
        lambda x: (x.sum(), x.prod(), x.amax(), x.argmin(), x.cumsum(0)),
        ends(kind),
    )
    case(f"{word} and numbers", lambda x: (x + 0.5, x * True, torch.where(x > 1, x, 2)), ends(kind))
for kind in UNSIGNED:
    word = str(kind).removeprefix("torch.")
    ones = lambda kind=kind: torch.tensor([0, 1, 2, 250, 255, 128, 7, 9]).to(kind)  # noqa: E731
    case(f"{word} arithmetic", lambda x: (x + x, x * x, x - x), ones)
    case(f"{word} bits", lambda x: (x & x, x | x, x ^ x), ones)
    case(f"{word} compared", lambda x: (x == x, x < x), ones)
    case(f"{word} converted", lambda x: (x.float() * 2, x.to(torch.int64) + 1), ones)

# -- numbers of which few think ---------------------------------------------------------------

UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "signs": lambda x: (x.sign(), x.signbit(), x.neg(), x.abs(), x.copysign(-x)),
    "rounding": lambda x: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac()),
    "roots": lambda x: (x.sqrt(), x.rsqrt(), x.reciprocal()),
    "exponents": lambda x: (x.exp(), x.exp2(), x.expm1(), x.log1p(), x.log()),
    "hyperbolic": lambda x: (x.tanh(), x.sigmoid(), F.softplus(x), F.silu(x)),
    "kinks": lambda x: (F.relu(x), F.relu6(x), F.hardswish(x), F.leaky_relu(x), F.elu(x)),
    "tests": lambda x: (x.isnan(), x.isinf(), x.isfinite(), x == 0, x != x),
    "nan_to_num": lambda x: (x.nan_to_num(), x.nan_to_num(1.0, 2.0, -2.0)),
    "extremes": lambda x: (x.amax(), x.amin(), x.max(0), x.argmax(), x.aminmax()),
    "pairs": lambda x: (torch.maximum(x, x.flip(0)), torch.fmin(x, x.flip(0)), x.clamp(-1, 1)),
    "remainders": lambda x: (x % 2, x.fmod(2), x // 2, x.remainder(-1.5)),
    "powers": lambda x: (x**2, x**3, x**0, x**-1, x**0.5),
    "atan2": lambda x: (torch.atan2(x, x.flip(0)), torch.hypot(x, x.flip(0))),
    "next": lambda x: (torch.nextafter(x, x.flip(0)),),
    "softmax": lambda x: (x[:4].softmax(0), x.log_softmax(0), x.logsumexp(0)),
    "cumulative": lambda x: (x[:6].cumsum(0), x[:4].cumprod(0), x.cummax(0), x.cummin(0)),
    "sorted": lambda x: (x.sort(stable=True), x.argsort(stable=True, descending=True)),
    "topk": lambda x: (x.topk(3).values, x.kthvalue(2).values, x.median()),
    "where": lambda x: (torch.where(x > 0, x, -x), x.masked_fill(x.isnan(), 0)),
    "bits": lambda x: (x.view(torch.int32) & 0x7FFFFFFF,) if x.dtype == torch.float32 else (x,),
}
for name, unary in UNARY.items():
    for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        if name == "next" and kind in HALVES:
            continue
        case(f"{name} of special {str(kind).removeprefix('torch.')}", unary, special(kind))

# -- promotion --------------------------------------------------------------------------------

for left in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32):
    for right in (torch.int8, torch.float32, torch.float64):
        word = f"{left} and a single {right}".replace("torch.", "")
        case(
            word,
            lambda x, y: (x + y, x * y, x / y, torch.maximum(x, y), x == y),
            lambda left=left: torch.tensor([0, 1, 1, 0, 1]).to(left),
            lambda right=right: torch.tensor(3).to(right),
        )
case(
    "numbers and bools",
    lambda x: (x + True, x * 2, x - 1.5, x / 2),
    lambda: torch.tensor([True, False]),
)
case(
    "single numbers",
    lambda x, y: (x + y, x**y, x // 2, x > y),
    lambda: torch.tensor(2.0),
    lambda: torch.tensor(3),
)


def views_of_a_result(x: torch.Tensor) -> Any:
    y = x * 2
    return y, y.detach(), y[:], y.t().t()


# -- views and where they lie -----------------------------------------------------------------

base = drawn(6, 8)
case("view of a view with an offset", lambda x: (x[1:].t()[2:][:, 1::2] * 2,), base)
case("update of a view of a view", lambda x: (x[1:].t()[2:].mul_(2), x), base)
case("update through a diagonal", lambda x: (x.diagonal().add_(1), x.sum()), base)
case("update of overlapping windows", lambda x: x.unfold(0, 2, 1).add_(1), drawn(5))
case("update of an expanded tensor", lambda x: x.expand(3, 4).add_(1), drawn(4))
case("read of an expanded tensor", lambda x: (x.expand(3, 4) + 1, x.expand(3, 4).sum(0)), drawn(4))
case("flipped", lambda x: (x.flip(0, 1) * 2, x.flip(1).t(), x.rot90()), base)
case("gaps", lambda x: (x[:, ::3] + 1, x[::2, 1::2].contiguous(), x[:, ::3].clone()), base)
case(
    "channels last",
    lambda x: (x * 2, x.sum(1), F.relu(x).permute(0, 2, 3, 1)),
    lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
)
case("as_strided", lambda x: (x.as_strided((2, 3), (1, 2), 1) + 1,), base)
case("as_strided that overlaps", lambda x: (x.as_strided((3, 3), (1, 1)) * 2,), drawn(9))
case(
    "empty_strided like a view",
    lambda x: torch.empty_strided(x.size(), x.stride()).copy_(x),
    lambda: torch.randn(16, 16)[:, :8],
)
case("one tensor twice", lambda x, y: (x + y, x.mul_(2), y), lambda: None)
case("an input returned", lambda x: (x, x + 1, x.view(-1), x[0]), base)
case("an updated input returned", lambda x: (x.add_(1), x[1:], x * 2), base)
case("views of a result", views_of_a_result, base)
case("transposed update", lambda x, y: (x.t().copy_(y), x), base, drawn(8, 6))
case("slice to slice that overlaps", lambda x: (x[1:].copy_(x[:-1].clone()), x), drawn(7))
case("swapped", lambda x, y: (x.copy_(y + 0), y.add_(x)), base, base)
case("set by index", lambda x: (x.__setitem__((slice(None), 0), 7.0), x)[1], base)
case("set by mask", lambda x: (x.__setitem__(x > 0, 0.0), x)[1], base)

# -- nothing in it ----------------------------------------------------------------------------

for shape in ((0,), (3, 0), (0, 4), (2, 0, 3)):
    words = "x".join(map(str, shape))
    case(
        f"sums of {words}",
        lambda x: (x.sum(), x.sum(-1), x.prod(), x.mean(), x.all(), x.any()),
        drawn(*shape),
    )
    case(
        f"pointwise of {words}",
        lambda x: (x + 1, x.exp() * x, x.t() if x.dim() == 2 else x),
        drawn(*shape),
    )
    case(
        f"softmax of {words}",
        lambda x: (x.softmax(-1), x.log_softmax(0), x.cumsum(-1)),
        drawn(*shape),
    )
    case(
        f"joined {words}",
        lambda x: (torch.cat([x, x]), torch.stack([x, x]), x.flatten()),
        drawn(*shape),
    )
    case(f"least of {words}", lambda x: x.amin(), drawn(*shape))
    case(f"argmax of {words}", lambda x: x.argmax(), drawn(*shape))
    case(f"norms of {words}", lambda x: (x.norm(), x.var(), x.std(unbiased=False)), drawn(*shape))
    case(
        f"product of {words}",
        lambda x: x.flatten(1) @ x.flatten(1).t() if x.dim() > 1 else x @ x,
        drawn(*shape),
    )

# -- scattering, with places that come twice -----------------------------------------------------

places = lambda: torch.tensor([0, 1, 0, 2, 1, 0])  # noqa: E731
case("scatter_add twice", lambda i, s: torch.zeros(4).scatter_add(0, i, s), places, drawn(6))
case(
    "scatter_reduce",
    lambda i, s: tuple(
        torch.ones(4).scatter_reduce(0, i, s, r) for r in ("sum", "prod", "amax", "amin", "mean")
    ),
    places,
    drawn(6),
)
case(
    "scatter_reduce without itself",
    lambda i, s: tuple(
        torch.ones(4).scatter_reduce(0, i, s, r, include_self=False)
        for r in ("sum", "amax", "mean")
    ),
    places,
    drawn(6),
)
case(
    "index_add of bytes",
    lambda i, s: torch.zeros(4, dtype=torch.uint8).index_add(0, i, s),
    places,
    lambda: torch.full((6,), 200, dtype=torch.uint8),
)
case(
    "index_put accumulates",
    lambda i, s: torch.zeros(4).index_put((i,), s, accumulate=True),
    places,
    drawn(6),
)
case(
    "index_put from below",
    lambda i, s: torch.zeros(4).index_put((i - 4,), s, accumulate=True),
    places,
    drawn(6),
)
case(
    "gather", lambda x, i: (x.gather(0, i), x[i], x.index_select(0, i), x.take(i)), drawn(4), places
)
case("index beyond", lambda x, i: x[i + 3], drawn(4), places)
case("index_fill", lambda x, i: x.index_fill(0, i[:2], 5), drawn(4), places)
case("bincount", torch.bincount, places)
case("embedding", lambda w, i: F.embedding(i, w, padding_idx=0), drawn(3, 4), places)
case("one_hot", lambda i: F.one_hot(i, 4), places)

# -- bools -----------------------------------------------------------------------------------------

bools = lambda: torch.tensor([[True, False, True], [False, False, True]])  # noqa: E731
case("cumulative bools", lambda x: (x.cumsum(0), x.cumprod(1), x.cummax(0)), bools)
case("sums of bools", lambda x: (x.sum(), x.sum(0), x.float().mean(), x.prod(), x.amax(1)), bools)
case("arithmetic of bools", lambda x: (x + x, x * x, x & ~x, x ^ True, x == 1), bools)
case("minus bools", lambda x: x - x, bools)
case("negated bools", lambda x: -x, bools)
case("mean of bools", lambda x: x.mean(), bools)

# -- complex numbers, views of their bits ---------------------------------------------------------

numbers = lambda: torch.complex(torch.tensor([1.0, -0.0, INF]), torch.tensor([-2.0, 0.0, NAN]))  # noqa: E731
case("complex", lambda z: (z * z, z + 1j, z.real, z.imag * 2, z.abs()), numbers)
case("conjugates", lambda z: (z.conj() * 2, z.conj().imag, z.conj().real + 1), numbers)
case("update of an imaginary part", lambda z: (z.imag.add_(1), z), numbers)
case("negated bits", lambda z: (z.conj().imag + 1, -z.conj().imag), numbers)
case("angles", lambda z: (z.angle(), torch.view_as_real(z) * 2), numbers)

# -- float8 --------------------------------------------------------------------------------------

for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
    word = str(kind).removeprefix("torch.")
    case(
        f"to {word} and back", lambda x, kind=kind: (x.to(kind).float(), (x * 2).to(kind)), drawn(5)
    )
    case(f"special {word}", lambda x, kind=kind: x.to(kind).float(), special())
    case(f"sum of {word}", lambda x: x + x, lambda kind=kind: torch.ones(3).to(kind))

# -- random numbers ----------------------------------------------------------------------------

case("probabilities beyond one", torch.bernoulli, lambda: torch.tensor([0.5, 1.5]))
case("probabilities below zero", torch.bernoulli, lambda: torch.tensor([-0.5, 0.5]))
case("probabilities that are none", torch.bernoulli, lambda: torch.tensor([NAN, 0.5]))
case("sure draws", torch.bernoulli, lambda: torch.tensor([0.0, 1.0, 1.0]))
case("dropout of all", lambda x: F.dropout(x, 1.0), drawn(4))
case("dropout beyond", lambda x: F.dropout(x, 1.5), drawn(4))


# -- on no device, negated, conjugated, within autocast --------------------------------------------


def complex_numbers() -> torch.Tensor:
    return torch.randn(3, 4, dtype=torch.complex64)


def updated_within_autocast(x: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        view = x[1:]
        view.add_((x @ w)[1:].float())
        return x.sum(), view


case("made on no device", lambda x: (torch.empty(3, device="meta") + 1, x + 1), drawn(3))
case("onto no device", lambda x: (x.to("meta") * 2, x * 2), drawn(3))
case("a negated view beside", lambda x: ((x * 2).conj().imag, x * 2), complex_numbers)
case("a negated view", lambda x: (x.conj().imag.mul_(3), x * 1), complex_numbers)
case("products of conjugates", lambda x: (x @ x.mH, x.conj() @ x.T), complex_numbers)
case("an update within autocast", updated_within_autocast, drawn(4, 4), drawn(4, 4))
case(
    "half of an update",
    lambda x: (x.view(-1)[::3].sub_(1), x.diagonal().mul_(2), x.clone()),
    drawn(6, 6),
)
case(
    "large steps",
    lambda x: (x + 1, x.sum(0), x.t() @ x, x.flip(0)[1:] * 2, x.flip(1).cumsum(1)),
    lambda: torch.empty_strided((3, 4), (100_000, 7)).copy_(torch.randn(3, 4)),
)
case(
    "numbers below the normal ones",
    lambda x: (x * 0.5, x + x, x / 2, x.sqrt(), x * 1e10, x.half(), x.bfloat16(), x.sum()),
    lambda: torch.tensor([1e-40, -1e-40, 1e-45, 1.2e-38]),
)

# -- the test --------------------------------------------------------------------------------------


def tensors(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [t for each in value for t in tensors(each)]
    return [value]


# Sums of numbers that cancel each other, which differ by a part of what is summed.
CANCELLING = frozenset(("channels last",))


def same(got: Any, want: Any, *, cancels: bool = False) -> str:
    """Return how two results differ; nothing if a user could not tell."""
    if not isinstance(want, torch.Tensor):
        return "" if got == want else f"{got} instead of {want}"
    for what in ("dtype", "shape", "requires_grad", "device"):
        if getattr(got, what) != getattr(want, what):
            return f"{what}: {getattr(got, what)} instead of {getattr(want, what)}"
    long = [n for n, size in enumerate(want.shape) if size > 1]
    if want.numel() and [got.stride(n) for n in long] != [want.stride(n) for n in long]:
        return f"strides {got.stride()} instead of {want.stride()}"
    if want.device.type == "meta":
        return ""  # it has no numbers
    a, b = got.detach().resolve_conj().resolve_neg(), want.detach().resolve_conj().resolve_neg()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    if not a.is_floating_point():
        return "" if torch.equal(a.to(torch.int64), b.to(torch.int64)) else f"{a} instead of {b}"
    close = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
    a, b = a.double(), b.double()
    near = torch.isclose(a, b, rtol=close.get(want.dtype, 0.2), atol=1e-36, equal_nan=True)
    if cancels and want.numel() and b.isfinite().all():
        near |= (a - b).abs() <= close.get(want.dtype, 0.2) * b.abs().max().clamp(max=100)
    near &= (a != 0) | (b != 0) | (a.signbit() == b.signbit())
    return "" if near.all() else f"{a[~near][:4]} instead of {b[~near][:4]}"


def shared(values: list[Any]) -> list[int]:
    memory = [
        v.untyped_storage().data_ptr() if isinstance(v, torch.Tensor) and v.numel() else n
        for n, v in enumerate(values)
    ]
    return [memory.index(m) for m in memory]


def outcome(
    function: Callable[..., Any], inputs: tuple[Any, ...]
) -> tuple[type[Exception] | None, list[Any]]:
    """Return the class of what was raised, or all that a call returned and changed."""
    torch.manual_seed(7)
    try:
        found = function(*inputs)
    except Exception as problem:
        return type(problem), [*inputs]
    return None, [*tensors(found), *inputs]


def raises_alike(
    failed: type[Exception] | None, raised: type[Exception] | None, name: str, seed: int
) -> bool:
    """Whether an exception is eager's, or of its kind, or TorchDynamo's own in every backend."""
    if failed is None or raised is None:
        return failed is raised
    if issubclass(failed, raised):
        return True
    by_dynamo = torch.compile(CASES[name][0], backend="eager")
    return outcome(by_dynamo, made(name, seed))[0] is failed


def made(name: str, seed: int) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    if name == "one tensor twice":
        x = torch.randn(4)
        return x, x
    return CASES[name][1]()


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name: str) -> None:
    function = CASES[name][0]
    for dynamic in (None, True):
        torch._dynamo.reset()
        compiled = fusec.compile(function, dynamic=dynamic)
        for seed in (0, 0, 1):
            raised, wanted = outcome(function, made(name, seed))
            failed, found = outcome(compiled, made(name, seed))
            alike = raises_alike(failed, raised, name, seed)
            assert alike, f"dynamic={dynamic}: {failed} instead of {raised}"
            assert len(found) == len(wanted)
            for place, (got, want) in enumerate(zip(found, wanted, strict=True)):
                why = same(got, want, cancels=name in CANCELLING)
                assert not why, f"dynamic={dynamic}, result {place}: {why}"
            assert shared(found) == shared(wanted)
