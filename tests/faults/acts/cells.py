"""Cells that are long, or whose names mean something elsewhere."""

from __future__ import annotations

import keyword
import os
from pathlib import Path
from typing import Any

import torch

import fusec
from faults.user import Seen, activation, inputs

LINES = 5000
# Keywords and names of C++, of what kernels include, and of what is usual in them.
CPP = """
alignas alignof and_eq asm atomic auto bitand bitor bool case catch char char8_t class compl concept
const constexpr const_cast decltype default delete double do dynamic_cast else enum explicit export
extern false float for friend goto if inline int int64_t long main malloc mutable namespace new
noexcept not_eq nullptr operator or_eq private protected public register reinterpret_cast requires
short signed sizeof static std struct switch template this thread_local threads throw true typedef
typeid typename union unsigned using virtual void volatile wchar_t xor xor_eq restrict
omp_get_max_threads NULL EOF INFINITY NAN assert errno linux unix exp log printf size_t uint8_t
__attribute__ _Bool i n tid
""".split()


def _run(seen: Seen, body: list[str], parameters: list[str], *given: torch.Tensor) -> Any:
    """Write a function to a file, as a user would, import it, and compile it."""
    path = Path("cell_of_the_user.py")
    text = f"import torch\ndef cell({', '.join(parameters)}):\n"
    path.write_text(text + "".join(f"    {line}\n" for line in body), encoding="utf-8")
    namespace: dict[str, Any] = {}
    exec(compile(path.read_text(encoding="utf-8"), os.path.abspath(path), "exec"), namespace)
    return seen.fuse(namespace["cell"], *given, calls=2)


def long_cell(seen: Seen) -> None:
    """A cell of 5,000 lines, each an operation."""
    body = ["y = x"]
    for line in range(LINES):
        body.append(f"y = y * 0.999 + {line % 7}.0" if line % 2 else "y = y - w")
    _run(seen, [*body, "return y"], ["x", "w"], *inputs())


def keywords_of_cpp(seen: Seen) -> None:
    """Inputs, names in between and results are called as what means something in C++."""
    names = [name for name in dict.fromkeys(CPP) if not keyword.iskeyword(name)]
    names = [name for name in names if name.isidentifier()]
    x, _ = inputs()
    for start in range(0, len(names), 8):
        chunk = names[start : start + 8]
        body = [f"{name}_ = {name} * 2.0" for name in chunk]
        body += [f"{name} = torch.tanh({name}_) + {name}" for name in chunk]
        body.append("return " + " + ".join(chunk))
        _run(seen, body, chunk, *(x + number for number in range(len(chunk))))


def keyword_names(seen: Seen) -> None:
    """Cells have names that are keywords."""
    names = ["class", "lambda", "None", "int", "double", "template", "main", "exp", "kernel", "std"]
    for name in names:
        torch._dynamo.reset()
        compiled = fusec.compile(activation, name=name)
        seen.same(compiled(*inputs()), activation(*inputs()))
        seen.said += [f"{name}: {reason}" for reason in compiled.fallbacks]


def alphabets(seen: Seen) -> None:
    """Names with umlauts, in Greek, in Chinese, and one that is very long."""
    names = ["größe", "α", "数据", "переменная", "ñ", "x" * 300]
    body = [f"{name} = torch.tanh({name}) * 1.5" for name in names]
    body.append("return " + " + ".join(names))
    x, _ = inputs()
    _run(seen, body, names, *(x + number for number in range(len(names))))


__all__ = ["alphabets", "keyword_names", "keywords_of_cpp", "long_cell"]
