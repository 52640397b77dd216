"""A user's variable may be called what the kernel's own text calls something."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec
from support.compare import difference

NAMES = (
    "stream end_stream ahead ahead_to_write together lane count LINE BLOCK UNROLL ROWS GRAIN"
    " at_most div_floor mark threads failed int64_t uint8_t NAN INFINITY fx_exp fx_bf16 nan_max"
    " random_words wrap_add wrap_mul32 alignas decltype nullptr xor XBLOCK RBLOCK tl offsets mask"
    " start grid rows libdevice out_ptr num_warps i0 r0 value begin end"
).split()
TOGETHER = 8  # names that one function has
GROUPS = [NAMES[n : n + TOGETHER] for n in range(0, len(NAMES), TOGETHER)]


def function_of(names: list[str]) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function of so many matrices: a chain, integers, rows, columns, a transpose."""
    total = " + ".join(f"{name} * {n + 2}" for n, name in enumerate(names))
    text = f"""def function({", ".join(names)}):
    total = {total}
    whole = ({names[0]}.to(torch.int32) + 7) * 3
    return total, whole, torch.softmax(total, -1), {names[-1]}.amax(-1), {names[-1]}.t() + total
"""
    file = f"<names {names[0]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {"torch": torch}
    exec(compile(text, file, "exec"), space)
    return space["function"]  # type: ignore[no-any-return]


@pytest.mark.sample(4)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
@pytest.mark.parametrize("target", ["auto", "triton"])
def test_names_that_mean_something_else(
    names: list[str], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    size = 300 if target == "auto" else 24
    function = function_of(names)
    inputs = [torch.randn(size, size) for _ in names]
    compiled = fusec.compile(function, target=target)
    assert not difference(compiled(*inputs), function(*inputs))


class Block(torch.nn.Module):
    """Modules within modules, a Sequential in one that runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = torch.nn.Linear(16, 32)
        self.stack = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.GELU())
        self.scale = torch.nn.Parameter(torch.randn(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(self.layer1(x)) * self.scale


def names_of(compiled: Any) -> set[str]:
    return {a.name for kernel in compiled.kernels.values() for a in kernel.signature.arguments}


def test_values_in_a_sequential_have_their_modules_names() -> None:
    torch._dynamo.reset()
    block = Block()
    compiled = fusec.compile(block)
    compiled(torch.randn(8, 16)).sum().backward()
    names = names_of(compiled)
    assert {"layer1_bias", "stack_0_weight", "stack_0_bias", "scale"} <= names
    assert {"stack_0_mean", "stack_0_rstd"} <= names
    assert {"grad_stack_0_weight", "grad_layer1_bias", "grad_scale"} <= names
    unclear = {n for n in names if n.startswith(("input", "primals", "tangents", "getitem"))}
    assert not unclear


def test_a_sequential_of_its_own_and_a_users_own_input() -> None:
    torch._dynamo.reset()
    compiled = fusec.compile(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.LayerNorm(16)))
    compiled(torch.randn(8, 16)).sum().backward()
    names = names_of(compiled)
    assert {"layer_norm_1_mean", "layer_norm_1_rstd", "grad_weight_1", "x"} <= names, names

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        input = x.sin() * 2
        return input, input.sum(0)

    compiled = fusec.compile(function)
    compiled(torch.randn(8, 16))
    assert "input" in names_of(compiled)


def test_saved_values_and_tangents_have_their_names_in_backward() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))

    def step(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores, target)
        return loss

    compiled = fusec.compile(step)
    x, target = torch.randn(6, 8), torch.randint(4, (6,))
    compiled(x, target).backward()
    names = names_of(compiled)
    assert {"model_0_bias", "target", "grad_loss", "grad_model_2_bias"} <= names, names
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    step(x, target).backward()
    for mine, parameter in zip(grads, model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad)
