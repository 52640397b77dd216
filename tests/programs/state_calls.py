"""Writes the calls of a state program: each in a state of torch of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from programs.nodes import Node

# Where a function is called.
AROUND = (
    "torch.no_grad()",
    "torch.enable_grad()",
    "torch.set_grad_enabled(False)",
    "torch.inference_mode()",
    "torch.inference_mode(False)",
    'torch.autocast("cpu", torch.float16)',
    'torch.autocast("cpu", torch.bfloat16)',
    'torch.autocast("cpu", torch.bfloat16)',
    'torch.autocast("cpu", enabled=False)',
    'torch.autocast("cpu", torch.bfloat16, cache_enabled=False)',
    "default_dtype(torch.float64)",
    "deterministic()",
    'saved("turned")',
    'saved("gaps")',
    'saved("same")',
    "torch.autograd.graph.save_on_cpu()",
    "anomaly()",
    "Functions()",
    "Operators()",
    "forward_ad.dual_level()",
    'torch.device("cpu")',
    "threads(1)",
    'matmul_precision("medium")',
    "flush_denormal()",
    "stream()",
)

# Where gradients are asked for, if not there.
AROUND_BACKWARD = (
    'torch.autocast("cpu", torch.float16)',
    'torch.autocast("cpu", torch.bfloat16)',
    'torch.autocast("cpu", torch.float16)',
    "torch.no_grad()",
    "torch.inference_mode()",
    "default_dtype(torch.float64)",
    "Functions()",
    "Operators()",
    'torch.device("cpu")',
    "threads(1)",
    "flush_denormal()",
    "anomaly()",
    "stream()",
)


def write_calls(
    rng: random.Random, shapes: Mapping[str, Sequence[int]], owners: Sequence[str]
) -> tuple[tuple[Node, ...], tuple[tuple[Node, ...], ...]]:
    """Return assignments that calls need, and two or three calls.

    Args:
        rng: Where choices come from.
        shapes: Of the function's parameters.
        owners: The names of the modules.
    """
    before = []
    trains = bool(owners) and rng.random() < 0.4
    if trains:
        given = ", ".join(f"*{name}.parameters()" for name in owners)
        before.append(Node(f"opt = torch.optim.SGD([{given}], lr=0.1, momentum=0.5)"))
    wants = {name: rng.random() < 0.7 for name in shapes}
    calls = []
    for number in range(rng.choice([2, 2, 2, 3])):
        flags = {
            name: not want if number and rng.random() < 0.15 else want
            for name, want in wants.items()
        }
        calls.append(_call(rng, number, shapes, flags, owners, trains))
    return tuple(before), tuple(calls)


def _call(
    rng: random.Random,
    number: int,
    shapes: Mapping[str, Sequence[int]],
    wants: Mapping[str, bool],
    owners: Sequence[str],
    trains: bool,
) -> tuple[Node, ...]:
    nodes = [_input(rng, name, shape, wants[name], number) for name, shape in shapes.items()]
    hook = rng.random()
    if hook < 0.05 and wants["a"]:
        nodes.append(Node("a.register_hook(lambda g: g * 0.5)"))
    calling = _calling(rng, list(shapes))
    inner = [Node(calling), Node('note("state within", state())')]
    if hook > 0.92:
        inner.append(
            Node("[t.register_hook(lambda g: g * 0.5) for t in flat(out)[-1:] if t.requires_grad]")
        )
    if rng.random() < 0.1:
        inner.append(Node("[t.retain_grad() for t in flat(out)[-1:] if t.requires_grad]"))
    back = _backward(rng, list(shapes), owners, trains)
    around = _some(rng, AROUND)
    if rng.random() < 0.4:
        nodes += _within(_fit_for(calling, around), [*inner, *back])
    else:
        nodes += _within(_fit_for(calling, around), inner)
        nodes += _within(_fit_for(calling, _some(rng, AROUND_BACKWARD)), back) if back else []
    nodes.append(Node('note_tensors("out", out)'))
    nodes += [Node(f'note("{name}.grad", {name}.grad)') for name in shapes if wants[name]]
    nodes += [Node(f'note_module("{name}", {name})') for name in owners]
    nodes.append(Node('note("state", state())'))
    return tuple(nodes)


def _input(rng: random.Random, name: str, shape: Sequence[int], wants: bool, number: int) -> Node:
    flags = ", grad=True" if wants else ""
    if not wants and rng.random() < 0.15:
        flags = ", inference=True"
    if rng.random() < 0.1:
        flags += ", turned=True"
    if rng.random() < 0.03:
        flags += ", negated=True"
    dtype = "torch.float64" if rng.random() < 0.03 else "torch.float32"
    return Node(f"{name} = tensor({list(shape)}, {rng.randrange(1000)}, {dtype}{flags})")


def _calling(rng: random.Random, given: Sequence[str]) -> str:
    first, rest = given[0], given[1:]
    others = "".join(f", {name}" for name in rest)
    dims = "".join(", None" for _ in rest)
    plain = f"out = f({first}{others})"
    return rng.choice(
        [
            *(plain,) * 24,
            f"out = checkpoint(f, {first}{others}, use_reentrant=False)",
            f"out = torch.func.vmap(f, (0{dims}))(torch.stack([{first}, {first}]){others})"
            if rest
            else f"out = torch.func.vmap(f)(torch.stack([{first}, {first}]))",
            f"out = torch.func.grad(lambda t: total(f(t{others})))({first})",
            f"out = torch.func.jvp(lambda t: f(t{others}), ({first},), ({first},))",
        ]
    )


def _backward(
    rng: random.Random, given: Sequence[str], owners: Sequence[str], trains: bool
) -> list[Node]:
    if rng.random() < 0.25:
        return []
    of = ", ".join(given)
    nodes = [
        Node(
            rng.choice(
                [
                    *("backward(out)",) * 5,
                    "backward(total(out))",
                    "backward(out[-1])",
                    f'note_tensors("gradients", gradients(out, {of}))',
                    f'note_tensors("gradients", gradients(out, {of}, keep=True))',
                    "backward(out, keep=True)",
                ]
            )
        )
    ]
    if "keep=True" in nodes[0].text:
        nodes.append(Node("backward(out)"))
    nodes.append(Node('note("state after backward", state())'))
    if trains and rng.random() < 0.7:
        nodes += [Node("opt.step()"), Node("opt.zero_grad()")]
    return nodes


def _some(rng: random.Random, contexts: Sequence[str]) -> list[str]:
    return [rng.choice(contexts) for _ in range(rng.choice([0, 0, 1, 1, 1, 2]))]


def _fit_for(calling: str, contexts: Sequence[str]) -> list[str]:
    """Return contexts without a dispatch mode where a checkpoint computes the function again.

    TorchDynamo leaves alone what runs under one: another form would be computed again than first.
    """
    return [each for each in contexts if "checkpoint(" not in calling or each != "Operators()"]


def _within(contexts: Sequence[str], body: Sequence[Node]) -> list[Node]:
    found = list(body)
    for context in contexts:
        found = [Node(f"with {context}", tuple(found))]
    return found


__all__ = ["write_calls"]
