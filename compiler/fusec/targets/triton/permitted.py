"""What a kernel's file may name of packages; the rest of them does other work than a kernel's."""

from __future__ import annotations

from fusec.target_api.permitted import Permitted

_MODULES = {
    path: frozenset(names.split())
    for path, names in {
        "torch": "Tensor dtype empty empty_like empty_strided zeros zeros_like full ones device "
        "Size cuda finfo iinfo float16 bfloat16 float32 float64 int8 int16 int32 int64 uint8 "
        "uint16 uint32 uint64 bool complex64 complex128 float8_e4m3fn float8_e5m2 half float "
        "double long int short",
        "torch.cuda": "Stream Event current_stream current_device default_stream stream device "
        "synchronize get_device_properties get_device_capability",
        "triton": "jit cdiv next_power_of_2 autotune heuristics Config constexpr_function "
        "set_allocator language tools experimental",
        "triton.language": "",
        "triton.language.math": "",
        "triton.language.extra": "libdevice cuda hip",
        "triton.language.extra.libdevice": "",
        "triton.language.extra.cuda": "",
        "triton.language.extra.cuda.libdevice": "",
        "triton.language.extra.hip": "",
        "triton.language.extra.hip.libdevice": "",
        "triton.tools": "tensor_descriptor",
        "triton.tools.tensor_descriptor": "TensorDescriptor",
        "triton.experimental": "gluon",
        "triton.experimental.gluon": "",
        "triton.experimental.gluon.language": "",
        "triton.experimental.gluon.language.nvidia": "hopper",
        "triton.experimental.gluon.language.nvidia.hopper": "",
        "triton.experimental.gluon.language.nvidia.hopper.async_copy": "",
        "triton.experimental.gluon.language.nvidia.hopper.mbarrier": "",
        "triton.experimental.gluon.language.nvidia.hopper.tma": "",
        "math": "",
        "typing": "",
        "__future__": "",
    }.items()
}

PERMITTED = Permitted(
    _MODULES,
    pure=("triton.cdiv", "triton.next_power_of_2", "triton.language.", "math."),
    language="triton",
)

__all__ = ["PERMITTED"]
