"""What a call is like, without its data: kept as JSON, and made a call again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fusec.errors import FusecError

JSON = Any  # what json.dumps takes
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS: Mapping[type, str] = {tuple: "tuple", list: "list"}


class NotWritable(FusecError, TypeError):
    """An argument that cannot be written down as a signature."""


@dataclass(frozen=True)
class CallSignature:
    """A call's arguments: tensors by type and layout, everything else by value.

    Attributes:
        arguments: The arguments as JSON: a list of those by position and a mapping of the others.
        grad: Whether the call records for autograd.
        inference: Whether it is in inference mode.
    """

    arguments: JSON
    grad: bool = True
    inference: bool = False

    @classmethod
    def of(cls, *args: Any, **kwargs: Any) -> CallSignature:
        """Return what a call with these arguments, in torch's state now, is like.

        Raises:
            NotWritable: An argument is neither a tensor nor a plain value nor a container of such.
        """
        given = {"args": [_written(a) for a in args]}
        named = {name: _written(value) for name, value in kwargs.items()}
        return cls(
            json.loads(json.dumps({**given, "kwargs": named})),
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
        )

    def call(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments like those of the call: integers are 0, other numbers a half."""
        args = tuple(_made(value) for value in self.arguments["args"])
        return args, {name: _made(value) for name, value in self.arguments["kwargs"].items()}

    def data(self) -> JSON:
        """Return it as JSON."""
        return {"arguments": self.arguments, "grad": self.grad, "inference": self.inference}

    @classmethod
    def from_data(cls, data: JSON) -> CallSignature:
        """Return what ``data`` returned.

        Raises:
            NotWritable: It is something else.
        """
        try:
            found = cls(data["arguments"], bool(data["grad"]), bool(data["inference"]))
            if type(found.arguments["args"]) is not list:
                raise TypeError
            found.arguments["kwargs"].items()
        except (KeyError, TypeError, AttributeError):
            raise NotWritable("this is not a signature that fusec wrote") from None
        return found

    def __hash__(self) -> int:
        return hash(json.dumps(self.data(), sort_keys=True))

    def __str__(self) -> str:
        words = [_words(value) for value in self.arguments["args"]]
        words += [f"{k}={_words(value)}" for k, value in self.arguments["kwargs"].items()]
        mode = "" if self.grad else ", inference mode" if self.inference else ", no gradients"
        return f"({', '.join(words)}){mode}"


def _written(value: Any) -> JSON:
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        if value.layout != torch.strided:
            raise NotWritable(f"a {value.layout} tensor cannot be written down as a signature")
        return {
            "tensor": {
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
                "strides": list(value.stride()),
                "device": str(value.device),
                "requires_grad": value.requires_grad,
            }
        }
    if type(value) in _CONTAINERS:
        return {_CONTAINERS[type(value)]: [_written(each) for each in value]}
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _written(each) for key, each in value.items()}}
    if type(value) is torch.dtype or type(value) is torch.device:
        return {type(value).__name__: str(value).removeprefix("torch.")}
    if type(value) in _PLAIN:
        return {"value": _number(value)}
    raise NotWritable(
        f"a {type(value).__name__} cannot be written down as a signature",
        "tensors, numbers, texts, None, and lists, tuples and dictionaries of them can",
    )


def _number(value: Any) -> JSON:
    # JSON has no infinities
    return {"float": value.hex()} if type(value) is float else value


def _made(value: JSON) -> Any:
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return _tensor(inner)
    if kind in ("tuple", "list"):
        found = [_made(each) for each in inner]
        return tuple(found) if kind == "tuple" else found
    if kind == "dict":
        return {key: _made(each) for key, each in inner.items()}
    if kind == "dtype":
        return _dtype(inner)
    if kind == "device":
        return torch.device(inner)
    return float.fromhex(inner["float"]) if type(inner) is dict else inner


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise NotWritable(f"torch has no dtype {name!r}")
    return found


def _tensor(found: Mapping[str, Any]) -> torch.Tensor:
    dtype = _dtype(found["dtype"])
    tensor = torch.empty_strided(
        found["shape"], found["strides"], dtype=dtype, device=found["device"]
    )
    with torch.no_grad():
        tensor.fill_(0.5 if dtype.is_floating_point or dtype.is_complex else 0)
    return tensor.requires_grad_(found["requires_grad"])


def _words(value: JSON) -> str:
    ((kind, inner),) = value.items()
    if kind == "tensor":
        shape = " x ".join(map(str, inner["shape"])) or "one number"
        return f"{inner['dtype']} {shape}"
    if kind in ("tuple", "list"):
        text = ", ".join(_words(each) for each in inner)
        return f"({text})" if kind == "tuple" else f"[{text}]"
    if kind == "dict":
        return "{" + ", ".join(f"{key}: {_words(each)}" for key, each in inner.items()) + "}"
    return str(inner) if kind != "value" else repr(_made(value))


def save_signatures(signatures: Iterable[CallSignature]) -> str:
    """Return signatures as text, to be kept in a file."""
    return json.dumps({"signatures": [each.data() for each in signatures]}, indent=1)


def load_signatures(text: str) -> tuple[CallSignature, ...]:
    """Return what ``save_signatures`` wrote.

    Raises:
        NotWritable: The text is something else.
    """
    try:
        found = list(json.loads(text)["signatures"])
    except (ValueError, KeyError, TypeError):
        raise NotWritable("these are not signatures that fusec wrote") from None
    return tuple(CallSignature.from_data(each) for each in found)


__all__ = ["CallSignature", "NotWritable", "load_signatures", "save_signatures"]
