"""The version of the compiler; the packages are released together."""

__version__ = "0.1.0"
