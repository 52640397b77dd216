"""What the site takes from elsewhere: the magics' options, what `%config` sets, files of the root.

MkDocs calls ``on_config`` first, ``on_page_markdown`` for each page before it is made HTML, and
``on_page_content`` after.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = re.compile(r"<!-- the file (\S+) -->")
MAGICS = "<!-- the magics -->"
CONFIG = "<!-- the configuration -->"
MESSAGES = "<!-- every message -->"


def on_config(config: Any) -> Any:
    """List every recipe in the menu, the overview first."""
    for entry in config["nav"]:
        if "Recipes" in entry:
            entry["Recipes"] = recipes()
    return config


def recipes() -> list[str]:
    """Return the recipes' pages as the menu takes them; their own titles name them."""
    found = sorted(f"recipes/{path.name}" for path in (ROOT / "docs/recipes").glob("add-*.md"))
    return ["recipes/index.md", *found]


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the texts in where a page asks for them."""
    if MAGICS in markdown:
        markdown = markdown.replace(MAGICS, magics())
    if CONFIG in markdown:
        markdown = markdown.replace(CONFIG, configuration())
    if MESSAGES in markdown:
        markdown = markdown.replace(MESSAGES, messages())
    return FILE.sub(lambda match: file_of_the_root(match[1]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Write one colon where a docstring, as docstrings do, has two before a block."""
    return html.replace("::</p>", ":</p>")


def file_of_the_root(name: str) -> str:
    """Return a page that lies beside ``docs``, with its links as they are from within."""
    return (ROOT / name).read_text().replace("](docs/", "](")


def messages() -> str:
    """Return every text that the project raises, refuses with or notes, by folder."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.messages import catalogue

    return catalogue()


def magics() -> str:
    """Return every magic with its text and its options, as ``%%fuse?`` has them."""
    from fuselab import other_magics
    from fuselab.magics.fuse import FuseMagics

    parts = []
    for magics in (FuseMagics, *other_magics()):
        found: dict[str, list[str]] = {}
        for kind, names in magics.magics.items():
            for name, method in names.items():
                found.setdefault(method, []).append(("%%" if kind == "cell" else "%") + name)
        for method, names in found.items():
            function = getattr(magics, method)
            title = ", ".join(f"`{name}`" for name in sorted(set(names), key=len, reverse=True))
            parts.append(f"## {title}\n\n{_about(function)}\n\n{_options(function)}".rstrip())
    return "\n\n".join(parts)


def _about(function: Any) -> str:
    # What `magic_arguments` puts in front of a docstring is the usage, indented.
    parser = getattr(function, "parser", None)  # the labs' magics take no options
    text = inspect.cleandoc(parser.description if parser else function.__doc__ or "")
    return text.replace("%%%%", "%%")


def _options(function: Any) -> str:
    rows = ["| option | |", "|---|---|"]
    parser: argparse.ArgumentParser | None = getattr(function, "parser", None)
    for action in parser._actions if parser else ():
        names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
        value = action.metavar or (action.choices and " ".join(map(str, action.choices))) or ""
        if action.nargs != 0 and action.option_strings:
            names += f" *{value or action.dest.upper()}*"
        rows.append(f"| {names} | {(action.help or '').replace('%%%%', '%%')} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def configuration() -> str:
    """Return what ``%config FuseMagics`` shows: each option, its default, and what it is."""
    from fuselab.magics.fuse import FuseMagics

    rows = ["| option | default | |", "|---|---|---|"]
    for name, trait in sorted(FuseMagics.class_own_traits(config=True).items()):
        rows.append(f"| `FuseMagics.{name}` | `{trait.default_value!r}` | {trait.help} |")
    return "\n".join(rows)
