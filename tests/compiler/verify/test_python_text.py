"""What a kernel that is a file of Python must not have: read from its text alone."""

from __future__ import annotations

import pytest

from fusec.targets.triton.target import Triton
from fusec.verify.static import python_text
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
    "an attribute by a pattern": (
        "    match launch:\n        case f(__globals__=g):\n            g.clear()\n",
        "names __globals__",
    ),
    "torch's random numbers": ("    x.new_empty(3).normal_()\n", "names normal_: it draws from"),
    "hooks of a function of the language's": (
        "    tl.sum.add_pre_run_hook(print)\n",
        "names add_pre_run_hook",
    ),
    "what Python calls by itself": (
        "    class A:\n        def __del__(self):\n            pass\n",
        "has __del__",
    ),
    "the same by another name first": (
        "    class A:\n        __del__ = print\n",
        "has __del__",
    ),
    "the same in a string": (
        "    type('A', (), {'__del__': print})()\n",
        "names __del__",
    ),
    "another number in each process": ("    hash('a')\n", "names hash: it reaches"),
    "a call without end": ("    for _ in iter(int, 1):\n        pass\n", "has an `iter`"),
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
    line = text.splitlines()[found.line - 1]
    assert line in code.splitlines()
    assert line not in vk.TRITON.splitlines()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("tl.random.tl.os.abort()", "calls triton.language.random"),
        ("m = tl.random; m.tl.os.abort()", "calls triton.language.random"),
        ("import triton.language.random as r; r.tl.os.abort()", "calls triton.language.random"),
        ("from triton.language import random as r; r.tl.os.abort()", "calls triton.language.rand"),
        ("tl.extra.cuda.utils.core.os.abort()", "calls triton.language.extra.cuda.utils"),
        ("tl.sum.run()", "names triton.language.sum.run"),
    ],
)
def test_modules_that_a_module_has_imported(code, said):
    pytest.importorskip("triton")
    found = problem(vk.TRITON.replace(LAUNCH, f"{LAUNCH}    {code}\n"))
    assert found is not None
    assert found.reason.startswith(said)


def test_how_a_file_was_started_may_be_asked():
    text = vk.TRITON + "if __name__ == '__main__':\n    pass\n"
    assert problem(text) is None


def test_all_of_a_module():
    found = problem(f"from typing import *\n{vk.TRITON}")
    assert found is not None
    assert (found.line, found.reason[:22]) == (1, "imports all of typing:")


def test_a_module_of_python_that_has_imported_others():
    text = vk.TRITON.replace("import torch\n", "import torch\nimport typing\n")
    code = "    typing.operator.attrgetter('imag')(x)\n"
    found = problem(text.replace(LAUNCH, LAUNCH + code))
    assert found is not None
    assert found.reason.startswith("calls typing.operator: it is none of what")


@pytest.mark.parametrize(
    "text",
    ["x = " + "-" * 200_000 + "1\n", "x = a" + ".b" * 100_000 + "\n", "x = 1" + "+1" * 50_000],
)
def test_what_is_nested_deeper_than_python_can_read(text):
    found = problem(vk.TRITON + text)
    assert found is None or found.stage == "compile"
    verdict = vk.check(vk.TRITON + text, target="triton", n=64, timed=False, kinds=())
    assert (verdict.ok, verdict.stage) == (False, "compile")


@pytest.mark.parametrize(
    "line", ["def f(a, a): pass", "nonlocal x", "from __future__ import braces"]
)
def test_what_python_finds_later_than_in_reading(line):
    assert problem(f"{line}\n{vk.TRITON}") is None  # the target says what is wrong with that


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


@pytest.mark.parametrize(
    "path", sorted((TESTS / "golden" / "triton").glob("*.py")), ids=lambda path: path.stem
)
def test_generated_kernels_have_none_of_it(path):
    assert problem(path.read_text()) is None


def test_a_check_refuses_it_unless_it_is_trusted():
    pytest.importorskip("triton")
    text = vk.TRITON.replace(LAUNCH, LAUNCH + "    x.harmless = 1\n")
    verdict = vk.check(text, target="triton", n=64, timed=False, kinds=())
    assert (verdict.ok, verdict.stage) == (False, "unsafe")
    assert vk.check(text, target="triton", n=64, timed=False, kinds=(), trust=True).ok
