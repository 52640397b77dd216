"""A captured graph in float64, and how far eager's own roundings may carry its results.

Only casts that somebody wrote round here: eager and kernels both make them.  What else eager
rounds, because it stores every result in the graph's types, a kernel rounds elsewhere or not at
all.  How much that may change is found by doing it: in a run with noise every result that eager
would have to round is changed by about as much, at random (Monte Carlo arithmetic).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from fusec.random import SameNumbers
from fusec.verify.comparison import near_ties

_HALVES = (torch.float16, torch.bfloat16)
_CASTS = frozenset(
    "half bfloat16 float double to type type_as _to_copy convert_element_type".split()
)
# What adds up many products or terms; the order, and so the rounding, is each kernel's own.
_SUMS = frozenset(
    """
    addbmm addmm addmv addr baddbmm batch_norm binary_cross_entropy
    binary_cross_entropy_with_logits bilinear bmm chain_matmul conv1d conv2d conv3d
    conv_transpose1d conv_transpose2d conv_transpose3d convolution cosine_similarity cross_entropy
    cumprod cumsum dot einsum group_norm inner instance_norm kl_div kron l1_loss layer_norm linear
    log_softmax logcumsumexp logsumexp matmul mean mm mse_loss multi_head_attention_forward mv
    nll_loss norm normalize outer prod rms_norm scaled_dot_product_attention smooth_l1_loss softmax
    softmin std std_mean sum tensordot trace var var_mean vector_norm
    """.split()
)
# Types whose every value another type holds.
_WITHIN = {
    torch.float16: (torch.float16, torch.float32, torch.float64),
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float64),
    torch.float32: (torch.float32, torch.float64),
    torch.float64: (torch.float64,),
}
# How much is changed, in units of the last place: of float16 and bfloat16 about what eager's
# rounding changes; of the others more, so that few runs find where comparing hangs on a hair.
_UNITS_HALF = 1.0
_UNITS = 4.0
# Numbers that are added one by one, as a person writes it, are off by as much as the root of how
# many they are says: of the partial sums that long sums have, each is rounded. By how much the
# above is more then, as a part of that root, and of how many numbers at most.
_IN_TURN = 1 / 6
_MOST_TERMS = 1 << 16
# Before a cast, in units of what it gives: functions need not be more exact than that there
# (``exp_for_half``), and where a hair decides is to be found in a few runs.
_UNITS_CAST = 1 / 16


class ExactGraph(fx.Interpreter):
    """A captured graph that runs in float64.

    Args:
        module: The graph, with fake tensors in ``meta["example_value"]``; not changed.
        random: Whether it takes the random numbers that its kernels would.

    Attributes:
        halves: Whether eager has values of float16 or bfloat16 in it.

    Raises:
        RuntimeError: It holds what cannot be copied.
    """

    def __init__(self, module: fx.GraphModule, *, random: bool = False) -> None:
        super().__init__(copy.deepcopy(module).to(torch.float64))
        self.extra_traceback = False
        self.halves = any(
            each.dtype in _HALVES for node in self.graph.nodes for each in _values(node)
        )
        self._random = random
        self._numbers: SameNumbers | None = None
        self._noise: torch.Generator | None = None
        self._by_chance = False
        self._claimed: dict[fx.Node, torch.Tensor] = {}

    def results(
        self,
        inputs: Sequence[Any],
        seed: int | None = None,
        claimed: Sequence[torch.Tensor] = (),
    ) -> Any:
        """Run it; return what it gives.

        Args:
            inputs: Floating-point tensors in float64; changed where the graph updates its inputs.
            seed: Change every result that eager rounds, by chance of this seed; 0 rounds it, but
                to float32 where eager has less, as a kernel does that stores nothing on the way.
            claimed: What a kernel gave for each tensor among the results: with seed 0, which
                element is the greatest or the least is as it says where rounding may decide so.
        """
        self._noise = None if seed is None else torch.Generator().manual_seed(seed)
        self._by_chance = bool(seed)
        self._claimed = near_ties.choices(self.graph, claimed) if seed == 0 else {}
        if not self._random:
            return self.run(*inputs)
        with SameNumbers() as self._numbers:
            return self.run(*inputs)

    def run_node(self, n: fx.Node) -> Any:
        """Run one operator in float64, round where it is a cast, add noise where asked."""
        values = _values(n)
        if self._numbers is not None:
            self._numbers.stands_for = values[0].dtype if values else None
        if n.op not in ("call_function", "call_method", "call_module") or not values:
            return super().run_node(n)
        args, kwargs = _mapped(_raised, self.fetch_args_kwargs_from_env(n))
        name = _name(n)
        target = n.target
        if n.op == "call_method" and name in ("half", "bfloat16", "float"):
            target = "double"
        given = _tensors((args, kwargs))
        if self._by_chance and name in _SUMS and values[0].dtype.is_floating_point:
            args, kwargs = self._terms(n, values[0].dtype, args, kwargs)
        result = getattr(self, n.op)(target, args, kwargs)
        if n in self._claimed:
            result = near_ties.decided(n, result, args, kwargs, self._claimed[n])
        found = _tensors(result)
        if len(found) != len(values):
            return result
        if name in _CASTS:
            return self._cast(n, result, values[0].dtype)
        if self._noise is None:
            return result
        if isinstance(result, torch.Tensor):
            times = _times_in_turn(n) if name in _SUMS else 1.0
            return self._noisy(result, values[0].dtype, given, times, in_place=_in_place(name))
        if type(result) not in (tuple, list):
            return result
        kept = iter([self._noisy(t, v.dtype, given) for t, v in zip(found, values, strict=True)])
        return type(result)(next(kept) if isinstance(t, torch.Tensor) else t for t in result)

    def _noisy(
        self,
        value: torch.Tensor,
        dtype: torch.dtype,
        given: Sequence[torch.Tensor],
        times: float = 1.0,
        *,
        in_place: bool = False,
    ) -> torch.Tensor:
        """Change a result where eager rounds it to ``dtype``; a view is what it is a view of."""
        if dtype not in _WITHIN or value.dtype != torch.float64:
            return value
        memory = value.untyped_storage().data_ptr()
        shared = any(memory == t.untyped_storage().data_ptr() for t in given)
        if shared and not in_place:
            return value
        units = _UNITS_HALF if dtype in _HALVES else _UNITS * times
        changed = self._changed(value, dtype, units * torch.finfo(dtype).eps)
        if not shared:
            return changed
        with torch.no_grad():
            return value.copy_(changed)

    def _terms(
        self, node: fx.Node, dtype: torch.dtype, args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Change what is added up, by as much as the order of a sum in float32 does."""
        types = {each.dtype for source in node.all_input_nodes for each in _values(source)}
        epsilon = torch.finfo(_wide(dtype)).eps
        if dtype in _HALVES and torch.float32 in types:
            epsilon = torch.finfo(dtype).eps  # autocast rounds them first
        units = _UNITS * _times_in_turn(node)

        def change(value: object) -> object:
            if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
                return value
            return value + self._drawn(value) * value.abs() * units * epsilon

        changed: tuple[Any, dict[str, Any]] = _mapped(change, (args, kwargs))
        return changed

    def _cast(self, node: fx.Node, result: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return what a cast gives: rounded to a type that holds less; a copy if eager's is one."""
        sources = [each for source in node.all_input_nodes[:1] for each in _values(source)]
        if not dtype.is_floating_point or not sources or sources[0].dtype == dtype:
            return result
        if dtype in _WITHIN.get(sources[0].dtype, ()):
            return result.clone()
        if self._noise is not None and sources[0].dtype in _WITHIN:
            size = _UNITS_CAST * torch.finfo(dtype).eps
            result = self._changed(result, sources[0].dtype, size)
        return result.to(dtype).to(torch.float64)

    def _changed(self, value: torch.Tensor, dtype: torch.dtype, size: float) -> torch.Tensor:
        """Return values changed by up to ``size`` of each, where ``dtype`` does not hold them."""
        if not self._by_chance:
            return value.to(_wide(dtype)).double()
        info = torch.finfo(dtype)
        rounded = value.to(dtype).double() != value
        most = value.abs() * size + info.tiny * info.eps
        return value + torch.where(rounded, self._drawn(value) * most, 0.0)

    def _drawn(self, value: torch.Tensor) -> torch.Tensor:
        """Return numbers between -1 and 1."""
        drawn = torch.rand(value.shape, generator=self._noise, dtype=torch.float64)
        return drawn.to(value.device) * 2 - 1


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type that is computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _times_in_turn(node: fx.Node) -> float:
    """Return how many times as far off a sum is whose terms are added one by one; 1 for few."""
    given = [v.numel() for source in node.all_input_nodes for v in _values(source)]
    made = max(1, _values(node)[0].numel())
    terms = min(max(given, default=0) // made, _MOST_TERMS)
    return max(1.0, math.sqrt(terms) * _IN_TURN)


def _name(node: fx.Node) -> str:
    """Return an operator's name without its module and overload."""
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._opname
    return str(getattr(node.target, "__name__", ""))


def _in_place(name: str) -> bool:
    augmented = name.startswith("i") and name[1:] in ("add", "sub", "mul", "truediv", "pow")
    return augmented or (name.endswith("_") and not name.endswith("__"))


def _values(node: fx.Node) -> list[torch.Tensor]:
    """Return the fake tensors that stand for what a node gives."""
    return _tensors(node.meta.get("example_value"))


def _tensors(value: object) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    _mapped(lambda t: found.append(t) if isinstance(t, torch.Tensor) else None, value)
    return found


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to everything in nested lists, tuples, dictionaries and slices."""
    return map_aggregate(value, function)


def _raised(value: object) -> object:
    floating = isinstance(value, torch.dtype) and value.is_floating_point
    return torch.float64 if floating else value


__all__ = ["ExactGraph"]
