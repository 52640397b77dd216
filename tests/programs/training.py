"""Random training programs: a model, an optimizer, a schedule, and what happens between steps.

Each is the text of one function, ``train(compiler)``, which returns what there is after each step:
the loss, parameters, gradients, buffers, the optimizer's state and its learning rates, the state
of random numbers.  Compiled is the model, the loss, the whole step, or the optimizer's step.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fusec
from programs.check import NUDGE, differences

NOISY = 4  # runs in float32 that begin elsewhere, each way
STEPS = 6
FOLDER = Path("build/repros")
WAYS: dict[str, Callable[..., Any]] = {
    "fusec.compile": fusec.compile,
    "torch.compile": lambda f: torch.compile(f, backend=fusec.capture.backend.fusec_backend),
}
BASELINES = ("aot_eager", "eager")

OPTIMIZERS = (
    "SGD(P, lr=LR)",
    "SGD(P, lr=LR, momentum=0.9)",
    "SGD(P, lr=LR, momentum=0.9, nesterov=True, weight_decay=0.01)",
    "SGD(P, lr=LR, momentum=0.9, foreach=True)",
    "SGD(P, lr=LR, momentum=0.8, fused=True)",
    "Adam(P, lr=LR)",
    "Adam(P, lr=LR, amsgrad=True)",
    "Adam(P, lr=LR, foreach=True, maximize=True)",
    "Adam(P, lr=LR, fused=True)",
    "AdamW(P, lr=LR)",
    "AdamW(P, lr=LR, weight_decay=0.1, foreach=True)",
    "AdamW(P, lr=LR, fused=True)",
    "RMSprop(P, lr=LR)",
    "RMSprop(P, lr=LR, centered=True, momentum=0.5)",
    "Adagrad(P, lr=LR)",
    "Adadelta(P, lr=LR)",
    "Adamax(P, lr=LR)",
    "NAdam(P, lr=LR)",
    "RAdam(P, lr=LR)",
    "ASGD(P, lr=LR)",
)
TENSOR_RATES = ("Adam(", "AdamW(", "RMSprop(", "SGD(")
SCHEDULERS = (
    "StepLR(optimizer, 2, gamma=0.5)",
    "ExponentialLR(optimizer, 0.8)",
    "CosineAnnealingLR(optimizer, 5)",
    "CosineAnnealingWarmRestarts(optimizer, 2)",
    "LambdaLR(optimizer, lambda n: 1 / (n + 1))",
    "LinearLR(optimizer, total_iters=3)",
    "PolynomialLR(optimizer, 4)",
    "MultiStepLR(optimizer, [2, 4], gamma=0.3)",
    "ReduceLROnPlateau(optimizer, patience=0)",
)
LAYERS = (
    "nn.Linear(6, 6)",
    "nn.Sequential(nn.Linear(6, 6), nn.Tanh())",
    "nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.GELU())",
    "nn.Sequential(nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6))",
    "nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 1, 3, padding=1), nn.Flatten(1))",
)
LOSSES = (
    "F.mse_loss(y, t)",
    "F.cross_entropy(y, t.argmax(1))",
    "F.smooth_l1_loss(y, t) + 0.1 * y.square().mean()",
)
# A step by hand.
UPDATES = (
    "each -= 0.05 * each.grad",
    "each.sub_(each.grad, alpha=0.05)",
    "each.data.add_(each.grad, alpha=-0.05)",
    "each.copy_(each - 0.05 * each.grad)",
    "each.mul_(0.999).add_(each.grad, alpha=-0.05)",
    "each -= 0.05 * moments.setdefault(each, torch.zeros_like(each)).mul_(0.9).add_(each.grad)",
    "moments[each] = 0.9 * moments.get(each, 0) + each.grad; each -= 0.05 * moments[each]",
    "each.grad += 0.01 * each; each -= 0.05 * each.grad.clamp(-0.1, 0.1)",
    "each.lerp_(each - each.grad, 0.05)",
)
FORGETS = ("each.grad = None", "each.grad = None", "each.grad.zero_()", "each.grad *= 0.5")
# What happens before a step.
EVENTS = (
    "optimizer.add_param_group({'params': list(model[1].parameters()), 'lr': 0.02})",
    "model[1].requires_grad_(True)\n"
    "optimizer.add_param_group({'params': list(model[1].parameters())})",
    "model[0].requires_grad_(False)",
    "model[1].requires_grad_(False)",
    "model[1].requires_grad_(True)",
    "for each in optimizer.param_groups: each['lr'] = 0.003",
    "for each in optimizer.param_groups: each['weight_decay'] = 0.2",
    "optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))",
    "saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))",
    "model.load_state_dict(saved[0]); optimizer.load_state_dict(saved[1])",
    "model, optimizer = copy.deepcopy((model, optimizer))",
    "optimizer.zero_grad(set_to_none=False)",
    "optimizer.zero_grad()",
    "for each in model[0].parameters(): each.data = each.data.clone()",
    "for each in model.parameters(): each.data = each.data.mT.contiguous().mT"
    " if each.dim() == 2 else each.data",
    "for each in model.parameters(): each.data.mul_(0.9)",
    "optimizer.register_step_pre_hook(halve)",
    "optimizer.register_step_post_hook(shrink)",
    "for each in model[0].parameters(): each.register_post_accumulate_grad_hook(clamp)",
    "model.eval()",
    "model.train()",
    "size = 5",
    "optimizer.state.clear()",
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)",
)
_HEAD = """\
def train(compiler, dtype=torch.float32, nudge=0.0):
    torch.manual_seed({seed})
    notes, size, moments = [], 4, {{}}
    model = nn.Sequential({layers}).to(dtype)
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(1 + nudge * torch.randn(each.shape).to(dtype))
    {frozen}
    optimizer = torch.optim.{optimizer}
    scheduler = {scheduler}
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    averaged = torch.optim.swa_utils.AveragedModel(model{ema})
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)

    def halve(optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.grad.mul_(0.5)

    def shrink(optimizer, args, kwargs):
        with torch.no_grad():
            for group in optimizer.param_groups:
                for each in group["params"]:
                    each.mul_(0.99)

    def clamp(each):
        each.grad.clamp_(-0.1, 0.1)

    def forward(x):
        return model(x)

    def loss_of(x, t):
        y = forward(x)
        return {loss}

    def update():
{update}

    def step(x, t):
{step}
        return loss.detach()

    {compiled} = compiler({compiled})
    for number in range({steps}):
{events}
        generator = torch.Generator().manual_seed(100 + number)
        x = torch.randn(size, 6, generator=generator).to(dtype)
        t = torch.randn(size, 6, generator=generator).to(dtype)
        loss = step(x, t)
{after}
        note(notes, number, model, optimizer, averaged, loss)
    return notes
"""
_PRELUDE = '''\
"""Training program {seed}: {problem}"""

import copy

import torch
import torch.nn.functional as F
from torch import nn

'''
_MAIN = """

if __name__ == "__main__":
    import fusec

    for name, compiler in {"eager": lambda f: f, "fusec": fusec.compile}.items():
        torch._dynamo.reset()
        print(name, *train(compiler), sep="\\n")
"""
_NOTE = '''\
def note(notes, number, model, optimizer, averaged, loss):
    """Note all that a step has changed."""

    def put(what, value):
        value = value.detach().clone() if isinstance(value, torch.Tensor) else value
        notes.append((f"step {number}: {what}", value))

    put("loss", loss)
    for name, each in model.named_parameters():
        put(name, each)
        put(f"{name}.requires_grad", each.requires_grad)
        put(f"{name}.grad", each.grad)
        state = optimizer.state.get(each, {})
        for key in sorted(state):
            put(f"{name}: {key}", state[key])
    for name, each in [*model.named_buffers(), *averaged.named_parameters()]:
        put(f"buffer {name}", each)
    for place, group in enumerate(optimizer.param_groups):
        put(f"group {place}: lr", float(group["lr"]))
    put("random", hash(torch.get_rng_state().numpy().tobytes()))


'''


@dataclass(frozen=True)
class TrainingProgram:
    """The text of a training.

    Attributes:
        seed: Makes the same one again.
        source: Defines ``train``.
    """

    seed: int
    source: str

    def __str__(self) -> str:
        return self.source

    def run(self, compiler: Callable[..., Any], **how: Any) -> list[tuple[str, Any]]:
        """Train; an exception is the last note."""
        text = _PRELUDE.format(seed=self.seed, problem="") + _NOTE + self.source
        space: dict[str, Any] = {"__name__": "training"}
        notes: list[Any] = []
        exec(compile(text, f"<training {self.seed}>", "exec"), space)
        plain = space["note"]

        def noted(given: list[Any], *rest: Any) -> None:
            plain(notes, *rest)

        space["note"] = noted
        try:
            space["train"](compiler, **how)
        except Exception as problem:
            notes.append(("raised", problem))
        return notes


def write(seed: int) -> TrainingProgram:
    """Return the program of a seed."""
    rng = random.Random(seed)
    optimizer = rng.choice(OPTIMIZERS)
    tensor = optimizer.startswith(TENSOR_RATES) and rng.random() < 0.2
    chosen = rng.sample(EVENTS, rng.choice((1, 1, 2, 3)))
    held = "model[0].parameters()" if any("add_param_group" in e for e in chosen) else None
    frozen = any("model[1].requires_grad_(True)" in each for each in chosen)
    rate = "torch.tensor(0.01)" if tensor else "0.01"
    optimizer = optimizer.replace("P", held or "model.parameters()", 1).replace("LR", rate)
    layers = [rng.choice(LAYERS), rng.choice(LAYERS)]
    scheduler = rng.choice(SCHEDULERS) if rng.random() < 0.5 else None
    places = sorted((rng.randrange(1, STEPS), each) for each in chosen)
    events = "\n".join(
        f"if number == {place}:\n{textwrap.indent(each, '    ')}" for place, each in places
    )
    after = ["averaged.update_parameters(model)"] if rng.random() < 0.3 else []
    if scheduler is not None:
        plateau = "Plateau" in scheduler
        after.append(f"scheduler.step({'float(loss)' if plateau else ''})")
    source = _HEAD.format(
        seed=seed,
        layers=", ".join(layers),
        frozen="model[1].requires_grad_(False)" if frozen else "pass",
        optimizer=optimizer,
        scheduler=f"torch.optim.lr_scheduler.{scheduler}" if scheduler else None,
        ema=", multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)"
        if rng.random() < 0.5
        else "",
        loss=rng.choice(LOSSES),
        step=textwrap.indent("\n".join(_step(rng)), " " * 8),
        update=textwrap.indent(_update(random.Random(f"update {seed}")), " " * 8),
        compiled=rng.choice(("forward", "loss_of", "step", "step", "update")),
        steps=STEPS,
        events=textwrap.indent(events or "pass", " " * 8),
        after=textwrap.indent("\n".join(after) or "pass", " " * 8),
    )
    return TrainingProgram(seed, source)


def _step(rng: random.Random) -> list[str]:
    """Return the lines of a step."""
    zero = rng.choice(("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"))
    last = rng.random() < 0.2
    form = rng.choice(("plain",) * 4 + ("clip", "clip value", "accumulate", "scaler"))
    lines = [] if last else [zero]
    if form == "accumulate":
        lines += ["(0.5 * loss_of(x[:2], t[:2])).backward()", "loss = 0.5 * loss_of(x[2:], t[2:])"]
    else:
        lines.append("loss = loss_of(x, t)")
    lines.append("scaler.scale(loss).backward()" if form == "scaler" else "loss.backward()")
    if form == "clip":
        lines.append("nn.utils.clip_grad_norm_(model.parameters(), 0.1)")
    if form == "clip value":
        lines.append("nn.utils.clip_grad_value_(model.parameters(), 0.05)")
    if form == "scaler":
        lines += ["scaler.step(optimizer)", "scaler.update()"]
    else:
        lines.append("update()")
    return [*lines, zero] if last else lines


def _update(rng: random.Random) -> str:
    """Return the lines of an update; its choices leave the others of a seed as they were."""
    if rng.random() < 0.7:
        return "optimizer.step()"
    lines = [rng.choice(UPDATES), rng.choice(FORGETS)]
    head = "with torch.no_grad():\n    for each in model.parameters():\n"
    within = f"if each.grad is not None:\n    {lines[0]}\n    {lines[1]}"
    return head + textwrap.indent(within, " " * 8)


def problems(program: TrainingProgram) -> list[str]:
    """Return where a program's compiled forms differ from eager; torch's own are left out."""
    eager = program.run(lambda f: f)
    found: list[str] = []
    for name, compiler in WAYS.items():
        torch._dynamo.reset()
        found += [f"{name}: {each}" for each in compared(program, eager, program.run(compiler))]
    if not found:
        return found
    known: set[str] = set()
    for backend in BASELINES:
        torch._dynamo.reset()
        theirs = program.run(_by(backend))
        known |= {_kind(each) for each in compared(program, eager, theirs)}
    return [each for each in found if _kind(each.split(": ", 1)[1]) not in known]


def _by(backend: str) -> Callable[..., Any]:
    return lambda f: torch.compile(f, backend=backend)


def _kind(problem: str) -> str:
    """Return which value of which step differs."""
    return problem.split(" = ", maxsplit=1)[0]


def compared(
    program: TrainingProgram, eager: Sequence[tuple[str, Any]], mine: Sequence[tuple[str, Any]]
) -> list[str]:
    """Return where a run differs from eager's, of the first step that does."""
    references: list[dict[str, Any]] = []
    found: list[str] = []
    for (what, want), (name, got) in zip(eager, mine, strict=False):
        if found and what.split(":")[0] != found[0].split(":")[0]:
            break  # all that follows is computed from it
        if isinstance(want, Exception) and isinstance(got, type(want)):
            return found
        if name != what:
            return [*found, f"{what} = {name} {got if isinstance(got, Exception) else ''}"[:400]]
        if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
            if type(want) is not type(got) or (
                want != got and not (isinstance(want, float) and abs(want - got) < 1e-6)
            ):
                found.append(f"{what} = {got} instead of {want}")
            continue
        texts = differences(want, got, None, [], torch.float32)
        if texts:
            references = references or _references(program)
            exact, *near = [each.get(what) for each in references]
            near = [each for each in near if isinstance(each, torch.Tensor)]
            texts = differences(want, got, exact, near, torch.float32)
        found += [f"{what} = {text}" for text in texts]
    if not found and len(eager) != len(mine):
        raised = next((str(v)[:300] for n, v in (*eager, *mine) if n == "raised"), "")
        found.append(f"end = {len(mine)} notes instead of {len(eager)} {raised}")
    return found


def _references(program: TrainingProgram) -> list[dict[str, Any]]:
    """Return runs of eager to compare with: the first is exact, others begin a little elsewhere.

    Some of these are in float32. Of a bias before a batch norm the gradient is 0, and in float32
    what sums round away: an optimizer that divides by its size makes steps of that noise, which in
    float64 go another way. Only runs in float32 tell how far apart such steps are.
    """
    part = NUDGE[torch.float32]
    wide = [(torch.float64, nudge) for nudge in (0.0, part, -part)]
    noisy = [(torch.float32, sign * part * n) for n in range(1, NOISY + 1) for sign in (1, -1)]
    runs = (program.run(lambda f: f, dtype=dtype, nudge=n) for dtype, n in (*wide, *noisy))
    return [dict(run) for run in runs]


def repro(program: TrainingProgram, found: Sequence[str], folder: Path = FOLDER) -> Path:
    """Write a file that prints what eager and fusec note; it needs torch and fusec alone."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"training_{program.seed}.py"
    problem = " ".join(found[0].split())[:200].replace('"', "'")
    head = _PRELUDE.format(seed=program.seed, problem=problem)
    path.write_text(head + "\n" + _NOTE + program.source + _MAIN)
    return path


__all__ = ["TrainingProgram", "compared", "problems", "repro", "write"]
