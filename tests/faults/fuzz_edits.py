"""Edits as slips of the hand make them: a random change somewhere in a random kernel's text.

Nobody has thought of what each does.  Most do not compile or are refused; what is accepted has to
compute what eager does on inputs that the check has not seen, and none may harm the process that
stands for the notebook.  A seed makes its edit again: ``python -m faults fuzz --seeds 17``.
"""

from __future__ import annotations

import difflib
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F

import fusec
from faults.notebook import MARK, processes, survey
from fusec.call import native
from fusec.kernel import Kernel
from fusec.verify.comparison.compare import compare_outputs
from fusec.verify.comparison.words import describe
from fusec.verify.isolation import sandbox

CALLS = 40
_NUMBER = r"\b\d+(?:\.\d+)?(?:e-?\d+)?f?\b"
_OPERATOR = r"(?<=\s)(?:[-+*/%<>]|[<>=!]=|&&|\|\||[-+*/]=)(?=\s)"
_TOKEN = re.compile(rf"(?P<number>{_NUMBER})|(?P<operator>{_OPERATOR})|(?P<name>\b[a-z_]\w*\b)")
_COMMENT = re.compile(r"//.*|#.*")
# What no slip takes for the name of a variable.
_WORDS = frozenset(
    "alignas auto bfloat bool break char const constexpr continue double else extern float for if "
    "inline int int8_t int16_t int32_t int64_t long namespace num_threads omp parallel pragma "
    "reduction restrict return schedule short simd size_t sizeof static std struct template "
    "typename uint8_t uint16_t uint32_t uint64_t unsigned using void volatile while include "
    "define".split()
)
_OPERATORS = ("+", "-", "*", "/", "<", ">", "<=", ">=", "==", "!=", "+=", "-=")

Made = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def cell(name: str) -> Made:
    """Return what a cell computes, and inputs for it."""
    x, w, b = torch.randn(24, 60), torch.randn(60), torch.randn(60)
    cells: dict[str, Made] = {
        "relu": (lambda x, w, b: (x * w + b).relu(), (x, w, b)),
        "softmax": (lambda x: torch.softmax(x, -1), (x,)),
        "norm": (lambda x, w, b: F.layer_norm(x, (60,), w, b), (x, w, b)),
        "rows": (lambda x, w: (x * w).sum(-1), (x, w)),
        "columns": (lambda x: (x * 2).sum(0), (x,)),
        "gelu": (lambda x, w: F.gelu(x + w), (x, w)),
        "largest": (lambda x: (x.argmax(-1), x.amax(-1)), (x,)),
        "gather": (lambda x, i: x.index_select(0, i) * 2, (x, torch.randint(0, 24, (9,)))),
        "scan": (lambda x: x.cumsum(-1), (x,)),
        "turned": (lambda x: x.t().contiguous() + 1, (x,)),
        "halves": (lambda x: (x.float() * 3).tanh().half(), (x.half(),)),
        "counted": (lambda i: (i * 3 + 1) % 7, (torch.randint(-90, 90, (24, 60)),)),
    }
    return cells[name]


# Cells that round by themselves, without their roundings: given float64, they have to stay in it.
_EXACT: dict[str, Callable[..., Any]] = {"halves": lambda x: (x * 3).tanh()}

CELLS = (
    *("relu", "softmax", "norm", "rows", "columns", "gelu", "largest", "gather", "scan", "turned"),
    *("halves", "counted"),
)


def mutated(text: str, draw: random.Random) -> str:
    """Return a text with a slip in its function."""
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if 'extern "C"' in line), 0)
    start = next((i for i in range(start, len(lines)) if "{" in lines[i]), start) + 1
    places = [i for i in range(start, len(lines)) if _COMMENT.sub("", lines[i]).strip(" {}()\n\t;")]
    for _ in range(draw.choice((1, 1, 1, 2))):
        at = draw.choice(places)
        kind = draw.random()
        if kind < 0.1:
            lines[at] = "" if draw.random() < 0.5 else lines[at] * 2
        elif kind < 0.2:
            other = draw.choice(places)
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at] = _slip(lines[at], text, draw)
    return "".join(lines)


def _slip(line: str, text: str, draw: random.Random) -> str:
    code = _COMMENT.sub(lambda found: " " * len(found.group()), line)
    found = [each for each in _TOKEN.finditer(code) if each.group() not in _WORDS]
    if not found:
        return line
    token = draw.choice(found)
    old = token.group()
    if token.lastgroup == "number":
        suffix = "f" if old.endswith("f") else ""
        number = old.removesuffix("f")
        new = draw.choice((f"({number} + 1)", f"({number} - 1)", f"({number} * 2)", "0", "1", "64"))
        new += suffix if new.isdigit() and "." in number else ""
    elif token.lastgroup == "operator":
        new = draw.choice([each for each in _OPERATORS if each != old])
    else:
        new = draw.choice(_names(text))
    return line[: token.start()] + new + line[token.end() :]


def _names(text: str) -> list[str]:
    """Return the variables of a text's function."""
    code = _COMMENT.sub("", text[text.find('extern "C"') :])
    found = {each.group() for each in _TOKEN.finditer(code) if each.lastgroup == "name"}
    return sorted(name for name in found - _WORDS if f"{name}(" not in code)


def fresh_values(like: Sequence[torch.Tensor], number: int) -> tuple[torch.Tensor, ...]:
    """Return inputs that no check has seen; some of them have special values."""
    draw = torch.Generator().manual_seed(number)
    made = []
    for each in like:
        if not each.is_floating_point():
            made.append(each[torch.randperm(len(each), generator=draw)])
            continue
        fresh = torch.randn(each.shape, generator=draw).mul_(10.0 ** (number % 5 - 2))
        if number % 4 == 3:
            special = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0])
            which = torch.randint(5, each.shape, generator=draw)
            few = torch.rand(each.shape, generator=draw) < 0.03
            fresh = torch.where(few, special[which], fresh)
        made.append(fresh.to(each.dtype))
    return tuple(made)


def _outputs(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def exactly(name: str, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a cell computes in float64 throughout, as references of its kernel are made."""
    function = _EXACT.get(name) or cell(name)[0]
    return _outputs(function(*(g.double() if g.is_floating_point() else g for g in given)))


def what_is_wrong(
    given: Sequence[torch.Tensor],
    exact: Sequence[torch.Tensor],
    call: Any,
    function: Any,
    generated: Any,
) -> str:
    """Return how a result differs from eager's; empty where the generated kernel's does, too."""
    mine, eager = _outputs(call(*given)), _outputs(function(*given))
    names = [str(i) for i in range(len(eager))]
    floats = [e if p.is_floating_point() else None for e, p in zip(exact, eager, strict=True)]

    def differ(outputs: Sequence[torch.Tensor]) -> list[str]:
        figures = compare_outputs(names, outputs, eager, floats)
        return [describe(each) for each in figures if not each.ok]

    found = differ(mine)
    return "; ".join(found) if found and not differ(_outputs(generated(*given))) else ""


def changed_lines(before: str, after: str) -> list[str]:
    """Return the lines that an edit took out and put in, each with its sign and its number."""
    lines = [text.splitlines() for text in (before, after)]
    found = []
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    for kind, first, last, begin, end in matcher.get_opcodes():
        if kind != "equal":
            found += [f"{i + 1} -{lines[0][i].strip()}" for i in range(first, last)]
            found += [f"{i + 1} +{lines[1][i].strip()}" for i in range(begin, end)]
    return found


class Subject:
    """A cell's kernel, and the same once more, as it was generated."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.function, self.given = cell(name)
        self.call = fusec.compile(self.function, keep_inputs=True)
        self.generated = fusec.compile(self.function)
        self.call(*self.given)
        self.generated(*self.given)
        self.kernel: Kernel = next(iter(self.call.kernels.values()))

    def attempt(self, seed: int) -> dict[str, Any]:
        """Check the edit of a seed, use it where it passes, and return what a user saw of it."""
        text = mutated(self.kernel.generated.text, random.Random(seed))
        before, started = survey(), time.monotonic()
        verdict = self.kernel.keep(text)
        took, wrong = time.monotonic() - started, {}
        if verdict.ok:
            print(json.dumps({"kept": seed}), flush=True)
            for number in range(CALLS):
                given = fresh_values(self.given, number)
                exact = exactly(self.name, given)
                words = what_is_wrong(given, exact, self.call, self.function, self.generated)
                wrong |= {number: words} if words else {}
            self.kernel.revert()
        after = survey()
        return {
            "fault": str(seed),
            "ok": verdict.ok,
            "stage": verdict.stage,
            "reason": verdict.reason,
            "line": verdict.line,
            "seconds": took,
            "wrong": len(wrong),
            # What was found on another machine has to be understood from this alone.
            "edit": changed_lines(self.kernel.generated.text, text) if wrong else [],
            "numbers": [f"inputs {number}: {words}" for number, words in wrong.items()],
            "changed": [name for name in before if before[name] != after[name]],
            "processes": len(processes()),
            "same": text == self.kernel.generated.text,
        }


def main() -> None:
    """Answer the seeds on standard input, one a line."""
    os.environ[MARK] = str(os.getpid())
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = answers
    sandbox.prestart()
    native.types(wait=True)
    subjects: dict[str, Subject] = {}
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        seed = int(line)
        name = CELLS[seed % len(CELLS)]
        if name not in subjects:
            torch.manual_seed(0)
            subjects[name] = Subject(name)
        print(json.dumps(subjects[name].attempt(seed)), flush=True)


if __name__ == "__main__":
    main()
