"""``python -m models.drafts``: the draft report of every model, held against what then happens.

What the report says of graphs is compared with what compiling yields, and what it says of export
with ``torch.export`` itself: it must fail where something is to be mended, and succeed elsewhere.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import torch

import fusec
from fusec.inspect.draft import Draft, Kind
from models import zoo
from models.case import without_dropout

_SHOWN = (
    Kind.BREAK,
    Kind.DATA,
    Kind.MESSAGE,
    Kind.EAGER,
    Kind.FIXED,
    Kind.EFFECT,
    Kind.OPERATOR,
    Kind.GUARD,
)


def main() -> int:
    """Run; returns 1 if a report was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="all by default")
    parser.add_argument("--modes", nargs="+", choices=("forward", "train"), default=None)
    parser.add_argument("--whole", action="store_true", help="print the reports")
    options = parser.parse_args()
    names, modes = options.models or zoo.names(), options.modes or ("forward", "train")
    if len(names) == len(modes) == 1:
        return _one(names[0], modes[0], options.whole)
    heads = ["model", "mode", "graphs", *(kind.value for kind in _SHOWN), "export", "verdict"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    wrong = 0
    for name in names:
        for mode in modes:
            command = [sys.executable, "-m", "models.drafts", name, "--modes", mode]
            command += ["--whole"] if options.whole else []
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
            if options.whole:
                print(done.stdout.rpartition("\n|")[0])
            print(rows[-1] if rows else f"| {name} | {mode} | {done.stderr[-200:]!r} |", flush=True)
            wrong += done.returncode != 0
    return bool(wrong)


def _one(name: str, mode: str, whole: bool) -> int:
    model = zoo.build(name)
    module = without_dropout(model.module.train(mode == "train"))
    with torch.set_grad_enabled(mode == "train"):
        report = fusec.explain(module, *model.inputs, draft=True, **model.kwargs)
        assert isinstance(report, Draft)
        if whole:
            print(report)
        try:
            torch.export.export(module, model.inputs, model.kwargs, strict=True)
            exported = "yes"
        except Exception as error:
            exported = type(error).__name__
        torch._dynamo.reset()
        compiled = fusec.compile(module)
        compiled(*model.inputs, **model.kwargs)
    problems = []
    in_the_way = any(report.of(kind) for kind in (Kind.ERROR, Kind.BREAK, Kind.DATA))
    if in_the_way == (exported == "yes"):
        problems.append("export")
    if report.graphs != len(compiled.graphs):
        problems.append(f"{len(compiled.graphs)} graphs in fact")
    counts = [str(len(report.of(kind)) or "") for kind in _SHOWN]
    row = [name, mode, str(report.graphs), *counts, exported, ", ".join(problems) or "as it is"]
    print(f"| {' | '.join(row)} |")
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
