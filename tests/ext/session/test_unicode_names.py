"""Names outside of ASCII: a kernel and a verdict have them as the cell does."""

from __future__ import annotations

import torch

from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.session import Session


def test_greek_and_chinese_names_stay():
    torch._dynamo.reset()
    space = {"torch": torch, "größe": torch.rand(8, 64), "λ": torch.rand(64), "数": torch.rand(64)}
    session = Session(space)
    text = "norm = größe * λ\nβ = norm.softmax(-1)\nσ_größer = β + 数"
    made, program = session.prepare(text, CellOptions(), Frontend())
    session.run(made, program)
    made.update(seconds=0.02)
    (kernel,) = made.kernels.values()
    names = [argument.name for argument in kernel.signature.arguments]
    assert names == ["größe", "λ", "数", "norm", "β", "σ_größer"]
    assert made.verdict is not None
    assert [output.name for output in made.verdict.outputs] == ["norm", "β", "σ_größer"]
