"""First calls of models of many layers: captured whole, and with each layer compiled once.

``python tests/bench/layers.py [--layers 2 30] [--train] [--rounds 2]``; every figure is of a fresh
process whose kernels are built already. ``transformers`` makes the Llama; it is not in the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

MARK = "layers "
HIDDEN, WORDS, TOKENS = 256, 1000, (2, 64)


def child(layers: int, how: str, train: bool) -> None:
    """Print what a first call and later ones take, and how far the result is from eager's."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    import fusec

    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=HIDDEN,
        intermediate_size=688,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).train(train)
    ids = torch.randint(0, WORDS, TOKENS)

    def step(call: object) -> torch.Tensor:
        assert callable(call)
        if train:
            model.zero_grad()
            loss: torch.Tensor = call(ids, labels=ids).loss
            loss.backward()
            return loss.detach()
        with torch.no_grad():
            logits: torch.Tensor = call(ids).logits
            return logits

    wanted = step(model)
    compiled = fusec.compile(model, layers=how)
    times, found = [], wanted
    for _ in range(10):
        started, cpu = time.perf_counter(), time.process_time()
        found = step(compiled)
        times.append((time.perf_counter() - started, time.process_time() - cpu))
    error = float((found - wanted).abs().max())
    row = {"first": times[0][0], "cpu": times[0][1], "later": min(t for t, _ in times[1:])}
    print(MARK + json.dumps({**row, "error": error}))


def measure(layers: int, how: str, train: bool) -> dict[str, float]:
    """Run one child and return what it measured."""
    command = [sys.executable, str(Path(__file__)), "--child", str(layers), how]
    output = subprocess.run(
        [*command, *(["--train"] if train else [])], capture_output=True, text=True, check=True
    ).stdout
    (line,) = (each for each in output.splitlines() if each.startswith(MARK))
    found: dict[str, float] = json.loads(line[len(MARK) :])
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 30])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child", nargs=2, metavar=("LAYERS", "HOW"))
    options = parser.parse_args()
    if options.child:
        child(int(options.child[0]), options.child[1], options.train)
        return
    print("first call, its processor time and the least of later calls, in seconds")
    firsts: dict[tuple[str, int], float] = {}
    for how in ("whole", "once"):
        for layers in options.layers:
            measure(layers, how, options.train)  # builds what is not built yet
            rows = [measure(layers, how, options.train) for _ in range(options.rounds)]
            first, cpu = (statistics.median(row[name] for row in rows) for name in ("first", "cpu"))
            later, error = (min(row[name] for row in rows) for name in ("later", "error"))
            firsts[how, layers] = cpu
            beside = cpu / firsts[how, options.layers[0]]
            print(
                f"{how:6} {layers:3} layers {first:7.2f} {cpu:7.2f} {later:8.4f}"
                f"   {beside:4.2f} x {options.layers[0]} layers   error {error:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
