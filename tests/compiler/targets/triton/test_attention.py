"""Attention as Triton kernels: text, numerics, edits, what stays torch's own."""

from __future__ import annotations

import ast
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention as torch_attention
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import fusec
from fusec.kernel_source import KernelSource
from fusec.machine import MachineFacts, this_machine, using
from fusec.targets.triton import emit
from fusec.targets.triton.toolchain.cross_compile import artifacts, compile_start
from fusec.targets.triton.toolchain.load import load
from fusec.targets.triton.toolchain.starts import gpu_target, launched
from support.attention import MODS, SLOPES, Sizes, attention, causal, gradients, prepare, sources
from support.interpreted import Interpreted
from support.paths import GOLDEN

HALF, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
ODD = Sizes()
DEEP = Sizes(1, 4, 4, 150, 150, 48)
FEW = Sizes(2, 4, 2, 1, 777, 64)


@pytest.fixture(autouse=True)
def _prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(monkeypatch)


def close(own: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result is about as far from the exact one as eager's."""
    same = own.double() == exact
    error, usual = (
        float(torch.where(same, 0, (x.double() - exact).abs()).max()) for x in (own, eager)
    )
    largest = float(torch.where(exact.isfinite(), exact.abs(), 0).max())
    eps = max(torch.finfo(own.dtype).eps, 1e-5 if own.dtype == F32 else 0)
    return error <= 2 * usual + eps * max(largest, 1.0)


# -- the text -----------------------------------------------------------------------------


def with_warpgroups() -> MachineFacts:
    """Return this machine with an H100."""
    machine = this_machine("sm_90")
    return replace(machine, gpu=replace(machine.gpu, there=True))


def texts(name: str) -> KernelSource:
    if name.startswith("attention_warpgroups"):
        sizes = Sizes(2, 4, 2, 512, 512, 128)
        mod = "soft cap" if name.endswith("blocks") else "alibi"
        with using(with_warpgroups()):
            (source,) = sources(attention(mod, sizes, block=128), sizes.tensors(BF16))
        return source
    if name.endswith("_warpgroups"):
        return gradient_sources("causal", Sizes(2, 4, 2, 512, 512, 128))[1 + ("keys" in name)]
    sizes = Sizes(2, 4, 2, 256, 256, 64)
    if name == "attention_few_queries":
        sizes = Sizes(2, 4, 2, 1, 1000, 64)
        (source,) = sources(attention("alibi", sizes), sizes.tensors(BF16))
        return source
    if name == "attention":
        (source,) = sources(attention("causal", sizes, block=128), sizes.tensors(BF16))
        return source
    tensors = tuple(t.requires_grad_() for t in sizes.tensors(BF16))
    _, queries, keys = sources(attention("causal", sizes, block=128), tensors)
    return queries if name == "attention_of_queries" else keys


def gradient_sources(
    mod: str, sizes: Sizes, dtype: torch.dtype = BF16, block: int | tuple[int, int] = 128
) -> list[KernelSource]:
    """Return the kernels of attention and of its gradients on a machine with an H100."""
    tensors = tuple(t.requires_grad_() for t in sizes.tensors(dtype))
    with using(with_warpgroups()):
        return sources(attention(mod, sizes, block=block), tensors)


WARPGROUPS = [
    "attention_warpgroups",
    "attention_warpgroups_blocks",
    "attention_of_queries_warpgroups",
    "attention_of_keys_warpgroups",
]
NAMES = ["attention", "attention_few_queries", "attention_of_queries", "attention_of_keys"]


@pytest.mark.triton
@pytest.mark.parametrize("name", NAMES + WARPGROUPS)
def test_golden_text(name: str) -> None:
    text = texts(name).text
    path = GOLDEN / "triton" / f"{name}.py"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "renew with UPDATE_GOLDEN=1 if the change is meant"
    # an address stays in one piece, deep within loops as well
    assert max(len(each) for each in text.splitlines()) <= 104


def test_what_is_needed_before_and_after_the_second_product_is_computed_once() -> None:
    tensors = tuple(t.requires_grad_() for t in ODD.tensors(F32))
    _, queries, keys = sources(attention("soft cap", ODD), tensors)
    for source in (queries, keys):
        assert source.text.count("q_idx >= kv_idx") == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("gpu", ["sm_90", "sm_80", "gfx942"])
@pytest.mark.parametrize("name", NAMES)
def test_compiles_for_gpus(name: str, gpu: str) -> None:
    source = texts(name)
    kind = "amdgcn" if gpu == "gfx942" else "ptx"
    code = artifacts(source.text, source.signature, gpu=gpu, kinds=(kind,))[kind]
    words = {"sm_80": "mma.sync", "gfx942": "v_mfma", "sm_90": "wgmma.mma_async"}
    if name == "attention_few_queries":
        words["sm_90"] = "mma.sync"  # 16 rows
    assert words[gpu] in code, "tensor cores"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", WARPGROUPS)
def test_warpgroups_multiply_while_others_load(name: str) -> None:
    source = texts(name)
    code = artifacts(source.text, source.signature, gpu="sm_90", kinds=("ptx",))["ptx"]
    words = "wgmma.mma_async", "setmaxnreg", "cp.async.cg.shared.global", "mbarrier.try_wait"
    assert all(word in code for word in words)


@pytest.mark.triton
def test_a_name_has_one_type_in_both_branches_of_a_step() -> None:
    """Whole blocks ask for keys first, those in part for queries: ``position`` was both."""
    sizes = Sizes(1, 4, 4, 256, 256, 128)
    masked = create_block_mask(causal, None, None, 256, 256, device="cpu", BLOCK_SIZE=128)

    def attend(q: Any, k: Any, v: Any) -> Any:
        def leaning(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + SLOPES[h] * (j - i) / 64

        return flex_attention(q, k, v, score_mod=leaning, block_mask=masked)

    with using(with_warpgroups()):
        found = sources(attend, tuple(t.requires_grad_() for t in sizes.tensors(BF16)))
    branches = [
        node
        for source in found
        for node in ast.walk(ast.parse(source.text))
        if isinstance(node, ast.If) and "position" in ast.unparse(node)
    ]
    assert branches
    for node in branches:
        first, second = map(_read_by_names, (node.body, node.orelse))
        shared = (first.keys() & second.keys()) - {"changed"}
        assert "position" in shared
        assert {name: first[name] for name in shared} == {name: second[name] for name in shared}


def _read_by_names(lines: list[ast.stmt]) -> dict[str, set[str]]:
    """Return what of a step each assigned name is made of."""
    texts = (ast.unparse(line).partition(" = ") for line in lines)
    step = "q_idx", "kv_idx", "score"
    return {name: {each for each in step if each in text} for name, _, text in texts}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        (Sizes(2, 4, 2, 512, 512, 64), BF16),  # as fast as it is
        (Sizes(2, 4, 2, 512, 500, 128), BF16),
        (Sizes(2, 4, 2, 500, 512, 128), BF16),
        (Sizes(2, 4, 2, 512, 512, 128), F32),
        (Sizes(2, 4, 2, 1, 512, 128), BF16),
    ],
)
def test_what_does_not_fit_warpgroups_is_triton(sizes: Sizes, dtype: torch.dtype) -> None:
    with using(with_warpgroups()):
        (source,) = sources(attention("none", sizes), sizes.tensors(dtype))
    assert "import triton.language as tl" in source.text
    with using(this_machine("sm_90")):
        fits = Sizes(2, 4, 2, 512, 512, 128)
        (source,) = sources(attention("none", fits), fits.tensors(BF16))
    assert "gluon" not in source.text, "nobody can run it where there is no such GPU"


@pytest.mark.sample(3)
@pytest.mark.triton
@pytest.mark.parametrize(
    ("mod", "sizes", "dtype", "block", "apart"),
    [
        ("none", Sizes(2, 4, 2, 512, 256, 128), BF16, 128, "both"),
        ("document", Sizes(1, 4, 4, 128, 384, 128), HALF, 128, "both"),
        # a soft cap's gradients of keys need more registers than there are
        ("soft cap", Sizes(2, 4, 2, 512, 512, 128), BF16, 128, "queries"),
        ("causal", Sizes(2, 4, 2, 512, 512, 64), BF16, 128, "none"),
        ("causal", Sizes(2, 4, 2, 500, 512, 128), BF16, 128, "none"),
        ("causal", Sizes(2, 4, 2, 512, 320, 128), BF16, 64, "none"),
        ("causal", Sizes(2, 4, 2, 512, 512, 128), F32, 128, "none"),
        # the last block of keys reaches beyond them, those of queries do not
        ("causal", Sizes(2, 4, 2, 512, 384, 128), BF16, (128, 256), "keys"),
    ],
)
def test_which_gradients_are_of_warpgroups(
    mod: str, sizes: Sizes, dtype: torch.dtype, block: int | tuple[int, int], apart: str
) -> None:
    _, queries, keys = gradient_sources(mod, sizes, dtype, block)
    assert ("warp_specialize" in queries.text) == (apart in ("both", "queries"))
    assert ("warp_specialize" in keys.text) == (apart in ("both", "keys"))


@pytest.mark.triton
def test_a_block_that_holds_all_keys_has_as_many_steps_as_there_are() -> None:
    sizes = Sizes(2, 4, 2, 512, 128, 128)
    with using(with_warpgroups()):
        (source,) = sources(attention("causal", sizes, block=128), sizes.tensors(BF16))
    assert "warp_specialize" in source.text
    assert "tl.load(kv_counts_ptr + first // 128) * (128 // BLOCK_N)" in source.text


@pytest.mark.triton
def test_so_have_the_steps_of_gradients() -> None:
    _, queries, keys = gradient_sources("causal", Sizes(2, 4, 2, 128, 128, 128))
    assert "tl.load(kv_counts_ptr) * (128 // BLOCK_N)" in queries.text
    assert "tl.load(q_counts_ptr) * (128 // BLOCK_M)" in keys.text


@pytest.mark.triton
@pytest.mark.parametrize("columns", [128, 256])
def test_blocks_that_reach_beyond_the_keys_are_triton(columns: int) -> None:
    sizes = Sizes(2, 4, 2, 512, 384, 128)
    with using(with_warpgroups()):
        (source,) = sources(attention("causal", sizes, block=(128, columns)), sizes.tensors(BF16))
    assert ("warp_specialize" in source.text) == (384 % columns == 0)


def test_positions_beyond_32_bits_are_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = Sizes(2, 4, 2, 512, 512, 128)
    monkeypatch.setattr(emit, "LIMIT", 512)
    with using(with_warpgroups()):
        (source,) = sources(attention("causal", sizes, block=128), sizes.tensors(BF16))
    assert "gluon" not in source.text
    assert "tl.int64" in source.text


# -- numerics -----------------------------------------------------------------------------


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("sizes", "dtype"), [(ODD, F32), (DEEP, BF16), (FEW, HALF), (Sizes(depth=256), HALF)]
)
@pytest.mark.parametrize("name", MODS)
def test_forward(name: str, sizes: Sizes, dtype: torch.dtype) -> None:
    function = attention(name, sizes, sums=True)
    compiled = fusec.compile(function, target="triton")
    tensors = sizes.tensors(dtype)
    exact = function(*(t.double() for t in tensors))
    for own, eager, wanted in zip(compiled(*tensors), function(*tensors), exact, strict=True):
        assert close(own, eager, wanted)
    (graph,) = compiled.graphs
    assert not graph.externs
    assert not graph.fallback


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize(("sizes", "dtype"), [(ODD, F32), (DEEP, BF16), (Sizes(2, 4, 1), HALF)])
@pytest.mark.parametrize("name", MODS)
def test_gradients(name: str, sizes: Sizes, dtype: torch.dtype) -> None:
    function = attention(name, sizes, sums=True)
    compiled = fusec.compile(function, target="triton")
    tensors = sizes.tensors(dtype)
    exact = gradients(function, tensors, F64)
    eager = gradients(function, tensors, dtype)
    for own, usual, wanted in zip(gradients(compiled, tensors, dtype), eager, exact, strict=True):
        assert close(own, usual, wanted)
    assert not any(graph.externs for graph in compiled.graphs)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MODS)
def test_the_bodies_themselves(name: str) -> None:
    """The interpreter of the IR computes what the kernels do: there is one meaning."""
    function, tensors = attention(name, ODD, sums=True), ODD.tensors(F32)
    backend = Interpreted(products=True)
    found = gradients(torch.compile(function, backend=backend), tensors, F32)
    for own, wanted in zip(found, gradients(function, tensors, F64), strict=True):
        assert close(own, own, wanted)
        assert float((own - wanted).abs().max()) < 1e-4


@pytest.mark.slow
def test_blocks_in_any_order_and_lengths_that_change() -> None:
    def attend(q: Any, k: Any, v: Any, blocks: Any) -> Any:
        return flex_attention(q, k, v, block_mask=blocks)

    compiled = fusec.compile(attend, target="triton", dynamic=True)
    for length in (128, 224):
        tensors = Sizes(1, 2, 2, length, length, 16).tensors(F32)
        blocks = create_block_mask(
            lambda b, h, q, k: (k // 32 + q // 32) % 3 != 1,
            None,
            None,
            length,
            length,
            device="cpu",
            BLOCK_SIZE=32,
        )
        wanted = attend(*tensors, blocks)
        places, counts = blocks.full_kv_indices, blocks.full_kv_num_blocks
        assert int(counts.max()) > 2
        for row in range(counts.shape[-1]):
            count = int(counts[0, 0, row])
            places[0, 0, row, :count] = places[0, 0, row, :count].flip(0)
        assert float((compiled(*tensors, blocks) - wanted).abs().max()) < 1e-5
    (graph,) = compiled.graphs
    assert not graph.fallback, "one compilation for all lengths"


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize("low", [-float("inf"), torch.finfo(F32).min, -1e31])
def test_rows_of_large_negative_scores(low: float) -> None:
    """Of infinite ones nothing is left; of finite ones the mean of all values."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: torch.where(j > i + 20, s, low)
        )

    tensors = Sizes(1, 2, 2, 40, 40, 16).tensors(F32)
    own = fusec.compile(attend, target="triton")(*tensors)
    assert float((own - attend(*tensors)).abs().max()) < 1e-5


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_bias_that_masks_by_large_numbers(dtype: torch.dtype) -> None:
    """A row of nothing but the least number there is is the mean of all values, as in eager."""
    bias = torch.zeros(40, 40)
    bias[:, 30:] = torch.finfo(F32).min
    bias[7] = torch.finfo(F32).min

    def attend(q: Any, k: Any, v: Any) -> Any:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j])

    tensors = Sizes(1, 2, 2, 40, 40, 16).tensors(dtype)
    own = fusec.compile(attend, target="triton")(*tensors)
    exact = attend(*(t.double() for t in tensors))
    assert close(own, attend(*tensors), exact)


@pytest.mark.triton
@pytest.mark.sample(1)
@pytest.mark.parametrize("careful", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(3, 150), (1, 777)])
def test_not_a_number_and_infinity_win(
    monkeypatch: pytest.MonkeyPatch, queries: int, keys: int, careful: bool
) -> None:
    """In the result, the rows' sums and their mosts; NaN wins over infinity wherever each lies."""
    options = {"BACKEND": "AUTO", "OUTPUT_LOGSUMEXP": True, "OUTPUT_MAX": True}
    monkeypatch.setattr(torch_attention, "_apply_kernel_options", lambda *_, **__: dict(options))

    def attend(q: Any, k: Any, v: Any) -> Any:
        aux = AuxRequest(lse=True, max_scores=True)
        shift = 1e37 if careful else 0.0
        out, more = flex_attention(q, k, v, lambda score, *_: score + shift, return_aux=aux)
        return out, more.lse, more.max_scores

    nan, inf = float("nan"), float("inf")
    pairs = [(nan, inf), (inf, nan), (-inf, inf), (inf, inf), (-inf, nan), (inf, 0), (nan, 0)]
    q, k, v = Sizes(1, 8, 8, queries, keys, 16).tensors(F32)
    q[..., 0] = q[..., 0].abs() + 0.1
    for head, (first, second) in enumerate(pairs):
        k[0, head, 3, 0], k[0, head, -2, 0] = first, second  # in the first block and in the last
    k[0, 7, :, 0] = -inf
    compiled = fusec.compile(attend, target="triton")
    for own, wanted in zip(compiled(q, k, v), attend(q, k, v), strict=True):
        torch.testing.assert_close(own, wanted, equal_nan=True, rtol=1e-5, atol=1e-5)
    assert not any(graph.externs for graph in compiled.graphs)


@pytest.mark.triton
def test_values_narrower_than_keys_and_other_strides() -> None:
    q, k, _ = Sizes(2, 4, 2, 70, 90, 48).tensors(F32)
    _, _, v = Sizes(2, 4, 2, 70, 90, 24).tensors(F32)
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    k = k.transpose(2, 3).contiguous().transpose(2, 3)
    function = attention("causal", Sizes(2, 4, 2, 70, 90, 48))
    compiled = fusec.compile(function, target="triton")
    for own, wanted in zip(
        gradients(compiled, (q, k, v), F32), gradients(function, (q, k, v), F32), strict=True
    ):
        assert own.stride() == wanted.stride()
        assert float((own - wanted).abs().max()) < 1e-4
    assert not any(graph.externs for graph in compiled.graphs)


@pytest.mark.triton
def test_exported_files_run_alone(tmp_path: Path) -> None:
    sizes = Sizes(1, 2, 2, 40, 40, 16)
    function = attention("causal", sizes)
    compiled = fusec.compile(function, target="triton")
    compiled(*sizes.tensors(F32))
    (kernel,) = compiled.kernels.values()
    text = kernel.export(tmp_path / "attention.py").read_text()
    assert "fusec." not in text
    assert "import fusec" not in text


# -- as every kernel ----------------------------------------------------------------------


@pytest.mark.triton
def test_an_edit_is_judged() -> None:
    sizes = Sizes(1, 2, 2, 64, 64, 16)
    function = attention("alibi", sizes)
    compiled = fusec.compile(function, target="triton", keep_inputs=True)
    compiled(*sizes.tensors(F32))
    (kernel,) = compiled.kernels.values()
    assert [t.name for t in kernel.tunables][:2] == ["BLOCK_M", "BLOCK_N"]
    assert kernel.check(kernel.with_tunables({"BLOCK_M": 16, "BLOCK_N": 16}), timed=False).ok
    wrong = kernel.source.replace("slopes * ", "2.0 * slopes * ")
    wrong = wrong.replace("SLOPES * ", "2.0 * SLOPES * ")
    assert wrong != kernel.source
    assert not kernel.check(wrong, timed=False).ok


@pytest.mark.triton
def test_lists_of_blocks_are_left_in_checks() -> None:
    sizes = Sizes(1, 1, 1, 160, 160, 16)
    function = attention("causal", sizes)
    compiled = fusec.compile(function, target="triton", keep_inputs=True)
    compiled(*sizes.tensors(F32))
    (graph,) = compiled.graphs
    (kernel,) = graph.kernels
    assert sum(argument.listed for argument in kernel.signature.arguments) == 4
    assert kernel.check(kernel.source + "# the same\n", timed=False).ok
    assert graph.verify(timed=False).ok


def test_what_stays_torchs_own_says_why() -> None:
    sizes = Sizes(1, 4, 4, 20, 20, 16)
    tensors = sizes.tensors(F32)
    double = fusec.compile(attention("causal", sizes), target="triton")
    double(*(t.double() for t in tensors))
    (extern,) = double.graphs[0].externs
    assert "float16, bfloat16 or float32" in extern.reason


@pytest.mark.triton
def test_no_lists_without_a_mask() -> None:
    sizes = Sizes(1, 2, 2, 20, 20, 16)
    compiled = fusec.compile(attention("none", sizes), target="triton")
    gradients(compiled, sizes.tensors(F32), F32)
    assert sorted(k.generated.summary.split()[0] for k in compiled.kernels.values()) == [
        "attention",
        "gradients",
        "gradients",
    ]
    assert not any(graph.externs for graph in compiled.graphs)


@pytest.mark.sample(1)
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_tiles_fit_into_the_shared_memory_of_other_cards(depth: int) -> None:
    sizes = Sizes(queries=256, keys=256, depth=depth)
    tensors = tuple(t.requires_grad_() for t in sizes.tensors(BF16))
    facts = this_machine("sm_86")
    with using(facts):
        kernels = sources(attention("none", sizes), tensors)
    assert len(kernels) == 3
    for kernel in kernels:
        namespace, path = load(kernel.text)
        for start in launched(namespace, path, kernel.signature, "launch"):
            compiled = compile_start(start, gpu_target("sm_86"), namespace, path)
            assert compiled.metadata.shared <= facts.gpu.shared
