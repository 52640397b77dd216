"""Packages for GPUs: written without one, read without one, and started by a stand-in driver.

The stand-in has ordinary memory, and Triton's interpreter runs the kernel whose code is started.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest
import torch

import fusec
from fusec.errors import BadOption
from fusec.packages.errors import CannotPackage
from fusec.packages.runtime import CannotRun, NoSpecialization, load
from fusec.packages.runtime.binding import unmarked
from fusec.packages.runtime.cuda import CudaArrays, DeviceArray
from fusec.packages.runtime.driver import Driver

WEIGHT = torch.linspace(-1, 1, 16)


def function(x):
    y = (x * WEIGHT).softmax(-1)
    return {"y": y, "sum": y.sum(0)}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A package, and the compiled function that it was made of."""
    path = tmp_path_factory.mktemp("gpu") / "small.fuse"
    compiled = fusec.compile(function, target="triton", gpu="sm_80", dynamic=False)
    said = fusec.package(compiled, [(torch.randn(4, 16),)], path, gpus=("sm_80", "sm_90"))
    return said, compiled


class Library:
    """A stand-in for ``libcuda``: an H100, by default, whose memory is the process's."""

    def __init__(self, package: Any, compiled: Any, capability: tuple[int, int] = (9, 0)) -> None:
        table = package._archive.json("kernels.json")["kernels"]
        by_symbol = {each["symbol"]: each["name"] for each in table}
        codes = package._archive.json("gpu.json")["codes"]
        self.kernels = {
            bytes(unmarked(package._archive.data(binary["member"]))): compiled.kernels[
                by_symbol[code["name"].rpartition("_")[0]]
            ]
            for code in codes
            for binary in code["binaries"]
        }
        self.capability = capability
        self.memory: dict[int, Any] = {}
        self.loaded: list[Any] = []
        self.pushed = 0
        self.starts: list[tuple[str, tuple[int, ...], int]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuFuncSetAttribute"):
            return lambda *given: 0
        raise AttributeError(name)

    def cuDeviceGetAttribute(self, out, attribute, device):
        out._obj.value = self.capability[attribute - 75]
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.pushed += 1
        return 0

    def cuCtxPopCurrent_v2(self, out):
        self.pushed -= 1
        return 0

    def cuMemAlloc_v2(self, out, size):
        block = np.full(size.value + 64, 0xEE, np.uint8)
        address = block.ctypes.data + -block.ctypes.data % 64
        self.memory[address] = block
        out._obj.value = address
        return 0

    def cuMemcpyHtoD_v2(self, to, data, size):
        ctypes.memmove(to.value, data.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, into, address, size):
        ctypes.memmove(into.value, address.value, size.value)
        return 0

    def cuPointerGetAttribute(self, out, attribute, address):
        out._obj.value = 0
        inside = (a <= address.value < a + len(b) for a, b in self.memory.items())
        return 0 if any(inside) else 1

    def cuModuleLoadData(self, out, data):
        self.loaded.append(self.kernels[data])
        out._obj.value = len(self.loaded)
        return 0

    def cuModuleGetFunction(self, out, module, name):
        out._obj.value = module.value
        return 0

    def cuGetErrorString(self, status, out):
        out._obj.value = b"invalid"
        return 0

    def cuLaunchKernel(self, function, x, y, z, threads, *rest):
        assert self.pushed == 1
        kernel = self.loaded[function.value - 1]
        places = rest[4]
        tensors = []
        for place, argument in zip(places, kernel.signature.arguments, strict=False):
            address = ctypes.c_uint64.from_address(place).value
            shape = [int(e.constant) for e in argument.shape]
            count = int(np.prod(shape, dtype=np.int64))
            kind = (ctypes.c_uint8 * (count * argument.dtype.itemsize)).from_address(address)
            tensors.append(torch.frombuffer(kind, dtype=argument.dtype).view(shape))
        kernel.runnable()(tensors, [])
        self.starts.append((kernel.name, (x, y, z), threads))
        return 0


def on_stand_in(made, **options) -> tuple[Any, Library]:
    said, compiled = made
    package = load(said.path)
    library = Library(package, compiled, **options)
    assert isinstance(package._arrays, CudaArrays)
    package._arrays._make = lambda: Driver(0, library)
    return package, library


def test_what_is_in_it(made):
    said, _ = made
    assert said.binaries == ("sm_90", "sm_80")
    package = load(said.path)
    names = sorted(package._archive.members)
    cubins = [name for name in names if name.startswith("cubins/")]
    assert len(cubins) == 4
    assert not any(name.startswith("binaries/") for name in names)
    for name in cubins:
        data = bytes(package._archive.data(name))
        assert data[:4] == b"\x7fELF"
        assert struct.unpack_from("<H", data, 18)[0] == 190  # EM_CUDA
        flags = struct.unpack_from("<I", data, 48)[0]
        wanted = 90 if "sm_90" in name else 80
        assert wanted in (flags & 0xFF, flags >> 8 & 0xFF)
    assert "cuda" in package.describe()
    assert "sm_80" in package.describe()


def test_numpy_goes_there_and_back(made):
    package, library = on_stand_in(made)
    for _ in range(2):
        x = torch.randn(4, 16)
        found = package(x.numpy())
        expected = function(x)
        assert type(found["y"]) is np.ndarray
        torch.testing.assert_close(torch.from_numpy(found["y"]), expected["y"])
        torch.testing.assert_close(torch.from_numpy(found["sum"]), expected["sum"])
    assert library.pushed == 0
    assert len(library.loaded) == 2  # each kernel once
    with pytest.raises(NoSpecialization):
        package(np.zeros((5, 16), np.float32))


def test_memory_is_used_again(made):
    package, library = on_stand_in(made)
    x = torch.randn(4, 16).numpy()
    package(x)
    before = len(library.memory)
    for _ in range(5):
        package(x)
    assert len(library.memory) == before


def test_what_is_there_stays_there(made):
    package, _ = on_stand_in(made)
    x = torch.randn(4, 16)
    there = package._arrays.take(x.numpy())

    class Somebodys:
        __cuda_array_interface__ = there.__cuda_array_interface__

    found = package(Somebodys())
    assert isinstance(found["y"], DeviceArray)
    torch.testing.assert_close(torch.from_numpy(found["y"].numpy()), function(x)["y"])


def test_memory_of_nobody_is_refused(made):
    package, _ = on_stand_in(made)
    x = np.zeros((4, 16), np.float32)

    class Elsewhere:
        __cuda_array_interface__ = dict(
            package._arrays.take(x).__cuda_array_interface__, data=(x.ctypes.data, False)
        )

    with pytest.raises(CannotRun, match="another GPU"):
        package(Elsewhere())


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (9, 0), (10, 0)])
def test_code_is_for_the_architecture(made, capability):
    package, library = on_stand_in(made, capability=capability)
    x = np.ones((4, 16), np.float32)
    if capability in ((8, 6), (9, 0)):
        package(x)
        assert library.starts
    else:
        with pytest.raises(CannotRun, match=f"sm_{capability[0]}{capability[1]}"):
            package(x)
        assert not library.starts


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(made):
    said, _ = made
    with pytest.raises(CannotRun, match="GPU"):
        load(said.path)(np.ones((4, 16), np.float32))
    with pytest.raises(NoSpecialization, match="cpu; packaged for cuda"):
        fusec.load(said.path)(torch.ones(4, 16))


@pytest.mark.triton
def test_what_cannot_be_packaged(tmp_path):
    path = tmp_path / "x.fuse"
    x = torch.ones(3)
    symbolic = fusec.compile(lambda x: x.sin(), target="triton")
    on_cpu = fusec.compile(lambda x: x.sin())
    with pytest.raises(BadOption, match="gpu"):
        fusec.package(function, [(x,)], path, gpus=("gfx942",))
    with pytest.raises(CannotPackage, match="operator of ATen"):
        fusec.package(lambda x: x.sort(-1)[0], [(x,)], path, gpus=("sm_90",))
    with pytest.raises(CannotPackage, match="updates x"):
        fusec.package(lambda x: x.add_(1), [(x,)], path, gpus=("sm_90",))
    with pytest.raises(CannotPackage, match="symbolic"):
        fusec.package(symbolic, [(x,)], path, gpus=("sm_90",), dynamic={"x": (0,)})
    with pytest.raises(CannotPackage, match="for the CPU"):
        fusec.package(on_cpu, [(x,)], path, gpus=("sm_90",))
    assert not path.exists()
