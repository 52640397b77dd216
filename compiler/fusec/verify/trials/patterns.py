"""Tensors with a pattern: as people make them, and as no draw of random numbers ever is.

Rows that are alike, what is sorted, a mask's triangle, padding behind each row: an edit may be
right on all numbers and wrong where they lie like this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import torch

Pattern = Literal[
    "equal rows",
    "sorted",
    "sorted down",
    "constant",
    "half nan",
    "nan rows",
    "negative nan",
    "infinite",
    "minus infinite",
    "last infinite",
    "padded",
    "one hot",
    "quarters",
    "powers",
    "large",
    "negative zeros",
    "symmetric",
    "triangular",
    "masked",
    "alternating",
    "outlier",
    "shares",
    "equal weights",
    "nan weight",
    "nan bias",
    "shared",
]

# More than any spread, and within what every type has.
_LARGE = 2e5
_CONSTANT = 0.371
_NAN = float("nan")
_INFINITE = float("inf")

Change = Callable[[torch.Tensor], torch.Tensor]


def _equal_rows(rows: torch.Tensor) -> torch.Tensor:
    return rows[:1].expand_as(rows)


def _sorted(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(-1).sort().values


def _sorted_down(rows: torch.Tensor) -> torch.Tensor:
    return rows.reshape(-1).sort(descending=True).values


def _constant(rows: torch.Tensor) -> torch.Tensor:
    return torch.full_like(rows, _CONSTANT + float(rows.reshape(-1)[0].abs()))


def _half_nan(rows: torch.Tensor) -> torch.Tensor:
    values = rows.reshape(-1).clone()
    values[: values.numel() // 2] = _NAN
    return values


def _nan_rows(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.clone()
    places = torch.arange(len(rows))
    rows[places, places * 7 % rows.shape[1]] = _NAN
    return rows


def _negative_nan(rows: torch.Tensor) -> torch.Tensor:
    # what 0 / 0 is on x86; a positive one is what people write
    return torch.full_like(rows, _NAN).copysign(torch.tensor(-1.0))


def _last_infinite(rows: torch.Tensor) -> torch.Tensor:
    values = rows.reshape(-1).clone()
    values[-1] = _INFINITE
    return values


def _padded(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.clone()
    rows[:, -(-rows.shape[1] // 2) :] = 0
    rows[-(-len(rows) // 2) :] = 0
    return rows


def _one_hot(rows: torch.Tensor) -> torch.Tensor:
    places = torch.arange(len(rows))
    made = torch.zeros_like(rows)
    made[places, places % rows.shape[1]] = 1
    return made


def _quarters(rows: torch.Tensor) -> torch.Tensor:
    values = (rows * 4).round().reshape(-1) / 4
    values[0] = 0.25
    return values


def _powers(rows: torch.Tensor) -> torch.Tensor:
    return torch.exp2(rows.abs().clamp_min(1e-3).log2().round()).copysign(rows)


def _large(rows: torch.Tensor) -> torch.Tensor:
    return (_LARGE + _LARGE * rows.abs().clamp_max(1)).copysign(rows)


def _negative_zeros(rows: torch.Tensor) -> torch.Tensor:
    return torch.full_like(rows, -0.0)


def _symmetric(rows: torch.Tensor) -> torch.Tensor:
    if rows.shape[0] != rows.shape[1]:
        return (rows + rows.flip(1)) / 2
    return (rows + rows.T) / 2


def _masked(rows: torch.Tensor) -> torch.Tensor:
    above = torch.ones(rows.shape, dtype=torch.bool).triu(1)
    return rows.masked_fill(above, -_INFINITE)


def _alternating(rows: torch.Tensor) -> torch.Tensor:
    values = rows.reshape(-1).clone()
    half = values.numel() // 2
    values[1 : 2 * half : 2] = -values[0 : 2 * half : 2]
    return values


def _outlier(rows: torch.Tensor) -> torch.Tensor:
    values = rows.reshape(-1).clone()
    values[values.numel() // 3] = 100 * _LARGE
    return values


def _shares(rows: torch.Tensor) -> torch.Tensor:
    return rows.softmax(1)


_OF_THE_LARGEST: Mapping[Pattern, tuple[str, Change]] = {
    "equal rows": ("rows that are all alike", _equal_rows),
    "sorted": ("sorted inputs", _sorted),
    "sorted down": ("inputs sorted from the largest on", _sorted_down),
    "constant": ("one number alone", _constant),
    "half nan": ("inputs of which half is NaN", _half_nan),
    "nan rows": ("a NaN in each row", _nan_rows),
    "negative nan": ("NaN with a sign", _negative_nan),
    "infinite": ("infinities alone", lambda rows: torch.full_like(rows, _INFINITE)),
    "minus infinite": (
        "minus infinities alone",
        lambda rows: torch.full_like(rows, -_INFINITE),
    ),
    "last infinite": ("inputs that end with infinity", _last_infinite),
    "padded": ("rows with zeros behind them", _padded),
    "one hot": ("a one in each row", _one_hot),
    "quarters": ("multiples of a quarter", _quarters),
    "powers": ("powers of two", _powers),
    "large": ("large inputs alone", _large),
    "negative zeros": ("zeros with a sign", _negative_zeros),
    "symmetric": ("symmetric inputs", _symmetric),
    "triangular": ("zeros above the diagonal", lambda rows: rows.tril()),
    "masked": ("minus infinity above the diagonal", _masked),
    "alternating": ("numbers and their negatives in turn", _alternating),
    "outlier": ("inputs of which one is very large", _outlier),
    "shares": ("rows that sum to one", _shares),
}
_OF_PARAMETERS: Mapping[Pattern, str] = {
    "equal weights": "weights that are all alike",
    "nan weight": "NaN in the first weight alone",
    "nan bias": "NaN in the last weight alone",
    "shared": "weights that are the first row",
}
LABELS: Mapping[Pattern, str] = {
    **{pattern: label for pattern, (label, _) in _OF_THE_LARGEST.items()},
    **_OF_PARAMETERS,
}
PATTERNS: tuple[Pattern, ...] = tuple(LABELS)


def patterned(
    pattern: Pattern,
    values: torch.Tensor,
    shape: tuple[int, ...],
    *,
    parameter: int | None,
    parameters: int,
    positive: bool,
) -> torch.Tensor:
    """Return values of a tensor, in a row, with a pattern.

    Args:
        pattern: Which.
        values: What was drawn for it, as many as it has elements.
        shape: Its shape.
        parameter: Of the tensors that are smaller than the largest, which it is; None for others.
        parameters: How many of these there are.
        positive: Whether the originals have no negative ones, which what follows may need.
    """
    if pattern == "shared":
        made = torch.arange(values.numel(), dtype=values.dtype).cos() * 1.5
    elif pattern in _OF_PARAMETERS:
        made = values
        if parameter is not None and pattern == "equal weights":
            made = torch.full_like(values, _CONSTANT * (parameter + 2))
        elif parameter is not None:
            chosen = 0 if pattern == "nan weight" else parameters - 1
            made = torch.full_like(values, _NAN) if parameter == chosen else values
    elif parameter is not None:
        made = values
    else:
        columns = shape[-1] if shape else 1
        _, change = _OF_THE_LARGEST[pattern]
        made = change(values.reshape(values.numel() // columns, columns)).reshape(-1)
    return made.abs() if positive and pattern != "negative zeros" else made


def within(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return values whose square a type has; what is not finite stays."""
    most = 2.0 ** (math.log2(torch.finfo(dtype).max) / 2)
    return torch.where(values.isfinite(), values.clamp(-most, most), values)


__all__ = ["LABELS", "PATTERNS", "Pattern", "patterned", "within"]
