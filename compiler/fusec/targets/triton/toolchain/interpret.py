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
    interpreter._get_np_dtype = _numpy_types(interpreter, tl)
    original = interpreter._convert_float
    interpreter._convert_float = lambda *args: convert_float(tl, original, *args)
    _patch_builder(interpreter, tl)
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


def _torch_type(tl: Any, dtype: Any) -> torch.dtype | None:
    return {
        tl.bfloat16: torch.bfloat16,
        tl.float16: torch.float16,
        tl.float32: torch.float32,
        tl.float64: torch.float64,
        tl.float8e5: torch.float8_e5m2,
        tl.float8e4nv: torch.float8_e4m3fn,
    }.get(dtype)


def _numpy_types(interpreter: Any, tl: Any) -> Callable[[Any], Any]:
    """Return the interpreter's table of types, without building it anew at every operation."""
    build = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def numpy_type(dtype: Any) -> Any:
        if isinstance(dtype, tl.block_type):
            dtype = dtype.element_ty
        name = dtype.name
        if name not in known:
            known[name] = build(dtype)
        return known[name]

    return numpy_type


_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32)} | {
    8: (torch.int64, np.int64)
}


def convert_float(
    tl: Any, original: Any, data: Any, source: Any, target: Any, rounding: Any
) -> Any:
    """Convert between floating-point types, rounding to nearest even, as bit patterns."""
    from triton._C.libtriton import ir

    wanted, given = _torch_type(tl, target), _torch_type(tl, source)
    if wanted is None or given is None or rounding == ir.ROUNDING_MODE.RTZ:
        return original(data, source, target, rounding)
    bits = np.ascontiguousarray(data).view(_BITS[given.itemsize][1]).copy()
    converted = torch.from_numpy(bits).view(given).to(wanted)
    unsigned = np.dtype(f"uint{wanted.itemsize * 8}")
    return converted.view(_BITS[wanted.itemsize][0]).numpy().view(unsigned).reshape(data.shape)


class _Bfloat16:
    """Numbers that the interpreter keeps as bits, to and from float32.

    Args:
        interpreter: Triton's module.
        tl: Triton's language.
    """

    def __init__(self, interpreter: Any, tl: Any) -> None:
        self.tl, self.handle = tl, interpreter.TensorHandle

    def is_kind_of(self, value: Any) -> bool:
        """Whether a value is of bfloat16."""
        return bool(value.dtype.scalar == self.tl.bfloat16)

    def widen(self, value: Any) -> Any:
        """Return a value's numbers in float32."""
        bits = np.ascontiguousarray(value.data).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32).reshape(value.data.shape)

    def narrow(self, data: Any) -> Any:
        """Return numbers as a value of bfloat16, rounded."""
        tl = self.tl
        bits = convert_float(tl, None, data.astype(np.float32), tl.float32, tl.bfloat16, None)
        return self.handle(bits, tl.bfloat16)


def _patch_builder(interpreter: Any, tl: Any) -> None:
    builder, numbers = interpreter.InterpreterBuilder, _Bfloat16(interpreter, tl)
    _patch_arithmetic(interpreter, builder, numbers)
    _patch_atomics(builder, numbers)
    _patch_products(builder, numbers)
    handle = numbers.handle

    def erf(self: Any, value: Any) -> Any:
        return handle(torch.erf(torch.from_numpy(np.array(value.data))).numpy(), value.dtype.scalar)

    def all_ones(self: Any, dtype: Any) -> Any:
        bits = interpreter._get_np_dtype(dtype)
        return handle(np.invert(np.zeros(1, dtype=bits)), dtype.scalar)

    spread = builder.create_splat

    def splat(self: Any, wanted: Any, value: Any) -> Any:
        # the outcome of comparing two numbers is called by their type
        if value.data.dtype == bool:
            value = handle(value.data, tl.int1)
        return spread(self, wanted, value)

    builder.create_splat = splat
    builder.get_all_ones_value = all_ones
    builder.create_erf = erf
    builder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, np.fmax)
    builder.create_minnumf = lambda self, a, b: self.binary_op(a, b, np.fmin)


def _patch_arithmetic(interpreter: Any, builder: Any, numbers: _Bfloat16) -> None:
    tl, handle = numbers.tl, numbers.handle
    binary, unary, cast = builder.binary_op, builder.unary_op, builder.cast_impl

    def cast_impl(self: Any, value: Any, target: Any) -> Any:
        wanted = target.scalar
        if wanted == tl.bfloat16 and not numbers.is_kind_of(value):
            return numbers.narrow(value.data)
        if numbers.is_kind_of(value) and wanted != tl.bfloat16:
            data = numbers.widen(value).astype(interpreter._get_np_dtype(target))
            return handle(data, wanted)
        return cast(self, value, target)

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if not numbers.is_kind_of(left):
            return binary(self, left, right, op)
        result = op(numbers.widen(left), numbers.widen(right))
        return handle(result, tl.int1) if result.dtype == bool else numbers.narrow(result)

    def unary_op(self: Any, value: Any, op: Any) -> Any:
        if not numbers.is_kind_of(value):
            return unary(self, value, op)
        return numbers.narrow(op(numbers.widen(value)))

    builder.cast_impl = cast_impl
    builder.binary_op = binary_op
    builder.unary_op = unary_op


def _patch_atomics(builder: Any, numbers: _Bfloat16) -> None:
    tl, handle, atomic = numbers.tl, numbers.handle, builder.create_atomic_rmw

    def atomic_rmw(self: Any, kind: Any, pointer: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if value.dtype.scalar not in (tl.float16, tl.bfloat16):
            return atomic(self, kind, pointer, value, mask, *rest)
        old = np.zeros_like(value.data)
        with np.nditer(pointer.data, flags=["multi_index"]) as places:
            for _ in places:
                at = places.multi_index
                if not mask.data[at]:
                    continue
                one = handle(pointer.data[at].reshape(1), pointer.dtype)
                there = handle(np.ones(1, dtype=bool), tl.int1)
                before = self.create_masked_load(one, there, None, None, None, False)
                more = handle(value.data[at].reshape(1), value.dtype.scalar)
                total = self.binary_op(handle(before.data, value.dtype.scalar), more, np.add)
                self.create_masked_store(one, total, there, None, None)
                old[at] = before.data[0]
        return handle(old, value.dtype.scalar)

    builder.create_atomic_rmw = atomic_rmw


def _patch_products(builder: Any, numbers: _Bfloat16) -> None:
    tl, handle = numbers.tl, numbers.handle
    product, multiply_add = builder.create_dot, builder.create_fma

    def dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        if numbers.is_kind_of(left):
            left, right = (handle(numbers.widen(value), tl.float32) for value in (left, right))
        return product(self, left, right, *rest)

    def fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if numbers.is_kind_of(z):
            a, b, c = (numbers.widen(value).astype(np.float64) for value in (x, y, z))
            return numbers.narrow(a * b + c)
        if z.dtype.scalar not in (tl.float16, tl.float32):
            return multiply_add(self, x, y, z)
        # the product of two float32 is exact in float64
        wide = x.data.astype(np.float64) * y.data + z.data
        return handle(wide.astype(z.data.dtype), z.dtype.scalar)

    builder.create_dot = dot
    builder.create_fma = fma


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
