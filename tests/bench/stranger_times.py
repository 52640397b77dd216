"""How long a stranger waits, in a real kernel: ``python tests/bench/stranger_times.py``.

The first line of a cell, the first completion, checks of a Triton kernel without a GPU, and endless
edits: from the request until the answer is there, kernel and messages included.
"""

from __future__ import annotations

import secrets
import statistics
import sys
import time
from collections.abc import Callable
from queue import Empty
from typing import Any

from jupyter_client.manager import start_new_kernel

SETUP = (
    "import fuselab, torch, torch.nn.functional as F\n"
    "x, w = torch.randn(1024, 1024), torch.randn(1024)"
)
TRITON = "%%fuse -q --name tri --target triton --out y\ny = F.gelu(x[:512, :768]) * w[:768]"
CHECK = """\
import time
kernel = fuselab.kernels["tri"]
for n in range(5):
    text = kernel.source.replace("y = product * w", f"y = (product * w) * 1.0  # {n}")
    began = time.perf_counter()
    verdict = kernel.check(text)
    assert verdict.ok and text != kernel.source, verdict
    print("took", time.perf_counter() - began)
"""
ENDLESS = """\
import time
kernel = fuselab.kernels[{name!r}]
at = kernel.source.index({after!r}) + len({after!r})
text = kernel.source[:at] + {loop!r} + kernel.source[at:]
began = time.perf_counter()
verdict = kernel.check(text)
assert verdict.stage == "timeout", verdict
print("took", time.perf_counter() - began)
"""


class Stranger:
    """A kernel, and somebody who waits for it."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(self, code: str, seen: Callable[[str], None] = lambda _: None) -> str:
        """Run a cell; ``seen`` is told each text when it arrives. Returns what was printed."""
        ask, printed = self.client.execute(code), ""
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=120)
            except Empty:
                raise RuntimeError(f"no answer to {code!r}") from None
            if message["parent_header"].get("msg_id") != ask:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            if kind == "stream":
                printed += content["text"]
            if kind in ("display_data", "update_display_data"):
                seen(content["data"].get("text/plain", ""))
            if kind == "status" and content["execution_state"] == "idle":
                return printed

    def lines(self, code: str) -> list[tuple[str, float]]:
        """Run a cell; return each line of progress with the seconds after which it was there."""
        found: list[tuple[str, float]] = []
        began = time.monotonic()

        def seen(text: str) -> None:
            if text.endswith("\N{HORIZONTAL ELLIPSIS}"):
                found.append((text.split(": ")[1], time.monotonic() - began))

        self.run(code, seen)
        return found

    def complete(self, code: str) -> float:
        """Return the seconds until there is a list of completions."""
        began = time.monotonic()
        reply: Any = self.client.complete(code, len(code), reply=True, timeout=60)
        assert reply["content"]["matches"]
        return time.monotonic() - began

    def took(self, code: str) -> list[float]:
        """Run a cell that prints what it took; return the seconds."""
        return [float(line.split()[1]) for line in self.run(code).splitlines()]


def main() -> int:
    """Print the table."""
    stranger = Stranger()
    try:
        stranger.run(SETUP)
        stranger.run("%load_ext fuselab")
        print(f"completion of options, the first: {stranger.complete('%%fuse --'):.3f} s")
        print(f"completion of a value: {stranger.complete('%%fuse --target '):.3f} s")
        for title, option in (("", ""), ("again", ""), ("tuned", " --tune 2")):
            number = secrets.randbelow(100_000)  # which no cache has
            code = f"%%fuse --name c{number}{option}\nq = torch.tanh(x) * w + {number}"
            said = ", ".join(f"{line} {at:.2f}" for line, at in stranger.lines(code))
            print(f"first lines {title}: {said}")
        name = f"c{number}"
        loop = "\n    for (volatile int i = 0;; ) i = i + 1;"
        cases = [(name, ")\n{", loop)]
        stranger.run(TRITON)
        checks = stranger.took(CHECK)
        later = statistics.median(checks[1:])
        print(f"a Triton check without a GPU: {checks[0]:.2f} s the first, {later:.2f} s later")
        spin = "    spin = program\n    while spin > -1:\n        spin += 0\n"
        cases.append(("tri", "program = tl.program_id(0)\n", spin))
        for kernel, after, text in cases:
            seconds = stranger.took(ENDLESS.format(name=kernel, after=after, loop=text))[0]
            print(f"an endless edit of {kernel}: refused after {seconds:.2f} s")
    finally:
        stranger.client.stop_channels()
        stranger.manager.shutdown_kernel(now=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
