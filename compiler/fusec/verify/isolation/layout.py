"""Where a case's tensors lie in the two memory files that go to the worker."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fusec.kernel_source import Signature
from fusec.systems import this_system
from fusec.verify import words as explain
from fusec.verify.protocol import Message
from fusec.verify.words import Run


@dataclass(frozen=True)
class Case:
    """One set of inputs to check a kernel on.

    Attributes:
        tensors: One for every argument of the signature; those of ``out`` arguments give shape
            and strides only. None of them is changed.
        sizes: Values of the symbolic sizes.
        label: Where the inputs come from, for messages: ``on fresh random inputs``.
        refused: Why the kernel has to refuse them, in the words of one of its checks; empty where
            it has to take them.
    """

    tensors: tuple[torch.Tensor, ...]
    sizes: tuple[int, ...] = ()
    label: str = ""
    refused: str = ""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The tensors' shapes."""
        return tuple(tuple(tensor.shape) for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """The tensors' size."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class CaseLayout:
    """Where the bytes of all cases' tensors are, inputs in one file and results in another.

    Attributes:
        described: A JSON value a case, for the worker.
    """

    def __init__(self, signature: Signature, cases: Sequence[Case], *, runs: int) -> None:
        self.cases = cases
        self.runs = runs
        self.described: list[Message] = []
        self._input_size = 0
        self._result_size = 0
        for case in cases:
            self._add(signature, case)

    def _add(self, signature: Signature, case: Case) -> None:
        arguments = signature.arguments
        if len(arguments) != len(case.tensors):
            raise ValueError(f"{len(arguments)} arguments, but {len(case.tensors)} tensors")
        described = []
        results = 0
        for at, (argument, tensor) in enumerate(zip(arguments, case.tensors, strict=True)):
            nbytes = extent(tensor) * tensor.element_size()
            result = -1
            same_as = -1
            if argument.role == "in":
                # One tensor in two places is in one place in the worker, too.
                same_as = next((i for i in range(at) if case.tensors[i] is tensor), -1)
                same_as = same_as if same_as >= 0 and arguments[same_as].role == "in" else -1
            if argument.role != "in":
                result = results
                results += _aligned(nbytes)
            described.append(
                {
                    "name": argument.name,
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "kind": explain.kind(tensor.dtype),
                    "itemsize": tensor.element_size(),
                    "shape": tuple(tensor.shape),
                    "strides": tuple(tensor.stride()),
                    "role": argument.role,
                    "offset": self._input_size,
                    "nbytes": nbytes,
                    "result": result,
                    "same_as": same_as,
                }
            )
            if argument.role != "out":
                self._input_size += _aligned(nbytes)
        size = _pages(results)
        self.described.append(
            {
                "arguments": described,
                "sizes": [int(value) for value in case.sizes],
                "base": self._result_size,
                "results": size,
                "refused": case.refused,
                "checks": len(signature.checks),
            }
        )
        self._result_size += size * self.runs

    @contextlib.contextmanager
    def files(self, body: bytes) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Make the two files; the first holds the tensors' bytes and then ``body``.

        Yields:
            The two descriptors, and where the body is.
        """
        data_file = this_system().memory_file("fusec-data")
        result_file = this_system().memory_file("fusec-results")
        try:
            os.ftruncate(data_file, self._input_size + len(body))
            os.ftruncate(result_file, self._result_size)
            if self._input_size:
                data = mmap.mmap(data_file, self._input_size)
                for described, case in zip(self.described, self.cases, strict=True):
                    for argument, tensor in zip(described["arguments"], case.tensors, strict=True):
                        if argument["role"] != "out" and argument["nbytes"]:
                            _copy_bytes(data, argument["offset"], tensor)
            os.pwrite(data_file, body, self._input_size)
            yield data_file, result_file, (self._input_size, len(body))
        finally:
            os.close(data_file)
            os.close(result_file)

    def results(self, result_file: int, case: int, same: Sequence[bool]) -> list[Run]:
        """Return what each run of a case wrote; it stays valid after the file is closed.

        Runs that are the ``same`` as the first are left out.
        """
        described = self.described[case]
        size = described["results"]
        found: list[Run] = []
        content = None
        if size:
            content = mmap.mmap(result_file, size * self.runs, offset=described["base"])
        for run in range(self.runs):
            if same[run]:
                continue
            outputs = []
            for argument, tensor in zip(
                described["arguments"], self.cases[case].tensors, strict=True
            ):
                if argument["role"] == "in":
                    continue
                length = extent(tensor)
                if length == 0 or content is None:
                    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                    outputs.append(empty)
                    continue
                offset = run * size + argument["result"]
                flat = torch.frombuffer(content, dtype=tensor.dtype, count=length, offset=offset)
                outputs.append(flat.as_strided(tensor.shape, tensor.stride()))
            found.append(Run(run, tuple(outputs)))
        return found


def extent(tensor: torch.Tensor) -> int:
    """Return the elements from the first to the last of a strided tensor, both included."""
    if tensor.numel() == 0:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def _copy_bytes(data: mmap.mmap, offset: int, tensor: torch.Tensor) -> None:
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.as_strided((extent(plain),), (1,))
    place = torch.frombuffer(data, dtype=plain.dtype, count=flat.numel(), offset=offset)
    place.copy_(flat)


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _pages(size: int) -> int:
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
