"""Processes whose coverage nobody measures.

The tool that measures has a lock. A process that is forked while another thread holds the lock waits for it for ever,
and so does one that is interrupted between taking it and letting it go.
"""

from __future__ import annotations

import os


def unmeasured() -> dict[str, str]:
    """Return the environment of this process without the variables that have another Python measure its coverage."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
