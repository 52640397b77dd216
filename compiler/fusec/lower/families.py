"""Every family of operators: importing one puts its rules into the registry."""

from __future__ import annotations

from fusec.lower import (  # noqa: F401
    activations,
    assembled,
    attention,
    attention_backward,
    comparisons,
    convolution,
    embedding,
    factories,
    indexing,
    matmul,
    normalization,
    pointwise,
    pooling,
    pooling_backward,
    promises,
    random,
    reductions,
    scans,
    scatter,
    special,
    views,
    windows,
)
