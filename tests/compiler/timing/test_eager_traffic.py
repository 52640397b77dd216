"""The bytes that eager moves: tables are read where something is looked up, all else whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from fusec.timing.eager_traffic import EagerTraffic

LINES, ROWS, WIDTH = 64, 512, 96
TABLE, GIVEN = 4 * LINES * WIDTH, 4 * ROWS * WIDTH
INDICES = 8 * ROWS

table, given = torch.randn(LINES, WIDTH), torch.randn(ROWS, WIDTH)
index = torch.randint(0, LINES, (ROWS,))
few = torch.tensor([3, 5])
MOVED: dict[str, tuple[Callable[[], object], int]] = {
    "looked up": (lambda: given.index_select(0, few), 2 * 2 * 4 * WIDTH + 16),
    "by brackets": (lambda: given[few], 2 * 2 * 4 * WIDTH + 16),
    "an embedding": (lambda: F.embedding(few, given), 2 * 2 * 4 * WIDTH + 16),
    "more than there is": (lambda: table.index_select(0, index), TABLE + INDICES + GIVEN),
    "added at places": (lambda: table.index_add(0, index, given), 2 * TABLE + INDICES + GIVEN),
    "in place": (lambda: table.index_add_(0, index, given), 2 * TABLE + INDICES + GIVEN),
    "put": (lambda: table.index_put((index,), given, True), 2 * TABLE + INDICES + GIVEN),
    "counted": (lambda: torch.bincount(index, minlength=LINES), INDICES + 8 * LINES),
    "summed": (index.sum, INDICES + 8),
}


@pytest.mark.parametrize("name", MOVED)
def test_what_an_operator_moves(name: str) -> None:
    call, wanted = MOVED[name]
    with EagerTraffic() as traffic:
        call()
    assert traffic.bytes == wanted
