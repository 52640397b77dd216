"""Methods that a class has in place of others, which TorchDynamo does not guard.

What an object finds in its class is compiled with the class as it was, whichever backend is asked:
``Model.forward = other`` afterwards, a method whose code is exchanged (as IPython's ``autoreload``
does with a file that was edited), and an attribute that the object's own class gets where it had
its parent's, were not seen, and the result was that of the former one.  They are guarded here:
functions by their code, what the own class inherits by its not having it.  The methods of torch's
own classes are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import TypeDictSource
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

_WALK, _ABSENT = "get_source_by_walking_mro", "DICT_NOT_CONTAINS"


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once, where it looks for an attribute in classes."""
    walk: Callable[..., Any] | None = getattr(UserDefinedObjectVariable, _WALK, None)
    if walk is None or not hasattr(GuardBuilder, _ABSENT):
        return  # another release of torch

    @functools.wraps(walk)
    def walked(self: Any, tx: Any, name: str) -> Any:
        source = walk(self, tx, name)
        own = type(self.value)
        known: set[Any] = getattr(tx.output, "guarded_mro_absent_keys", set())
        if name not in own.__dict__ and (id(own), name) not in known:
            known.add((id(own), name))
            absent = functools.partial(getattr(GuardBuilder, _ABSENT), key=name)
            install_guard(TypeDictSource(self.cls_source).make_guard(absent))
        found = next((c.__dict__[name] for c in own.__mro__ if name in c.__dict__), None)
        if type(found) is FunctionType and not (found.__module__ or "").startswith("torch."):
            install_guard(source.make_guard(GuardBuilder.CLOSURE_MATCH))
        return source

    setattr(UserDefinedObjectVariable, _WALK, walked)


__all__ = ["install"]
