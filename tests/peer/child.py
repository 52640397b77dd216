"""A process that runs the tests of one file, with a backend in the place of every other one.

It reads names of tests and answers each with a line of JSON, so that a test that ends the process
is known by the name that was not answered.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx

from peer.agreeing import agree
from peer.graphs import NOTES, beside_eager

_CANNOT_IMPORT = re.compile(r"cannot import name '(\w+)'")
_MOST_MISSING = 50
_MOST_NOTES = 20
Backend = Callable[..., Callable[..., Any]]
# What test files compile with; each of these names is the asked backend while they run.
_NAMES = ("inductor", "aot_eager", "aot_eager_decomp_partition", "eager", "eager_noexcept")
_RECORDING = ("CompileCounter", "EagerAndRecordGraphs", "AotEagerAndRecordGraphs")


def load(path: Path) -> ModuleType:
    """Import a test file by its path; files beside it and in the folder above are found."""
    sys.path[:0] = [str(path.parent), str(path.parent.parent)]
    os.chdir(path.parent)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    for _ in range(_MOST_MISSING):
        try:
            spec.loader.exec_module(module)
            return module
        except ModuleNotFoundError as error:
            if not error.name or not error.name.startswith("torch."):
                raise
            sys.modules[error.name] = empty = ModuleType(error.name)
            empty.__getattr__ = _missing  # type: ignore[method-assign]
        except ImportError as error:  # a file of another version of torch than this one
            name = _CANNOT_IMPORT.match(str(error))
            if name is None or not error.name:
                raise
            setattr(sys.modules[error.name], name[1], _Missing(name[1]))
    raise ImportError(f"{path} wants more than {_MOST_MISSING} names that are not there")


class _Missing:
    """What a file of another version imports and is not there: as a decorator it does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not options:
            return args[0]
        raise unittest.SkipTest(f"torch {torch.__version__} has no {self.name}")


def _missing(name: str) -> _Missing:
    """Return what stands for a name of a module that is not there; it has no file, path or such."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)


def tests_of(module: ModuleType) -> dict[str, unittest.TestCase]:
    """Return a file's tests by name."""

    def flat(suite: Any) -> Iterator[unittest.TestCase]:
        for each in suite:
            yield from flat(each) if isinstance(each, unittest.TestSuite) else (each,)

    found = flat(unittest.defaultTestLoader.loadTestsFromModule(module))
    return {f"{type(test).__name__}.{test._testMethodName}": test for test in found}


def put_in_place(name: str, *, graphs: bool = False) -> None:
    """Have a backend compile whatever the tests give to any backend.

    Args:
        name: A backend's name, as torch knows it. With ``as-written`` nothing is changed.
        graphs: Whether each graph is compared with eager as well, on copies of its inputs.
    """
    if name == "as-written":
        return
    from torch._dynamo.backends import registry

    given = registry.lookup_backend(name)
    peer = importlib.import_module("torch._inductor.compile_fx")
    settings = importlib.import_module("torch._inductor.config")

    def compiled(graph: fx.GraphModule, inputs: Any, *_: Any, **__: Any) -> Any:
        if name == "fusec" and (graphs or settings.fallback_random):
            made = registry.lookup_backend(name)(graph, inputs, options={"eager_random": True})
        else:
            made = given(graph, inputs)
        compares = graphs and isinstance(graph, fx.GraphModule)
        return beside_eager(graph, made) if compares else made

    compiled._tags = ()  # type: ignore[attr-defined]  # files list the backends by these
    peer.compile_fx = compiled
    agree()
    for each in _NAMES:
        if each != name or graphs:
            registry._BACKENDS.setdefault(each, None)
            registry._COMPILER_FNS[each] = compiled
    testing = importlib.import_module("torch._dynamo.testing")
    for each in _RECORDING:
        kind = getattr(testing, each)
        kind.__call__ = _and_compiles(kind.__call__, compiled)


def _and_compiles(record: Backend, compiled: Backend) -> Backend:
    def call(self: object, graph: fx.GraphModule, inputs: Any) -> Any:
        record(self, graph, inputs)
        return compiled(graph, inputs)

    return call


class _Result(unittest.TestResult):
    """What became of one test, in a word and the lines that say why."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.said: dict[str, str] = {"verdict": "passed"}

    def addSkip(self, test: Any, reason: str) -> None:
        self.said = {"verdict": "skipped", "why": reason[:200]}

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.said = {"verdict": "passed", "why": "fails as expected"}

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.said = {"verdict": "passed", "why": "expected to fail"}

    def addFailure(self, test: Any, err: Any) -> None:
        self._failed(err)

    def addError(self, test: Any, err: Any) -> None:
        self._failed(err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._failed(err)

    def _failed(self, err: Any) -> None:
        kind, error, trace = err
        frames = traceback.extract_tb(trace)
        theirs = [f for f in frames if Path(f.filename).parent == self.folder]
        lines = [f"{Path(f.filename).name}:{f.lineno}: {f.line}" for f in theirs[-3:]]
        text = str(error).strip()
        self.said = {
            "verdict": "failed",
            "error": kind.__name__,
            "why": text[:600],
            "lines": " | ".join(lines),
        }


def serve(path: Path, backend: str, *, graphs: bool = False) -> None:
    """Run the tests whose names come on standard input; the first answer names all there are."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a test prints, from C++ too, is no answer

    def answer(message: object) -> None:
        print(json.dumps(message), file=answers, flush=True)

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    put_in_place(backend, graphs=graphs)
    tests = tests_of(load(path))
    answer(list(tests))
    ready: type | None = None
    for line in sys.stdin:
        test = tests[line.strip()]
        result = _Result(path.parent)
        if type(test) is not ready:  # what a class sets up is for all of its tests
            if ready is not None:
                ready.tearDownClass()  # type: ignore[attr-defined]
            type(test).setUpClass()
            ready = type(test)
        try:
            test.run(result)
        except BaseException as error:
            result.addError(test, (type(error), error, error.__traceback__))
        answer(result.said | ({"notes": NOTES[:_MOST_NOTES]} if NOTES else {}))
        NOTES.clear()


if __name__ == "__main__":
    serve(Path(sys.argv[1]).resolve(), sys.argv[2], graphs="graphs" in sys.argv[3:])
