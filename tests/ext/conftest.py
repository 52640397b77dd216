"""What the tests of the extension share: a real IPython shell over a pretended compiler."""

from support.shell import shell

__all__ = ["shell"]  # a fixture
