"""The heuristics of the graph's own passes, each with its reason. None affects correctness."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fusec.devices import is_gpu
from fusec.graph.facts.half_speed import half_speed
from fusec.machine import current_machine

# Products that take this many times as long as float32's are slow: less may be noise.
_SLOWER = 1.25


def is_amd() -> bool:
    """Whether the processor is AMD's, for which MKL is not made."""
    return current_machine().amd


def has_avx512() -> bool:
    """Whether the processor has vectors of 64 bytes."""
    return current_machine().isa == "avx512"


def multiplies_slowly(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies matrices of a half-precision dtype slower than float32."""
    speed = half_speed(dtype)
    return speed.half >= _SLOWER * speed.single


def pays_to_widen(dtype: torch.dtype, multiplications: int, converted: int) -> bool:
    """Whether a product is faster in float32, its operands' conversion counted.

    Args:
        dtype: Of the product, in half precision.
        multiplications: Of one scalar by another.
        converted: Elements that are there in half precision only.
    """
    speed = half_speed(dtype)
    return multiplications * (speed.half - speed.single) > converted * speed.conversion


# Products of fewer multiplications may become kernels of their own.
_SMALL_PRODUCT = 1 << 20


def stays_a_product(sizes: Sequence[int]) -> bool:
    """Whether a matrix product is certainly left to BLAS, by those of its three sizes it has."""
    return math.prod(sizes) > _SMALL_PRODUCT


# Convolutions of fewer multiplications are a matter of microseconds, whatever the layout.
_SMALL_CONVOLUTION = 1 << 18
# Copies that only turn tensors over may be this share of what convolutions read and write. Each
# element of a row-major tensor is turned over by oneDNN or cuDNN itself, by as much a copy.
TURNED_SHARE = 0.5
# Of cuDNN's, those that tensor cores compute. Float32 is computed in TF32 then, where eager's
# row-major tensors are not: it would be as wrong again by ten times.
_HALVES = (torch.float16, torch.bfloat16)


def innermost_channels_pay(result: torch.Tensor, weight: torch.Tensor, groups: object) -> bool:
    """Whether a convolution and its gradients are faster with the channels innermost.

    By oneDNN in float32, and in bfloat16 where the processor multiplies it (ResNet-50's 57 ms
    instead of 69, their gradients 91 instead of 103); by cuDNN in half precision: on an H200 and in
    bfloat16 the 7 x 7 windows of each channel by itself take 70 us instead of 300, ResNet-50's
    convolutions half of what they take with the reordering.  With no more than SSE4.1 oneDNN takes
    1.5 times as long with them innermost.

    Args:
        result: What the convolution yields, or its gradient.
        weight: Its weight.
        groups: How many groups of channels.  More than one were not measured on a CPU; on a GPU,
            only one channel a group.
    """
    work = result.numel() * weight.numel() // max(weight.shape[0], 1)
    if work < _SMALL_CONVOLUTION:
        return False
    if is_gpu(result.device):
        return result.dtype in _HALVES and (groups == 1 or weight.shape[1] == 1)
    if groups != 1 or result.device.type != "cpu" or current_machine().isa == "sse2":
        return False
    if result.dtype == torch.bfloat16:
        return not multiplies_slowly(result.dtype)
    return result.dtype == torch.float32


def own_windows_pay(dtype: torch.dtype, window: Sequence[int], *, gradient: bool) -> bool:
    """Whether a kernel of our own convolves each channel by itself faster than cuDNN does.

    On an H200, 64 images and windows of 3 and 5 pixels, forward in 0.65 to 1.05 of cuDNN's time,
    the gradient of the image in 0.3 to 0.8.  Of 7 pixels forward takes 1.1 to 1.3 times as long,
    the gradient 0.6.  A first call of cuDNN's takes up to a second besides.

    Args:
        dtype: The image's, whose channels are innermost.
        window: Its sizes.
        gradient: Whether the image's gradient is what is computed.
    """
    return dtype in _HALVES and math.prod(window) <= (49 if gradient else 25)


# Products of half precision on a GPU: TFLOP/s by the power of two that divides the distance of
# rows in memory. Measured on an H200 in BERT and GPT-2, whose vocabularies are 30522 and 50257.
_TERAFLOPS = {1: 95, 2: 145, 4: 350, 8: 650}
_ALIGNED = max(_TERAFLOPS)
_TERABYTES = 3.5  # a second that a copy reads and writes
_START = 5e-6  # seconds of one more kernel


def alignment_pays(multiplications: int, distances: Sequence[int], copied: int) -> bool:
    """Whether a product of half precision is worth padding to rows of 16 bytes.

    Args:
        multiplications: Of one scalar by another.
        distances: From one row to the next in the operands and the result, in elements.
        copied: Bytes that are read and written only for its sake.
    """
    worst = min(math.gcd(distance, _ALIGNED) for distance in distances)
    saved = 2e-12 * multiplications * (1 / _TERAFLOPS[worst] - 1 / _TERAFLOPS[_ALIGNED])
    return saved > 1e-12 * copied / _TERABYTES + 2 * _START


# Multiplications from which a kernel of our own is no matter of a few microseconds.
_LARGE_PRODUCT = 1 << 29


def own_rows_pay(rows: int, inner: int, columns: int) -> bool:
    """Whether a kernel of our own writes odd rows sooner than BLAS writes padded ones, and a copy.

    On an H200, 8192 x 768 x 30522 in 0.65 ms instead of 0.83, 4096 x 768 x 50257 0.56 (0.74), 2048
    x 4096 x 32001 0.74 (0.87), 512 x 768 x 50257 0.08 (0.14), 128 x 4096 x 50257 0.14 (0.32), where
    BLAS alone takes 1.6 to 5.7 ms of the large ones.  And there is no second tensor of that size.
    """
    return rows * inner * columns >= _LARGE_PRODUCT


def aligned(size: int) -> int:
    """Return the next size whose rows of half precision are multiples of 16 bytes."""
    return -(-size // _ALIGNED) * _ALIGNED


# Where MKL multiplies float32 with half-wide instructions, a thread saves this much by oneDNN in
# every multiplication: 4.3 ms become 2.1 at 128 x 768 x 3072 with two threads, 8.1 become 3.9
# with one. A call of oneDNN starts 20 us later; an operand that it needs in rows is copied.
_SAVED_A_MULTIPLICATION = 0.014e-9
_ONEDNN_STARTS = 20e-6
_COPIED_AN_ELEMENT = 0.4e-9
# With fewer rows the time is that of reading the right matrix, which oneDNN reorders first.
_ONEDNN_ROWS = 8
# Where sums are this many times as long as there are rows and columns, and the left matrix is
# copied, reordering both takes longer than what is saved: the product of a matrix of 4096 x 64,
# transposed, with itself took 2.6 times as long by oneDNN.
_LONG_SUMS = 16


def onednn_multiplies_faster(rows: int, inner: int, columns: int, copied: int) -> bool:
    """Whether oneDNN computes a product of float32 matrices faster than MKL.

    Measured on an EPYC of AMD's with AVX-512 only; elsewhere MKL keeps them.

    Args:
        rows: Of the left matrix.
        inner: The left one's columns, the right one's rows.
        columns: Of the right one.
        copied: Elements of the left one that are copied first, since it does not lie in rows.
    """
    if rows < _ONEDNN_ROWS or not is_amd() or not has_avx512():
        return False
    if copied and inner >= _LONG_SUMS * max(rows, columns):
        return False
    threads = torch.get_num_threads()
    saved = rows * inner * columns * _SAVED_A_MULTIPLICATION / threads
    return saved > _ONEDNN_STARTS + copied * _COPIED_AN_ELEMENT / threads


# Of the input as of the output. With 64 channels on one side BLAS is slower by 5 to 20 %.
_CHANNELS_OF_A_MATRIX = 128


def multiply_pixels(image: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether BLAS computes a convolution of single pixels and its gradients faster than oneDNN.

    Measured on AVX-512 in float32 with 49 to 12544 pixels and 64 to 2048 channels: alike at 128
    and 256 channels, 1.2 times as fast at 256 and 1024, twice with the gradients at 2048. On AMD's
    EPYC, MKL takes twice as long as oneDNN (1.33 ms and 2.47 for 1024 to 256 channels, 784 pixels,
    two threads); ResNet-50 takes 3 % less without products.

    Args:
        image: What it reads, or the gradient of that; the channels innermost.
        weight: Its weight.
    """
    wide = min(weight.shape[:2]) >= _CHANNELS_OF_A_MATRIX
    return image.dtype == torch.float32 and wide and not is_amd()
