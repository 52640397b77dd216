"""Whether an edited Triton file still has the function ``launch`` that the host program calls."""

from __future__ import annotations

import ast

from fusec.target_api.c_entry import Mismatch


def check_entry(text: str, entry: str, generated: str) -> Mismatch | None:
    """Return how ``entry`` in ``text`` differs from the generated one's, or None."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return Mismatch("compile", f"{type(error).__name__}: {error.msg}", error.lineno)
    except (RecursionError, MemoryError):
        return Mismatch("compile", "it is nested deeper than Python can read")
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    if entry not in functions:
        return Mismatch("signature", f"the function {entry}(...) is missing")
    found = functions[entry]
    try:
        reference = ast.parse(generated)
    except SyntaxError:
        return None
    wanted = next(
        (n for n in reference.body if isinstance(n, ast.FunctionDef) and n.name == entry), None
    )
    if wanted is not None and _parameters(found) != _parameters(wanted):
        reason = (
            f"{entry}({', '.join(_parameters(found))}) must keep its parameters: "
            f"({', '.join(_parameters(wanted))})"
        )
        return Mismatch("signature", reason, found.lineno)
    if not any(_is_jit(d) for f in functions.values() for d in f.decorator_list):
        return Mismatch("signature", "there is no @triton.jit function in it")
    return None


def _parameters(function: ast.FunctionDef) -> list[str]:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args)]
    if given.vararg:
        names.append("*" + given.vararg.arg)
    names += [a.arg for a in given.kwonlyargs]
    if given.kwarg:
        names.append("**" + given.kwarg.arg)
    return names


def _is_jit(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        return _is_jit(decorator.func) or any(_is_jit(a) for a in decorator.args)
    if isinstance(decorator, ast.Attribute):
        return decorator.attr == "jit"
    return isinstance(decorator, ast.Name) and decorator.id == "jit"


__all__ = ["check_entry"]
