"""Lab 2, capture: six ways to get a graph of a function, and where each is silently wrong."""

from __future__ import annotations

import random
from typing import Any

from fuselab.judge.task import PythonTask
from fuselab.labs.content import captures
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.lab import Lab

# -- a tracer -------------------------------------------------------------------------------

_OPERATORS = {"+": "add", "-": "sub", "*": "mul"}
_REFUSED = "refused"
_TRACE = """
def run(text, names):
    space = {}
    exec(text, space)
    try:
        return trace(space["f"], names)
    except TypeError:
        return "refused"
"""


def _program(rng: random.Random, lines: int, control: bool) -> tuple[str, list[str], list[Any]]:
    """Return a function's text, its arguments, and the steps that it takes."""
    names = ["x", "y", "z"][: rng.randrange(1, 4)]
    text, known, steps = [f"def f({', '.join(names)}):"], list(names), []
    where = {name: name for name in names}  # a variable's step
    for number in range(lines):
        name = f"v{number}"
        if rng.random() < 0.25:
            source = rng.choice(known)
            text.append(f"    {name} = {source}.relu()")
            steps.append([f"t{number}", "relu", [where[source]]])
        else:
            sign = rng.choice("+-*")
            pair: list[Any] = [rng.choice(known), rng.choice([*known, rng.randrange(2, 9)])]
            if rng.random() < 0.4:
                pair.reverse()
            text.append(f"    {name} = {pair[0]} {sign} {pair[1]}")
            inputs = [where[one] if isinstance(one, str) else one for one in pair]
            steps.append([f"t{number}", _OPERATORS[sign], inputs])
        known.append(name)
        where[name] = f"t{number}"
    result = where[known[-1]]
    if control:
        text += [
            f"    if {known[-1]} > 0:",
            f"        return {known[-1]}",
            f"    return {known[0]}",
        ]
    else:
        text.append(f"    return {known[-1]}")
    return "\n".join(text) + "\n", names, [steps, result]


def _trace_calls(rng: random.Random) -> list[list[Any]]:
    found = []
    for lines, control in ((1, False), (1, False), (2, False), (3, False), (6, False), (2, True)):
        text, names, _ = _program(rng, lines, control)
        found.append([text, names])
    fixed = ["3 - x", "2 * x", "4 + x", "x + 4", "x - 3", "x * 2", "x.relu()"]
    return [*found, *[[f"def f(x):\n    return {text}\n", ["x"]] for text in fixed]]


class _Stand:
    """Stands for a tensor; notes what is done to it."""

    def __init__(self, name: str, steps: list[Any]) -> None:
        self.name, self.steps = name, steps

    def step(self, op: str, *inputs: Any) -> _Stand:
        found = _Stand(f"t{len(self.steps)}", self.steps)
        names = [one.name if isinstance(one, _Stand) else one for one in inputs]
        self.steps.append([found.name, op, names])
        return found

    def __add__(self, other: Any) -> _Stand:
        return self.step("add", self, other)

    def __radd__(self, other: Any) -> _Stand:
        return self.step("add", other, self)

    def __sub__(self, other: Any) -> _Stand:
        return self.step("sub", self, other)

    def __rsub__(self, other: Any) -> _Stand:
        return self.step("sub", other, self)

    def __mul__(self, other: Any) -> _Stand:
        return self.step("mul", self, other)

    def __rmul__(self, other: Any) -> _Stand:
        return self.step("mul", other, self)

    def relu(self) -> _Stand:
        return self.step("relu", self)

    def __gt__(self, other: Any) -> _Stand:
        return self.step("gt", self, other)

    def __bool__(self) -> bool:
        raise TypeError("a stand-in has no value")


def traced(text: str, names: list[str]) -> Any:
    """Return the steps of a function and the name of its result; ``refused`` for control flow."""
    space: dict[str, Any] = {}
    exec(text, space)
    steps: list[Any] = []
    try:
        result = space["f"](*[_Stand(name, steps) for name in names])
    except TypeError:
        return _REFUSED
    return [steps, result.name]


def _why_traced(text: str, names: list[str], result: Any) -> str:
    if " > 0" in text:
        return "an `if` on a stand-in must raise TypeError: it has no value"
    if not isinstance(result, list) or len(result) != 2:
        return "return [steps, name of the result]"
    return ""


# -- silently wrong on purpose ----------------------------------------------------------------

_BREAKS = """
import torch
import warnings

warnings.simplefilter("ignore")


def same(one, other):
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is other
    return one.shape == other.shape and torch.equal(one, other)


def run(seed):
    torch.manual_seed(seed)
    first = torch.rand(4) + 1
    others = [-first, torch.randn(4), torch.rand(4) + 1, torch.rand(7) - 3, torch.zeros(4)]
    right = f(first.clone())
    if not isinstance(right, torch.Tensor):
        return ["no tensor", type(right).__name__]
    if not same(right, f(first.clone())):
        return ["moody"]
    try:
        captured = CAPTURE
    except Exception as error:
        return ["refused", f"{type(error).__name__}: {error}".splitlines()[0][:200]]
    found = []
    for x in [first, *others]:
        right = f(x.clone())
        if not isinstance(right, torch.Tensor):
            return ["no tensor", type(right).__name__]
        if not same(right, f(x.clone())):
            return ["moody"]
        try:
            found.append(same(right, captured(x.clone())))
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}".splitlines()[0][:200])
    return ["ran", found]
"""


def _check_broken(calls: list[list[Any]], results: list[Any]) -> str:
    """Return what is wrong with a function that is to be captured wrongly."""
    for _, (what, *more) in zip(calls, results, strict=True):
        if what == "no tensor":
            return f"f returns something of type {more[0]}; it has to return a tensor"
        if what == "moody":
            return "f itself gives two results for the same input: then nothing can be right"
        if what == "refused":
            return f"capturing raises {more[0]}: that is loud, and silence is asked for"
        outcomes = more[0]
        errors = [each for each in outcomes if isinstance(each, str)]
        if all(each is True for each in outcomes):
            return "what was captured is right on all inputs that were tried"
        if not any(each is False for each in outcomes):
            return f"what was captured raises {errors[0]}: that is loud, and silence is asked for"
    return ""


def _check_traced(calls: list[list[Any]], results: list[Any]) -> str:
    """As above; on the input that it was traced with it must be right."""
    wrong = _check_broken(calls, results)
    if wrong:
        return wrong
    if any(more[0][0] is not True for _, *more in results):
        return "it is wrong on the very input that it was traced with: one would notice that"
    return ""


def _seeds(rng: random.Random) -> list[list[Any]]:
    return [[rng.randrange(1 << 30)] for _ in range(3)]


# -- lazy tensors -----------------------------------------------------------------------------


def _events(rng: random.Random, count: int) -> list[str]:
    return [rng.choice(["add", "mul", "relu", "print"]) for _ in range(count)]


def _lazy_calls(rng: random.Random) -> list[list[Any]]:
    loop = ["mul", "add", "print"] * 4
    found: list[list[Any]] = [[[]], [["add"]], [["print"]], [loop], [["add", "print", "print"]]]
    found += [[["mul", "print", "add", "print", "mul", "print", "relu"]]]
    return found + [[_events(rng, rng.randrange(3, 16))] for _ in range(6)]


def lazy_runs(events: list[str]) -> list[int]:
    """Return how many graphs are compiled and how many are run."""
    pending: list[str] = []
    seen: set[tuple[str, ...]] = set()
    runs = 0
    for event in events:
        if event != "print":
            pending.append(event)
        elif pending:
            seen.add(tuple(pending))
            runs += 1
            pending = []
    return [len(seen), runs]


# -- which way does what ----------------------------------------------------------------------


def _outcome_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [[way, name] for way in captures.WAYS for name in captures.PROGRAMS]
    rng.shuffle(found)
    return found


def _why_outcome(way: str, program: str, result: object) -> str:
    del result
    return f"try it: attempt({way!r}, {program!r})"


LAB = Lab(
    2,
    "capture",
    "Capture: six ways to get a graph",
    40,
    (
        PythonTask(
            "lab02.tracer",
            "a tracer in twenty lines",
            "trace",
            points=3,
            start='''
class Stand:
    """Stands for a tensor, and notes what is done to it: x * 2, 2 * x, x - y, x.relu()."""

    def __init__(self, name, steps):
        self.name = name
        self.steps = steps

def trace(function, names):
    """Return [steps, name of the result] of a function whose arguments have these names.

    A step is [name, operator, inputs]: ["t0", "mul", ["x", 2]]; the names are t0, t1, ... The
    operators: add, sub, mul and relu. An input is a name or a number. A value that an `if` asks
    for raises TypeError.
    """
    ...
''',
            hints=(
                "x * 2 calls x.__mul__(2), and 2 * x calls x.__rmul__(2). Both note a step and "
                "return a new stand-in.",
                "One method does it all: def step(self, op, *inputs) makes a stand-in called "
                "t{number of steps}, notes [its name, op, the inputs' names or numbers], and "
                "returns it. `if x > 0` calls x.__gt__(0) and then __bool__ of what that returns.",
                "def __rsub__(self, other): return self.step('sub', other, self), and so on; "
                "trace: steps = []; result = function(*[Stand(n, steps) for n in names]); return "
                "[steps, result.name].",
            ),
            calls=_trace_calls,
            check=lambda calls, results: first_wrong("trace", calls, results, traced, _why_traced),
            after=_TRACE,
        ),
        PythonTask(
            "lab02.trace",
            "break jit.trace, silently",
            "f",
            start='''
import torch

def f(x):
    """Return a tensor; torch.jit.trace of this is wrong for some inputs, without any error."""
    return x * 2
''',
            hints=(
                "jit.trace runs the function once, on one input, and writes down which operators "
                "ran. What of a function does not show in that?",
                "Another input may take another way through the function. The one it is traced "
                "with has positive numbers only.",
                "if x.sum() > 0: return x * 2, and something else otherwise.",
            ),
            calls=_seeds,
            check=_check_traced,
            imports=("torch",),
            after=_BREAKS.replace("CAPTURE", "torch.jit.trace(f, (first,), check_trace=False)"),
        ),
        PythonTask(
            "lab02.symbolic",
            "break fx.symbolic_trace, silently",
            "f",
            points=2,
            start='''
import torch

def f(x):
    """Return a tensor; torch.fx.symbolic_trace of this is wrong, without any error."""
    if x.sum() > 0:
        return x * 2
    return x - 1
''',
            hints=(
                "An `if` on a value raises here: a stand-in has no value. But is a stand-in a "
                "tensor?",
                "What can a function ask of its argument that does not need a value? Its type, "
                "for example.",
                "if isinstance(x, torch.Tensor): return x + 1, and something else otherwise.",
            ),
            calls=_seeds,
            check=_check_broken,
            imports=("torch",),
            after=_BREAKS.replace("CAPTURE", "torch.fx.symbolic_trace(f)"),
        ),
        PythonTask(
            "lab02.lazy",
            "what lazy tensors cost",
            "runs",
            start='''
def runs(events):
    """Return [graphs compiled, graphs run] by lazy tensors.

    events: names of operators, and "print", where a value is needed: all operators since the last
    one run as one graph, if there are any. The same operators in the same order are compiled once.
    """
    ...
''',
            hints=(
                "Keep a list of the operators that wait, and a set of the graphs that were "
                "compiled.",
                "At a print, what waits becomes a graph: a tuple of names. What if nothing waits? "
                "And what becomes of operators after the last print?",
                "if pending: seen.add(tuple(pending)); count += 1; pending = []. At the end "
                "[len(seen), count].",
            ),
            calls=_lazy_calls,
            check=lambda calls, results: first_wrong("runs", calls, results, lazy_runs),
        ),
        PythonTask(
            "lab02.outcomes",
            "who is right, wrong, or refuses",
            "outcome",
            points=2,
            start='''
def outcome(way, program):
    """Return "right", "wrong" (another result, and no error) or "refused" (an error).

    way: "jit.trace", "jit.script", "fx.symbolic_trace", "lazy tensors", "export", "TorchDynamo".
    program: "chain", "branch", "loop", "number", "outside", "kind".
    """
    return "right"
''',
            hints=(
                "Which ways run the function anew at each call, or check what they relied on? They "
                "are right everywhere.",
                "jit.trace is wrong on all that does not show in one run: a branch, a loop, a "
                "number, something outside. fx.symbolic_trace cannot go into `if` and `range`.",
                "A table: wrong: trace on branch, loop, number, outside; symbolic_trace on outside "
                "and kind; export on outside. refused: symbolic_trace and export on branch and "
                "loop; script on outside.",
            ),
            calls=_outcome_calls,
            check=lambda calls, results: first_wrong(
                "outcome", calls, results, captures.outcome, _why_outcome
            ),
        ),
    ),
)
