"""A report of headings with lines under them, as text and as HTML."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterator

from fusec.inspect.glossary import explained
from fusec.inspect.terminal import fitted, terminal_width


class Sectioned(ABC):
    """What prints and shows itself by its sections; the first heading is the title.

    A dataclass that is one takes ``repr=False``.
    """

    @abstractmethod
    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Yield headings with their lines."""

    def __str__(self) -> str:
        (title, _), *rest = self.sections()
        lines = [title]
        for heading, items in rest:
            if items:
                lines += ["", f"{heading}:", *(f"  {item}" for item in items)]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        (title, _items), *rest = self.sections()
        parts = [f"<b>{html.escape(title)}</b>"]
        for heading, items in rest:
            if items:
                rows = "".join(f"<li>{html.escape(item.strip())}</li>" for item in items)
                parts.append(f"<div>{html.escape(heading)}</div><ul>{rows}</ul>")
        parts.append(explained([title, *(heading for heading, items in rest if items)]))
        text = fitted(str(self), terminal_width())
        return {"text/plain": text, "text/html": f"<div>{''.join(parts)}</div>"}


__all__ = ["Sectioned"]
