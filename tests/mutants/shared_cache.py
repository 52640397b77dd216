"""A pytest plugin that lets runs share built kernels: ``pytest -p mutants.shared_cache``.

The store of kernels is content-addressed (the text, the compiler and its flags), so that a mutant
finds in it just what it would have built.  ``MUTANTS_CACHE`` names the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = "MUTANTS_CACHE"


@pytest.fixture(scope="session", autouse=True)
def shared_kernels(private_folders: Path) -> Iterator[None]:
    """Put the shared folder in the place of the one that ``conftest.py`` has made."""
    with pytest.MonkeyPatch.context() as patch:
        if FOLDER in os.environ:
            patch.setenv("FUSEC_CACHE_DIR", os.environ[FOLDER])
        yield
