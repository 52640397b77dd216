"""What the text of a C++ kernel must not have because its library would not show it.

Assembly, another mode of the processor, a file that is not there for somebody else: the library's
file is read as well (``binary``), and a text that is Python's by ``python_text``.
"""

from __future__ import annotations

import re

from fusec.verify.words import Finding

INSTEAD = "; leave it out, or say --trust if it has to be there"

# In C++ these are no calls, so that the file imports nothing.
_ASSEMBLY = re.compile(r"\b(asm|__asm|__asm__)\b")
_EMPTY = re.compile(r"\w+\s*(?:(?:__)?volatile(?:__)?\s*)?\(\s*\"\"\s*[:)]")
_MODES = re.compile(
    r"\b(_mm_setcsr|_MM_SET_FLUSH_ZERO_MODE|_MM_SET_DENORMALS_ZERO_MODE|_MM_SET_ROUNDING_MODE"
    r"|_MM_SET_EXCEPTION_MASK|_MM_SET_EXCEPTION_STATE|__builtin_ia32_ldmxcsr"
    r"|__builtin_ia32_fxrstor(?:64)?|__builtin_ia32_xrstor(?:64)?|__builtin_aarch64_set_fpcr\w*)\b"
)
# Compilers call them by themselves, so that what a library imports does not tell.
_ENDS = re.compile(
    r"\b(__cxa_\w+|_Unwind_\w+|__stack_chk_fail|__throw_\w+|__gxx_personality\w*"
    r"|__clang_call_terminate|__builtin_(?:eh_return|longjmp|setjmp))\b"
)
_CALLER = re.compile(
    r"\b__builtin_(?:extract_return_addr|return_address|frame_address|dwarf_cfa|apply_args"
    r"|stack_address|unwind_init)\b"
)
_CLOCK = re.compile(r"\b__(?:TIME|DATE|TIMESTAMP)__\b")
# What it includes: a header of the compiler's, or its own that is kept with it.  Any other file is
# not there for somebody else, and may be another one when the kernel is built again.
_INCLUDES = re.compile(
    r"^[^\S\n]*(?:\#|%:)\s*(?:include_next|include|import|embed|pragma\s+\w+\s+dependency)\b"
    r"|\b__has_(?:include_next|include|embed)\s*\(",
    re.MULTILINE,
)
_PRAGMAS = re.compile(r"\b__?[Pp]ragma\s*\(")
_DEPENDENCY = re.compile(r"[^)]*\bdependency\b")
_KNOWN_FILE = re.compile(r"\s*(?:<\s*\w(?:(?!\.\.)[\w+./-])*\s*>|\"helpers\.h\")")
_GOES_ON = re.compile(r"\\\r?\n")
_WORDS = (
    (_ENDS, "it ends the process, or what was begun in it"),
    (_CALLER, "it tells who calls it, and a check calls it from elsewhere"),
    (_CLOCK, "it makes another kernel of the same text each time"),
)
_COMMENTS = re.compile(
    r"""
      (?P<number> (?<![\w.]) \.?\d (?: [eEpP][+-] | '? [\w.] )* )  # 1'000'000 is no character
    | // (?: \\\n | [^\n] )* | /\*.*? (?: \*/ | \Z )  # without an end they go on to the text's
    | \bu?8?[RUL]?R" (?P<end> [^\s()\\"]{0,16} ) \( .*? (?: \) (?P=end) " | \Z )
    | " (?: \\. | [^"\\\n] )* " | ' (?: \\. | [^'\\\n] )* '
    """,
    re.DOTALL | re.VERBOSE,
)


def source_problem(text: str, generated: str = "", *, instead: str = INSTEAD) -> Finding | None:
    """Return what a text must not have because its library would not show it.

    Args:
        text: The whole kernel file.
        generated: The compiler's own text, whose statements may stay.
        instead: What to do about it.
    """
    plain = without_comments(text)
    known = {line.strip() for line in generated.splitlines()}
    lines = text.splitlines()
    for each in _ASSEMBLY.finditer(plain):
        line = line_at(plain, each.start())
        # Without an instruction it only keeps the compiler from moving something.
        if lines[line - 1].strip() not in known and not _EMPTY.match(text, each.start()):
            reason = f"has assembly of its own, which may do what no C++ does{instead}"
            return Finding("unsafe", reason, line)
    found = _included(plain, text)
    if found is not None:
        reason = f"includes a file that is none of the compiler's{instead}"
        return Finding("unsafe", reason, line_at(plain, found))
    for words, why in _WORDS:
        named = words.search(plain)
        if named:
            reason = f"names {named.group()}: {why}{instead}"
            return Finding("unsafe", reason, line_at(plain, named.start()))
    modes = _MODES.search(plain)
    if modes:
        reason = (
            f"calls {modes.group()}: it changes how the processor computes (rounding, denormals) "
            f"for the whole process{instead}"
        )
        return Finding("unsafe", reason, line_at(plain, modes.start()))
    return None


def _included(plain: str, text: str) -> int | None:
    """Return where a text includes what is no header of the compiler's; None where nowhere."""
    for found in _INCLUDES.finditer(plain):
        if not _KNOWN_FILE.match(text, found.end()):
            return found.end()
    for found in _PRAGMAS.finditer(plain):
        if _DEPENDENCY.match(text, found.end()):
            return found.end()
    goes_on = _GOES_ON.search(plain)
    if goes_on:  # a word may stand in two lines
        whole = _GOES_ON.sub("", text)
        if _included(without_comments(whole), whole) is not None:
            return goes_on.start()
    return None


def without_comments(text: str) -> str:
    """Return C++ with comments and strings blanked out, lines as they were."""
    return _COMMENTS.sub(
        lambda found: found.group() if found["number"] else re.sub(r"[^\n]", " ", found.group()),
        text,
    )


def line_at(text: str, at: int) -> int:
    """Return the number of the line that a place of a text is in."""
    return text.count("\n", 0, at) + 1


__all__ = ["INSTEAD", "line_at", "source_problem", "without_comments"]
