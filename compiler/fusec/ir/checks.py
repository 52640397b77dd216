"""Checks that a kernel makes while it runs: operations whose name says what must hold."""

from __future__ import annotations

from enum import Enum
from typing import TypeGuard

from fusec.ir.node import Node, Op

# An ``Op`` whose name begins so yields its second argument where the first one, a bool, holds; the
# kernel fails elsewhere. What fails and the message are the rest of the name.
_PREFIX = "check:"


class CheckKind(Enum):
    """What a run-time check is of, which decides what eager raises where it fails."""

    INDEX = "index"
    DIVISION = "division"


def check_name(kind: CheckKind, message: str) -> str:
    """Return the name of the operation that checks."""
    return f"{_PREFIX}{kind.value}:{message}"


def check_parts(name: str) -> tuple[CheckKind, str]:
    """Return what an operation checks, and the message where that fails."""
    kind, _, message = name.removeprefix(_PREFIX).partition(":")
    return CheckKind(kind), message


def is_check(node: Node | None) -> TypeGuard[Op]:
    """Whether a node is a check at run time."""
    return isinstance(node, Op) and node.name.startswith(_PREFIX)
