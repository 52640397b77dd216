"""``%%task``, ``%hint``, ``%progress`` and ``%hand_in``: what a student types in a lab."""

from __future__ import annotations

import contextlib
import linecache
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import cell_magic, line_magic, magics_class, no_var_expand

from fuselab.errors import FuselabError
from fuselab.magics.base import SessionMagics

if TYPE_CHECKING:
    from fuselab.judge.verdict import AnswerVerdict
    from fuselab.labs.progress import ProgressTable, Said


@magics_class
class LabMagics(SessionMagics):
    """What a student types."""

    @no_var_expand
    @cell_magic
    def task(self, line: str, cell: str) -> AnswerVerdict:
        """Judge the cell as the answer to a task: %%task lab01.bytes.

        The verdict says what is wrong first. What the cell defines lands in the
        notebook, so that you can try it; --untimed leaves the limits of speed out, for
        a busy machine.
        """
        words = line.split()
        timed = "--untimed" not in words
        names = [word for word in words if word != "--untimed"]
        if len(names) != 1:
            raise UsageError("%%task takes a task's name: %%task lab01.bytes")
        from fuselab.judge.task import CppTask  # imports the compiler
        from fuselab.labs.catalog import find_task
        from fuselab.labs.progress import progress

        with _as_usage("%%task"):
            task = find_task(names[0])
            # The line with %%task counts: a verdict names lines as the editor does.
            verdict = progress().judge(task.name, cell, timed=timed, above=1)
        if verdict.stage not in {"rules", "compile"} and not isinstance(task, CppTask):
            shell: Any = self.shell
            name = f"<{task.name}, try {progress().state(task.name).attempts}>"
            # Where Python looks for a function's text: Triton reads its kernels back.
            cell = f"\n{cell}"
            linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
            with contextlib.suppress(Exception):  # the verdict has said it
                exec(compile(cell, name, "exec"), shell.user_ns)
        return verdict

    @line_magic
    def hint(self, line: str) -> Said:
        """Give the next of three hints about a task: %hint, or %hint lab01.bytes."""
        from fuselab.labs.progress import progress

        with _as_usage("%hint"):
            return progress().hint(line.strip())

    @line_magic
    def progress(self, line: str) -> ProgressTable:
        """Show the points of the labs that were begun, or of one: %progress 7."""
        from fuselab.judge.engine import warm_up
        from fuselab.labs.catalog import labs
        from fuselab.labs.progress import COMMANDS, progress

        chosen = [lab for lab in labs() if str(lab.number) in line.split()]
        if line.strip() and not chosen:
            known = ", ".join(str(lab.number) for lab in labs())
            raise UsageError(f"%progress takes the number of a lab: {known}")
        for lab in chosen:
            warm_up(lab.tasks)
        return replace(progress().table(chosen), commands=COMMANDS)

    @line_magic
    def hand_in(self, line: str) -> ProgressTable:
        """Write the file that is handed in: %hand_in Ada Lovelace.

        It keeps what you have handed in of other labs.
        """
        from fuselab.labs.progress import progress

        student = line.strip()
        if not student:
            raise UsageError("%hand_in takes your name: %hand_in Ada Lovelace")
        name = re.sub(r"\W+", "_", student.lower()).strip("_") or "student"
        edits = self.session.history.known
        path = Path(f"hand_in_{name}.json")
        kept = ", with what it had of other labs" if path.is_file() else ""
        with _as_usage("%hand_in"):
            path = progress().hand_in(path, student, edits)
        said = f"written to {path}{kept}: give it to your teacher"
        return replace(progress().table(), commands=said)


@contextlib.contextmanager
def _as_usage(magic: str) -> Iterator[None]:
    try:
        yield
    except FuselabError as error:
        raise UsageError(f"{magic}: {error}") from None


__all__ = ["LabMagics"]
