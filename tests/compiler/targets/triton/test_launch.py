"""The short launch: what it takes for the same kernel, and when it asks Triton."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from triton.runtime.jit import JITFunction

from fusec.targets.triton.toolchain import launch as triton_launch
from fusec.targets.triton.toolchain.launch import Launcher, with_launchers


class Compiled:
    """What Triton returns from a launch, as far as the launcher uses it."""

    def __init__(self, number: int, launched: list[Any]) -> None:
        self.function = f"function {number}"
        self.packed_metadata = f"metadata {number}"
        self.run = lambda *args: launched.append((number, args))


class Kernel:
    """A ``@triton.jit`` function that counts what it is asked to compile."""

    def __init__(self) -> None:
        self.arg_names = ["x", "y", "n", "BLOCK"]
        self.pre_run_hooks: list[Any] = []
        self.asked: list[Any] = []
        self.launched: list[Any] = []

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> Compiled:
            self.asked.append((grid, args, options))
            return Compiled(len(self.asked), self.launched)

        return launch


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stand in for the GPU: the current device, which a test may change."""
    current = [0]
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: 70 + index, raising=False
    )
    return current


def test_the_second_launch_is_short(device: list[int]) -> None:
    kernel = Kernel()
    launcher: Any = Launcher(kernel)  # type: ignore[arg-type]
    x, y = torch.empty(64), torch.empty(64)
    launcher[(3,)](x, y, 64, BLOCK=32, num_warps=4)
    assert len(kernel.asked) == 1
    launcher[(5, 2)](y, x, 128, BLOCK=32, num_warps=4)
    assert len(kernel.asked) == 1
    number, args = kernel.launched[-1]
    assert number == 1
    assert args[:6] == (5, 2, 1, 70, "function 1", "metadata 1")
    assert args[9:] == (y.data_ptr(), x.data_ptr(), 128, 32)


@pytest.mark.parametrize(
    ("change", "asks"),
    [
        (lambda x, y: (x, y, 80, {}), False),
        (lambda x, y: (x, y, 65, {}), True),
        (lambda x, y: (x, y, 1, {}), True),
        (lambda x, y: (x, y, 1 << 40, {}), True),
        (lambda x, y: (x[1:], y, 64, {}), True),
        (lambda x, y: (x[4:], y, 64, {}), False),
        (lambda x, y: (x.double(), y, 64, {}), True),
        (lambda x, y: (x, y, 64, {"BLOCK": 16}), True),
        (lambda x, y: (x, y, 64, {"num_warps": 8}), True),
    ],
    ids=[
        "size",
        "size not divisible",
        "size of 1",
        "size beyond int32",
        "pointer not aligned",
        "pointer aligned",
        "dtype",
        "constant",
        "option",
    ],
)
def test_what_triton_specializes_on_is_in_the_key(
    device: list[int], change: Any, asks: bool
) -> None:
    kernel = Kernel()
    launcher: Any = Launcher(kernel)  # type: ignore[arg-type]
    x, y = torch.empty(64), torch.empty(64)
    options = {"BLOCK": 32, "num_warps": 4}
    launcher[(3,)](x, y, 64, **options)
    x, y, size, other = change(x, y)
    for _ in range(2):  # asked once only
        launcher[(3,)](x, y, size, **{**options, **other})
    assert len(kernel.asked) == (2 if asks else 1)
    assert len(kernel.launched) == (1 if asks else 2)
    assert kernel.launched[-1][0] == len(kernel.asked)


def test_devices_have_kernels_of_their_own(device: list[int]) -> None:
    kernel = Kernel()
    launcher: Any = Launcher(kernel)  # type: ignore[arg-type]
    x, y = torch.empty(64), torch.empty(64)
    for index in (0, 1, 0, 1):
        device[0] = index
        launcher[(1,)](x, y, 64, BLOCK=32)
    assert len(kernel.asked) == 2
    assert [(number, args[3]) for number, args in kernel.launched] == [(1, 70), (2, 71)]


@pytest.mark.parametrize("what", ["a float", "a grid to be called", "an option without a hash"])
def test_what_is_not_known_goes_through_triton(device: list[int], what: str) -> None:
    kernel = Kernel()
    launcher: Any = Launcher(kernel)  # type: ignore[arg-type]
    x, y = torch.empty(64), torch.empty(64)
    size: Any = 0.5 if what == "a float" else 64
    grid: Any = (lambda meta: (1,)) if what == "a grid to be called" else (1,)
    options: dict[str, Any] = {"x": []} if what == "an option without a hash" else {}
    for _ in range(3):
        launcher[grid](x, y, size, BLOCK=32, **options)
    assert len(kernel.asked) == 3
    assert kernel.asked[-1] == (grid, (x, y, size), {"BLOCK": 32, **options})
    assert not kernel.launched


def test_a_profiler_sees_every_launch(device: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    launcher: Any = Launcher(kernel)  # type: ignore[arg-type]
    x, y = torch.empty(64), torch.empty(64)
    launcher[(1,)](x, y, 64, BLOCK=32)
    with monkeypatch.context() as patch:
        patch.setattr(triton_launch.knobs.runtime, "launch_enter_hook", lambda metadata: None)
        launcher[(1,)](x, y, 64, BLOCK=32)
        assert len(kernel.asked) == 2
    launcher[(1,)](x, y, 64, BLOCK=32)
    assert len(kernel.asked) == 2


TEXT = """
import triton

@triton.jit
def kernel(x):
    pass

def launch(x):
    return kernel
"""


def test_only_the_entry_sees_launchers() -> None:
    namespace: dict[str, Any] = {}
    name = "<launch test>"
    linecache.cache[name] = (len(TEXT), None, TEXT.splitlines(True), name)  # Triton reads it there
    exec(compile(TEXT, name, "exec"), namespace)
    launch = with_launchers(namespace["launch"])
    assert isinstance(launch(None), Launcher)
    assert isinstance(namespace["launch"](None), JITFunction)
    assert launch(None).arg_names == ["x"]
