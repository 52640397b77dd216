"""How many programs a multiprocessor holds, against NVIDIA's own calculator."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import pytest

from fusec.inspect.gpu_sheets import SHEETS
from fusec.toolchain.compiler import find_compiler

triton = pytest.importorskip("triton")
HEADER = Path(triton.__file__).parent / "backends" / "nvidia" / "include" / "cuda_occupancy.h"
NVIDIA = sorted(gpu for gpu in SHEETS if gpu.startswith("sm_"))

PROGRAM = """
#include <cstddef>
#include <cstdio>
#include "{header}"

extern "C" int blocks(int major, int minor, int threads, int registers, long shared, long reserved,
    int warps, int each, long taken)
{{
    cudaOccDeviceProp gpu;
    gpu.computeMajor = major;
    gpu.computeMinor = minor;
    gpu.maxThreadsPerBlock = 1024;
    gpu.maxThreadsPerMultiprocessor = threads;
    gpu.regsPerBlock = gpu.regsPerMultiprocessor = registers;
    gpu.warpSize = 32;
    gpu.sharedMemPerBlock = 48 << 10;
    gpu.sharedMemPerMultiprocessor = shared;
    gpu.sharedMemPerBlockOptin = shared - reserved;
    gpu.reservedSharedMemPerBlock = reserved;
    gpu.numSms = 1;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = each;
    kernel.sharedSizeBytes = 0;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = shared - reserved;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    state.carveoutConfig = 100;  // as much shared memory as there is: the driver does as much
    cudaOccResult found;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&found, &gpu, &kernel, &state, warps * 32, taken))
        return -1;
    return found.activeBlocksPerMultiprocessor;
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build NVIDIA's calculator."""
    folder = tmp_path_factory.mktemp("occupancy")
    source, built = folder / "blocks.cpp", folder / "blocks.so"
    source.write_text(PROGRAM.format(header=HEADER))
    subprocess.run(find_compiler().command(str(source), str(built)), check=True)
    return built


@pytest.mark.skipif(not HEADER.exists(), reason="this Triton has no cuda_occupancy.h")
@pytest.mark.parametrize("gpu", NVIDIA)
def test_programs_are_what_nvidia_counts(gpu: str, library: Path) -> None:
    import ctypes

    blocks = ctypes.CDLL(str(library)).blocks
    blocks.argtypes = (
        [ctypes.c_int] * 4 + [ctypes.c_long] * 2 + [ctypes.c_int] * 2 + [ctypes.c_long]
    )
    sheet = SHEETS[gpu]
    major, minor = divmod(int(gpu.removeprefix("sm_")), 10)
    kinds = itertools.product((1, 2, 4, 8, 16), (16, 21, 32, 40, 64, 97, 128, 200, 255))
    compared = set()
    for warps, registers in kinds:
        for shared in (0, 512, 1000, 4096, 16384, 33333, 49152, 60000):
            given = (major, minor, sheet.threads, sheet.registers, sheet.shared, sheet.reserved)
            counted = blocks(*given, warps, registers, shared)
            if counted > 0:  # 0: it could not be started at all
                assert sheet.resident(warps, registers, shared) == counted
                compared.add(counted)
    assert len(compared) >= 5


def test_amd_counts_waves_of_64_threads() -> None:
    sheet = SHEETS["gfx942"]
    # 512 registers a lane in each of four SIMD units: four waves of 128 registers in each.
    assert sheet.resident(4, 128, 0) == 4
    assert sheet.resident(4, 64, 0) == 8
    assert sheet.resident(4, 16, 0) == 8, "eight waves in each unit are all there are"
    assert sheet.resident(4, 16, 32 << 10) == 2, "64 KiB of shared memory for all of them"
