"""Readable text of bodies and programs."""

from __future__ import annotations

from fusec.ir.body import Body
from fusec.ir.index import Expr
from fusec.ir.node import Cast, Const, IndexValue, Load, Node, Op, Reduce, Scan
from fusec.ir.program import Compute, Program, TensorRef


def dtype_name(node_dtype: object) -> str:
    """Return ``float32`` for ``torch.float32``."""
    return str(node_dtype).removeprefix("torch.")


def format_index(index: tuple[Expr, ...]) -> str:
    """Return ``[i0, i1 + 1]``."""
    return "[" + ", ".join(str(e) for e in index) + "]"


_SIGNS = {
    "set": "=",
    "sum": "= the sum of",
    "put": ":=",
    "some": "?=",
    "add": "+=",
    "mul": "*=",
    "max": "max=",
    "min": "min=",
}


def format_body(body: Body, indent: str = "") -> str:
    """Return the body as a loop nest, one assignment a value that is used."""
    lines: list[str] = []
    loops = [f"{a} < {a.size}" for a in body.axes]
    lines.append(f"{indent}for {', '.join(loops)}:" if loops else f"{indent}once:")
    if body.reduce_axes:
        lines.append(
            f"{indent}  reduced over {', '.join(f'{a} < {a.size}' for a in body.reduce_axes)}"
        )
    names: dict[int, str] = {}
    for node in body.nodes():
        text = _format_node(node, names)
        if isinstance(node, Const):
            names[id(node)] = text
            continue
        name = f"v{len([n for n in names.values() if n.startswith('v')])}"
        names[id(node)] = name
        origin = f"   # {node.source}" if node.source else ""
        lines.append(f"{indent}  {name}: {dtype_name(node.dtype)} = {text}{origin}")
    for store in body.stores:
        sign = _SIGNS[store.mode]
        target = f"{store.buffer}{format_index(store.index)}"
        lines.append(f"{indent}  {target} {sign} {names[id(store.value)]}")
    return "\n".join(lines)


def _format_node(node: Node, names: dict[int, str]) -> str:
    args = [names[id(arg)] for arg in node.args]
    if isinstance(node, Const):
        return repr(node)
    if isinstance(node, IndexValue):
        return f"index({node.expr})"
    if isinstance(node, Load):
        mask = f" if {names[id(node.mask)]} else {node.other}" if node.mask is not None else ""
        return f"{node.buffer}{format_index(node.index)}{mask}"
    if isinstance(node, Cast):
        word = "bitcast" if node.bitcast else "round" if node.implicit else "cast"
        return f"{word}({args[0]})"
    if isinstance(node, Reduce):
        return f"{node.kind}({', '.join(args)} over {', '.join(map(str, node.axes))})"
    if isinstance(node, Scan):
        return f"running {node.kind}({args[0]} along {node.axis})"
    assert isinstance(node, Op)
    return f"{node.name}({', '.join(args)})"


def format_value(value: object) -> str:
    """Return an argument of an extern call in short."""
    if isinstance(value, TensorRef):
        return f"{value.buffer}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(format_value(v) for v in value) + "]"
    return str(value)


def format_program(program: Program) -> str:
    """Return the whole program: buffers, then steps."""
    lines = [f"inputs: {', '.join(program.inputs)}"]
    for buffer in program.buffers.values():
        shape = " x ".join(str(s) for s in buffer.shape) or "scalar"
        hint = f"  ({buffer.hint})" if buffer.hint else ""
        lines.append(
            f"  {buffer.name}: {dtype_name(buffer.dtype)} {shape}, strides "
            f"{format_index(buffer.strides)} on {buffer.device}{hint}"
        )
    for step in program.steps:
        if isinstance(step, Compute):
            lines.append(f"{step.name}  # {step.label}")
            lines.append(format_body(step.body, "  "))
        else:
            args = [format_value(a) for a in step.args]
            args += [f"{k}={format_value(v)}" for k, v in step.kwargs.items()]
            lines.append(f"{', '.join(step.outputs)} = extern {step.target}({', '.join(args)})")
            lines.append(f"  # {step.reason}")
    lines.append(f"return {', '.join(format_value(v) for v in program.outputs)}")
    return "\n".join(lines)
