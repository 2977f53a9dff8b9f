"""The table of docs/guides/metrics.md: what it promises of each kind of events."""

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "metrics.md"


@cache
def details() -> dict[str, set[str]]:
    """Return the names of the details of each kind; nothing where the page is missing, as in a copy of the tests."""
    text = PAGE.read_text("utf-8") if PAGE.exists() else ""
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]*) \|$", text, re.MULTILINE)
    return {kind: set(re.findall("`([^`]+)`", named)) for kind, named in rows}
