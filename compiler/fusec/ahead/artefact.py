"""Artefacts: compiled calls in the store, which another process takes up without capturing.

TorchDynamo itself dispatches to them: an artefact's code stands beside what TorchDynamo compiled,
behind one native guard that asks ``guard_check``.  It serves only calls of a function that
``fusec.compile`` returned and that took it up.
"""

from __future__ import annotations

import dis
import inspect
import json
import platform
import re
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import CodeType, FunctionType
from typing import Any

import torch
from torch._C._dynamo import eval_frame as native_frames
from torch._C._dynamo.guards import RootGuardManager
from torch._dynamo import disable
from torch._dynamo.guards import GuardManagerWrapper
from torch.autograd import forward_ad

from fusec.ahead.code_object import read_code, written_code
from fusec.ahead.guard_check import GuardCheck
from fusec.ahead.guard_reader import read_guards
from fusec.ahead.guard_table import GLOBALS, GuardTable
from fusec.ahead.origins import changed, origins
from fusec.build.python_headers import python_name
from fusec.cache import CacheStore, Entry, default_store
from fusec.capture.fast_path.compiled_code import graph_of
from fusec.capture.shortcut import find_frame
from fusec.compiled.graph import CompiledGraph
from fusec.compiled.references import JSON, NotKept, code_hash, reference, resolve
from fusec.compiled.written import LoadedGraph, written_graph
from fusec.freezing import Unfit
from fusec.machine import GpuFacts
from fusec.options import Options
from fusec.toolchain.compiler import machine
from fusec.version import __version__

KIND = "ahead"
TEXT = "artefact.json"
MOST = 64
# Global names that TorchDynamo makes: of modules, and of objects by their addresses.
_MADE = re.compile(r"__import_|___|_\d{5,}_c|__builtins_dict__")
_BUILTINS = "__builtins_dict__"
_GRAPH = "__compiled_fn_"
_caller = threading.local()


# -- writing --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """What became of writing down one compiled call.

    Attributes:
        what: What it is for, in a few words.
        problem: Why there is no artefact; empty where there is one.
    """

    what: str
    problem: str = ""


def keep_call(
    optimized: object,
    options: Options,
    graphs: Sequence[CompiledGraph],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Kept:
    """Write down the compiled code that serves a call, in the store.

    Args:
        optimized: What TorchDynamo returned for the function.
        options: How it is compiled.
        graphs: The function's.
        args: Of a call that has run.
        kwargs: Likewise.
    """
    try:
        frame = find_frame(optimized)
        if frame is None:
            raise NotKept("its call runs hooks, or it is a callable object")
        function, prefix = frame
        values = bound(function, (*prefix, *args), kwargs)
        cached, graph = _fitting(function, values, graphs)
        table = read_guards(cached.guard_manager.root, values, function.__globals__)
        kept = written_graph(graph)
        data = {
            "summary": table.summary(),
            "guards": table.data(),
            "code": written_code(cached.code),
            "globals": _made_names(cached.code, function, table),
            "graph": kept.data,
            "origins": origins([*graph.traced, function.__code__], function),
        }
        misfit = GuardCheck(table, function.__globals__).misfit(values)
        if misfit is not None:
            raise NotKept(f"its guards do not hold when they are checked again: {misfit}")
    except NotKept as error:
        return Kept("", str(error))
    _put(store_key(function, options), data, kept.tensors)
    return Kept(table.summary())


def _put(key: dict[str, Any], data: JSON, tensors: Mapping[str, bytes]) -> None:
    text = json.dumps(data).encode()
    store = default_store()
    with store.lock(KIND, key):  # other processes and threads keep other calls of it
        _put_next(store, key, data, {TEXT: text, **tensors})


def _put_next(
    store: CacheStore, key: dict[str, Any], data: JSON, files: Mapping[str, bytes]
) -> None:
    for number in range(MOST):
        entry = store.get(KIND, {**key, "number": number})
        if entry is None:
            store.put(KIND, {**key, "number": number}, files)
            return
        if json.loads(entry.read_bytes(TEXT))["guards"] == data["guards"]:
            store.remove(entry)  # of the same call, compiled once more
            store.put(KIND, {**key, "number": number}, files)
            return


def store_key(function: FunctionType, options: Options) -> dict[str, Any]:
    """Return what all artefacts of a function are kept under."""
    chosen = {name: str(value) for name, value in asdict(options).items() if name != "machine"}
    return {
        "function": f"{function.__module__}:{function.__qualname__}",
        "code": code_hash(function.__code__),
        "options": {**chosen, "keep_inputs": ""},
        # without the GPU's: what is kept runs on the CPU, whether a GPU was used before or not
        "machine": [repr(replace(options.facts, gpu=GpuFacts())), machine()],
        "fusec": __version__,
        "torch": str(torch.__version__),
        "python": [python_name(), platform.python_version()],
    }


def bound(
    function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a frame's local names for a call.

    Raises:
        NotKept: The arguments do not fit the function.
    """
    # without what decorators say of its signature
    plain = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    plain.__kwdefaults__ = function.__kwdefaults__
    try:
        arguments = inspect.signature(plain).bind(*args, **kwargs)
    except TypeError as error:
        raise NotKept(str(error)) from None
    arguments.apply_defaults()
    values = dict(arguments.arguments)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            continue  # an empty cell
    return values


def _fitting(
    function: FunctionType, values: dict[str, Any], graphs: Sequence[CompiledGraph]
) -> tuple[Any, CompiledGraph]:
    """Return TorchDynamo's entry for a call, and the graph that it runs."""
    for cached in torch._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__):
        if cached.guard_manager.root.check(values):
            graph = graph_of(cached.code, function, graphs)
            if graph is not None:
                return cached, graph
    for graph in graphs:
        if graph.fallback:
            raise NotKept(graph.fallback)
    raise NotKept(
        "it is not one whole graph: it breaks into several, or there is none "
        "(fusec.explain(..., draft=True) names the lines)"
    )


def _made_names(code: CodeType, function: FunctionType, table: GuardTable) -> JSON:
    """Return the global names that TorchDynamo made, with what they stand for."""
    names = {str(p.key) for p in table.places if p.parent == GLOBALS}
    for row in table.rows:
        if row.kind == "relation":
            names |= set(re.findall(r"G\['(\w+)'\]", row.expected))
    for each in dis.get_instructions(code):
        if each.opname == "LOAD_GLOBAL":
            names.add(str(each.argval))
        elif each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise NotKept(f"it sets the global name {each.argval}")
    found: dict[str, Any] = {}
    for name in sorted(names):
        if name.startswith(_GRAPH):
            found[name] = "graph"
        elif name.startswith(_BUILTINS):
            found[name] = "builtins"
        elif _MADE.match(name):
            found[name] = reference(function.__globals__[name])
    return found


# -- taking up ------------------------------------------------------------------------------


class Artefact:
    """One artefact in this process.

    Attributes:
        digest: Its name in the store.
        summary: What it is for.
        graph: The graph that it runs.
        calls: How often its guards held.
    """

    def __init__(self, entry: Entry, data: JSON, function: FunctionType) -> None:
        self.digest = entry.digest
        self.summary = str(data["summary"])
        self.graph = LoadedGraph(data["graph"], entry.read_bytes)
        self.calls = 0
        self.manager: object = None  # what TorchDynamo knows it by
        made = {name: self._made(value) for name, value in data["globals"].items()}
        prefix = f"__fusec_{self.digest[:12]}"
        renamed = {name: f"{prefix}{name}" for name in made}
        self.code = read_code(data["code"], function.__code__, renamed)
        table = GuardTable.from_data(data["guards"])
        self._check = GuardCheck(table, ChainMap(made, function.__globals__))
        self._fast: Callable[[Mapping[str, Any]], bool] | None = None
        function.__globals__.update({renamed[name]: value for name, value in made.items()})

    def _made(self, value: JSON) -> object:
        if value == "graph":
            return disable(self.graph)  # TorchDynamo is to keep its hands off what we do
        if value == "builtins":
            return vars(sys.modules["builtins"])
        return resolve(value)

    def fits(self, values: Mapping[str, Any]) -> bool:
        """Whether it serves a call of the function that took it up; never raises."""
        if self.digest not in getattr(_caller, "artefacts", ()):
            return False
        if forward_ad._current_level >= 0:
            return False  # kernels would leave tangents behind: captured, the call keeps them
        if self._fast is None:
            if self._check.misfit(values) is not None:
                return False
            self.graph.build()
            self._fast = self._check.compiled(values)
            self.calls += 1
            return True
        found = self._fast(values)
        self.calls += found
        return found

    def misfit(self, values: Mapping[str, Any]) -> Unfit | None:
        """Return the guard that does not hold, and what was found."""
        return self._check.misfit(values)


_installed: dict[CodeType, dict[str, Artefact]] = {}
_lock = threading.Lock()


class TakenUp:
    """The artefacts of one compiled function.

    Attributes:
        artefacts: By their names in the store.
        refused: Those that are there and cannot be used, with the reasons.
    """

    def __init__(self) -> None:
        self.artefacts: dict[str, Artefact] = {}
        self.refused: list[str] = []

    def look(self, optimized: object, options: Options) -> None:
        """Look for artefacts of a function, and have TorchDynamo dispatch to them."""
        frame = find_frame(optimized)
        if frame is None:
            return
        function, _ = frame
        key, store = store_key(function, options), default_store()
        for number in range(MOST):
            entry = store.get(KIND, {**key, "number": number})
            if entry is None:
                return
            try:
                self._take(entry, function)
            except NotKept as error:
                self.refused.append(str(error))
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                self.refused.append(f"damaged: {type(error).__name__}: {error}")

    def _take(self, entry: Entry, function: FunctionType) -> None:
        with _lock:
            installed = _installed.setdefault(function.__code__, {})
            known = installed.get(entry.digest)
            if known is None or not _is_there(function.__code__, known):
                data = json.loads(entry.read_bytes(TEXT))
                problem = changed(data["origins"])
                if problem:
                    raise NotKept(f"{data['summary']}: {problem}")
                found = Artefact(entry, data, function)
                _install(function.__code__, found)
                installed[entry.digest] = found
            self.artefacts[entry.digest] = installed[entry.digest]

    def misfits(self, values: Mapping[str, Any]) -> list[Unfit]:
        """Return for each artefact why a call does not fit it."""
        found = [each.misfit(values) for each in self.artefacts.values()]
        return [each for each in found if each is not None]

    def __enter__(self) -> None:
        """Begin a call of the function, in this thread."""
        outer: list[Mapping[str, Artefact]] = _caller.__dict__.setdefault("outer", [])
        outer.append(getattr(_caller, "artefacts", {}))
        _caller.artefacts = self.artefacts

    def __exit__(self, *_: object) -> None:
        """End it."""
        _caller.artefacts = _caller.outer.pop()


def _is_there(code: CodeType, artefact: Artefact) -> bool:
    """Whether TorchDynamo still knows of an artefact: ``torch._dynamo.reset`` forgets all."""
    entries: Any = native_frames._debug_get_precompile_entries(code)
    return any(entry.guard_manager is artefact.manager for entry in entries)


def _install(code: CodeType, artefact: Artefact) -> None:
    root: Any = RootGuardManager()
    text = [f"an artefact for {artefact.summary}"]
    try:
        root.add_lambda_guard(artefact.fits, text, None)
    except TypeError:  # before torch 2.12
        root.add_lambda_guard(artefact.fits, text)
    artefact.manager = GuardManagerWrapper(root)
    native_frames._load_precompile_entry(code, artefact.manager, artefact.code)


__all__ = ["Artefact", "Kept", "TakenUp", "keep_call"]
