"""What a kernel that is a file of Python must not have, read from its text before anything runs it.

The functions that Triton compiles can do nothing but compute; the code around them is ordinary
Python, in the process of the notebook, which even runs it to see what it starts.  It has to start
kernels, and to take memory for them.  What it may import, its target says.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import importlib.util
import re
import symtable
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import ModuleType

from fusec.target_api.permitted import Permitted
from fusec.verify.words import Finding

_INSTEAD = "; leave it out, or say --trust if it has to be there"
# What modules have imported themselves.
_STRANGERS = frozenset(
    "builtins contextlib core functools importlib inspect knobs os runtime semantic standard "
    "subprocess sys types typing warnings".split()
)
_CALLS = {
    "exec": "it runs code that nobody has read",
    "eval": "it runs code that nobody has read",
    "compile": "it runs code that nobody has read",
    "__import__": "it loads other code",
    "open": "it uses files",
    "input": "it waits for somebody",
    "breakpoint": "it waits for somebody",
    "exit": "it ends the process",
    "quit": "it ends the process",
    "setattr": "it changes what others use",
    "delattr": "it changes what others use",
}
# What stands in a class under such a name, Python calls; a file may say how it was started.
_SPECIAL = re.compile(r"__(?!main__)\w+__")
_REACHES = "it reaches what is not the kernel's"
# Of what Python itself has.
_BUILTINS = frozenset(
    """
    abs all any bin bool bytes chr complex dict divmod enumerate filter float format frozenset
    hasattr hex int isinstance issubclass iter len list map max min next oct ord pow print
    property range repr reversed round set slice sorted staticmethod classmethod str sum super
    tuple type zip __name__ __doc__ __file__ None True False Ellipsis NotImplemented
    """.split()
)
# By these a tensor, a generator or a compiled kernel leads elsewhere, or is another one afterwards.
_ATTRIBUTES = frozenset(
    """
    requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook backward resize_
    resize_as_ set_ storage untyped_storage share_memory_ numpy tofile dump save detach_ t_
    transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ as_strided_ rename_ apply_ map_ module_load
    gi_frame gi_code f_back f_globals f_locals f_builtins f_code tb_frame tb_next cr_frame ag_frame
    mro register_prehook add_pre_run_hook pre_run_hooks device_caches used_global_vals preload
    create_binder fn
    """.split()
)
# These draw from the numbers that the notebook draws from, too.
_DRAWS = frozenset(
    "normal_ uniform_ random_ bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ "
    "multinomial".split()
)
# What makes a value for the whole file: of these nothing can be kept.
_PURE = frozenset(
    "min max int float bool abs round len range pow sum str tuple frozenset divmod".split()
)
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_METHODS = ("staticmethod", "classmethod", "property")


def problem(text: str, permitted: Permitted) -> Finding | None:
    """Return the first thing in a text that acts on the process that runs it, with its line.

    Args:
        text: The whole kernel file; what is no Python is no matter of this function's.
        permitted: What it has a use for. The check sees nothing of other packages.
    """
    try:
        tree = ast.parse(text)
        names = _names(tree)
        found = sorted(
            [
                *_imports(tree, permitted.packages),
                *_within(tree, _foreign_names(text)),
                *_modules(tree, names, permitted.modules),
                *_kept(tree, names, permitted),
                *_loops(tree),
            ]
        )
    except (SyntaxError, ValueError):
        return None
    except (RecursionError, MemoryError):
        return Finding("compile", "it is nested deeper than Python can read")
    if not found:
        return None
    line, reason = found[0]
    return Finding("unsafe", reason + _INSTEAD, line)


def _names(tree: ast.Module) -> dict[str, str]:
    """Return what each imported name stands for, as a path from its package on."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                found[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def _imports(tree: ast.Module, may_import: Collection[str]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [("." * node.level) + (node.module or "")]
        for module in modules:
            if module.partition(".")[0] not in may_import:
                assert isinstance(node, (ast.Import, ast.ImportFrom))
                may = ", ".join(may_import)
                yield node.lineno, f"imports {module}, where a kernel file may import {may}"


def _within(tree: ast.Module, foreign: Collection[str]) -> Iterator[tuple[int, str]]:
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("__") and node.name != "__init__":
                yield node.lineno, f"has {node.name}, which Python calls by itself"
        elif isinstance(node, ast.MatchClass):
            for name in node.kwd_attrs:
                yield from _attribute(node.lineno, name)
        elif isinstance(node, ast.Global):
            kept = ", ".join(node.names)
            yield node.lineno, f"keeps `{kept}` from call to call"
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str) and _SPECIAL.fullmatch(node.value):
                yield node.lineno, f"names {node.value}, which Python calls by itself"
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store) and _SPECIAL.fullmatch(node.id):
                yield node.lineno, f"has {node.id}, which Python calls by itself"
            elif node.id in _CALLS:
                yield node.lineno, f"names {node.id}: {_CALLS[node.id]}"
            elif node.id in foreign:
                yield node.lineno, f"names {node.id}: {_REACHES}"
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node.lineno, node.attr)
            if isinstance(node.value, ast.Name) and node.value.id in functions:
                yield node.lineno, f"names {ast.unparse(node)}: {_REACHES}"
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            yield from _changed(node)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            yield from _bound(node.target)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield from _bound(node.optional_vars)


def _attribute(line: int, name: str) -> Iterator[tuple[int, str]]:
    if name.startswith("_") or name in _ATTRIBUTES:
        yield line, f"names {name}: {_REACHES}"
    elif name in _DRAWS:
        yield line, f"names {name}: it draws from torch's random numbers"


def _is_foreign(name: str) -> bool:
    """Whether a name is Python's own and none of what a kernel has a use for."""
    if name in _BUILTINS or name.endswith(("Error", "Exception", "Warning")):
        return False
    return hasattr(builtins, name) or name.startswith("__")


def _foreign_names(text: str) -> set[str]:
    """Return which of Python's own names, of no use to a kernel, a text takes from Python."""
    found: set[str] = set()
    tables = [symtable.symtable(text, "kernel", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for symbol in table.get_symbols():
            # A function's own variable of that name is another thing.
            global_ = table.get_type() == "module" or symbol.is_global()
            if symbol.is_referenced() and global_ and _is_foreign(symbol.get_name()):
                found.add(symbol.get_name())
    return found


def _modules(
    tree: ast.Module, names: Mapping[str, str], modules: Mapping[str, frozenset[str]]
) -> Iterator[tuple[int, str]]:
    """Yield what a file takes from packages and must not; a module by itself could be anything."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if alias.name == "*":
                    yield node.lineno, f"imports all of {node.module}: {_REACHES}"
                else:
                    yield from _asked(node.lineno, f"{node.module}.{alias.name}", modules)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if "." in alias.name:
                    yield from _asked(node.lineno, alias.name, modules)
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        path = _path(node, names)
        if path is None or id(node) in inner:
            continue  # the longest one is looked at
        assert isinstance(node, (ast.Name, ast.Attribute))
        if path in modules and not isinstance(node.ctx, ast.Store):
            yield node.lineno, f"hands {ast.unparse(node)} on: {_REACHES}"
        else:
            yield from _asked(node.lineno, path, modules)


def _path(node: ast.AST, names: Mapping[str, str]) -> str | None:
    """Return from which package on an expression is named; None where it is something else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        path = _path(node.value, names)
        return None if path is None else f"{path}.{node.attr}"
    return None


def _asked(
    line: int, path: str, modules: Mapping[str, frozenset[str]]
) -> Iterator[tuple[int, str]]:
    """Yield what is wrong with asking for a path, if anything is."""
    parts = path.split(".")
    module = parts[0]
    if module not in modules:
        return  # said of its import
    for part in parts[1:]:
        may = modules[module]
        refused = part not in may if may else part.startswith("_") or part in _STRANGERS
        module = f"{module}.{part}"
        if module in modules and not refused:
            continue
        there = None if refused else _there(module)
        if refused or isinstance(there, ModuleType):
            yield line, f"calls {module}: it is none of what a kernel may ask of {parts[0]}"
        elif module != path and callable(there) and not isinstance(there, type):
            yield line, f"names {path}: {_REACHES}"
        return


@functools.cache
def _there(path: str) -> object:
    """Return what a path of names leads to; None where that is not to be had.

    Modules have as attributes what they import themselves, which no list of names knows.
    """
    owner, _, name = path.rpartition(".")
    if not owner:
        try:
            return importlib.import_module(name)
        except ImportError:
            return None
    parent = _there(owner)
    found = getattr(parent, name, None)
    if found is None and isinstance(parent, ModuleType):
        try:
            known = importlib.util.find_spec(path)
        except (ImportError, ValueError):
            known = None
        if known is not None:
            return importlib.import_module(path)
    return found


def _bound(target: ast.expr) -> Iterator[tuple[int, str]]:
    for node in ast.walk(target):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, f"changes {ast.unparse(node)}, which outlives a call"


def _changed(
    node: ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete,
) -> Iterator[tuple[int, str]]:
    targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
    for target in targets:
        for each in ast.walk(target):
            if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load):
                yield node.lineno, f"changes {ast.unparse(each)}, which outlives a call"


def _kept(
    tree: ast.Module, names: Mapping[str, str], permitted: Permitted
) -> Iterator[tuple[int, str]]:
    """Yield what lives as long as the file and can be changed by a call."""
    for node in _lasting(tree.body):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
            if node.value is not None and not _is_pure(node.value, names, permitted.pure):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield node.lineno, f"keeps `{ast.unparse(target)}` from call to call"
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try)):
            kind = type(node).__name__.lower()
            yield node.lineno, f"has a `{kind}` outside of its functions"
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if any(
                not _is_pure(default, names, permitted.pure) for default in _defaults(node.args)
            ):
                yield node.lineno, f"keeps a default of `{node.name}` from call to call"
            for decorator in node.decorator_list:
                made = decorator.func if isinstance(decorator, ast.Call) else decorator
                path = _path(made, names) or ast.unparse(made)
                if path.partition(".")[0] not in (permitted.language, *_METHODS):
                    yield node.lineno, f"keeps what `{ast.unparse(made)}` makes of `{node.name}`"


def _lasting(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield every node that is run when the file is loaded, and functions without their bodies."""
    for node in body:
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _lasting(_defaults(node.args))
        elif not isinstance(node, ast.Lambda):
            yield from _lasting(ast.iter_child_nodes(node))


def _defaults(arguments: ast.arguments) -> list[ast.expr]:
    return [*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)]


def _is_pure(value: ast.expr, names: Mapping[str, str], paths: tuple[str, ...]) -> bool:
    """Whether nothing of a value can be changed: numbers, words, what is made of them."""
    if isinstance(value, ast.Lambda):
        return all(_is_pure(each, names, paths) for each in _defaults(value.args))
    for node in ast.walk(value):
        if isinstance(node, ast.Call):
            path = _path(node.func, names)
            named = isinstance(node.func, ast.Name) and node.func.id in _PURE
            if not named and (path is None or not path.startswith(paths)):
                return False
        elif isinstance(node, (*_CONTAINERS, ast.GeneratorExp, ast.Lambda, ast.Await)):
            return False
    return True


def _loops(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the host's loops that may have no end; a kernel's run where they can be ended."""
    kernels = {
        inner
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        if any("jit" in ast.unparse(each) for each in node.decorator_list)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.While) and node not in kernels:
            yield node.lineno, "has a `while` outside of its kernels, which may never end"
        elif isinstance(node, ast.Call) and _is_called(node, "iter", 2):
            yield node.lineno, "has an `iter` of a function, which may never end"


def _is_called(node: ast.Call, name: str, arguments: int) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == name and len(node.args) >= arguments


__all__ = ["problem"]
