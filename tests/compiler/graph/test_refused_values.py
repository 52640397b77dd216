"""What eager refuses for the values in tensors is refused, by the class of error that eager raises.

Each function is compiled once and called with values that it takes, with others that it does not,
and with the first again. They are given as they are, or made within what is compiled, where nothing
that looks at arguments sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec

Tensors = tuple[torch.Tensor, ...]
CASES: dict[str, tuple[Callable[..., Any], Tensors, Tensors]] = {}
I = torch.tensor
HALF, BFLOAT = torch.float16, torch.bfloat16


def case(name: str, function: Callable[..., Any], good: Any, *bad: Any) -> None:
    """Add a case for each of some inputs that are refused; an input alone stands for a tuple."""
    good, *others = (each if isinstance(each, tuple) else (each,) for each in (good, *bad))
    for n, values in enumerate(others):
        assert (name, n) not in CASES
        CASES[f"{name} {n}" if n else name] = (function, good, values)


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return numbers from 0 to 1, other ones in every place."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + 0.5) / count).to(dtype).reshape(shape)


# -- losses -----------------------------------------------------------------------------------

X = rows(3, 4)
for reduction in ("none", "mean", "sum"):
    case(
        f"binary cross entropy, {reduction}",
        lambda x, y, reduction=reduction: F.binary_cross_entropy(x, y, reduction=reduction),
        (X, X),
        (X + 0.5, X),
        (X - 0.5, X),
        (X * torch.nan, X),
        (X, X + 0.5),
        (X, X - 0.5),
    )
for dtype in (HALF, BFLOAT, torch.float64):
    case(
        f"binary cross entropy of {dtype}",
        F.binary_cross_entropy,
        (X.to(dtype), X.to(dtype)),
        ((X + 0.5).to(dtype), X.to(dtype)),
    )
case("BCELoss", torch.nn.BCELoss(), (X, X), (X * 2, X))
case(
    "binary cross entropy with weights",
    F.binary_cross_entropy,
    (X, X, X[0]),
    (X * 2, X, X[0]),
)
case(
    "binary cross entropy, an element of it",
    lambda x, y: F.binary_cross_entropy(x, y, reduction="none")[0],
    (X, X),
    (X * 1.5, X),
)
T = I([0, 3, 1])
for reduction in ("none", "mean", "sum"):
    for what, function in (("cross entropy", F.cross_entropy), ("nll", F.nll_loss)):
        case(
            f"{what}, {reduction}",
            lambda x, y, f=function, reduction=reduction: f(x, y, reduction=reduction),
            (X, T),
            (X, T + 1),
            (X, T - 1),
            (X, T - 101),
        )
case(
    "cross entropy that ignores",
    lambda x, y: F.cross_entropy(x, y, ignore_index=-7),
    (X, I([0, -7, 3])),
    (X, I([0, -7, 4])),
    (X, I([0, -100, 3])),
)
case(
    "cross entropy with weights and smoothing",
    lambda x, y, w: F.cross_entropy(x, y, w, label_smoothing=0.1),
    (X, T, X[0]),
    (X, T + 1, X[0]),
)
case(
    "nll of pictures",
    F.nll_loss,
    (rows(2, 3, 2, 2), torch.zeros(2, 2, 2).long()),
    (rows(2, 3, 2, 2), torch.full((2, 2, 2), 3)),
)
case("cross entropy of a vector", F.cross_entropy, (X[0], I(3)), (X[0], I(4)))
case("multi margin", F.multi_margin_loss, (X, T), (X, T + 1), (X, T - 1))
case(
    "multilabel margin",
    F.multilabel_margin_loss,
    (X, I([[0, 1, -1, 0]] * 3)),
    (X, I([[0, 4, -1, 0]] * 3)),
    (X, I([[0, -2, -1, 0]] * 3)),
)
LOGITS = rows(5, 2, 4).log_softmax(-1)
case(
    "ctc",
    F.ctc_loss,
    (LOGITS, I([[1, 2], [3, 1]]), I([5, 5]), I([2, 2])),
    (LOGITS, I([[1, 2], [3, 1]]), I([6, 5]), I([2, 2])),
    (LOGITS, I([[1, 2], [3, 1]]), I([5, 5]), I([2, 3])),
    (LOGITS, I([[1, 2], [3, 1]]), I([5, -5]), I([2, 2])),
    (LOGITS, I([[1, 2], [3, 1]]), I([5, 5]), I([2, -2])),
)
case("gaussian nll", F.gaussian_nll_loss, (X, X, X), (X, X, -X), (X, X, X - 0.5))

# -- places -----------------------------------------------------------------------------------

P = I([[0, 1], [2, 0]])
case("embedding", F.embedding, (P, X), (P + 1, X), (P - 1, X))
case("embedding of nothing", F.embedding, (P[:0], X), (P, X[:0]))
case(
    "embedding with padding",
    lambda p, w: F.embedding(p, w, padding_idx=0),
    (P, X),
    (P + 1, X),
)
case(
    "embedding with norms",
    lambda p, w: F.embedding(p, w * 1, max_norm=1.0),
    (P, X),
    (P + 1, X),
)
for mode in ("sum", "mean", "max"):
    case(
        f"embedding bag, {mode}",
        lambda p, w, mode=mode: F.embedding_bag(p, w, mode=mode),
        (P, X),
        (P + 1, X),
        (P - 1, X),
    )
    case(
        f"embedding bag with offsets, {mode}",
        lambda p, w, o, mode=mode: F.embedding_bag(p, w, o, mode=mode),
        (P.view(-1), X, I([0, 2])),
        (P.view(-1) + 1, X, I([0, 2])),
        (P.view(-1), X, I([1, 2])),
        (P.view(-1), X, I([0, 5])),
        (P.view(-1), X, I([0, -1])),
        (P.view(-1), X, I([0, 3, 2])),
    )
case("gather", lambda x, p: x.gather(1, p), (X[:2], P), (X[:2], P + 2), (X[:2], P - 1))
case("gather rows", lambda x, p: x.gather(0, p), (X, P), (X, P + 1), (X, P - 1))
case("take", lambda x, p: x.take(p), (X, P), (X, P + 11), (X, P - 13))
case("take along", lambda x, p: x.take_along_dim(p, 1), (X[:2], P), (X[:2], P + 2), (X[:2], P - 5))
case("index", lambda x, p: x[p], (X, P), (X, P + 1), (X, P - 4))
case("index a column", lambda x, p: x[:, p], (X, P), (X, P + 2), (X, P - 5))
case("index twice", lambda x, p: x[p, p], (X, P), (X, P + 1), (X, P - 4))
case("index of nothing", lambda x, p: x[p], (X[:0], P[:0]), (X[:0], P))
case("index select", lambda x, p: x.index_select(0, p), (X, T - T), (X, T), (X, T - 1))
case("index fill", lambda x, p: x.index_fill(0, p, 1.0), (X, T - T), (X, T), (X, T - 4))
case("index copy", lambda x, p: x.index_copy(1, p, x[:, :3]), (X, T), (X, T + 1), (X, T - 1))
case("index add", lambda x, p: x.index_add(1, p, x[:, :3]), (X, T), (X, T + 1), (X, T - 1))
case(
    "index reduce",
    lambda x, p: x.index_reduce(1, p, x[:, :3], "amax"),
    (X, T),
    (X, T + 1),
    (X, T - 1),
)
case(
    "index put",
    lambda x, p: x.index_put((p,), I(2.0)),
    (X, T - T),
    (X, T),
    (X, T - 4),
)
case(
    "index put and add",
    lambda x, p: x.index_put((p, p), I(2.0), accumulate=True),
    (X, T - T),
    (X, T),
    (X, T - 4),
)


def assigned(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[p] = 2.0
    return x


case("assignment", assigned, (X, P), (X, P + 1), (X, P - 4))
for name in ("scatter", "scatter_add"):
    case(
        name,
        lambda x, p, name=name: getattr(x, name)(1, p, x[:2, :2]),
        (X, P),
        (X, P + 2),
        (X, P - 1),
    )
case("scatter a number", lambda x, p: x.scatter(1, p, 2.0), (X, P), (X, P + 2), (X, P - 1))
for how in ("sum", "prod", "mean", "amax", "amin"):
    case(
        f"scatter reduce, {how}",
        lambda x, p, how=how: x.scatter_reduce(1, p, x[:2, :2], how),
        (X, P),
        (X, P + 2),
        (X, P - 1),
    )
case("put", lambda x, p: x.put(p, x[:2, :2]), (X, P), (X, P + 11), (X, P - 13))
case("select", lambda x, p: torch.select(x, 0, 0) + x[p[0, 0]], (X, P), (X, P + 3))
case("one hot", lambda p: F.one_hot(p, 3), P, P + 1, P - 1)
case("one hot of the most", F.one_hot, P, P - 1)
case("bincount", lambda p: p.bincount(), P.view(-1), P.view(-1) - 1)
case(
    "bincount with weights", lambda p, w: p.bincount(w), (P.view(-1), X[0]), (P.view(-1) - 1, X[0])
)
POOLED, PLACES = F.max_pool2d(rows(1, 1, 4, 4), 2, return_indices=True)
case(
    "max unpool",
    lambda x, p: F.max_unpool2d(x, p, 2),
    (POOLED, PLACES),
    (POOLED, PLACES + 1),
    (POOLED, PLACES - 6),
)
LINE, AT = F.max_pool1d(rows(1, 1, 8), 2, return_indices=True)
case("max unpool of a line", lambda x, p: F.max_unpool1d(x, p, 2), (LINE, AT), (LINE, AT + 1))
CUBE, WHERE = F.max_pool3d(rows(1, 1, 4, 4, 4), 2, return_indices=True)
case("max unpool of a cube", lambda x, p: F.max_unpool3d(x, p, 2), (CUBE, WHERE), (CUBE, WHERE + 1))
case(
    "searchsorted with an order",
    lambda x, v, s: torch.searchsorted(x, v, sorter=s),
    (X[0], X, I([0, 1, 2, 3])),
    (X[0], X, I([0, 1, 2, 4])),
    (X[0], X, I([0, 1, 2, -1])),
)
case(
    "repeat interleave",
    lambda x, r: x.repeat_interleave(r, 0),
    (X, I([1, 0, 2])),
    (X, I([1, 0, -2])),
)
case(
    "repeat interleave of a known length",
    lambda x, r: x.repeat_interleave(r, 0, output_size=3),
    (X, I([1, 0, 2])),
    (X, I([1, 0, -2])),
    (X, I([1, 0, 3])),
)
case("split of a number", lambda x, p: x.narrow(0, p, 1), (X, I(2)), (X, I(3)), (X, I(-4)))
case("unravel", lambda p: torch.unravel_index(p, (2, 2)), P, P - 1)
case(
    "segments",
    lambda x, n: torch.segment_reduce(x, "sum", lengths=n),
    (X, I([1, 2])),
    (X, I([1, 3])),
    (X, I([4, -1])),
)

# -- of which a part is read: eager looks at all of it

for what, read in (
    ("a row", lambda x: x[0]),
    ("a column", lambda x: x[..., 1:2] * 2),
    ("a sum", lambda x: x[:1].sum()),
):
    case(f"index, {what} of it", lambda x, p, f=read: f(x[p].exp()), (X, T - T), (X, T))
    case(f"embedding, {what} of it", lambda p, w, f=read: f(F.embedding(p, w)), (P, X), (P + 1, X))
    case(
        f"gather, {what} of it", lambda x, p, f=read: f(x.gather(1, p)), (X[:2], P), (X[:2], P + 2)
    )
    case(f"quotient, {what} of it", lambda x, y, f=read: f(x // y), (P, P * 0 + 1), (P, P))
    case(
        f"binary cross entropy, {what} of it",
        lambda x, y, f=read: f(F.binary_cross_entropy(x, y, reduction="none")),
        (X, X),
        (X + 0.5, X),
    )
case("index, padded", lambda x, p: F.pad(x[p], (-1, -1, 0, -1)), (X, T - T), (X, T))
case(
    "select of what is selected",
    lambda x, p: x.index_select(0, p).T[:, :1].exp(),
    (X, T - T),
    (X, T - 1),
)

# -- whose values do not depend on a place, which eager looks at all the same

ROW, COLUMN = X[:1], X[:, :1]
for what, source in (
    ("one row", lambda x: x[:1]),
    ("equal rows", lambda x: x[:1].expand(3, 4)),
    ("a constant", lambda x: torch.ones(3, 4)),
):
    few = 1 if what == "one row" else 3
    case(f"index of {what}", lambda x, p, f=source: f(x)[p] + 1, (X, T * 0), (X, T * 0 + few))
    case(f"rows of {what}", lambda x, p, f=source: f(x).index_select(0, p), (X, T * 0), (X, T - 1))
    case(
        f"embedding in {what}", lambda x, p, f=source: F.embedding(p, f(x)), (X, T * 0), (X, T - 1)
    )
    case(
        f"gather of {what}",
        lambda x, p, f=source: f(x).gather(0, p),
        (X, T[None] * 0),
        (X, T[None] + 1),
    )
    case(f"take of {what}", lambda x, p, f=source: f(x).take(p), (X, T), (X, T + 9))
    case(
        f"one loss of {what}",
        lambda x, p, f=source: F.nll_loss(f(x).T, p.repeat(4)[:4]),
        (X, T * 0),
        (X, T),
    )

# -- of no dimensions

ONE = I(0.5)
case("gather of one", lambda x, p: x.gather(0, p), (ONE, I(0)), (ONE, I(1)), (ONE, I(-1)))
case(
    "select of one", lambda x, p: x.index_select(0, p), (ONE, I([0])), (ONE, I([1])), (ONE, I([-1]))
)
case("take of one", lambda x, p: x.take(p), (ONE, I([[0, -1]])), (ONE, I([1])), (ONE, I([-2])))
case("index add to one", lambda x, p: x.index_add(0, p, x), (ONE, I(0)), (ONE, I(1)), (ONE, I(-1)))
case(
    "index copy to one",
    lambda x, p: x.index_copy(0, p, x),
    (ONE, I([0])),
    (ONE, I([1])),
    (ONE, I([-1])),
)
case(
    "index fill of one",
    lambda x, p: x.index_fill(0, p, 2.0),
    (ONE, I(0)),
    (ONE, I(1)),
    (ONE, I(-2)),
)
case("scatter to one", lambda x, p: x.scatter(0, p, 2.0), (ONE, I(0)), (ONE, I(1)), (ONE, I(-1)))
case(
    "scatter add to one",
    lambda x, p: x.scatter_add(0, p, x),
    (ONE, I(0)),
    (ONE, I(1)),
    (ONE, I(-1)),
)
case(
    "index put into one",
    lambda x, p: x.index_put((p,), I(2.0)),
    (ONE[None], I(0)),
    (ONE[None], I(1)),
    (ONE[None], I(-2)),
)
case("cross entropy of one class", F.cross_entropy, (X[:, :1], T * 0), (X[:, :1], T))
case("one hot of one", lambda p: F.one_hot(p, 1), I(0), I(1), I(-1))
case("assertion of one", lambda x: x // x, I(1), I(0))

# -- random numbers ---------------------------------------------------------------------------

case("bernoulli", torch.bernoulli, X, X + 0.5, X - 0.5, X * torch.nan)
case("bernoulli in place", lambda x: torch.empty(4).bernoulli_(x[0]), X, X + 0.9, X - 0.5)
case(
    "multinomial",
    lambda x: torch.multinomial(x, 2),
    X,
    X - 0.5,
    X * 0,
    X * torch.nan,
    X * torch.inf,
)
case("multinomial with replacement", lambda x: torch.multinomial(x, 2, True), X, X - 0.5, X * 0)
case("poisson", torch.poisson, X, -X)
case("normal", lambda x: torch.normal(x, x), X, -X)
case("normal of a spread", lambda x: torch.normal(0.0, x), X, -X)
case(
    "binomial",
    torch.binomial,
    (X * 10 // 1, X),
    (-X * 10 // 1, X),
    (X * 10 // 1, X * 2),
)
case("gamma", torch._standard_gamma, X, -X)
case("dirichlet", torch._sample_dirichlet, X, -X)
case("categorical", lambda x: torch.distributions.Categorical(x).log_prob(I(0)), X, X * 0 - 1)

# -- numbers ----------------------------------------------------------------------------------

N = I([[1, 2], [3, 4]])
for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
    case(
        f"quotient of {dtype}",
        lambda x, y: x // y,
        (N.to(dtype), N.to(dtype)),
        (N.to(dtype), P.to(dtype)),
    )
    case(
        f"remainder of {dtype}",
        lambda x, y: x % y,
        (N.to(dtype), N.to(dtype)),
        (N.to(dtype), P.to(dtype)),
    )
case("fmod", torch.fmod, (N, N), (N, P))
case("quotient to zero", lambda x, y: torch.div(x, y, rounding_mode="trunc"), (N, N), (N, P))
case("quotient of a number", lambda y: 7 // y, N, P)
case("remainder of a number", lambda y: 7 % y, N, P)
case("quotient in place", lambda x, y: x.clone().floor_divide_(y), (N, N), (N, P))
case("power", lambda x, y: x**y, (N, N), (N, -N))
case("power of a number", lambda y: 2**y, N, -N)
case("one to a power", lambda y: torch.pow(1, y), N, -N)
case("shift", lambda x, y: x << y, (N, N), (N, -N), (N, N * 100))
case("ldexp", torch.ldexp, (N.float(), N), (N.float(), -N))
case("histogram", lambda x: torch.histc(x, 4), X, X * torch.nan, X * torch.inf)
case("histogram of bins", torch.histogram, (X, X[0]), (X, X[0].flip(0)))
case("a size", lambda n: torch.zeros(n.item()), I(3), I(-1))
case("arange", lambda n: torch.arange(0, n.item()), I(3), I(-1))
case("async assertion", lambda x: (torch._assert_async((x > 0).all()), x + 1), X, -X)
case("a quantile", torch.quantile, (X, I([0.5])), (X, I([1.5])), (X, I([-0.5])))
case(
    "fake quantize",
    lambda x, s, z: torch.fake_quantize_per_channel_affine(x, s, z, 0, 0, 255),
    (X, X[:, 0] + 1, T.int()),
    (X, X[:, 0] + 1, T.int() + 300),
)

# -- matrices ---------------------------------------------------------------------------------

SQUARE = torch.eye(3) * 2 + rows(3, 3)
SPD = SQUARE @ SQUARE.T
case("cholesky", torch.linalg.cholesky, SPD, -SPD, SPD * torch.nan)
case("inverse", torch.linalg.inv, SQUARE, SQUARE * 0)
case("inverses", torch.linalg.inv, torch.stack((SQUARE, SPD)), torch.stack((SQUARE, SPD * 0)))
case("solution", torch.linalg.solve, (SQUARE, SPD), (SQUARE * 0, SPD))
case("factors", torch.linalg.lu_factor, SQUARE, SQUARE * 0)
case("eigenvalues of a symmetric", torch.linalg.eigvalsh, SPD, SPD * torch.nan, SPD * torch.inf)
case("singular values", torch.linalg.svdvals, SQUARE, SQUARE * torch.nan)
case(
    "least squares",
    lambda a, b: torch.linalg.lstsq(a, b)[0],
    (SQUARE, SPD),
    (SQUARE * torch.nan, SPD),
)
case("ldl", torch.linalg.ldl_factor, SPD, SPD * 0)
case("determinant", torch.linalg.slogdet, SQUARE, SQUARE * 0)
case("rank", torch.linalg.matrix_rank, SQUARE, SQUARE * torch.nan)
case("pseudo inverse", torch.linalg.pinv, SQUARE, SQUARE * torch.nan)
case("condition", torch.linalg.cond, SQUARE, SQUARE * 0)
case("power of a matrix", lambda x: torch.linalg.matrix_power(x, -1), SQUARE, SQUARE * 0)
case(
    "lu unpacked",
    torch.lu_unpack,
    (SQUARE, I([1, 2, 3]).int()),
    (SQUARE, I([1, 2, 4]).int()),
    (SQUARE, I([0, 2, 3]).int()),
)
case(
    "lu solved",
    torch.linalg.lu_solve,
    (SQUARE, I([1, 2, 3]).int(), SPD),
    (SQUARE, I([0, 2, 3]).int(), SPD),
)


def made_within(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes what it is given anew: the values are not those of arguments."""

    def made(*tensors: torch.Tensor) -> Any:
        return function(*(torch.where(x == x, x * 1, x) for x in tensors))

    return made


def trained(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes gradients of what it is given, where there are any."""

    def gradients(*tensors: torch.Tensor) -> Any:
        leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in tensors]
        found = function(*leaves)
        first = found[0] if isinstance(found, (tuple, list)) else found
        if first.requires_grad:
            first.sum().backward()
        return found, [leaf.grad for leaf in leaves]

    return gradients


def raised(function: Callable[..., Any], tensors: Tensors) -> type[Exception] | None:
    """Return the class of error that a call ends with, or None."""
    torch.manual_seed(3)
    try:
        function(*(x.clone() for x in tensors))
    except Exception as problem:
        return type(problem)
    return None


WAYS: dict[str, Callable[..., Any]] = {
    "given": lambda function: function,
    "within": made_within,
    "trained": lambda function: function,
}


@pytest.mark.sample(5)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_values_that_eager_refuses(name: str, way: str, dynamic: bool | None) -> None:
    function, good, bad = CASES[name]
    function = WAYS[way](function)
    called = trained if way == "trained" else lambda each: each
    torch._dynamo.reset()
    compiled = called(fusec.compile(function, dynamic=dynamic))
    for tensors in (good, bad, good):
        wanted = raised(called(function), tensors)
        found = raised(compiled, tensors)
        alike = found is wanted if None in (found, wanted) else issubclass(found, wanted)
        assert alike, f"{found} in place of {wanted}"
