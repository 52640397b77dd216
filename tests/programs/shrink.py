"""Makes a program that differs small, and a file of it that anybody can run.

What is left out must leave a difference of the same kind: the same call of the function, the same
thing compared.  The file needs torch and fusec alone.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from programs import prelude
from programs.nodes import Node, StateProgram

Check = Callable[[StateProgram], list[str]]
SECONDS = 40.0
FOLDER = Path("build", "repros")

_MAIN = """
# -- {seed}: {problem}

{source}

def run(compiler, device="cpu"):
    global f
    notes.clear()
    torch.manual_seed(0)
    exec(compile(PROGRAM, "program", "exec"), globals())
    function = compiler(f)
    for call in CALLS:
        for _ in range(2):
            try:
                call(function)
            except Exception as problem:
                note("raised", type(problem).__name__)
                print(f"  {{call.__name__}}: {{type(problem).__name__}}: {{str(problem)[:300]}}")
                return list(notes)
    return list(notes)


if __name__ == "__main__":
    import fusec

    PROGRAM = {text!r}
    eager, mine = run(lambda f: f), run(fusec.compile)
    for (what, want), (_, got) in zip(eager, mine):
        if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
            if type(want) is not type(got) or want != got:
                print(f"{{what}}: {{got}} instead of {{want}}")
            continue
        same = want.shape == got.shape and want.dtype == got.dtype
        if not same or not torch.allclose(want.double(), got.double(), 1e-3, 1e-3, True):
            print(f"{{what}}:\\n{{got}}\\ninstead of\\n{{want}}")
    print(f"{{len(eager)}} notes of eager, {{len(mine)}} of fusec")
"""


def shrunk(
    program: StateProgram, check: Check, *, seconds: float = SECONDS
) -> tuple[StateProgram, list[str]]:
    """Return a smaller program that still differs in the same way, and how it does.

    Args:
        program: It differs.
        check: Returns what is wrong with a program.
        seconds: After which it is left as small as it is by then.
    """
    end = time.monotonic() + seconds
    found = check(program)
    if not found:
        return program, found
    wanted = _kind(found[0])
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(program):
            if time.monotonic() > end:
                return program, found
            if candidate == program:
                continue
            texts = _checked(candidate, check)
            if any(_kind(text) == wanted for text in texts):
                program, found, smaller = candidate, texts, True
                break
    return program, found


def _checked(program: StateProgram, check: Check) -> list[str]:
    try:
        return check(program)
    except Exception:
        return []  # it is no program any more


def _kind(problem: str) -> str:
    """Return what is compared and how it differs, without which call and by how much."""
    parts = re.sub(r"call \d+( again)*: ", "", problem).split(": ")
    what = parts[0] if len(parts) > 1 else ""
    how = "elements differ" if "elements differ" in problem else " ".join(parts[1:2])
    return re.sub(r"\d+", "", what) + re.sub(r"[-\d.]+", "", how)[:40]


def _candidates(program: StateProgram) -> Iterator[StateProgram]:
    """Yield smaller programs, those that lack most first."""
    for place in range(len(program.calls)):
        if len(program.calls) > 1:
            yield replace(program, calls=_without(program.calls, place))
    for body in _smaller(program.body):
        yield replace(program, body=body)
    for place in range(len(program.results)):
        if len(program.results) > 1:
            yield replace(program, results=_without(program.results, place))
    for place, call in enumerate(program.calls):
        for smaller in _smaller(call):
            calls = (*program.calls[:place], smaller, *program.calls[place + 1 :])
            yield replace(program, calls=calls)
    for place in range(len(program.modules)):
        yield replace(program, modules=_without(program.modules, place))
    for place, name in enumerate(program.parameters):
        if len(program.parameters) > 1:
            yield _without_parameter(program, place, name)
    yield from _simpler_inputs(program)


def _without(values: Sequence, place: int) -> tuple:  # type: ignore[type-arg]
    return (*values[:place], *values[place + 1 :])


def _smaller(nodes: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
    """Yield statements less one, or with a block's statements in place of the block."""
    for place, node in enumerate(nodes):
        before, after = tuple(nodes[:place]), tuple(nodes[place + 1 :])
        yield (*before, *after)
        if node.body:
            yield (*before, *node.body, *after)
            for body in _smaller(node.body):
                if body:
                    yield (*before, replace(node, body=body), *after)


def _without_parameter(program: StateProgram, place: int, name: str) -> StateProgram:
    def lacks(nodes: Sequence[Node]) -> tuple[Node, ...]:
        kept = [n for n in nodes if not re.match(rf"{name} = |note\(\"{name}\.", n.text)]
        return tuple(
            replace(
                n,
                text=re.sub(r"\bf\(([^()]*)\)", lambda m: _less(m[0], m[1], name), n.text),
                body=lacks(n.body),
            )
            for n in kept
        )

    return replace(
        program,
        parameters=_without(program.parameters, place),
        calls=tuple(lacks(call) for call in program.calls),
    )


def _less(whole: str, inside: str, name: str) -> str:
    given = [each.strip() for each in inside.split(",")]
    return f"f({', '.join(each for each in given if each != name)})" if name in given else whole


def _simpler_inputs(program: StateProgram) -> Iterator[StateProgram]:
    """Yield programs with ordinary inputs, and with smaller ones."""
    for flag in (", turned=True", ", negated=True", ", inference=True", ", grad=True"):
        for number, call in enumerate(program.calls):
            for place, node in enumerate(call):
                if flag in node.text and " = tensor(" in node.text:
                    simpler = replace(node, text=node.text.replace(flag, ""))
                    changed = (*call[:place], simpler, *call[place + 1 :])
                    yield replace(
                        program,
                        calls=(*program.calls[:number], changed, *program.calls[number + 1 :]),
                    )
    for old, new in (("8", "4"), ("4", "2"), ("2", "1")):
        yield _resized(program, old, new)


def _resized(program: StateProgram, old: str, new: str) -> StateProgram:
    """Return a program with another number wherever a size can stand."""

    def sized(text: str) -> str:
        return re.sub(
            r"(\[[\d, ]+\]|\(\d+, \d+[^()]*\)|\(\d+,?\))",
            lambda m: re.sub(rf"\b{old}\b", new, m[0]),
            text,
        )

    def all_of(nodes: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(replace(n, text=sized(n.text), body=all_of(n.body)) for n in nodes)

    return replace(
        program,
        modules=all_of(program.modules),
        body=all_of(program.body),
        calls=tuple(all_of(call) for call in program.calls),
    )


def repro(program: StateProgram, problems: Sequence[str], folder: Path = FOLDER) -> Path:
    """Write a file that shows the difference; it needs torch and fusec alone.

    Args:
        program: The program, shrunk.
        problems: How it differs.
        folder: Where the file goes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"program_{program.seed}.py"
    head = inspect.getsource(prelude).replace(
        "import torch\n", "import torch\nimport torch.nn.functional as F\n", 1
    )
    comment = "\n".join(f"# {line}" for line in program.source.splitlines())
    main = _MAIN.format(
        seed=f"state program {program.seed}",
        problem=" ".join(problems[0].split())[:200] if problems else "",
        source=comment,
        text=program.source,
    )
    path.write_text(head + main)
    return path


__all__ = ["repro", "shrunk"]
