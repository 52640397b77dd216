"""Answers to the labs' tasks: the solutions, and wrong ones made from them by kinds of mistake."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path

from fuselab.judge.task import CppTask, Task
from fuselab.labs.lab import Lab, task_in

ROOT = Path(__file__).resolve().parents[2]
LABS = ROOT / "notebooks" / "labs"

_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
# Ways round a task, put in front of a right answer: none of them is needed.
_CHEATS = {
    "looks at the process": "import sys\n",
    "looks at the machine": "import os\n",
    "takes the judge along": "from fuselab.judge import judge\n",
    "reads a file": "text = open('/etc/hostname').read()\n",
    "evaluates text": "value = eval('1')\n",
    "looks at globals": "names = globals()\n",
    "looks for classes": "kinds = ().__class__.__base__.__subclasses__()\n",
    "sets a clock": "import time\ntime.time = lambda: 0\n",
}
_CPP = {
    "one too many": (r"< (n|rows|cols|i1)\b", r"<= \1"),
    "another number": (r"\b1\.0f|\btile = 16|sums\[k\]( \+=)", r"3.0f\1"),
    "the other operator": (r"\+= ", "-= "),
    "starts late": (r"int64_t (i|j) = 0; \1 <", r"int64_t \1 = 1; \1 <"),
    "input and output swapped": (r"const float\* x, float\* out", "float* out, const float* x"),
    "nothing returned": (r"return 0;", "return 1;"),
    "starts a program": (r"    return 0;", '    system("true");\n    return 0;'),
    "reads the environment": (r"    return 0;", '    getenv("HOME");\n    return 0;'),
    "keeps something": (r"    return 0;", "    static int64_t calls;\n    return 0;"),
    "calls torch": (r"#include <cmath>", "#include <torch/torch.h>"),
    "does not compile": (r"    return 0;", "    return zero;"),
    "changes its input": (r"    return 0;", "    const_cast<float*>(x)[0] = 7.0f;\n    return 0;"),
    "half of it": (r"    return 0;", "    if (threads > 0) out[0] = 0.0f;\n    return 0;"),
}
# Changes of a solution that make no difference to what is asked for.
EQUIVALENT = {
    # Whatever differs between two ways through a function is wrong when it is captured.
    ("lab02.trace", "the other comparison in line 5"),
    ("lab02.trace", "another number in line 5"),
    ("lab02.trace", "the other operator in line 6"),
    ("lab02.trace", "another number in line 6"),
    ("lab02.trace", "the other operator in line 7"),
    ("lab02.trace", "another number in line 7"),
    ("lab02.symbolic", "another number in line 6"),
    ("lab02.symbolic", "another number in line 7"),
    ("lab02.symbolic", "half done in line 7"),
    ("lab04.decompose", "another number in line 5"),  # of new names
    ("lab04.decompose", "another number in line 9"),
    ("lab06.fuse", "another number in line 3"),  # a constant more, for every plan
    ("lab06.fuse", "half done in line 26"),  # None is as good as False
    ("lab06.fuse", "the other operator in line 38"),  # pairs the other way round as well
    # What a group must write is counted otherwise, and the same pairs are best.
    ("lab06.fuse", "the other connective in line 11"),
    ("lab06.fuse", "the other comparison in line 10"),
    ("lab07.transpose", "one too many"),  # of tiles, an empty one
    ("lab09.variance", "the other operator"),  # the mean's sign goes with its square
    ("lab11.noise", "half done in line 13"),  # it returned None
    ("lab11.verdict", "half done in line 12"),  # the same
    # Twice or half a median, of all candidates.
    ("lab11.halving", "the other operator in line 3"),
    ("lab11.halving", "another number in line 3"),
}


def solutions(lab: Lab) -> dict[str, str]:
    """Return the solutions, by task: those of the teacher's notebook."""
    notebook = json.loads((LABS / "teacher" / f"{lab.stem}.ipynb").read_text())
    cells = ("".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code")
    return dict(found for text in cells if (found := task_in(text)))


def wrong_answers(task: Task, solution: str) -> Iterator[tuple[str, str]]:
    """Yield wrong answers by what is wrong with them.

    Args:
        task: What is asked.
        solution: A right answer.
    """
    yield "nothing", ""
    yield "the start", task.start
    if isinstance(task, CppTask):
        yield "another name", solution.replace(f"int {task.entry}(", "int other(")
        for name, (pattern, put) in _CPP.items():
            text = re.sub(pattern, put, solution, count=1)
            if text != solution:
                yield name, text
        return
    yield "no Python", solution.replace("def ", "define ", 1)
    yield "another name", re.sub(rf"\b{task.entry}\b", "other", solution)
    yield "returns nothing", f"def {task.entry}(*given):\n    pass\n"
    yield "returns its argument", f"def {task.entry}(*given):\n    return given[0]\n"
    yield "returns a number", f"def {task.entry}(*given):\n    return 41\n"
    yield "raises", f"def {task.entry}(*given):\n    raise NotImplementedError\n"
    yield "prints", f"def {task.entry}(*given):\n    print(given)\n"
    for name, before in _CHEATS.items():
        yield name, before + solution
    yield from mutants(solution)


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Yield the text with one thing in it replaced."""
    tree = ast.parse(text)
    for number, node in enumerate(ast.walk(tree)):
        for kind, change in _changes(node):
            other = copy.deepcopy(tree)
            target = list(ast.walk(other))[number]
            change(target)
            yield f"{kind} in line {getattr(node, 'lineno', '?')} ({number})", ast.unparse(other)


def _changes(node: ast.AST) -> Iterator[tuple[str, object]]:
    if isinstance(node, ast.BinOp) and type(node.op) in _SWAPPED:
        yield "the other operator", lambda n: setattr(n, "op", _SWAPPED[type(n.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        yield "the other comparison", lambda n: setattr(n, "ops", [_SWAPPED[type(n.ops[0])]()])
    if isinstance(node, ast.BoolOp):
        yield "the other connective", lambda n: setattr(n, "op", _SWAPPED[type(n.op)]())
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield "another number", lambda n: setattr(n, "value", n.value + 2)
    if isinstance(node, ast.Return) and node.value is not None:
        yield "half done", lambda n: setattr(n, "value", ast.Constant(None))


__all__ = ["EQUIVALENT", "LABS", "ROOT", "mutants", "solutions", "wrong_answers"]
