"""Which operators return what they are given, or a part of it."""

from __future__ import annotations


def may_view(target: object) -> bool:
    """Whether what an operator returns may be a view of what it is given, by its schema."""
    schema = getattr(target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


__all__ = ["may_view"]
