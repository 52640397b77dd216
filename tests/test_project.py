"""The rules of the house that a program can check; each check is shown to find something."""

from __future__ import annotations

import ast
import functools
import gc
import importlib.metadata
import os
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import fusec
import fuselab
import run
from support.sampling import left_out

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"fuselab": ROOT / "ext/fuselab", "fusec": ROOT / "compiler/fusec"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {".py", ".pyi", ".js", ".css", ".h", ".cpp", ".html", ".j2", ".txt", ".md", ".toml"}
LONGEST = 800
FULLEST = 25

FORBIDDEN = {
    "TorchInductor": re.compile(r"torch\._inductor"),
    "loading a pickle": re.compile(
        r"\bpickle\.(load|loads|Unpickler)\b|\bweights_only\s*=\s*False"
    ),
    "a shell": re.compile(r"\bshell\s*=\s*True|\bos\.system\("),
    "fast math as a whole": re.compile(r"-ffast-math|-Ofast"),
}
# Prose may name what code may not use.
QUOTED = re.compile(r"`+[^`]*`+")
# What must be found, and what must not be, so that a check that finds nothing says something.
SAMPLES = {
    "TorchInductor": ("import torch._inductor.config", "import torch._dynamo"),
    "loading a pickle": ("pickle.loads(data)", "json.loads(data)"),
    "a shell": ("run('ls', shell=True)", "run(['ls'], shell=False)"),
    "fast math as a whole": ("g++ -ffast-math", "g++ -fno-math-errno"),
}


def sources(*folders: Path, suffixes: set[str]) -> Iterator[Path]:
    """Walk the files as they are on disk, so that one not yet committed is checked as well."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            fetched = {"node_modules", "__pycache__"}.intersection(path.parts)
            if path.suffix in suffixes and not fetched and path.is_file():
                yield path


@functools.cache
def imported(source: str) -> set[str]:
    """List the full names of the modules that a source imports, wherever it does so."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def offenders(package: str, banned: set[str]) -> list[str]:
    found = []
    for path in sources(PACKAGES[package], suffixes={".py"}):
        text = path.read_text()
        if not any(name in text for name in banned):
            continue  # what is imported is named: most files need not be parsed
        names = imported(text)
        tops = {name.split(".")[0] for name in names} & banned
        found += [f"{path.relative_to(ROOT)} imports {top}" for top in sorted(tops)]
    return found


# --- names ---------------------------------------------------------------------------------

# Words that say nothing of what they name; the rules about fusion are called so by users, too.
VAGUE = re.compile(r"(?:^|_)(?:near|apart|together|ahead|late|settle|wish(?:es)?)(?:_|$)")
# ``near`` is a kind of jump of x86, ``ahead`` the package of what is compiled ahead of time.
FIELD = {"near_branch_target", "ahead"}
RULES = {"apart", "together", "_apart", "_together"}
# One for each target, which calls its own so.
PARALLEL = {"Writer", "KernelWriter"}


def named(tree: ast.AST) -> Iterator[str]:
    """Yield what a file gives names to: functions, classes, arguments, variables, fields."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def vague(tree: ast.AST) -> set[str]:
    return {name for name in named(tree) if VAGUE.search(name)} - FIELD - RULES


def test_names_are_the_fields_and_mean_one_thing() -> None:
    assert vague(ast.parse("def take_apart(late, x): near_ones = x")) == {
        "take_apart",
        "late",
        "near_ones",
    }
    found: dict[str, set[str]] = {}
    homes: dict[str, list[str]] = {}
    for path in sources(*PACKAGES.values(), suffixes={".py"}):
        if "content" in path.parts:
            continue  # what the labs' answers define is their own
        text, file = path.read_text(), path.relative_to(ROOT).as_posix()
        # Most files have no such word, in any place, and need not be parsed.
        words = {*re.findall(r"\w+", text)} - FIELD - RULES
        if any(VAGUE.search(word) for word in words):
            found[file] = vague(ast.parse(text))
        for name in re.findall(r"^ *class (\w+)", text, re.MULTILINE):
            homes.setdefault(name, []).append(file)
    assert not {file: names for file, names in found.items() if names}
    assert not {
        name: files
        for name, files in homes.items()
        if len(files) > 1 and name not in PARALLEL and not name.startswith("_")
    }


# --- the distribution ----------------------------------------------------------------------


def test_one_version_everywhere() -> None:
    versions = {
        fusec.__version__,
        fuselab.__version__,
        PROJECT["version"],
        importlib.metadata.version("fuselab"),
    }
    assert versions == {PROJECT["version"]}


def test_the_backend_is_found_by_torch() -> None:
    import torch._dynamo

    entry_points = importlib.metadata.entry_points(group="torch_dynamo_backends", name="fusec")
    assert len(entry_points) == 1
    assert callable(next(iter(entry_points)).load())
    assert "fusec" in torch._dynamo.list_backends()


def test_the_packages_come_from_this_tree_and_carry_their_types() -> None:
    for module, folder in ((fuselab, PACKAGES["fuselab"]), (fusec, PACKAGES["fusec"])):
        assert module.__file__ is not None
        assert Path(module.__file__).parent == folder
        assert (folder / "py.typed").exists()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs), "a constraint is not name==version"
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_dependency_is_pinned_inside_its_range() -> None:
    pinned = pins()
    extras = PROJECT["optional-dependencies"]
    wanted = ("torch", "lab", "dev", "docs")
    requirements = [*PROJECT["dependencies"], *(each for name in wanted for each in extras[name])]
    requirements = [each for each in requirements if each != "fuselab[torch]"]
    assert len(requirements) > 20
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} has no pin"
        assert requirement.specifier.contains(pinned[name]), f"{text} excludes its pin"


def test_what_runs_packages_brings_no_torch() -> None:
    assert not any(
        Requirement(each).name in ("torch", "triton") for each in PROJECT["dependencies"]
    )
    extras = dict(PROJECT["optional-dependencies"])
    assert extras.pop("runtime") == []
    assert [Requirement(each).name for each in extras.pop("torch")] == ["torch", "triton"]
    assert all("fuselab[torch]" in each for each in extras.values())


def test_pins_hold_no_index_no_path_and_no_local_version() -> None:
    text = "".join(
        line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] != "#"
    )
    assert not re.search(r"https?:|file:|@|/|\+", text)
    assert pins()["torch"] == "2.13.0"


# --- the text ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", FORBIDDEN)
def test_forbidden_text(rule: str) -> None:
    bad, good = SAMPLES[rule]
    assert FORBIDDEN[rule].search(bad)
    assert not FORBIDDEN[rule].search(good)
    assert not FORBIDDEN[rule].search(QUOTED.sub("", f"# No need of ``{bad}`` here."))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources(*PACKAGES.values(), suffixes=OURS)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if FORBIDDEN[rule].search(QUOTED.sub("", line))
    ]
    assert not found, f"{rule}:\n" + "\n".join(found)


def test_no_pickle_is_imported() -> None:
    assert not offenders("fusec", {"pickle", "dill", "cloudpickle", "marshal", "shelve"})
    assert not offenders("fuselab", {"pickle", "dill", "cloudpickle", "marshal", "shelve"})


def test_no_file_is_too_long() -> None:
    lengths = {
        path.relative_to(ROOT): len(path.read_text().splitlines())
        for path in sources(*PACKAGES.values(), ROOT / "tests", suffixes={".py", ".js", ".css"})
        if "golden" not in path.parts and "static" not in path.parts
    }
    assert lengths[Path("tests/test_project.py")] > 100
    assert {path: n for path, n in lengths.items() if n > LONGEST} == {}


def test_no_folder_is_too_full() -> None:
    """A newcomer finds the place for a change from the names of folders."""
    modules = sources(*PACKAGES.values(), suffixes={".py"})
    counts = Counter(path.parent.relative_to(ROOT) for path in modules)
    assert counts[Path("compiler/fusec/lower")] > 5
    assert {folder: n for folder, n in counts.items() if n > FULLEST} == {}


def test_imports_are_seen_wherever_they_stand() -> None:
    source = "def f():\n    from fuselab.panel import x\nimport os.path as p\nfrom . import y"
    assert imported(source) == {"fuselab.panel", "fuselab.panel.x", "os.path"}


def test_the_compiler_knows_nothing_of_notebooks() -> None:
    above = {
        "fuselab",
        "IPython",
        "ipywidgets",
        "anywidget",
        "matplotlib",
        "ipykernel",
        "traitlets",
    }
    assert offenders("fusec", above) == []
    # The same walk finds what is there: the demo's imports of Jupyter.
    assert "ext/fuselab/demo.py imports nbclient" in offenders("fuselab", {"nbclient"})


def tracked() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    paths = [ROOT / os.fsdecode(name) for name in listed.split(b"\0") if name]
    return [path for path in paths if path.is_file()]


def test_nothing_committed_names_a_machine() -> None:
    # Folders of a person or of a build machine, and addresses of package indexes.
    machine = re.compile(
        rb"/home/[a-z]|/root/|/work/|/Users/[A-Za-z]|--(extra-)?index-url\s"
        rb'|"resolved":'  # where npm fetched a package from, in its lock file
    )
    assert machine.search(b"see /home/someone/x")
    texts = {
        ".py",
        ".md",
        ".toml",
        ".txt",
        ".ipynb",
        ".yaml",
        ".yml",
        ".json",
        ".j2",
        ".js",
        ".css",
        "",
    }
    here = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in tracked()
        if path.suffix in texts and path != here
        for match in machine.finditer(path.read_bytes())
    ]
    assert not found


# --- the commands --------------------------------------------------------------------------


def test_make_alone_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.M)[1].split())  # type: ignore[index]
    result = subprocess.run(["make", "-C", str(ROOT)], capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^  make ([\w-]+)", result.stdout, re.M))
    assert {"demo", "lab", "test", "lint", "format", "clean", "help"} <= targets == listed


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([0, 0], 0), ([0, 5], 0), ([5, 0], 0), ([1, 5], 1), ([0, 1], 1), ([5, 5], 5)],
)
def test_both_halves_of_the_tests_decide(codes: list[int], expected: int) -> None:
    assert run.exit_code(codes) == expected


def test_both_halves_of_the_tests_are_counted(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite tests="7" failures="1" errors="0" skipped="2"/></testsuites>'
    )
    none = run.count(tmp_path / "missing.xml")
    line = run.summary(run.add(run.count(report), none), 1.5)
    assert line.strip("= ") == "1 failed, 4 passed, 2 skipped in 1.50s (all runs)"
    assert "no tests ran" in run.summary(none, 0)


def test_what_is_run_by_name_is_executable() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_a_sample_has_every_value_of_every_parameter() -> None:
    def item(name: int, dtype: int) -> Any:
        parameters = SimpleNamespace(indices={"name": name, "dtype": dtype})
        return SimpleNamespace(name=f"test[{name}-{dtype}]", callspec=parameters)

    items = [item(name, dtype) for name in range(7) for dtype in range(3)]
    left = left_out(items, 7)
    kept = [each.callspec.indices for each in items if each not in left]
    assert len(kept) == 7
    assert {each["name"] for each in kept} == set(range(7))
    assert {each["dtype"] for each in kept} == set(range(3))
    assert left_out(items[::-1], 7) == left, "the same, in whatever order they come"
    assert left_out(items, 99) == []


@pytest.mark.parametrize("module", [fusec, fuselab])
def test_no_file_takes_the_name_of_a_public_function(module: Any) -> None:
    # Importing `fuselab/edit.py` would put the module in the place of `fuselab.edit`.
    folder = PACKAGES[module.__name__]
    defined = {
        node.name
        for node in ast.parse((folder / "__init__.py").read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    } | set(getattr(module, "_HOMES", ()))
    files = {path.stem for path in folder.iterdir()} - {"__init__", "__pycache__"}
    assert len(defined) > 4
    assert defined & files == set()


def test_files_with_tests_that_run_alone_are_found() -> None:
    found = run.marked()
    assert {"tests/ext/panel/test_quiet.py", "tests/compiler/timing/test_measure.py"} <= set(found)
    assert "tests/test_project.py" not in found


def test_nobody_looks_for_garbage_after_each_compilation() -> None:
    """It took the tests a fiftieth of their time (tests/conftest.py)."""
    looked: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        looked.append(info["generation"])

    assert gc.isenabled()
    torch.compile(lambda x: x - 1, backend="eager")(
        torch.ones(2)
    )  # what it imports is another matter
    gc.collect()  # by itself the collector has no reason to look at more than the young ones now
    gc.callbacks.append(note)
    try:
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    finally:
        gc.callbacks.remove(note)
    assert not any(looked)
