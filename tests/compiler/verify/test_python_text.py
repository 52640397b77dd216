"""What a kernel that is a file of Python must not have: read from its text alone."""

from __future__ import annotations

import pytest

from fusec.targets.triton.target import Triton
from fusec.verify import python_text
from fusec.verify.words import Finding
from support import handwritten_kernels as vk
from support.paths import TESTS

LAUNCH = "def launch(x, out, n):\n"
REFUSED = {
    "seeds": ("    torch.manual_seed(0)\n", "calls torch.manual_seed"),
    "gradients": ("    torch.set_grad_enabled(False)\n", "calls torch.set_grad_enabled"),
    "a setting": ("    torch.backends.cudnn.benchmark = True\n", "calls torch.backends"),
    "an attribute": ("    x.requires_grad = True\n", "changes x.requires_grad"),
    "code": ("    exec('1')\n", "names exec"),
    "a file": ("    open('f', 'w')\n", "names open"),
    "classes": ("    print(().__class__)\n", "names __class__"),
    "a global": ("    global SEEN\n    SEEN = x\n", "keeps `SEEN` from call to call"),
    "another package": ("    import os.path\n", "imports os.path, where a kernel file may import"),
    "torch by another name": (
        "    import torch as t; t.save({}, 'f')\n",
        "calls torch.save: it is none of what a kernel may ask of torch",
    ),
    "a module of Triton's": (
        "    triton.runtime.cache.os.system('true')\n",
        "calls triton.runtime: it is none of what a kernel may ask of triton",
    ),
    "a module that Triton has imported": (
        "    from triton.runtime.cache import os\n",
        "calls triton.runtime",
    ),
    "a module of the language's": (
        "    tl.core.builtins.exec('1')\n",
        "calls triton.language.core",
    ),
    "a module by itself": ("    f = [torch][0]\n", "hands torch on"),
    "getattr": ("    getattr(x, 'z' + 'ero_')()\n", "names getattr"),
    "all that Python has": ("    __builtins__['eval']('1')\n", "names __builtins__"),
    "its own name for it": ("    vars = 1; (lambda: globals())()\n", "names globals"),
    "another tensor": ("    x.requires_grad_()\n", "names requires_grad_"),
    "a file by numpy": ("    x.numpy().tofile('f')\n", "names numpy"),
    "a frame": ("    (1 for _ in x).gi_frame.f_back\n", "names f_back"),
    "a private name": ("    x._base.zero_()\n", "names _base"),
    "a function's own": ("    launch.count = 1\n", "changes launch.count"),
    "a compiled kernel's own": ("    launch.cache.clear()\n", "names launch.cache"),
    "an attribute in a loop": ("    for tl.cdiv in (1,):\n        pass\n", "changes tl.cdiv"),
    "an attribute among others": ("    a, tl.cdiv = 1, 2\n", "changes tl.cdiv"),
    "a loop": ("    while n:\n        n |= 1\n", "has a `while` outside of its kernels"),
}


def problem(text: str) -> Finding | None:
    return python_text.problem(text, Triton.permitted)


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name):
    code, reason = REFUSED[name]
    text = vk.TRITON.replace(LAUNCH, LAUNCH + code)
    found = problem(text)
    assert found is not None
    assert found.stage == "unsafe"
    assert found.reason.startswith(reason)
    assert found.reason.endswith("say --trust if it has to be there")
    assert text.splitlines()[found.line - 1] == code.splitlines()[0]


@pytest.mark.parametrize(
    "line",
    [
        "KEPT = {}",
        "KEPT: dict = {}",
        "KEPT = list()",
        "KEPT = [None]",
        "KEPT = [[]][0]",
        "KEPT = 1, ([],)",
        "KEPT = torch.zeros(4)",
        "KEPT = iter(range(9))",
        "KEPT = (n for n in (1, 2))",
        "KEPT = lambda k=[]: k",
        "if (KEPT := [1]): pass",
        "if True: KEPT = []",
        "class Kept: n = []",
        "def f(a, b=[]): 1",
        "def f(a, *, b=iter(())): 1",
    ],
)
def test_what_is_kept(line):
    found = problem(vk.TRITON.replace("BLOCK = 128", f"{line}\nBLOCK = 128"))
    assert found is not None
    assert "from call to call" in found.reason
    assert found.line == 5


@pytest.mark.parametrize("kind", ["for KEPT in ([],): pass", "try: pass\nexcept ValueError: pass"])
def test_statements_outside_of_functions(kind):
    found = problem(vk.TRITON.replace("BLOCK = 128", f"{kind}\nBLOCK = 128"))
    assert found is not None
    assert "outside of its functions" in found.reason


def test_a_function_that_another_one_has_made():
    found = problem(vk.TRITON.replace("def launch(", "@(lambda f: f)\ndef launch("))
    assert found is not None
    assert found.reason.startswith("keeps what `lambda f: f` makes of `launch`")


def test_what_a_kernel_may_have():
    assert problem(vk.TRITON) is None
    lines = (
        "    scratch = torch.empty((4, n), dtype=torch.float32, device=x.device)\n"
        "    stream = torch.cuda.Stream()\n    stream.wait_stream(torch.cuda.current_stream())\n"
        "    torch.cuda.current_stream().wait_stream(stream)\n"
        "    sizes = [n, n]\n    sizes[0] = 2\n"
    )
    assert problem(vk.TRITON.replace(LAUNCH, LAUNCH + lines)) is None
    constants = (
        "WIDE = triton.next_power_of_2(100)\nKIND = tl.float32\nSIZES = (1, 2 * WIDE)\n"
        "GRID = lambda meta: (triton.cdiv(100, meta['BLOCK']),)\n"
        "class Sizes:\n    wide = 4\n"
        "def twice(vars, /, id=tl.constexpr(2)):\n    object = vars\n    return object, id\n"
    )
    assert problem(vk.TRITON.replace("BLOCK = 128", f"{constants}BLOCK = 128")) is None
    loop = vk.TRITON.replace(
        "    mask = i < n", "    while n > 100:\n        n -= 1\n    mask = i < n"
    )
    assert problem(loop) is None  # the kernel's own runs where it can be ended
    assert problem("def launch(:") is None  # the target says what is wrong with that


@pytest.mark.parametrize("path", sorted((TESTS / "golden" / "triton").glob("*.py")), ids=str)
def test_generated_kernels_have_none_of_it(path):
    assert problem(path.read_text()) is None


def test_a_check_refuses_it_unless_it_is_trusted():
    pytest.importorskip("triton")
    text = vk.TRITON.replace(LAUNCH, LAUNCH + "    x.harmless = 1\n")
    verdict = vk.check(text, target="triton", n=64, timed=False, kinds=())
    assert (verdict.ok, verdict.stage) == (False, "unsafe")
    assert vk.check(text, target="triton", n=64, timed=False, kinds=(), trust=True).ok
