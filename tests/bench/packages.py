"""Packages beside what torch has for ahead of time: time to package, to load, to the first call.

    python tests/bench/packages.py --write FOLDER [gpt2 resnet50 edited ...] [--small]
    python tests/bench/packages.py --compare FOLDER gpt2
    python tests/bench/packages.py --dispatch FOLDER

``--write`` writes packages of config-made models with random weights, and what each computes for
one input (``NAME.npz``), for another process to hold against. ``--compare`` times packaging,
loading, first and later calls beside AOTInductor and ``torch.compile(...).aot_compile`` in
processes of their own, one after the other; say which machine, and how loaded it was.
``--dispatch`` times finding one of 1, 9 and 33 specializations, and whole calls.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Case = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def gpt2(small: bool) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, Any] = {"n_layer": 4, "n_embd": 128, "n_head": 4} if small else {}
    config = GPT2Config(use_cache=False, vocab_size=5000 if small else 50257, **size)
    config.bos_token_id = config.eos_token_id = 0
    model = GPT2LMHeadModel(config).eval()

    def logits(ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(ids, use_cache=False, return_dict=False)[0]
        return found

    return logits, (torch.randint(0, config.vocab_size, (1, 64)),), {}


def resnet50(small: bool) -> Case:
    from transformers import ResNetConfig, ResNetForImageClassification

    size: dict[str, Any] = {}
    if small:
        size = {"embedding_size": 16, "hidden_sizes": [32, 64, 128, 256]}
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000, **size)).eval()

    def logits(images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(images).logits
        return found

    return logits, (torch.randn(1, 3, 64 if small else 224, 64 if small else 224),), {}


def edited(small: bool) -> Case:
    """The quickstart's softmax with an edited kernel."""
    import fusec

    def softmax(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, dim=-1)

    compiled = fusec.compile(softmax, keep_inputs=True)
    x = torch.randn(256, 1000)
    compiled(x)
    (kernel,) = compiled.kernels.values()
    text = kernel.source.replace("#include <stdint.h>", "// edited by hand\n#include <stdint.h>", 1)
    verdict = kernel.keep(text)
    assert verdict.ok, verdict.reason
    return compiled, (x,), {}


def dynamic(small: bool) -> Case:
    """GPT-2 with any batch and length."""
    function, _, _ = gpt2(True)
    return function, (torch.randint(0, 5000, (2, 16)),), {"ids": (0, 1)}


CASES = {"gpt2": gpt2, "resnet50": resnet50, "edited": edited, "dynamic": dynamic}


def write(folder: Path, names: list[str], small: bool, binaries: list[str] | None) -> None:
    import fusec

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        torch.manual_seed(0)
        function, args, sizes = CASES[name](small)
        started = time.perf_counter()
        said = fusec.package(
            function, [args], folder / f"{name}.fuse", dynamic=sizes, binaries=binaries, name=name
        )
        print(said, f"\n  packaged in {time.perf_counter() - started:.1f} s", flush=True)
        fresh = tuple(
            torch.randint(0, 5000, (3, 21))
            if sizes
            else torch.randint_like(a, 0, 5000)
            if a.dtype == torch.int64
            else torch.randn_like(a)
            for a in args
        )
        original = function.function if hasattr(function, "graphs") else function
        with torch.no_grad():
            expected = original(*fresh)
        arrays = {f"input{i}": each.numpy() for i, each in enumerate(fresh)}
        np.savez(folder / f"{name}.npz", expected=expected.numpy(), **arrays)


# -- times, each in a process of its own ----------------------------------------------------------


def make_fuse(function: Callable[..., Any], args: tuple[Any, ...], path: Path) -> None:
    import fusec
    from fusec.packages.binaries import default_names

    fusec.package(function, [args], path, binaries=default_names()[:1])


def make_aoti(function: Callable[..., Any], args: tuple[Any, ...], path: Path) -> None:
    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            cells = function.__closure__ or ()  # type: ignore[attr-defined]
            self.inner = next(
                c.cell_contents for c in cells if isinstance(c.cell_contents, torch.nn.Module)
            )

        def forward(self, *given: Any) -> Any:
            return function(*given)

    with torch.no_grad():
        exported = torch.export.export(Whole().eval(), args)
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))


def make_aot_compile(function: Callable[..., Any], args: tuple[Any, ...], path: Path) -> None:
    with torch.no_grad():
        compiled = torch.compile(function, fullgraph=True, backend="inductor")
        made = compiled.aot_compile((args, {}))
        made.save_compiled_function(str(path))


MAKERS = {
    "fuse": (make_fuse, ".fuse"),
    "aoti": (make_aoti, ".pt2"),
    "aot_compile": (make_aot_compile, ".bin"),
}


def make(kind: str, name: str, folder: Path, small: bool) -> None:
    torch.manual_seed(0)
    function, args, _ = CASES[name](small)
    maker, suffix = MAKERS[kind]
    started = time.perf_counter()
    path = folder / f"{name}{suffix}"
    maker(function, args, path)
    print(json.dumps({"make": time.perf_counter() - started, "bytes": path.stat().st_size}))


def run(kind: str, name: str, folder: Path, small: bool) -> None:
    torch.manual_seed(0)
    path = folder / f"{name}{MAKERS[kind][1]}"
    function, args, _ = CASES[name](small)
    with torch.no_grad():
        if kind == "fuse":
            import fusec
            import fusec.packages.load  # imports are not counted, as torch's are not

            started = time.perf_counter()
            loaded: Any = fusec.load(path)
        elif kind == "aoti":
            started = time.perf_counter()
            loaded = torch._inductor.aoti_load_package(str(path))
        else:
            started = time.perf_counter()
            with path.open("rb") as file:
                loaded = torch.compiler.load_compiled_function(file)
        middle = time.perf_counter()
        result = loaded(*args)
        first = time.perf_counter()
        expected = function(*args)
        torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-3)
        later = []
        for _ in range(20):
            begin = time.perf_counter()
            loaded(*args)
            later.append(time.perf_counter() - begin)
    times = {"load": middle - started, "first": first - middle, "call": min(later)}
    print(json.dumps(times))


def compare(folder: Path, names: list[str], small: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        for kind in MAKERS:
            found: dict[str, Any] = {}
            for what in ("make", "run"):
                command = [sys.executable, __file__, f"--{what}", kind, str(folder), name]
                done = subprocess.run(
                    [*command, *(["--small"] if small else [])],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
                if done.returncode or not lines:
                    error = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
                    found["failed"] = f"{what}: {error[:200]}"
                    break
                found |= json.loads(lines[-1])
            words = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
            )
            print(f"{name:10} {kind:12} {words}", flush=True)


def dispatch(folder: Path) -> None:
    import fusec

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    folder.mkdir(parents=True, exist_ok=True)
    calls = [(torch.randn(3 + n),) for n in range(33)]
    for count in (1, 9, 33):
        path = folder / f"dispatch{count}.fuse"
        fusec.package(doubled, calls[:count], path)
        loaded = fusec.load(path)
        keys, known = loaded._arrays.key, loaded._known
        args = calls[count - 1]
        with torch.no_grad():
            loaded(*args)
            whole = _least(lambda loaded=loaded, args=args: loaded(*args))
        found = _least(lambda keys=keys, known=known, args=args: known[keys(args)])
        eager = _least(lambda args=args: doubled(*args))
        print(
            f"{count:3} specializations: found in {found * 1e6:.2f} us, "
            f"a call {whole * 1e6:.2f} us, eager {eager * 1e6:.2f} us",
            flush=True,
        )


def _least(call: Callable[[], object]) -> float:
    """Return seconds a call: the least of many rounds."""
    rounds = []
    for _ in range(50):
        begin = time.perf_counter()
        for _ in range(500):
            call()
        rounds.append((time.perf_counter() - begin) / 500)
    return min(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--dispatch", action="store_true")
    parser.add_argument("--make", choices=MAKERS)
    parser.add_argument("--run", choices=MAKERS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--binaries", nargs="*")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(CASES))
    given = parser.parse_args()
    if given.dispatch:
        dispatch(given.folder)
    elif given.write:
        write(given.folder, given.names, given.small, given.binaries)
    elif given.make:
        make(given.make, given.names[0], given.folder, given.small)
    elif given.run:
        run(given.run, given.names[0], given.folder, given.small)
    else:
        compare(given.folder, given.names, given.small)


if __name__ == "__main__":
    main()
