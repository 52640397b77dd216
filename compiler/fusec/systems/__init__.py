"""What differs between operating systems, a file each, behind one face.

Whatever asks the system (how a library is loaded, how a process is started and ended, which memory
may not be touched, whose a file is, what the processor is called) asks ``this_system()``.  Nothing
else in the compiler reads ``sys.platform``, ``/proc``, or modules that only some systems have:
``tests/compiler/test_systems.py`` holds it.

``face.System`` has an answer to everything that works wherever Python does, and is all that a new
system begins with.  ``posix`` is what Linux and macOS share; ``linux``, ``macos`` and ``windows``
add what is theirs.  ``FUSEC_SYSTEM=posix`` (or ``plain``) makes a process do without what only
Linux has, so that a test on Linux runs the lines that other systems run.
"""

from __future__ import annotations

import functools
import os
import sys

from fusec.systems.face import Counts, Fault, NotHere, Processor, Samples, System

_NAMED = "FUSEC_SYSTEM"


@functools.cache
def this_system() -> System:
    """Return the system that this process runs on, or the one that ``FUSEC_SYSTEM`` names."""
    name = os.environ.get(_NAMED, "") or sys.platform
    if name == "linux":
        from fusec.systems.linux import Linux

        return Linux()
    if name == "darwin":
        from fusec.systems.macos import MacOS

        return MacOS()
    if name == "win32":
        from fusec.systems.windows import Windows

        return Windows()
    if name == "plain" or os.name != "posix":
        return System()
    from fusec.systems.posix import Posix

    return Posix()


__all__ = ["Counts", "Fault", "NotHere", "Processor", "Samples", "System", "this_system"]
