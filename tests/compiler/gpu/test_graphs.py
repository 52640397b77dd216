"""On a GPU: calls through native plans, and as CUDA graphs."""

from __future__ import annotations

import copy
import gc
import re
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec
from fusec.call import native
from fusec.device import plan as device_program
from fusec.device.capture_policy import MOST_GRAPHS
from fusec.device.plan import DeviceProgram
from fusec.device.steps import SizedProgram, Start

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]

CALLS = 6  # enough for a graph to be captured and replayed


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    monkeypatch.setenv("FUSEC_GPU_PLANS", "1")
    torch._dynamo.reset()
    torch.manual_seed(0)
    assert native.types(wait=True) is not None, native.problem()


def softmax_of_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ y, -1)


def mixed(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Outputs of operators, of kernels, both read again."""
    h = F.gelu(x * 2)
    p = h @ w
    return p, h, (p + 1).relu(), p.sum(0)


def close(actual: Any, expected: Any) -> None:
    several = (actual, expected) if isinstance(expected, tuple | list) else ((actual,), (expected,))
    for a, e in zip(*several, strict=True):
        # a sum over columns adds up terms that are as large as the largest result
        scale = max(1.0, e.abs().max().item()) if e.numel() and e.is_floating_point() else 1.0
        torch.testing.assert_close(a, e, atol=2e-5 * scale, rtol=2e-5)


def programs(compiled: Any) -> list[DeviceProgram]:
    found = [part.native() for graph in compiled.graphs for part in graph.parts]
    assert all(isinstance(program, DeviceProgram) for program in found), compiled.explain()
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("function", [softmax_of_product, mixed])
def test_a_call_goes_past_the_wrappers(function: Any) -> None:
    """Else it costs some microseconds more, whatever the release of torch; see ``direct``."""
    compiled = fusec.compile(function)
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    for _ in range(2):
        close(compiled(x, y), function(x, y))
    assert all(graph._direct is not None for graph in compiled.graphs)


def captured(compiled: Any) -> bool:
    return any("captured" in n for g in compiled.graphs for n in g.notes if "cannot" not in n)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("function", [softmax_of_product, mixed])
def test_calls_are_native_and_right(function: Any, graphs: bool) -> None:
    # a small product that is a kernel leaves one kernel, and nothing to capture
    compiled = fusec.compile(function, cuda_graphs=graphs, matmul="extern")
    with torch.no_grad():
        for _ in range(CALLS):
            x, y = torch.randn(100, 100, device="cuda"), torch.randn(100, 100, device="cuda")
            close(compiled(x, y), function(x, y))
    (program,) = programs(compiled)
    assert program.call.hits >= CALLS - 4
    assert captured(compiled) == graphs, compiled.explain()


@pytest.mark.parametrize("function", [softmax_of_product, mixed])
def test_outputs_are_never_overwritten(function: Any) -> None:
    compiled = fusec.compile(function, cuda_graphs=True, matmul="extern")
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    kept: list[Any] = []
    with torch.no_grad():
        for i in range(30):
            x.normal_()
            kept.append((compiled(x, y), function(x, y), i))
    assert captured(compiled), compiled.explain()
    for actual, expected, _ in kept:
        close(actual, expected)


def test_outputs_freed_and_kept_in_any_order() -> None:
    """While results die and live at random, and others allocate, nothing is mixed up."""
    compiled = fusec.compile(mixed, cuda_graphs=True)
    w = torch.randn(64, 64, device="cuda")
    alive: dict[int, Any] = {}
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for i in range(200):
            x = torch.randn(64, 64, device="cuda")
            alive[i] = compiled(x, w), mixed(x, w)
            if len(alive) > 8:
                gone = list(alive)[int(torch.randint(len(alive), (), generator=generator))]
                close(*alive.pop(gone))
    for actual, expected in alive.values():
        close(actual, expected)


def test_shapes_have_graphs_of_their_own_and_they_are_bounded() -> None:
    compiled = fusec.compile(softmax_of_product, cuda_graphs=True, dynamic=True)
    y = torch.randn(32, 48, device="cuda")
    with torch.no_grad():
        for size in range(3, 3 + MOST_GRAPHS + 3):
            for _ in range(CALLS):
                x = torch.randn(size, 32, device="cuda")
                close(compiled(x, y), softmax_of_product(x, y))
    assert captured(compiled), compiled.explain()
    assert all(program.call.plans <= MOST_GRAPHS for program in programs(compiled))


def test_streams_have_graphs_of_their_own() -> None:
    compiled = fusec.compile(mixed, cuda_graphs=True)
    w = torch.randn(256, 256, device="cuda")
    streams = [torch.cuda.Stream() for _ in range(3)]
    inputs = [torch.randn(256, 256, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    outputs: list[list[Any]] = [[] for _ in streams]
    with torch.no_grad():
        for _ in range(20):
            for stream, x, out in zip(streams, inputs, outputs, strict=True):
                with torch.cuda.stream(stream):
                    out.append(compiled(x, w))
        torch.cuda.synchronize()
        for x, out in zip(inputs, outputs, strict=True):
            for each in out:
                close(each, mixed(x, w))


def test_threads() -> None:
    compiled = fusec.compile(mixed, cuda_graphs=True)
    w = torch.randn(64, 64, device="cuda")
    with torch.no_grad():
        compiled(torch.randn(64, 64, device="cuda"), w)
    wrong: list[str] = []

    def work() -> None:
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(64, 64, device="cuda")
                try:
                    close(compiled(x, w), mixed(x, w))
                except AssertionError as error:
                    wrong.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


@pytest.mark.parametrize("eager_random", [False, True])
def test_random_numbers_go_on_as_without_graphs(eager_random: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.dropout(x, 0.5) @ w, 0.5)

    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    results = []
    for graphs in (False, True):
        torch._dynamo.reset()
        compiled = fusec.compile(function, cuda_graphs=graphs, eager_random=eager_random)
        torch.manual_seed(5)
        with torch.no_grad():
            results.append([compiled(x, w) for _ in range(8)])
        if graphs:
            assert captured(compiled), compiled.explain()
    for plain, graphed in zip(*results, strict=True):
        close(graphed, plain)
    assert not torch.equal(results[1][-1], results[1][-2])


def test_inputs_updated_in_place() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = (x @ w).relu()
        x.mul_(0.5)
        return y

    compiled = fusec.compile(function, cuda_graphs=True)
    w = torch.randn(32, 32, device="cuda")
    x = torch.randn(32, 32, device="cuda")
    z = x.clone()
    with torch.no_grad():
        for _ in range(10):
            version = x._version
            close(compiled(x, w), function(z, w))
            close(x, z)
            assert x._version > version


@pytest.mark.parametrize("graphs", [False, True])
def test_kernels_read_what_was_just_updated(graphs: bool) -> None:
    """The new values of large tensors are read where they were written, by kernels right behind."""

    def step(p: list[torch.Tensor], g: list[torch.Tensor], m: list[torch.Tensor]) -> Any:
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_addcdiv_(p, m, torch._foreach_sqrt(torch._foreach_abs(g)), -1e-3)
        return p[0].view(-1)[-1:] * 1, p[1].flip(0)[:64] + m[1][:64]

    compiled = fusec.compile(step, cuda_graphs=graphs)
    p, g, m = ([torch.rand(2048, 1024 + n, device="cuda") + 0.5 for n in range(3)] for _ in "pgm")
    theirs = copy.deepcopy((p, g, m))
    for call in range(40):
        if call % 3 == 0:  # the gradients elsewhere, as autograd leaves them
            g, theirs = [t.clone() for t in g], (theirs[0], [t.clone() for t in g], theirs[2])
        close(compiled(p, g, m), step(*theirs))
    close((*p, *m), (*theirs[0], *theirs[2]))
    assert sum("where it lies" in d.reason for each in compiled.graphs for d in each.fusions) >= 4


@pytest.mark.parametrize("graphs", [False, True])
def test_training(graphs: bool) -> None:
    def make() -> nn.Module:
        torch.manual_seed(1)
        layers = [nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)]
        return nn.Sequential(*layers).cuda()

    model, reference = make(), make()
    compiled = fusec.compile(model, cuda_graphs=graphs)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, reference)]
    for _ in range(12):
        x = torch.randn(16, 32, device="cuda")
        losses = [f(x).square().mean() for f in (compiled, reference)]
        close(losses[0], losses[1])
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for a, b in zip(model.parameters(), reference.parameters(), strict=True):
        close(a, b)
    assert captured(compiled) == graphs, compiled.explain()


def test_two_forwards_before_their_backwards() -> None:
    """What the first call saved for backward is not the second call's."""
    layer = nn.Linear(32, 32).cuda()
    compiled = fusec.compile(lambda x: F.gelu(layer(F.gelu(x))).sum(), cuda_graphs=True)
    for _ in range(8):
        xs = [torch.randn(8, 32, device="cuda", requires_grad=True) for _ in range(3)]
        grads = torch.autograd.grad([compiled(x) for x in xs], xs)
        expected = torch.autograd.grad([F.gelu(layer(F.gelu(x))).sum() for x in xs], xs)
        close(grads, expected)
    assert captured(compiled), compiled.explain()


# -- what forward saves stays where it is ---------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(288, 64), nn.GELU(), nn.Linear(64, 10)).cuda()


class Training:
    """A compiled network, and the same one in eager, trained on the same inputs."""

    def __init__(self, **options: Any) -> None:
        self.model, self.reference = network(), network()
        self.compiled = fusec.compile(self.model, cuda_graphs=True, **options)
        self.optimizers = [
            torch.optim.SGD(m.parameters(), lr=0.02) for m in (self.model, self.reference)
        ]
        self.target = torch.randint(10, (32,), device="cuda")

    def losses(self, batch: int = 32) -> list[torch.Tensor]:
        x = torch.randn(batch, 3, 16, 16, device="cuda")
        made = [F.cross_entropy(f(x), self.target[:batch]) for f in (self.compiled, self.reference)]
        torch.testing.assert_close(*made, atol=1e-3, rtol=1e-3)
        return made

    def learn(self, *losses: list[torch.Tensor], **options: Any) -> None:
        """Compare the gradients of some losses, and take a step."""
        for each in zip(*losses, strict=True):
            for loss in each:
                loss.backward(**options)
        for a, b in zip(self.model.parameters(), self.reference.parameters(), strict=True):
            scale = max(1.0, b.grad.abs().max().item())
            torch.testing.assert_close(a.grad, b.grad, atol=2e-3 * scale, rtol=1e-3)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():  # differences of rounding shall not add up
            for to, source in zip(
                self.model.state_dict().values(),
                self.reference.state_dict().values(),
                strict=True,
            ):
                torch.testing.assert_close(to, source, atol=2e-3, rtol=1e-3)
                to.copy_(source)

    def warm(self) -> Training:
        for _ in range(5):
            self.learn(self.losses())
        notes = [note for graph in self.compiled.graphs for note in graph.notes]
        assert any("stay for backward" in note for note in notes), notes
        assert not any("no CUDA graph" in note for note in notes), notes
        assert sum("captured" in note for note in notes) >= 2, notes
        return self

    def programs(self) -> list[DeviceProgram]:
        return [p for p in programs(self.compiled) if p.saved]


@pytest.fixture
def training(exact_convolutions: None) -> Training:
    return Training().warm()


def nonsense() -> list[torch.Tensor]:
    """Fill memory that is free, in many sizes."""
    made = [torch.full((1 << n,), float("nan"), device="cuda") for n in range(4, 24)]
    return made + [torch.full((1000 * n,), float("nan"), device="cuda") for n in range(1, 50)]


def test_training_with_convolutions_and_norms(training: Training) -> None:
    (program,) = training.programs()
    served = program.call.hits
    losses = []
    for _ in range(8):
        made = training.losses()
        losses.append([loss.item() for loss in made])
        training.learn(made)
        del made
    torch.testing.assert_close(*torch.tensor(losses).unbind(1), atol=1e-3, rtol=1e-3)
    assert program.call.hits >= served + 5  # the input may have moved, for which there is a copy
    assert program.call.plans == program.call.residing  # no call found them held


def test_nothing_else_writes_between_forward_and_backward(training: Training) -> None:
    other = fusec.compile(mixed, cuda_graphs=True)
    w = torch.randn(512, 512, device="cuda")
    for _ in range(8):
        made = training.losses()
        nonsense()
        with torch.no_grad():  # captured meanwhile, and replayed
            x = torch.randn(512, 512, device="cuda")
            torch.testing.assert_close(other(x, w)[0], mixed(x, w)[0], atol=1e-3, rtol=1e-3)
        torch.cuda.empty_cache()
        nonsense()
        training.learn(made)
        del made


def test_several_forwards_before_their_backwards(training: Training) -> None:
    for count in (1, 2, 1, 3, 2, 2, 2, 1, 1):
        training.learn(*[training.losses() for _ in range(count)])
        training.learn(*reversed([training.losses() for _ in range(count)]))


@pytest.mark.usefixtures("exact_convolutions")
def test_backward_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else it may not be asked for; what patch() sets is not seen by the threads of autograd.
    config: Any = torch._functorch.config
    monkeypatch.setattr(config._config["donated_buffer"], "default", False)
    training = Training().warm()
    for _ in range(6):
        made = training.losses()
        for loss in made:
            loss.backward(retain_graph=True)
        later = training.losses()
        nonsense()
        training.learn(made, later)
        del made, later


def saved_of(loss: torch.Tensor) -> list[torch.Tensor]:
    nodes, found = [loss.grad_fn], []
    while nodes:
        node = nodes.pop()
        saved = getattr(node, "saved_tensors", ())
        found += [t for t in saved if isinstance(t, torch.Tensor) and not t.requires_grad]
        nodes += [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
    return found


def test_saved_tensors_that_the_user_holds(training: Training) -> None:
    made = training.losses()
    saved = saved_of(made[0])
    assert saved
    wanted = [t.clone() for t in saved]
    training.learn(made)
    del made
    for _ in range(6):
        training.learn(training.losses())
    nonsense()
    assert all(torch.equal(a, b) for a, b in zip(saved, wanted, strict=True))


def test_hooks_and_checkpoints(training: Training) -> None:
    from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

    for _ in range(4):
        with torch.autograd.graph.save_on_cpu():
            made = training.losses()
        training.learn(training.losses())
        training.optimizers[0].zero_grad()
        nonsense()
        x = torch.randn(8, 3, 16, 16, device="cuda")
        for model in (training.compiled, training.reference):
            with set_checkpoint_early_stop(False):  # norms shall learn twice in both
                result = checkpoint(model, x, use_reentrant=False)
            result.square().mean().backward()
        del result
        training.learn(training.losses())
        del made


@pytest.mark.usefixtures("exact_convolutions")
def test_sizes_that_change_in_training() -> None:
    training = Training(dynamic=True)
    for batch in (4, 8, 16, 4, 8, 16, 4, 4, 4, 8, 8, 8, 16, 16, 16, 4, 8, 16, 32, 4):
        training.learn(training.losses(batch))
    for batch in (4, 8, 16):  # one of each before any of their gradients
        training.learn(training.losses(batch), training.losses(4), training.losses(8))


def test_the_graph_is_dropped_before_its_backward(training: Training) -> None:
    for _ in range(2):
        made = training.losses()
        for program in training.programs():
            program.forget()
        gc.collect()
        torch.cuda.empty_cache()
        kept = nonsense()
        training.learn(made)
        del made, kept
        for _ in range(5):
            training.learn(training.losses())


@pytest.mark.parametrize("graphs", [False, True])
def test_starts_of_one_kernel_are_one(graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SizedProgram] = []
    original = device_program.device_steps

    def noted(*given: Any) -> SizedProgram:
        made.append(original(*given))
        return made[-1]

    monkeypatch.setattr(device_program, "device_steps", noted)
    shapes = [(64, 32)] * 7 + [(1000,)] * 40 + [(3,)]

    def step(values: list[torch.Tensor], gradients: list[torch.Tensor]) -> torch.Tensor:
        torch._foreach_mul_(values, 0.9)
        torch._foreach_addcmul_(values, gradients, gradients, value=0.1)
        return (values[-1] + values[0][0, :3]) * 2

    compiled = fusec.compile(step, cuda_graphs=graphs)
    values, gradients = ([torch.randn(s, device="cuda") for s in shapes] for _ in range(2))
    copies = [v.clone() for v in values]
    with torch.no_grad():
        for _ in range(CALLS):
            close(compiled(values, gradients), step(copies, gradients))
            close(values, copies)
            for g in gradients:
                g.normal_()
    (steps,) = made
    starts = [step for step in steps.steps if isinstance(step, Start)]
    assert len(starts) <= 4, [s.grid for s in starts]
    assert max(s.grid[1] for s in starts) == 40


def test_reduce_overhead_is_cuda_graphs() -> None:
    if "fusec" not in torch._dynamo.list_backends():
        pytest.skip("run from its source: no package says that there is a backend")
    compiled = torch.compile(softmax_of_product, backend="fusec", mode="reduce-overhead")
    x, y = torch.randn(2, 64, 64, device="cuda")
    with torch.no_grad():
        for _ in range(CALLS):
            close(compiled(x, y), softmax_of_product(x, y))


def test_what_is_on_the_cpu_is_the_reason() -> None:
    scale = torch.tensor(2.5)
    compiled = fusec.compile(lambda x: ((x @ x) * scale).relu(), cuda_graphs=True)
    x = torch.randn(32, 32, device="cuda")
    with torch.no_grad():
        for _ in range(CALLS):
            close(compiled(x), ((x @ x) * scale).relu())
    assert "is on the CPU" in str(compiled.explain())


def test_within_a_graph_of_the_users() -> None:
    compiled = fusec.compile(softmax_of_product, cuda_graphs=True)
    x, y = torch.randn(2, 64, 64, device="cuda")
    with torch.no_grad():
        for _ in range(CALLS):
            compiled(x, y)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(x, y)
        x.normal_()
        graph.replay()
        close(result, softmax_of_product(x, y))


def test_empty_and_unaligned_inputs() -> None:
    compiled = fusec.compile(lambda x: ((x + 1).relu(), x.sin()), cuda_graphs=True)
    base = torch.randn(1000, device="cuda")
    with torch.no_grad():
        for start in (0, 1, 4, 0, 1, 4, 0, 1, 4):
            x = base[start : start + 512]
            close(compiled(x), ((x + 1).relu(), x.sin()))
        empty = torch.empty(0, 4, device="cuda")
        for _ in range(CALLS):
            assert compiled(empty)[0].shape == (0, 4)


def test_views_of_what_stays_for_backward_are_not_copied() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(256, 768)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.qkv(x).view(*x.shape[:2], 3, 4, 64).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(*parts.unbind()).square().mean()

    plain = Attention().cuda().half()
    compiled = fusec.compile(copy.deepcopy(plain), cuda_graphs=True)
    for _ in range(8):
        x = torch.randn(2, 128, 256, device="cuda", dtype=torch.half)
        for module, call in ((plain, plain), (compiled.function, compiled)):
            module.zero_grad(set_to_none=True)
            (call(x) * 100).backward()
        for name, parameter in plain.named_parameters():
            got = compiled.function.get_parameter(name).grad
            torch.testing.assert_close(got, parameter.grad, rtol=2e-2, atol=2e-3)
    (backward,) = [p for p in compiled.graphs[0].parts if p.kind == "backward"]
    (note,) = backward.graph_notes()
    copied = re.search(r"of \d+ inputs (\w+)", note)
    assert copied is not None, note
    assert copied[1] in ("none", "1"), note  # the gradient that comes in may be
