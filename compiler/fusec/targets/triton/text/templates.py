"""The Jinja templates of matrix products and attention."""

from __future__ import annotations

import functools

import jinja2


@functools.cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("fusec.targets.triton"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # the text is Python
    )


def template(name: str) -> jinja2.Template:
    """Return ``templates/NAME.py.j2``, read at the first call."""
    return _environment().get_template(f"{name}.py.j2")


__all__ = ["template"]
