"""What kernels and a host program must satisfy, before anything is built of them.

Kernels are text that people edit and compilers read; what calls them goes by their signature.  So
both must agree with the loops that they were written of.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping

from fusec.codegen.common.signatures import argument_buffers, body_sizes
from fusec.codegen.host_program import HostProgram
from fusec.ir.body import Buffer
from fusec.ir.body_verifier import Problem
from fusec.ir.program import Compute
from fusec.kernel_source import KernelSource
from fusec.target_api.registry import find_target
from fusec.tunables import read_tunables


def kernel_problems(
    step: Compute, kernel: KernelSource, buffers: Mapping[str, Buffer]
) -> list[Problem]:
    """Return what is wrong with the kernel that was written of a step.

    Args:
        step: The step.
        kernel: What was written of it; of a kernel that is equal to it but for names, too.
        buffers: The program's.
    """
    return [Problem(kind, step.name, text) for kind, text in _kernel(step, kernel, buffers)]


def _kernel(
    step: Compute, kernel: KernelSource, buffers: Mapping[str, Buffer]
) -> Iterator[tuple[str, str]]:
    if kernel.name != step.name:
        yield "kernel_name", f"the kernel calls itself {kernel.name}"
    if not kernel.entry.isidentifier() or kernel.entry not in kernel.text:
        yield "kernel_entry", f"{kernel.entry} is not in the text"
    names = argument_buffers(step.body)
    given = kernel.signature.arguments
    if len(given) != len(names):
        yield "argument_count", f"takes {len(given)} tensors, the loops use {len(names)}"
    for name, argument in zip(names, given, strict=False):
        buffer = buffers[name]
        if argument.dtype != buffer.dtype:
            yield "argument_type", f"{argument.name} is {argument.dtype}, {name} {buffer.dtype}"
        written = name in step.body.writes()
        if (argument.role != "in") != written:
            yield "argument_role", f"{argument.name} is {argument.role}"
    if len({argument.name for argument in given}) != len(given):
        yield "argument_name", "two tensors have one name"
    sizes = body_sizes(step.body, buffers)
    if len(kernel.signature.sizes) != len(sizes):
        text = f"takes {len(kernel.signature.sizes)} sizes, the loops use {len(sizes)}"
        yield "size_count", text
    lines = len(kernel.text.splitlines())
    for line in kernel.origins:
        if not 1 <= line <= lines:
            yield "origin_line", f"line {line} of {lines} is said to compute something"
    for tunable in read_tunables(kernel.text):
        if not tunable.choices:
            yield "tunable", f"{tunable.name} has no values to choose from"
    wrong = find_target(kernel.target).syntax_problem(kernel.text)
    if wrong:
        yield "kernel_syntax", wrong


def host_problems(host: HostProgram, given: Collection[str]) -> list[Problem]:
    """Return what is wrong with a host program.

    Args:
        host: The program.
        given: Names that whoever runs it provides: kernels, allocators, checks.
    """
    return [Problem(kind, "host program", text) for kind, text in _host(host, set(given))]


def _host(host: HostProgram, given: set[str]) -> Iterator[tuple[str, str]]:
    try:
        (function,) = ast.parse(host.text).body
    except (SyntaxError, ValueError) as error:
        yield "host_syntax", str(error)
        return
    assert isinstance(function, ast.FunctionDef)
    known = {*given, *host.constants, *host.groups}
    known |= {argument.arg for argument in function.args.args}
    there: set[str] = set()
    for statement in function.body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        for name in names:
            if not isinstance(name.ctx, ast.Store) and name.id not in known | there:
                yield "unknown_name", f"{name.id} is not there (line {name.lineno})"
        there |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
        there -= {name.id for name in names if isinstance(name.ctx, ast.Del)}
    if not isinstance(function.body[-1], ast.Return):
        yield "no_return", "it does not end in what it returns"


__all__ = ["host_problems", "kernel_problems"]
