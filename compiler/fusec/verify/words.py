"""From what a worker reports to one sentence that tells the user what went wrong."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusec.kernel_source import Argument, Signature
from fusec.report import counted
from fusec.verify.guard import GUARD, PAGE
from fusec.verify.protocol import Message, poison_byte

# Two runs of a correct kernel may add in another order; this much of the largest value is
# order, more is a mistake.
_REORDER = {torch.float16: 2e-2, torch.bfloat16: 8e-2, torch.float64: 1e-9}
_REORDER_DEFAULT = 1e-3

_TEXT_ERRORS = (
    "SyntaxError",
    "IndentationError",
    "TabError",
    "NameError",
    "CompilationError",
    "UnsupportedLanguageConstruct",
    "ImportError",
    "ModuleNotFoundError",
    "LoadError",
)


_RESOURCES = {
    "shared memory": "asks for {wanted:,} bytes of shared memory for each program, and this GPU "
    "has {there:,}: smaller blocks or fewer stages need less",
    "threads": "asks for {wanted:,} threads for each program, and {there:,} are the most that it "
    "can have here: fewer warps, or fewer registers a thread, are needed",
}

# ud2 of x86-64, udf of aarch64
_TRAPS = (b"\x0f\x0b", b"\x00\x00\x00\x00")
# What stands before an x86 instruction's code, and how many bytes the prefixes of AVX take.
_LEGACY_PREFIXES = frozenset(
    [0x66, 0xF2, 0xF3, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, *range(0x40, 0x50)]
)
_VECTOR_PREFIXES = {0xC5: 2, 0xC4: 3, 0x62: 4}
_ALIGNED_MOVES = frozenset([0x28, 0x29, 0x2A, 0x2B, 0x6F, 0x7F, 0xE7])
_UNALIGNED_MOVES = frozenset(
    [0x10, 0x11, 0x12, 0x13, 0x16, 0x17, 0x6E, 0x7E, 0xB6, 0xB7, 0xBE, 0xBF]
)


@dataclass(frozen=True)
class Finding:
    """Where and why a run ended."""

    stage: str
    reason: str
    line: int | None = None
    details: str = ""


@dataclass
class Run:
    """The outputs of one run, and whether they differ from the first run's."""

    index: int
    outputs: tuple[torch.Tensor, ...]
    differs: bool = False


def kind(dtype: torch.dtype) -> str:
    """Return which poison a dtype takes."""
    if dtype is torch.bool:
        return "bool"
    return "float" if dtype.is_floating_point or dtype.is_complex else "integer"


def finding(
    reply: Message, signature: Signature, shapes: Sequence[tuple[int, ...]]
) -> Finding | None:
    """Return what is wrong, or None where every run came to its end."""
    fault = placed = result = None
    for report in reply["reports"]:
        fault = report.get("fault", fault)
        result = report.get("result", result)
        placed = report if "areas" in report else placed
    if fault is not None:
        return _fault(fault, placed, signature)
    if reply["timeout"]:
        return _timeout(reply, placed)
    if result is None:
        return _ended(reply["status"], placed)
    if "problem" in result:
        return _problem(result, signature, shapes, reply["seconds"])
    return None


def _timeout(reply: Message, placed: Message | None) -> Finding:
    if reply.get("phase") == "compile":
        silent = f"its compiler did not finish within {reply['seconds']:.0f} s"
        return Finding("compile", f"{silent}: smaller blocks are compiled sooner")
    limit = f"did not finish within {reply['seconds']:.1f} s"
    if placed is not None and placed["run"]:
        # An earlier run came to its end, so it may just be slow.
        plural = "thread" if placed["threads"] == 1 else "threads"
        return Finding(
            "timeout", f"{limit} (in run {placed['run'] + 1}, {placed['threads']} {plural})"
        )
    return Finding("timeout", f"{limit}: an endless loop?")


def _ended(status: int, placed: Message | None) -> Finding:
    when = "" if placed else " while it was loaded"
    if status >= 0:
        return Finding("crash", f"ended its own process{when} (exit status {status})")
    if -status == signal.SIGABRT:
        return Finding("crash", f"aborted{when} (abort() or a failed assertion)")
    if -status == signal.SIGXCPU:
        return Finding("timeout", "used too much processor time")
    if -status == signal.SIGSEGV:
        return Finding("bounds", f"touches memory out of bounds{when}, or overflows the stack")
    name = signal.Signals(-status).name
    return Finding("crash", f"was ended by {name}{when}")


def _fault(fault: Message, placed: Message | None, signature: Signature) -> Finding:
    number, address = fault["signal"], fault["address"]
    details = f"{signal.Signals(number).name} at address {address:#x}"
    if number == signal.SIGFPE:
        return Finding("crash", "divides an integer by zero", details=details)
    if number == signal.SIGILL and bytes.fromhex(fault.get("instruction", "")).startswith(_TRAPS):
        reason = "reached a trap: __builtin_trap(), or what the compiler took to be unreachable"
        return Finding("crash", reason, details=details)
    if number == signal.SIGILL:
        return Finding("crash", "reached an instruction that this processor lacks", details=details)
    if "write" not in fault:
        action = "reads or writes"
    else:
        action = "writes" if fault["write"] else "reads"
    kernel_code = 128
    refused = number == signal.SIGSEGV and fault["code"] == kernel_code
    if refused and not _needs_alignment(fault.get("instruction")):
        # Where no address of a process can be, the processor does not say which it was.
        return Finding("bounds", "writes or reads memory out of bounds, far from every argument")
    if number == signal.SIGBUS or refused:
        return Finding(
            "crash",
            "needs an argument aligned beyond its element size; arguments may be views",
            details=details,
        )
    if address < PAGE:
        return Finding("bounds", f"{action} through a null pointer", details=details)
    for argument, (start, nbytes, usable) in zip(
        signature.arguments, placed["areas"] if placed else (), strict=False
    ):
        slack = usable - nbytes
        if not start - slack - GUARD <= address < start + nbytes + slack + GUARD:
            continue
        itemsize = argument.dtype.itemsize
        if nbytes == 0:
            where = f"{action} `{argument.name}`, which is empty"
        elif address >= start + nbytes:
            past = (address - start - nbytes) // itemsize
            where = f"{action} past the end of `{argument.name}` ({_elements(past + 1)})"
        elif address < start:
            before = -(-(start - address) // itemsize)
            where = f"{action} before the start of `{argument.name}` ({_elements(before)})"
        elif argument.role == "in":
            reason = f"changes its input `{argument.name}`, and puts it back"
            return Finding("wrong", reason, details=details)
        else:
            where = f"{action} `{argument.name}` in a way that it may not"
        return Finding("bounds", where, details=details)
    return Finding(
        "bounds", f"{action} memory out of bounds, far from every argument", details=details
    )


def _needs_alignment(instruction: str | None) -> bool:
    """Whether an x86 instruction wants its memory aligned beyond its element size.

    Args:
        instruction: Its bytes in hexadecimal; None where nobody knows them.
    """
    if instruction is None:
        return True
    code = bytes.fromhex(instruction)
    while code[0] in _LEGACY_PREFIXES:
        code = code[1:]
    for first, length in _VECTOR_PREFIXES.items():
        if code[0] == first:
            return code[length] in _ALIGNED_MOVES
    # Without AVX every packed operation does, but for the moves that say otherwise.
    return code[0] == 0x0F and code[1] not in _UNALIGNED_MOVES


def _elements(count: int) -> str:
    return "by 1 element" if count == 1 else f"by {count} elements"


def _problem(
    result: Message, signature: Signature, shapes: Sequence[tuple[int, ...]], seconds: float
) -> Finding:
    problem = result["problem"]
    if problem == "check":
        code = result["code"]
        checks = signature.checks
        if result.get("refused") and not code:
            why = result["refused"]
            return Finding("wrong", f"takes inputs that have to be refused ({why}) and returns 0")
        if 1 <= code <= len(checks):
            return Finding("wrong", f"refuses inputs that are right: {checks[code - 1]}")
        return Finding("wrong", f"returned {code}; a kernel returns 0 when all is well")
    if problem == "resources":
        reason = _RESOURCES.get(result["what"], "asks for {wanted} of {what}; there is {there}")
        return Finding("compile", reason.format_map(result), None, result["traceback"])
    if problem == "late":
        reason = f"its own Python did not finish within {seconds:.1f} s: an endless loop?"
        return Finding("timeout", reason, result["line"], result["traceback"])
    if problem == "state":
        seen = counted(result["calls"], "call")
        return Finding("unsafe", f"{result['words']} (seen in {seen})")
    if problem == "exception":
        stage = "compile" if result["type"] in _TEXT_ERRORS else "crash"
        message = result["message"].strip().partition("\n")[0]
        reason = f"{result['type']}: {message}" if message else result["type"]
        if result["type"] == "LoadError":
            reason = f"cannot be loaded: {message}"
        return Finding(stage, reason, result["line"], result["traceback"])
    if problem == "device":
        reason = "reads or writes device memory out of bounds"
        # torch hands on CUDA's errors in words alone
        illegal = "illegal memory access" in result["message"]
        if "misaligned" in result["message"]:
            reason = "needs an argument aligned beyond its element size; arguments may be views"
        elif not illegal:
            reason = f"failed on the device: {result['message'].partition(chr(10))[0]}"
        stage = "bounds" if illegal else "crash"
        return Finding(stage, reason, details=result["traceback"])
    if problem == "frame":
        return Finding("bounds", "writes past its part of the stack, into its caller's")
    name = result["name"]
    index = next(i for i, a in enumerate(signature.arguments) if a.name == name)
    argument = signature.arguments[index]
    if problem == "margin":
        distance = result["distance"]
        itemsize = argument.dtype.itemsize
        if distance >= 0:
            return Finding(
                "bounds",
                f"writes past the end of `{name}` ({_elements(distance // itemsize + 1)})",
            )
        return Finding(
            "bounds",
            f"writes before the start of `{name}` ({_elements(-(distance // itemsize))})",
        )
    if problem == "input":
        where = f"element {result['element']} in memory" if shapes[index] else "its value"
        return Finding("wrong", f"changes its input `{name}` ({where})")
    return Finding("bounds", f"writes between the elements of `{name}`, which is a view")


def compare_runs(signature: Signature, runs: Sequence[Run]) -> Finding | None:
    """Hold the runs against each other; mark those that differ in their last bits only."""
    written = [a for a in signature.arguments if a.role != "in"]
    notes = []
    for other in runs[1:]:
        for argument, first, second in zip(written, runs[0].outputs, other.outputs, strict=True):
            if same_bits(first, second):
                continue
            other.differs = True
            problem = _difference(argument, first, second, other.index)
            if problem is not None:
                return problem
            notes.append(f"`{argument.name}` differs in its last bits between two runs")
    if notes:
        return Finding("passed", "", details="\n".join(dict.fromkeys(notes)))
    return None


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of one shape hold the same bits, NaN or not."""
    return torch.equal(as_integers(first), as_integers(second))


def alike(first: torch.Tensor, second: torch.Tensor, *, bits: bool = True) -> bool:
    """Whether two tensors lie alike in memory and, with ``bits``, hold the same."""
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.stride() == second.stride()
        and first.device == second.device
        and (not bits or same_bits(first, second))
    )


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of the same bytes as integers, a complex number as two."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    sizes = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(sizes[tensor.element_size()])


def _difference(
    argument: Argument, first: torch.Tensor, second: torch.Tensor, index: int
) -> Finding | None:
    """Return why the difference of two runs is a mistake, or None if it is only rounding."""
    a, b = as_integers(first), as_integers(second)
    if argument.role == "out" and index % 2:
        untouched = (a == _poison(argument, a, 0)) & (b == _poison(argument, b, index))
        if untouched.any():
            where = _place(untouched)
            reason = f"leaves part of `{argument.name}` unwritten (first at {where})"
            return Finding("wrong", reason)
    where = _place(a != b)
    reason = (
        f"yields another `{argument.name}` in each run on the same inputs (first at {where}): "
        "it reads memory that nothing wrote, or its threads race"
    )
    if not (first.is_floating_point() or first.is_complex()):
        return Finding("wrong", reason)
    if not torch.equal(first.isfinite(), second.isfinite()):
        return Finding("wrong", reason)
    scale = first.abs().nan_to_num(0.0, 0.0, 0.0).amax().item() if first.numel() else 0.0
    gap = (first - second).abs().nan_to_num(0.0, 0.0, 0.0).amax().item()
    if gap > scale * _REORDER.get(first.dtype, _REORDER_DEFAULT):
        return Finding("wrong", reason)
    return None


def _poison(argument: Argument, like: torch.Tensor, index: int) -> Any:
    byte = poison_byte(kind(argument.dtype), index)
    value = int.from_bytes(bytes([byte]) * like.element_size(), "little", signed=False)
    bits = 8 * like.element_size()
    if like.dtype is not torch.uint8 and value >= 1 << (bits - 1):
        value -= 1 << bits
    return value


def _place(mask: torch.Tensor) -> str:
    flat = int(mask.reshape(-1).to(torch.uint8).argmax())
    index = []
    for size in reversed(mask.shape):
        index.append(flat % size)
        flat //= size
    return f"[{', '.join(str(i) for i in reversed(index))}]" if index else "its only element"
