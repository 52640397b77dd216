"""Every family of operators: importing one puts its rules into the registry."""

from __future__ import annotations

import fusec.lower.attention.backward
import fusec.lower.attention.forward
import fusec.lower.matmul
import fusec.lower.movement.assembled
import fusec.lower.movement.factories
import fusec.lower.movement.indexing
import fusec.lower.movement.views
import fusec.lower.movement.windows
import fusec.lower.pointwise.activations
import fusec.lower.pointwise.arithmetic
import fusec.lower.pointwise.comparisons
import fusec.lower.pointwise.random
import fusec.lower.pooling.backward
import fusec.lower.pooling.convolution
import fusec.lower.pooling.forward
import fusec.lower.promises
import fusec.lower.reductions.normalization
import fusec.lower.reductions.rules
import fusec.lower.reductions.scans
import fusec.lower.scatter.embedding
import fusec.lower.scatter.rules
import fusec.lower.special.rules
