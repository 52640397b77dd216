"""One scan as C++: where it keeps what it has so far, and how it takes the next value.

Sums, products and log-sum-exps of floats run in double, as eager's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fusec.codegen.common.c_language import SUM, Expression, Use
from fusec.codegen.common.identities import COMBINES, identity
from fusec.codegen.common.signatures import identifier
from fusec.ir.node import Op, Scan
from fusec.targets.cpp.dtypes import C_TYPES, literal
from fusec.targets.cpp.text.expressions import op_expression

_WORDS = {"prod": "product", "logsumexp": "greatest"}


@dataclass(frozen=True)
class Running:
    """Where a scan keeps what it has so far.

    Attributes:
        node: The scan; for an extreme with its position, either of the two.
        place: The variable, or the array element, to read and write.
        dtype: Its type: that of the argument, but double for float sums.
        index: For extremes whose position is wanted: where it is kept.
        total: For log-sum-exps: where the sum of exp(x - greatest) is kept, ``place`` having the
            greatest.
    """

    node: Scan
    place: str
    dtype: torch.dtype
    index: str = ""
    total: str = ""

    def at(self, index: str) -> Running:
        """Return the element ``index`` of this one's arrays."""
        position = f"{self.index}[{index}]" if self.index else ""
        total = f"{self.total}[{index}]" if self.total else ""
        return replace(self, place=f"{self.place}[{index}]", index=position, total=total)

    def result(self, node: Scan) -> Expression:
        """Return what ``node`` is once the current value has been taken, in ``dtype``."""
        if self.total:
            return Expression(f"{self.place} + fx_log({self.total})", SUM)
        return Expression(self.index if node.kind.startswith("arg") else self.place)


def is_extreme(node: Scan) -> bool:
    """Whether a scan keeps the largest or the smallest value, or its position."""
    return node.kind.removeprefix("arg") in ("max", "min")


def running_values(nodes: Sequence[Scan], taken: set[str]) -> dict[Scan, Running]:
    """Name where each scan keeps what it has; an extreme and its position are kept together.

    Args:
        nodes: The scans of one loop.
        taken: Names in use; new ones are added.
    """
    groups: dict[object, list[Scan]] = {}
    for node in nodes:
        groups.setdefault((node.kind.removeprefix("arg"), node.args[0]), []).append(node)
    found: dict[Scan, Running] = {}
    for group in groups.values():
        node = group[0]
        kind = node.kind.removeprefix("arg")
        dtype = node.args[0].dtype if is_extreme(node) else node.dtype
        if dtype == torch.float32 and not is_extreme(node):
            dtype = torch.float64
        place = identifier(f"running_{_WORDS.get(kind, kind)}", taken, "running")
        index = total = ""
        if kind == "logsumexp":
            total = identifier("running_total", taken, "running")
        if any(n.kind.startswith("arg") for n in group):
            index = identifier(f"running_arg{kind}", taken, "running")
        found.update(dict.fromkeys(group, Running(node, place, dtype, index, total)))
    return found


def declarations(item: Running) -> list[tuple[str, str, str]]:
    """Return what a scan keeps as (C++ type, name, first value)."""
    found = [(C_TYPES[item.dtype], item.place, first_value(item))]
    if item.index:
        found.append(("int64_t", item.index, "0"))
    if item.total:
        found.append(("double", item.total, "0.0"))
    return found


def first_value(item: Running) -> str:
    """Return what a scan has before its first value."""
    kind = "max" if item.node.kind == "logsumexp" else item.node.kind
    return literal(identity(kind, item.dtype), item.dtype)


def take_next(
    item: Running, value: Expression, position: str, taken: set[str], use: Use
) -> list[str]:
    """Return the statements with which a scan takes a value.

    Args:
        item: The scan.
        value: Of ``item.dtype``; a name where it is an extreme.
        position: Where along the axis it is.
        taken: Names in use; new ones are added.
        use: Called with the name of every helper that the text calls.
    """
    kind, dtype = item.node.kind.removeprefix("arg"), item.dtype
    if kind == "logsumexp":
        for helper in ("exp.f64", "log.f64", "log_add_exp"):
            use(helper)
        return [f"log_add_exp({value.text}, {item.place}, {item.total});"]
    if not is_extreme(item.node):
        if dtype.is_floating_point:
            return [f"{item.place} {'+' if kind == 'sum' else '*'}= {value.text};"]
        total = Op(COMBINES[kind], (item.node, item.node), dtype)
        text = op_expression(total, (Expression(item.place), value), use).text
        return [f"{item.place} = {text};"]
    # The last of equal values; NaN comes before all numbers, and the last NaN before the others.
    sign = ">=" if kind == "max" else "<="
    newer = f"{value.text} {sign} {item.place}"
    if dtype.is_floating_point:
        newer = f"({newer}) | ({value.text} != {value.text})"
    if not item.index:
        return [f"{item.place} = {newer} ? {value.text} : {item.place};"]
    name = identifier("newer", taken, "newer")
    return [
        f"const bool {name} = {newer};",
        f"{item.place} = {name} ? {value.text} : {item.place};",
        f"{item.index} = {name} ? {position} : {item.index};",
    ]


__all__ = ["Running", "declarations", "is_extreme", "running_values", "take_next"]
