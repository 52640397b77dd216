"""The loader of ``.fuse`` packages: Python's library and numpy, no torch and no compiler.

These files are ``fusec.packages.runtime`` within fusec and ``fuselab_runtime`` by themselves
(``pip install fuselab-runtime``), so they import each other relatively and nothing else of fusec.

``load(path)`` reads and checks; nothing of a package is executed before it is called.
"""

from .errors import (
    CannotRun,
    DamagedPackage,
    KernelStopped,
    NoSpecialization,
    PackageError,
)
from .package import Package, load

__all__ = [
    "CannotRun",
    "DamagedPackage",
    "KernelStopped",
    "NoSpecialization",
    "Package",
    "PackageError",
    "load",
]
