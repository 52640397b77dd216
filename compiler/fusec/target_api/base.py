"""What a target is: a language that kernels are written in, and all that is done with its text.

A target is one folder of ``fusec/targets`` with a module ``target.py`` that holds a value
``TARGET``; ``registry`` finds it by the folder's name.  Whoever has a kernel asks the registry for
its target and the target for what it needs to know: nobody compares names.

A built kernel is one of two things.  A function in a shared library takes pointers
(``LibraryTarget``); a function of Python takes tensors (``PythonTarget``).  A target derives from
one of the two.

``target.py`` is imported wherever options are made, so it imports its emitter and its compiler when
they are used.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from fusec.abilities import Abilities
from fusec.target_api.c_entry import Mismatch, blank_comments, check_c_entry
from fusec.target_api.permitted import Permitted

if TYPE_CHECKING:
    import torch

    from fusec.cache import CacheStore
    from fusec.ir.body import Body, Buffer
    from fusec.ir.program import Compute, Settings
    from fusec.kernel import Kernel
    from fusec.kernel_source import KernelSource, Runnable, Signature
    from fusec.report import GpuStart
    from fusec.toolchain.children import Children

Language = Literal["cpp", "python"]


@dataclass(frozen=True)
class ExportWords:
    """What an exported file says of its kernel.

    Attributes:
        package: The Python package that the template is in, in its folder ``templates``.
        template: The template's name: it fills the blocks of ``fusec/export/templates``.
        needs: What the file needs to run: ``torch and a C++ compiler``.
        device: Python that says where it runs.
    """

    package: str
    template: str
    needs: str
    device: str


@dataclass(frozen=True)
class PackedKernel:
    """A compiled kernel for several sets of tensors.

    Attributes:
        kernel: What was compiled; its pointers are those of the first set, then of the second and
            so on, in the original's order, and then the original's integers.
        function: The driver's handle.
        threads: A program's.
        shared: Bytes of shared memory of a program.
    """

    kernel: Any
    function: int
    threads: int
    shared: int


@dataclass(frozen=True)
class GpuCode:
    """A start of a kernel, compiled for one architecture.

    Attributes:
        binary: The machine code, as the driver loads it.
        function: Its name there.
        shared: Bytes of shared memory that a block asks for.
        threads: Of a block.
        more: What it needs beside that and its arguments, in words; empty where nothing.
    """

    binary: bytes
    function: str
    shared: int
    threads: int
    more: str = ""


class GpuStartNoted(Protocol):
    """What a kernel file starts, noted and not started."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """How many blocks."""

    @property
    def arguments(self) -> Sequence[Any]:
        """Tensors, and numbers as pairs of a type (``i32``, ``i64``, ``fp32``) and a value."""

    def compile(self, gpu: str) -> GpuCode:
        """Compile it for an architecture.

        Raises:
            CompileError: It does not compile.
        """


class Target(ABC):
    """A language of kernels.

    Attributes:
        name: What the option ``target`` calls it: its folder's name.
        title: What people call it.
        about: What it is for, in a few words, for the help of ``--target``.
        language: What an editor colors its text as.
        suffixes: Of the files that hold a kernel and nothing else, the usual one first.
        head: What the text has where the kernel itself begins, below what it declares.
        devices: Types of torch's devices whose tensors its kernels can be asked to compute on.
        default_for: Those for which it is taken where nobody asks for any.
        interprets: Those on which its kernels are interpreted, so that times mean nothing.
        abilities: What its kernels can do.
        for_libraries: Whether graphs are first rearranged for the libraries of the device that
            they run on; not where its kernels stand for those of another one.
        artifacts: The lower forms that can be shown of a kernel, and what people call each.
        worker: The module that runs a candidate in a process of its own: its ``prepare`` takes the
            request and returns a ``WorkerKernel``. That of a ``PythonTarget`` also has
            ``rehearse``, which takes the request, tensors without memory and sizes, runs the text's
            own Python with them, starts nothing, and raises CompileError where it or a kernel is
            refused. It may have ``announce``, which takes a ``Tell`` and says ``compile`` and
            ``run`` to it.
        worker_imports: What that process should import before it is forked, to interpret.
        rehearsal_imports: What it should import beside these before a file runs for the first time
            whose Python, what starts the kernels, is not the generated text's.
        threads: Whether a kernel computes on several threads of the CPU.
        export: How a kernel becomes a Python file that runs alone.
        gpu_model: Whether the compiled kernel says what a model of the GPU needs to know of it.
        imports: What a first kernel would import, in the order in which that should be done ahead.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    language: ClassVar[Language]
    suffixes: ClassVar[tuple[str, ...]]
    head: ClassVar[str]
    devices: ClassVar[frozenset[str]]
    default_for: ClassVar[frozenset[str]] = frozenset()
    interprets: ClassVar[frozenset[str]] = frozenset()
    abilities: ClassVar[Abilities] = Abilities()
    for_libraries: ClassVar[bool] = True
    artifacts: ClassVar[Mapping[str, str]] = {}
    worker: ClassVar[str]
    worker_imports: ClassVar[tuple[str, ...]] = ()
    rehearsal_imports: ClassVar[tuple[str, ...]] = ()
    threads: ClassVar[bool] = False
    export: ClassVar[ExportWords]
    gpu_model: ClassVar[bool] = False
    imports: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def emit(self, step: Compute, buffers: Mapping[str, Buffer]) -> KernelSource:
        """Write the kernel of a step.

        Args:
            step: What to compute, with its final name.
            buffers: Every buffer of the program.
        """

    @abstractmethod
    def entry_problem(self, text: str, entry: str, generated: str) -> Mismatch | None:
        """Return how the entry point of ``text`` differs from that of ``generated``, or None."""

    @abstractmethod
    def syntax_problem(self, text: str) -> str:
        """Return what is wrong with a text at first sight; empty if nothing is."""

    def artifact(self, text: str, signature: Signature, kind: str, gpu: str) -> str:
        """Return a lower form of a text.

        Args:
            text: The kernel's file.
            signature: What it takes.
            kind: One of ``artifacts``.
            gpu: What kernels are compiled for where there is no GPU: ``sm_90``.

        Raises:
            CompileError: The text does not compile.
        """
        raise NotImplementedError(kind)

    def gpu_starts(self, text: str, signature: Signature, gpu: str) -> tuple[GpuStart, ...]:
        """Return what a kernel takes of a GPU that need not be there; nothing where it is for none.

        Raises:
            CompileError: The text does not compile.
        """
        return ()

    def whole_text(self, text: str) -> str:
        """Return a text that compiles by itself: what it includes of its own stands in it."""
        return text

    def text_and_header(self, text: str) -> tuple[str, str]:
        """Return a text and the header ``helpers.h`` that it includes; empty if it has none."""
        return text, ""

    def version(self) -> str:
        """Return the version of what compiles it, where records must tell it; else nothing."""
        return ""

    def prepare(self) -> None:
        """Start what will be needed, once a GPU is in use; returns at once."""
        return

    def find_tools(self) -> None:
        """Look for what compiles, ahead of the first kernel; may run other programs."""
        return

    def read_helpers(self) -> None:
        """Read what kernels are written with, ahead of the first one."""
        return


class LibraryTarget(Target):
    """A target whose kernels are functions in shared libraries.

    ``extern "C" int NAME(T0* a0, ..., int64_t s0, ..., int64_t threads)`` returns 0, or the number
    of the check that failed.

    Attributes:
        export_flags: What an exported file is compiled with.
    """

    language = "cpp"
    suffixes = (".cpp", ".cc", ".cxx")
    head = 'extern "C"'
    devices = frozenset({"cpu"})
    worker = "fusec.target_api.library_worker"
    export = ExportWords(
        "fusec.target_api", "shared_library.py.j2", needs="torch and a C++ compiler", device='"cpu"'
    )
    export_flags: ClassVar[tuple[str, ...]]

    @abstractmethod
    def compile(
        self,
        text: str,
        *,
        flags: Sequence[str] = (),
        edited: bool = False,
        store: CacheStore | None = None,
        children: Children | None = None,
    ) -> Path:
        """Compile a text, unless that has been done before; return the library's path.

        Args:
            text: The kernel's file.
            flags: The generated kernel's own.
            edited: Whether a user has typed it: such libraries are kept apart.
            store: Where to look and to keep; the process's default store if None.
            children: Has the compiler while it runs, so that somebody else can end it.

        Raises:
            CompileError: It does not compile.
            CompilerNotFound: There is nothing to compile it with.
        """

    def instruction_line(self, text: str, name: str) -> int | None:
        """Return the line of a text that an instruction of the processor is of; None if unknown.

        Raises:
            CompileError: The text does not compile.
        """
        return None

    def entry_problem(self, text: str, entry: str, generated: str) -> Mismatch | None:
        """Return how the C function's declaration differs from the generated one's, or None."""
        return check_c_entry(text, entry, generated)

    def syntax_problem(self, text: str) -> str:
        """Return whether braces match; a comment may hold half of the user's line."""
        code = blank_comments(text)
        return "" if code.count("{") == code.count("}") else "braces do not match"


class GroupedProducts(Protocol):
    """Products of groups of rows, each with a matrix of its own; ``ends`` are their last rows."""

    def grouped_rows(
        self, x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor
    ) -> torch.Tensor:
        """Return rows times the matrix of their group, zeros behind the last group."""

    def grouped_matrices(
        self, x: torch.Tensor, y: torch.Tensor, ends: torch.Tensor, like: torch.Tensor
    ) -> torch.Tensor:
        """Return the products of a group's rows of ``x``, turned, with those of ``y``."""


class PythonTarget(Target):
    """A target whose kernels are Python functions: ``def launch(a0, ..., s0, ...)``.

    Attributes:
        permitted: What a kernel's file has a use for.
    """

    language = "python"
    permitted: ClassVar[Permitted] = Permitted({})
    suffixes = (".py",)

    @abstractmethod
    def load(self, text: str, kernel: Kernel) -> Runnable:
        """Return a text ready to run in place of a kernel's.

        Raises:
            CompileError: It cannot be.
        """

    @abstractmethod
    def check(self, text: str, signature: Signature, entry: str) -> None:
        """Compile a text as far as that finds mistakes.

        Raises:
            CompileError: There is one.
        """

    def programs(
        self, text: str, entry: str, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> tuple[int, ...]:
        """Return how many programs each kernel start of a text has; nothing where nobody knows."""
        return ()

    def machine_lines(self, ptx: str, binary: bytes, file: str) -> Mapping[int, tuple[str, int]]:
        """Return the instructions of a GPU's binary by their place: the operation and its line.

        Args:
            ptx: What it was made of.
            binary: The machine code, as the driver loads it.
            file: The name of the kernel's file; what is of no line of it has 0.

        Raises:
            FusecError: It cannot be read.
        """
        return {}

    def begin(self, source: KernelSource) -> None:
        """Begin to compile a kernel that will be loaded soon; returns at once."""

    def workers(self) -> int:
        """Return how many processes compile its kernels beside this one."""
        return 0

    def product_candidates(
        self, body: Body, buffers: Mapping[str, Buffer]
    ) -> Sequence[tuple[str, Settings]]:
        """Return how a matrix product might best be computed: strategies with their settings."""
        return ()

    def build_for(
        self, sources: Sequence[KernelSource], tensors: Sequence[torch.Tensor]
    ) -> list[Runnable | None]:
        """Build kernels side by side, each ready to run on tensors; None for what is refused."""
        raise NotImplementedError

    def groups(self) -> GroupedProducts | None:
        """Return products of groups of rows that wait for nobody; None where there are none."""
        return None

    def multiply_in_place(self, x: torch.Tensor, factor: torch.Tensor) -> bool:
        """Multiply a tensor by a number that the device knows, if it is not one.

        Args:
            x: Contiguous; overwritten.
            factor: One float32 on its device.

        Returns:
            Whether it did, or would have.
        """
        return False

    def pack(self, compiled: Any, count: int) -> PackedKernel | None:
        """Return a compiled kernel for several sets of tensors at once; None if it cannot be.

        Args:
            compiled: What the device starts, as the target made it.
            count: How many sets; the grid's second size.
        """
        return None

    def precompile(self, text: str, signature: Signature, entry: str) -> None:
        """Have a process compile a text that will be loaded, and wait for it."""

    def compiled_for(self, texts: Path) -> Iterable[tuple[str, Mapping[str, bytes]]]:
        """Return what its compiler keeps outside of the store: a name and files for each.

        Args:
            texts: The store's folder of kernels.
        """
        return ()

    def architecture(self, files: Mapping[str, bytes]) -> str:
        """Return the GPU that files of ``compiled_for`` are for: ``sm_90``; empty if none."""
        return ""

    def take_in(self, name: str, files: Mapping[str, bytes]) -> bool:
        """Keep what ``compiled_for`` returned elsewhere; whether it was not there yet.

        Raises:
            ValueError: It is nothing of the kind.
        """
        raise ValueError(f"{self.name} keeps nothing outside of the store")

    def starts_for(
        self, text: str, entry: str, tensors: Sequence[torch.Tensor]
    ) -> Sequence[GpuStartNoted]:
        """Return what a text starts on a GPU for tensors without memory."""
        return ()

    def syntax_problem(self, text: str) -> str:
        """Return whether it is Python."""
        try:
            ast.parse(text)
        except SyntaxError as error:
            return str(error)
        except (RecursionError, MemoryError):
            return "it is nested deeper than Python can read"
        return ""


__all__ = [
    "ExportWords",
    "GroupedProducts",
    "Language",
    "LibraryTarget",
    "Mismatch",
    "PackedKernel",
    "PythonTarget",
    "Target",
]
