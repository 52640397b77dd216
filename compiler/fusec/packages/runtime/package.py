"""A package that was loaded: call it as the function that it was made from."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .archive import Archive, read_archive
from .arrays import Arrays, NumpyArrays
from .binding import require_bound
from .consistency import require_weights
from .cuda import on_gpu
from .errors import CannotRun, DamagedPackage, NoSpecialization, PackageError
from .guards import Specialization, TensorFacts, Unusable, read_guards
from .json_text import Reader
from .launch import Launch
from .layout import StoredProgram, read_program
from .library import Library
from .processor import choose
from .structure import Builder, builder, flatten
from .weights import read_weights

# Calls whose guards have held, by all that guards ask of them.
_MOST_KNOWN = 4096
_KINDS = {
    "positional": inspect.Parameter.POSITIONAL_ONLY,
    "either": inspect.Parameter.POSITIONAL_OR_KEYWORD,
    "keyword": inspect.Parameter.KEYWORD_ONLY,
    "args": inspect.Parameter.VAR_POSITIONAL,
    "kwargs": inspect.Parameter.VAR_KEYWORD,
}


def load(path: str | Path, *, threads: int | None = None, device: int = 0) -> Package:
    """Read a package and check every byte of it; nothing in it is executed yet.

    Args:
        path: The ``.fuse`` file.
        threads: That a kernel may use; all of the process's processors by default.
        device: The number of the GPU that a package for GPUs runs on.

    Raises:
        DamagedPackage: It is not as it was written.
        PackageError: It cannot be read.
    """
    if type(device) is not int or device < 0:
        raise PackageError(f"device={device!r} is not the number of a GPU")
    there = functools.partial(on_gpu, device=device)
    return Package(Path(path), NumpyArrays(), there, alone=True, threads=threads)


class Package:
    """A loaded package.

    Attributes:
        name: What was packaged.
        specializations: What it was packaged for, in the order in which calls try them.
        programs: By their members' names.
        gpus: The architectures that its kernels are for; none where they are the processor's.
    """

    def __init__(
        self,
        path: Path,
        arrays: Arrays,
        on_gpu: Callable[[Archive], Arrays],
        *,
        alone: bool,
        threads: int | None = None,
    ) -> None:
        if threads is not None and (type(threads) is not int or threads < 1):
            raise PackageError(f"threads={threads!r} is not a number of threads")
        self._archive: Archive = read_archive(path)
        self._alone = alone
        self._threads = threads
        self._lock = threading.Lock()
        self._library: Library | None = None
        manifest = self._archive.manifest
        self.name = manifest.text("name")
        self._versions = manifest.texts_by_name("versions")
        self.gpus = manifest.texts("gpus") if manifest.has("gpus") else ()
        self._arrays = arrays = on_gpu(self._archive) if self.gpus else arrays
        described = Reader(self._archive.json("weights.json"), "weights.json").readers("weights")
        table = Reader(self._archive.json("guards.json"), "guards.json")
        self._signature = _signature(table)
        self._parameters = tuple(self._signature.parameters)
        self._flat = all(p.kind in _FLAT for p in self._signature.parameters.values())
        raw = {
            each.text("program"): len(each.items("leaves"))
            for each in table.readers("specializations")
        }
        self.programs: dict[str, StoredProgram] = {
            name: read_program(Reader(self._archive.json(name), name), leaves, len(described))
            for name, leaves in raw.items()
        }
        self.specializations = read_guards(table, self._sizes_of)
        self._builders: dict[str, Builder] = {}
        for each in self.specializations:
            program = self.programs[each.program]
            place = f"guards.json: {each.name}"
            counts = (len(program.outputs), len(each.guards))
            self._builders[each.name] = builder(each.result, *counts, place)
        self._binaries = manifest.readers("binaries")
        require_bound(self._archive, self._binaries)
        weights = read_weights(self._archive, described, path.parent)
        for stored in self.programs.values():
            require_weights(stored, weights)
        self._weights = [arrays.weight(each) for each in weights]
        # What serves a call, and the leaves that come after its arguments: defaults.
        self._known: dict[tuple[object, ...], tuple[Launch, tuple[Any, ...]]] = {}
        self._launches: dict[tuple[object, ...], Launch] = {}

    def _sizes_of(self, program: str) -> frozenset[str]:
        return frozenset(size.name for size in self.programs[program].sizes)

    # -- calls --------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program whose guards hold.

        Raises:
            NoSpecialization: None do; the error says which guard failed in each.
            CannotRun: What the call needs is not here: a binary for this processor, torch.
            KernelStopped: A check within a kernel failed: an index out of range.
        """
        if self._flat and not kwargs:
            key = self._arrays.key(args)
            if key is not None:
                found = self._known.get(key) or self._remember(key, args)
                return found[0]((*args, *found[1]))
        launch, leaves = self._find(args, kwargs)
        return launch(leaves)

    def find(self, *args: Any, **kwargs: Any) -> Specialization:
        """Return what serves a call, without running it.

        Raises:
            NoSpecialization: Nothing does.
        """
        _, leaves, form, facts = self._take(args, kwargs)
        found, _ = self._match(leaves, form, facts)
        return found

    def _remember(
        self, key: tuple[object, ...], args: Sequence[Any]
    ) -> tuple[Launch, tuple[Any, ...]]:
        launch, leaves = self._find(args, {})
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        found = launch, tuple(leaves[len(args) :])
        self._known[key] = found
        return found

    def _take(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Arrays, list[Any], Any, list[TensorFacts | None]]:
        """Return whose tensors a call's are, its leaves, its form, and what guards ask of each."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise NoSpecialization(self.name, {"every one": str(error)}) from None
        bound.apply_defaults()
        leaves: list[Any] = []
        form = flatten(dict(bound.arguments), leaves)
        arrays = self._arrays.at(leaves)
        leaves = [arrays.take(each) for each in leaves]
        facts = [arrays.facts(each) if arrays.is_tensor(each) else None for each in leaves]
        return arrays, leaves, form, facts

    def _find(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Launch, list[Any]]:
        arrays, leaves, form, facts = self._take(args, kwargs)
        found, sizes = self._match(leaves, form, facts)
        key = (arrays, found.name, *sizes.items())
        with self._lock:
            launch = self._launches.get(key)
            if launch is None:
                launch = Launch(
                    self.programs[found.program],
                    found.guards,
                    sizes,
                    arrays,
                    self._weights,
                    self._binary,
                    self._builders[found.name],
                    alone=self._alone,
                    threads=self._threads,
                )
                if len(self._launches) >= _MOST_KNOWN:
                    self._launches.clear()
                self._launches[key] = launch
        return launch, leaves

    def _match(
        self, leaves: Sequence[Any], form: Any, facts: Sequence[TensorFacts | None]
    ) -> tuple[Specialization, dict[str, int]]:
        reasons = {}
        for each in self.specializations:
            reason, sizes = each.failure(form, leaves, facts, self.programs[each.program])
            if not reason:
                return each, sizes
            reasons[each.name] = reason
        raise NoSpecialization(self.name, reasons)

    def _binary(self) -> Library:
        """Return the binary for this processor, which is mapped now."""
        if self._library is None:
            chosen = choose(self._binaries)
            name = chosen.text("member")
            self._library = Library(self._archive.data(name), f"{name} of {self.name}")
        return self._library

    # -- what it is ---------------------------------------------------------------------------

    @property
    def kernels(self) -> dict[str, str]:
        """The text of every kernel, generated or edited, by its member's name."""
        names = [name for name in self._archive.members if name.startswith("kernels/")]
        return {name: bytes(self._archive.data(name)).decode("utf-8") for name in names}

    @property
    def needs_torch(self) -> dict[str, tuple[str, ...]]:
        """What keeps each specialization from running without torch; empty where nothing does."""
        return {each.name: self.programs[each.program].needs_torch for each in self.specializations}

    def describe(self) -> str:
        """Return what is in the package, as text for people."""
        made = ", ".join(f"{k} {v}" for k, v in sorted(self._versions.items()))
        lines = [f"{self.name}: packaged by {made}"]
        for each in self.specializations:
            lines.append(f"  {each.name}")
            sizes = each.size_names(self.programs[each.program])
            lines += [f"    {_described(guard, sizes)}" for guard in each.guards]
            lines += [f"    fixed: {reason}" for reason in each.fixed]
            lines += [f"    needs torch: {r}" for r in self.programs[each.program].needs_torch]
        names = ", ".join([*(each.text("name") for each in self._binaries), *self.gpus]) or "none"
        lines.append(f"  binaries: {names}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        count = len(self.specializations)
        return f"<Package {self.name}: {count} specialization{'s' if count > 1 else ''}>"


_FLAT = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _described(guard: Any, names: Mapping[str, str]) -> str:
    from .expressions import text

    if hasattr(guard, "dtype"):
        shape = ", ".join(text(each, names) for each in guard.shape)
        strides = ", ".join(text(each, names) for each in guard.strides)
        return f"{guard.name}: {guard.dtype} ({shape}), strides ({strides}), {guard.device}"
    return f"{guard.name}: any whole number" if guard.free else f"{guard.name}: {guard.value!r}"


def _default(reader: Reader) -> Any:
    """Return a parameter's default: a plain value, or a tuple, list or dictionary of those."""
    if reader.has("float"):
        return float(reader.text("float"))
    if reader.has("left_out"):
        kind = reader.text("left_out")
        return Unusable(f"not given, and its default, a {kind}, is not in the package")
    if reader.has("dict"):
        pairs = [Reader(each, reader.place) for each in reader.items("dict")]
        return {each.text("key"): _default(Reader(each.raw("value"), each.place)) for each in pairs}
    for kind, make in (("tuple", tuple), ("list", list)):
        if reader.has(kind):
            return make(_default(Reader(each, reader.place)) for each in reader.items(kind))
    return reader.raw("plain")


def _signature(table: Reader) -> inspect.Signature:
    """Return the parameters of what was packaged."""
    found = []
    for each in table.readers("parameters"):
        kind = _KINDS.get(each.text("kind"))
        if kind is None:
            raise DamagedPackage(f"{each.place}: {each.text('kind')} is not a kind of parameter")
        default: Any = inspect.Parameter.empty
        if each.has("default"):
            default = _default(Reader(each.raw("default"), each.place))
        name = each.text("name")
        if not name.isidentifier():  # an empty one Python's own check does not expect
            raise DamagedPackage(f"{each.place}: {name[:40]!r} is not a name")
        try:
            found.append(inspect.Parameter(name, kind, default=default))
        except ValueError as error:
            raise DamagedPackage(f"{each.place}: {error}") from None
    try:
        return inspect.Signature(found)
    except ValueError as error:
        raise DamagedPackage(f"guards.json: {error}") from None


__all__ = ["CannotRun", "Package", "load"]
