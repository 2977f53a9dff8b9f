"""Finds Chromium. ``python -m tests.browser.chromium`` prints its path; it fails without one if CI=true."""

import os
import shutil
import sys
from typing import Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


PROGRAM: Final = find()
MISSING: Final = "no Chromium on PATH: sudo apt install chromium"


def arguments() -> list[str]:
    """Return the options of Chromium: its sandbox does not work as root, and containers have a small /dev/shm."""
    return ["--disable-dev-shm-usage", "--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]


if __name__ == "__main__":
    print(PROGRAM or f"{MISSING}; tests that need one are skipped")  # noqa: T201 - the output of the program
    sys.exit(PROGRAM is None and os.environ.get("CI") == "true")
