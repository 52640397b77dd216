"""What may happen around a user: to the cache, the compiler, the folders, the processes, and when.

Each trouble is made ready in a place of its own (``prepare``), then a process that stands for a
user's script does something there (``act``, in ``user``).  Its results have to be eager's; ``says``
is what the user has to read of it, and where it is empty the user must be told nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from faults import makeready
from faults.makeready import Place

Where = Literal["cache", "compilers", "folders", "cells", "interrupts", "processes"]

TITLES: dict[Where, str] = {
    "cache": "the cache",
    "compilers": "the compiler",
    "folders": "folders and paths",
    "cells": "what is in a cell",
    "interrupts": "somebody presses Stop",
    "processes": "processes, threads and event loops",
}

# What a user reads where the compiler is of no use: all of it is computed, by eager.
EAGER = "runs in eager: "


@dataclass(frozen=True)
class Trouble:
    """One thing that happens.

    Attributes:
        name: For people.
        where: What it happens to.
        act: What the user does; a function of ``user``.
        prepare: Makes it ready.
        says: A regular expression for what the user has to read; nothing at all if empty.
        limit: Seconds for a process of the user's, all in all.
        users: How many of them there are at once.
        known: Why it does not yet end as it should; empty where it has to.
    """

    name: str
    where: Where
    act: str = "fuse"
    prepare: Callable[[Place], None] = makeready.nothing
    says: str = ""
    limit: float = 120.0
    users: int = 1
    known: str = ""


def _compiler(
    name: str, script: str, says: str, *, act: str = "fuse", limit: float = 120
) -> Trouble:
    return Trouble(name, "compilers", act, makeready.compiler(script), says, limit)


def _kernels(script: str) -> str:
    """Return a compiler that is the real one, but for kernels."""
    return f'case "$*" in *kernel.cpp*) {script} ;; esac\nexec "$REAL" "$@"\n'


CACHE = (
    Trouble("eight processes on an empty cache", "cache", users=8, limit=300),
    Trouble(
        "a folder that cannot be made",
        "cache",
        prepare=makeready.a_file_in_the_way,
        says="cannot use .*temporary folder",
    ),
    Trouble("a disk that is read-only", "cache", "read_only_disk", says="Read-only file system"),
    Trouble("a disk that is full", "cache", "full_disk", says="No space left on device"),
    Trouble(
        "a full disk, for temporary files as well",
        "cache",
        "full_everywhere",
        says=f"{EAGER}.*No space left on device",
    ),
    Trouble("deleted while in use", "cache", "deleted_cache"),
    Trouble(
        "a link to a folder", "cache", prepare=makeready.linked_cache, says="not a real folder"
    ),
    Trouble(
        "another owner's",
        "cache",
        prepare=makeready.owned_by_another,
        says="belongs to another user",
    ),
    Trouble(
        "others may write to it",
        "cache",
        prepare=makeready.open_to_all,
        says="written by other users",
    ),
    Trouble("links in the place of entries", "cache", prepare=makeready.linked_entries),
    Trouble("links in the place of files", "cache", prepare=makeready.linked_files),
    Trouble(
        "one kernel's library in another's place", "cache", prepare=makeready.swapped_libraries
    ),
    Trouble("one kernel's entry in another's place", "cache", prepare=makeready.swapped_entries),
    Trouble("a byte flipped in every file", "cache", prepare=makeready.flipped_everywhere),
    Trouble("every file cut in half", "cache", prepare=makeready.cut_in_half),
)

COMPILERS = (
    _compiler("fails at everything", "echo no licence >&2; exit 1\n", f"{EAGER}.*cannot build"),
    _compiler("hangs at everything", "sleep 1000\n", f"{EAGER}.*does not answer", limit=100),
    _compiler("is not a program", "\0\1\2", f"{EAGER}.*cannot build"),
    _compiler(
        "fails at kernels, without a word",
        _kernels("exit 1"),
        f"{EAGER}.*the compiler says nothing",
    ),
    _compiler("crashes", _kernels("kill -SEGV $$"), f"{EAGER}.*signal 11"),
    _compiler("is killed for memory", _kernels("kill -KILL $$"), f"{EAGER}.*signal 9"),
    _compiler(
        "prints 20 megabytes, and fails",
        _kernels("yes 'kernel.cpp:1:1: error: no' | head -c 20000000; exit 1"),
        f"{EAGER}.*line 1: no$",
    ),
    _compiler(
        "prints a line of 20 megabytes, and fails",
        _kernels("yes error | tr -d '\\n' | head -c 20000000; exit 1"),
        f"{EAGER}the kernel does not compile: .{{1,400}}$|{EAGER}.{{1,500}}$",
    ),
    _compiler("prints 20 megabytes, and works", _kernels("yes | head -c 20000000"), ""),
    _compiler("makes nothing, and says that all is well", _kernels("exit 0"), f"{EAGER}.*compile"),
    _compiler(
        "makes a library of garbage",
        _kernels('while [ "$1" != -o ]; do shift; done; echo garbage > "$2"; exit 0'),
        f"{EAGER}.*cannot load",
    ),
    _compiler("hangs at kernels", _kernels("sleep 1000"), f"{EAGER}.*did not finish in", limit=200),
    _compiler(
        "hangs at kernels, and Stop is pressed", _kernels("sleep 1000"), "", act="stop_a_build"
    ),
    _compiler(
        "prints without end, and Stop is pressed", _kernels("exec yes"), "", act="stop_a_build"
    ),
    _compiler(
        "is gone when it is needed", 'exec "$REAL" "$@"\n', f"{EAGER}.*", act="compiler_goes"
    ),
    _compiler("is slow to begin", 'sleep 1; exec "$REAL" "$@"\n', "", limit=200),
)

FOLDERS = (
    Trouble("TMPDIR names no folder", "folders", prepare=makeready.no_tmpdir),
    Trouble("the folder for temporary files is deleted", "folders", "deleted_tmp"),
    Trouble("no home", "folders", prepare=makeready.no_home, says="cannot use"),
    Trouble("the working folder is deleted", "folders", "deleted_folder"),
    Trouble("spaces and umlauts in every path", "folders", "edit", makeready.umlauts),
    Trouble("quotes, dollars and line ends in every path", "folders", "edit", makeready.quotes),
)

CELLS = (
    Trouble("5,000 lines", "cells", "long_cell", limit=600),
    Trouble("names that are keywords of C++", "cells", "keywords_of_cpp", limit=300),
    Trouble("cells named as keywords of Python and C++", "cells", "keyword_names", limit=300),
    Trouble("names in all alphabets", "cells", "alphabets"),
)

INTERRUPTS = (
    Trouble("at a random moment of a process's first cell", "interrupts", "interrupted_start"),
    Trouble("at random moments of first runs", "interrupts", "interrupts", limit=600),
    Trouble("at random moments of a check", "interrupts", "interrupted_checks", limit=600),
)

PROCESSES = (
    Trouble("workers of a DataLoader, forked", "processes", "loader_fork"),
    Trouble("workers of a DataLoader, spawned", "processes", "loader_spawn", limit=240),
    Trouble("a fork calls what was compiled before it", "processes", "fork_calls"),
    Trouble("a fork compiles", "processes", "fork_compiles"),
    Trouble("a fork checks an edit", "processes", "fork_edits"),
    Trouble("tasks of asyncio", "processes", "event_loop"),
    Trouble("eight threads compile at once", "processes", "threads"),
    Trouble("sizes near the end of its memory", "processes", "memory_end", limit=240),
)

TROUBLES = (*CACHE, *COMPILERS, *FOLDERS, *CELLS, *INTERRUPTS, *PROCESSES)

__all__ = ["TITLES", "TROUBLES", "Trouble", "Where"]
