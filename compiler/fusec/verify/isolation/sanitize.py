"""What the sanitizers say of an edit, in words and with the kernel's line: ``--sanitize``.

They see what red zones beside the arguments do not: a step outside of a local array, memory that
was freed, an overflow of a signed integer, a shift by too much.
"""

from __future__ import annotations

import re

import torch

from fusec.kernel_source import Signature
from fusec.toolchain import sanitizers
from fusec.verify.isolation.layout import Case, extent
from fusec.verify.words import Finding

_ERROR = re.compile(r"ERROR: (?:Address|Leak)Sanitizer: ([\w-]+)")
_LEAK = re.compile(r"SUMMARY: \w+: (\d+) byte\(s\) leaked")
_UNDEFINED = re.compile(r"kernel\.cpp:(\d+):\d+: runtime error: (.*)")
_PLACE = re.compile(r"kernel\.cpp:(\d+)")
_ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.MULTILINE)
_WHERE = re.compile(r"located (\d+) bytes (after|to the right of|before|to the left of|inside of)")
_MADE = re.compile(r"run\.cpp:(\d+)")
_WORDS = {
    "stack-buffer-overflow": "outside of a local array",
    "stack-buffer-underflow": "before the start of a local array",
    "dynamic-stack-buffer-overflow": "outside of a local array",
    "stack-use-after-scope": "a local variable that is no longer there",
    "stack-use-after-return": "a local variable of a function that has returned",
    "global-buffer-overflow": "outside of a table of constants",
    "heap-use-after-free": "memory that was freed",
    "container-overflow": "outside of a container's elements",
    "use-after-poison": "memory that is not its own",
}
_OTHERS = {
    "double-free": ("crash", "frees memory twice"),
    "attempting": ("crash", "frees memory that is not its own, or twice"),
    "bad-free": ("crash", "frees memory that it did not allocate"),
    "alloc-dealloc-mismatch": ("crash", "frees memory by another function than allocated it"),
    "stack-overflow": ("crash", "overflows the stack"),
    "SEGV": ("bounds", "reads or writes memory out of bounds"),
    "BUS": ("bounds", "reads or writes memory out of bounds"),
    "FPE": ("crash", "divides an integer by zero"),
    "ILL": ("crash", "traps"),
    "ABRT": ("crash", "aborts"),
    "memcpy-param-overlap": ("crash", "copies memory onto itself"),
}


def sanitized(
    text: str,
    entry: str,
    signature: Signature,
    case: Case,
    *,
    threads: int,
    seconds: float,
) -> tuple[Finding | None, str]:
    """Run an edit under the sanitizers that the compiler has.

    Args:
        text: The whole kernel file.
        entry: The function to call.
        signature: Names and roles of the tensors.
        case: What to call it on.
        threads: The most threads.
        seconds: How long its runs may take; they are some ten times slower.

    Returns:
        What is wrong, and what looked, in words.

    Raises:
        CompileError: The text does not compile.
    """
    found = sanitizers.sanitizers()
    if not found:
        return None, "not checked by sanitizers: this compiler has none; g++ and clang have them"
    watched, data = watched_case(signature, case)
    heard = sanitizers.run_watched(
        text, entry, watched, data, case.sizes, threads=threads, seconds=seconds
    )
    names = " and ".join(heard.by)
    looked = f"nothing found by {names}"
    if sanitizers.ADDRESS not in heard.by:
        looked = (
            f"nothing found by {names}; {sanitizers.ADDRESS} is not there: g++ and clang have it"
        )
    return _finding(heard, names), looked


def watched_case(signature: Signature, case: Case) -> tuple[list[sanitizers.Watched], bytes]:
    """Return a case's arguments as the program takes them, and their bytes."""
    data, watched = bytearray(), []
    for argument, tensor in zip(signature.arguments, case.tensors, strict=True):
        content = _bytes(tensor) if argument.role != "out" else b""
        nbytes = extent(tensor) * tensor.element_size()
        watched.append(sanitizers.Watched(argument.name, len(data), nbytes, argument.role != "out"))
        data += content
    return watched, bytes(data)


def heard_of(heard: sanitizers.Heard) -> Finding | None:
    """Return what is wrong by what the sanitizers have said, if anything."""
    return _finding(heard, " and ".join(heard.by))


def _finding(heard: sanitizers.Heard, names: str) -> Finding | None:
    if heard.timeout:
        return Finding("timeout", f"did not finish under {names}")
    output = heard.output
    if undefined := _UNDEFINED.search(output):
        said = f"{undefined[2]}, which C++ does not define ({sanitizers.UNDEFINED})"
        return Finding("unsafe", said, int(undefined[1]), output)
    error = _ERROR.search(output)
    if error is None:
        if heard.status in (0, 4):
            return None  # whether a check of its own failed is the other runs' business
        last = output.strip().rpartition("\n")[2]
        return Finding("crash", f"ended with status {heard.status} under {names}: {last}".strip())
    where = _PLACE.search(output, error.end())
    line = int(where[1]) if where else None
    by = f" ({sanitizers.ADDRESS})"
    kind = error[1]
    if kind == "detected":
        size = _LEAK.search(output)
        amount = f"{int(size[1]):,} bytes" if size else "memory"
        return Finding("unsafe", f"never frees {amount} that it allocates{by}", line, output)
    if kind in _OTHERS:
        stage, words = _OTHERS[kind]
        return Finding(stage, words + by, line, output)
    access = _ACCESS.search(output)
    verb = "uses" if access is None else {"READ": "reads", "WRITE": "writes"}[access[1]]
    if kind == "heap-buffer-overflow":
        return Finding("bounds", f"{verb} {_beside(output, heard)}{by}", line, output)
    return Finding("bounds", f"{verb} {_WORDS.get(kind, kind)}{by}", line, output)


def _beside(output: str, heard: sanitizers.Heard) -> str:
    """Return which memory a step went outside of."""
    where = _WHERE.search(output)
    side = "outside of"
    if where is not None and where[2] in ("after", "to the right of"):
        side = "past the end of"
    elif where is not None and where[2] in ("before", "to the left of"):
        side = "before the start of"
    made = output.partition("allocated by")[2].partition("\n\n")[0]
    for number in _MADE.findall(made):
        if int(number) in heard.arguments and not _PLACE.search(made):
            return f"{side} `{heard.arguments[int(number)]}`"
    return f"{side} memory that it allocated"


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.as_strided((extent(plain),), (1,)).contiguous()
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


__all__ = ["heard_of", "sanitized", "watched_case"]
