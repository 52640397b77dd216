"""What AOTAutograd refuses to trace: eager runs it, or raises what it raises."""

from __future__ import annotations

from torch._dynamo import exc

from fusec.errors import FusecError


def is_untraceable(error: BaseException) -> bool:
    """Whether a graph failed in AOTAutograd, which eager may be able to run all the same.

    A derivative that torch does not have fails when the graph is traced, where eager fails at the
    first gradient that somebody asks for, if at all; ``set_`` on a parameter that is updated as
    well, as by ``self.weight.data *= mask``, eager runs without a word.  TorchDynamo's own
    exceptions tell it to go on in another way, and ours are meant for the user.
    """
    ours = (exc.TorchDynamoException, FusecError)
    return isinstance(error, Exception) and not isinstance(error, ours)


def in_short(error: BaseException) -> str:
    """Return an exception in one line: its class and its first sentence."""
    # what C++ raises may go on with forty lines of its stack
    text = " ".join(str(error).partition("Exception raised from ")[0].split())
    sentence = text.partition(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {sentence}" if sentence else type(error).__name__


__all__ = ["in_short", "is_untraceable"]
