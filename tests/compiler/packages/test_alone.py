"""Packages without torch: in a process where there is none, and from a program in C."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fusec
from fusec.packages.binaries import default_names
from fusec.packages.runtime.archive import read_archive
from fusec.packages.unpack import main as unpack

ROOT = Path(__file__).parents[3]
PLAIN = default_names()[-1:]

ALONE = """
import sys
import numpy as np
assert "torch" not in sys.modules
from fuselab_runtime import load
package = load(sys.argv[1])
given = np.load(sys.argv[2])
inputs = [given[name] for name in given.files if name.startswith("input")]
for _ in range(2):
    found = package(*inputs)
    np.testing.assert_allclose(found, given["expected"], rtol=2e-4, atol=2e-4)
assert not any(name.split(".")[0] in ("torch", "fusec", "triton") for name in sys.modules)
print("same")
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory) -> Path:
    """A folder to import from in which there is the loader and numpy, and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    shutil.copytree(Path(fusec.__file__).parent / "packages/runtime", folder / "fuselab_runtime")
    home = Path(np.__file__).parent
    for each in (home, home.parent / "numpy.libs"):
        if each.exists():
            (folder / each.name).symlink_to(each)
    return folder


def run_alone(runtime: Path, package: Path, given: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-c", ALONE, str(package), str(given)],
        env={"PYTHONPATH": str(runtime), "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Small(nn.Module):
    """Convolutions of several kinds, pooling, attention, products: all that is bundled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(16, 16, 3, padding=2, dilation=2, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.line = nn.Conv1d(16, 8, 5, padding=2)
        self.inner = nn.Linear(8, 24)
        self.out = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.norm(self.grouped(self.first(x)))))
        x = self.line(x.flatten(2)).transpose(1, 2)
        q, k, v = self.inner(x).chunk(3, -1)
        heads = [t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (q, k, v)]
        y = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        y = self.out(y.transpose(1, 2).flatten(2))
        return torch.baddbmm(y, y @ y.transpose(1, 2), y, beta=0.5, alpha=2.0)


def packaged(function, args, folder: Path, **options) -> tuple[Path, Path]:
    path, given = folder / "it.fuse", folder / "it.npz"
    said = fusec.package(function, [args], path, binaries=PLAIN, **options)
    assert not any(said.needs_torch.values()), str(said)
    fresh = [torch.randn_like(each) for each in args]
    with torch.no_grad():
        expected = function(*fresh)
    arrays = {f"input{i}": each.numpy() for i, each in enumerate(fresh)}
    np.savez(given, expected=expected.numpy(), **arrays)
    return path, given


def test_a_network_without_torch(runtime, tmp_path):
    torch.manual_seed(3)
    path, given = packaged(Small().eval(), (torch.randn(2, 3, 31, 29),), tmp_path)
    assert run_alone(runtime, path, given) == "same\n"


@pytest.mark.sample(1)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (5, 1, 7), (13, 300, 35), (97, 258, 64), (2, 0, 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_odd_sizes(tmp_path, sizes, turned):
    rows, depth, columns = sizes

    def product(a, b):
        return (a @ (b.t() if turned else b)) * 1.5

    args = (
        torch.randn(rows, depth),
        torch.randn(*((columns, depth) if turned else (depth, columns))),
    )
    fusec.package(product, [args], tmp_path / "it.fuse", binaries=PLAIN)
    found = fusec.load(tmp_path / "it.fuse", alone=True)(*args)
    torch.testing.assert_close(found, product(*args), rtol=1e-4, atol=1e-4)


def test_threads_share_the_work_and_leave_it_right(tmp_path):
    args = torch.randn(300, 128), torch.randn(128, 500)
    fusec.package(lambda a, b: (a @ b).sin(), [args], tmp_path / "it.fuse", binaries=PLAIN)
    one, many = (fusec.load(tmp_path / "it.fuse", alone=True, threads=n) for n in (1, 5))
    for _ in range(20):
        torch.testing.assert_close(many(*args), one(*args), rtol=0, atol=0)


def test_calls_from_many_threads(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    def function(a, b):
        return torch.softmax(a @ b, -1)

    args = torch.randn(60, 50), torch.randn(50, 70)
    fusec.package(function, [args], tmp_path / "it.fuse", binaries=PLAIN)
    loaded = fusec.load(tmp_path / "it.fuse", alone=True, threads=2)
    expected = function(*args)
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(lambda _: loaded(*args), range(200)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_program_in_c_runs_a_package(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(9, 30), nn.GELU(), nn.Linear(30, 4)).eval()
    x = torch.randn(6, 9)
    fusec.package(model, [(x,)], tmp_path / "it.fuse", binaries=PLAIN, dynamic={"input": 0})
    folder = tmp_path / "unpacked"
    assert unpack([str(tmp_path / "it.fuse"), str(folder)]) == 0
    assert unpack([str(tmp_path / "it.fuse"), str(folder)]) == 1  # it is there already
    program = tmp_path / "run_package"
    source = ROOT / "runtime/c/run_package.c"
    assert len(source.read_text().splitlines()) <= 100
    subprocess.run(
        [compiler, "-Wall", "-Werror", f"-I{folder}", str(source), "-o", str(program), "-ldl"],
        check=True,
    )
    fresh = torch.randn(11, 9)
    fresh.numpy().tofile(tmp_path / "x.bin")

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(program), str(folder), PLAIN[0], *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    done = run("0", f"{tmp_path}/x.bin:11x9")
    assert done.returncode == 0, done.stderr
    found = torch.tensor([float(line) for line in done.stdout.split()]).view(11, 4)
    with torch.no_grad():
        torch.testing.assert_close(found, model(fresh), rtol=1e-4, atol=1e-5)
    for arguments, words in (
        (("0", f"{tmp_path}/x.bin:9x11"), "input is packaged for float32 (s"),
        (("0", f"{tmp_path}/x.bin:99"), "input has other|input is packaged"),
        (("0",), "1 tensors are expected"),
        (("7", f"{tmp_path}/x.bin:11x9"), "there is no such program"),
    ):
        done = run(*arguments)
        assert done.returncode == 1
        assert any(each in done.stderr for each in words.split("|")), done.stderr


def test_other_processors_are_cross_compiled_where_a_compiler_is_there(tmp_path):
    if shutil.which("aarch64-linux-gnu-g++") is None:
        pytest.skip("there is no compiler for aarch64")
    x = torch.randn(50)
    said = fusec.package(
        lambda x: x.exp(), [(x,)], tmp_path / "it.fuse", binaries=(*PLAIN, "aarch64")
    )
    assert set(said.binaries) == {*PLAIN, "aarch64"}
    archive = read_archive(tmp_path / "it.fuse")
    assert bytes(archive.data("binaries/aarch64.so")[:20])[18] == 183  # ELF's number for it


def test_a_processor_without_a_binary_is_told(tmp_path, monkeypatch):
    from fusec.packages.runtime import CannotRun, load, processor

    fusec.package(lambda x: x + 1, [(torch.randn(5),)], tmp_path / "it.fuse", binaries=PLAIN)
    monkeypatch.setattr(processor, "machine", lambda: "riscv64")
    with pytest.raises(
        CannotRun, match=f"no binary of the package runs on this riscv64.*{PLAIN[0]}"
    ):
        load(tmp_path / "it.fuse")(np.zeros(5, np.float32))
