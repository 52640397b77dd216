"""What the tests of the panel share: a cell whose compiler is a script, and its panel."""

from __future__ import annotations

from typing import Any

import pytest

from support.panel_fake import FakeCell
from support.panel_use import opened


@pytest.fixture
def cell() -> FakeCell:
    return FakeCell()


@pytest.fixture
def bench(cell: FakeCell) -> Any:
    panel = opened(cell)
    panel._repr_mimebundle_()
    assert panel.wait(20)
    yield panel
    panel.close()
