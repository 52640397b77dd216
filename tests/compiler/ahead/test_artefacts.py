"""Compiled calls that another process takes up: they run without capture, or not at all."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import fusec
from fusec.ahead import artefact
from fusec.ahead.artefact import KIND, TEXT
from fusec.ahead.places import RELATION_NAMES, relation_code
from fusec.cache import default_store
from fusec.compiled.references import NotKept, reference, resolve
from fusec.machine import GpuFacts
from support import native_parts
from support.processes import run_compiler

SCALE = 2.0


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    native_parts.copy(default_store().folder, tmp_path / "cache")  # for other processes
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    return default_store()


def helper(x):
    return x.sin() * SCALE


def function(x, y=None, *, times=3):
    z = helper(x) * times
    return z if y is None else (z + y, {"sum": z.sum(-1)})


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.factor = 1.5

    def forward(self, x, scale=True):
        y = self.linear(self.norm(x))
        return x + (y * self.factor if scale else y)


def kept(given, *calls, grad=True):
    with torch.set_grad_enabled(grad):
        outcome = fusec.precompile(given, calls)
    assert outcome.complete, outcome
    return fusec.compile(given)


def test_a_call_is_taken_up_and_nothing_is_captured():
    compiled = kept(function, (torch.ones(4, 8),), (torch.ones(4, 8), torch.ones(8)))
    with fusec.frozen():
        x, y = torch.randn(4, 8), torch.randn(8)
        torch.testing.assert_close(compiled(x), function(x))
        torch.testing.assert_close(compiled(x, y), function(x, y))
        torch.testing.assert_close(compiled(y=y, x=x, times=3), function(x, y))
    assert compiled.graphs == ()
    assert [each.calls for each in compiled.taken_up.artefacts.values()] == [1, 2]


def test_it_is_taken_up_by_every_module_of_a_class():
    kept(Block(), (torch.ones(4, 8),), grad=False)
    for _ in range(2):
        block, x = Block(), torch.randn(4, 8)
        compiled = fusec.compile(block)
        with torch.no_grad(), fusec.frozen():
            torch.testing.assert_close(compiled(x), block(x))
        assert not compiled.taken_up.refused


def test_code_of_inner_functions_is_left_out():
    def outer(x):
        return sum(each * 2 for each in (x, x + 1)).cos()

    compiled = kept(outer, (torch.ones(4),))
    with fusec.frozen():
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x), outer(x))


def test_a_class_that_is_another_parts(store):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Block(), Block()

        def forward(self, x):
            same = self.a.__class__ is self.b.__class__ and type(self.a) is type(self.b)
            return self.a(x) * (2 if same else 3)

    pair = Pair()
    compiled = kept(pair, (torch.ones(4, 8),))
    with fusec.frozen():
        x = torch.randn(4, 8)
        torch.testing.assert_close(compiled(x), pair(x))


def test_calls_kept_at_once_are_all_kept(store):
    key = {"function": "f"}

    def put(number: int) -> None:
        artefact._put(key, {"guards": number}, {})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, range(24)))
    found = [store.get(KIND, {**key, "number": number}) for number in range(24)]
    kept = {json.loads(each.read_bytes(TEXT))["guards"] for each in found if each is not None}
    assert kept == set(range(24))


MISSES = {
    "sizes": (lambda x: ((x[:3],), {}), r"float32 4 x 8; found: float32 3 x 8"),
    "dtype": (lambda x: ((x.double(),), {}), "found: float64 4 x 8"),
    "strides": (lambda x: ((torch.ones(8, 4).T,), {}), "strides"),
    "gradients": (lambda x: ((x.requires_grad_(),), {}), "requires grad"),
    "number": (lambda x: ((x,), {"times": 4}), "found: 4"),
    "kind of number": (lambda x: ((x,), {"times": True}), "found: True"),
    "no tensor": (lambda x: ((3.0,), {}), ""),
    "negated view": (lambda x: ((torch._neg_view(x),), {}), "found: float32 4 x 8"),
    "subclass": (lambda x: ((nn.Parameter(x, requires_grad=False),), {}), ""),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("first", [True, False], ids=["first call", "later call"])
@pytest.mark.parametrize("name", MISSES)
def test_another_call_is_a_miss(name, first):
    compiled = kept(function, (torch.ones(4, 8),))
    x = torch.randn(4, 8)
    make, expected = MISSES[name]
    with fusec.frozen():
        if not first:
            compiled(x)
        args, kwargs = make(x.clone())
        with pytest.raises(fusec.FrozenMiss, match=expected):
            compiled(*args, **kwargs)
    if name != "no tensor":  # which raises in eager
        torch.testing.assert_close(compiled(*args, **kwargs), function(*args, **kwargs))


@contextlib.contextmanager
def _default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


STATES = {
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": _default_dtype,
    "a default device": lambda: torch.device("meta"),
    "hooks": torch.autograd.graph.save_on_cpu,
}


@pytest.mark.parametrize("name", STATES)
def test_another_state_of_torch_is_a_miss(name):
    compiled = kept(function, (torch.ones(4, 8),))
    x = torch.randn(4, 8)
    for _ in range(2):
        with fusec.frozen():
            with STATES[name](), pytest.raises((fusec.FrozenMiss, RuntimeError)):
                compiled(x)
            compiled(x)


def test_a_tangent_is_not_left_behind():
    compiled = kept(function, (torch.ones(4, 8),))
    x, t = torch.randn(4, 8), torch.ones(4, 8)
    compiled(x)
    _, tangent = torch.func.jvp(compiled, (x,), (t,))
    torch.testing.assert_close(tangent, torch.func.jvp(function, (x,), (t,))[1])


def test_a_module_is_taken_up_and_its_parts_are_guarded():
    module = Block().eval()
    kept(module, (torch.ones(4, 8),), grad=False)
    other = Block().eval()
    compiled = fusec.compile(other)
    x = torch.randn(4, 8)
    with torch.no_grad(), fusec.frozen():
        torch.testing.assert_close(compiled(x), other(x))
        other.linear.weight.mul_(2.0)
        torch.testing.assert_close(compiled(x), other(x))
        other.factor = 2.5
        with pytest.raises(fusec.FrozenMiss, match="factor"):
            compiled(x)
        other.factor = 1.5
        compiled(x)
        other.linear = nn.Linear(8, 8, bias=False)
        with pytest.raises(fusec.FrozenMiss, match="bias"):
            compiled(x)
        other.linear = nn.Linear(8, 8)
        torch.testing.assert_close(compiled(x), other(x))
        hook = other.norm.register_forward_hook(lambda *_: None)
        with pytest.raises(fusec.FrozenMiss, match="hooks"):
            compiled(x)
        hook.remove()
        compiled(x)
        hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
        with pytest.raises(fusec.FrozenMiss):
            compiled(x)
        hook.remove()


@pytest.mark.parametrize(
    "value",
    [torch.ops.aten, torch.ops.aten.add, torch.ops.aten.add.Tensor, nn.functional, torch.relu],
    ids=["operators", "overloads", "an operator", "a module", "a function"],
)
def test_what_libraries_have_is_found_by_its_name(value):
    assert resolve(json.loads(json.dumps(reference(value)))) is value


class Settings:
    """As transformers' configurations: every attribute goes through Python."""

    def __init__(self):
        self.scale = 2.0

    def __getattribute__(self, name):
        return super().__getattribute__(name)


def test_settings_whose_attributes_python_looks_up():
    module = Block().eval()
    module.factor = Settings()
    module.forward = lambda x: module.linear(x) * module.factor.scale
    kept(module.forward, (torch.ones(4, 8),), grad=False)
    compiled, x = fusec.compile(module.forward), torch.randn(4, 8)
    with torch.no_grad(), fusec.frozen():
        torch.testing.assert_close(compiled(x), module.forward(x))
        module.factor.scale = 3.0
        with pytest.raises(fusec.FrozenMiss, match="scale"):
            compiled(x)


def test_settings_that_share_what_they_have():
    """As T5's encoder and decoder do: that it is one object is asked past ``__getattribute__``."""
    module = Block().eval()
    module.one, module.two = Settings(), Settings()
    module.one.names = module.two.names = {"scale": 2.0}

    def forward(x):
        return module.linear(x) * module.one.names["scale"] + module.two.names["scale"]

    kept(forward, (torch.ones(4, 8),), grad=False)
    compiled, x = fusec.compile(forward), torch.randn(4, 8)
    with torch.no_grad(), fusec.frozen():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), forward(x))
        module.two.names = dict(module.one.names)
        with pytest.raises(fusec.FrozenMiss, match="names"):
            compiled(x)


@pytest.mark.parametrize(
    "text",
    [
        "own(L['x'], '__class__')",
        "own(L['x'])",
        "own(L['x'], L['y'])",
        "list(L['x'])",
        "list(dict.values(L['x']))",
        "dict.clear(L['x'])",
        "dict.__getitem__(L['x'])",
        "L['x'].__getitem__(0)",
    ],
)
def test_a_relation_only_compares(text):
    with pytest.raises(NotKept, match="not understood"):
        relation_code(text)


def test_an_item_by_the_place_of_its_key_is_compared():
    """As transformers' registry of what a model records, where a function calls the model."""
    code = relation_code(
        "dict.__getitem__(G['r'], list(dict.keys(G['r']))[1])['a'] is type(L['x'])"
    )
    names = {"L": {"x": 3}, "G": {"r": {"one": 1, "two": {"a": int}}}}
    assert eval(code, {"__builtins__": {}}, names | dict(RELATION_NAMES))


def test_weights_that_are_one_object_have_to_stay_so():
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).eval()
    tied[1].weight = tied[0].weight
    kept(tied, (torch.ones(2, 8),), grad=False)
    free = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)).eval()
    x = torch.randn(2, 8)
    for module in (tied, free):
        with torch.no_grad():
            torch.testing.assert_close(fusec.compile(module)(x), module(x))


def test_one_tensor_given_twice_is_another_call():
    def add(x, y):
        x.add_(1)
        return x * y

    compiled = kept(add, (torch.ones(4), torch.ones(4)))
    x, y = torch.randn(4), torch.randn(4)
    mine, theirs = x.clone(), x.clone()
    for given in ((mine, y), (mine, mine)):
        expected = add(theirs, y if given[1] is y else theirs)
        torch.testing.assert_close(compiled(*given), expected)
        torch.testing.assert_close(mine, theirs)
    assert len(compiled.graphs) == 1


def test_updates_in_place_are_done():
    def update(x, y):
        x.mul_(y).add_(1)
        return x.sum()

    compiled = kept(update, (torch.ones(4, 3), torch.ones(3)))
    x = torch.randn(4, 3)
    mine, y = x.clone(), torch.randn(3)
    with fusec.frozen():
        torch.testing.assert_close(compiled(mine, y), update(x, y))
    torch.testing.assert_close(mine, x)


@pytest.mark.sample(6)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.bool, torch.float64])
def test_shapes_and_types(shape, dtype):
    def both(x):
        return x + x, x.reshape(-1).sum()

    x = torch.ones(shape).to(dtype)
    compiled = kept(both, (x,))
    with fusec.frozen():
        torch.testing.assert_close(compiled(x), both(x))


WITHOUT = {
    "views in training": (lambda x: (y := (x * 2).exp(), y.view(-1)), "wrappers"),
    "random": (lambda x: x + torch.rand(4, 8), "random"),
    "a break": (lambda x: x.sin() * float(x.sum()), r"whole graph.*draft=True"),
    "a view": (lambda x: (x.view(-1), x + 1), "views"),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_is_not_kept_says_why(name):
    given, reason = WITHOUT[name]
    x = torch.ones(4, 8, requires_grad="training" in name)
    outcome = fusec.precompile(given, [(x,)])
    assert not outcome.complete
    assert re.search(reason, outcome.calls[0].problem), outcome


def symbolic(x, y):
    z = (x.sin() * 2 + y).softmax(-1)
    return z * x.shape[0], x.reshape(-1).sum() if x.shape[0] % 2 == 0 else y.sum(0)


SIZES = {
    "a condition": ((5, 6), r"x.shape\[0\] % 2\) == 0; found: it does not hold"),
    "one": ((4, 1), "x.shape"),
    "none": ((0, 6), "x.shape"),
    "another rank": ((4, 6, 2), r"x is float32 any x any; found: float32 4 x 6 x 2"),
    "gaps": ((4, 6, "strided"), "stride"),
}


def test_symbolic_sizes_are_taken_up_and_guarded():
    call = (torch.ones(4, 6), torch.ones(4, 6))
    assert fusec.precompile(symbolic, [call], dynamic=True).complete
    compiled = fusec.compile(symbolic, dynamic=True)

    def misses():
        for sizes, words in SIZES.values():
            like = torch.ones(4, 12)[:, ::2] if "strided" in sizes else torch.ones(sizes)
            with fusec.frozen(), pytest.raises(fusec.FrozenMiss, match=words):
                compiled(like.clone() if like.is_contiguous() else like, like + 1)

    misses()  # before anything was taken up, and after
    for sizes in ((4, 6), (8, 3), (2, 10), (6, 2)):
        x, y = torch.randn(sizes), torch.randn(sizes)
        with fusec.frozen():
            found, expected = compiled(x, y), symbolic(x, y)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, check_stride=True)
    misses()
    assert compiled.graphs == ()


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["asked for", "found in the second call"])
def test_training_with_symbolic_sizes_is_taken_up(how):
    block, other = Block(), Block()
    other.load_state_dict(block.state_dict())
    calls = [(torch.ones(n, 8, requires_grad=True),) for n in (4, 6)]
    if how == "asked for":
        outcome = fusec.precompile(block, calls[:1], dynamic=True)
        compiled = fusec.compile(block, dynamic=True)
    else:
        outcome = fusec.precompile(block, calls)
        compiled = fusec.compile(block)
    assert outcome.complete, outcome
    with fusec.frozen():
        for size in (5, 3, 17):
            x = torch.randn(size, 8, requires_grad=True)
            mine = x.detach().clone().requires_grad_()
            other(x).square().sum().backward()
            compiled(mine).square().sum().backward()
            torch.testing.assert_close(mine.grad, x.grad)
            for a, b in zip(block.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad)
    assert compiled.graphs == ()


def _module(path: Path, text: str):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("written_module", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["written_module"] = module
    spec.loader.exec_module(module)
    return module


def test_a_changed_file_or_function_is_refused(tmp_path):
    text = "def inner(x):\n    return x.sin()\n\n\ndef outer(x):\n    return inner(x) + 1\n"
    path = tmp_path / "written_module.py"
    module = _module(path, text)
    x = torch.randn(5)
    kept(module.outer, (x,))
    # of another length: within a second Python itself takes the byte code of before for its own
    changed = _module(path, text.replace("sin", "cosh"))
    compiled = fusec.compile(changed.outer)
    torch.testing.assert_close(compiled(x), x.cosh() + 1)
    assert "is another" in compiled.taken_up.refused[0]
    with (
        fusec.frozen(),
        pytest.raises(fusec.FrozenMiss, match=r"not used:\n.*written_module.py is an"),
    ):
        compiled(x.double())
    module = _module(path, text)
    module.inner = lambda x: x.tan()
    compiled = fusec.compile(module.outer)
    torch.testing.assert_close(compiled(x), x.tan() + 1)


def test_other_options_have_artefacts_of_their_own():
    kept(function, (torch.ones(4, 8),))
    assert not fusec.compile(function, eager_random=True).taken_up.artefacts
    assert fusec.compile(function, keep_inputs=True).taken_up.artefacts


def test_whether_a_gpu_was_used_before_changes_nothing(monkeypatch):
    """What is kept runs on the CPU; once the driver is started, the machine's facts say more."""
    kept(function, (torch.ones(4, 8),))
    used = GpuFacts("sm_80", 108, there=True)
    monkeypatch.setattr("fusec.machine._this_gpu", lambda name: used)
    compiled, x = fusec.compile(function), torch.randn(4, 8)
    assert compiled.options.facts.gpu is used
    with fusec.frozen():
        torch.testing.assert_close(compiled(x), function(x))


def test_other_compilers_and_functions_are_served_by_nobody_else():
    compiled = kept(function, (torch.ones(4, 8),))
    x = torch.randn(4, 8)
    compiled(x)
    calls = [each.calls for each in compiled.taken_up.artefacts.values()]
    torch.compile(function, backend="eager")(x)
    assert [each.calls for each in compiled.taken_up.artefacts.values()] == calls


@pytest.mark.parametrize("how", ["empty", "no guards", "cut", "a place ahead", "no such step"])
def test_damage_is_a_miss(store, how):
    kept(function, (torch.ones(4, 8),))
    (folder,) = (store.folder / KIND).iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = store.get(KIND, manifest["key"])
    data = json.loads(entry.read_text(TEXT))
    if how == "a place ahead":
        data["guards"]["places"][5][0] = 99
    elif how == "no such step":
        data["guards"]["places"][-1][1] = "import"
    elif how == "no guards":
        del data["guards"]
    text = {"empty": b"", "cut": json.dumps(data).encode()[:-9]}.get(how, json.dumps(data).encode())
    store.remove(entry)
    store.put(KIND, manifest["key"], {TEXT: text})
    compiled = fusec.compile(function)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x), function(x))
    assert len(compiled.graphs) == 1


SECOND = """
import sys, torch, fusec
sys.path.insert(0, {folder!r})
import small_model
torch.manual_seed(0)
model = small_model.Model().eval()
x = torch.ones(3, 8)
with torch.no_grad():
    with fusec.frozen():
        result = fusec.compile(model)(x)
    print(torch.allclose(result, model(x)))
"""
MODEL = """
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x)) + x
        return x.softmax(-1)
"""


def test_a_second_process_captures_nothing(tmp_path, monkeypatch):
    (tmp_path / "small_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    import small_model

    torch.manual_seed(0)
    with torch.no_grad():
        assert fusec.precompile(small_model.Model().eval(), [(torch.ones(3, 8),)]).complete
    monkeypatch.delitem(sys.modules, "small_model")
    assert run_compiler(SECOND.format(folder=str(tmp_path))).strip().endswith("True")


# -- calls that record for autograd -----------------------------------------------------------


def norms(x, y):
    x.add_(1)
    z = torch.nn.functional.layer_norm(x * y, (8,))
    return z.relu(), z.detach() + 1, y


def test_a_training_step_is_taken_up():
    block, other = Block(), Block()
    other.load_state_dict(block.state_dict())
    compiled = kept(block, (torch.ones(4, 8),), (torch.ones(4, 8, requires_grad=True),))
    with fusec.frozen():
        for step in range(3):
            x = torch.randn(4, 8, requires_grad=step > 0)
            mine = x.detach().clone().requires_grad_(x.requires_grad)
            other(x).square().sum().backward()
            compiled(mine).square().sum().backward()
            if step:
                torch.testing.assert_close(mine.grad, x.grad)
            for a, b in zip(block.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(a.grad, b.grad)
    assert compiled.graphs == ()


def test_updates_and_results_without_gradients_are_taken_up():
    y = torch.randn(8, requires_grad=True)
    compiled = kept(norms, (torch.ones(4, 8), y))
    with fusec.frozen():
        x = torch.randn(4, 8)
        mine, leaf = x.clone(), y.detach().clone().requires_grad_()
        expected, found = norms(x, y), compiled(mine, leaf)
        torch.testing.assert_close(mine, x)
        assert mine._version == x._version
        assert found[2] is leaf
        assert not found[1].requires_grad
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
        given = torch.randn(8, 4).T  # laid out otherwise than what was compiled for
        torch.testing.assert_close(
            torch.autograd.grad(found[0], leaf, given, retain_graph=True),
            torch.autograd.grad(expected[0], y, given, retain_graph=True),
        )
        torch.testing.assert_close(
            torch.autograd.grad(found[0].sum(), leaf), torch.autograd.grad(expected[0].sum(), y)
        )
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(found[0].sum(), leaf)
        again = compiled(mine, leaf)[0]
        with pytest.raises(RuntimeError, match="double backward"):
            torch.autograd.grad(again.sum(), leaf, create_graph=True)
    assert compiled.graphs == ()


def test_a_gradient_within_autocast():
    block, other = Block(), Block()
    other.load_state_dict(block.state_dict())
    compiled = kept(block, (torch.ones(4, 8),))
    x = torch.randn(4, 8)
    with fusec.frozen():
        result, expected = compiled(x), other(x)
        with torch.autocast("cpu"):
            result.sum().backward()
        expected.sum().backward()
    for a, b in zip(block.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_tangents_are_not_left_behind():
    def function(x):
        return x.sin() * 2

    compiled = kept(function, (torch.ones(3),))
    x, t = torch.randn(3), torch.randn(3)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        found = torch.autograd.forward_ad.unpack_dual(compiled(dual))
    torch.testing.assert_close(found.tangent, x.cos() * 2 * t)


def test_a_list_of_calls_is_longer_than_torchs_limit():
    """TorchDynamo gives a function up after eight kinds of calls, and for good."""
    calls = [(torch.randn(3 + n, 2),) for n in range(4)]
    with torch._dynamo.config.patch(recompile_limit=2):
        plain = fusec.compile(lambda x: x.cos() * 5, dynamic=False)
        for call in calls:
            plain(*call)
        assert len(plain.graphs) == 2
        assert fusec.precompile(plain, calls).complete
        assert len(plain.graphs) == 4
        plain(torch.randn(9, 2))
        assert len(plain.graphs) == 4
        torch._dynamo.reset()
        compiled = fusec.compile(plain.function, dynamic=False)
        with fusec.frozen():
            for call in calls:
                torch.testing.assert_close(compiled(*call), plain.function(*call))
