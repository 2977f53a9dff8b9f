"""``python -m slidegate`` is the `slidegate` command."""

from __future__ import annotations

import sys

from .ops.cli import run

if __name__ == "__main__":
    sys.exit(run())
