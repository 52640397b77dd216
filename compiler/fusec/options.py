"""The options of a compilation: one frozen value, checked when it is made."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from fusec.abilities import Abilities
from fusec.errors import BadOption
from fusec.machine import MachineFacts, this_machine
from fusec.rule_text import read_loop_rules, read_rules
from fusec.target_api.base import Target
from fusec.target_api.registry import AUTO, NAMES, chosen_target, find_target

PRODUCTS = ("small", "auto", "extern", "template")
LAYERS = ("whole", "once")


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def read_bytes(given: int | str | None) -> int | None:
    """Return a number of bytes: ``400 * 2**20``, ``"400MiB"``, ``"0.5 GB"``.

    Raises:
        BadOption: It is none, or not more than 0.
    """
    if given is None:
        return None
    match = re.fullmatch(r"([0-9.]+) *([A-Za-z]*)", str(given).strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    try:
        found = int(float(match[1]) * unit) if match and unit else 0
    except ValueError:
        found = 0
    if found <= 0 or isinstance(given, bool):
        raise BadOption("memory_budget", given, ("bytes as a number", "'400MiB'", "'0.5GB'"))
    return found


@dataclass(frozen=True)
class Options:
    """How to compile.

    Attributes:
        target: ``auto`` takes C++ for CPU tensors and Triton for CUDA tensors; the name of a target
            (a folder of ``fusec/targets``) asks for that one wherever it can compute.  ``triton``
            for CPU tensors emits and cross-compiles the kernels and runs them in Triton's
            interpreter.
        dynamic: As ``torch.compile``: None lets a size become symbolic when it changes,
            True makes sizes symbolic at once, False never does.
        name: Prefix of the kernels' names; empty for names made from the operators.
        emulate_rounding: Round half-precision values wherever eager would.
        eager_random: Take random numbers from eager's own stream: exactly the numbers that eager
            would draw, by ATen's own kernels. Otherwise kernels compute them where they are used;
            ``torch.manual_seed`` makes either repeatable.
        matmul: How matrix products run where kernels are Triton's: ``extern`` calls BLAS,
            ``template`` writes kernels with what comes before and after in them, ``small`` does so
            on a GPU for products that take less time than calling BLAS, for those of a vector with
            a matrix of contiguous rows, and for those whose rows BLAS is slow to write (a
            vocabulary of 50257), ``auto`` measures both on the GPU at the first compilation and
            takes the faster one (without a GPU, BLAS).
        gpu: Architecture that Triton kernels are cross-compiled for where there is no GPU:
            ``sm_90``, ``sm_80``, ``gfx942`` ...
        machine: What kernels are made for, in place of the machine that this is.
        cuda_graphs: Capture what runs on a GPU as CUDA graphs, one for each combination of sizes.
            Outputs are memory of their own at every call. Where that is not possible it runs
            without; ``fusec.explain`` says why. ``torch.compile(mode="reduce-overhead")`` asks for
            it, too.
        apart: Pairs of computations that must not share a kernel, by the names that the fusion
            graph shows: ``("gelu:layer_norm",)``; see ``schedule.rules``.
        together: Pairs that share one wherever it is legal, however little that saves.
        loops: How the loops of kernels are to run, whatever the heuristics say, each by a
            computation that the kernel makes: ``("softmax: rows prefetch=0",)``; see
            ``rule_text.loop_rule``.
        without: Passes over the graph to leave out, by the names that the *stages* show
            (``("channels_last",)``): to see what each one is good for. Those that results would be
            wrong without are refused.
        memory_budget: Bytes that the logits of a loss may take, as a number or as ``"400MiB"``: a
            linear layer with its cross-entropy whose logits would take more is computed some rows
            at a time, gradients with it. The weight's gradient is rounded once a part then.
        layers: Of a module whose layers are built alike (``ModuleList``, ``Sequential``): ``whole``
            captures all of it and fuses across layers; ``once`` captures and compiles one layer for
            all of them, so that the first call of thirty takes as long as that of two. What is
            around the layers is compiled by itself.
        tuned: Start from the settings that tuning found earlier for the same kernel on the same
            device, rather than from those that the rules choose.
        keep_inputs: Keep the inputs of the latest call of each graph, so that it can be
            checked and timed on real data.
    """

    target: str = AUTO
    dynamic: bool | None = None
    name: str = ""
    emulate_rounding: bool = False
    eager_random: bool = False
    matmul: str = "small"
    gpu: str = "sm_90"
    machine: MachineFacts | None = None
    cuda_graphs: bool = False
    apart: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    memory_budget: int | str | None = None
    layers: str = "whole"
    tuned: bool = True
    keep_inputs: bool = False

    def __post_init__(self) -> None:
        """Refuse values outside their range, in one line that says what is allowed."""
        if self.target not in NAMES:
            raise BadOption("target", self.target, NAMES)
        if self.matmul not in PRODUCTS:
            raise BadOption("matmul", self.matmul, PRODUCTS)
        if self.dynamic not in (None, True, False):
            raise BadOption("dynamic", self.dynamic, ("None", "True", "False"))
        if self.layers not in LAYERS:
            raise BadOption("layers", self.layers, LAYERS)
        read_bytes(self.memory_budget)
        for name in ("apart", "together"):
            given = getattr(self, name)
            if given:
                given = read_rules(name, given)
            object.__setattr__(self, name, tuple(given))  # a list from a mapping will do
        if self.loops:
            object.__setattr__(self, "loops", read_loop_rules(self.loops))
        passes: object = self.without  # a name alone, and a list from a mapping, will do
        names = (passes,) if isinstance(passes, str) else tuple(self.without)
        object.__setattr__(self, "without", names)
        if self.name and not self.name.isidentifier():
            raise BadOption("name", self.name, ("a Python identifier",))

    @property
    def facts(self) -> MachineFacts:
        """What kernels are made for."""
        return self.machine or this_machine(self.gpu)

    @property
    def budget(self) -> int | None:
        """How many bytes logits may take; None where it does not matter."""
        return read_bytes(self.memory_budget)

    @property
    def asked(self) -> Target | None:
        """The target that is asked for by its name; None for whatever suits a device."""
        return None if self.target == AUTO else find_target(self.target)

    def target_for(self, device: str) -> Target:
        """Return the target of kernels that write tensors of a device.

        Args:
            device: The type of torch's device.
        """
        return chosen_target(self.target, device)

    def abilities(self, device: str) -> Abilities:
        """Return what kernels for a device may do, as far as options let them."""
        found = self.target_for(device).abilities
        own = self.asked is None or self.asked.abilities.products
        return found if own and self.matmul != "extern" else replace(found, products=False)

    @classmethod
    def from_mapping(cls, given: dict[str, Any] | None) -> Options:
        """Make options from ``torch.compile(..., options={...})``.

        Raises:
            BadOption: A key that is no option, or a value outside its range.
        """
        known = {field.name for field in fields(cls)}
        for key in given or {}:
            if key not in known:
                raise BadOption("option", key, tuple(sorted(known)))
        return cls(**(given or {}))
