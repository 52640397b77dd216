"""Biases of matrix products, added by the kernel that reads the product.

ATen's ``addmm`` fills the result with the bias, which BLAS then reads and adds to.  Where a kernel
comes next anyway, it adds the bias on its way: the product is written once and read once.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.graph.halves import REASON, VIEWS

aten = torch.ops.aten
# They run as ATen's own: a kernel between them and the product would be one of its own.
_NO_KERNELS = (
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)


def add_biases_later(module: fx.GraphModule) -> int:
    """Take the bias out of float32 products on the CPU that a kernel reads; return how many.

    Args:
        module: Functional, with fake tensors in ``meta["val"]``; changed in place.
    """
    changed = 0
    for node in module.graph.find_nodes(op="call_function", target=aten.addmm.default):
        bias, left, right = node.args
        value, added = node.meta["val"], bias.meta["val"]
        if (
            node.kwargs
            or value.device.type != "cpu"
            or value.dtype != torch.float32
            or added.dim() != 1
            or not _read_by_kernels(node)
        ):
            continue
        fake = detect_fake_mode([value])
        assert fake is not None
        with module.graph.inserting_before(node), fake:
            product = module.graph.call_function(aten.mm.default, (left, right))
            whole = module.graph.call_function(aten.add.Tensor, (product, bias))
        for made in (product, whole):
            made.meta = {**node.meta, "val": torch.empty_like(value)}
        whole.meta.pop(REASON, None)
        node.replace_all_uses_with(whole)
        module.graph.erase_node(node)
        changed += 1
    if changed:
        module.recompile()
    return changed


def _read_by_kernels(node: fx.Node) -> bool:
    for user in node.users:
        if user.op == "output" or user.target in _NO_KERNELS:
            return False
        if user.target in VIEWS and not _read_by_kernels(user):
            return False
    return True


__all__ = ["add_biases_later"]
