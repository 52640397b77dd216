"""A fused cell does what the plain cell does: names, value, side effects, errors, lines."""

import copy
import inspect
import traceback
import types

import pytest
import torch

from fuselab.cell.plan import plan_cell
from fuselab.cell.program import CellProgram

FILE = "<fuse cell test>"

# A namespace that goes before the code that TorchDynamo compiled in it: torch complains.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Counter:
    """A TorchDynamo backend that runs graphs as they are and counts them."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, example_inputs):
        self.graphs += 1
        return graph.forward


def program(body, namespace, counter=None, **options):
    torch._dynamo.reset()
    plan = plan_cell(body, name="cell_3", filename=FILE, **options)
    counter = counter or Counter()
    return CellProgram(plan, namespace, lambda f, _: torch.compile(f, backend=counter))


def notebook():
    model = torch.nn.Linear(4, 4)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, 0.25)
    return {
        "__builtins__": __builtins__,
        "__name__": "notebook_of_a_test",
        "torch": torch,
        "x": torch.arange(4.0),
        "w": torch.full((4,), 2.0),
        "layers": [model, torch.nn.ReLU(), model],
        "model": model,
        "n": 3,
        "rate": 0.5,
        "flag": False,
        "items": [],
        "table": {},
        "box": types.SimpleNamespace(),
        "helper": None,
        "make": None,
    }


HELPERS = """
def helper(v):
    return v * rate

def uses_builtin(v):
    return abs(v) + 1

def store(v):
    global landed
    landed = v + 1
"""


def plain_run(body, namespace):
    """Run as IPython runs a plain cell: all statements, then the last expression."""
    import ast

    tree = ast.parse("\n" + body, FILE)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, FILE, "exec"), namespace)
    if last is not None:
        return eval(compile(ast.Expression(last.value), FILE, "eval"), namespace)
    return None


def outcome(run, namespace):
    error = line = value = None
    try:
        value = run()
    except Exception as caught:
        error = f"{type(caught).__name__}: {caught}"
        line = [f.lineno for f in traceback.extract_tb(caught.__traceback__) if f.filename == FILE]
        line = line[-1]
    # TorchDynamo leaves its own `__compiled_fn...` there, as it does for any compiled function.
    landed = {name: item for name, item in namespace.items() if not name.startswith("__")}
    return value, error, line, landed


def same(one, two, close=False):
    """Whether two results are equal; with ``close``, tensors up to rounding."""
    if isinstance(one, torch.Tensor):
        if not isinstance(two, torch.Tensor) or one.dtype != two.dtype or one.shape != two.shape:
            return False
        return torch.allclose(one, two, equal_nan=True) if close else torch.equal(one, two)
    if isinstance(one, (list, tuple)):
        pairs = zip(one, two, strict=False)
        return (
            type(one) is type(two)
            and len(one) == len(two)
            and all(same(a, b, close) for a, b in pairs)
        )
    if isinstance(one, dict):
        return (
            isinstance(two, dict)
            and one.keys() == two.keys()
            and all(same(one[k], two[k], close) for k in one)
        )
    if isinstance(one, types.SimpleNamespace):
        return same(vars(one), vars(two), close)
    if isinstance(one, (types.FunctionType, type, torch.nn.Module, types.ModuleType)):
        return type(one) is type(two)
    if close and isinstance(one, float):
        return one == pytest.approx(two, rel=1e-5)
    return one == two or (one != one and two != two)


# Each is run twice in a row, plain and fused, in notebooks that are otherwise alike.
CELLS = {
    "chain": "y = x * 2\nz = y + 1\nz.sum()\n",
    "overwrite": "x = x + 1\nx = x * 2\n",
    "in place": "x += 1\nx.mul_(2)\n",
    "slice in place": "x[0] = 5.0\nx[1:] += 1\n",
    "view in place": "y = x.view(2, 2)\ny.add_(1)\n",
    "alias": "y = x\nx = y + 1\ny\n",
    "delete": "t = x * 2\ny = t + 1\ndel t\nz = y * 3\n",
    "delete several": "a, b = x, x + 1\nc = a + b\ndel (a, b), c\n",
    "delete missing": "y = x * 2\ndel nothing\n",
    "read after delete": "t = x * 2\ndel t\ny = t\n",
    "delete item": "table['a'] = x\ndel table['a']\n",
    "several outputs": "(a, *b), c = (x, x + 1, x + 2), x * 2\nd = e = a + c\n",
    "walrus": "y = (t := x * 2) + t\n[u := x + i for i in range(2)]\n",
    "walrus in condition": "if flag and (q := 3):\n    pass\ny = x\nq\n",
    "comprehension": "ys = [x * i for i in range(3)]\ntotal = sum(ys)\n",
    "comprehension scope": "i = 7\nys = [x * i for i in range(3)]\ni\n",
    "branch": "if flag:\n    y = x * 2\nelse:\n    q = x + 1\n",
    "maybe unassigned": "if flag:\n    y = x * 2\nz = y + 1\n",
    "maybe assigned before": "if flag:\n    n = 4\ny = x * n\n",
    "loop": "for i in range(3):\n    h = x * i\n    k = h + 1\nout = k * h\n",
    "empty loop": "y = x * 2\nfor i in range(0):\n    h = x * i\nout = h + y\n",
    "loop over modules": "h = x\nfor layer in layers:\n    h = layer(h)\nh\n",
    "while": "k = 0\nwhile k < 3:\n    y = x * k\n    k += 1\ny\n",
    "augmented missing": "y = x * 2\nz += y\n",
    "no_grad": "with torch.no_grad():\n    h = model(x)\n    k = h + 1\ny = k * h\n",
    "as": "with torch.no_grad() as g:\n    y = x + 1\n",
    "suppressed": (
        "import contextlib\nwith contextlib.suppress(ZeroDivisionError):\n"
        "    y = x / 1\n    q = 1 / 0\n    z = y\nz\n"
    ),
    "try": "try:\n    y = x * 2\n    raise OSError\nexcept OSError as e:\n    y = x * 3\n",
    "try reads error": "try:\n    int('a')\nexcept ValueError as e:\n    t = str(e)\ny = x + 1\n",
    "error name read later": "try:\n    int('a')\nexcept ValueError as e:\n    pass\ny = x\ne\n",
    "finally": "try:\n    y = x * 2\nfinally:\n    z = x * 3\ny + z\n",
    "match": "match list(x.shape):\n    case [m]:\n        y = x * m\n    case _:\n        y = x\n",
    "print": "y = x * 2\nprint('half', y.shape)\nz = y + 1\nz\n",
    "print in loop": "for i in range(2):\n    y = x * i\n    print('i', i)\n",
    "training loop": (
        "p = torch.ones(4, requires_grad=True)\nlosses = []\n"
        "for step in range(3):\n    loss = ((p * x - w) ** 2).mean()\n    loss.backward()\n"
        "    with torch.no_grad():\n        p -= rate * p.grad\n    p.grad = None\n"
        "    if step % 2 == 0:\n        losses.append(loss.item())\n        print(step)\n"
        "total = sum(losses)\ntotal\n"
    ),
    "nested loops": (
        "t = x * 0\nfor i in range(3):\n    u = x + i\n    for j in range(3):\n"
        "        u = u * j\n        if j == 1:\n            continue\n        t = t + u\n"
        "        print(i, j)\n    if i == 1:\n        break\nelse:\n    never = 1\nt\n"
    ),
    "while with a read": "k = x.sum()\nwhile k.item() < 50:\n    k = k * 2\nk\n",
    "loop that raises": "for i in range(3):\n    y = x * i\n    print(i)\n    q = 1 / (1 - i)\n",
    "loop over a generator": (
        "def batches():\n    yield x\n    yield x + 1\n"
        "s = 0\nfor b in batches():\n    s = s + b.sum()\n    print('b')\ns\n"
    ),
    "try in a loop": (
        "for i in range(3):\n    try:\n        y = x * i\n        print(i)\n        r = 1 / i\n"
        "    except ZeroDivisionError as e:\n        y = x - 1\n    finally:\n        z = y + 1\n"
    ),
    "constants in a loop": "for i in range(2):\n    c = 3\n    print(c)\n    d = 4\n",
    "for else": "for i in range(2):\n    print(i)\nelse:\n    y = x * 2\ny\n",
    "hidden break": (
        "def show(v):\n    print('v')\n    return v\n"
        "for i in range(2):\n    y = show(x * i)\n    z = y + 1\nz\n"
    ),
    "item": "m = int(x.sum())\ny = x * m\n",
    "append": "items.append(x * 2)\ntable['a'] = x + 1\nbox.y = x * 3\n",
    "append result": "items.append(x * 2)\ny = items[-1] + 1\n",
    "number changes": "n = n + 1\nrate = rate * 0.5\ny = x * n * rate\n",
    "helper reads what the cell assigns": "rate = 3.0\ny = helper(x)\nrate = 4.0\nz = helper(y)\n",
    "helper stores": "store(x)\ny = landed * 2\n",
    "lambda": "f = lambda v: v * s\ns = 3.0\ny = f(x)\ns = 4.0\nz = f(x)\n",
    "nested def": "if True:\n    def twice(v):\n        return v * 2\ny = twice(x)\n",
    "definition between": "y = x * 2\ndef g(v):\n    return v + n\nz = g(y)\n",
    "class between": "y = x * 2\nclass A:\n    k = 3\nz = y * A.k\n",
    "import": "import math\ny = x * math.pi\n",
    "import star": "from string import *\ny = x * len(digits)\n",
    "future": "from __future__ import annotations\ny = x * 2\ndef g(v: Nope) -> Nope: return v\n",
    "annotated": "y: torch.Tensor = x * 2\nz: int\ny\n",
    "global statement": "global y\ny = x * 2\n",
    "shadows a builtin": "sum = x * 2\nmax = sum + 1\n",
    "built-in before it is hidden": "t = sum([x, x + 1])\nsum = t * 2\nu = sum + 1\n",
    "built-in that a helper uses": "y = uses_builtin(x)\nabs = y * 2\nround = 3\n",
    "built-in maybe hidden": "if flag:\n    max = 3\ny = x * max(1, 2)\n",
    "built-in back again": "sum = x * 2\ndel sum\ny = sum([x, x])\n",
    "asks whether a name exists": "try:\n    c\nexcept NameError:\n    c = x * 2\ny = c\n",
    "exec": "exec('y = x * 2')\nz = y + 1\n",
    "seed": "torch.manual_seed(0)\ny = torch.rand(3) + 1\n",
    "backward": "p = x.clone().requires_grad_()\nl = (p * x).sum()\nl.backward()\ng = p.grad\n",
    "division by zero": "y = x * 2\nz = 1 / 0\nw = y + 1\n",
    "missing name": "y = x * 2\nz = y + nope\n",
    "after a print": "y = x * 2\nprint('y')\ny = y + 1\nw = 1 / 0\n",
    "shapes": "y = x * 2\nz = y @ torch.ones(5, 5)\n",
    "string": "y = x * 2\nz = torch.exp('a')\n",
    "assertion": "y = x * 2\nassert y.shape == (5,), 'five'\n",
    "raise": "y = x + 1\nraise RuntimeError('mine')\n",
    "in place then error": "x += 1\nitems.append(1)\nz = x @ torch.ones(5, 5)\n",
    "none": "y = x * 2\nNone\n",
    "semantics of pass": "pass\n",
    "empty": "",
    "comment": "# nothing here\n",
}


@pytest.mark.sample(27)
@pytest.mark.parametrize("name", CELLS)
def test_behaves_as_the_plain_cell(name, capsys):
    body = CELLS[name]
    plain, fused = notebook(), notebook()
    for space in (plain, fused):
        exec(HELPERS, space)
    torch.manual_seed(1)
    one = program(body, fused)
    for attempt in ("first", "second"):
        torch.manual_seed(2)
        expected = outcome(lambda: plain_run(body, plain), plain)
        printed = capsys.readouterr().out
        torch.manual_seed(2)
        got = outcome(one.run, fused)
        assert capsys.readouterr().out == printed, attempt
        assert got[1:3] == expected[1:3], attempt
        assert same(expected[0], got[0]), (attempt, expected[0], got[0])
        assert got[3].keys() == expected[3].keys(), attempt
        for key, value in expected[3].items():
            assert same(value, got[3][key]), (attempt, key, value, got[3][key])


@pytest.mark.parametrize(
    "name",
    ["chain", "overwrite", "delete", "walrus", "loop", "loop over modules", "no_grad", "try",
     "helper reads what the cell assigns", "helper stores", "lambda", "nested def", "match"],
)  # fmt: skip
def test_one_graph_and_no_recompilation(name):
    counter = Counter()
    space = notebook()
    exec(HELPERS, space)
    one = program(CELLS[name], space, counter)
    one.run()
    assert counter.graphs == 1
    one.run()
    assert counter.graphs == 1


@pytest.mark.parametrize(
    ("body", "graphs"),
    [
        ("y = x * 2\nprint('half')\nz = y + 1\n", 2),
        ("y = x * 2\nprint('half')\nz = y + 1\nprint('more')\nz.sum()\n", 3),
        ("m = int(x.sum())\ny = x * m\n", 2),
        ("for i in range(4):\n    y = x * 2\n    print(i)\n    z = y + 1\nw = z * 2\n", 3),
        (CELLS["training loop"], 2),
    ],
)
def test_what_follows_a_break_is_compiled_too(body, graphs):
    counter = Counter()
    one = program(body, notebook(), counter)
    one.run()
    assert counter.graphs == graphs
    one.run()
    assert counter.graphs == graphs


def test_values_are_named_for_the_users_variables():
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    body = "s = (x * x).mean()\na, b = x + s, x - s\nq: int = a * b\n"
    body += "for v in (q, q + 1):\n    r = v * 2\n"
    plan = plan_cell(body, name="cell_3", filename=FILE)
    CellProgram(plan, notebook(), lambda f, _: torch.compile(f, backend=backend)).run()
    names = {node.name for node in graphs[0].graph.nodes}
    assert {"s", "a", "b", "q", "r"} <= names


class TestLoops:
    def test_plan_says_what_runs_in_python(self):
        body = "for i in range(9):\n    y = x * 2\n    print(i)\n    z = y + 1\nw = z * 2\n"
        plan = plan_cell(body, name="cell_3", filename=FILE)
        assert "lines 2-5: a loop in Python, 2 fused pieces in it; reads x" in str(plan)
        (found,) = plan.breaks
        assert str(found.where) == "line 4: print(i)"
        assert "after the loop" in found.hint

    def test_loop_without_a_break_stays_whole(self):
        plan = plan_cell(CELLS["loop"], filename=FILE)
        assert [s.kind for s in plan.segments] == ["fused"]

    def test_break_that_shows_only_when_it_runs(self):
        from fuselab.session.cell_options import CellOptions, Frontend
        from fuselab.session.session import Session

        torch._dynamo.reset()
        counter, space = Counter(), notebook()
        session = Session(space, compiler=lambda f, **_: torch.compile(f, backend=counter))
        body = CELLS["hidden break"].partition("for ")
        exec(body[0], space)
        cell, code = session.prepare(body[1] + body[2], CellOptions(), Frontend())
        session.run(cell, code)
        assert counter.graphs == 0
        assert "from the next run on" in cell.notes[0]
        session.run(*session.prepare(body[1] + body[2], CellOptions(), Frontend()))
        assert counter.graphs > 0
        assert torch.equal(space["z"], torch.arange(4.0) + 1)

    def test_out(self):
        space = notebook()
        body = "for i in range(3):\n    h = x * i\n    print(i)\n    y = h + 1\nz = y * 2\n"
        one = program(body, space, out=["z"])
        before = {name for name in space if not name.startswith("__")}
        one.run()
        assert {name for name in space if not name.startswith("__")} - before == {"z"}
        assert torch.equal(space["z"], torch.arange(4.0) * 4 + 2)

    def test_nothing_of_the_pieces_stays_behind(self):
        space = notebook()
        one = program(CELLS["nested loops"], space)
        one.run()
        assert not [name for name in space if "piece" in name]


def test_a_failed_run_does_not_spoil_the_next_one():
    counter, space = Counter(), notebook()
    one = program("y = x * 2\nz = y @ w\n", space, counter)
    space["w"] = torch.ones(5)
    with pytest.raises(RuntimeError, match=r"size mismatch|inconsistent"):
        one.run()
    assert counter.graphs == 0
    assert "y" in space
    space["w"] = torch.ones(4)
    one.run()
    assert counter.graphs == 1
    assert space["z"] == torch.tensor(12.0)
    assert len(one.functions) == 1


def test_failure_of_the_compiler_is_told():
    def broken(graph, example_inputs):
        raise AssertionError("not today\nlong story")

    torch._dynamo.reset()
    plan = plan_cell("y = x * 2\n", name="cell_3", filename=FILE)
    space = notebook()
    one = CellProgram(plan, space, lambda f, _: torch.compile(f, backend=broken))
    one.run()
    assert torch.equal(space["y"], torch.arange(4.0) * 2)
    (mistake,) = one.failures.mistakes
    assert "not today" in mistake


def test_break_that_cannot_be_resumed_is_told():
    one = program("y = x\ntry:\n    y = x * 2\n    print('a')\nfinally:\n    z = y\n", notebook())
    one.run()
    (skip,) = one.failures.skips
    assert skip.where.line == 5
    assert "print" in skip.reason
    assert "runs in eager" in skip.reason


def test_reset_notebook_makes_a_program_stale():
    space = notebook()
    one = program("y = x * 2\n", space)
    one.run()
    assert not one.stale
    for name in [name for name in space if name.startswith("__compiled_fn")]:
        del space[name]
    assert one.stale


def test_definitions_run_again_do_not_recompile():
    counter = Counter()
    space = notebook()
    one = program("def g(v):\n    return v + n\ny = g(x) * 2\n", space, counter)
    one.run()
    one.run()
    assert counter.graphs == 1


def test_line_numbers_are_the_gutters():
    # Line 1 is %%fuse; the leading blank lines count, although IPython drops them.
    body = "\n\ny = x * 2\nz = 1 / 0\n"
    plan = plan_cell(body, filename=FILE, transform=lambda cell: cell.lstrip("\n"))
    assert [(s.first_line, s.last_line) for s in plan.segments] == [(4, 5)]
    space = notebook()
    one = CellProgram(plan, space, lambda f, _: torch.compile(f, backend=Counter()))
    _, error, line, _ = outcome(one.run, space)
    assert (error, line) == ("ZeroDivisionError: division by zero", 5)


@pytest.mark.parametrize(
    ("body", "line", "text"),
    [
        ("y = x *\n", 2, "y = x *"),
        ("y = 1\nreturn y\n", 3, "return y"),
        ("y = 1\nfor i in x\n    pass\n", 3, "for i in x"),
        ("await x\n", 2, "await x"),
        ("if x:\ny = 1\n", 3, "y = 1"),
    ],
)
def test_syntax_error_has_the_cells_line(body, line, text):
    with pytest.raises(SyntaxError) as caught:
        plan_cell(body, filename=FILE)
    assert caught.value.filename == FILE
    assert caught.value.lineno == line
    assert (caught.value.text or "").strip() == text
    import linecache

    assert linecache.getline(FILE, line).strip() == text


def test_await_has_words_of_its_own():
    for body in ("await x\n", "async for i in x:\n    pass\n", "y = [i async for i in x]\n"):
        with pytest.raises(SyntaxError, match=r"await in a cell of its own, and fuse what comes"):
            plan_cell(body, filename=FILE)
    plan_cell("async def f():\n    await x\n", filename=FILE)


def test_plan_reads_like_a_description():
    body = "import math\ny = x * math.pi\nt = y + 1\nt.sum()\n"
    plan = plan_cell(body, name="cell_7", filename="<fuse cell 7>")
    assert str(plan) == (
        "cell_7 (<fuse cell 7>)\n"
        "  line 2: as it stands, imports; assigns math\n"
        "  lines 3-5: fused; reads math, x; assigns t, y; gives the cell's value"
    )


def test_definition_between_is_noted():
    plan = plan_cell(CELLS["definition between"], filename=FILE)
    assert [s.kind for s in plan.segments] == ["fused", "plain", "fused"]
    assert "line 3 (definitions)" in plan.notes[0]


def test_magics_run_as_they_stand():
    body = "y = x * 2\nget_ipython().run_line_magic('time', 'z = y')\n"
    plan = plan_cell(body, filename=FILE)
    assert [(s.kind, s.why) for s in plan.segments] == [("fused", ""), ("plain", "a magic")]


class TestOut:
    def run(self, body, out, **more):
        space = notebook() | more
        counter = Counter()
        one = program(body, space, counter, out=out)
        before = set(space)
        value = one.run()
        new = {name for name in space if name not in before and not name.startswith("__")}
        return value, new, space, counter

    def test_only_these_names_land(self):
        _, new, space, counter = self.run("h = x * 2\ny = h + 1\n", ["y"])
        assert new == {"y"}
        assert counter.graphs == 1
        assert torch.equal(space["y"], torch.arange(4.0) * 2 + 1)

    def test_local_that_starts_from_the_notebook(self):
        _, new, space, _ = self.run("x = x * 2\ny = x + 1\n", ["y"])
        assert new == {"y"}
        assert torch.equal(space["x"], torch.arange(4.0))
        assert torch.equal(space["y"], torch.arange(4.0) * 2 + 1)

    def test_shared_between_segments(self):
        body = "h = x * 2\ndef g(v):\n    return v + h\ny = g(h)\n"
        _, new, space, _ = self.run(body, ["y"], h="mine")
        assert new == {"y", "g"}
        assert space["h"] == "mine"
        assert torch.equal(space["y"], torch.arange(4.0) * 4)

    def test_value_and_delete(self):
        value, new, _, _ = self.run("h = x * 2\ny = h + 1\ndel h\ny.sum()\n", ["y"])
        assert new == {"y"}
        assert value == torch.tensor(16.0)

    def test_unknown_name(self):
        with pytest.raises(ValueError, match="--out names z, which the cell does not assign"):
            self.run("y = x\n", ["z"])


class TestDefinitions:
    BODY = (
        "import torch\n"
        "EPS = 1e-5\n"
        "def norm(v, eps=EPS):\n"
        '    """Normalize."""\n'
        "    return v / (v.norm() + eps)\n"
        "def fact(v, k):\n"
        "    return v if k == 0 else fact(v * k, k - 1)\n"
        "class Block(torch.nn.Module):\n"
        "    def forward(self, v):\n"
        "        return norm(v) * 2\n"
        "async def later(v):\n"
        "    return v\n"
    )

    def test_they_become_compiled_ones(self):
        counter, space = Counter(), notebook()
        one = program(self.BODY, space, counter)
        assert one.plan.defines == ("norm", "fact", "Block")
        assert one.run() is None
        assert counter.graphs == 0
        norm, block, x = space["norm"], space["Block"](), space["x"]
        assert norm.__doc__ == "Normalize."
        assert norm.__name__ == "norm"
        assert norm.__wrapped__.__code__.co_firstlineno == 4
        assert str(inspect.signature(norm)) == "(v, eps=1e-05)"
        assert inspect.getsource(norm).startswith("def norm(v, eps=EPS):")
        assert repr(norm).startswith("<function norm at")
        assert torch.allclose(norm(x), x / (x.norm() + 1e-5))
        assert counter.graphs == 1
        assert torch.allclose(block(x), 2 * x / (x.norm() + 1e-5))
        assert counter.graphs == 2
        assert torch.equal(space["fact"](x, 4), x * 24)
        assert counter.graphs == 3
        copied = copy.deepcopy(block)
        assert torch.allclose(copied(x), block(x))

    def test_error_is_eagers_own(self):
        counter, space = Counter(), notebook()
        one = program("def f(v, w):\n    v = v * 2\n    return v @ w\n", space, counter)
        one.run()
        with pytest.raises(RuntimeError, match=r"size mismatch|inconsistent") as caught:
            space["f"](space["x"], torch.ones(5))
        assert type(caught.value) is RuntimeError
        assert space["f"](space["x"], torch.ones(4)) == torch.tensor(12.0)
        assert counter.graphs == 1

    def test_run_again_keeps_the_compiled_ones(self):
        counter, space = Counter(), notebook()
        one = program(self.BODY, space, counter)
        one.run()
        first = space["norm"]
        first(space["x"])
        one.run()
        assert space["norm"] is first
        space["norm"](space["x"])
        assert counter.graphs == 1

    def test_used_by_a_fused_cell_they_are_inlined(self):
        counter, space = Counter(), notebook()
        one = program(self.BODY, space, counter)
        one.run()
        plan = plan_cell("y = norm(x) + fact(x, 2)\n", name="cell_4", filename="<fuse cell 4>")
        CellProgram(plan, space, lambda f, _: torch.compile(f, backend=counter)).run()
        assert counter.graphs == 1
        x = space["x"]
        assert torch.allclose(space["y"], x / (x.norm() + 1e-5) + x * 2)


REAL = [
    "chain", "overwrite", "in place", "slice in place", "view in place", "alias", "delete",
    "several outputs", "loop over modules", "no_grad", "print", "number changes", "seed",
    "backward", "training loop", "nested loops", "shapes", "helper stores",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_behaves_as_the_plain_cell_with_the_real_compiler(name, capsys):
    import fusec

    body = CELLS[name]
    plain, fused = notebook(), notebook()
    for space in (plain, fused):
        exec(HELPERS, space)
    torch._dynamo.reset()
    plan = plan_cell(body, name="cell_3", filename=FILE)
    one = CellProgram(
        plan, fused, lambda f, _: fusec.compile(f, keep_inputs=True, eager_random=True)
    )
    for attempt in ("first", "second"):
        torch.manual_seed(2)
        expected = outcome(lambda: plain_run(body, plain), plain)
        printed = capsys.readouterr().out
        torch.manual_seed(2)
        got = outcome(one.run, fused)
        assert capsys.readouterr().out == printed, attempt
        assert got[1:3] == expected[1:3], attempt
        assert same(expected[0], got[0], close=True), attempt
        assert got[3].keys() == expected[3].keys(), attempt
        for key, value in expected[3].items():
            assert same(value, got[3][key], close=True), (attempt, key, value, got[3][key])
    assert not one.failures.mistakes
