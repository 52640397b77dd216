"""A captured graph as a program that runs alone: in eager and compiled, compared."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from fusec.compiled.graph import CompiledGraph
from fusec.errors import FusecError

_PROGRAM = '''\
"""{name}, as TorchDynamo captured it: run in eager and compiled, compared.

Inputs are random, of the sizes, layouts and ranges of the call that this was saved from.
"""

from math import inf, nan  # noqa: F401  (the graph may write them)

import torch
from torch import device  # noqa: F401

import fusec

{module}


def make_inputs():
    """Return inputs like those of the saved call."""
    torch.manual_seed(0)
{inputs}
    return [{names}]


def main():
    """Compare the compiled graph with eager."""
    module = Repro()
    compiled = fusec.compile(module{options})
    expected, actual = module(*make_inputs()), compiled(*make_inputs())
    for number, (mine, plain) in enumerate(zip(actual, expected)):
        if isinstance(plain, torch.Tensor) and plain.numel():
            error = (mine.double() - plain.double()).abs().max().item()
            print(f"output {{number}}: {{tuple(plain.shape)}} {{plain.dtype}}, error {{error:.2g}}")
    print(compiled.explain())


if __name__ == "__main__":
    main()
'''


class NoRepro(FusecError):
    """A graph that cannot be written as a program."""


def repro_text(graph: CompiledGraph) -> str:
    """Return a program that runs a captured graph in eager and compiled, and compares.

    Args:
        graph: Its latest inputs are described, not saved.

    Raises:
        NoRepro: It holds a module or a function that has no text.
    """
    from torch._dynamo.debug_utils import NNModuleToString

    module = graph.eager
    if any(node.op == "call_module" for node in module.graph.nodes):
        raise NoRepro(f"{graph.name} calls a module that has no text of its own")
    text = str(NNModuleToString.convert(module)).replace("from torch.nn import *", "")
    text = re.sub(r"\n\s*\n\s*\n+", "\n\n", text.strip())
    given = graph.last_inputs
    values: Sequence[Any] = given if given is not None else _examples(module)
    lines = [f"    i{n} = {_input(value)}" for n, value in enumerate(values)]
    options = ""
    if graph.parts:
        chosen = graph.parts[0].state.options
        options = f", target={chosen.target!r}" if chosen.asked is not None else ""
    return _PROGRAM.format(
        name=graph.name,
        module=text,
        inputs="\n".join(lines),
        names=", ".join(f"i{n}" for n in range(len(values))),
        options=options,
    )


def _examples(module: fx.GraphModule) -> list[Any]:
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [node.meta.get("example_value") for node in nodes]


def _input(value: object) -> str:
    """Return an expression for a value like this one."""
    if not isinstance(value, torch.Tensor):
        return repr(int(value)) if isinstance(value, torch.SymInt) else repr(value)
    shape = [int(size) for size in value.shape]
    strides = [int(stride) for stride in value.stride()]
    length = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if shape else 1
    if 0 in shape:
        length = 0
    dtype, device = str(value.dtype), str(value.device)
    where = "" if device == "cpu" else f", device={device!r}"
    if value.dtype.is_floating_point or value.dtype.is_complex:
        flat = f"torch.randn({length}{where}).to({dtype})"
    elif value.dtype is torch.bool:
        flat = f"torch.rand({length}{where}) > 0.5"
    else:
        low, high = _range(value)
        flat = f"torch.randint({low}, {high}, ({length},){where}).to({dtype})"
    text = f"({flat}).as_strided({shape}, {strides})"
    return f"{text}.requires_grad_()" if value.requires_grad else text


def _range(value: torch.Tensor) -> tuple[int, int]:
    """Return what integers to draw from: where they are indices, others would be out of range."""
    if type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
        return 0, 2  # a fake tensor has no values
    if not value.numel() or not math.prod(value.shape):
        return 0, 1
    return int(value.min()), int(value.max()) + 1


__all__ = ["NoRepro", "repro_text"]
