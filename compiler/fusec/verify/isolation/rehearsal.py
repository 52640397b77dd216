"""The Python of a kernel file, run for the first time where it can do no harm.

What Triton compiles can only compute; the code around it is ordinary Python, which may never come
back, end its process or change it, and which has to run before anybody knows what it starts.  So
a text of the user's runs in a worker first, on tensors without memory, and whatever starts it in
the notebook has seen it come to its end.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import torch

from fusec.errors import CompileError, Diagnostic
from fusec.kernel_source import Signature
from fusec.target_api.base import PythonTarget
from fusec.verify import words
from fusec.verify.isolation.layout import Case, CaseLayout
from fusec.verify.isolation.process import WorkerError
from fusec.verify.isolation.sandbox import worker
from fusec.verify.protocol import Message
from fusec.verify.words import Finding

# What starting kernels takes of a processor, at the very most, and the compiler's front end; how
# many times longer that may take on a machine that others use.
SECONDS = 3.5
_BUSY = 3.0
# So much later it is ended from outside, which does not know the line.
_LATER = 1.0
_GRACE = 3.0
# Of the compiler's own threads.
_THREADS = 64


def rehearse(
    target: PythonTarget,
    text: str,
    generated: str,
    entry: str,
    signature: Signature,
    case: Case,
) -> Finding | None:
    """Run a text's own Python in a worker; return what is wrong with it, None if nothing is.

    Args:
        target: Whose text it is.
        text: The whole kernel file.
        generated: The generated one.
        entry: The function that starts its kernels.
        signature: What that takes.
        case: Tensors and sizes as it is called with; their values do not matter.

    Raises:
        CompileError: A line of it fails, or the target's compiler refuses a kernel.
        WorkerError: The worker cannot be started.
    """
    body: Message = {
        "worker": target.worker,
        "entry": entry,
        "text": text,
        "file": f"{entry}.py",
        "threads": _THREADS,
        "timeout": SECONDS,
        "asleep": _BUSY * SECONDS,
        "cases": CaseLayout(signature, [case], runs=0).described,
        "rehearse": True,
        "device": _properties(),
    }
    nothing = CaseLayout(Signature(()), [], runs=0)
    with nothing.files(json.dumps(body).encode()) as (data, results, place):
        request: Message = {
            "do": "run",
            "modules": _imports(target, text, generated),
            "timeout": _BUSY * SECONDS + _LATER,
            "step": _BUSY * SECONDS + _LATER,
            "body": place,
        }
        reply = worker().ask(request, (data, results), _BUSY * SECONDS + _LATER + _GRACE)
    if "failed" in reply:
        raise WorkerError(reply["failed"])
    for report in reply["reports"]:
        if "done" in report:
            return None
        if "refused" in report:
            said = report["refused"]
            found = [Diagnostic(**diagnostic) for diagnostic in said["diagnostics"]]
            raise CompileError(found, said["output"])
    return words.finding(reply, signature, case.shapes)


def _imports(target: PythonTarget, text: str, generated: str) -> list[str]:
    """Return what the worker imports: more where somebody has changed what starts the kernels."""
    more = () if _own_python(text) == _own_python(generated) else target.rehearsal_imports
    return [*target.worker_imports, *more]


def _own_python(text: str) -> list[str] | None:
    """Return what of a file its compiler does not see, less words and numbers with a name.

    None where it is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    statements = [each for each in tree.body if not (_is_compiled(each) or _is_number(each))]
    for node in ast.walk(ast.Module(statements, [])):
        if isinstance(node, ast.FunctionDef):
            node.body = [each for each in node.body if not _is_said(each)]
    return [ast.dump(each) for each in statements if not _is_said(each)]


def _is_compiled(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(each, ast.Attribute) and each.attr == "jit" for each in node.decorator_list
    )


def _is_said(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_number(node: ast.stmt) -> bool:
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def _properties() -> dict[str, Any] | None:
    """Return what torch knows of the GPU in use, None where none is: there CUDA cannot be asked."""
    if not torch.cuda.is_initialized():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    asked = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    return {name: value for name, value in asked.items() if isinstance(value, (int, str))}


__all__ = ["SECONDS", "rehearse"]
