"""Every text that the project raises, warns with, notes or shows, collected from its source.

``python -m support.messages`` prints the catalogue, grouped by folder; the site has it as a page,
and ``tests/docs/test_messages.py`` holds what can be held by rules: the rest is for reading aloud.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from support.paths import ROOT

PACKAGES = ("compiler/fusec", "ext/fuselab")
APART = ("labs/content",)  # lessons, not messages
# Calls beside ``raise`` whose texts people see.
SHOWN = frozenset("Verdict Finding say begin stopping refused Diagnostic run_in_eager".split())
# Where any text of several words is shown: buttons, headings, sentences, reasons.
WORKBENCH = (
    "ext/fuselab/cell",
    "ext/fuselab/display",
    "ext/fuselab/magics",
    "ext/fuselab/panel",
    "ext/fuselab/session",
    "compiler/fusec/capture/dynamo/graph_breaks.py",
    "compiler/fusec/inspect",
    "compiler/fusec/schedule/choices",
    "compiler/fusec/schedule/fuse.py",
    "compiler/fusec/verify/comparison/words.py",
    "compiler/fusec/verify/isolation/sanitize.py",
    "compiler/fusec/verify/isolation/state.py",
    "compiler/fusec/verify/words.py",
)
_WORDS = re.compile(r"[A-Za-z]{2,} [a-z]{2,}")
_MARKUP = re.compile(r"[<>\\^|#]|\n.*\n|px\b|: ?[\w.]+;|\w=['\"]")
# What is raised for whoever works on the project, or caught within it.
INTERNAL = frozenset({"AssertionError", "NotImplementedError", "AttributeError"})


@dataclass(frozen=True)
class Message:
    """A text.

    Attributes:
        file: Where it is, from the root.
        line: Likewise.
        kind: What is raised, or called with it.
        text: What it says; what is put in stands in braces.
    """

    file: str
    line: int
    kind: str
    text: str


@functools.cache
def collect() -> tuple[Message, ...]:
    """Return all of them, in the order of files and lines."""
    found: list[Message] = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if not any(part in name for part in APART):
                tree = ast.parse(path.read_text(encoding="utf-8"))
                own = list(_of(tree, name))
                if name.startswith(WORKBENCH):
                    own += _shown(tree, name, {message.text for message in own})
                found += sorted(own, key=lambda m: m.line)
    return tuple(found)


def _shown(tree: ast.Module, name: str, known: set[str]) -> Iterator[Message]:
    """Yield what else has several words and is neither a docstring nor markup."""
    apart: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):  # a docstring
            apart.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            apart.update(id(part) for part in node.values)
        elif isinstance(node, ast.Raise):  # for whoever works on the project
            apart.update(id(part) for part in ast.walk(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in apart:
            for text in _texts(node):
                plain = re.sub(r"\{[^{}]*\}", "", text)
                if _WORDS.search(plain) and not _MARKUP.search(plain) and text not in known:
                    known.add(text)
                    yield Message(name, node.lineno, "text", text)


def _of(tree: ast.Module, name: str) -> Iterator[Message]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call = node.exc
        elif isinstance(node, ast.Call) and (_name(node.func) in SHOWN or _notes(node.func)):
            call = node
        else:
            continue
        given = [*call.args, *(k.value for k in call.keywords if k.arg in ("reason", "details"))]
        for argument in given:
            for text in _texts(argument):
                # One word is a name or a kind.
                if " " in text.strip() and _name(call.func) not in INTERNAL:
                    yield Message(name, node.lineno, _name(call.func), text)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def _notes(function: ast.expr) -> bool:
    """Whether something is called that ends in ``notes.append``."""
    if not isinstance(function, ast.Attribute) or function.attr != "append":
        return False
    return _name(function.value).endswith("notes")


def _texts(node: ast.expr) -> Iterator[str]:
    """Yield what an argument may say: both sides of a condition are texts of their own."""
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body)
        yield from _texts(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else _hole(part) for part in node.values
        )
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = "".join(_texts(node.left)), "".join(_texts(node.right))
        yield left + right


def _hole(part: ast.expr) -> str:
    inner = part.value if isinstance(part, ast.FormattedValue) else part
    return "{" + re.sub(r"\s+", " ", ast.unparse(inner)) + "}"


def catalogue() -> str:
    """Return all of them as a page in Markdown, by folder and kind."""
    lines: list[str] = []
    folder = ""
    for message in collect():
        here = "/".join(message.file.split("/")[1:3]).removesuffix(".py")
        if here != folder:
            lines += ["", f"## {here}", ""]
            folder = here
        text = message.text.replace("\n", " ").replace("`", "'")
        lines.append(f"- **{message.kind}**: `{text}`")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(catalogue())
