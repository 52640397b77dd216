"""The heuristics of the graph's own passes, each with its reason. None affects correctness."""

from __future__ import annotations

import functools
import platform

import torch


@functools.cache
def multiplies_slowly(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies matrices of a half-precision dtype slower than float32.

    Without instructions for it, oneDNN converts both operands again for every block of the
    product: bfloat16 runs at a third of float32's speed on AVX-512, float16 at a tenth, and
    convolutions at half to an eighth. Only x86 was measured.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    ask = getattr(torch.cpu, "get_capabilities", None)
    known = ask() if ask is not None else {}
    if dtype == torch.bfloat16:
        native = known.get("avx512_bf16") or torch.cpu._is_avx512_bf16_supported()
        return not (native or torch.cpu._is_amx_tile_supported())
    if dtype == torch.float16:
        return not (known.get("avx512_fp16") or known.get("amx_fp16"))
    return False


# A float32 product saves about 1/30 ns a multiplication over a bfloat16 one, and an operand's
# conversion costs 0.8 ns an element: it is read, written and read again.
_PRODUCTS_AN_ELEMENT = 24


def pays_to_widen(multiplications: int, converted: int) -> bool:
    """Whether a product is faster in float32, its operands' conversion counted.

    Args:
        multiplications: Of one scalar by another.
        converted: Elements that are there in half precision only.
    """
    return multiplications > _PRODUCTS_AN_ELEMENT * converted
