"""Triton's interpreter, made safe to use beside real Triton, and right where it is wrong.

Triton decides between compiling and interpreting when a function is decorated, by an environment
variable for the whole process, and while it interprets it replaces parts of ``triton.language``
itself.  Here a loaded kernel file is switched over function by function (``interpret_functions``)
and a run happens inside ``interpreting()``, which puts everything back afterwards: a process may
compile one kernel and interpret the next.

Corrected inside it, for Triton 3.6: bfloat16 conversions (the interpreter rounds 1.999 to 1.0),
bfloat16 arithmetic (it adds and multiplies the bit patterns), ``fmin``/``fmax`` (NaN), ``fma``
(rounded twice), libdevice functions (missing altogether), reductions and scans with a combine
function of one's own (a Python loop over every element), sums of scans (rounded one after the
other), assertions (never checked).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fusec.ir.scalars import SCALARS
from fusec.targets.triton.text.helpers import HELPERS
from fusec.targets.triton.toolchain.interpreted_types import (
    convert_float,
    numpy_types,
    patch_builder,
)

_lock = threading.RLock()
_standard: dict[str, Any] = {}


def interpret_functions(namespace: dict[str, Any]) -> None:
    """Replace the ``@triton.jit`` functions of a module by interpreted ones."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    for name, value in list(namespace.items()):
        if isinstance(value, JITFunction):
            namespace[name] = InterpretedFunction(value.fn)


def compiling() -> threading.RLock:
    """Return what to hold while Triton compiles: no kernel is interpreted meanwhile."""
    return _lock


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """Let interpreted kernels run within the block, one thread at a time."""
    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime import interpreter

    with _lock:
        owners: list[Any] = [tl, tl.core, tl.math, tl.standard, tl.core.tensor, tl.core.dtype]
        owners += [tl.core.tensor_descriptor_base, libdevice, interpreter]
        owners += [interpreter.InterpreterBuilder, interpreter.ReduceOps, interpreter.ScanOps]
        saved = [(owner, dict(vars(owner))) for owner in owners]
        options = interpreter.interpreter_builder.options
        try:
            _patch(interpreter, tl, libdevice)
            with np.errstate(all="ignore"):
                yield
        finally:
            interpreter.interpreter_builder.options = options
            for owner, before in saved:
                _restore(owner, before, keep_new=owner in (tl.standard, interpreter))


def _restore(owner: Any, before: dict[str, Any], keep_new: bool) -> None:
    for name, value in list(vars(owner).items()):
        if name not in before:
            # the interpreter puts its own names into the globals of what it has rewritten
            if not keep_new:
                delattr(owner, name)
        elif value is not before[name]:
            setattr(owner, name, before[name])


class _Nothing:
    """Stands for the interpreter's record of what it patched: all is patched already."""

    def restore(self) -> None:
        """Do nothing."""


def _patch(interpreter: Any, tl: Any, libdevice: Any) -> None:
    _interpret_standard_library(interpreter, tl)

    def both() -> None:
        """Stand in for a kernel whose globals hold both language modules."""

    both_globals = {"tl": tl, "core": tl.core}
    stand_in = types.FunctionType(both.__code__, both_globals, "both")
    interpreter._patch_lang(stand_in)
    # a loop's bounds: numpy no longer takes an array of one element for a number
    tl.core.tensor.__index__ = lambda self: int(self.handle.data.item())
    # once is enough: it takes milliseconds, and happens at every call of a helper function
    interpreter._patch_lang = lambda fn: _Nothing()
    interpreter.interpreter_builder.options = replace(
        interpreter.interpreter_builder.options, debug=True, sanitize_overflow=False
    )
    interpreter._get_np_dtype = numpy_types(interpreter, tl)
    original = interpreter._convert_float
    interpreter._convert_float = lambda *args: convert_float(tl, original, *args)
    patch_builder(interpreter, tl)
    slow = interpreter.ReduceOps.generic_reduce
    interpreter.ReduceOps.generic_reduce = lambda self, args: _reduce(self, args, slow)
    scans = interpreter.ScanOps
    scans.generic_scan = _scan
    scans.cumsum = scans.cumprod = lambda self, arg: _scan(self, [arg])
    # by comparison with the standard combine functions; numpy's own would drop NaN
    for name, function in _LIBDEVICE.items():
        setattr(libdevice, name, _device_function(interpreter, tl, function))


def _interpret_standard_library(interpreter: Any, tl: Any) -> None:
    """Make ``tl.sum`` and its like callable: they were decorated when Triton was imported."""
    from triton.runtime.jit import JITFunction

    for name, value in list(vars(tl.standard).items()):
        if not isinstance(value, JITFunction):
            continue
        if name not in _standard:
            _standard[name] = interpreter.InterpretedFunction(value.fn)
        function = _standard[name]
        setattr(tl.standard, name, function)
        if vars(tl).get(name) is value:
            setattr(tl, name, function)
        if vars(tl.core.tensor).get(name) is value:
            setattr(tl.core.tensor, name, _method(function))


def _method(function: Any) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


# -- numbers ------------------------------------------------------------------------------


def _reduce(self: Any, args: Any, slow: Callable[..., Any]) -> Any:
    """Reduce by halves, all elements at once; the order is that of a tree, as on a GPU."""
    if self.axis is None:
        return slow(self, args)
    arrays = [arg.handle.data for arg in args]
    dtypes = [arg.dtype for arg in args]
    axis = self.axis % arrays[0].ndim
    known = _known_reduction(self.combine_fn.fn)
    if known is not None and args[0].dtype.name != "bf16":
        arrays = known(arrays, axis)
    length = arrays[0].shape[axis]
    if length & (length - 1):
        return slow(self, args)
    while length > 1:
        length //= 2
        first = [
            self.to_tensor(np.take(a, range(length), axis), d)
            for a, d in zip(arrays, dtypes, strict=True)
        ]
        second = [
            self.to_tensor(np.take(a, range(length, 2 * length), axis), d)
            for a, d in zip(arrays, dtypes, strict=True)
        ]
        combined = self.combine_fn(*first, *second)
        results = combined if isinstance(combined, (tuple, list)) else (combined,)
        arrays = [r.handle.data for r in results]
    if not self.keep_dims:
        arrays = [np.squeeze(a, axis) for a in arrays]
    return [
        self.to_tensor(a if a.shape else a.item(), d) for a, d in zip(arrays, dtypes, strict=True)
    ]


def _scan(self: Any, args: Any) -> Any:
    """Scan by doubling, all elements at once; as on a GPU, rounding grows with the logarithm."""
    arrays = [arg.handle.data for arg in args]
    dtypes = [arg.dtype for arg in args]
    axis = self.axis % arrays[0].ndim
    length = arrays[0].shape[axis]
    place = np.arange(length).reshape([-1 if d == axis else 1 for d in range(arrays[0].ndim)])
    reach = 1
    while reach < length:
        before = [
            self.to_tensor(np.roll(a, reach, axis), d) for a, d in zip(arrays, dtypes, strict=True)
        ]
        own = [self.to_tensor(a, d) for a, d in zip(arrays, dtypes, strict=True)]
        combined = self.combine_fn(*before, *own)
        results = combined if isinstance(combined, (tuple, list)) else (combined,)
        arrays = [
            np.where(place < reach, a, r.handle.data) for a, r in zip(arrays, results, strict=True)
        ]
        reach *= 2
    return [self.to_tensor(a, d) for a, d in zip(arrays, dtypes, strict=True)]


@functools.lru_cache(maxsize=256)
def _known_reduction(combine: Any) -> Callable[..., Any] | None:
    """Return numpy's form of a combine function that generated files define, where it is one."""
    known = HELPERS.get(combine.__name__)
    if known is None or known.strip() != inspect.getsource(combine).strip():
        return None
    return {
        "maximum": lambda arrays, axis: [np.max(arrays[0], axis, keepdims=True)],
        "minimum": lambda arrays, axis: [np.min(arrays[0], axis, keepdims=True)],
        # in its own type: numpy would widen narrow integers
        "multiply": lambda arrays, axis: [
            np.prod(arrays[0], axis, keepdims=True, dtype=arrays[0].dtype)
        ],
        "first_largest": lambda arrays, axis: _first(arrays, axis, np.max),
        "first_smallest": lambda arrays, axis: _first(arrays, axis, np.min),
    }.get(combine.__name__)


def _first(arrays: Sequence[Any], axis: int, extreme: Callable[..., Any]) -> list[Any]:
    values, positions = arrays
    best = extreme(values, axis, keepdims=True)
    # NaN is not equal to itself, and here it is the best there is
    same = (values == best) | (~np.equal(values, values) & ~np.equal(best, best))
    last = np.iinfo(positions.dtype).max
    return [best, np.min(np.where(same, positions, last), axis, keepdims=True)]


def _device_function(interpreter: Any, tl: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an elementwise function on interpreted tensors from one on torch's."""

    def run(*args: Any, **_: Any) -> Any:
        tensors = [interpreter.interpreter_semantic.to_tensor(arg) for arg in args]
        dtype = next((t.dtype for t in tensors if t.dtype == tl.float64), tl.float32)
        values = [
            torch.from_numpy(np.array(t.handle.data, dtype=_wide(dtype, tl))) for t in tensors
        ]
        block = any(t.type.is_block() for t in tensors)
        result = function(*values).numpy()
        handle = interpreter.TensorHandle(result, dtype)
        return tl.core.tensor(handle, tl.block_type(dtype, list(result.shape)) if block else dtype)

    return run


def _wide(dtype: Any, tl: Any) -> Any:
    return np.float64 if dtype == tl.float64 else np.float32


# CUDA's functions, as the table of scalar operations has them, and those that helpers call.
_LIBDEVICE: dict[str, Callable[..., torch.Tensor]] = {
    scalar.c_name: scalar.reference for scalar in SCALARS.values() if scalar.c_name
} | {
    "erfinv": torch.erfinv,
    "rsqrt": torch.rsqrt,
    "rint": torch.round,
    "abs": torch.abs,
    "fast_expf": torch.exp,
    "fast_dividef": torch.div,
}


def failed_check(error: BaseException) -> str | None:
    """Return the message of the assertion that stopped an interpreted kernel, or None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AssertionError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return None


def line_of(error: BaseException, path: str) -> int | None:
    """Return the line of ``path`` in which an exception arose, or None."""
    found = None
    cause: BaseException | None = error
    while cause is not None:
        frame = cause.__traceback__
        while frame is not None:
            if inspect.getfile(frame.tb_frame) == path:
                found = frame.tb_lineno
            frame = frame.tb_next
        cause = cause.__cause__ or cause.__context__
    return found
