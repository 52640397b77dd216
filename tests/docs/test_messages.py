"""Every text that people see keeps to the house's rules; see ``support.messages``."""

from __future__ import annotations

import re

import pytest

from support.messages import Message, catalogue, collect

LONGEST = 200  # letters, what is put in not counted
# Words that say nothing, blame somebody, or are another field's.
BANNED = re.compile(  # an "illegal memory access" is CUDA's
    r"\b(invalid|illegal (?!memory)|bad (?!word)|oops|sorry|unfortunately|simply|obviously|"
    r"must not be none|unexpected error|something went wrong|unsupported|utilize|whilst|stuff)\b",
    re.IGNORECASE,
)
# The project's own words for what the field has a word for, and "it is no tensor" for "not a".
OURS = re.compile(
    r"\b(as near to eager as|large launches|op\d+)\b|(?<!there )\bis no (?!longer\b|larger\b)[a-z]"
)


def said(message: Message) -> str:
    return re.sub(r"\{[^{}]*\}", "", message.text)


def faults(message: Message) -> list[str]:
    text = said(message).strip()
    found = []
    if message.kind == "text":  # a heading, a part of a sentence, or several
        found += (
            ["has a word that says nothing"] if BANNED.search(text) or OURS.search(text) else []
        )
        return found + ([f"has {len(text)} letters"] if len(text) > 1.2 * LONGEST else [])
    sentence = bool(re.match(r"[A-Z{]", message.text)) and message.text.endswith(".")
    if message.text.endswith(".") and not sentence:
        found.append("ends in a point: it stands within a line")
    if len(text) > LONGEST:
        found.append(f"has {len(text)} letters")
    if BANNED.search(text) or OURS.search(text):
        found.append("has a word that says nothing")
    if "  " in message.text.replace("\n", ""):
        found.append("has two spaces in a row")
    first = re.match(r"[A-Z][a-z]+\b", message.text)
    names = {"Triton", "Python", "Linux", "Windows", "TorchDynamo", "Every", "Passed", "Refused"}
    if first and not sentence and first.group() not in names and message.kind not in {"say"}:
        found.append("begins like a sentence: it stands within a line")
    return found


def test_there_are_as_many_as_one_expects() -> None:
    assert len(collect()) > 1000
    files = {message.file for message in collect()}
    assert {"ext/fuselab/errors.py", "compiler/fusec/verify/check.py"} & files


@pytest.mark.parametrize("package", ["compiler", "ext"])
def test_messages_keep_the_rules(package: str) -> None:
    wrong = [
        f"{m.file}:{m.line}: {m.text!r} {fault}"
        for m in collect()
        if m.file.startswith(package)
        for fault in faults(m)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_catalogue_has_them_all() -> None:
    page = catalogue()
    assert page.count("\n- **") == len(collect())
