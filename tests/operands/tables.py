"""Calls whose operands are drawn: expressions of ``a`` to ``e``, ``dim`` and ``index``."""

from __future__ import annotations

from dataclasses import dataclass

# Operands of any size: ``a`` and ``b`` with ``index`` and a dimension.
_ANY = """
a.index_copy(dim, index, b)
a.index_add(dim, index, b)
a.clone().index_add_(dim, index, b, alpha=2)
a.clone().index_copy_(dim, index, b)
a.index_reduce(dim, index, b, "prod")
a.scatter(dim, index, b)
a.scatter(dim, index, 2.5)
a.scatter(dim, index, b, reduce="multiply")
a.scatter_add(dim, index, b)
a.scatter_reduce(dim, index, b, "amax")
a.clone().scatter_(dim, index, b)
torch.gather(a, dim, index)
a.take(index)
a.put(index, b)
a.index_fill(dim, index, 2.5)
a.index_fill(dim, index, b)
a.index_select(dim, index)
torch.take_along_dim(a, index, dim)
a.masked_fill(index, 1.0)
a.masked_fill(index.bool(), b)
a.masked_scatter(index.bool(), b)
a.masked_select(index)
torch.where(index, a, b)
a[index]
setitem(a.clone(), index, b)
setitem(a.clone(), index.bool(), b)
a.index_put((index,), b)
a.index_put((index,), b, accumulate=True)
F.embedding(index, a)
F.embedding_bag(index, a)
torch.bincount(index)
F.one_hot(index, 5)
F.nll_loss(a, index)
F.cross_entropy(a, index)
torch.searchsorted(a, b)
torch.bucketize(b, a)
torch.isin(a, b)
torch.lerp(a, a, b)
torch.addcmul(a, a, b)
torch.dot(a, b)
torch.mv(a, b)
torch.mm(a, b)
a @ b
torch.outer(a, b)
torch.linalg.cross(a, b)
torch.cat([a, b], dim)
torch.stack([a, b])
F.binary_cross_entropy(a, b)
F.prelu(a, b)
torch.cdist(a, b)
torch.repeat_interleave(a, index, dim)
a.kthvalue(2, dim)[0]
a & b
a << b
torch.polar(a, b)
torch.complex(a, b)
torch.heaviside(a, b)
torch.gcd(a, b)
torch.ldexp(a, b)
torch.dist(a, b)
F.mse_loss(a, b)
a.clone().pow_(b)
a.clone().div_(b)
a.clone().copy_(b)
a.clone().add_(b)
a.add_(b)
a.copy_(b)
torch.hypot(a, b)
torch.bmm(a[None], b[None])
torch.addmm(a, a, b)
F.kl_div(a, b)
F.layer_norm(a, b.shape, b)
F.linear(a, b)
torch.trapezoid(a, b)
a.expand_as(b)
a.view_as(b)
a.unfold(dim, 2, 1)
a.cumsum(dim).movedim(dim, 0)
a.select(dim, 1)
a.narrow(dim, 1, 2)
a.softmax(dim)
a.amax(dim)
a.sort(dim)[0]
a.topk(2, dim)[0]
a.diff(1, dim, b)
torch.tensordot(a, b, 1)
torch.kron(a, b)
torch.broadcast_to(a, b.shape)
a.unflatten(dim, (2, -1))
a.repeat(b.shape)
a.renorm(2, dim, 1.0)
a.logcumsumexp(dim)
torch.cumulative_trapezoid(a, b)
a.index_select(dim, index) + b
a.diagonal_scatter(b)
a.select_scatter(b, dim, 1)
a.slice_scatter(b, dim, 1, 3)
torch.cross(a, b, dim)
"""

# Operands that fit: their sizes stand behind the call, - is a single number.
_FITTING = """
F.layer_norm(a, (3,), b, c) | 4,3 3 3
F.group_norm(a, 2, b, c) | 2,4,3 4 4
F.batch_norm(a, b, c, d, e) | 4,3 3 3 3 3
F.batch_norm(a, b, c, d, e, True) | 4,3 3 3 3 3
F.instance_norm(a, weight=b, bias=c) | 2,3,4 3 3
F.rms_norm(a, (3,), b) | 4,3 3
F.local_response_norm(a, 2) | 2,4,3
F.normalize(a) | 4,3
F.conv1d(a, b, c) | 2,3,8 4,3,3 4
F.conv2d(a, b) | 1,2,5,5 2,2,3,3
F.conv_transpose1d(a, b, c) | 2,3,8 3,4,3 4
F.linear(a, b, c) | 4,3 5,3 5
F.bilinear(a, b, c) | 4,3 4,2 5,3,2
torch.addmm(a, b, c) | 4,5 4,3 3,5
torch.baddbmm(a, b, c) | 1,4,5 1,4,3 1,3,5
torch.bmm(a, b) | 1,4,3 1,3,5
torch.einsum("ij,jk->ik", a, b) | 4,3 3,5
torch.addmv(a, b, c) | 4 4,3 3
torch.addr(a, b, c) | 4,3 4 3
torch.addbmm(a, b, c) | 4,5 2,4,3 2,3,5
torch.tensordot(a, b, 1) | 4,3 3,5
torch.kron(a, b) | 2,2 2,2
torch.vdot(a, b) | 4 4
torch.inner(a, b) | 4 4
torch.linalg.multi_dot([a, b]) | 4,3 3,5
F.scaled_dot_product_attention(a, b, c) | 1,2,3,4 1,2,3,4 1,2,3,4
F.scaled_dot_product_attention(a, b, c, d) | 1,2,3,4 1,2,3,4 1,2,3,4 3,3
F.mse_loss(a, b) | 4,3 4,3
F.l1_loss(a, b) | 4,3 4,3
F.smooth_l1_loss(a, b) | 4,3 4,3
F.huber_loss(a, b) | 4,3 4,3
F.binary_cross_entropy(a / 2, b / 2) | 4,3 4,3
F.binary_cross_entropy(a / 2, b / 2, c) | 4,3 4,3 4,3
F.binary_cross_entropy_with_logits(a, b) | 4,3 4,3
F.binary_cross_entropy_with_logits(a, b, c) | 4,3 4,3 4,3
F.binary_cross_entropy_with_logits(a, b, pos_weight=c) | 4,3 4,3 3
F.kl_div(a, b) | 4,3 4,3
F.soft_margin_loss(a, b) | 4,3 4,3
F.multilabel_soft_margin_loss(a, b) | 4,3 4,3
F.poisson_nll_loss(a, b) | 4,3 4,3
F.hinge_embedding_loss(a, b) | 4,3 4,3
F.nll_loss(a, b) | 4,3 4
F.nll_loss(a, b, c) | 4,3 4 3
F.cross_entropy(a, b) | 4,3 4
F.cross_entropy(a, b, c) | 4,3 4 3
F.cross_entropy(a, b) | 4,3 4,3
F.cross_entropy(a, b, c) | 4,3 4,3 3
F.cross_entropy(a, b, label_smoothing=0.1) | 4,3 4
F.gaussian_nll_loss(a, b, c + 1) | 4,3 4,3 4,3
F.margin_ranking_loss(a, b, c) | 4 4 4
F.triplet_margin_loss(a, b, c) | 4,3 4,3 4,3
F.cosine_embedding_loss(a, b, c) | 4,3 4,3 4
F.cosine_similarity(a, b) | 4,3 4,3
F.pairwise_distance(a, b) | 4,3 4,3
torch.cdist(a, b) | 4,3 5,3
F.multi_margin_loss(a, b) | 4,3 4
F.multilabel_margin_loss(a, b) | 4,3 4,3
F.ctc_loss(a.log_softmax(-1), b, torch.tensor([4]), torch.tensor([2])) | 4,1,3 1,2
F.prelu(a, b) | 4,3 3
F.glu(a) | 4,4
F.embedding(b, a) | 4,3 2
F.embedding_bag(b, a, per_sample_weights=c, mode="sum") | 4,3 2,2 2,2
F.grid_sample(a, b, align_corners=False) | 1,2,4,4 1,3,3,2
F.affine_grid(a, (1, 1, 3, 3), align_corners=False) | 1,2,3
torch.bincount(a, b) | 4 4
torch.histc(a, 3) | 4
torch.lerp(a, b, c) | 4 4 4
torch.addcmul(a, b, c, value=2) | 4 4 4
torch.addcdiv(a, b, c + 1, value=2) | 4 4 4
torch.where(a, b, c) | 4 4 4
torch.clamp(a, b, c) | 4 4 4
torch.clamp_min(a, b) | 4 4
torch.searchsorted(a.sort()[0], b) | 4 4
torch.isin(a, b) | 4 4
torch.linalg.cross(a, b) | 4,3 4,3
torch.linalg.solve(a + 5 * torch.eye(3, dtype=a.dtype), b) | 3,3 3,2
torch.linalg.solve_triangular(a + 5 * torch.eye(3, dtype=a.dtype), b, upper=True) | 3,3 3,2
torch.linalg.cholesky(a @ a.T + 5 * torch.eye(3, dtype=a.dtype)) | 3,3
torch.trapezoid(a, b) | 4 4
torch.cumulative_trapezoid(a, b) | 4 4
torch.polar(a, b) | 4 4
torch.complex(a, b) | 4 4
torch.xlogy(a, b) | 4 4
torch.special.zeta(a + 2, b + 1) | 4 4
torch.atan2(a, b) | 4 4
torch.copysign(a, b) | 4 4
torch.nextafter(a, b) | 4 4
torch.ldexp(a, b) | 4 4
torch.logaddexp(a, b) | 4 4
torch.hypot(a, b) | 4 4
torch.fmod(a, b + 1) | 4 4
torch.remainder(a, b + 1) | 4 4
torch.floor_divide(a, b + 1) | 4 4
torch.bitwise_and(a, b) | 4 4
torch.bitwise_left_shift(a, b) | 4 4
torch.gcd(a, b) | 4 4
torch.lcm(a, b) | 4 4
torch.heaviside(a, b) | 4 4
torch.maximum(a, b) | 4 4
torch.fmax(a, b) | 4 4
torch.igamma(a + 1, b) | 4 4
torch.dist(a, b) | 4 4
a.renorm(2, 0, 1.0) | 4,3
a.quantile(b / 4) | 4 2
a.masked_scatter(b, c) | 4 4 4
a.masked_fill(b, c) | 4 4 -
setitem(a.clone(), b, c) | 4 4 -
setitem(a.clone(), (b, c), d) | 4,3 4 3 -
a.index_put((b,), c) | 4 4 4
torch.std_mean(a)[0] | 4,3
torch.norm(a) | 4,3
torch.nansum(a) | 4,3
torch.diff(a) | 4,3
torch.linalg.vector_norm(a, 3) | 4,3
torch.linalg.matrix_norm(a) | 4,3
torch.prod(a, -1) | 4,3
torch.amax(a, -1) | 4,3
torch.aminmax(a)[0] | 4,3
torch.sort(a, -1)[0] | 4,3
torch.median(a, -1)[0] | 4,3
torch.mode(a, -1)[0] | 4,3
a.softmax(-1) | 4,3
a.log_softmax(-1) | 4,3
a.logsumexp(-1) | 4,3
a.cumsum(-1) | 4,3
a.cumprod(-1) | 4,3
a.cummax(-1)[0] | 4,3
a.logcumsumexp(-1) | 4,3
a.flip(-1) | 4,3
a.mean(-1) | 4,3
a.var(0) | 4,3
a.argmax(-1) | 4,3
F.max_pool1d(a, 2) | 1,2,6
F.avg_pool1d(a, 2) | 1,2,6
F.max_pool2d(a, 2) | 1,2,6,6
F.avg_pool2d(a, 2) | 1,2,6,6
F.adaptive_avg_pool2d(a, 2) | 1,2,6,6
F.adaptive_max_pool2d(a, 2) | 1,2,6,6
F.lp_pool2d(a, 2.0, 2) | 1,2,6,6
F.unfold(a, 2) | 1,2,6,6
F.fold(a, (3, 3), 2) | 1,8,4
F.pixel_shuffle(a, 2) | 1,4,3,3
F.interpolate(a, size=(3, 5), mode="nearest") | 1,2,6,6
F.interpolate(a, size=(3, 5), mode="nearest-exact") | 1,2,6,6
F.interpolate(a, size=(3, 5), mode="bilinear") | 1,2,6,6
F.interpolate(a, size=(3, 5), mode="bicubic") | 1,2,6,6
F.interpolate(a, size=(3, 5), mode="area") | 1,2,6,6
F.pad(a, (1, 1), mode="reflect") | 1,2,6
F.pad(a, (1, 1), mode="replicate") | 1,2,6
F.pad(a, (1, 1), mode="circular") | 1,2,6
F.pad(a, (1, 1)) | 1,2,6
"""
_UNARY = {
    "F.{}(a)": """gelu silu elu selu celu mish softplus hardtanh relu6 hardswish hardsigmoid
        leaky_relu logsigmoid softsign tanhshrink softshrink hardshrink relu sigmoid tanh rrelu""",
    "torch.{}(a)": """exp log sin digamma erfinv lgamma sinc frac trunc round ceil rsqrt
        reciprocal neg sign signbit isnan logit i0 deg2rad angle square sgn bitwise_not
        logical_not positive nan_to_num erfc exp2 log1p asinh real conj_physical isreal""",
}
# Updates, of a tensor made within and of an input: the operand may be larger than what is updated.
_TWO = """
add sub mul div pow float_power remainder fmod floor_divide true_divide atan2 copysign hypot
nextafter ldexp xlogy gcd lcm bitwise_and bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift logical_and logical_or logical_xor eq ne lt le gt ge igamma igammac heaviside
clamp_min clamp_max copy arctan2 multiply divide less greater dist
"""
_DUNDER = "iadd isub imul ipow itruediv ifloordiv imod iand ior ixor ilshift irshift"
_UPDATES = [
    *(f"a{made}.{name}_(b)" for name in _TWO.split() for made in (".clone()", "")),
    *(f"a.clone().__{name}__(b)" for name in _DUNDER.split()),
    *(f"a.clone().{name}_(b, b)" for name in ("addcmul", "addcdiv", "lerp", "clamp")),
    "a.clone().lerp_(b, 0.5)",
    "a.clone().masked_fill_(b.bool(), 1)",
    "a.masked_fill_(b.bool(), 1)",
    "a.clone().add_(b, alpha=2)",
    "a.clone().sub_(b, alpha=2)",
    "a.clone().addmm_(b, b)",
    "a.clone().addr_(b, b)",
    "a.clone().div_(b, rounding_mode='floor')",
]


@dataclass(frozen=True)
class Call:
    """A call whose operands are drawn.

    Attributes:
        text: The expression.
        table: ``any``, ``fitting`` or ``updates``.
        shapes: Sizes of its operands, where they are given.
    """

    text: str
    table: str
    shapes: tuple[tuple[int, ...], ...] = ()


def _fitting(line: str) -> Call:
    text, _, given = line.partition(" | ")
    shapes = tuple(
        () if each == "-" else tuple(int(n) for n in each.split(",")) for each in given.split()
    )
    return Call(text, "fitting", shapes)


CALLS: tuple[Call, ...] = (
    *(Call(line, "any") for line in _ANY.strip().splitlines()),
    *(_fitting(line) for line in _FITTING.strip().splitlines()),
    *(
        Call(form.format(name), "fitting", ((4, 3),))
        for form, names in _UNARY.items()
        for name in names.split()
    ),
    *(Call(text, "updates") for text in _UPDATES),
)
TABLES = ("any", "fitting", "updates")

__all__ = ["CALLS", "TABLES", "Call"]
