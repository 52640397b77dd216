"""What becomes of torch's random operators: a rule each, in terms of the graph's own numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common import is_contiguous_or_false, is_non_overlapping_and_dense_or_false
from torch.utils._python_dispatch import TorchDispatchMode

from fusec.devices import CPU, GPU
from fusec.random.numbers import MANTISSA, random_seed

aten = torch.ops.aten
Rule = Callable[..., Any]
RULES: dict[object, Rule] = {}


class Source:
    """Where the rules below take random tensors from: new streams of one seed a device.

    Args:
        seed: Returns the seed of a device.
        call: Calls an operator: at once, or as a node of a graph.
    """

    def __init__(self, seed: Callable[[torch.device], Any], call: Callable[..., Any]) -> None:
        self.seed = seed
        self.call = call
        self.streams = 0

    def draw(self, like: torch.Tensor, kind: str, dtype: torch.dtype, *limits: int) -> Any:
        """Return random numbers in the shape of ``like``, on its device.

        Args:
            like: A dense tensor, of which only shape, strides and device matter.
            kind: ``uniform``, ``normal`` or ``integers``.
            dtype: Of the numbers.
            limits: Of integers, low and high.
        """
        stream, self.streams = self.streams, self.streams + 1
        operator = getattr(torch.ops.fusec, kind).default
        order = _order(like)
        size = [like.shape[n] for n in order]
        drawn = self.call(operator, self.seed(like.device), stream, *limits, size, dtype)
        if order == sorted(order):
            return drawn
        return self.call(aten.permute.default, drawn, [order.index(n) for n in range(like.ndim)])


def _order(like: torch.Tensor) -> list[int]:
    """Return a dense tensor's dimensions from the outermost in memory to the innermost."""
    order = list(range(like.ndim))
    if not is_contiguous_or_false(like) and is_non_overlapping_and_dense_or_false(like):
        order.sort(key=lambda n: (like.stride(n), like.shape[n]), reverse=True)
    return order


def _rule(*targets: object) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, rule))
        return rule

    return register


def _real(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which numbers are drawn that decide, or are computed with."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _cast(source: Source, value: Any, dtype: torch.dtype) -> Any:
    return source.call(torch.ops.prims.convert_element_type.default, value, dtype)


@_rule(aten.rand.default, aten.rand_like.default)
def _rand(source: Source, result: torch.Tensor, *_: Any) -> Any:
    return source.draw(result, "uniform", result.dtype)


@_rule(aten.randn.default, aten.randn_like.default)
def _randn(source: Source, result: torch.Tensor, *_: Any) -> Any:
    return source.draw(result, "normal", result.dtype)


_LIMITS = ((aten.ge.Scalar, 0), (aten.le.Scalar, 1))
_NO_PROBABILITY = "Expected p_in >= 0 && p_in <= 1 to be true, but got false."


@_rule(aten.bernoulli.default)
def _bernoulli(source: Source, result: torch.Tensor, probability: Any) -> Any:
    if result.device.type == CPU:  # on a GPU eager's own assertion ends every later call
        above, below = (source.call(f, probability, n) for f, n in _LIMITS)
        known = source.call(aten.all.default, source.call(aten.logical_and.default, above, below))
        source.call(aten._assert_async.msg, known, _NO_PROBABILITY)
    numbers = source.draw(result, "uniform", _real(result.dtype))
    return _cast(source, source.call(aten.lt.Tensor, numbers, probability), result.dtype)


@_rule(aten.bernoulli.p)
def _bernoulli_p(source: Source, result: torch.Tensor, x: Any, probability: float = 0.5) -> Any:
    if not 0 <= probability <= 1:
        return NotImplemented  # ATen raises
    numbers = source.draw(result, "uniform", torch.float32)
    return _cast(source, source.call(aten.lt.Scalar, numbers, probability), result.dtype)


@_rule(aten.bernoulli.Tensor)
def _bernoulli_tensor(source: Source, result: torch.Tensor, x: Any, probability: Any) -> Any:
    return _bernoulli(source, result, probability)


@_rule(aten.native_dropout.default)
def _dropout(
    source: Source, result: torch.Tensor, x: Any, probability: float, train: bool | None = True
) -> Any:
    if train is False or not 0 <= probability <= 1:
        return NotImplemented
    numbers = source.draw(result, "uniform", torch.float32)
    # as ``bernoulli`` of 1 - p has it, which is how eager writes dropout where it can
    kept = source.call(aten.lt.Scalar, numbers, 1.0 - probability)
    masked = source.call(aten.mul.Tensor, x, kept)
    scale = 1.0 / (1.0 - probability) if probability < 1 else 0.0
    return source.call(aten.mul.Tensor, masked, scale), kept


@_rule(aten.rrelu_with_noise_functional.default)
def _rrelu(
    source: Source,
    result: torch.Tensor,
    x: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: object = None,
) -> Any:
    """Return the result and its slopes: a number for every element, whatever its sign.

    ATen draws for those below zero alone, one after the other: a sign that is rounded away would
    give all later elements other slopes.
    """
    if not training or generator is not None or not 0 <= upper - lower < math.inf:
        return NotImplemented  # nothing is drawn, or ATen raises
    numbers = source.draw(result, "uniform", _real(result.dtype))
    drawn = source.call(aten.mul.Tensor, numbers, upper - lower)
    drawn = source.call(aten.add.Tensor, drawn, lower)
    falling = source.call(aten.le.Scalar, x, 0)
    rising = source.call(aten.logical_not.default, falling)  # NaN is not below zero
    slopes = source.call(aten.masked_fill.Scalar, drawn, rising, 1)
    # float64 where eager stands for a graph in another type
    dtype = x.dtype if isinstance(x, torch.Tensor) else result.dtype
    sloped = _cast(source, source.call(aten.mul.Tensor, x, slopes), dtype)
    if not is_contiguous_or_false(result):  # ATen's result lies in order, its slopes as x does
        sloped = source.call(aten.clone.default, sloped, memory_format=torch.contiguous_format)
    return sloped, _cast(source, slopes, dtype)


@_rule(aten.uniform.default)
def _uniform(source: Source, result: torch.Tensor, x: Any, low: float = 0, high: float = 1) -> Any:
    if not low <= high or result.device.type == CPU:
        return NotImplemented  # ATen raises; initial weights are eager's
    numbers = source.draw(result, "uniform", _real(result.dtype))
    scaled = source.call(aten.mul.Tensor, numbers, high - low)
    return _cast(source, source.call(aten.add.Tensor, scaled, low), result.dtype)


@_rule(aten.normal_functional.default)
def _normal(source: Source, result: torch.Tensor, x: Any, mean: float = 0, std: float = 1) -> Any:
    numbers = source.draw(result, "normal", _real(result.dtype))
    scaled = source.call(aten.mul.Tensor, numbers, std)
    return _cast(source, source.call(aten.add.Tensor, scaled, mean), result.dtype)


@_rule(aten.log_normal.default)
def _log_normal(
    source: Source, result: torch.Tensor, x: Any, mean: float = 1, std: float = 2
) -> Any:
    numbers = source.draw(result, "normal", _real(result.dtype))
    scaled = source.call(aten.add.Tensor, source.call(aten.mul.Tensor, numbers, std), mean)
    return _cast(source, source.call(aten.exp.default, scaled), result.dtype)


def _negative_logarithm(source: Source, result: torch.Tensor) -> Any:
    """Return -log(1 - u), which is finite: u stays below 1."""
    numbers = source.draw(result, "uniform", _real(result.dtype))
    negative = source.call(aten.neg.default, numbers)
    return source.call(aten.neg.default, source.call(aten.log1p.default, negative))


@_rule(aten.exponential.default)
def _exponential(source: Source, result: torch.Tensor, x: Any, rate: float = 1) -> Any:
    times = source.call(aten.mul.Tensor, _negative_logarithm(source, result), 1.0 / rate)
    return _cast(source, times, result.dtype)


@_rule(aten.geometric.default)
def _geometric(source: Source, result: torch.Tensor, x: Any, probability: float) -> Any:
    scale = -1.0 / math.log1p(-probability) if probability < 1 else 0.0
    trials = source.call(aten.mul.Tensor, _negative_logarithm(source, result), scale)
    whole = source.call(aten.add.Tensor, source.call(aten.floor.default, trials), 1)
    return _cast(source, whole, result.dtype)


@_rule(aten.cauchy.default)
def _cauchy(
    source: Source, result: torch.Tensor, x: Any, median: float = 0, sigma: float = 1
) -> Any:
    numbers = source.draw(result, "uniform", _real(result.dtype))
    angle = source.call(aten.mul.Tensor, source.call(aten.sub.Tensor, numbers, 0.5), math.pi)
    spread = source.call(aten.mul.Tensor, source.call(aten.tan.default, angle), sigma)
    return _cast(source, source.call(aten.add.Tensor, spread, median), result.dtype)


@_rule(aten.randint.default)
def _randint(source: Source, result: torch.Tensor, high: int, *_: Any) -> Any:
    return _integers(source, result, 0, high)


@_rule(aten.randint.low)
def _randint_low(source: Source, result: torch.Tensor, low: int, high: int, *_: Any) -> Any:
    return _integers(source, result, low, high)


@_rule(aten.randint_like.default)
def _randint_like(source: Source, result: torch.Tensor, x: Any, high: int) -> Any:
    return _integers(source, result, 0, high)


@_rule(aten.randint_like.low_dtype)
def _randint_like_low(source: Source, result: torch.Tensor, x: Any, low: int, high: int) -> Any:
    return _integers(source, result, low, high)


def _integers(source: Source, result: torch.Tensor, low: object, high: object) -> Any:
    plain = isinstance(low, int) and isinstance(high, int)
    if not plain or high - low >= 1 << 62 or high - low < 1:  # type: ignore[operator]
        return NotImplemented
    return source.draw(result, "integers", result.dtype, low, high)  # type: ignore[arg-type]


SUPPORTED = frozenset(MANTISSA) | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8}


def may_replace(target: object, result: object, kwargs: Any) -> bool:
    """Whether a call's random numbers may come from here: no generator of its own asks for them.

    Args:
        target: The operator.
        result: Its result, or a tuple of them; fake tensors will do.
        kwargs: Its keyword arguments.
    """
    first = result[0] if isinstance(result, (tuple, list)) else result
    return (
        target in RULES
        and isinstance(first, torch.Tensor)
        and first.layout == torch.strided
        and first.device.type in (CPU, GPU)
        and (first.dtype in SUPPORTED or (first.dtype == torch.bool and "rand" not in str(target)))
        and kwargs.get("generator") is None
    )


class SameNumbers(TorchDispatchMode):
    """Gives eager operators the random numbers that the compiled graph would take.

    It holds for one run of a graph: the numbers of a random tensor depend on its place in it.

    Attributes:
        stands_for: Of an operator that runs in float64 in place of one in another type: that type,
            which decides what numbers there are.  None: operators run in their own types.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stands_for: torch.dtype | None = None
        seeds: dict[torch.device, torch.Tensor] = {}

        def seed(device: torch.device) -> torch.Tensor:
            if device not in seeds:
                seeds[device] = random_seed(device)
            return seeds[device]

        self.source = Source(seed, lambda function, *args, **given: function(*args, **given))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator; a random one by its rule.

        Raises:
            RuntimeError: It stands for another one, and a tensor of float64 would decide: some of
                the decisions would be others than those of rounded probabilities.
        """
        given = kwargs or {}
        in_place = _IN_PLACE.get(func)
        target = in_place or _FILLING.get(func, func)
        if target not in RULES:
            # In inference mode operators come here that autograd takes apart first.
            if torch.is_inference_mode_enabled() and func._can_decompose():
                with self:
                    parts = func.decompose(*args, **given)
                if parts is not NotImplemented:
                    return parts
            return func(*args, **given)
        like = torch.empty_like(args[0]) if in_place else _result_like(func, args, given)
        if not may_replace(target, like, given):
            return func(*args, **given)
        raised = like.dtype == torch.float64 and self.stands_for in MANTISSA
        if raised and target in _DECIDED_BY_TENSORS:
            raise RuntimeError("probabilities in float64 decide otherwise")
        like = like.to(self.stands_for) if raised else like
        numbers = RULES[target](self.source, like, *args)
        if numbers is NotImplemented:
            return func(*args, **given)
        if raised and isinstance(numbers, torch.Tensor):
            numbers = numbers.double()
        if target is aten.rrelu_with_noise_functional.default and func is not target:
            numbers, slopes = numbers
            args[1].copy_(slopes)
        return args[0].copy_(numbers) if in_place else numbers


_DECIDED_BY_TENSORS = (aten.bernoulli.default, aten.bernoulli.Tensor)
_IN_PLACE = {
    aten.bernoulli_.float: aten.bernoulli.p,
    aten.bernoulli_.Tensor: aten.bernoulli.Tensor,
    aten.uniform_.default: aten.uniform.default,
    aten.normal_.default: aten.normal_functional.default,
    aten.log_normal_.default: aten.log_normal.default,
    aten.exponential_.default: aten.exponential.default,
    aten.geometric_.default: aten.geometric.default,
    aten.cauchy_.default: aten.cauchy.default,
    aten.rrelu_with_noise_.default: aten.rrelu_with_noise_functional.default,
}
# What writes the second of its results into an argument.
_FILLING = {aten.rrelu_with_noise.default: aten.rrelu_with_noise_functional.default}


def _result_like(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    """Return a tensor on the right device with the shape and dtype of a call's result."""
    if args and isinstance(args[0], torch.Tensor):
        made = torch.empty_like(args[0], dtype=kwargs.get("dtype"))
    else:
        size = next(a for a in reversed(args) if isinstance(a, (list, tuple)))
        dtype = kwargs.get("dtype")
        if dtype is None:
            integer = "randint" in str(func)
            dtype = torch.int64 if integer else torch.get_default_dtype()
        made = torch.empty(size, dtype=dtype, device=kwargs.get("device"))
    return made


__all__ = ["RULES", "SUPPORTED", "Rule", "SameNumbers", "Source", "may_replace"]
