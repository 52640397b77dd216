"""What an edit is, as the tables of edits have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Group = Literal[
    "ends",
    "later",
    "processes",
    "state",
    "keeps",
    "memory",
    "hangs",
    "values",
    "hidden",
    "met",
    "compiler",
    "right",
]

TITLES: dict[Group, str] = {
    "ends": "ends the process, at once",
    "later": "ends or hangs the process, or writes, later on",
    "processes": "starts processes or threads",
    "state": "changes the process",
    "keeps": "keeps something from call to call",
    "memory": "uses memory that is not its own, or too much",
    "hangs": "does not come back, or floods",
    "values": "computes something else",
    "hidden": "hides what it does",
    "met": "is right but where certain values are met",
    "compiler": "is the compiler's to fear",
    "right": "is right, and has to be accepted",
}


@dataclass(frozen=True)
class Fault:
    """One edit.

    Attributes:
        name: For people.
        group: What kind of harm it does.
        code: C++ at the start of the kernel.
        says: Part of the verdict's reason; nothing in particular if empty.
        top: C++ before the kernel.
        instead: Whether ``code`` is all that the kernel does.
        line: Whether the verdict has to name the line of what it refuses.
    """

    name: str
    group: Group
    code: str
    says: str = ""
    top: str = ""
    instead: bool = False
    line: bool = False

    @property
    def by_openmp(self) -> bool:
        """Whether it does no harm where no OpenMP is."""
        return any(word in self.code + self.top for word in ("#pragma omp", "GOMP_", "omp_"))


RIGHT_LOOP = """\
    for (int64_t i = 0; i < $n; ++i) {
        const float total = $x[i] * $w[i % 64] + $b[i % 64];
        $out[i] = total < 0.0f ? 0.0f : total;
    }
"""


def calls(name: str, header: str, code: str, says: str, group: Group, top: str = "") -> Fault:
    """Return an edit that calls a function of a header's."""
    return Fault(name, group, code, says, f"#include <{header}>\n{top}", line=True)


def after(calls: int, code: str) -> str:
    """Return code that runs from some call on."""
    return f"static int calls = 0; if (++calls > {calls}) {{ {code} }}"
