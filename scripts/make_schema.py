"""Writes docs/slidegate.schema.json, the JSON Schema of the configuration file, from the definitions that validate it.

Run it from anywhere: ``python scripts/make_schema.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from slidegate.web.config_schema import json_schema

TARGET: Final = Path(__file__).resolve().parents[1] / "docs" / "slidegate.schema.json"


def text() -> str:
    """Return the text of the file."""
    return json.dumps(json_schema(), indent=2) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
