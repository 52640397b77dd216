"""The instructions of a built kernel: what only computes is let by, what does more is not."""

from __future__ import annotations

import pytest

from fusec.target_api.registry import find_target
from fusec.verify.static import binary, cpp_text
from fusec.verify.static.instructions import odd_instructions
from support import handwritten_kernels as vk

JOIN = "#define JOIN(a, b) a##b\n"
REFUSED = {
    "syscall": "0f05",
    "sysenter": "0f34",
    "int": "cd80",
    "int3": "cc",
    "ldmxcsr": "0fae1424",
    "vldmxcsr": "c5f8ae1424",
    "fldcw": "d92c24",
    "fxrstor": "0fae0c24",
    "xrstor": "0fae2c24",
    "xsetbv": "0f01d1",
    "wrfsbase": "f3480faed0",
    "wrpkru": "0f01ef",
    "mov": "8ed8",  # to a segment's register
    "std": "fd",
    "popfq": "9d",
    "cli": "fa",
    "hlt": "f4",
    "retf": "cb",
    "iretq": "48cf",
    "rdtsc": "0f31",
    "rdtscp": "0f01f9",
    "rdpid": "f30fc7f8",
    "cpuid": "0fa2",
    "stmxcsr": "0fae5c2404",
    "vstmxcsr": "c5f8ae1c24",
    "rdrand": "480fc7f0",
    "in": "ec",
    "fs": "64488b042500000000",  # where the thread's own is
}
HARMLESS = [
    "90",
    "c3",
    "f30f1efa",
    "c5f458c2",
    "62f17c4858c2",
    "f390",
    "64488b042528000000",  # mov rax, fs:0x28: the stack's guard
    "6448330c2528000000",  # xor rcx, fs:0x28
]


# A run that reaches them says it better.
UNREACHED = {
    "ud2": "0f0b",
    "a store to 8": "c704250800000001000000",  # mov dword ptr [8], 1
    "a load from 4096": "8b042500100000",
}


def found(code, machine="x86_64", **options):
    return [
        odd.name for _, odd in odd_instructions(bytes.fromhex(code), 0x1000, machine, **options)
    ]


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    assert found("90" + REFUSED[name] + "c3") == [name]


@pytest.mark.parametrize("name", UNREACHED)
def test_said_of_what_no_run_reached(name):
    (odd,) = (odd for _, odd in odd_instructions(bytes.fromhex(UNREACHED[name]), 0x1000, "x86_64"))
    assert odd.unreached
    facts = binary.LibraryFacts(odd=(odd,))
    assert binary.problem(facts.at_once, "") is None
    assert binary.problem(facts.unreached, "").stage == "unsafe"


@pytest.mark.parametrize("code", [*HARMLESS, "8d042508000000", "8b0c8500000000"])
def test_lets_by(code):
    assert found(code) == []


@pytest.mark.parametrize("code", ["6448c704252800000000000000", "6448ff042558000000", "658b0408"])
def test_what_each_thread_has_for_itself(code):
    assert found(code) == ["fs"]


@pytest.mark.parametrize(
    ("code", "odd"),
    [
        ("48c7c0000460ff", True),  # mov rax, 0xffffffffff600400
        ("48b8000860ffffffffff", True),  # the same, in full
        ("48c7c0010460ff", False),
        ("4805000060ff", False),  # add rax, -10485760
    ],
)
def test_entries_at_fixed_addresses(code, odd):
    reasons = [odd.reason for _, odd in odd_instructions(bytes.fromhex(code), 0x1000, "x86_64")]
    assert ["entry of the system" in reason for reason in reasons] == [True] * odd


def test_what_stands_within_another_instruction():
    # jmp +1; mov eax, 0xc3050f: one byte further on it is a system call
    assert found("eb01b80f05c300") == ["jmp"]
    assert found("eb00b80f05c300") == []


def test_what_lies_between_functions():
    """lld fills it with int3; nothing runs into it, and nothing may jump there."""
    assert found("90c3" + "cc" * 14 + "90c3") == []
    assert found("eb0e" + "cc" * 14 + "90c3") == []  # past it
    assert found("eb03" + "cc" * 14 + "90c3") == ["jmp"]  # into it
    assert found("90" + "cc" * 15 + "c3") == ["int3"] * 15  # what is before runs on into it
    assert found("c3" + "cc" * 16 + "c3") == ["int3"]  # a function may begin there
    assert found("c3" * 16 + "cc" + "c3") == ["int3"]


def test_bytes_that_are_no_instruction():
    assert found("06c3") == [""]
    assert found("06c3", strict=False) == []


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("010000d4", "svc"),
        ("00441bd5", "msr fpcr"),
        ("40d01bd5", "msr tpidr_el0"),
        ("00421bd5", "msr"),  # nzcv
        ("00443bd5", None),  # it reads fpcr
        ("20441bd5", None),  # flags that nobody reads
        ("c0035fd6", None),
        ("200020d4", "brk"),  # a trap
    ],
)
def test_of_arm(word, name):
    assert found("1f2003d5" + word, "aarch64") == ([name] if name else [])


def read(text):
    """Return what the library of a text says of it."""
    facts = binary.library_facts(str(vk.build_library(text)))
    return binary.problem(facts, text, find_target("cpp").instruction_line)


def test_assembly_that_macros_join():
    code = 'unsigned mode = 0x9fc0; JOIN(as, m) volatile("ldmxcsr %0" : : "m"(mode));\n'
    text = JOIN + vk.cpp(code + vk.RIGHT)
    assert cpp_text.source_problem(text) is None  # nothing in the text says so
    found = read(text)
    assert found.reason.startswith("has the instruction ldmxcsr: it changes how the processor")
    assert text.splitlines()[found.line - 1] == code.rstrip()
    verdict = vk.check(text, timed=False)  # which looks at what the macros make of it, too
    assert (verdict.stage, verdict.ok, verdict.line) == ("unsafe", False, found.line)
    assert verdict.reason.startswith("has assembly of its own")
    assert vk.check(JOIN + vk.cpp(vk.RIGHT), timed=False).ok


def test_memory_that_can_be_written_and_run():
    code = 'JOIN(as, m) volatile(".pushsection .note.GNU-stack,\\"x\\",@progbits\\n.popsection");\n'
    text = JOIN + vk.cpp(code + vk.RIGHT)
    assert "can run memory that it can write" in read(text).reason
