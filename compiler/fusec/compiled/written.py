"""A compiled graph as text: its host program, its kernels, and what to do with the outputs.

Only what runs by itself is kept: a graph past AOTAutograd's wrappers, or one that records for
autograd with its backward part, on the CPU.  Of others the reason is said; a second process
captures them again, and finds their kernels in the store.  Sizes may be symbolic: a call has them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fusec.call.epilogue import Epilogue, put_marks
from fusec.call.grad_mode import in_modes
from fusec.call.huge_pages import empty_cpu, empty_large, pooled
from fusec.call.input_check import UnexpectedInput, size_of, size_range
from fusec.call.launch import CppRunnable, multiply_into
from fusec.call.results import expect
from fusec.codegen.host_program import emit_host
from fusec.codegen.host_values import DTYPES
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.part import CompiledPart
from fusec.compiled.recorded import read_marks, read_plan, recorded, written_marks, written_plan
from fusec.compiled.references import JSON, NotKept, constant, constant_value, reference, resolve
from fusec.ir.index_text import expr_text
from fusec.ir.program import Program
from fusec.kernel import Kernel
from fusec.kernel_source import Argument, Signature
from fusec.memory.poison import poisoned
from fusec.memory.readable import require
from fusec.target_api.base import LibraryTarget
from fusec.target_api.registry import find_target

MOST_CONSTANT_BYTES = 64 << 20


@dataclass(frozen=True)
class KeptGraph:
    """A graph that was written down.

    Attributes:
        data: As JSON.
        tensors: Constant tensors' bytes, by the names of files.
    """

    data: JSON
    tensors: Mapping[str, bytes] = field(default_factory=dict)


def written_graph(graph: CompiledGraph) -> KeptGraph:
    """Return a graph as JSON.

    Raises:
        NotKept: It is none that runs by itself in another process; the text says why.
    """
    if graph.fallback:
        raise NotKept(graph.fallback)
    tensors: dict[str, bytes] = {}
    data: JSON = {"name": graph.name, "converts": graph.converts}
    plan = graph.recorded_plan
    if graph.plain is not None:
        part, epilogue = graph.plain
        if any(make is not None for _, _, make in epilogue.views):
            raise NotKept("it returns views of its inputs")
        data |= {
            "part": _part(part, tensors),
            "updates": list(epilogue.updates),
            "returns": [[at, source] for at, source, _ in epilogue.views],
            "marks": written_marks(epilogue.marks),
            "records": graph.records,
            "inference": list(graph.inference),
        }
        return KeptGraph(data, tensors)
    if plan is None:
        raise NotKept("its results need torch's own wrappers")
    if graph.make_backward is not None:
        graph.make_backward()
    parts = {each.kind: each for each in graph.parts}
    if graph.fallback or not {"forward", "backward"} <= set(parts):
        raise NotKept(graph.fallback or "its gradient is computed in a way of its own")
    data |= {
        "part": _part(parts["forward"], tensors),
        "backward": _part(parts["backward"], tensors),
        "plan": written_plan(plan),
    }
    return KeptGraph(data, tensors)


def _part(part: CompiledPart, tensors: dict[str, bytes]) -> JSON:
    program = part.state.scheduled
    if any(buffer.device.type != "cpu" for buffer in program.buffers.values()):
        raise NotKept("it runs on a GPU")
    if part.draws_seed:
        raise NotKept("it draws random numbers")
    host = emit_host(program, part.state.by_pointers, traced=True)
    return {
        "host": host.text,
        "constants": {n: _written(v, tensors) for n, v in host.constants.items()},
        "kernels": {name: _kernel(part, name) for name in part.kernels},
        "inputs": [_input(part, name) for name in program.inputs],
        **_sizes(program),
        "pooled": part.has_large_tensors(),
        "operators": part.calls_operators,
    }


def _written(value: object, tensors: dict[str, bytes]) -> JSON:
    if isinstance(value, torch.Tensor):
        plain = value.detach().contiguous()
        if type(value) is not torch.Tensor or plain.nbytes > MOST_CONSTANT_BYTES:
            raise NotKept("a constant tensor that is too large to keep, or not a plain one")
        if value.stride() != plain.stride():
            raise NotKept("a constant tensor that is not contiguous")
        name = f"constant{len(tensors)}"
        tensors[name] = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": {"file": name, "dtype": dtype, "shape": list(value.shape)}}
    if callable(value) and not isinstance(value, torch._ops.OpOverload):
        return {"called": reference(value)}
    return {"value": constant(value)}


def _kernel(part: CompiledPart, name: str) -> JSON:
    kernel: Kernel = part.kernels[part.state.leaders[name]]
    target = find_target(kernel.target)
    if not isinstance(target, LibraryTarget):
        raise NotKept(f"kernel {name} is Python")
    source = kernel.generated
    signature = kernel.signature
    return {
        "same as": kernel.name,
        "target": kernel.target,
        "entry": source.entry,
        "text": kernel.source if kernel.name == name else "",
        "edited": kernel.source != source.text,
        "flags": list(source.flags),
        "arguments": [[a.name, str(a.dtype).removeprefix("torch.")] for a in signature.arguments],
        "sizes": list(signature.sizes),
        "checks": list(signature.checks),
        "divisions": sorted(signature.divisions),
    }


def _input(part: CompiledPart, name: str) -> JSON:
    buffer = part.state.scheduled.buffers.get(name)
    if buffer is None:
        return None
    return {"name": buffer.hint or name, "dtype": str(buffer.dtype).removeprefix("torch.")}


def _sizes(program: Program) -> JSON:
    """Return where each symbolic size is read, and the inputs' sizes and strides as Python text."""
    names = {symbol: f"s{number}" for number, symbol in enumerate(program.sizes)}
    places = {name: position for position, name in enumerate(program.inputs)}
    read = [[places[source], dim, *size_range(s)] for s, (source, dim) in program.sizes.items()]
    layouts = []
    for name in program.inputs:
        buffer = program.buffers.get(name)
        if buffer is None:
            layouts.append("None")
            continue
        shape, strides = (
            "".join(f"{expr_text(each, names.__getitem__)}, " for each in values)
            for values in (buffer.shape, buffer.strides)
        )
        layouts.append(f"(({shape}), ({strides}))")
    text = f"lambda {', '.join(names.values())}: [{', '.join(layouts)}]"
    return {"sizes": read, "layouts": text}


# -- running it again -----------------------------------------------------------------------


class LoadedGraph:
    """A graph that was written down, to be called as TorchDynamo calls a graph.

    Its kernels are taken from the store, or built, at the first call; those of the backward part
    as well.

    Attributes:
        name: The graph's.
        data: What ``written_graph`` returned.
        sources: The kernels' texts, by name.
    """

    def __init__(self, data: JSON, files: Callable[[str], bytes]) -> None:
        self.name = str(data["name"])
        self.data = data
        self._parts = [
            LoadedPart(f"{self.name}, {name}", data[name], files)
            for name in ("part", "backward")
            if name in data
        ]
        self._run: Callable[..., Any] | None = None
        self._lock = threading.Lock()
        self.sources = {n: text for part in self._parts for n, text in part.sources().items()}

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run it; returns the outputs."""
        if self._run is None:
            self.build()
        assert self._run is not None
        return self._run(*inputs)  # type: ignore[no-any-return]

    def build(self) -> None:
        """Have its kernels from the store, or build them.

        Raises:
            CompileError: A kernel does not compile.
            FrozenMiss: One is not in the store, and nothing may be compiled.
            NotKept: A constant is not there.
        """
        with self._lock:
            if self._run is None:
                self._run = self._linked()

    def _linked(self) -> Callable[..., Any]:
        data = self.data
        runs = [part.linked() for part in self._parts]
        if "plan" in data:
            return recorded(read_plan(data["plan"]), *runs)
        views = tuple((at, source, None) for at, source in data["returns"])
        epilogue = Epilogue(tuple(data["updates"]), views, read_marks(data["marks"]))
        (run,) = runs

        def call(*inputs: Any) -> Any:
            results = epilogue.finish(inputs, run(list(inputs)))
            put_marks(epilogue.marks, results)
            return results

        return in_modes(call, data["converts"], data["records"], data["inference"])


class LoadedPart:
    """A part of a graph that was written down.

    Args:
        name: For messages.
        data: What was written.
        files: Returns constant tensors' bytes.
    """

    def __init__(self, name: str, data: JSON, files: Callable[[str], bytes]) -> None:
        self.name, self.data, self._files = name, data, files

    def sources(self) -> dict[str, str]:
        """Return the kernels' texts."""
        kernels = self.data["kernels"]
        return {name: kernels[k["same as"]]["text"] for name, k in kernels.items()}

    def linked(self) -> Callable[[list[Any]], list[Any]]:
        """Return what runs it on its inputs in a list, which is emptied."""
        data = self.data
        runnables = self._runnables()
        namespace: dict[str, Any] = {
            **DTYPES,
            **{name: self._constant(value) for name, value in data["constants"].items()},
            "empty_cpu": poisoned(empty_cpu),
            "empty_large": poisoned(empty_large),
            "empty": poisoned(torch.empty_strided),
            "expect": expect,
            "expect_inputs": _Expected(data),
            "multiply_into": multiply_into,
            "launch": lambda name, tensors, sizes: runnables[name](tensors, sizes),
        }
        exec(compile(data["host"], f"<host program of {self.name}>", "exec"), namespace)
        run: Callable[[list[Any]], list[Any]] = namespace["run"]
        return pooled(run) if data["pooled"] else run

    def _runnables(self) -> dict[str, CppRunnable]:
        from concurrent.futures import ThreadPoolExecutor

        kernels = self.data["kernels"]
        firsts = [name for name, kernel in kernels.items() if kernel["same as"] == name]
        with ThreadPoolExecutor(4, "fusec-load") as pool:
            built = dict(zip(firsts, pool.map(lambda n: _library(kernels[n]), firsts), strict=True))
        found = {}
        for name, kernel in kernels.items():
            path = built[kernel["same as"]]
            signature = _signature(kernel)
            found[name] = CppRunnable(path, kernel["entry"], signature, name)
        return found

    def _constant(self, data: JSON) -> object:
        ((kind, inner),) = data.items()
        if kind == "called":
            return resolve(inner)
        if kind == "value":
            return constant_value(inner)
        dtype = resolve({"dtype": inner["dtype"]})
        flat = torch.frombuffer(bytearray(self._files(inner["file"])), dtype=torch.uint8)
        return flat.view(dtype).reshape(inner["shape"])  # type: ignore[call-overload]


def _library(kernel: JSON) -> Any:
    target = find_target(kernel["target"])
    if not isinstance(target, LibraryTarget):
        raise NotKept(f"kernels of {kernel['target']} are Python")
    return target.compile(
        kernel["text"], flags=tuple(kernel["flags"]), edited=bool(kernel["edited"])
    )


def _signature(kernel: JSON) -> Signature:
    arguments = tuple(
        Argument(name, getattr(torch, dtype), (), (), "in") for name, dtype in kernel["arguments"]
    )
    return Signature(
        arguments,
        tuple(kernel["sizes"]),
        tuple(kernel["checks"]),
        frozenset(kernel["divisions"]),
    )


class _Expected:
    """What the inputs must be that kernels were compiled for; sizes are read from the inputs."""

    def __init__(self, data: JSON) -> None:
        self._inputs = [
            None if each is None else (each["name"], resolve({"dtype": each["dtype"]}))
            for each in data["inputs"]
        ]
        self._sizes = [tuple(each) for each in data["sizes"]]
        code = compile(data["layouts"], "<sizes of inputs>", "eval")
        self._layouts: Callable[..., list[Any]] = eval(code, {"__builtins__": {}})
        self._known = None if self._sizes else self._layouts()

    def __call__(self, inputs: Sequence[object]) -> None:
        """Raise unless they are.

        Raises:
            UnexpectedInput: One has other sizes, strides or another type.
        """
        if len(inputs) != len(self._inputs):
            raise UnexpectedInput(f"{len(self._inputs)} inputs are expected, not {len(inputs)}")
        layouts = self._known if self._known is not None else self._read(inputs)
        for value, expected, layout in zip(inputs, self._inputs, layouts, strict=True):
            if expected is not None:
                _expect(value, *expected, *layout)

    def _read(self, inputs: Sequence[object]) -> list[Any]:
        found = []
        for position, dim, low, high in self._sizes:
            size = size_of(inputs[position], dim)
            if not low <= size <= high:
                raise UnexpectedInput(f"a size is {size}; compiled for {low} to {high}")
            found.append(size)
        return self._layouts(*found)


def _expect(
    value: object, name: str, dtype: object, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    require(value, f"input {name}")
    assert isinstance(value, torch.Tensor)
    fits = value.shape == shape and value.dtype == dtype and value.device.type == "cpu"
    if not fits or (0 not in shape and not _lie_so(value, strides)):
        raise UnexpectedInput(
            f"input {name}: expected {dtype} {shape}, not {value.dtype} "
            f"{tuple(value.shape)} with strides {value.stride()}"
        )


def _lie_so(value: torch.Tensor, strides: Sequence[int]) -> bool:
    found = zip(value.shape, value.stride(), strides, strict=True)
    return all(step == wanted or size == 1 for size, step, wanted in found)


__all__ = ["KeptGraph", "LoadedGraph", "written_graph"]
