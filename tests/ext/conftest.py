"""What the tests of the extension share: a real IPython shell over a pretended compiler."""

from collections.abc import Iterator

import pytest

from support.shell import shell


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Have what is timed wait for the native part of calls, however slow the machine is.

    Where it does not, a result says that it was timed too early, and compares nothing.
    """
    from fuselab.session import measured_cell

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_cell, "MOST_AWAITED", 600.0)
        yield


__all__ = ["patient", "shell"]  # fixtures
