"""What runs as ATen's own kernels by intent, with the reason that the user reads."""

from __future__ import annotations

from fusec.ir.body import UNINITIALIZED
from fusec.lower.registry import Lowering, aten, register
from fusec.lower.values import NotLowered

_REASONS: dict[str, tuple[object, ...]] = {
    "a matrix product runs best in BLAS": (
        aten.mm,
        aten.bmm,
        aten.addmm,
        aten.baddbmm,
        aten.addbmm,
        aten.addmv,
        aten._trilinear,
    ),
    UNINITIALIZED: (aten.empty_permuted, aten.new_empty_strided),
    "a convolution runs best in ATen's library kernels": (aten.convolution,),
    "attention runs as ATen's fused kernel": (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_efficient_attention,
    ),
    "random numbers come from eager's own stream": (
        aten.rand,
        aten.randn,
        aten.rand_like,
        aten.randn_like,
        aten.bernoulli,
        aten.native_dropout,
        aten.randint,
        aten.randint_like,
        aten.randperm,
        aten.multinomial,
    ),
}


def _register(reason: str, targets: tuple[object, ...]) -> None:
    @register(*targets)
    def rule(lowering: Lowering, *_: object, **__: object) -> None:
        raise NotLowered(reason)


for _reason, _targets in _REASONS.items():
    _register(_reason, _targets)
