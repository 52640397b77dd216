"""What the Triton target hands on to its parts: whom, and everything it was given."""

from __future__ import annotations

import importlib
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from fusec.targets.triton.target import TARGET
from fusec.targets.triton.toolchain import pool

pytest.importorskip("triton")

# A method, the module and the function behind it, how many arguments it has, and what it returns:
# the function's result, or something of its own.
OWN = object()
PARTS: list[tuple[str, str, str, int, object]] = [
    ("check", "toolchain.cross_compile", "check", 3, None),
    ("programs", "toolchain.starts", "programs", 4, OWN),
    ("build_for", "toolchain.side_by_side", "build_for", 2, OWN),
    ("workers", "toolchain.pool", "worker_count", 0, OWN),
    ("multiply_in_place", "multiply", "multiply_in_place", 2, True),
    ("pack", "toolchain.packed_kernel", "pack", 2, OWN),
    ("precompile", "toolchain.pool", "compile_now", 3, None),
    ("prepare", "toolchain.pool", "start", 0, None),
    ("entry_problem", "toolchain.entry", "check_entry", 3, OWN),
    ("gpu_starts", "toolchain.resources", "gpu_starts", 3, OWN),
    ("starts_for", "toolchain.noted_starts", "noted_starts", 3, OWN),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part[0])
def test_parts(part: tuple[str, str, str, int, object], monkeypatch: pytest.MonkeyPatch) -> None:
    method, module, name, count, returned = part
    given = tuple(object() for _ in range(count))
    asked: list[tuple[object, ...]] = []

    def noted(*args: object) -> object:
        asked.append(args)
        return OWN

    monkeypatch.setattr(importlib.import_module(f"fusec.targets.triton.{module}"), name, noted)
    assert getattr(TARGET, method)(*given) is returned
    assert asked == [given]


def test_a_kernel_is_compiled_as_its_source_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(pool, "prepare", lambda *given: asked.append(given))
    source: Any = SimpleNamespace(text="text", signature="signature", entry="entry")
    TARGET.begin(source)
    assert asked == [("text", "signature", "entry")]


def test_a_stage_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.targets.triton.toolchain import cross_compile

    def artifacts(*given: Any, **more: Any) -> dict[str, str]:
        assert given == ("text", "signature")
        assert more == {"gpu": "sm_90", "kinds": ("ptx",)}
        return {"ptx": "stage", "cubin": "other"}

    monkeypatch.setattr(cross_compile, "artifacts", artifacts)
    signature: Any = "signature"
    assert TARGET.artifact("text", signature, "ptx", "sm_90") == "stage"


def test_products_are_matched_before_tiles_are_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fusec.targets.triton.plan import choices_matmul

    monkeypatch.setattr(choices_matmul, "match_product", lambda *given: ("product", *given))
    monkeypatch.setattr(choices_matmul, "candidates", lambda product: ["tiles", *product])
    body: Any = "body"
    assert TARGET.product_candidates(body, {}) == ["tiles", "product", "body", {}]


def test_products_of_groups_and_a_version() -> None:
    groups = TARGET.groups()
    assert groups is not None
    assert groups.__name__ == "fusec.targets.triton.grouped_products"
    assert TARGET.version()[0].isdigit()


# -- processes that compile -------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["done", "no such GPU"])
@pytest.mark.parametrize("constants", [{(0,): 64, (1,): None, (2,): "add", (3,): True}, {}])
def test_a_worker_is_told_of_a_source(
    answer: str,
    constants: dict[tuple[int], object],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its function by name, with the file that it is in; a failure does no harm, and is noted."""
    sent: list[dict[str, Any]] = []
    workers = SimpleNamespace(submit=lambda request: sent.append(request) or "ticket")
    monkeypatch.setattr(pool, "_current", lambda: workers)
    monkeypatch.setattr(pool, "_answer", lambda ticket: {"ticket": answer}[ticket])
    monkeypatch.setattr(pool, "_request", lambda file, target, kernels: {"file": file,
                        "target": target, "kernels": kernels})  # fmt: skip

    def kernel() -> None: ...

    function = SimpleNamespace(fn=kernel, __name__="kernel")
    source = SimpleNamespace(fn=function, constants=constants, signature={}, attrs={})
    target: Any = "sm_90"
    with caplog.at_level(logging.DEBUG, logger=pool._log.name):
        pool.compile_source(source, {"num_warps": 4}, target, {"helper": function})
    (request,) = sent
    assert request["file"] == __file__
    assert request["target"] == "sm_90"
    assert request["needs"] == {"helper": [__file__, "kernel"]}
    (described,) = request["kernels"]
    assert described["function"] == "kernel"
    assert described["constants"] == [[place[0], value] for place, value in constants.items()]
    assert [r.getMessage() for r in caplog.records if r.name == pool._log.name] == (
        [] if answer == "done" else [f"kernel: {answer}"]
    )


def test_what_cannot_be_told_is_compiled_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(pool, "_current", lambda: SimpleNamespace(submit=sent.append))
    function = SimpleNamespace(fn=test_parts, __name__="kernel")
    source = SimpleNamespace(fn=function, constants={(0,): object()}, signature={}, attrs={})
    target: Any = "sm_90"
    pool.compile_source(source, {}, target)
    monkeypatch.setattr(pool, "_current", lambda: None)
    source.constants = {}
    pool.compile_source(source, {}, target)
    assert not sent
