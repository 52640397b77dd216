"""Biases of products and convolutions, added by the kernel that reads the result.

ATen's ``addmm`` fills the result with the bias, which BLAS then reads and adds to.  Where a kernel
comes next anyway, it adds the bias on its way: the product is written once and read once.  The
gradient of a convolution's bias is a sum of what a kernel has computed, likewise.
"""

from __future__ import annotations

import torch
from torch import fx
from torch._guards import detect_fake_mode

from fusec.devices import is_gpu
from fusec.graph.facts.insertion import caller
from fusec.graph.facts.notes import NOTES
from fusec.graph.products.widened_halves import VIEWS

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
    """Take the bias out of what a kernel reads, or ATen adds by one of its own; return how many.

    That is float32 products on the CPU that a kernel reads, and convolutions on a GPU with their
    gradients.

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
        whole.meta.pop(NOTES, None)
        node.replace_all_uses_with(whole)
        module.graph.erase_node(node)
        changed += 1
    changed += _of_convolutions(module) + _gradients_of_convolutions(module)
    if changed:
        module.recompile()
    return changed


def _of_convolutions(module: fx.GraphModule) -> int:
    """Take their biases out of convolutions on a GPU; return how many.

    ATen starts a kernel of its own for each, behind cuDNN's; ours may do more on its way.
    """
    changed = 0
    for node in module.graph.find_nodes(op="call_function", target=aten.convolution.default):
        image, weight, bias, *others = node.args
        value = node.meta["val"]
        if not isinstance(bias, fx.Node) or not is_gpu(value.device):
            continue
        fake = detect_fake_mode([value])
        assert fake is not None
        with module.graph.inserting_before(node), fake:
            bare = module.graph.call_function(node.target, (image, weight, None, *others))
            bare.meta = dict(node.meta)
            spread = bias
            for _ in range(value.dim() - 2):
                wider = module.graph.call_function(aten.unsqueeze.default, (spread, -1))
                wider.meta = {**bias.meta, "val": spread.meta["val"].unsqueeze(-1)}
                spread = wider
            whole = module.graph.call_function(aten.add.Tensor, (bare, spread))
            whole.meta = dict(node.meta)
            whole.meta.pop(NOTES, None)
        node.replace_all_uses_with(whole)
        module.graph.erase_node(node)
        changed += 1
    return changed


def _gradients_of_convolutions(module: fx.GraphModule) -> int:
    """Take the gradients of their biases out of those of convolutions on a GPU; return how many.

    ATen sums up the whole gradient by a kernel of its own, which takes as long as reading it does
    (15 of 35 us in a training step of a U-Net); the kernel that computes it may have the sums too.
    """
    changed = 0
    target = aten.convolution_backward.default
    for node in module.graph.find_nodes(op="call_function", target=target):
        gradient, wanted = node.args[0], node.args[-1]
        value = gradient.meta["val"]
        if not wanted[2] or not is_gpu(value.device):
            continue
        with module.graph.inserting_before(node):
            dims = [d for d in range(value.dim()) if d != 1]
            total = caller(module.graph, node)(aten.sum.dim_IntList, gradient, dims)
        for user in list(node.users):
            if user.args[1] == 2:
                user.replace_all_uses_with(total)
            if not user.users:
                module.graph.erase_node(user)
        node.args = (*node.args[:-1], [wanted[0], wanted[1], False])
        if isinstance(node.meta.get("val"), (tuple, list)):
            node.meta["val"] = (*node.meta["val"][:2], None)
        if not node.users:
            module.graph.erase_node(node)
        changed += 1
    return changed


def _read_by_kernels(node: fx.Node) -> bool:
    for user in node.users:
        if user.op == "output" or user.target in _NO_KERNELS:
            return False
        if user.target in VIEWS and not _read_by_kernels(user):
            return False
    return True


__all__ = ["add_biases_later"]
