"""What the sandbox and its worker say to each other.

Messages are JSON objects, one a datagram, over a Unix socket pair; raw tensor bytes travel in
memory files whose descriptors accompany the message.  Nothing is pickled, so a kernel that
scribbles over the worker's memory can at worst garble a JSON object.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from fusec.systems import this_system

# A datagram holds descriptions only: texts and tensors are in the memory files.
MAX_MESSAGE = 160_000

# Poison for what a kernel must overwrite.  Two runs get different ones, so that a result
# which depends on memory that nothing wrote shows as a difference.  All-ones is NaN in every
# floating-point format; a bool other than 0 and 1 would be undefined behavior in itself.
POISON_FLOAT = (0xFF, 0xAB)
POISON_INTEGER = (0xAB, 0x54)
POISON_BOOL = (1, 0)

# Filled into the rest of the page beside an argument, and looked at afterwards.
MARGIN = 0xC7

# What a candidate prints goes to a memory file of this size at most.
OUTPUT_LIMIT = 1 << 20

Message = dict[str, Any]


def send(sock: socket.socket, message: Message, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message and the descriptors that go with it."""
    data = json.dumps(message).encode()
    if len(data) > MAX_MESSAGE:
        raise ValueError(f"a message of {len(data)} bytes is too long")
    this_system().send(sock, data, descriptors)


def receive(sock: socket.socket) -> tuple[Message | None, tuple[int, ...]]:
    """Return the next message and its descriptors; None when the other side is gone."""
    data, descriptors = this_system().receive(sock, MAX_MESSAGE)
    return (json.loads(data), descriptors) if data else (None, ())


def poison_byte(kind: str, index: int) -> int:
    """Return the poison of run ``index`` for an element ``kind``: float, integer or bool."""
    table = {"float": POISON_FLOAT, "integer": POISON_INTEGER, "bool": POISON_BOOL}
    return table[kind][index % 2]
