"""A result that was timed too early changes in place, and its panel with it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from lab import MOST, OUTPUT, Notebook
from playwright.sync_api import expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(MOST),
]

CELLS = [
    "%load_ext fuselab\n"
    "import torch\n"
    "from fusec.call import native\n"
    "built, asked = native.await_types, False\n"
    "native.await_types = lambda seconds: asked and built(seconds)\n"
    "x = torch.randn(1000)",
    "%%fuse --name early --panel\ny = ((x + 1).relu() * x).sigmoid()",
    "asked = True",
]
AWAITED = "timed again as soon as it is"
COMPARED = re.compile(r"\d× (faster|slower)|as fast|the same")


def test_a_result_and_its_panel_change_in_place(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook("early.ipynb", CELLS, height=1600)
    notebook.run(0)
    outputs = notebook.run(1)
    expect(outputs.get_by_text(AWAITED)).to_have_count(2)  # in the result, and above the panel
    notebook.shoot("late-figures-before")
    notebook.run(2)
    expect(outputs.get_by_text(AWAITED)).to_have_count(0)
    shown = notebook.page.locator(OUTPUT).filter(has_text="early")
    expect(shown.first).to_contain_text(COMPARED)
    notebook.shoot("late-figures-after")
    texts = " ".join(outputs.all_inner_texts())
    # One figure, wherever it stands.
    assert len(set(re.findall(r"fused ([\d.]+ .s)", texts))) == 1
    assert not re.search("timed too early|run the cell again", texts)
