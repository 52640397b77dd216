"""One measurement of compile time in a process of its own; ``compile_time.py`` starts it.

``python tests/bench/compile_scenes.py SCENE COMPILER`` prints one line of JSON: seconds by name,
and the stages where there are any.  Caches are where the environment says: empty for a cold figure.
What is imported before the clock starts is torch, and what the scene's model is made of.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

STARTED = time.perf_counter()
import torch  # noqa: E402

TORCH_SECONDS = time.perf_counter() - STARTED

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

MARK = "compile-time "
# What a user takes at least to write the first cell after %load_ext.
TYPING = 5.0
FIRST = "z = F.layer_norm(F.gelu(x * w + b), (x.shape[-1],), w, b)"
FURTHER = (
    "p = torch.softmax(x * 0.5 + b, -1)",
    "q = torch.tanh(x) * torch.sigmoid(x * w) + x.abs().sqrt()",
    "r = (x - x.mean(-1, keepdim=True)).square().sum(-1)",
)
Times = dict[str, Any]


@contextlib.contextmanager
def clock(times: Times, name: str) -> Iterator[None]:
    """Add the seconds that the block takes to ``times``."""
    started = time.perf_counter()
    yield
    times[name] = time.perf_counter() - started


def inputs() -> dict[str, torch.Tensor]:
    """Return the names that the cells read."""
    torch.manual_seed(0)
    return {"x": torch.randn(512, 1024), "w": torch.randn(1024), "b": torch.randn(1024)}


def function(line: str) -> Callable[..., torch.Tensor]:
    """Return a cell's line as a function in a file of its own, as TorchDynamo wants it."""
    import linecache

    name = line.partition(" ")[0]
    file = f"<bench {name}>"
    text = f"def cell(x, w, b):\n    {line}\n    return {name}\n"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(text, file, "exec"), namespace)
    made: Callable[..., torch.Tensor] = namespace["cell"]
    return made


# --- cells -------------------------------------------------------------------------------


def shell() -> Any:
    """Return an IPython shell that makes every form of a result, as a notebook's kernel does."""
    from IPython.core.history import HistoryManager
    from IPython.core.interactiveshell import InteractiveShell

    HistoryManager.enabled = False
    made = InteractiveShell.instance()
    made.display_pub.publish = lambda *_, **__: None
    made.user_ns.update(torch=torch, F=F, nn=nn, **inputs())
    return made


def run(ip: Any, source: str) -> None:
    """Run a cell, with what it prints put aside; raise what it raises."""
    with contextlib.redirect_stdout(io.StringIO()):
        ip.run_cell(source, store_history=True).raise_error()


def cells(magic: str, typing: float = TYPING) -> Times:
    """The first one-kernel cell and further ones, in a shell."""
    times: Times = {}
    ip = shell()
    with clock(times, "load_ext"):
        run(ip, "%load_ext fuselab")
    time.sleep(typing)
    with clock(times, "first"):
        run(ip, f"{magic}\n{FIRST}")
    for number, line in enumerate(FURTHER):
        with clock(times, f"further {number}"):
            run(ip, f"{magic}\n{line}")
    import fuselab

    fallbacks = [reason for cell in fuselab.cells.values() for reason in cell.fallbacks]
    if fallbacks:
        raise SystemExit(f"runs in eager: {fallbacks}")
    stages = [stages_of(cell.graphs) for cell in fuselab.cells.values()]
    times["stages first"], times["stages further"] = stages[0], stages[1]
    check_kernels(fuselab.kernels, len(FURTHER) + 1)
    return times


def quiet_cells() -> Times:
    """Cells whose value is wanted and nothing shown."""
    return cells("%%fuse -q")


def cells_at_once() -> Times:
    """The same where all cells run one after another, with no time in between."""
    return cells("%%fuse -q", typing=0.0)


def shown_cells() -> Times:
    """Cells with everything that a result has: checked, timed, drawn."""
    return cells("%%fuse")


def peer_cells() -> Times:
    """What the cells compute, as functions under TorchInductor."""
    times: Times = {"load_ext": 0.0}
    given = inputs()
    for number, line in enumerate((FIRST, *FURTHER)):
        with clock(times, "first" if number == 0 else f"further {number - 1}"):
            torch.compile(function(line))(**given)
    return times


def edits() -> Times:
    """A one-kernel cell, then edits of its kernel: checked, put in use, timed, shown."""
    times: Times = {}
    ip = shell()
    run(ip, "%load_ext fuselab")
    run(ip, f"%%fuse\n{FIRST}")
    import fuselab

    (name,) = fuselab.kernels
    text = fuselab.kernels[name].source
    for number in range(4):
        # another text each time: edits that were built before would be found in the store
        edited = text.replace("GRAIN = ", f"GRAIN = {number + 1}", 1)
        edited = f"// edit {number} {time.time()}\n{edited if edited != text else text}"
        with clock(times, "edit first" if number == 0 else f"edit {number}"):
            run(ip, f"%%kernel {name}\n{edited}")
        kernel = fuselab.kernels[name]
        if not kernel.edited or kernel.last_verdict is None or kernel.last_verdict.timing is None:
            raise SystemExit(f"the edit was not put in use: {kernel.last_verdict}")
    return times


# --- models ------------------------------------------------------------------------------


def next_word_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return how badly each position foretells the next word."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Block(nn.Module):
    """A GPT-2 block, for where ``transformers`` is not installed."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads)
        future = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, steps, width))
        y = self.up(self.norm2(x))
        y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y.pow(3))))
        return x + self.down(y)


class Written(nn.Module):
    """GPT-2 written out: 12 blocks; the loss of the next word, and the logits."""

    def __init__(self, width: int, heads: int, words: int, steps: int, layers: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(steps, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return next_word_loss(logits, ids), logits


class Published(nn.Module):
    """The same from ``transformers``, whose Python TorchDynamo has longer to read."""

    def __init__(self, width: int, heads: int, words: int, steps: int) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            n_embd=width,
            n_head=heads,
            vocab_size=words,
            n_positions=steps,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(input_ids=ids).logits
        return next_word_loss(logits, ids), logits


def gpt2(written: bool) -> tuple[nn.Module, torch.Tensor]:
    """Return GPT-2's twelve layers, narrow: what compiles is the same, what runs is quick."""
    torch.manual_seed(0)
    if not written:
        with contextlib.suppress(ImportError):
            return Published(192, 4, 2048, 128), torch.randint(0, 2048, (2, 96))
    return Written(192, 4, 2048, 128), torch.randint(0, 2048, (2, 96))


def model(compiler: str, *, train: bool = False, written: bool = False) -> Times:
    """GPT-2's forward or a training step: first call of all, and what eager says of the result."""
    times: Times = {}
    module, ids = gpt2(written)
    module.train(train).requires_grad_(train)
    for each in module.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0  # compared with eager below

    def step(call: Callable[..., Any]) -> torch.Tensor:
        loss: torch.Tensor = call(ids)[0]
        if train:
            loss.backward()
        return loss.detach()

    expected = step(module)
    slopes = [p.grad.clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad()
    with clock(times, "first"):
        with clock(times, "import"):
            if compiler == "fusec":
                import fusec

                compiled: Any = fusec.compile(module)
            else:
                compiled = torch.compile(module)
        found = step(compiled)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    for mine, slope in zip(
        [p.grad for p in module.parameters() if p.grad is not None], slopes, strict=True
    ):
        torch.testing.assert_close(mine, slope, rtol=1e-3, atol=1e-3)
    if compiler == "fusec":
        times["stages first"] = stages_of(compiled.graphs)
        times["kernels"] = len(compiled.kernels)
        check_kernels(compiled.kernels, 1)
        if compiled.fallbacks:
            raise SystemExit(f"runs in eager: {compiled.fallbacks}")
    return times


def stages_of(graphs: Any) -> dict[str, float]:
    """Return the seconds of each stage over all graphs."""
    total: dict[str, float] = {}
    for graph in graphs:
        for stage in graph.stages:
            total[stage.name] = total.get(stage.name, 0.0) + stage.seconds
    return total


def check_kernels(kernels: Any, least: int) -> None:
    """Refuse to report the time of a compilation that did nothing."""
    if len(kernels) < least:
        raise SystemExit(f"only {len(kernels)} kernels came of it: {list(kernels)}")


SCENES: dict[tuple[str, str], Callable[[], Times]] = {
    ("cell", "fusec"): quiet_cells,
    ("cell", "inductor"): peer_cells,
    ("at-once", "fusec"): cells_at_once,
    ("shown", "fusec"): shown_cells,
    ("edit", "fusec"): edits,
    ("written", "fusec"): lambda: model("fusec", written=True),
    ("written", "inductor"): lambda: model("inductor", written=True),
    ("forward", "fusec"): lambda: model("fusec"),
    ("forward", "inductor"): lambda: model("inductor"),
    ("training", "fusec"): lambda: model("fusec", train=True),
    ("training", "inductor"): lambda: model("inductor", train=True),
}


if __name__ == "__main__":
    found = SCENES[sys.argv[1], sys.argv[2]]()
    found["torch"] = TORCH_SECONDS
    print(MARK + json.dumps(found), flush=True)
