"""Pages whose code is run: what a block prints is what the page shows below it.

A page is Markdown. Its blocks of ``python`` are cells of one notebook, run in order in IPython with
Fuselab loaded; comments, which no reader sees, say the rest::

    <!-- run                      code that is run and not shown
    x = torch.randn(4)
    -->
    <!-- prints -->               the next block is what the code before it printed
    <!-- prints measured -->      the same, but for figures, which differ from run to run
    <!-- prints from "a" to "b" --> only from the first line with a to the next line with b
    <!-- not run: why -->         the next block of code is left alone

``python -m support.pages docs/tour.md --write`` puts the texts of today's code into a page.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.paths import ROOT
from support.reading_list import counted_again

FENCE = re.compile(r"^(?P<fence>```+)(?P<language>\w*) *(?:title=\"(?P<title>[^\"]*)\")?.*$")
COMMENT = re.compile(r"<!-- (.*?) *-->", re.S)
SLICE = re.compile(r'from "(?P<first>.*?)" to "(?P<last>.*?)"$')

# What is different in every run, or on every machine: times, rates, ratios, rounding errors.
FIGURES = (
    # What a noisy machine says beside the times, and what bounds a cell there.
    (
        re.compile(
            r"^ +note +(?:this machine is busy|\S+ alone took longer)(?:.*\n)(?: {10}.*\n)*", re.M
        ),
        "",
    ),
    (
        re.compile(
            r"^ +(?:waits for|bound by|too small|computes matrix|what bounds it is not known)"
            r".*\(.*(?:limit here|was timed).*\)$",
            re.M,
        ),
        "BOUND",
    ),
    (re.compile(r"(?:\d+|<1)% of the time"), "SHARE"),
    # As much as beside a machine that is quiet: of what it was not told apart.
    (re.compile(r"not told apart from ([^:()\n;]+): the times vary too much"), r"RATIO \1"),
    (re.compile(r"\(?not told apart[^()\n;]*\)?"), "RATIO"),
    (
        re.compile(r"as fast as|\(?[\d.]+× (?:faster|slower)(?: than)?\)?|\(?the same(?: as)?\)?"),
        "RATIO",
    ),
    (re.compile(r"\[\d+(?:, \d+)*\]"), "PLACE"),
    (re.compile(r"\b\d+(?:\.\d+)?(?:e[-+]?\d+)? (?:ns|µs|ms|s|[KMGT]B/s)(?!\w)"), "TIME"),
    (re.compile(r"\b\d+\.\d+(?:e[-+]?\d+)?\b"), "NUMBER"),
)

TRY = "try it"  # what a recipe may write over code that is no file

Run = Callable[[str], str]


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or code in a comment.

    Attributes:
        language: Behind its fence.
        title: The file that it belongs into, where the fence says one.
        text: What stands between the fences.
        note: The comment right before it.
        start: Number of its first line in the page, from 0.
        end: Number of the line behind its last one.
    """

    language: str
    title: str
    text: str
    note: str
    start: int
    end: int

    @property
    def is_code(self) -> bool:
        """Whether it is a cell of the page's notebook."""
        python = self.language == "python" and self.title in ("", TRY)
        return python and not self.note.startswith(("prints", "not run"))

    @property
    def is_printed(self) -> bool:
        """Whether it shows what the code before it prints."""
        return self.note.startswith("prints")

    def excerpt(self, printed: str) -> str:
        """Return the part of an output that it shows.

        Raises:
            ValueError: The output has no such lines.
        """
        match = SLICE.search(self.note)
        lines = [line.rstrip() for line in printed.strip("\n").splitlines()]
        if match:
            first = next((n for n, line in enumerate(lines) if match["first"] in line), None)
            ends = [
                n for n, line in enumerate(lines) if match["last"] in line and n >= (first or 0)
            ]
            if first is None or not ends:
                raise ValueError(f"nothing printed is {self.note[7:]}:\n{printed}")
            lines = lines[first : ends[0] + 1]
        return "\n".join(lines)

    def comparable(self, text: str) -> list[str]:
        """Return lines to compare: all there is, or all but figures where they were measured."""
        if "measured" not in self.note:
            return [line.rstrip() for line in text.splitlines()]
        for pattern, word in FIGURES:
            text = pattern.sub(word, text)
        return [" ".join(line.split()) for line in text.splitlines()]


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    lines = text.splitlines()
    number, note = 0, ""
    while number < len(lines):
        line, start = lines[number], number + 1
        number += 1
        if fence := FENCE.match(line):
            while number < len(lines) and lines[number].strip() != fence["fence"]:
                number += 1
            inside = "\n".join(lines[start:number])
            yield Block(fence["language"], fence["title"] or "", inside, note, start, number)
            number, note = number + 1, ""
        elif line.startswith("<!-- "):
            while "-->" not in lines[number - 1]:
                number += 1
            comment = COMMENT.search("\n".join(lines[start - 1 : number]))
            note = comment[1] if comment else ""
            if note.startswith("run\n"):
                yield Block("python", "", note[4:], "", start, start)
                note = ""
        elif line.strip():
            note = ""


def shown(text: str, run: Run) -> Iterator[tuple[Block, str]]:
    """Run a page's code and yield each block of output with what it should show."""
    printed = ""
    for block in blocks(text):
        if block.is_code:
            printed = run(block.text)
        elif block.is_printed:
            yield block, block.excerpt(printed)


def differences(text: str, run: Run) -> list[str]:
    """Run a page's code; return where the page shows something else than what it prints."""
    found = []
    for block, now in shown(text, run):
        for number, pair in enumerate(_pairs(block.comparable(block.text), block.comparable(now))):
            if pair[0] != pair[1]:
                line = block.start + number + 1
                found.append(f"line {line}: the page has {pair[0]!r}, the code prints {pair[1]!r}")
                break
    return found


def _pairs(page: list[str], code: list[str]) -> list[tuple[str | None, str | None]]:
    length = max(len(page), len(code))
    both = [[*lines, *[None] * (length - len(lines))] for lines in (page, code)]
    return list(zip(*both, strict=True))


def rewritten(text: str, run: Run, *, figures: bool = False) -> str:
    """Return a page with what its code prints now; figures stay where nothing else changed."""
    lines = text.splitlines()
    for block, now in reversed(list(shown(text, run))):
        if figures or block.comparable(block.text) != block.comparable(now):
            lines[block.start : block.end] = now.splitlines()
    return "\n".join(lines) + "\n"


# --- running ---------------------------------------------------------------------------------


def fresh_shell() -> Any:
    """Return the process's IPython with no names of anybody's and the extension loaded anew."""
    import torch
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.testing.globalipapp import start_ipython

    import fuselab
    from fusec.call import native

    # A page shows what is timed with it; a busy machine builds it for longer than a cell waits.
    native.types(wait=True)
    shell = start_ipython() or InteractiveShell.instance()
    for name in [n for n in shell.user_ns if n[0] != "_" and n not in shell.user_ns_hidden]:
        del shell.user_ns[name]
    # Cells are named by their number, as in a notebook that begins with the page: a name that
    # another test's cell has would be told apart from it.
    for name in [name for name in linecache.cache if name.startswith("<fuse ")]:
        del linecache.cache[name]
    shell.execution_count = 1
    shell.history_manager.reset(new_session=True)
    torch._dynamo.reset()
    torch.manual_seed(0)
    shell.extension_manager.unload_extension("fuselab")
    fuselab.unload_ipython_extension(shell)  # whoever loaded it, and how
    return shell


def run_in(shell: Any) -> Run:
    """Return what runs a cell in an IPython shell and hands back its output."""

    def run(code: str) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            result = shell.run_cell(code, store_history=True)
        if result.error_in_exec or result.error_before_exec:
            print(output.getvalue())
        result.raise_error()
        return re.sub(r"^Out\[\d+\]: ?\n?", "", output.getvalue(), flags=re.M)

    return run


def main() -> int:
    """Compare pages with what their code prints, or write it into them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="put it into the pages")
    parser.add_argument(
        "--figures", action="store_true", help="new figures as well: time to be idle"
    )
    args = parser.parse_args()
    wrong = False
    for page in args.pages:
        shell, text = fresh_shell(), page.read_text()
        if args.write:
            text = rewritten(text, run_in(shell), figures=args.figures)
            page.write_text(counted_again(text, ROOT))
            continue
        for line in differences(text, run_in(shell)):
            print(f"{page}: {line}")
            wrong = True
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
