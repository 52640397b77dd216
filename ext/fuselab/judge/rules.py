"""What the text of a Python answer may hold: enough to compute, nothing to look around with.

The process that runs an answer holds nothing worth stealing; these rules say early, and in words,
what would only be tried to get round the question.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

MODULES = frozenset(
    "__future__ collections dataclasses enum functools heapq itertools math operator re typing "
    "torch string bisect".split()
)
TORCH_MODULES = frozenset(
    "torch torch.nn torch.nn.functional torch.linalg torch.special torch.fft".split()
)
_LONGEST = 100_000  # characters of an answer

_WHY = {
    "time": "the judge measures; an answer needs no clock",
    "timeit": "the judge measures; an answer needs no clock",
    "threading": "work must be done when the function returns, and torch has threads of its own",
    "multiprocessing": "work must be done when the function returns",
    "concurrent": "work must be done when the function returns",
    "asyncio": "work must be done when the function returns",
    "sys": "an answer may not look at the process that runs it",
    "gc": "an answer may not look at the process that runs it",
    "inspect": "an answer may not look at its callers",
    "os": "an answer may not look at the machine",
    "atexit": "an answer ends when its function returns",
    "ctypes": "memory is what the arguments are",
    "fusec": "the compiler is what you take the place of",
    "fuselab": "the judge is not part of the answer",
    "numpy": "what is asked for is torch",
}
_BUILTINS = {
    "eval": "write the expression itself",
    "exec": "write the statements themselves",
    "compile": "write the statements themselves",
    "open": "an answer reads no files",
    "input": "nobody answers",
    "globals": "name what you mean",
    "locals": "name what you mean",
    "vars": "name what you mean",
    "getattr": "write the attribute itself",
    "setattr": "functions of others stay as they are",
    "delattr": "functions of others stay as they are",
    "breakpoint": "nobody is there to debug",
    "__import__": "use an import statement",
    "__builtins__": "name what you mean",
}
# Of torch: what is no operator on tensors.
_TORCH = frozenset(
    "sys os compile jit hub load save ops library utils multiprocessing distributed classes "
    "set_num_threads get_num_threads set_default_dtype set_default_device overrides fx export "
    "from_file set_grad_enabled manual_seed seed package storage UntypedStorage func _dynamo "
    "set_float32_matmul_precision use_deterministic_algorithms backends autograd testing "
    "warnings inspect types ctypes builtins importlib threading futures data_ptr "
    "untyped_storage share_memory_ register_hook set_ attrgetter methodcaller compiler "
    "is_compiling set_default_tensor_type set_flush_denormal tofile dump dumps".split()
)
# What leads to frames and code, and from there to everything; no class of an answer's own has it.
_FRAMES = frozenset(
    "f_back f_builtins f_code f_globals f_locals f_trace tb_frame tb_next gi_frame gi_code "
    "gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await func_globals "
    "func_code with_traceback mro".split()
)
# Of torch, besides operators, types and constants.
_TORCH_TOO = frozenset(
    "Tensor Size Generator device dtype finfo iinfo no_grad enable_grad inference_mode autocast "
    "vmap cond while_loop is_tensor get_default_dtype newaxis typename sym_float sym_int sym_ite "
    "sym_max sym_min sym_not sym_sqrt sym_sum".split()
)
_CONSTANTS = frozenset("dtype layout memory_format qscheme".split())  # kinds of them
# Of Python's own modules: what evaluates texts, or reads and sets attributes by their names.
_BY_TEXT = frozenset(
    "get_type_hints ForwardRef evaluate_forward_ref singledispatch singledispatchmethod Formatter "
    "get_field make_dataclass update_wrapper wraps global_enum".split()
)


@dataclass(frozen=True)
class BrokenRule:
    """A rule that a text does not keep."""

    reason: str
    line: int | None = None


class _Looks(ast.NodeVisitor):
    """Collects refusals."""

    def __init__(self, modules: frozenset[str], forbids: frozenset[str], entry: str) -> None:
        self.modules, self.entry = modules, entry
        self.forbids = frozenset(map(_letters, forbids))
        self.found: list[BrokenRule] = []
        self.imported: set[str] = set()  # names that an import has bound
        self.whole: dict[str, str] = {}  # those of them that are modules, and which
        self.methods: set[ast.FunctionDef] = set()
        self.own = ""  # what the method that is looked at calls its object

    def visit_Module(self, node: ast.Module) -> None:
        for each in ast.walk(node):
            if isinstance(each, ast.Import):
                for alias in each.names:
                    top = alias.name.partition(".")[0]
                    self.whole[alias.asname or top] = alias.name if alias.asname else top
                self.imported |= set(self.whole)
            elif isinstance(each, ast.ImportFrom):
                names = {alias.asname or alias.name: alias.name for alias in each.names}
                self.imported |= set(names)
                for name, given in names.items():
                    if f"{each.module}.{given}" in TORCH_MODULES:
                        self.whole[name] = f"{each.module}.{given}"
        self.generic_visit(node)

    def refuse(self, node: ast.AST, reason: str) -> None:
        self.found.append(BrokenRule(reason, getattr(node, "lineno", None)))

    def _module(self, node: ast.AST, name: str) -> None:
        top = name.partition(".")[0]
        if top == "torch" and name not in TORCH_MODULES and "torch" in self.modules:
            self.refuse(node, f"`{name}` is not part of torch that an answer needs")
        elif top not in self.modules:
            why = _WHY.get(top, f"there are {', '.join(sorted(self.modules - {'__future__'}))}")
            self.refuse(node, f"an answer may not import `{top}`: {why}")

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._module(node, node.module or ".")
        for alias in node.names:
            if alias.name == "*":
                self.refuse(node, "import what you need by its name")
            self._way(node, node.module or "", [alias.name])

    def _name(self, node: ast.AST, name: str, *, attribute: bool) -> None:
        if _letters(name) in self.forbids and (attribute or name != self.entry):
            self.refuse(node, f"`{name}` is what you are to write yourself")
        elif name.startswith("__") and name.endswith("__") and name not in _DUNDERS:
            self.refuse(node, f"`{name}` is Python's own business, and no answer needs it")
        elif name in _BY_TEXT:
            self.refuse(node, f"`{name}` goes by a text: write the expression itself")
        elif attribute and name in _FRAMES:
            self.refuse(node, f"`{name}` looks around in Python, and no answer needs it")
        elif attribute and (name in _TORCH or (name.startswith("_") and name not in _DUNDERS)):
            self.refuse(node, f"`{name}` is not an operator on tensors; compute with tensors alone")
        elif not attribute and name in _BUILTINS:
            self.refuse(node, f"`{name}` is not for answers: {_BUILTINS[name]}")

    def _way(
        self, node: ast.AST, module: str, names: Sequence[str], *, to_the_end: bool = False
    ) -> None:
        """Refuse what leads from a module that may be imported to another one, or is no operator.

        Modules hold the modules that they need: `enum` has builtins, `torch.serialization` pickle.

        Args:
            node: Where it stands.
            module: Where it begins.
            names: Attributes, one of the other.
            to_the_end: Whether what comes out is used as a value, which no module may be.
        """
        known = module in TORCH_MODULES if "." in module else module in self.modules
        here: object = importlib.import_module(module) if known and _is_there(module) else None
        for name in names:
            here, module = getattr(here, name, None), f"{module}.{name}"
            if isinstance(here, ModuleType) and module not in TORCH_MODULES | {"collections.abc"}:
                return self.refuse(node, f"`{module}` is a module that no answer needs")
            own = module.rpartition(".")[0] == "torch" and not isinstance(here, ModuleType)
            if own and not _computes(name, here):
                return self.refuse(node, f"`{module}` is not an operator on tensors")
            if module != "re.compile":
                self._name(node, name, attribute=True)
        if to_the_end and isinstance(here, ModuleType):
            self.refuse(node, f"`{module}` is a module: name what you need of it")

    def visit_Name(self, node: ast.Name) -> None:
        self._name(node, node.id, attribute=False)
        if node.id in self.whole and isinstance(node.ctx, ast.Load):
            self.refuse(node, f"`{node.id}` is a module: name what you need of it")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        own = bool(self.own) and isinstance(node.value, ast.Name) and node.value.id == self.own
        changes = isinstance(node.ctx, (ast.Store, ast.Del))
        if changes and not own and (_root(node) in self.imported or "torch" in self.modules):
            self.refuse(node, f"`{ast.unparse(node)}` is somebody else's: it stays as it is")
        way = _names(node)
        if way and way[0] in self.whole:
            return self._way(node, self.whole[way[0]], way[1:], to_the_end=True)
        if not own or node.attr in _FRAMES or node.attr.startswith("__"):
            self._name(node, node.attr, attribute=True)
        if isinstance(node.value, ast.Name):
            self._name(node.value, node.value.id, attribute=False)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "type" and len(node.args) + len(node.keywords) != 1:
            self.refuse(node, "`type` makes a class of texts here: write a `class` statement")
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:  # a pattern reads attributes, too
            self._name(node, name, attribute=True)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name.startswith("__") and node.name not in _DUNDERS:
            self.refuse(node, f"`{node.name}` is Python's own business, and no answer needs it")
        outer = self.own
        if node in self.methods:
            self.own = _own_name(node)
        self.generic_visit(node)
        self.own = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.methods |= {each for each in node.body if isinstance(each, ast.FunctionDef)}
        self.generic_visit(node)


_DUNDERS = frozenset(
    "__init__ __len__ __getitem__ __iter__ __repr__ __str__ __name__ __bool__ __add__ __radd__ "
    "__sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __neg__ __lt__ __le__ __gt__ "
    "__ge__".split()
)


def _names(node: ast.Attribute) -> list[str]:
    """Return the names of `a.b.c` in order; none where it begins with something else."""
    found: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        found.append(inner.attr)
        inner = inner.value
    return [inner.id, *reversed(found)] if isinstance(inner, ast.Name) else []


def _own_name(node: ast.FunctionDef) -> str:
    """Return how a method names its object; empty if not as everybody does, or if it gets another.

    Who calls the method with something else gets at that: see ``answer_worker``.
    """
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    own = names[0] if names and names[0] in {"self", "cls"} else ""
    given = 0
    for each in ast.walk(node):
        read = isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)
        if not read and not isinstance(each, (ast.Attribute, ast.Constant, ast.keyword)):
            given += sum(value == own for _, value in ast.iter_fields(each))
    return own if given == 1 else ""


@functools.cache
def _operators() -> frozenset[str]:
    torch = importlib.import_module("torch")
    return frozenset(dir(torch._C._VariableFunctions)) | frozenset(torch.functional.__all__)


def _computes(name: str, value: object) -> bool:
    """Whether something of torch is an operator, a type or a constant, or does not exist at all."""
    constant = value is None or type(value).__name__ in _CONSTANTS
    return constant or isinstance(value, float) or name in _operators() | _TORCH_TOO


def _is_there(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def _letters(name: str) -> str:
    """Return a name as it is told from others: `LayerNorm` is as `layer_norm`."""
    return re.sub(r"\d+d?$", "", name.replace("_", "").lower()) or name


def _root(node: ast.Attribute) -> str:
    inner: ast.expr = node
    while isinstance(inner, (ast.Attribute, ast.Subscript)):
        inner = inner.value
    return inner.id if isinstance(inner, ast.Name) else ""


def broken_rule(
    text: str, entry: str, *, torch: bool, forbids: Sequence[str] = (), imports: Sequence[str] = ()
) -> BrokenRule | None:
    """Return the first rule that a text does not keep; None if it keeps them all.

    Args:
        text: The answer.
        entry: What it has to define.
        torch: Whether it may use torch.
        forbids: Names that may not appear.
        imports: Modules that may be imported besides the usual ones.
    """
    if not text.strip():
        return BrokenRule(f"there is no answer yet: define `{entry}`")
    modules = (MODULES if torch else MODULES - {"torch"}) | set(imports)
    looks = _Looks(modules, frozenset(forbids), entry)
    tree = _looked_through(text, looks)
    if isinstance(tree, BrokenRule):
        return tree
    if entry not in _defined(tree):
        return BrokenRule(f"nothing is called `{entry}`: define it at the top level of the answer")
    return None


def _looked_through(text: str, looks: _Looks) -> ast.Module | BrokenRule:
    """Return what a text says, or the first rule that it does not keep."""
    if len(text) > _LONGEST:
        return BrokenRule(f"an answer has at most {_LONGEST:,} characters")
    try:
        tree = ast.parse(text)
        looks.visit(tree)
    except (SyntaxError, ValueError) as error:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        return BrokenRule(f"this is not Python: {said}", getattr(error, "lineno", None))
    except (RecursionError, MemoryError):
        return BrokenRule("an expression is nested too deeply: give parts of it names")
    return min(looks.found, key=lambda each: each.line or 0) if looks.found else tree


def forbidden_operator(operators: Sequence[str], forbids: Sequence[str]) -> str:
    """Return the first operator that a task forbids, whatever function of torch led to it."""
    wanted = set(map(_letters, forbids))
    return next((op for op in operators if wanted & set(map(_letters, op.split(".")))), "")


# Of Triton: what a kernel file needs; the language is allowed but for what leaves it.
_TRITON = frozenset("jit cdiv next_power_of_2 language".split())
_LANGUAGE = frozenset(
    "inline_asm_elementwise device_print device_assert extern extra target_info".split()
)


class _TritonLooks(_Looks):
    """As its base; of Triton no more than a kernel needs."""

    def visit_Attribute(self, node: ast.Attribute) -> None:
        root = node.value.id if isinstance(node.value, ast.Name) else ""
        if root == "triton" and isinstance(node.ctx, ast.Load):
            if node.attr not in _TRITON:
                allowed = ", ".join(sorted(_TRITON))
                self.refuse(node, f"`triton.{node.attr}` is not for answers; there is {allowed}")
            return
        way = _names(node)
        if node.attr in _LANGUAGE:
            self.refuse(node, f"`{node.attr}` is not part of what is asked: compute with blocks")
        elif way[:1] == ["tl"] and len(way) > 2 and way[1] != "math":
            self.refuse(node, f"`{'.'.join(way)}` is not part of the language: compute with blocks")
        elif root == "tl" and isinstance(node.ctx, ast.Load) and not node.attr.startswith("_"):
            return
        super().visit_Attribute(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.startswith("triton.") and alias.name != "triton.language":
                self.refuse(node, f"`{alias.name}` is not for answers")
        super().visit_Import(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").partition(".")[0] == "triton":
            self.refuse(node, "write `import triton` and `import triton.language as tl`")
        super().visit_ImportFrom(node)


def broken_triton_rule(text: str, entry: str, arguments: Sequence[str]) -> BrokenRule | None:
    """Return the first rule that a Triton file does not keep; None if it keeps them all.

    Args:
        text: The answer.
        entry: The function that starts its kernels.
        arguments: What that function takes.
    """
    if not text.strip():
        return BrokenRule(
            f"there is no answer yet: define a kernel, and `{entry}`, which starts it"
        )
    modules = frozenset({"__future__", "math", "triton"})
    tree = _looked_through(text, _TritonLooks(modules, frozenset(), entry))
    if isinstance(tree, BrokenRule):
        return tree
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    if entry not in functions:
        return BrokenRule(
            f"nothing is called `{entry}`: define the function that starts the kernel"
        )
    if not any(_is_kernel(each) for each in functions.values()):
        return BrokenRule("there is no kernel: put `@triton.jit` before a function")
    found = functions[entry]
    if _is_kernel(found):
        return BrokenRule(f"`{entry}` starts the kernel and is none itself", found.lineno)
    if len(found.args.args) != len(arguments):
        wanted = ", ".join(arguments)
        return BrokenRule(
            f"`{entry}` takes {len(arguments)} tensors: {entry}({wanted})", found.lineno
        )
    return None


def _is_kernel(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "triton.jit" for each in function.decorator_list)


def _defined(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


__all__ = ["BrokenRule", "broken_rule", "broken_triton_rule", "forbidden_operator"]
