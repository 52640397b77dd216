"""What passes say of an operator that they changed: a kind to decide on, and words to show."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from torch import fx

# In a node's ``meta``.
NOTES = "fusec_notes"


class NoteKind(Enum):
    """What was done to an operator."""

    WIDENED = auto()
    PADDED = auto()
    CHANNELS_LAST = auto()
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


__all__ = ["NOTES", "Note", "NoteKind", "add_note", "has_note", "notes"]
