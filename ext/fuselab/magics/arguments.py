"""What the magics' options take, and what is said of those that are wrong."""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic_arguments import parse_argstring

from fusec.devices import GPU
from fusec.errors import FusecError
from fusec.target_api.registry import AUTO, all_targets


def parsed(magic: Any, name: str, line: str) -> argparse.Namespace:
    """Read a magic's options.

    Args:
        magic: The bound method.
        name: As a user writes it: ``%%fuse``.
        line: What stands after it.

    Raises:
        UsageError: One line that says what is wrong and what is allowed.
    """
    try:
        return parse_argstring(magic, line)  # type: ignore[no-any-return]
    except UsageError as error:
        raise UsageError(_explained(str(error), magic, name, line)) from None
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{name}: {error}") from None
    except ValueError as error:  # a quotation mark without its partner
        raise UsageError(f"{name}: {str(error).lower()} in {line!r}") from None


def seconds(text: str) -> float:
    """Read a positive number of seconds."""
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def identifier(text: str) -> str:
    """Read a Python identifier."""
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not a Python identifier")
    if keyword.iskeyword(text):
        raise argparse.ArgumentTypeError(f"{text!r} is a keyword of Python; {text}_ is not")
    return text


def names(text: str) -> tuple[str, ...]:
    """Read names separated by commas."""
    return tuple(identifier(part.strip()) for part in text.split(",") if part.strip())


def pairs(text: str) -> tuple[str, ...]:
    """Read pairs of computations separated by commas."""
    from fusec.rule_text import read_rules  # imports the compiler

    try:
        return read_rules("pair", text)
    except FusecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def loop_rules(text: str) -> tuple[str, ...]:
    """Read rules about loops separated by semicolons."""
    from fusec.rule_text import read_loop_rules  # imports the compiler

    try:
        return read_loop_rules(text.strip("'\""))  # IPython leaves the quotation marks
    except FusecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def passes(text: str) -> tuple[str, ...]:
    """Read names of passes over the graph, separated by commas."""
    from fusec.graph.pipeline import check_without  # imports the compiler

    found = names(text)
    try:
        check_without(found)
    except FusecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found


def is_number(text: str) -> bool:
    """Whether a word can only be a number of seconds."""
    return re.fullmatch(r"\d+(\.\d*)?s?", text) is not None


def _explained(message: str, magic: Any, name: str, line: str) -> str:
    """Say in one line what is wrong and what is allowed.

    What is wrong is read off argparse's own words: its errors have nothing else.
    """
    known = [a.option_strings[-1] for a in magic.parser._actions if a.option_strings]
    if match := re.match(r"unrecognized arguments: (\S+)", message):
        wrong = match[1]
        if wrong in {"-h", "--help"}:
            return f"{name}? shows the options: {', '.join(known)}"
        if joined := _joined(wrong, magic, line):
            return f"{name}: several of {joined.partition(' ')[0]} are joined by commas: {joined}"
        if not wrong.startswith("-"):
            return f"{name}: {wrong!r} is a word too many ({name}? shows what it takes)"
        if not known:
            return f"{name} takes no options: leave out {wrong} ({name}? shows what it takes)"
        similar = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
        hint = f"; did you mean {similar[0]}?" if similar else ""
        return f"{name}: there is no option {wrong}{hint} (allowed: {', '.join(known)})"
    if "required" in message and "name" in message:
        whose = "file" if name == "%fuse_package" else "kernel"
        return f"{name} takes a {whose}'s name ({name}? shows the options)"
    text = message.replace("argument ", "", 1).replace("(choose from ", "(allowed: ")
    option = text.partition(":")[0].split("/")[-1]
    choices = [a.choices for a in magic.parser._actions if option in a.option_strings and a.choices]
    if choices and "allowed" not in text:
        text += f" (allowed: {', '.join(choices[0])})"
    if choices and AUTO in choices[0] and (meant := _target(message)):
        text = text.replace(" (allowed", f", did you mean {meant}? (allowed", 1)
    return f"{name}: {text}"


# What people call a GPU that a target is for.
_GPUS = frozenset("gpu nvidia ptx sass h100 a100 hip rocm amd".split())


def _target(message: str) -> str:
    """Return the target that somebody means who names a device, or writes it in another way."""
    found = re.search(r"invalid choice: '([^']+)'", message)
    wrong = found[1].lower() if found else ""
    device = GPU if wrong in _GPUS else wrong
    for target in all_targets():
        if device in target.default_for or wrong == target.title.lower():
            return target.name
    similar = difflib.get_close_matches(wrong, [t.name for t in all_targets()], n=1)
    return similar[0] if similar else ""


def _joined(wrong: str, magic: Any, line: str) -> str:
    """Return an option with its values as they should be written: ``--out y,z`` for ``--out y z``.

    Args:
        wrong: The first word that the parser did not understand.
        magic: The bound method.
        line: What the user wrote.

    Returns:
        Empty where the word is something else.
    """
    lists = {s for a in magic.parser._actions if a.type in _LISTS for s in a.option_strings}
    option, values = "", list[str]()
    for word in line.split():
        if word.startswith("-"):
            if wrong in values:
                break
            option, values = word, []
        else:
            values.append(word)
    if wrong not in values[1:] or option not in lists:
        return ""
    return f"{option} {','.join(value.strip(',') for value in values)}"


_LISTS = frozenset({names, pairs, passes})
