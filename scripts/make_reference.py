"""Writes the lines of docs/reference/api.md anew from the docstrings; `--check` only compares.

A line begins with the anchor of its name, and gets the first sentence of the docstring, up to a semicolon. A line below
it that begins with "Methods:" gets the public ones.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api.md"
LINE: Final = re.compile(r'\* <a id="([\w.]+)"></a>`')
CODE: Final = re.compile(r"`{1,2}([^`]+)`{1,2}")


def sentence(found: Any) -> str:
    """Return the first sentence of a docstring up to a semicolon, with code as Markdown writes it."""
    text = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
    first = re.split(r"\.(?: |$)|; ", text)[0]
    return CODE.sub(r"`\1`", first) + "."


def methods(path: str) -> str:
    """Return the line of the public methods of a class."""
    found = named(path)
    names = [name for name in dir(found) if not name.startswith("_") and callable(getattr(found, name))]
    return f"  Methods: {', '.join(f'`{name}`' for name in names)}."


def named(path: str) -> Any:
    """Return what a full name names."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def line(path: str) -> str:
    """Return the line of a name."""
    module, _, name = path.rpartition(".")
    shown = path if module not in {"slidegate", "slidegate.core"} else name
    return f'* <a id="{path}"></a>`{shown}`: {sentence(named(path))}'


def made(text: str) -> str:
    """Return the page with its lines as they must be."""
    lines, path = [], ""
    for old in text.splitlines():
        if known := LINE.match(old):
            path = known[1]
            lines.append(line(path))
        elif old.startswith("  Methods: "):
            lines.append(methods(path))
        else:
            lines.append(old)
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it; return the exit code."""
    before = PAGE.read_text("utf-8")
    after = made(before)
    if "--check" in arguments:
        return int(after != before)
    PAGE.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
