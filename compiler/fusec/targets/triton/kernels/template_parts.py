"""Kernels in Gluon whose warps have tasks of their own: functions that call one another.

Each function is a part of one template; what it takes is what its text mentions.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.node import Dot
from fusec.targets.triton.kernels.attention_tiles import Tiles
from fusec.targets.triton.text.file import Function, mentions
from fusec.targets.triton.text.kernel_writer import KernelWriter
from fusec.targets.triton.text.templates import template
from fusec.targets.triton.text.writer import Writer


class TemplateParts(Tiles):
    """Writes functions of a file from the parts of a template.

    Attributes:
        template: Its name.
        context: What all parts may ask.
        pieces: The generated statements, by the names that the template has for them.
        product: Whose line the products of the template are of.
    """

    template: str
    context: dict[str, object]
    pieces: Mapping[str, Writer]
    product: Dot

    def kernel(self, name: str) -> KernelWriter:
        """Return a function to write."""
        raise NotImplementedError

    def add_part(self, part: str, wanted: list[str], source: str = "") -> list[str]:
        """Write a function that others call; return what it takes, in order.

        Args:
            part: Of the template.
            wanted: What it takes if its text mentions it, beside pointers and sizes.
            source: Another template.
        """
        name = f"{self.file.name}_{part}"
        kernel = self.kernel(name)
        self.fill_part(kernel, part, source)
        text = kernel.writer.text
        pointers = [f"{p}_ptr" for p in self.file.parameters.values()]
        names = [*pointers, *self.file.sizes.values(), *wanted]
        taken = [each for each in dict.fromkeys(names) if mentions(text, each)]
        fixed = [each for each in taken if each.isupper() or each == "half"]
        plain = [each for each in taken if each not in fixed]
        # constants last, as in every kernel
        parameters, constants = ([(each, each) for each in kind] for kind in (plain, fixed))
        self.file.functions.append(
            Function(name, kernel.writer, [], parameters, constants, gluon=True, started=False)
        )
        return [*plain, *fixed]

    def fill_part(self, kernel: KernelWriter, part: str, source: str = "") -> None:
        """Write a function's body: a part of a template, with generated statements in it."""
        text = template(source or self.template).render({**self.context, "part": part})
        self.insert_text(kernel, text, self.pieces, (self.product.source,))


def call(names: list[str], parameter: str, value: str) -> str:
    """Return the arguments of a call: names as they are, but for one parameter."""
    return ", ".join(value if name == parameter else name for name in names)


__all__ = ["TemplateParts", "call"]
