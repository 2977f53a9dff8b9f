"""Writes the rows of docs/reference/api.md anew from the docstrings; `--check` only compares.

A row begins with the anchor of its name. It gets the first sentence of the docstring, and in a table with a third
column the public attributes or methods.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "api.md"
ROW: Final = re.compile(r'\| <a id="([\w.]+)"></a>')
HEAD: Final = re.compile(r"\| name \| \|(?: (attributes|methods) \|)?$")
CODE: Final = re.compile(r"`{1,2}([^`]+)`{1,2}")


def sentence(found: Any) -> str:
    """Return the first sentence of a docstring, with code as Markdown writes it."""
    text = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
    first, end, _ = text.partition(". ")
    return CODE.sub(r"`\1`", first + end.strip()).replace("|", "\\|")


def listed(found: Any, kind: str) -> list[str]:
    """Return the public attributes or methods of a class."""
    members = [name for name in dir(found) if not name.startswith("_") and not hasattr(tuple, name)]
    return [name for name in members if callable(getattr(found, name)) == (kind == "methods")]


def row(path: str, kind: str | None) -> str:
    """Return the row of a name."""
    module, _, name = path.rpartition(".")
    found = getattr(import_module(module), name)
    shown = path if module not in {"slidegate", "slidegate.core"} else name
    names = f" {', '.join(f'`{one}`' for one in listed(found, kind))} |" if kind else ""
    return f'| <a id="{path}"></a>`{shown}` | {sentence(found)} |{names}'


def made(text: str) -> str:
    """Return the page with its rows as they must be."""
    lines, kind = [], None
    for line in text.splitlines():
        if head := HEAD.match(line):
            kind = head[1]
        known = ROW.match(line)
        lines.append(row(known[1], kind) if known else line)
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
