"""torch.compiler's own tools with ``backend="fusec"``: stances, saved caches, aot_compile."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fusec
from fusec.cache import default_store
from fusec.capture.aot import CannotSave
from fusec.capture.cache_artifacts import take_in, written


def function(x):
    return (x.sin() * 2).sum(-1)


def two_results(x, y):
    return x * 2, x * y


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    # torch 2.11 has it behind a switch
    switch = hasattr(torch._dynamo.config, "enable_aot_compile")
    with torch._dynamo.config.patch({"enable_aot_compile": True} if switch else {}):
        yield


def entries():
    return len(torch._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__))


MAKERS = {
    "torch.compile": lambda: torch.compile(function, backend="fusec", dynamic=False),
    "fusec.compile": lambda: fusec.compile(function, dynamic=False),
}
# How many forms are compiled after calls of three sizes, the first before the stance.
STANCES = {
    "default": 3,
    "force_eager": 1,
    "eager_on_recompile": 1,
    "fail_on_recompile": 1,
    "eager_then_compile": 2,
    "aot_eager_then_compile": 2,
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("stance", STANCES)
def test_stances(maker, stance):
    compiled = MAKERS[maker]()
    compiled(torch.ones(2, 3))
    with torch.compiler.set_stance(stance):
        for size in (2, 3, 4):
            x = torch.randn(size, 3)
            if stance == "fail_on_recompile" and size > 2:
                with pytest.raises(RuntimeError):
                    compiled(x)
            else:
                torch.testing.assert_close(compiled(x), function(x))
    assert entries() >= STANCES[stance]
    assert entries() <= 3
    x = torch.randn(5, 3)
    torch.testing.assert_close(compiled(x), function(x))


def test_a_backend_can_be_forced():
    compiled = torch.compile(function, backend="eager")
    with torch.compiler.set_stance("default", force_backend="fusec"):
        torch.testing.assert_close(compiled(torch.ones(2, 3)), function(torch.ones(2, 3)))


def test_saved_caches_hold_our_kernels(tmp_path, monkeypatch):
    from torch.compiler._cache import CacheArtifactManager

    CacheArtifactManager.clear()
    torch.compile(function, backend="fusec")(torch.ones(2, 7))
    data, info = torch.compiler.save_cache_artifacts()
    assert info.artifacts["fusec"]
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "another"))
    assert default_store().info().entries.get("cpp") is None
    torch.compiler.load_cache_artifacts(data)
    assert default_store().info().entries["cpp"] >= 1
    assert default_store().verify() == ()
    torch._dynamo.reset()
    monkeypatch.setattr("fusec.toolchain.build._compile", None)  # nothing is built
    torch.testing.assert_close(
        torch.compile(function, backend="fusec")(torch.ones(2, 7)), function(torch.ones(2, 7))
    )


@pytest.mark.parametrize("damage", ["", "{}", "[]", "another key", "another kind", "a path"])
def test_damaged_ones_are_left_out(damage, tmp_path, monkeypatch):
    entry = default_store().put("cpp", {"n": 1}, {"kernel.so": b"abc"})
    content = {
        "another key": written(entry).replace(b'"n": 1', b'"n": 2'),
        "another kind": written(entry).replace(b'"cpp"', b'"edit"'),
        "a path": written(entry).replace(b"kernel.so", b"../kernel"),
    }.get(damage, damage.encode())
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "another"))
    assert not take_in(content)
    assert default_store().stored() == ()


def test_aot_compile_runs_is_saved_and_loaded(tmp_path):
    compiled = torch.compile(function, backend="fusec", fullgraph=True)
    made = compiled.aot_compile(((torch.ones(2, 3),), {}))
    x = torch.randn(2, 3)
    torch.testing.assert_close(made(x), function(x))
    with pytest.raises(RuntimeError):
        made(torch.ones(3, 3))
    path = tmp_path / "function.aot"
    made.save_compiled_function(str(path))
    with path.open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    torch.testing.assert_close(loaded(x), function(x))
    with pytest.raises(RuntimeError):
        loaded(torch.ones(3, 3))


def test_what_aot_compile_makes_of_a_training_step(tmp_path):
    compiled = torch.compile(function, backend="fusec", fullgraph=True)
    x = torch.ones(2, 3, requires_grad=True)
    made = compiled.aot_compile(((x,), {}))
    path = tmp_path / "function.aot"
    made.save_compiled_function(str(path))
    with path.open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    for each in (made, loaded):
        x.grad = None
        each(x).sum().backward()
        torch.testing.assert_close(x.grad, 2 * torch.cos(torch.ones(2, 3)))


def test_what_no_loss_depends_on_has_no_gradient_after_aot_compile(tmp_path):
    compiled = torch.compile(two_results, backend="fusec", fullgraph=True)
    x, y = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    path = tmp_path / "function.aot"
    made = compiled.aot_compile(((x, y), {}))
    made.save_compiled_function(str(path))
    with path.open("rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    for each in (made, loaded):
        x.grad = None
        each(x, y)[0].sum().backward()
        torch.testing.assert_close(x.grad, torch.full((2, 3), 2.0))
        assert y.grad is None


def test_what_aot_compile_cannot_save_says_why(tmp_path):
    compiled = torch.compile(lambda x: x + torch.rand(3), backend="fusec", fullgraph=True)
    made = compiled.aot_compile(((torch.ones(2, 3),), {}))
    with pytest.raises(CannotSave, match="random"):
        made.save_compiled_function(str(tmp_path / "function.aot"))


def test_aot_compile_of_a_module():
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        made = torch.compile(module, backend="fusec", fullgraph=True).forward.aot_compile(
            ((x,), {})
        )
        torch.testing.assert_close(made(x), module(x))
