"""A kernel as a program that AddressSanitizer and UndefinedBehaviorSanitizer watch.

A library that they watch cannot be loaded into a process that was not started with them, so the
kernel becomes a program: it takes its arguments from a file, calls the kernel with several threads
and with one, and ends.  Each argument is memory of exactly its size.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fusec.cache import scratch
from fusec.errors import CompileError
from fusec.helper_block import with_helpers
from fusec.toolchain.build import SOURCE, parse_diagnostics
from fusec.toolchain.children import Children
from fusec.toolchain.compiler import Compiler, find_compiler
from fusec.toolchain.listen import end, listen, start
from fusec.toolchain.watched_threads import WATCHED_THREADS

ADDRESS = "AddressSanitizer"
UNDEFINED = "UndefinedBehaviorSanitizer"
THREAD = "ThreadSanitizer"
_FLAGS = {ADDRESS: "address", UNDEFINED: "undefined", THREAD: "thread"}
# The first finding ends the program; alignment of vectors is what kernels declare themselves.
_ALWAYS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all")
_PROBE = "int main() { return 0; }\n"
_BUILD_SECONDS = 120.0
MAIN = "run.cpp"
THREADS = "threads.cpp"
PROGRAM = "run"


@dataclass(frozen=True)
class Watched:
    """An argument of the program.

    Attributes:
        name: In the kernel.
        offset: Where its bytes are in the file.
        nbytes: How many.
        read: Whether they are the kernel's to read.
    """

    name: str
    offset: int
    nbytes: int
    read: bool


@dataclass(frozen=True)
class Heard:
    """What a program said.

    Attributes:
        status: Its exit status.
        output: What it printed.
        by: What watched it.
        timeout: Whether it had to be ended.
        arguments: The names of the kernel's arguments by the line of the program that made them.
    """

    status: int
    output: str
    by: tuple[str, ...]
    timeout: bool
    arguments: dict[int, str]


def sanitizers() -> tuple[str, ...]:
    """Return which of the two the compiler has: it is asked to build a program with them."""
    return _sanitizers(find_compiler())


_known: dict[Compiler, tuple[str, ...]] = {}


def _sanitizers(compiler: Compiler) -> tuple[str, ...]:
    """Return what the compiler has; what it could not be asked for now is asked again."""
    if compiler not in _known:
        found, sure = _asked_for(compiler)
        if not sure:
            return found
        _known[compiler] = found
    return _known[compiler]


def _asked_for(compiler: Compiler) -> tuple[tuple[str, ...], bool]:
    """Return the same, and whether nothing but the compiler is the reason."""
    sure = True
    for chosen in ((ADDRESS, UNDEFINED), (UNDEFINED,)):
        with scratch() as folder:
            Path(folder, MAIN).write_text(_PROBE)
            try:
                _build(compiler, [MAIN], folder, chosen)
                done = subprocess.run([str(Path(folder, PROGRAM))], check=False, timeout=20)
            except CompileError:
                continue
            except (OSError, subprocess.SubprocessError):  # no room, or too busy
                sure = False
                continue
            if done.returncode == 0:
                return chosen, sure
    return (), sure


def run_watched(
    text: str,
    entry: str,
    arguments: Sequence[Watched],
    data: bytes,
    sizes: Sequence[int],
    *,
    threads: int,
    seconds: float,
    wanted: Sequence[str] = (),
) -> Heard:
    """Build a kernel with the sanitizers that there are, and run it on some arguments.

    Args:
        text: The whole kernel file.
        entry: The function to call.
        arguments: Its tensors, in order.
        data: Their bytes.
        sizes: The symbolic sizes.
        threads: The most threads; it is called with one, too.
        seconds: How long the runs may take.
        wanted: Which of them; those for memory by default.

    Raises:
        CompileError: The text does not compile.
    """
    compiler = find_compiler()
    by = tuple(wanted) or _sanitizers(compiler)
    program, lines = _program(entry, arguments, sizes, threads)
    with scratch() as folder:
        here = Path(folder)
        sources = [SOURCE, MAIN]
        if THREAD in by:
            # The compiler's own runtime is not watched, and what its threads wait for not known.
            (here / THREADS).write_text(
                WATCHED_THREADS.replace("$alone", "false" if sizes else "true")
            )
            sources.append(THREADS)
        (here / SOURCE).write_text(compiler.facts.text(with_helpers(text, SOURCE)))
        (here / MAIN).write_text(program)
        (here / "data").write_bytes(data)
        _build(compiler, sources, folder, by)
        # AddressSanitizer reserves more addresses than there is memory.
        process = start(
            [str(here / PROGRAM)], folder, {**os.environ, **_settings(compiler)}, limited=False
        )
        timed_out = False
        output = ""
        try:
            output = listen(process, seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end(process)
    return Heard(process.returncode, output, by, timed_out, lines)


def _build(compiler: Compiler, sources: Sequence[str], folder: str, by: Sequence[str]) -> None:
    """Compile some files and link them to ``run``.

    Raises:
        CompileError: That failed.
    """
    family = compiler.facts
    watch = [f"-fsanitize={','.join(_FLAGS[name] for name in by)}"] if by else []
    flags = [
        flag for each in compiler.flags if each != "-shared" for flag in family.translate(each)
    ]
    flags = [flag for flag in flags if flag != "-fno-sanitize=undefined"]
    objects = []
    children = Children()
    for source in sources:
        made = f"{source}.o"
        command = [compiler.path, *family.full, *flags, *_ALWAYS, *watch]
        _run(children, compiler, [*command, "-c", "-x", "c++", source, "-o", made], folder)
        objects.append(made)
    # Without -fopenmp, which names the compiler's own runtime.
    command = [compiler.path, *family.full, *objects, *watch, "-o", PROGRAM]
    if THREAD in by:
        _run(children, compiler, [*command, "-pthread", "-lm"], folder)
        return
    command += [compiler.entry] if compiler.entry else []
    if compiler.runtime:
        command += [compiler.runtime, f"-Wl,-rpath,{Path(compiler.runtime).parent}"]
    else:
        command += family.openmp
    _run(children, compiler, [*command, "-lm"], folder)


def _run(children: Children, compiler: Compiler, command: Sequence[str], folder: str) -> None:
    process = children.start(command, folder, compiler.environment(folder))
    try:
        output = listen(process, _BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        output = "the compiler did not finish"
    finally:
        children.finish(process)
    if process.returncode != 0:
        raise CompileError(parse_diagnostics(output), output)


def _settings(compiler: Compiler) -> dict[str, str]:
    """Return how the sanitizers are to behave."""
    found = {
        "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1:exitcode=66:"
        "allocator_may_return_null=1:handle_abort=1:color=never",
        "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=66:color=never",
        "LSAN_OPTIONS": "exitcode=66",
        "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:color=never:report_thread_leaks=0",
        "OMP_WAIT_POLICY": "passive",
    }
    if compiler.family != "gcc":
        asked = subprocess.run(
            [compiler.path, "-print-prog-name=llvm-symbolizer"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
        path = asked.stdout.strip()
        if os.path.isabs(path) and os.access(path, os.X_OK):
            found["ASAN_SYMBOLIZER_PATH"] = path
    return found


def _program(
    entry: str, arguments: Sequence[Watched], sizes: Sequence[int], threads: int
) -> tuple[str, dict[int, str]]:
    """Return a program that calls a kernel, and which of its lines make which argument."""
    made, lines = [], {}
    types = ["void*"] * len(arguments) + ["int64_t"] * (len(sizes) + 1)
    head = [
        "#include <stdint.h>",
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "#include <string.h>",
        f'extern "C" int {entry}({", ".join(types)});',
        "static void fill(char* to, long at, size_t size)",
        "{",
        '    FILE* file = fopen("data", "rb");',
        "    if (!file || fseek(file, at, SEEK_SET) || fread(to, 1, size, file) != size) exit(3);",
        "    fclose(file);",
        "}",
        "int main()",
        "{",
        "    int status = 0;",
    ]
    for number, argument in enumerate(arguments):
        made.append(f"    char* a{number} = (char*)malloc({argument.nbytes});")
        lines[len(head) + number + 1] = argument.name
    for number, argument in enumerate(arguments):
        made.append(f"    memset(a{number}, 0xff, {argument.nbytes});")
        if argument.read and argument.nbytes:
            made.append(f"    fill(a{number}, {argument.offset}, {argument.nbytes});")
    names = [f"a{number}" for number in range(len(arguments))]
    for count in dict.fromkeys((threads, 1)):
        for number, argument in enumerate(arguments):
            if argument.read and argument.nbytes:
                made.append(f"    fill(a{number}, {argument.offset}, {argument.nbytes});")
        given = [*names, *(f"INT64_C({size})" for size in sizes), str(count)]
        made.append(f"    status |= {entry}({', '.join(given)});")
    made += [f"    free({name});" for name in names]
    return "\n".join([*head, *made, "    return status ? 4 : 0;", "}", ""]), lines


__all__ = ["ADDRESS", "THREAD", "UNDEFINED", "Heard", "Watched", "run_watched", "sanitizers"]
