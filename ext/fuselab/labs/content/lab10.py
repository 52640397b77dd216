"""Lab 10, matrix product and attention by hand: tiles, epilogue, flash attention."""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from fuselab.judge.task import CppTask, Limits, PythonTask
from fuselab.labs.content.answers import first_wrong
from fuselab.labs.content.lab07 import kernel
from fuselab.labs.lab import Lab

DEPTH = 64

_MATMUL = (
    'extern "C" int matmul(const float* x, const float* w, float* out, int64_t m, int64_t n, '
    "int64_t k, int64_t threads)"
)
_LINEAR = (
    'extern "C" int linear(const float* x, const float* w, const float* b, float* out, int64_t m, '
    "int64_t n, int64_t k, int64_t threads)"
)
_ATTENTION = (
    'extern "C" int attention(const float* q, const float* k, const float* v, float* out, '
    "int64_t queries, int64_t keys, int64_t threads)"
)
_SIMPLE = kernel(
    _MATMUL,
    "    for (int64_t i = 0; i < m; ++i)\n"
    "        for (int64_t j = 0; j < n; ++j) {\n"
    "            float sum = 0.0f;\n"
    "            for (int64_t p = 0; p < k; ++p) sum += x[i * k + p] * w[p * n + j];\n"
    "            out[i * n + j] = sum;\n"
    "        }",
)
_TWO_STEPS = kernel(
    _LINEAR,
    "    for (int64_t i = 0; i < m; ++i) {\n"
    "        for (int64_t j = 0; j < n; ++j) out[i * n + j] = 0.0f;\n"
    "        for (int64_t p = 0; p < k; ++p)\n"
    "            for (int64_t j = 0; j < n; ++j) out[i * n + j] += x[i * k + p] * w[p * n + j];\n"
    "    }\n"
    "    for (int64_t i = 0; i < m; ++i)\n"
    "        for (int64_t j = 0; j < n; ++j) {\n"
    "            const float v = out[i * n + j] + b[j];\n"
    "            out[i * n + j] = v < 0.0f ? 0.0f : v;\n"
    "        }",
)
_TWICE = """#include <cmath>
#include <cstdint>

static inline float score(const float* q, const float* k)
{
    float sum = 0.0f;
    for (int64_t d = 0; d < 64; ++d) sum += q[d] * k[d];
    return sum * 0.125f;
}

""" + kernel(
    _ATTENTION,
    "    for (int64_t i = 0; i < queries; ++i) {\n"
    "        float largest = -INFINITY, total = 0.0f, sums[64] = {};\n"
    "        for (int64_t j = 0; j < keys; ++j) {\n"
    "            const float s = score(q + i * 64, k + j * 64);\n"
    "            largest = s > largest ? s : largest;\n"
    "        }\n"
    "        for (int64_t j = 0; j < keys; ++j) {\n"
    "            const float p = std::exp(score(q + i * 64, k + j * 64) - largest);\n"
    "            total += p;\n"
    "            for (int64_t d = 0; d < 64; ++d) sums[d] += p * v[j * 64 + d];\n"
    "        }\n"
    "        for (int64_t d = 0; d < 64; ++d) out[i * 64 + d] = sums[d] / total;\n"
    "    }",
).split("\n\n", 1)[1]


def _traffic_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = [[64, 64, 64, 64, 64], [64, 32, 16, 1, 1], [100, 70, 30, 16, 32]]
    for _ in range(6):
        sizes = [rng.randrange(1, 300) for _ in range(3)]
        found.append([*sizes, 2 ** rng.randrange(0, 7), 2 ** rng.randrange(0, 7)])
    return found


def _traffic(m: int, n: int, k: int, tile_m: int, tile_n: int) -> int:
    across, down = math.ceil(n / tile_n), math.ceil(m / tile_m)
    return 4 * (across * m * k + down * k * n + m * n)


def _state(scores: list[float], values: list[list[float]]) -> list[Any]:
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    pairs = list(zip(weights, values, strict=True))
    sums = [math.fsum(weight * value[d] for weight, value in pairs) for d in (0, 1, 2)]
    return [largest, math.fsum(weights), sums]


def _block(rng: random.Random, count: int, scale: float) -> tuple[list[float], list[list[float]]]:
    scores = [rng.uniform(-scale, scale) for _ in range(count)]
    return scores, [[rng.uniform(-1, 1) for _ in range(3)] for _ in range(count)]


def _step_calls(rng: random.Random) -> list[list[Any]]:
    found: list[list[Any]] = []
    for scale in (1.0, 6.0, 40.0, 400.0):
        for before, now in ((1, 1), (3, 2), (2, 5)):
            state = _state(*_block(rng, before, scale))
            found.append([state, *_block(rng, now, scale)])
    return found


def _step(state: list[Any], scores: list[float], values: list[list[float]]) -> list[Any]:
    block = _state(scores, values)
    largest = max(state[0], block[0])
    one, other = math.exp(state[0] - largest), math.exp(block[0] - largest)
    sums = [one * a + other * b for a, b in zip(state[2], block[2], strict=True)]
    return [largest, one * state[1] + other * block[1], sums]


LAB = Lab(
    10,
    "attention",
    "Matrix product and attention by hand",
    45,
    (
        PythonTask(
            "lab10.traffic",
            "what tiles save",
            "traffic",
            start='''
def traffic(m, n, k, tile_m, tile_n):
    """Return the bytes that a product (m, k) @ (k, n) of float32 reads and writes, tile by tile.

    For each tile of the result, its rows of x and its columns of w are read once, and the tile is
    written. Tiles at the edge are smaller.
    """
    ...
''',
            hints=(
                "How often is a row of x read? Once for each tile that stands beside another in "
                "its row of tiles.",
                "x is read as often as there are tiles from left to right, w as often as there are "
                "from top to bottom. How many are there if n is no multiple of tile_n?",
                "4 * (ceil(n / tile_n) * m * k + ceil(m / tile_m) * k * n + m * n).",
            ),
            calls=_traffic_calls,
            check=lambda calls, results: first_wrong("traffic", calls, results, _traffic),
        ),
        CppTask(
            "lab10.matmul",
            "order of loops, again",
            "matmul",
            points=2,
            given=1,  # it is right
            start=_SIMPLE,
            hints=(
                "The inner loop walks down a column of w: a new line of the cache at each step. "
                "Which of the three loops, put inside, walks along rows only?",
                "With j inside, x[i * k + p] is one number for the whole inner loop, and both w "
                "and out are read along a row.",
                "For each i: set out's row to zero; for each p: for each j: "
                "out[i * n + j] += x[i * k + p] * w[p * n + j].",
            ),
            reference=lambda x, w: x @ w,
            inputs=lambda g, n: [
                torch.randn(n, n + 3, generator=g),
                torch.randn(n + 3, n + 1, generator=g),
            ],
            sizes=(1, 7, 45),
            timed_size=220,
            kinds=("similar",),
            declaration=_MATMUL,
            arguments=("x", "w", "out"),
            numbers=lambda x, w: (x.shape[0], w.shape[1], x.shape[1]),
            slack=1e-5,
            limits=Limits(factor=2.0),
            baseline=_SIMPLE,
        ),
        CppTask(
            "lab10.linear",
            "a tile in registers, and its epilogue",
            "linear",
            points=3,
            given=1,  # it is right
            start=_TWO_STEPS,
            hints=(
                "Each multiplication loads and stores an element of out. Keep a small tile of the "
                "result in variables while p runs over all of k, and store it once.",
                "Four rows and sixteen columns: float sums[4][16]; w[p * n + j] then serves four "
                "rows. When p is through, the tile is complete: add b and apply relu as it is "
                "stored. Mind the rows and columns that are left over.",
                "for i0 in steps of 4, for j0 in steps of 16: sums = 0; for p, for r < 4, for c < "
                "16: sums[r][c] += x[(i0 + r) * k + p] * w[p * n + j0 + c], with `#pragma omp "
                "simd` before the loop over c; then store. Edges: a plain loop over p.",
            ),
            reference=lambda x, w, b: torch.relu(x @ w + b),
            inputs=lambda g, n: [
                torch.randn(n, n + 3, generator=g),
                torch.randn(n + 3, n + 2, generator=g),
                torch.randn(n + 2, generator=g),
            ],
            sizes=(1, 7, 45),
            timed_size=254,
            kinds=("similar",),
            declaration=_LINEAR,
            arguments=("x", "w", "b", "out"),
            numbers=lambda x, w, b: (x.shape[0], w.shape[1], x.shape[1]),
            slack=1e-5,
            limits=Limits(factor=1.15),
            baseline=_TWO_STEPS,
        ),
        PythonTask(
            "lab10.step",
            "attention in blocks of keys",
            "step",
            points=2,
            start='''
import math

def step(state, scores, values):
    """Return the state with one more block of keys: (largest, total, sums).

    largest: of all scores so far. total: the sum of exp(score - largest). sums: of each of the
    values' entries, weighted with exp(score - largest). scores: of the block's keys. values: a list
    of entries for each of them.
    """
    largest, total, sums = state
    ...
''',
            hints=(
                "It is the softmax of lab 9 with one more thing in the state: what is divided by "
                "`total` at the very end. A larger score changes what all of it was measured from.",
                "new = the largest of all. One factor, exp(largest - new), brings total and every "
                "one of sums to it; then the block's own terms are added.",
                "weights = [math.exp(s - new) for s in scores]; total * factor + sum(weights); for "
                "each entry d: sums[d] * factor + sum(w * v[d] for w, v in zip(weights, values)).",
            ),
            calls=_step_calls,
            check=lambda calls, results: first_wrong("step", calls, results, _step),
        ),
        CppTask(
            "lab10.attention",
            "flash attention",
            "attention",
            points=3,
            given=1,  # it is right
            start=_TWICE,
            hints=(
                "Every score is computed twice: once for the largest, once for the sums. Keeping "
                "them takes an array as long as there are keys, which is not allowed here.",
                "Use the state of part 4: largest, total and sums. Take one key at a time, or a "
                "few, and bring total and sums to a new largest score when there is one.",
                "For each key: s = score(...); if s > largest: factor = exp(largest - s), total *= "
                "factor, every sums[d] *= factor, largest = s. Then p = exp(s - largest); total += "
                "p; sums[d] += p * v[j * 64 + d].",
            ),
            reference=lambda q, k, v: torch.softmax(q @ k.t() * DEPTH**-0.5, -1) @ v,
            inputs=lambda g, n: [
                torch.randn(n, DEPTH, generator=g),
                torch.randn(2 * n + 1, DEPTH, generator=g) + 60,
                torch.randn(2 * n + 1, DEPTH, generator=g),
            ],
            sizes=(1, 5, 40),
            timed_size=120,
            kinds=("similar",),
            declaration=_ATTENTION,
            arguments=("q", "k", "v", "out"),
            numbers=lambda q, k, v: (q.shape[0], k.shape[0]),
            slack=1e-3,
            limits=Limits(factor=1.2),
            baseline=_TWICE,
            small=True,
        ),
    ),
)
