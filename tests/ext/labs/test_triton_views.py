"""What a student sees of a Triton kernel: what its programs touch, and its machine code."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

from fusec.errors import CompileError
from fuselab.errors import FuselabError
from fuselab.labs import machine_code, programs
from support.triton_cheats import CHEATS, RIGHT

pytest.importorskip("triton")


def defined(text: str) -> dict[str, Any]:
    """Return what a cell with the text defines."""
    name = f"<cell {hash(text)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {}
    exec(compile(text, name, "exec"), space)
    return space


def test_programs_of_a_right_kernel() -> None:
    space = defined(RIGHT)
    names = set(space)
    x, out = torch.randn(40), torch.zeros(40)
    shown = programs(space["double"], x, out)
    assert torch.equal(out, 2 * x + 1)
    assert shown.title == (
        "3 programs in 1 start: 160 bytes loaded, 160 stored, nothing out of bounds"
    )
    assert "load x[32:40]     8 masked" in str(shown)
    assert set(space) == names, "the interpreter leaves no names behind"
    assert type(space["kernel"]).__name__ == "JITFunction"
    again = programs(space["double"], x, out)
    assert str(again) == str(shown)


def test_what_lies_outside_is_shown_and_not_touched() -> None:
    space = defined(CHEATS["no mask on the store"][0])
    whole = torch.arange(64.0)
    out = whole[:40].clone()
    shown = programs(space["double"], torch.randn(40), out)
    assert [each.problem for each in shown.outside] == [
        "program 2 stores to out[40:48], but out has 40 elements: mask the lanes that are beyond it"
    ]
    assert "1 out of bounds" in shown.title
    page = shown._repr_mimebundle_()["text/html"]
    assert "[40:48] is outside: out has 40 elements" in page
    assert "color: #b42318" in page


def test_what_a_mask_keeps_away_is_undefined() -> None:
    space = defined(CHEATS["what is masked is used"][0])
    out = torch.zeros(40)
    programs(space["double"], torch.randn(40), out)
    assert out[:32].isfinite().all()
    assert out[32:].isnan().all()


def test_machine_code_stands_beside_its_lines() -> None:
    space = defined(RIGHT)
    code = machine_code(space["double"], torch.empty(40), torch.empty(40))
    by_line = {each.text.strip(): each for each in code.lines}
    load = by_line["v = tl.load(x + i, mask=i < n)"]
    assert any("ld.global" in text for text in load.ptx)
    assert any("LDG" in text for text in load.sass)
    store = by_line["tl.store(out + i, 2 * v + 1, mask=i < n)"]
    assert any("STG" in text for text in store.sass)
    assert "ld.global.b32" in code.ptx
    assert str(code).index("tl.load") < str(code).index("LDG") < str(code).index("STG")
    assert ">PTX</th>" in code._repr_mimebundle_()["text/html"]


def test_what_a_sum_becomes_stands_beside_the_sum() -> None:
    """``tl.sum`` is a function in a file of Triton's own, with lines of its own."""
    summed = RIGHT.replace("    tl.store", "    s = tl.sum(v, 0)\n    tl.store").replace(
        "2 * v", "s * v"
    )
    given = torch.empty(40), torch.empty(40)
    # The second one is Triton's cache's: its file has the first cell's name.
    _, code = (machine_code(defined(summed + end)["double"], *given) for end in ("", "# again\n"))
    by_line = {each.text.strip(): each for each in code.lines}
    sums = by_line["s = tl.sum(v, 0)"]
    assert any("shfl" in text for text in sums.ptx)
    assert any("SHFL" in text for text in sums.sass)
    others = [each for text, each in by_line.items() if "tl.sum" not in text]
    assert not any("SHFL" in text for each in others for text in each.sass)


def test_mistakes_are_said() -> None:
    space = defined(CHEATS["refused by Triton"][0])
    with pytest.raises(CompileError, match="power of 2"):
        programs(space["double"], torch.randn(4), torch.empty(4))
    with pytest.raises(FuselabError, match="takes 2 tensors, not 1"):
        programs(space["double"], torch.randn(4))
    idle = defined(CHEATS["no kernel is started"][0])
    with pytest.raises(FuselabError, match="nothing was started"):
        programs(idle["double"], torch.randn(4), torch.empty(4))
