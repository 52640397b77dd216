"""A program's steps as C++: what runs kernels one after the other, and where temporaries lie.

One function for each stretch of steps that need no operator of torch's. It takes the pointers of
the tensors that others know, the sizes, scratch memory and a number of threads; what only its own
steps use lies in the scratch memory, where lifetimes allow at the same place. A second function
says how much scratch memory it needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusec.packages.bundled import OwnCall, Pointer
from fusec.packages.plain_program import KernelStep, OperatorStep, PlainProgram, PlainStep
from fusec.packages.runtime.expressions import Expression
from fusec.packages.runtime.layout import ITEM_BYTES

_ALIGNMENT = 64
_STEP = 1 << 16  # as in ``runtime.launch``

HEAD = """\
// The programs of a package: what is launched, in which order, on which memory.
#include <stdint.h>
#include "operators.cpp"

#define FUSE_API extern "C" __attribute__((visibility("default")))

namespace {
[[maybe_unused]] int64_t fuse_div(int64_t a, int64_t b)
{
    return b ? a / b - (a % b != 0 && (a < 0) != (b < 0)) : 0;
}
[[maybe_unused]] int64_t fuse_mod(int64_t a, int64_t b) { return a - fuse_div(a, b) * b; }
[[maybe_unused]] int64_t fuse_max(int64_t a, int64_t b) { return a > b ? a : b; }
[[maybe_unused]] int64_t fuse_min(int64_t a, int64_t b) { return a < b ? a : b; }
[[maybe_unused]] int64_t fuse_line(int64_t bytes) { return (bytes + 63) / 64 * 64; }
} // namespace
"""


@dataclass
class HostText:
    """The C++ of all programs of a package.

    Attributes:
        prototypes: Of the kernels, by symbol.
        functions: In order.
    """

    prototypes: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the file."""
        return "\n".join([HEAD, *self.prototypes.values(), "", *self.functions])


def steps_json(
    program: PlainProgram, host: HostText, name: str, *, alone: bool
) -> list[dict[str, Any]]:
    """Return a program's steps as the loader reads them, adding their C++ to ``host``.

    Args:
        program: The program.
        host: The package's C++.
        name: What functions' names begin with.
        alone: Whether bundled operators are the package's own; they all must be bundled.
    """
    found: list[dict[str, Any]] = []
    stretch: list[tuple[int, PlainStep]] = []
    for number, step in enumerate(program.steps):
        if isinstance(step, KernelStep) or alone:
            stretch.append((number, step))
            continue
        if stretch:
            found.append(_stretch(program, stretch, host, f"{name}_{len(found)}"))
            stretch = []
        found.append(step.json)
    if stretch:
        found.append(_stretch(program, stretch, host, f"{name}_{len(found)}"))
    return found


def _touched(step: PlainStep) -> tuple[int, ...]:
    if isinstance(step, KernelStep):
        return step.buffers
    return (*step.buffers, *step.outputs)


def _written(step: PlainStep) -> tuple[int, ...]:
    return step.written if isinstance(step, KernelStep) else step.outputs


def _stretch(
    program: PlainProgram, stretch: Sequence[tuple[int, PlainStep]], host: HostText, name: str
) -> dict[str, Any]:
    inside = {number for number, _ in stretch}
    outside: set[int] = set()
    for number, step in enumerate(program.steps):
        if number not in inside:
            outside |= set(_touched(step))
    outside |= {n for output in program.outputs for n in _buffers_of(output)}
    outside |= {each["buffer"] for each in program.updates}
    order = list(dict.fromkeys(n for _, step in stretch for n in _touched(step)))
    made = [n for n in order if program.buffers[n]["role"] == "made"]
    inner = [n for n in made if n not in outside]
    given = [n for n in order if n not in inner]
    first = {n for _, step in stretch for n in _written(step)}
    before = {n for i, step in enumerate(program.steps) if i < min(inside) for n in _written(step)}
    host.functions.append(_function(program, stretch, host, name, given, inner))
    return {
        "function": name,
        "buffers": given,
        "made": [n for n in given if n in made and n in first and n not in before],
        "failures": [
            {"step": number, "kernel": step.name, "checks": list(step.kernel.checks)}
            for number, step in stretch
            if isinstance(step, KernelStep) and step.kernel.checks
        ],
    }


def _buffers_of(value: Any) -> list[int]:
    if isinstance(value, dict) and "buffer" in value:
        return [value["buffer"]]
    if isinstance(value, list):
        return [n for each in value for n in _buffers_of(each)]
    return []


def _function(
    program: PlainProgram,
    stretch: Sequence[tuple[int, PlainStep]],
    host: HostText,
    name: str,
    given: Sequence[int],
    inner: Sequence[int],
) -> str:
    names = {size["name"]: f"s[{i}]" for i, size in enumerate(program.sizes)}
    places = {n: f"t[{i}]" for i, n in enumerate(given)}
    slots, layout = _slots(program, stretch, inner, names)
    for n, slot in slots.items():
        places[n] = f"(scratch + at{slot})"
    lines = [f"static int64_t {name}_layout(const int64_t* s, int64_t* at)", "{"]
    lines += ["    (void)s;", "    (void)at;", "    int64_t end = 0;"]
    for slot, size in enumerate(layout):
        lines += [f"    at[{slot}] = end;", f"    end += fuse_line({size});"]
    lines += ["    return end;", "}", ""]
    lines += [
        f"FUSE_API int64_t {name}_scratch(const int64_t* s)",
        "{",
        f"    int64_t at[{max(len(layout), 1)}];",
        f"    return {name}_layout(s, at);",
        "}",
        "",
        f"FUSE_API int64_t {name}(void* const* t, const int64_t* s, char* scratch,",
        "    int64_t threads)",
        "{",
        "    (void)t; (void)s; (void)scratch; (void)threads;",
        f"    int64_t at[{max(len(layout), 1)}];",
        f"    {name}_layout(s, at);",
        "    int64_t status = 0;",
    ]
    lines += [f"    const int64_t at{slot} = at[{slot}];" for slot in range(len(layout))]
    for number, step in stretch:
        if isinstance(step, KernelStep):
            host.prototypes.setdefault(step.kernel.symbol, _prototype(step))
            arguments = [places[n] for n in step.buffers]
            arguments += [names[size] for size in step.sizes]
            call = f"{step.kernel.symbol}({', '.join([*arguments, 'threads'])})"
            lines.append(f"    status = {call}; // {_comment(step.name)}")
            lines.append(f"    if (status) return {number * _STEP} + status;")
        else:
            assert step.own is not None
            lines.append(f"    status = {_own(step.own, program, places, names)};")
            lines.append("    if (status) return -1;")
    return "\n".join([*lines, "    return 0;", "}", ""])


def _comment(name: str) -> str:
    return name.replace("\\", "").replace("\n", " ")


def _prototype(step: KernelStep) -> str:
    parameters = ["void*"] * len(step.buffers) + ["int64_t"] * (len(step.sizes) + 1)
    return f'extern "C" int {step.kernel.symbol}({", ".join(parameters)});'


def _own(
    call: OwnCall, program: PlainProgram, places: Mapping[int, str], names: Mapping[str, str]
) -> str:
    kind = call.function.partition("<")[2].rstrip(">")
    arguments = []
    for each in call.arguments:
        if isinstance(each, Pointer):
            arguments.append(f"({kind}*){places[each.buffer]} + {c_text(each.offset, names)}")
        elif each is None:
            arguments.append(f"({kind}*)0")
        elif isinstance(each, float):
            arguments.append(_c_float(each))
        else:
            arguments.append(f"(int64_t)({c_text(each, names)})")
    return f"{call.function}({', '.join(arguments)}, threads)"


def _c_float(value: float) -> str:
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else f"{'-' if value < 0 else ''}INFINITY"
    return repr(value)


def _slots(
    program: PlainProgram,
    stretch: Sequence[tuple[int, PlainStep]],
    inner: Sequence[int],
    names: Mapping[str, str],
) -> tuple[dict[int, int], list[str]]:
    """Return each temporary's slot, and each slot's size in C++.

    A slot that nobody needs any more is used again for a temporary of the same size: that is what
    layers of a model have.
    """
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, step in stretch:
        for n in _touched(step):
            first.setdefault(n, number)
            last[n] = number
    free: dict[str, list[int]] = {}
    busy: list[tuple[int, str, int]] = []  # last use, size, slot
    slots: dict[int, int] = {}
    layout: list[str] = []
    for n in sorted(inner, key=lambda n: first[n]):
        for entry in [each for each in busy if each[0] < first[n]]:
            busy.remove(entry)
            free.setdefault(entry[1], []).append(entry[2])
        size = c_text(bytes_expression(program.buffers[n]), names)
        if free.get(size):
            slot = free[size].pop()
        else:
            slot = len(layout)
            layout.append(size)
        slots[n] = slot
        busy.append((last[n], size, slot))
    return slots, layout


def bytes_expression(buffer: Mapping[str, Any]) -> Expression:
    """Return how much memory a buffer takes; enough, where a size is zero."""
    extent: list[Expression] = ["+", 1]
    for size, stride in zip(buffer["shape"], buffer["strides"], strict=True):
        extent.append(["*", ["max", ["+", size, -1], 0], stride])
    whole: Expression = extent if len(extent) > 2 else 1
    return ["*", whole, ITEM_BYTES[buffer["dtype"]]]


def c_text(value: Expression, names: Mapping[str, str]) -> str:
    """Return an expression in C++."""
    if isinstance(value, int):
        return f"INT64_C({value})" if abs(value) >= 1 << 31 else str(value)
    if isinstance(value, str):
        return names[value]
    operator, *given = value
    parts = [c_text(each, names) for each in given]
    if all(isinstance(each, int) for each in given) and operator in ("+", "*", "max", "min"):
        from fusec.packages.runtime.expressions import evaluate

        return c_text(evaluate(value, {}), names)
    if operator in ("//", "%"):
        return f"fuse_{'div' if operator == '//' else 'mod'}({', '.join(parts)})"
    if operator in ("max", "min"):
        text = parts[0]
        for part in parts[1:]:
            text = f"fuse_{operator}({text}, {part})"
        return text
    return f"({f' {operator} '.join(parts)})"


__all__ = ["HostText", "OperatorStep", "bytes_expression", "c_text", "steps_json"]
