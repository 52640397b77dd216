"""The instructions of a built kernel, read before anything loads it.

A name that a library imports says what it asks of others; an instruction asks the processor itself
and has no name: a system call, another rounding mode, another thread's registers.  Assembly is the
usual way to it, and no look at the text finds what macros join to ``asm``.  So every instruction is
decoded, and those are let by that only compute.  A jump has to reach the beginning of one.

This finds accidents and what somebody tries.  It is no wall against an attacker, who could compute
an address and jump there.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# The families of x86 instructions that compute, move and jump; what is in none of them is refused.
_FAMILIES = frozenset(
    """
    INTEL8086 INTEL186 INTEL286 INTEL386 INTEL486 X64 CMOV CX8 CMPXCHG16B FPU FPU287 FPU387
    MMX SSE SSE2 SSE3 SSSE3 SSE4_1 SSE4_2 SSE4A AVX AVX2 AVX_IFMA AVX_NE_CONVERT AVX_VNNI
    AVX_VNNI_INT8 AVX_VNNI_INT16 FMA FMA4 XOP F16C BMI1 BMI2 TBM ADX LZCNT POPCNT MOVBE AES VAES
    PCLMULQDQ VPCLMULQDQ GFNI SHA SHA512 SM3 SM4 AMX_TILE AMX_BF16 AMX_FP16 AMX_INT8 AMX_COMPLEX
    CET_IBT MULTIBYTENOP PAUSE PREFETCHW PREFETCHWT1 CLDEMOTE CLFSH CLFLUSHOPT CLWB MOVDIRI
    MOVDIR64B CMPCCXADD RAO_INT HLE HLE_OR_RTM
    """.split()
)
_SYSTEM = "it calls the system by number"
_MODES = "it changes how the processor computes (rounding, denormals) for the whole process"
_TRAP = "it is for debuggers, and ends a process that has none"
_SEGMENTS = "it moves what each thread finds its own variables by"
_THREAD = "it reads or writes what each thread has for itself"
_LEFT = "it reads what earlier calculations have left in the processor"
_TELLS = "it tells when or on which processor it runs, and a kernel may not hang on that"
_ENTRY = "goes to an entry of the system at a fixed address, which tells the time or the processor"
_FLAGS = "it changes flags of the processor that all code relies on"
_PRIVILEGED = "it is for the operating system alone"
_FAR = "it goes to another segment, where nothing of a kernel is"
_NOT_DONE = "it is none of the instructions that only compute"
_BETWEEN = "jumps between instructions, where something else may stand"
_ENDS = "it ends the process where it is reached"
_FIXED = "reads or writes memory at a fixed address, where nothing of a kernel lies"
_UNKNOWN = "has bytes among its instructions that are none"
# By mnemonic. What belongs to a family that computes and does not compute itself.
_REFUSED = {
    name: why
    for why, names in {
        _SYSTEM: "SYSCALL SYSENTER SYSRET SYSEXIT INT INTO",
        _TRAP: "INT1 INT3",
        _MODES: "LDMXCSR VLDMXCSR FXRSTOR FXRSTOR64 XRSTOR XRSTOR64 XRSTORS XRSTORS64 FLDCW FLDENV "
        "FRSTOR XSETBV",
        _LEFT: "STMXCSR VSTMXCSR",
        _TELLS: "CPUID RDTSC RDTSCP RDPID RDPRU",
        _SEGMENTS: "WRFSBASE WRGSBASE LDS LES LFS LGS LSS LLDT LGDT SWAPGS WRPKRU",
        _FLAGS: "STD STI CLI STAC CLAC POPF POPFD POPFQ",
        _FAR: "RETF",
        _PRIVILEGED: "HLT IRET IRETD IRETQ RSM VMCALL VMMCALL ENCLU ENCLS",
    }.items()
    for name in names.split()
}
# What a run that reaches it explains better: said of what no run has reached.
_SAID_BY_RUNS = frozenset({"UD0", "UD1", "UD2"})
# They name an address and go nowhere.
_NO_ACCESS = frozenset({"LEA", "NOP", "RESERVEDNOP"})
# Words of 64-bit ARM by mask and value.
_AARCH64 = (
    (0xFF00001F, 0xD4000001, "svc", _SYSTEM),
    (0xFF00001F, 0xD4000002, "hvc", _PRIVILEGED),
    (0xFF00001F, 0xD4000003, "smc", _PRIVILEGED),
    (0xFFE0001F, 0xD4400000, "hlt", _TRAP),
    (0xFFE0001F, 0xD4200000, "brk", _ENDS),
    # msr to a system register; of them FPCR sets rounding and flushing
    (0xFFFFFFE0, 0xD51B4400, "msr fpcr", _MODES),
    (0xFFFFFFE0, 0xD51BD040, "msr tpidr_el0", _SEGMENTS),
)
_MSR = (0xFFF00000, 0xD5100000)
# Of x86 Linux, at the same place in every process: gettimeofday, time, getcpu.
_ENTRIES = frozenset(0xFFFFFFFFFF600000 + offset for offset in (0, 0x400, 0x800))
_STACK_GUARD = 0x28  # of glibc, from FS on
_BREAKPOINT = 0xCC  # int3
_HARMLESS_MSR = 0xD51B4420  # fpsr: flags that nobody reads


@dataclass(frozen=True)
class Odd:
    """An instruction that no kernel may have.

    Attributes:
        name: As assembly has it: ``syscall``; empty where it is none.
        reason: What is wrong with it, in words that may follow ``it``.
        function: In which function of the library, as its table of symbols has it.
        jump: Whether it is where it leads to that is wrong, not what it is.
        unreached: Whether it harms only where it is reached, which a run says better.
    """

    name: str
    reason: str
    function: str = ""
    jump: bool = False
    unreached: bool = False


def odd_instructions(
    code: bytes, address: int, machine: str, *, strict: bool = True
) -> Iterator[tuple[int, Odd]]:
    """Yield where there are instructions that no kernel may have, and which.

    Args:
        code: A part of a library that is run.
        address: Where it lies.
        machine: ``x86_64`` or ``aarch64``; nothing is known of others.
        strict: Whether nothing but instructions lies there; else what is none is passed over.
    """
    if machine == "x86_64":
        yield from _x86(code, address, strict=strict)
    elif machine == "aarch64":
        yield from _aarch64(code, address)


def _x86(code: bytes, address: int, *, strict: bool) -> Iterator[tuple[int, Odd]]:
    from iced_x86 import Decoder

    starts: set[int] = set()
    targets: list[tuple[int, int]] = []
    end = address + len(code)
    over, padding = False, 0  # whether nothing runs on into what follows; where that ends
    for instruction in Decoder(64, code, ip=address):
        at = instruction.ip
        if over and code[at - address] == _BREAKPOINT:
            # lld fills what is left up to the next function, which begins at a multiple of 16
            padding = padding or -(-at // 16) * 16
            if at < padding:
                continue  # whoever jumps there jumps to no instruction
        starts.add(at)
        found, jumps, over = _judged(instruction.code)
        padding = 0
        if instruction.is_invalid:
            if strict:
                yield at, Odd("", _UNKNOWN)
        elif found is not None:
            yield at, found
        elif jumps:
            if instruction.near_branch_target:
                targets.append((at, instruction.near_branch_target))
        elif _sets_segment(instruction):
            yield at, Odd("mov", _SEGMENTS)
        elif _touches_thread(instruction):
            yield at, Odd("fs", _THREAD)
        elif _names_entry(instruction):
            yield at, Odd("", _ENTRY)
        elif _is_fixed(instruction):
            yield at, Odd("", _FIXED, unreached=True)
    if strict:
        for at, target in targets:
            if address <= target < end and target not in starts:
                yield at, Odd("jmp", _BETWEEN, jump=True)


@functools.lru_cache(maxsize=8192)
def _judged(code: Any) -> tuple[Odd | None, bool, bool]:
    """Return what is wrong with all instructions of a code, whether they branch, and for good."""
    from iced_x86 import CpuidFeature, FlowControl, Instruction, Mnemonic, OpCodeInfo

    info = OpCodeInfo(code)
    mnemonic = _names(Mnemonic)[info.mnemonic]
    shown = mnemonic.lower()
    if mnemonic in _REFUSED:
        return Odd(shown, _REFUSED[mnemonic]), False, False
    if mnemonic in _SAID_BY_RUNS:
        return Odd(shown, _ENDS, unreached=True), False, True
    one = Instruction()
    one.code = code
    if one.is_jmp_far or one.is_call_far or one.is_jmp_far_indirect or one.is_call_far_indirect:
        return Odd(shown, _FAR), False, False
    families = {_names(CpuidFeature)[number] for number in one.cpuid_features()}
    if info.is_privileged:
        return Odd(shown, _PRIVILEGED), False, False
    if any(name not in _FAMILIES and not name.startswith("AVX512") for name in families):
        return Odd(shown, _NOT_DONE), False, False
    branches = (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH, FlowControl.CALL)
    last = (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.RETURN, FlowControl.EXCEPTION)
    return None, one.flow_control in branches, one.flow_control in last


@functools.cache
def _names(table: object) -> dict[int, str]:
    """Return the names of an enumeration's values."""
    return {getattr(table, name): name for name in dir(table) if name.isupper()}


def _sets_segment(instruction: object) -> bool:
    from iced_x86 import Register

    first: int = getattr(instruction, "op0_register", Register.NONE)
    return Register.ES <= first <= Register.GS


def _touches_thread(instruction: Any) -> bool:
    """Whether it goes to what each thread has; only the stack's guard may be looked at."""
    from iced_x86 import OpKind, Register

    if instruction.segment_prefix not in (Register.FS, Register.GS):
        return False
    nothing = Register.NONE
    looks = (
        instruction.memory_displacement == _STACK_GUARD
        and instruction.memory_base == instruction.memory_index == nothing
        and instruction.op0_kind == OpKind.REGISTER
    )
    return not looks


def _names_entry(instruction: Any) -> bool:
    """Whether it takes the address of one of the system's entries, which is called by it alone."""
    from iced_x86 import Mnemonic, OpKind

    numbers = (OpKind.IMMEDIATE32TO64, OpKind.IMMEDIATE64)
    return (
        instruction.mnemonic == Mnemonic.MOV
        and instruction.op1_kind in numbers
        and instruction.immediate(1) in _ENTRIES
    )


def _is_fixed(instruction: Any) -> bool:
    """Whether it goes to an address that stands in it as a number."""
    from iced_x86 import Mnemonic, Register

    nothing = Register.NONE
    return bool(
        instruction.memory_displ_size
        and instruction.memory_base == instruction.memory_index == nothing
        and instruction.segment_prefix == nothing
        and _names(Mnemonic)[instruction.mnemonic] not in _NO_ACCESS
    )


def _aarch64(code: bytes, address: int) -> Iterator[tuple[int, Odd]]:
    for at in range(0, len(code) - 3, 4):
        word = int.from_bytes(code[at : at + 4], "little")
        for mask, value, name, why in _AARCH64:
            if word & mask == value:
                yield address + at, Odd(name, why, unreached=why is _ENDS)
                break
        else:
            if word & _MSR[0] == _MSR[1] and word & 0xFFFFFFE0 != _HARMLESS_MSR:
                yield address + at, Odd("msr", _FLAGS)


__all__ = ["Odd", "odd_instructions"]
