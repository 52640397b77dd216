"""The Chromium that the browser tests drive."""

from __future__ import annotations

import os
import shutil


def find_chromium() -> str | None:
    """Look for a Chromium on PATH, or where FUSELAB_CHROMIUM says."""
    names = (os.environ.get("FUSELAB_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)
