"""A whole ``torch.compile`` of what a student wrote in labs 3 to 6: ``mini_compile(function)``.

Labs 3 to 6 each write a part of a compiler.  Here they are put together: bytecode is captured,
guarded and continued (lab 3), made into gradients (lab 4), fused (lab 6), lowered and written
(labs 5 and 6), and built as the kernels of lab 7 are.  What is in between is as short as it can be:
with the answers it is some five hundred lines.
"""

from __future__ import annotations

import ctypes
import dis
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target
from fuselab.errors import FuselabError
from fuselab.labs.catalog import find_task
from fuselab.labs.content.fusion import MATMUL, order_of
from fuselab.labs.progress import HandInError, progress, read_hand_in

Node = list[Any]  # name, operator, arguments
Pieces = dict[str, Callable[..., Any]]

# The answers that are needed, and the function of each.
PARTS = (
    "lab03.guards lab03.breaks lab03.continuation lab04.decompose lab04.joint lab05.sums "
    "lab05.text lab06.fuse lab06.write"
).split()
_NAMES = {"+": "add", "-": "sub", "*": "mul"}
# What is called rather than generated: no kernel holds it with anything else.
_CALLS: dict[str, Callable[..., Any]] = {
    "<": operator.lt,
    ">": operator.gt,
    "sin": torch.sin,
    "abs": torch.abs,
    "log": torch.log,
}
_LOWERED = {"add", "sub", "mul", "relu"}  # what lab 5 lowers
_HEAD = """#include <cmath>
#include <cstdint>

using std::exp;
static inline float relu(float v) { return v < 0.0f ? 0.0f : v; }
"""


class MiniError(FuselabError):
    """The mini compiler cannot go on."""


def simple(function: Callable[..., Any]) -> list[list[Any]]:
    """Return a function's bytecode as a list of [op, argument]."""
    code: list[list[Any]] = []
    places: dict[int, int] = {}
    called: list[str] = []
    for each in dis.get_instructions(function):
        name, value = each.opname, each.argval
        places[each.offset] = len(code)
        if name in {"RESUME", "NOP", "PRECALL", "PUSH_NULL", "CACHE", "TO_BOOL", "NOT_TAKEN"}:
            continue
        if name.startswith("LOAD_GLOBAL"):
            called.append(value)
        elif name.startswith("STORE_FAST_LOAD_FAST"):
            code += [["store", value[0]], ["load", value[1]]]
        elif name.startswith("LOAD_FAST"):
            code += [["load", v] for v in ([value] if isinstance(value, str) else value)]
        elif name.startswith("STORE_FAST"):
            code += [["store", v] for v in ([value] if isinstance(value, str) else value)]
        elif name in {"LOAD_CONST", "LOAD_SMALL_INT"}:
            code.append(["const", value])
        elif name in {"BINARY_OP", "COMPARE_OP"}:
            sign = each.argrepr if name == "BINARY_OP" else value
            code.append(["binary", sign.rstrip("=")])
        elif name.startswith("CALL"):
            code.append(["call", called.pop()])
        elif name == "POP_TOP":
            code.append(["pop", None])
        elif name.startswith("POP_JUMP") and name.endswith("FALSE"):
            code.append(["jump_if_false", value])
        elif name.startswith("POP_JUMP"):  # if true: step over a jump if false
            code += [["jump_if_false", -len(code) - 2], ["jump", value]]
        elif name.startswith("JUMP"):
            code.append(["jump", value])
        elif name.startswith("RETURN"):
            code += [["const", value]] if name == "RETURN_CONST" else []
            code.append(["return", None])
        else:
            raise NotImplementedError(name)
    for entry in code:
        if entry[0].startswith("jump"):
            entry[1] = places[entry[1]] if entry[1] >= 0 else -entry[1]
    return code


def pieces(answers: dict[str, str] | None = None, folder: Path | str = ".") -> Pieces:
    """Return the functions that a student has written, by the task's name.

    Args:
        answers: Their texts; this notebook's and those of the hand-ins in a folder if None.
        folder: Where hand-ins lie.

    Raises:
        MiniError: One is missing.
    """
    if answers is None:
        answers = {}
        for path in sorted(Path(folder).glob("hand_in_*.json")):
            try:
                answers |= read_hand_in(path)[1]
            except HandInError:
                continue
        answers |= {name: state.best for name, state in progress().tasks.items() if state.score}
    missing = [name for name in PARTS if name not in answers]
    if missing:
        lacking: dict[str, list[str]] = {}
        for name in missing:
            lab, _, part = name.partition(".")
            lacking.setdefault(lab, []).append(part)
        listed = "; ".join(f"{lab} {', '.join(parts)}" for lab, parts in lacking.items())
        raise MiniError(
            f"parts of the compiler are missing here: {listed}\n",
            "solve them, say %hand_in at the end of each lab, and keep its file in this folder",
        )
    found: Pieces = {}
    for name in PARTS:
        space: dict[str, Any] = {"__name__": name}
        exec(compile(answers[name], f"<{name}>", "exec"), space)
        found[name] = space[find_task(name).entry]
    return found


@dataclass
class MiniCompiled:
    """A function compiled by a student's parts.

    Attributes:
        function: The original.
        parts: See ``pieces``.
        texts: The kernels that were written, in order.
        compiled: What was captured for each piece of code, with its guards.
    """

    function: Callable[..., Any]
    parts: Pieces
    texts: list[str] = field(default_factory=list)
    compiled: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def __call__(self, *args: Any) -> Any:
        """Run it by kernels; what cannot be captured runs in Python, and the rest is continued."""
        names = self.function.__code__.co_varnames
        code, given = simple(self.function), dict(zip(names, args, strict=False))
        while True:
            facts = {n: "tensor" if isinstance(v, torch.Tensor) else v for n, v in given.items()}
            known = self.compiled.setdefault(repr(code), [])
            number = self.parts["lab03.guards"]([each["guards"] for each in known], facts)
            if number < 0:
                number = len(known)
                known.append(self.parts["lab03.breaks"](code, facts))
            graph = known[number]
            wanted = [v for v in (*graph["stack"], *graph["stored"].values()) if isinstance(v, str)]
            values = self._run(graph, wanted, dict(given))
            stack = [values.get(v, v) if isinstance(v, str) else v for v in graph["stack"]]
            if graph["stop"] is None:
                return stack[-1]
            given |= {n: values.get(v, v) for n, v in graph["stored"].items()}
            op, argument = code[graph["stop"]]
            position = graph["stop"] + 1
            if op == "call":
                print("shown:", stack[-1].tolist())
            elif not stack.pop():
                position = argument
            given |= {f"stack{n}": v for n, v in enumerate(stack)}
            code = self.parts["lab03.continuation"](code, position, len(stack))

    def gradients(self, *args: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients of the result's sum: of x, y and z, as far as there are arguments.

        Raises:
            MiniError: The function does not become one graph.
        """
        given = dict(zip("xyz", args, strict=False))
        graph = self.parts["lab03.breaks"](simple(self.function), dict.fromkeys(given, "tensor"))
        if graph["stop"] is not None:
            raise MiniError("there is a graph break in it", "take gradients of what has none")
        nodes = [[name, _NAMES.get(op, op), inputs] for name, op, inputs in graph["graph"]]
        joint = self.parts["lab04.joint"](self.parts["lab04.decompose"](nodes))
        found = [joint["gradients"][name] for name in given]
        wanted = [name for name in found if isinstance(name, str)]
        plain = [_written(*node) for node in joint["graph"]]
        values = self._run({"graph": plain}, wanted, given)
        ones = torch.ones_like(args[0])
        return [values[name] if isinstance(name, str) else ones * name for name in found]

    def _run(
        self, graph: dict[str, Any], wanted: Sequence[str], values: dict[str, Any]
    ) -> dict[str, Any]:
        """Run a captured graph, kernel by kernel: those that were written for such sizes."""
        tensors = {n: list(v.shape) for n, v in values.items() if isinstance(v, torch.Tensor)}
        made = graph.setdefault("kernels", {})
        kernels = made.get(repr(tensors))
        if kernels is None:
            kernels = made[repr(tensors)] = list(self._kernels(graph["graph"], wanted, tensors))
        for run in kernels:
            run(values)
        return values

    def _kernels(
        self, graph: Sequence[Node], wanted: Sequence[str], shapes: dict[str, list[int]]
    ) -> Iterator[_Call | _Kernel]:
        """Yield what computes some of the values from others."""
        nodes = {
            name: [name, _NAMES.get(op, op), [_constant(each) for each in inputs]]
            for name, op, inputs in graph
        }
        shapes = dict(shapes)
        count = max(map(math.prod, shapes.values()), default=1)
        asked = [
            {
                "name": name,
                "op": MATMUL if op in _CALLS else op,
                "inputs": inputs,
                "size": count,
                "output": name in wanted,
            }
            for name, op, inputs in nodes.values()
        ]
        plan = self.parts["lab06.fuse"](asked) if asked else []
        for number in order_of(asked, plan) or ():
            group = [each for each in nodes.values() if each[0] in plan[number]]
            if group[0][1] in _CALLS:
                name, _, inputs = group[0]
                given = [shapes[each] for each in inputs if each in shapes]
                shapes[name] = list(torch.broadcast_shapes(*given))
                yield _Call(*group[0])
                continue
            others = [each for each in asked if each["name"] not in plan[number]]
            read = {name for each in others for name in each["inputs"]}
            kept = [each[0] for each in group if each[0] in read or each[0] in wanted]
            kernel = _Kernel(self.parts, f"kernel_{len(self.texts)}", group, kept, shapes)
            shapes |= dict.fromkeys(kept, kernel.shape)
            self.texts.append(kernel.text)
            yield kernel


def mini_compile(function: Callable[..., Any], parts: Pieces | None = None) -> MiniCompiled:
    """Compile a function by the parts that a student has written.

    Args:
        function: Of float32 tensors and of numbers, which calls relu, sin, abs and show.
        parts: See ``pieces``; this notebook's and those of the hand-ins beside it if None.

    Raises:
        MiniError: A part is missing.
    """
    return MiniCompiled(function, parts or pieces())


@dataclass
class _Call:
    """An operator that torch runs."""

    name: str
    op: str
    inputs: list[str]

    def __call__(self, values: dict[str, Any]) -> None:
        given = [values[each] if each in values else float(each[:-1]) for each in self.inputs]
        values[self.name] = _CALLS[self.op](*given)


class _Kernel:
    """A fused group: its text, and what runs it."""

    def __init__(
        self,
        parts: Pieces,
        name: str,
        group: Sequence[Node],
        kept: Sequence[str],
        shapes: dict[str, list[int]],
    ) -> None:
        inside = {node[0] for node in group}
        read = dict.fromkeys(each for node in group for each in node[2] if each not in inside)
        self.kept = kept
        self.inputs = [each for each in read if each in shapes]
        self.shape = list(torch.broadcast_shapes(*(shapes[each] for each in self.inputs)))
        arguments = [f"const float* in{n}" for n in range(len(self.inputs))]
        arguments += [f"float* out{n}" for n in range(len(kept))]
        lines = [f'extern "C" int {name}({", ".join(arguments)})', "{"]
        # Of one result lab 5 writes the loops, whatever the sizes; several share a loop over all.
        self.flat = len(kept) > 1 or not {node[1] for node in group} <= _LOWERED
        lines += self._over_all(parts, group) if self.flat else self._loops(parts, group, shapes)
        self.text = "\n".join([_HEAD, *lines, "    return 0;", "}", ""])
        target = find_target("plain")
        assert isinstance(target, LibraryTarget)
        self.function = ctypes.CDLL(str(target.compile(self.text, edited=True)))[name]

    def _loops(
        self, parts: Pieces, group: Sequence[Node], shapes: dict[str, list[int]]
    ) -> list[str]:
        """Return loops over the result's dimensions: lab 5 says what is read where."""
        called = {each: f"in{n}" for n, each in enumerate(self.inputs)}
        names = {node[0] for node in group} | set(called)
        constants = dict.fromkeys(each for node in group for each in node[2] if each not in names)
        called |= {each: f"c{n}" for n, each in enumerate(constants)}
        known = {name: shapes.get(each, []) for each, name in called.items()}
        steps = [
            [n, op, [called.get(each, each) for each in given], None] for n, op, given in group
        ]
        shape, value = parts["lab05.sums"]({"inputs": known, "steps": steps})
        lines = [f"    const float {called[each]}[] = {{{each}}};" for each in constants]
        lines.append("    int64_t at = 0;")
        for n, size in enumerate(shape):
            lines.append("    " * (n + 1) + f"for (int64_t i{n} = 0; i{n} < {size}; ++i{n})")
        text = parts["lab05.text"](value, known)
        return [*lines, "    " * (len(shape) + 1) + f"out0[at++] = {text};"]

    def _over_all(self, parts: Pieces, group: Sequence[Node]) -> list[str]:
        """Return one loop over all elements: lab 6 writes what is computed of them."""
        place = {each: f"in{n}[i]" for n, each in enumerate(self.inputs)}
        graph = [
            {
                "name": name,
                "op": op,
                "inputs": [place.get(each, each) for each in given],
                "size": 1,
                "output": name in self.kept,
            }
            for name, op, given in group
        ]
        texts = [parts["lab06.write"](graph, each) for each in self.kept]
        head = f"    for (int64_t i = 0; i < {math.prod(self.shape)}; ++i) {{"
        return [head, *(f"        out{n}[i] = {text};" for n, text in enumerate(texts)), "    }"]

    def __call__(self, values: dict[str, Any]) -> None:
        given = [values[each].float() for each in self.inputs]
        given = list(torch.broadcast_tensors(*given)) if self.flat else given
        given = [each.contiguous() for each in given]
        found = [torch.empty(self.shape) for _ in self.kept]
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*given, *found)]
        self.function(*pointers)
        values |= dict(zip(self.kept, found, strict=True))


def _constant(value: Any) -> str:
    """Return a number as C has it; names stay."""
    return value if isinstance(value, str) else f"{float(value)!r}f"


def _written(name: str, op: str, inputs: Sequence[Any]) -> Node:
    """Return a node by the operators that lab 6 writes."""
    if op == "neg":
        return [name, "mul", [inputs[0], -1]]
    if op == "reciprocal":
        return [name, "div", [1, inputs[0]]]
    return [name, op, list(inputs)]


__all__ = ["PARTS", "MiniCompiled", "MiniError", "mini_compile", "pieces", "simple"]
