"""The gallery's pictures look as they did when somebody looked at them; see ``gallery.py``."""

from __future__ import annotations

import json

import gallery
import numpy as np
import pytest
from lab import MOST
from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.serial,
    pytest.mark.slow,
    pytest.mark.timeout(MOST),
]

# How far a square's brightness may be off, of 255, and a picture's height, in pixels.
ROOM, ROOM_HEIGHT = 12, 4

# Boxes that hide a part of their text sideways, and that nobody can scroll.
CUT = """() => [...document.querySelectorAll('.fuselab-card *')].filter(e => {
    const style = getComputedStyle(e);
    return e.checkVisibility() && e.clientWidth > 0 && e.scrollWidth > e.clientWidth + 1
        && style.overflowX === 'hidden' && style.textOverflow !== 'ellipsis';
}).map(e => e.className + ': ' + e.textContent.slice(0, 60))"""


def test_it_looks_as_it_did(browser: Browser) -> None:
    known = json.loads(gallery.KNOWN.read_text(encoding="utf-8"))
    same_fonts = known["fonts"] == gallery.fonts(browser)
    seen = set()
    for name, page, picture in gallery.shots(browser, gallery.scripted()):
        seen.add(name)
        assert page.evaluate(CUT) == [], name
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, f"{name} is {wide} pixels too wide"
        if not same_fonts:
            continue
        (width, height), squares = gallery.look(picture)
        was_width, was_height, was = known["pictures"][name]
        assert width == was_width, name
        assert abs(height - was_height) <= ROOM_HEIGHT, f"{name}: {height} pixels, was {was_height}"
        before = np.frombuffer(bytes.fromhex(was), dtype=np.uint8).reshape(squares.shape)
        off = np.abs(squares.astype(int) - before)
        assert off.max() <= ROOM, f"{name} looks otherwise; make pictures, look, and --accept"
    assert seen == set(known["pictures"])
    if not same_fonts:
        pytest.skip("the fonts here are others than those of the pictures that are known")
