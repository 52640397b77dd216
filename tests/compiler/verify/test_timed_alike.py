"""An edit that changes nothing is timed as the generated kernel is, down to the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fusec.verify.isolation import endurance
from support import handwritten_kernels as vk


def test_both_are_called_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def interleave(calls: dict[str, Callable[[], object]], **_: object) -> dict[str, Any]:
        seen.update(calls)
        return {}

    monkeypatch.setattr(endurance, "interleave", interleave)
    counted = endurance._Counted(lambda: 0, None, lambda: True)
    endurance._timed({"copied": 0, "seconds": 0.1}, counted, lambda: 0)
    assert seen["candidate"].__func__ is seen["generated"].__func__
    seen["generated"]()
    assert counted.calls == 0, "only the edit's own calls count"


@pytest.mark.parametrize("added", ["", "// a comment\n"])
def test_what_is_one_program_takes_one_time(added: str) -> None:
    verdict = vk.check(vk.cpp() + added, kinds=())
    assert verdict.ok, verdict
    assert verdict.timing is not None
    assert verdict.timing == verdict.generated
    assert "as fast as the generated kernel" in verdict.reason


def test_another_program_has_its_own_time() -> None:
    verdict = vk.check(vk.cpp("volatile int kept = 0;\n" + vk.RIGHT), kinds=())
    assert verdict.ok, verdict
    assert verdict.timing != verdict.generated
