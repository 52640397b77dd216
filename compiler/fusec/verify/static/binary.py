"""What a built kernel would do to the process that loads it, read from the file beforehand.

Loading a library already runs code of it, and a kernel that is right in every run of a check may
still have brought what ends the notebook later: a call of ``exit``, a thread, a variable that is
kept between calls.  All of that stands in the file: what it imports, its writable data, its
constructors, its instructions.  ``library_facts`` reads it, in the worker; ``problem`` says what is
wrong with it.
"""

from __future__ import annotations

import bisect
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusec.errors import FusecError
from fusec.verify.protocol import Message
from fusec.verify.static import allowed
from fusec.verify.static.constants import constants
from fusec.verify.static.cpp_text import INSTEAD, line_at, without_comments
from fusec.verify.static.instructions import Odd, odd_instructions
from fusec.verify.static.symbols import own_name, readable
from fusec.verify.words import Finding

# What the compiler's own start-up files bring into every library.
_OWN_VARIABLES = re.compile(
    r"__dso_handle|completed\.\d+|__TMC_(END|LIST)__|dtor_idx\.\d+"
    r"|_GLOBAL_OFFSET_TABLE_|_TLS_MODULE_BASE_"
)
# Where exceptions find the function that looks at each frame.
_PERSONALITY = re.compile(r"DW\.ref\.__g\w+_personality_\w+")
# What a loader writes, and nobody after it: the linker has these pages read-only then, or reads
# them itself.
_LOADERS = re.compile(
    r"\.(data|bss)\.rel\.ro(\..*)?|\.relro_padding|\.(preinit|init|fini)_array|\.[cd]tors"
    r"|\.dynamic|\.got(\.plt)?|\.jcr|\.t(data|bss)|\.eh_frame(_hdr)?|\.gcc_except_table"
)
# What it fills as functions are called for the first time.
_LINKED = frozenset({".got.plt", ".tdata", ".tbss"})
# What answers clang's calls of OpenMP by libgomp's: ``toolchain/openmp/entry.cpp``.
_OWN_THREADS = re.compile(r"_ZN12fusec_openmp\S+")
_OWN_PARTS = frozenset({"_init", "_fini"})
_OWN_STARTS = frozenset({"frame_dummy", "__do_global_dtors_aux", "register_tm_clones"})
# Of an OpenMP critical section with a name: the lock is meant to be shared.
_LOCKS = re.compile(r"_*\.gomp_critical.*")  # no name of C++ begins with a point
_WORD = 8
_MACHINES = {"X86_64": "x86_64", "ARM64": "aarch64"}
# What the C++ library keeps of exceptions that are under way.
_ARCHIVED = frozenset({"__cxa_get_globals", "__cxa_get_globals_fast"})
# What is said of a library has to fit into a message.
_MOST_ODD = 100
_MOST_NUMBERS = 400
_WHOLE = (
    "the compiler has put the whole C++ library into it (-static-libstdc++), so that nobody can "
    "tell what is the kernel's own: use nothing of that library, or set CXX to another compiler"
)


@dataclass(frozen=True)
class LibraryFacts:
    """What a library's file says of it.

    Attributes:
        refused: What it takes from other libraries and must not, as C++ writes it, with why.
        variables: Its data that can be written.
        unnamed: Bytes of such data that no name stands for.
        thread_variables: Its data that each thread has for itself.
        starts: Functions that run when it is loaded or let go.
        chosen: Functions that are chosen when it is loaded.
        odd: Instructions that no kernel may have, each once.
        code_and_data: Whether memory that can be written can be run, too.
        numbers: What it compares with or computes with, as far as its machine is known.
        archive: Whether the C++ library was put into it, so that nobody can tell what is its own.
    """

    refused: tuple[tuple[str, str], ...] = ()
    variables: tuple[str, ...] = ()
    unnamed: int = 0
    thread_variables: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    odd: tuple[Odd, ...] = ()
    code_and_data: bool = False
    numbers: tuple[float, ...] = ()
    archive: bool = False

    @property
    def at_once(self) -> LibraryFacts:
        """What has to be said before anything is run."""
        return replace(self, odd=tuple(odd for odd in self.odd if not odd.unreached))

    @property
    def unreached(self) -> LibraryFacts:
        """What has to be said of what is right in every run."""
        return LibraryFacts(odd=tuple(odd for odd in self.odd if odd.unreached))

    @classmethod
    def read(cls, given: Message) -> LibraryFacts:
        """Make one from its JSON form."""
        refused = tuple((name, why) for name, why in given["refused"])
        others: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in given.items()
        }
        odd = tuple(Odd(**each) for each in given["odd"])
        return cls(**{**others, "refused": refused, "odd": odd})


def library_facts(path: str) -> LibraryFacts:
    """Read a library's file.

    Raises:
        ValueError: It is no library.
    """
    import lief

    lief.logging.disable()
    binary: Any = lief.parse(path)
    if isinstance(binary, lief.ELF.Binary):
        return _elf(binary)
    if binary is None:
        raise ValueError("not a library that can be read")
    # Mach-O and PE: what they import, and what runs when they are loaded.
    imports = [str(function.name) for function in binary.imported_functions]
    imports += [str(s.name) for s in getattr(binary, "imported_symbols", ())]
    starts = [str(f.name) or hex(f.address) for f in binary.ctor_functions]
    # Tables may stand between their functions, which would be taken for instructions.
    odd = _odd(binary, strict=False)
    return LibraryFacts(_refused(imports), starts=_own_names(starts), odd=odd)


def _elf(binary: Any) -> LibraryFacts:
    import lief

    kinds, flags = lief.ELF.Symbol.TYPE, lief.ELF.Section.FLAGS
    symbols = [*binary.symtab_symbols, *binary.dynamic_symbols]
    sections = list(binary.sections)
    fixed = [
        range(s.virtual_address, s.virtual_address + s.virtual_size)
        for s in binary.segments
        if s.type == lief.ELF.Segment.TYPE.GNU_RELRO
    ]

    def changes(section: Any) -> bool:
        """Whether a section can be written to once the library is loaded."""
        if not section.has(flags.WRITE):
            return False
        return not (
            any(section.virtual_address in part for part in fixed)
            or (section.name in _LINKED if fixed else _LOADERS.fullmatch(str(section.name)))
        )

    named: dict[int, str] = {}
    for symbol in symbols:
        if symbol.type == kinds.FUNC and symbol.value:
            named.setdefault(symbol.value, str(symbol.name))
    variables: dict[str, int] = {}
    threads: dict[str, None] = {}
    for symbol in symbols:
        at = symbol.shndx
        section = sections[at] if 0 < at < len(sections) else None
        if section is None or symbol.type not in (kinds.OBJECT, kinds.TLS, kinds.COMMON):
            continue
        name = str(symbol.name)
        if symbol.type == kinds.TLS:
            threads[name] = None
        elif (
            changes(section) or (section.name in _LINKED and section.has(flags.WRITE))
        ) and not _OWN_VARIABLES.fullmatch(name):
            variables[name] = symbol.size
    writable = sum(s.size for s in sections if changes(s) and s.has(flags.ALLOC))
    # Alignment fills a little; the start-up files' own data is a word or two.
    unnamed = writable - sum(variables.values())
    expected = 2 * _WORD + 64 * len(variables)
    own = [name for name in threads if not _OWN_THREADS.fullmatch(name)]
    unknown = not threads and any(s.size for s in sections if s.has(flags.TLS))
    asked = [str(s.name) for s in binary.dynamic_symbols if s.name and s.shndx == 0]
    if threads and not own:
        asked = [name for name in asked if not name.startswith("__tls_get_addr")]
    return LibraryFacts(
        _refused(asked),
        _own_names(n for n in variables if not (_LOCKS.fullmatch(n) or _PERSONALITY.fullmatch(n))),
        unnamed if unnamed > expected else 0,
        _own_names(own) or (("",) if unknown else ()),
        _own_names(_starts(binary, sections, named)),
        _own_names(str(s.name) for s in symbols if s.type == kinds.GNU_IFUNC),
        _odd(binary, named, strict=True),
        _written_and_run(binary),
        _constants(binary),
        any(s.shndx and str(s.name) in _ARCHIVED for s in symbols),
    )


def _constants(binary: Any) -> tuple[float, ...]:
    import lief

    flags = lief.ELF.Section.FLAGS
    if not str(binary.abstract.header.architecture).endswith("X86_64"):
        return ()
    parts = [(s, s.has(flags.EXECINSTR)) for s in binary.sections if s.has(flags.ALLOC)]
    data = [
        (part.virtual_address, bytes(part.content))
        for part, runs in parts
        if not runs and not part.has(flags.WRITE)
    ]
    found: dict[float, None] = {}
    for part, runs in parts:
        if runs:
            found |= dict.fromkeys(constants(bytes(part.content), part.virtual_address, data))
    return tuple(found)[:_MOST_NUMBERS]


def _odd(binary: Any, named: Mapping[int, str] | None = None, *, strict: bool) -> tuple[Odd, ...]:
    """Return the instructions that no kernel may have, each once a function."""
    import lief

    machine = _MACHINES.get(str(binary.abstract.header.architecture).rpartition(".")[2], "")
    begins = sorted(named or {})
    found: dict[Odd, None] = {}
    if isinstance(binary, lief.ELF.Binary):
        parts = [s for s in binary.sections if s.has(lief.ELF.Section.FLAGS.EXECINSTR)]
    else:
        parts = [s for s in binary.sections if str(s.name).endswith("text")]
    for part in parts:
        code = bytes(part.content)
        for at, odd in odd_instructions(code, part.virtual_address, machine, strict=strict):
            first = bisect.bisect_right(begins, at) - 1
            function = (named or {}).get(begins[first], "") if first >= 0 else ""
            found[replace(odd, function=own_name(function))] = None
    return tuple(found)[:_MOST_ODD]


def _written_and_run(binary: Any) -> bool:
    import lief

    flags, types = lief.ELF.Segment.FLAGS, lief.ELF.Segment.TYPE
    return any(
        segment.has(flags.X) and segment.has(flags.W)
        for segment in binary.segments
        if segment.type in (types.LOAD, types.GNU_STACK)
    )


def _refused(imports: Sequence[str]) -> tuple[tuple[str, str], ...]:
    names = dict.fromkeys(name for name in imports if not allowed.is_allowed(name))
    return tuple((readable(name), allowed.harm(name)) for name in names)


def _own_names(symbols: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(own_name, symbols)))


def _starts(binary: Any, sections: Sequence[Any], named: Mapping[int, str]) -> Iterator[str]:
    """Yield the functions in the tables of what runs at the library's load and end."""
    for symbol in binary.symtab_symbols:
        at, name = symbol.shndx, str(symbol.name)
        run = 0 < at < len(sections) and sections[at].name in (".init", ".fini")
        if run and symbol.value and name and name not in _OWN_PARTS:
            yield name
    relative = {r.address: r.addend for r in binary.dynamic_relocations}
    symbols = {r.address: str(r.symbol.name) for r in binary.dynamic_relocations if r.has_symbol}
    for section in sections:
        if section.name not in (".preinit_array", ".init_array", ".fini_array", ".ctors", ".dtors"):
            continue
        content = bytes(section.content)
        for at in range(0, section.size - _WORD + 1, _WORD):
            if symbol := symbols.get(section.virtual_address + at):
                yield symbol
                continue
            target = relative.get(section.virtual_address + at, 0)
            target = target or int.from_bytes(content[at : at + _WORD], "little")
            name = named.get(target, f"the function at {target:#x}")
            if name not in _OWN_STARTS:
                yield name


def problem(
    facts: LibraryFacts,
    text: str,
    line_of: Callable[[str, str], int | None] | None = None,
    *,
    instead: str = INSTEAD,
) -> Finding | None:
    """Return why a library may not be loaded, with the line at fault where it is known.

    Args:
        facts: What its file says.
        text: What it was compiled from.
        line_of: Finds the line of an instruction, where names do not tell.
        instead: What to do about it.
    """
    if facts.archive:
        return Finding("unsafe", _WHOLE)
    plain = without_comments(text)
    # What stands first in the text; what the compiler has put in explains least.
    found = sorted(
        (at if (at := _place(plain, name)) >= 0 else len(plain), number, name, reason)
        for number, (name, reason) in enumerate(_problems(facts))
    )
    if not found:
        return None
    at, _, _, reason = found[0]
    line = line_at(plain, at) if at < len(plain) else None
    if line is None and facts.odd and line_of is not None:
        with contextlib.suppress(FusecError):
            line = line_of(text, facts.odd[0].name)
    return Finding("unsafe", reason + instead, line)


def _problems(facts: LibraryFacts) -> Iterator[tuple[str, str]]:
    """Yield a name that the text may have, and what is wrong with it."""
    for name in facts.thread_variables:
        shown = f"`{name}`" if name else "a variable"
        yield name or "thread_local", f"keeps {shown} of each thread from call to call"
    for name in facts.variables:
        yield name, f"keeps `{name}` from call to call, and may return an earlier result"
    if facts.unnamed:
        yield "static", f"keeps {facts.unnamed} bytes from call to call"
    for name in facts.starts:
        yield name, f"runs `{name}` when it is loaded or let go"
    for name in facts.chosen:
        yield name, f"has `{name}` chosen when it is loaded"
    if facts.code_and_data:
        yield "", "can run memory that it can write"
    for odd in facts.odd:
        yield "", _odd_problem(odd)
    for name, why in facts.refused:
        yield name, f"calls {name}: {why}"


def _odd_problem(odd: Odd) -> str:
    if odd.name:
        verb = "" if odd.jump else f"has the instruction {odd.name}: "
        return verb + odd.reason
    return odd.reason


def _place(text: str, name: str) -> int:
    """Return where a text first has a name, or what a user writes for it; -1 if nowhere."""
    bare = name.rpartition("::")[2].lstrip("_")
    for word in (name, bare, *_WRITTEN.get(bare, ())):
        if word and (found := re.search(rf"(?<![\w]){re.escape(word)}(?![\w])", text)):
            return found.start()
    return -1


# What the text says where the file says something else.
_WRITTEN = {
    "pthread_create": ("std::thread", "std::jthread", "std::async", "async"),
    "M_start_thread": ("std::thread", "std::jthread", "std::async", "async"),
    "State": ("std::thread", "std::jthread", "std::async", "async"),
    "sigaction": ("sigaction",),
    "cxa_throw": ("throw",),
    "assert_fail": ("assert",),
    "sysv_signal": ("signal",),
    "popen": ("popen",),
    "longjmp_chk": ("longjmp",),
    "errno_location": ("errno",),
}


__all__ = ["LibraryFacts", "library_facts", "problem"]
