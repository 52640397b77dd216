"""``python -m fusec.packages.unpack model.fuse FOLDER``: a package's members as files."""

from __future__ import annotations

import sys
from pathlib import Path

from fusec.packages.runtime.archive import read_archive, unpack
from fusec.packages.runtime.errors import PackageError


def main(arguments: list[str]) -> int:
    """Unpack; return the process's status."""
    if len(arguments) != 2:
        print("usage: python -m fusec.packages.unpack PACKAGE FOLDER", file=sys.stderr)
        return 2
    try:
        unpack(read_archive(Path(arguments[0])), Path(arguments[1]))
    except PackageError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
