"""The table of docs/guides/metrics.md: what it promises of each kind of events."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "metrics.md"
_ROWS = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", _PAGE.read_text("utf-8"), re.MULTILINE)

DETAILS = {kind: set(re.findall("`([^`]+)`", details)) for kind, details in _ROWS}
"""The names of the details of each kind."""
