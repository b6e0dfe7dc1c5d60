"""Chromium for what visits the page: the rehearsal of a Space and the tests."""

from __future__ import annotations

import os
import shutil
from typing import Any

# The headless shell first: without the parts of a desktop browser, it opens a page in a third less processor time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")


def open_chromium(playwright: Any) -> Any:
    """The browser at SPECULOSCOPE_CHROMIUM, or else the first of NAMES that is installed, or playwright's own."""
    path = os.environ.get("SPECULOSCOPE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
