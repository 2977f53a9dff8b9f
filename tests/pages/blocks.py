"""The fenced blocks of a page, and the comments that say what becomes of one.

* ``<!-- file: NAME -->`` before a block saves it under that name.
* ``<!-- fragment: WHOSE -->`` before a TOML block says that it is another program's.
* ``<!-- not run: REASON -->`` before commands excuses them.
* ``<!-- needs: MODULE -->`` before Python runs it only where that module is installed.
* ``<!-- varies: 60 | 1.2 s -->`` before an output names the parts of which only the shape has to be the same.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(
    r"^(?:<!--\s*(?P<mark>file|fragment|needs|not run|varies):\s*(?P<value>[^>]*?)\s*-->\n+)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
MARKED = re.compile(r"<!--\s*(?:file|fragment|needs|not run|varies)\b")
SHELL = {"bash", "console"}


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    code: str
    mark: str | None
    value: str


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        indent = found["indent"]
        lines = (line.removeprefix(indent) for line in found["code"].splitlines(keepends=True))
        line = text.count("\n", 0, found.start("code"))
        yield Block(line, found["language"].strip(), "".join(lines), found["mark"], found["value"] or "")


def varying(block: Block) -> tuple[str, ...]:
    return tuple(filter(None, block.value.split(" | "))) if block.mark == "varies" else ()
