"""What passes say of an operator that they changed: a kind to decide on, and words to show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from torch import fx

# In a node's ``meta``.
NOTES = "fusec_notes"


# Of a node that TorchDynamo captured: torch copies this dictionary to all that becomes of it.
_CUSTOM, _SAID = "custom", "fusec_said"


class NoteKind(Enum):
    """What was done to an operator."""

    WIDENED = auto()
    PADDED = auto()
    CHANNELS_LAST = auto()
    LEFT = auto()  # nothing, for a reason
    ODD_ROWS = auto()  # nothing: a kernel is to take its place, whose rows may start anywhere


@dataclass(frozen=True)
class Note:
    """What a pass says of an operator.

    Attributes:
        kind: What was done; decisions are made on it.
        words: For the reason of its call; only shown.
    """

    kind: NoteKind
    words: str


def notes(node: fx.Node) -> tuple[Note, ...]:
    """Return what passes said of a node, in order."""
    found: tuple[Note, ...] = node.meta.get(NOTES, ())
    return found


def add_note(node: fx.Node, kind: NoteKind, words: str) -> None:
    """Say one thing more of a node."""
    node.meta[NOTES] = (*notes(node), Note(kind, words))


def has_note(node: fx.Node, kind: NoteKind) -> bool:
    """Whether something was said of a node."""
    return any(note.kind is kind for note in notes(node))


def say_of_captured(node: fx.Node, words: str) -> None:
    """Say something of a captured node, for the reasons of calls that become of it."""
    node.meta[_CUSTOM] = {**(node.meta.get(_CUSTOM) or {}), _SAID: words}


def said_of_captured(node: fx.Node) -> str:
    """Return what was said of the captured node that one comes from."""
    words: str = (node.meta.get(_CUSTOM) or {}).get(_SAID, "")
    return words


__all__ = [
    "NOTES",
    "Note",
    "NoteKind",
    "add_note",
    "has_note",
    "notes",
    "said_of_captured",
    "say_of_captured",
]
