"""Writes the lines of docs/reference/api.md anew from the docstrings; `--check` only compares.

A line begins with the anchor of its name, and gets the first sentence of the docstring, up to a semicolon. A line below
it that begins with "Methods:" or "Attributes:" gets the public ones.
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
MEMBERS: Final = re.compile(r"  (Methods|Attributes): ")
CODE: Final = re.compile(r"`{1,2}([^`]+)`{1,2}")


def sentence(found: Any) -> str:
    """Return the first sentence of a docstring up to a semicolon, with code as Markdown writes it."""
    text = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
    first = re.split(r"\.(?: |$)|; ", text)[0]
    return CODE.sub(r"`\1`", first) + "."


def listed(path: str, kind: str) -> str:
    """Return the line of the public attributes or methods of a class."""
    found = named(path)
    known = sorted({*dir(found), *inspect.get_annotations(found)})
    members = [name for name in known if not name.startswith("_") and not hasattr(tuple, name)]
    wanted = [name for name in members if callable(getattr(found, name, None)) == (kind == "Methods")]
    return f"  {kind}: {', '.join(f'`{one}`' for one in wanted)}."


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
        elif members := MEMBERS.match(old):
            lines.append(listed(path, members[1]))
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
