"""Samples of torch's own operator database, run through a backend and compared with eager."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_map

from support.compare import difference

Backend = Callable[..., Any]

# Their results are not determined by their inputs.
RANDOM_OR_UNINITIALIZED = (
    "empty new_empty rand normal bernoulli multinomial dropout cauchy exponential geometric "
    "log_normal uniform rrelu randn randint as_strided_copy resize_"
).split()


@dataclass(frozen=True)
class Outcome:
    """What happened to one sample.

    Attributes:
        op: The operator's name and variant.
        dtype: The sample's dtype.
        number: Its position among the samples.
        verdict: ``ok``, ``wrong``, ``error``, ``eager_error`` or ``not_compiled``.
        detail: The message.
    """

    op: str
    dtype: torch.dtype
    number: int
    verdict: str
    detail: str = ""


def name_of(op: OpInfo) -> str:
    """Return the operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings about deprecated operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run_samples(op: OpInfo, dtype: torch.dtype, backend: Backend, limit: int) -> Iterator[Outcome]:
    """Run the first ``limit`` samples of an operator through ``backend``."""
    name = name_of(op)
    with quiet():
        try:
            samples = [
                s for s, _ in zip(op.sample_inputs("cpu", dtype), range(limit), strict=False)
            ]
        except Exception as error:
            yield Outcome(name, dtype, 0, "eager_error", f"{type(error).__name__}: {error}")
            return
        for number, sample in enumerate(samples):
            yield _run_sample(op, name, dtype, number, sample, backend)


def _run_sample(
    op: OpInfo, name: str, dtype: torch.dtype, number: int, sample: Any, backend: Backend
) -> Outcome:
    def call(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    def copies() -> tuple[Any, Any, Any]:
        return tree_map(
            lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v,
            (sample.input, tuple(sample.args), dict(sample.kwargs)),
        )

    first, args, kwargs = copies()
    try:
        expected = call(first, *args, **kwargs)
    except Exception as error:
        return Outcome(name, dtype, number, "eager_error", str(error)[:200])
    reached = False

    def noticing(module: Any, inputs: Any, **options: Any) -> Any:
        nonlocal reached
        reached = True
        return backend(module, inputs, **options)

    torch._dynamo.reset()
    first, args, kwargs = copies()
    try:
        actual = torch.compile(call, backend=noticing, dynamic=False)(first, *args, **kwargs)
    except Exception as error:
        return Outcome(name, dtype, number, "error", f"{type(error).__name__}: {error}"[:600])
    problem = difference(actual, expected)
    if problem:
        return Outcome(name, dtype, number, "wrong", problem)
    return Outcome(name, dtype, number, "ok" if reached else "not_compiled")
